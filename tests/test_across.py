#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs over several hosts, here two addresses of this machine: agents of their own, no memory in
common. What comes out, and how such runs end when something dies.

Usage: test_across.py PROGRAM [unittest arguments]"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
TWO = ["--hosts", "127.0.0.1:2,127.0.0.2:2"]
LONG = ["--size", "64K", "-n", "1000000", "--timeout", "3"]
SLACK_S = 20  # starting, ending and telling, on a machine that does other things too
MARK = "COLLBENCH_TEST_ACROSS"


def start(*args, env=None):
    return subprocess.Popen([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env={**os.environ, MARK: str(os.getpid()), **(env or {})})


def finish(run, timeout=100):
    try:
        run.out, run.err = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    return run


def marked():
    """Processes of these tests: (pid, command line)."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if f"{MARK}={os.getpid()}".encode() not in environ.read().split(b"\0"):
                    continue
            with open(f"/proc/{pid}/cmdline", "rb") as words:
                found.append((int(pid), words.read().decode().split("\0")))
        except OSError:
            continue
    return found


def agents():
    """Those of the other hosts."""
    return [pid for pid, words in marked() if "agent" in words[1:2]]


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def await_ranks(run):
    """Waits until all ranks work: they have measured the clock."""
    for line in run.stdout:
        if line.startswith("# clock"):
            return
    raise AssertionError(run.stderr.read())


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Case(unittest.TestCase):
    def tearDown(self):
        self.assertTrue(wait_until(lambda: not marked(), 30), marked())

    def run_fine(self, *args):
        run = finish(start(*args))
        self.assertEqual(run.returncode, 0, f"{args}\n{run.out}\n{run.err}")
        self.assertIn("# Out of bounds values : 0 OK", run.out)
        self.assertEqual(run.err, "")
        return run

    def run_bad(self, code, *args, **kwargs):
        run = finish(start(*args, **kwargs))
        self.assertEqual(run.returncode, code, f"{args}\n{run.out}\n{run.err}")
        return run


class Results(Case):
    def test_every_operation(self):
        for operation in ["allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv",
                          "broadcast", "reduce", "gather", "scatter", "sendrecv", "barrier"]:
            with self.subTest(operation=operation):
                self.run_fine(operation, "--hosts", "127.0.0.1:2,127.0.0.2:1,127.0.0.3:2",
                              "-b", "0", "-e", "100000", "-i", "50001", "-n", "3")

    def test_every_algorithm(self):
        self.run_fine("allreduce", *TWO, "--algo", "all", "-b", "40", "-e", "40000", "-f", "1000",
                      "-n", "3")

    def test_every_transport(self):
        for transport in ["tcp", "shm+tcp"]:
            with self.subTest(transport=transport):
                self.run_fine("allreduce", *TWO, "--transport", transport, "-b", "8", "-e", "4M",
                              "-f", "64", "-n", "3")

    def test_threads_and_several_launches(self):
        run = self.run_fine("allgather", *TWO, "--ranks-as", "threads", "--launches", "3", "--size",
                            "4K", "-n", "3")
        rows = [line for line in run.out.splitlines() if line and not line.startswith("#")]
        self.assertEqual(len(rows), 4)  # one of each launch, one over all

    def test_the_record_says_where_the_ranks_were(self):
        run = finish(start("allreduce", *TWO, "--size", "4K", "-n", "3", "--json", "-"))
        self.assertEqual(run.returncode, 0, run.err)
        record = json.loads(run.out)
        text = json.dumps(record)
        self.assertIn("127.0.0.1 2, 127.0.0.2 2", text)
        self.assertIsNotNone(re.search(r"0 [0-9.]+:\d+, 1 [0-9.]+:\d+, 2 [0-9.]+:\d+, 3 ", text))
        self.assertIn('"shm+tcp', text)

    def test_hosts_are_the_node_groups(self):
        run = self.run_fine("allreduce", *TWO, "--algo", "hierarchical", "--size", "4K", "-n", "3")
        self.assertIn("they are the node groups", run.out)
        other = self.run_fine("allreduce", *TWO, "--algo", "hierarchical", "--nodes", "3+1",
                              "--size", "4K", "-n", "3")
        self.assertNotIn("they are the node groups", other.out)

    def test_fewer_ranks_than_there_is_room_for(self):
        run = self.run_fine("allreduce", *TWO, "--ranks", "3", "--size", "4K", "-n", "3")
        self.assertIn("hosts and ranks: 127.0.0.1 2, 127.0.0.2 1", run.out)

    def test_wrong_data_elsewhere_is_seen_here(self):
        run = self.run_bad(1, "allreduce", *TWO, "--size", "4K", "-n", "3",
                           env={"COLLBENCH_WRONG": "3:5"})
        self.assertRegex(run.out + run.err, r"rank 3\b")

    def test_through_a_remote_shell(self):
        with tempfile.TemporaryDirectory() as folder:
            shell = os.path.join(folder, "shell")
            with open(shell, "w") as script:
                script.write('#!/bin/sh\nshift\nexec sh -c "$*"\n')
            os.chmod(shell, 0o755)
            run = self.run_fine("allreduce", *TWO, "--rsh", shell, "--size", "4K", "-n", "3")
            self.assertNotIn("token", run.out)


class Refusals(Case):
    def test_lists_that_make_no_sense(self):
        for hosts, words in {"127.0.0.1:2,b:x": "'b:x' has no number of ranks",
                             "127.0.0.1:0,b": "'127.0.0.1:0' has no number of ranks",
                             "127.0.0.1,,b": "'' names no host",
                             "127.0.0.1,-oProxyCommand=x": "names no host"}.items():
            with self.subTest(hosts=hosts):
                self.assertIn(words, self.run_bad(2, "allreduce", "--hosts", hosts).err)

    def test_more_ranks_than_room(self):  # dstackai/dstack#2451, open-mpi/ompi#3133
        run = self.run_bad(2, "allreduce", "--hosts", "127.0.0.1:2,127.0.0.2", "--ranks", "9")
        self.assertIn("room for 3 (127.0.0.1 2, 127.0.0.2 1 (no number was given))", run.err)
        self.assertIn("NAME:RANKS", run.err)

    def test_the_first_host_is_another_one(self):
        run = self.run_bad(2, "allreduce", "--hosts", "192.0.2.77:1,127.0.0.1:1")
        self.assertIn("the first host, 192.0.2.77, is not this one", run.err)

    def test_what_runs_on_one_host_alone(self):
        run = self.run_bad(2, "allreduce", *TWO, "--transport", "shm", "--trace", "x.json")
        self.assertIn("--transport shm reaches ranks on one host", run.err)
        self.assertIn("--trace with --hosts", run.err)
        run = self.run_bad(2, "allreduce", *TWO, "--size", "8", "--groups", "2x2")
        self.assertIn("--groups with --hosts", run.err)

    def test_a_host_that_cannot_be_reached(self):  # horovod/horovod#310
        run = self.run_bad(1, "allreduce", *TWO, "--rsh", "false")
        self.assertIn("host 127.0.0.2: what was to start its ranks (false) ended with status 1",
                      run.err)

    def test_a_host_that_does_not_come(self):  # NVIDIA/nccl-tests#14: a firewall
        run = self.run_bad(1, "allreduce", *TWO, "--rsh", "sleep 60 #", "--timeout", "1")
        self.assertIn("host 127.0.0.2", run.err)

    def test_an_interface_that_is_not_there(self):
        run = self.run_bad(2, "allreduce", *TWO, "--iface", "nosuch0")
        self.assertIn("--iface nosuch0", run.err)
        self.assertIn("lo 127.0.0.1", run.err)

    def test_options_of_another_transport(self):
        run = self.run_bad(2, "allreduce", "--ranks", "2", "--iface", "lo", "--connections", "2",
                           "--provider", "tcp")
        for option in ["--iface", "--connections", "--provider"]:
            self.assertIn(f"{option} is for --transport", run.err)

    def test_nobody_starts_an_agent_by_hand(self):
        run = self.run_bad(2, "agent", "1@127.0.0.1:1")
        self.assertIn("agents are started by --hosts", run.err)


class Copies(Case):
    """Started by other launchers, one copy per rank. D01: two tables instead of one
    (NVIDIA/nccl-tests#27, #213)."""
    ARGS = ["allreduce", "-b", "8", "-e", "64K", "-f", "64", "-n", "3", "--timeout", "10"]
    ROWS = 3

    def copies(self, variables, args=None):
        """Runs one copy per dict of variables; their ends, by rank."""
        runs = [start(*(self.ARGS if args is None else args[rank]), env=own)
                for rank, own in enumerate(variables)]
        return [finish(run) for run in runs]

    def torchrun(self, hosts, port, **more):
        """torchrun's variables of copies on hosts of so many ranks."""
        size, variables = sum(hosts), []
        for ranks in hosts:
            for local in range(ranks):
                variables.append({"RANK": str(len(variables)), "LOCAL_RANK": str(local),
                                  "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                                  "MASTER_PORT": str(port), **more})
        return variables

    def one_table(self, runs):
        self.assertEqual([run.returncode for run in runs], [0] * len(runs),
                         [run.err for run in runs])
        self.assertEqual([run.out for run in runs[1:]], [""] * (len(runs) - 1))
        lines = runs[0].out.splitlines()
        self.assertEqual(len([line for line in lines if line and line[0] != "#"]), self.ROWS)
        self.assertEqual(runs[0].out.count("# collbench "), 1)
        self.assertIn("# Out of bounds values : 0 OK", runs[0].out)
        return runs[0].out

    def test_variables_that_cannot_be(self):
        good = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29641"}
        for name, value, words in [
                ("RANK", "2", "RANK=2, but WORLD_SIZE=2: ranks go from 0 to 1"),
                ("RANK", "-1", "RANK=-1: not a whole number from 0"),
                ("WORLD_SIZE", "x", "WORLD_SIZE=x: not a whole number from 1"),
                ("WORLD_SIZE", "0", "WORLD_SIZE=0: not a whole number from 1"),
                ("MASTER_PORT", "99999", "MASTER_PORT=99999: not a whole number from 1 to 65534"),
                ("MASTER_PORT", "abc", "MASTER_PORT=abc: not a whole number from 1 to 65534")]:
            with self.subTest(name=name, value=value):
                for command in ["allreduce", "p2p"]:
                    run = self.run_bad(2, command, "--size", "8", env={**good, name: value})
                    self.assertIn(words, run.err)
        del good["MASTER_PORT"]
        self.assertIn("MASTER_ADDR is set, MASTER_PORT is not",
                      self.run_bad(2, "allreduce", "--size", "8", env=good).err)

    def test_torchrun_two_hosts(self):
        out = self.one_table(self.copies(self.torchrun([2, 2], 29651)))
        self.assertIn("allreduce of 4 ranks", out)
        self.assertRegex(out, r"hosts and ranks: \S+ 2, \S+ 2;")
        self.assertIn("shm+tcp", out)

    def test_torchrun_uneven_hosts_and_its_own_store(self):
        variables = self.torchrun([1, 3], 29661, TORCHELASTIC_USE_AGENT_STORE="True")
        self.assertRegex(self.one_table(self.copies(variables)), r"ranks: \S+ 1, \S+ 3;")

    def test_mpiexec(self):
        if not any(os.access(os.path.join(folder, "mpiexec"), os.X_OK)
                   for folder in os.environ["PATH"].split(os.pathsep)):
            self.skipTest("no mpiexec here")
        done = subprocess.run(["mpiexec", "-n", "4", PROGRAM, *self.ARGS], capture_output=True,
                              text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("# collbench "), 1)
        rows = [line for line in done.stdout.splitlines() if line and line[0] != "#"]
        self.assertEqual(len(rows), self.ROWS)
        self.assertIn("allreduce of 4 ranks", done.stdout)

    def test_slurm_on_one_host(self):
        variables = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
                      "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "n7"}
                     for rank in range(3)]
        self.one_table(self.copies(variables))

    def test_other_arguments(self):
        args = [self.ARGS, self.ARGS[:-2]]
        runs = self.copies(self.torchrun([1, 1], 29671), args)
        self.assertEqual([run.returncode for run in runs], [2, 2])
        self.assertIn("rank 1 on", runs[0].err)
        self.assertIn("was started with another command line than rank 0", runs[0].err)

    def test_another_number_of_ranks(self):
        runs = self.copies(self.torchrun([1, 1], 29681), [[*self.ARGS, "--ranks", "3"]] * 2)
        self.assertEqual([run.returncode for run in runs], [2, 2])
        self.assertIn("torchrun has started 2 copies, one per rank; leave --ranks out", runs[0].err)

    def test_a_copy_that_does_not_come(self):
        runs = self.copies(self.torchrun([1, 2], 29691)[:2], [[*self.ARGS[:-1], "1"]] * 2)
        self.assertEqual([run.returncode for run in runs], [1, 1])
        self.assertIn("2 of the 3 copies that torchrun has started came within 1 s", runs[0].err)

    def test_another_token(self):
        variables = self.torchrun([1, 1], 29701)
        variables[1]["COLLBENCH_TOKEN"] = "wrong"
        runs = self.copies(variables, [[*self.ARGS[:-1], "1"]] * 2)
        self.assertEqual([run.returncode for run in runs], [1, 1])
        self.assertIn("does not know this run's token", runs[0].err)

    def test_several_hosts_without_an_address(self):
        run = self.run_bad(2, *self.ARGS, env={"PMI_RANK": "0", "PMI_SIZE": "4",
                                               "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"})
        self.assertIn("set MASTER_ADDR", run.err)

    def test_a_rank_dies(self):
        variables = self.torchrun([2, 2], 29711, COLLBENCH_FAULT="kill:3:9")
        runs = self.copies(variables, [["allreduce", *LONG]] * 4)
        self.assertEqual([run.returncode for run in runs], [1] * 4)
        self.assertRegex(runs[0].err, r"rank 3 on .* was killed by signal 9")


class Faults(Case):
    ENDS = {"kill": r"was killed by signal 9 \(Killed\)", "exit": "exited with status 3"}
    STALLS = {"stop": r"\(it is stopped\)", "stall": r"\(it sleeps"}

    def test_who_dies_is_named(self):
        for fault, words in self.ENDS.items():
            for rank in range(4):
                with self.subTest(fault=fault, rank=rank):
                    run = self.run_bad(1, "allreduce", *TWO, *LONG,
                                       env={"COLLBENCH_FAULT": f"{fault}:{rank}:9"})
                    host = 1 + rank // 2
                    self.assertRegex(run.err, rf"rank {rank} on 127\.0\.0\.{host} \(pid \d+\) "
                                     rf"{words} during allreduce")
                    self.assertIn("waited for it", run.err)
                    self.assertIn("# the run FAILED", run.out)

    def test_who_stalls_is_named(self):
        for fault, words in self.STALLS.items():
            for rank in (1, 2):
                with self.subTest(fault=fault, rank=rank):
                    begin = time.monotonic()
                    run = self.run_bad(1, "allreduce", *TWO, *LONG,
                                       env={"COLLBENCH_FAULT": f"{fault}:{rank}:9"})
                    self.assertRegex(run.err, rf"rank {rank} on .* made no progress for 3 s {words}")
                    self.assertLess(time.monotonic() - begin, 3 + SLACK_S)

    def test_a_host_is_lost(self):
        run = start("allreduce", *TWO, *LONG)
        await_ranks(run)
        os.kill(agents()[0], signal.SIGKILL)
        finish(run)
        self.assertEqual(run.returncode, 1)
        self.assertIn("host 127.0.0.2 is lost", run.err)

    def test_a_host_is_stopped(self):
        """Its agent says nothing more: that is named, not a rank that waits for it."""
        run = start("allreduce", *TWO, *LONG)
        await_ranks(run)
        stopped = agents() + [pid for pid, words in marked() if parent(pid) in agents()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            finish(run)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):  # the launcher has killed it
                    os.kill(pid, signal.SIGCONT)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.err, r"host 127\.0\.0\.2 has said nothing for [\d.]+ s")

    def test_the_launcher_is_killed(self):
        run = start("allreduce", *TWO, *LONG)
        await_ranks(run)
        run.kill()
        finish(run)  # and tearDown sees that nobody is left

    def test_interrupted(self):
        run = start("allreduce", *TWO, *LONG)
        await_ranks(run)
        run.send_signal(signal.SIGINT)
        finish(run)
        self.assertEqual(run.returncode, 128 + signal.SIGINT)
        self.assertIn("interrupted by signal 2", run.err)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
