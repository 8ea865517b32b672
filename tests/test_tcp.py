#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The transport over TCP as users meet it: what it says, who may connect, how runs end when a
connection is cut.

Usage: test_tcp.py PROGRAM [unittest arguments]"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

PROGRAM = ""
SLACK_S = 20  # starting, ending and telling, on a machine that does other things too
QUICK = ["-n", "3", "-w", "1"]
OPERATIONS = ["allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "broadcast",
              "reduce", "gather", "scatter", "sendrecv"]
NETS = ["tcp", "shm+tcp"]
THREADS = ["--ranks-as", "threads"]
# samples of many operations until 3 s are over, on a fast machine as on a slow one
FOR_3_S = ["--in-place", "-m", "30", "--precision", "0.0001%", "--max-time", "3"]
ADDRESS = re.compile(r"(\d+) 127\.0\.0\.1:(\d+)")


def start(*args, env=None):
    return subprocess.Popen([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env={**os.environ, **(env or {})})


def finish(run, timeout=100):
    try:
        out, err = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    run.out, run.err = (getattr(run, "read", "") + out), err
    return run


def ports(run):
    """Where the ranks of a run listen, as it says at its start."""
    run.read = ""
    for line in run.stdout:
        run.read += line
        if line.startswith("# addresses by rank:"):
            return [int(port) for _, port in ADDRESS.findall(line)]
    raise AssertionError(run.read + run.stderr.read())


class Case(unittest.TestCase):
    def fine(self, run):
        self.assertEqual(run.returncode, 0, f"{run.args}\n{run.out}\n{run.err}")
        self.assertIn("# Out of bounds values : 0 OK", run.out)

    def run_fine(self, *args):
        run = finish(start(*args))
        self.fine(run)
        self.assertEqual(run.err, "")
        return run


class Results(Case):
    def test_every_operation(self):
        for net in NETS:
            for operation in OPERATIONS:
                ranks = "2" if operation == "sendrecv" else "3"
                with self.subTest(net=net, operation=operation):
                    self.run_fine(operation, "--transport", net, "--ranks", ranks, "-b", "8",
                                  "-e", "1M", "-f", "64", *QUICK)

    def test_connections_per_pair(self):
        for count in ["1", "2", "5"]:
            self.run_fine("alltoall", "--transport", "tcp", "--ranks", "3", "--connections", count,
                          "-b", "4K", "-e", "4M", "-f", "32", *QUICK)

    def test_threads(self):
        for net in NETS:
            self.run_fine("allreduce", "--transport", net, "--ranks", "3", *THREADS, "-b", "8",
                          "-e", "1M", "-f", "64", *QUICK)

    def test_the_address_of_every_rank_is_shown(self):
        run = self.run_fine("allreduce", "--transport", "tcp", "--ranks", "3", "--size", "8",
                            *QUICK)
        line = next(line for line in run.out.splitlines() if line.startswith("# addresses"))
        found = ADDRESS.findall(line)
        self.assertEqual([rank for rank, _ in found], ["0", "1", "2"])
        self.assertEqual(len({port for _, port in found}), 3)

    def test_slices_that_are_much_longer_than_sockets_take(self):
        self.run_fine("allgather", "--transport", "tcp", "--ranks", "3", "--size", "48M",
                      "--slice", "16M", "-n", "2", "-w", "1")


def say(caller, words):
    """Sends words and ends them; the listener may refuse and close before the end is sent."""
    if words:
        with contextlib.suppress(OSError):
            caller.sendall(words)
            caller.shutdown(socket.SHUT_WR)


class Strangers(Case):
    """Who does not know the token is refused and named, and the run goes on."""

    def test_are_refused_and_the_run_goes_on(self):
        run = start("allreduce", "--transport", "tcp", "--ranks", "3", "--size", "64K",
                    *FOR_3_S, "--timeout", "20")
        own = []
        silent = []
        for port in ports(run):
            for words in [b"GET / HTTP/1.0\r\n\r\n".ljust(200), b"collbnch" + bytes(200),
                          b"x", b""]:
                caller = socket.create_connection(("127.0.0.1", port), timeout=20)
                own.append((caller.getsockname()[1], words))
                say(caller, words)
                silent.append(caller)  # stays open
        finish(run)
        self.fine(run)
        for port, words in own:
            if words:
                self.assertRegex(run.err, rf"refused a connection from 127\.0\.0\.1:{port}: it ")
        self.assertIn("it does not speak collbench", run.err)
        self.assertIn("it did not introduce itself", run.err)
        for caller in silent:
            caller.close()

    def test_hear_no_word(self):
        run = start("allreduce", "--transport", "tcp", "--ranks", "2", "--size", "64K",
                    *FOR_3_S, "--timeout", "20")
        caller = socket.create_connection(("127.0.0.1", ports(run)[1]), timeout=20)
        caller.sendall(bytes(200))
        heard = b""
        try:
            heard = caller.recv(100)
        except ConnectionError:
            pass
        caller.close()
        self.assertEqual(heard, b"")
        finish(run)
        self.fine(run)


class Ends(Case):
    """Runs that lose something."""

    def run_bad(self, code, *args, env=None):
        begin = time.monotonic()
        run = finish(start(*args, env=env))
        run.seconds = time.monotonic() - begin
        self.assertEqual(run.returncode, code, f"{args}\n{run.out}\n{run.err}")
        return run

    def test_a_cut_connection_ends_the_run_and_is_named(self):
        for rank, peer, more in [(0, 1, []), (3, 0, []), (1, 0, THREADS)]:
            with self.subTest(rank=rank, more=more):
                run = self.run_bad(1, "allreduce", "--transport", "tcp", "--ranks", "4",
                                   "--algo", "ring", "--size", "64K", "-n", "100000",
                                   "--timeout", "40", *more,
                                   env={"COLLBENCH_FAULT": f"drop:{rank}:20"})
                where = r"\(127\.0\.0\.1:\d+\) is lost: "
                here, there = (f"rank {a}: the connection to rank {b} {where}"
                               for a, b in [(rank, peer), (peer, rank)])
                self.assertRegex(run.err, f"{here}|{there}")
                self.assertLess(run.seconds, 40)  # it does not wait for the timeout

    def test_who_dies_is_named_and_not_the_connection(self):
        run = self.run_bad(1, "allreduce", "--transport", "tcp", "--ranks", "4", "--size", "64K",
                           "-n", "100000", env={"COLLBENCH_FAULT": "kill:2:20"})
        self.assertRegex(run.err, r"rank 2 \(pid \d+\) was killed by signal 9")
        self.assertNotIn("is lost", run.err)

    def test_who_stalls_is_named(self):
        for kind in ["stall", "stop"]:
            run = self.run_bad(1, "allreduce", "--transport", "tcp", "--ranks", "4", "--size",
                               "64K", "-n", "100000", "--timeout", "2",
                               env={"COLLBENCH_FAULT": f"{kind}:1:20"})
            self.assertRegex(run.err, r"rank 1 \(pid \d+\) made no progress for 2 s")
            self.assertLess(run.seconds, 2 + SLACK_S)

    def test_an_interface_that_is_not_there(self):
        run = self.run_bad(2, "allreduce", "--transport", "tcp", "--ranks", "2", "--size", "8",
                           "--iface", "eth77")
        self.assertIn("eth77", run.err)
        self.assertIn("lo 127.0.0.1", run.err)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
