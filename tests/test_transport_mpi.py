#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""collbench over the MPI library: one header and one row per size, the same program beside MPI's
own collectives, over several hosts (addresses of this machine), as copies that mpiexec starts, what
is refused, and who is named when a rank ends badly. Skipped (exit status 77) where there is no
mpiexec.

Usage: test_transport_mpi.py PROGRAM [unittest arguments]"""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
QUICK = ["-n", "3", "-w", "1"]
TWO = ["--hosts", "127.0.0.1:2,127.0.0.2:2"]
LONG = ["--size", "64K", "--algo", "ring", "-n", "1000000", "-T", "5"]
MARK = "COLLBENCH_TEST_MPI"
# Between hosts of one machine UCX must not look for shared memory: other hosts are not there.
APART = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
TIMEOUT_S = 3
SLACK_S = 20  # a loaded machine starts mpiexec slowly


def run(*args, env=None):
    return subprocess.run([PROGRAM, *args], env={**os.environ, **(env or {})}, timeout=120,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def over_mpi(*args, **kwargs):
    return run(*args, "--transport", "mpi", **kwargs)


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


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Case(unittest.TestCase):
    def good(self, done):
        self.assertEqual(done.returncode, 0, f"{done.args}\n{done.stdout}\n{done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout

    def rows(self, text):
        return [line.split() for line in text.splitlines() if line and not line.startswith("#")]

    def nothing_left(self):
        self.assertTrue(wait_until(lambda: not marked(), 30), marked())


class Results(Case):
    def test_one_header_and_one_row_per_size(self):
        text = self.good(over_mpi("allreduce", "--ranks", "4", "-b", "8", "-e", "4M", "-f", "8",
                                  *QUICK))
        self.assertEqual([int(row[0]) for row in self.rows(text)], [8 << 3 * i for i in range(7)])
        self.assertEqual(text.count("# collbench "), 1)
        self.assertEqual(text.count("(B)"), 1)
        self.assertEqual(len(re.findall(r"(?m)^# MPICH .* by .*mpiexec|^# Open MPI .* by ", text)), 1)
        self.assertIn("# Out of bounds values : 0 OK", text)
        for row in self.rows(text):
            self.assertIn("mpi/staged", row)
            self.assertEqual((row[8], row[12]), ("0", "0"), row) # #wrong

    def test_every_operation_is_right(self):
        for op in ("allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "broadcast",
                   "reduce", "gather", "scatter", "sendrecv", "barrier"):
            with self.subTest(op=op):
                sizes = [] if op == "barrier" else ["-b", "12", "-e", "768K", "-f", "16"]
                text = self.good(over_mpi(op, "--ranks", "3", *sizes, "--check", "2", *QUICK))
                self.assertEqual(len(self.rows(text)), 1 if op == "barrier" else 5, text)
                self.assertIn("# Out of bounds values : 0 OK", text)

    def test_private_buffers_and_odd_depths(self):
        text = self.good(over_mpi("allreduce", "--ranks", "3", "--size", "1M", "--algo", "ring",
                                  "--buffers", "private", "--depth", "1", "--slice", "4K", *QUICK))
        self.assertIn("# Out of bounds values : 0 OK", text)

    def test_beside_the_collectives_of_mpi(self):
        text = self.good(over_mpi("allreduce", "--ranks", "2", "-b", "8", "-e", "64K", "-f", "8192",
                                  "--vs", "mpi", "--csv", "-", *QUICK))
        rows = list(csv.DictReader(text.splitlines()))
        self.assertEqual([(row["size_B"], row["algo"] == "mpi") for row in rows],
                         [("8", False), ("8", True), ("65536", False), ("65536", True)])
        for row in rows:
            self.assertEqual((row["out_of_place_wrong"], row["in_place_wrong"]), ("0", "0"))
            self.assertEqual(row["transport"] == "mpi/staged", row["algo"] != "mpi", row)

    def test_pairs(self):
        done = run("p2p", "--transport", "mpi", "--ranks", "3", "--size", "8,64K", "-n", "3",
                   "--cell-time", "0.1ms", "--json", "-")
        rows = json.loads(self.good(done))["rows"]
        self.assertEqual(len(rows), 2 * 3 * 2)


class SeveralHosts(Case):
    """Two addresses of this machine: hosts to collbench and to MPI, agents of their own."""

    @classmethod
    def setUpClass(cls):
        version = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True).stdout
        if "HYDRA" not in version:
            raise unittest.SkipTest("mpiexec is not that of MPICH")

    def tearDown(self):
        self.nothing_left()

    def start(self, *args, env=None):
        return subprocess.Popen([PROGRAM, "allreduce", *TWO, *args], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **APART, MARK: str(os.getpid()), **(env or {})})

    def under_way(self, run):
        """Once mpiexec, its proxies and all ranks work."""
        words = lambda: [words for _, words in marked()]
        self.assertTrue(wait_until(lambda: len([w for w in words() if "-n" in w]) >= 5 and
                                   len([w for w in words() if "pmi_proxy" in w[0]]) == 2), words())
        for line in run.stdout:
            if line.startswith("# clock"):  # all ranks have measured it
                break
        self.assertIsNone(run.poll())

    def test_every_operation_is_right(self):
        for op in ("allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "broadcast",
                   "reduce", "gather", "scatter", "sendrecv", "barrier"):
            with self.subTest(op=op):
                sizes = [] if op == "barrier" else ["-b", "0", "-e", "100K", "-i", "50001"]
                text = self.good(run(op, "--hosts", "127.0.0.1:2,127.0.0.2:1", *sizes,
                                     "--transport", "mpi", *QUICK, env=APART))
                self.assertEqual(len(self.rows(text)), 1 if op == "barrier" else 3, text)
                self.assertIn("# Out of bounds values : 0 OK", text)

    def test_one_table_of_all_hosts(self):
        text = self.good(run("allreduce", "--hosts", "127.0.0.1:1,127.0.0.1:3", "--algo", "all",
                             "--size", "40K", "--transport", "shm+mpi", *QUICK))
        self.assertEqual(text.count("# collbench "), 1)
        self.assertIn("hosts and ranks: 127.0.0.1 1, 127.0.0.1 3;", text)
        self.assertIn("# Out of bounds values : 0 OK", text)

    def test_who_dies_is_named(self):
        kill, leave = ("kill", "was killed by signal 9"), ("exit", "exited with status 3")
        for rank, (fault, words), transport in [(0, kill, "mpi"), (1, leave, "shm+mpi"),
                                                (2, leave, "mpi"), (3, kill, "shm+mpi")]:
            with self.subTest(rank=rank, fault=fault):
                # a dead process is seen at once, but a sanitizer's takes its time to die
                run = self.start("--transport", transport, *LONG[:-1], "20",
                                 env={"COLLBENCH_FAULT": f"{fault}:{rank}:20"})
                out, err = run.communicate(timeout=100)
                self.assertEqual(run.returncode, 1, err)
                self.assertRegex(err, rf"rank {rank} on 127\.0\.0\.{1 + rank // 2} \(pid \d+\) "
                                 rf"({words}|died)")
                self.assertIn("# the run FAILED", out)
                self.nothing_left()

    def test_who_stalls_is_named(self):
        run = self.start("--transport", "mpi", *LONG, env={"COLLBENCH_FAULT": "stop:3:20"})
        _, err = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 1, err)
        self.assertRegex(err, r"rank 3 on 127\.0\.0\.2 .* made no progress for 5 s \(it is stopped\)")

    def test_whoever_is_killed_nothing_is_left(self):
        for whose, code, words in (("mpiexec", 1, r"\S*mpiexec \(pid \d+\) was killed by signal 9"),
                                   ("pmi_proxy", 1, r"(host 127\.0\.0\.2 lost )?\S*hydra_pmi_proxy"
                                                    r"|\S+mpiexec .* was killed by signal 9"
                                                    r"|rank \d on .* (was killed|died)"),
                                   ("agent", 1, r"host 127\.0\.0\.2 is lost"),
                                   ("launcher", -9, "the launcher is gone")):
            with self.subTest(whose=whose):
                run = self.start("--transport", "mpi", *LONG)
                self.under_way(run)
                pids = [pid for pid, words in marked()
                        if whose in words[0] or [whose] == words[1:2]] or [run.pid]
                os.kill(pids[-1], signal.SIGKILL)
                _, err = run.communicate(timeout=100)
                self.assertEqual(run.returncode, code, err)
                self.assertEqual(len(err.splitlines()), 1, err)
                self.assertRegex(err, rf"^collbench( agent)?: ({words})")
                self.nothing_left()

    def test_interrupted(self):
        run = self.start("--transport", "mpi", *LONG)
        self.under_way(run)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 128 + signal.SIGINT)
        self.assertRegex(err, r"^collbench: interrupted by signal 2 \(Interrupt\) .*\n$")


class Copies(Case):
    """mpiexec starts one copy per rank, and under copy 0 the ranks are started again."""
    SIZES = ["-b", "8", "-e", "64K", "-f", "64"]

    def copies(self, transport, *args, env=None):
        done = subprocess.run(["mpiexec", "-n", "4", PROGRAM, "allreduce", "--transport", transport,
                               *self.SIZES, *args], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=100,
                              env={**os.environ, MARK: str(os.getpid()), **(env or {})})
        self.nothing_left()
        return done

    def test_one_table(self):
        for transport in "mpi", "ofi":
            with self.subTest(transport=transport):
                if transport == "ofi" and "ofi  " not in run("list").stdout:
                    self.skipTest("built without libfabric")
                done = self.copies(transport, *QUICK)
                text = self.good(done)
                self.assertEqual([row[0] for row in self.rows(text)], ["8", "512", "32768"])
                self.assertEqual(text.count("# collbench "), 1)
                self.assertIn("# Out of bounds values : 0 OK", text)

    def test_a_rank_dies(self):
        for transport in "mpi", "ofi":
            with self.subTest(transport=transport):
                done = self.copies(transport, "-n", "50", "-w", "1", "-T", "10",
                                   env={"COLLBENCH_FAULT": "kill:1:150"})
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stderr, r"rank 1 \(pid \d+\) (was killed by signal 9|died)")
                self.assertIn(len(self.rows(done.stdout)), (1, 2), done.stdout) # of 3: these are kept
                self.assertIn("the rows above are all that was measured", done.stdout)


    def test_no_launcher_is_entered_twice(self):
        """Open MPI's mpirun ends with 213 where it finds that it runs below another one."""
        real = shutil.which("mpiexec") or shutil.which("mpirun")
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "mpiexec")
            with open(script, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\n[ -z "$OMPI_UNIVERSE_SIZE$OMPI_MCA_orte_hnp_uri" ] || exit 213\n'
                           f'exec {real} "$@"\n')
            os.chmod(script, 0o755)
            runs = [subprocess.Popen(
                [PROGRAM, "allreduce", "--transport", "mpi", "--mpiexec", script, *self.SIZES, *QUICK],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, MARK: str(os.getpid()), "OMPI_UNIVERSE_SIZE": "2",
                     "OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2",
                     "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)})
                for rank in range(2)]
            ends = [run.communicate(timeout=100) for run in runs]
        self.nothing_left()
        self.assertEqual([run.returncode for run in runs], [0, 0], ends)
        self.assertEqual(len(self.rows(ends[0][0])), 3)


class Refused(unittest.TestCase):
    def refused(self, done, words):
        self.assertEqual(done.returncode, 2, f"{done.stdout}\n{done.stderr}")
        self.assertEqual(done.stdout, "")
        self.assertIn(words, done.stderr)

    def test_without_mpi_the_reason_is_told(self):
        env = {"PATH": "/nowhere"}
        self.refused(over_mpi("allreduce", "--ranks", "2", env=env),
                     "transport mpi cannot be used here: no mpiexec in PATH")
        self.assertRegex(run("list", env=env).stdout,
                         r"(?m)^  mpi  .*cannot be used here: no mpiexec in PATH")

    def test_an_mpiexec_that_is_not_in_path(self):
        with_file = ["--mpiexec", shutil.which("mpiexec") or shutil.which("mpirun")]
        done = over_mpi("allreduce", "--ranks", "2", "--size", "8", *QUICK, *with_file,
                        env={"PATH": "/nowhere"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)

    def test_a_launcher_that_cannot_leave_this_host(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "mpirun")
            with open(script, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
            os.chmod(script, 0o755)
            self.refused(over_mpi("allreduce", *TWO, "--mpiexec", script),
                         "starts ranks on one host only; over several use --transport tcp, shm+tcp")

    def test_threads_are_no_ranks_of_mpi(self):
        for command in "allreduce", "p2p":
            self.refused(over_mpi(command, "--ranks", "2", "--ranks-as", "threads"),
                         "--transport mpi needs ranks that are processes")

    def test_another_mpiexec_means_nothing_over_shm(self):
        self.refused(run("allreduce", "--ranks", "2", "--mpiexec", "mpiexec"),
                     "--mpiexec means nothing without")
        self.refused(over_mpi("allreduce", "--ranks", "2", "--mpiexec", "/nowhere/mpiexec"),
                     "/nowhere/mpiexec cannot be run")

    def test_wires_that_mpi_lacks(self):
        self.refused(over_mpi("allreduce", "--ranks", "2", "--wire", "pull"), "has no pull wires")


class Faults(unittest.TestCase):
    WORDS = {"kill": r"was killed by signal 9", "exit": "exited with status 3",
             "stop": r"made no progress for 3 s \(it is stopped\)",
             "stall": r"made no progress for 3 s \(it sleeps"}

    def test_who_is_to_blame_is_named(self):
        for fault, words in self.WORDS.items():
            with self.subTest(fault=fault):
                begin = time.monotonic()
                done = over_mpi("allreduce", "--ranks", "3", "--size", "64K", "--algo", "ring",
                                "-n", "1000000", "-T", str(TIMEOUT_S),
                                env={"COLLBENCH_FAULT": f"{fault}:1:50"})
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertRegex(done.stderr, rf"^collbench: rank 1 \(pid \d+\) ({words}|died)")
                self.assertIn("allreduce ring, 65536 B", done.stderr)
                self.assertIn("# Out of bounds values : N/A, the run failed", done.stdout)
                self.assertLess(time.monotonic() - begin, TIMEOUT_S + SLACK_S)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if not shutil.which("mpiexec") and not shutil.which("mpirun"):
        print("there is no mpiexec")
        sys.exit(77)
    unittest.main()
