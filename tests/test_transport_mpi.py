#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""collbench over the MPI library: one header and one row per size, the same program beside MPI's
own collectives, what is refused, and who is named when a rank ends badly. Skipped (exit status 77)
where there is no mpiexec.

Usage: test_transport_mpi.py PROGRAM [unittest arguments]"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

PROGRAM = ""
QUICK = ["-n", "3", "-w", "1"]
TIMEOUT_S = 3
SLACK_S = 20  # a loaded machine starts mpiexec slowly


def run(*args, env=None):
    return subprocess.run([PROGRAM, *args], env={**os.environ, **(env or {})}, timeout=120,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def over_mpi(*args, **kwargs):
    return run(*args, "--transport", "mpi", **kwargs)


class Results(unittest.TestCase):
    def good(self, done):
        self.assertEqual(done.returncode, 0, f"{done.args}\n{done.stdout}\n{done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout

    def rows(self, text):
        return [line.split() for line in text.splitlines() if not line.startswith("#")]

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
