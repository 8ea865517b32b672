#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transcripts of collbench: what users of the benchmarks in this field tripped over, as commands
and what must come out. Where a test comes from a public thread, its comment names it.

Usage: test_collbench.py PROGRAM [unittest arguments]"""

import csv
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
OPERATIONS = ["allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce",
              "gather", "scatter", "sendrecv"]
ONE_BLOCK = ["allreduce", "broadcast", "reduce", "sendrecv"]  # a call is one buffer of a rank
ROOTED = ["broadcast", "reduce", "gather", "scatter"]
TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double",
         "bfloat16", "f8e4m3", "f8e5m2"]
QUICK = ["-n", "3", "-w", "1"]
AT_ONCE_S = 5  # of a processor's time: a machine that does other things too is no fault
SLACK_S = 20   # starting, ending and telling, on such a machine
PLACES = ["out_of_place", "in_place"]


def used_s():
    """Processor time of all children that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def shared_files():
    """Names in /dev/shm, but for those of Criterion, whose tests may run beside this one."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("bxfi_")}


class Run:
    """One finished command: exit status, both streams, rows of the text table."""

    def __init__(self, args, env=None, timeout=100):
        start, used = time.monotonic(), used_s()
        done = subprocess.run([PROGRAM, *args], env={**os.environ, **(env or {})}, timeout=timeout,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.seconds, self.used_s = time.monotonic() - start, used_s() - used
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.lines = [line for line in self.out.splitlines() if line]
        self.rows = [line.split() for line in self.lines if not line.startswith("#")]

    def column(self, index):
        return [row[index] for row in self.rows]


def reject(constant):
    raise ValueError(f"JSON holds {constant}, which is no JSON")


def attempts(try_once, most=3):
    """For what noise can spoil: one of a few tries must go without an AssertionError."""
    for left in reversed(range(most)):
        try:
            return try_once()
        except AssertionError:
            if not left:
                raise


class Case(unittest.TestCase):
    def run_fine(self, *args, **kwargs):
        run = Run(args, **kwargs)
        self.assertEqual(run.code, 0, f"{args}\n{run.out}\n{run.err}")
        self.assertIn("# Out of bounds values : 0 OK", run.out)
        return run

    def run_json(self, *args, code=0, **kwargs):
        """The document that the run writes to stdout."""
        run = Run([*args, "--json", "-"], **kwargs)
        self.assertEqual(run.code, code, f"{args}\n{run.out}\n{run.err}")
        return json.loads(run.out, parse_constant=reject)

    def refused(self, *args, words=()):
        """Exit status 2, at once, nothing on stdout, and a sentence with these words."""
        run = Run(args)
        self.assertLess(run.used_s, AT_ONCE_S, args)
        self.assertEqual(run.code, 2, f"{args}\n{run.out}\n{run.err}")
        self.assertEqual(run.out, "", args)
        for word in words:
            self.assertIn(word, run.err, args)
        return run


class Sizes(Case):
    def test_units(self):
        for text, size in {"1024": "1024", "1K": "1024", "1k": "1024", "1KiB": "1024",
                           "1.5K": "1536"}.items():
            run = self.run_fine("allreduce", "--size", text, "--ranks", "2", *QUICK)
            self.assertEqual(run.column(0), [size], text)
        for text in ["1X", "-5", "", "99999999999999999999"]:
            self.refused("allreduce", "--size", text, words=["--size"])

    def test_a_gibibyte(self):
        run = Run(["allreduce", "--size", "1G", "--ranks", "1", "--in-place", "-n", "1", "-w", "0",
                   "-c", "0"])
        self.assertEqual(run.code, 0, run.err)
        self.assertEqual(run.column(0), ["1073741824"])

    def test_sweeps_end(self):
        """Never a hang: nccl-tests#88 and others."""
        self.refused("allreduce", "-b", "1M", "-e", "1K", words=["1048576", "1024"])
        self.refused("allreduce", "-b", "1m", "-e", "1k", words=["1048576", "1024"])
        self.refused("allreduce", "-b", "1", "-e", "8", "-i", "0", words=["--stepbytes"])
        self.refused("allreduce", "-b", "1", "-e", "8", "-f", "1", words=["--stepfactor"])
        run = self.run_fine("allreduce", "-b", "8", "-e", "8", "-f", "1", "--ranks", "2", *QUICK)
        self.assertEqual(run.column(0), ["8"])
        run = self.run_fine("allreduce", "-b", "8", "-e", "16", "-i", "4", "-f", "0", "--ranks",
                            "2", *QUICK)
        self.assertEqual(run.column(0), ["8", "12", "16"])

    def test_steps(self):
        """-i was read as 2 bytes: nccl-tests#226."""
        run = Run(["allreduce", "-b", "64M", "-e", "70M", "-i", "2M", "--ranks", "1",
                   "--in-place", "-c", "0", "-n", "1", "-w", "0"])
        self.assertEqual(run.column(0), [str(m << 20) for m in (64, 66, 68, 70)])
        run = self.run_fine("allreduce", "-b", "8", "-e", "100", "-f", "3", "--ranks", "2", *QUICK)
        self.assertEqual(run.column(0), ["8", "24", "72"])

    def test_from_nothing(self):
        """0, one element, then doubling; no nan, no inf."""
        for operation in OPERATIONS:
            run = self.run_fine(operation, "-b", "0", "-e", "64", "-f", "2", "--ranks", "2", *QUICK)
            one = 4 if operation in ONE_BLOCK else 8
            sizes = [0] + [one << k for k in range(10) if one << k <= 64]
            self.assertEqual(run.column(0), [str(size) for size in sizes], operation)
            for word in ("nan", "inf"):
                self.assertNotIn(word, " ".join(sum(run.rows, [])).lower())

    def test_rounding_is_said(self):
        """Silent trimming puzzles users: nccl-tests#142, rccl-tests#105."""
        run = self.run_fine("allgather", "--size", "100", "--ranks", "3", *QUICK)
        self.assertEqual(run.column(0), ["96"])
        self.assertIn("# 100 B asked: 96 B used", run.out)
        run = self.run_fine("allreduce", "--size", "100", "--ranks", "3", *QUICK)
        self.assertNotIn("asked:", run.out)

    def test_odd_sizes_are_right(self):
        """Corruption when a size is no multiple of 128: ROCm/rccl#1556."""
        for operation in OPERATIONS:
            run = self.run_fine(operation, "-b", "126", "-e", "258", "-i", "2", "-d", "bfloat16",
                                "--ranks", "2", "--algo", "all", "-n", "1", "-w", "0")
            self.assertEqual({row[8] for row in run.rows} | {row[12] for row in run.rows}, {"0"})

    def test_an_odd_large_count(self):
        """10556587 floats on 8 ranks: mscclpp#682, #697."""
        run = self.run_fine("allreduce", "--size", str(4 * 10556587), "--ranks", "8",
                            "--out-of-place", "-n", "1", "-w", "0")
        self.assertEqual(run.column(1), ["10556587"])


class Words(Case):
    def test_unknown_words(self):
        """All faults at once, with the valid list, and nothing run."""
        run = self.refused("allreduce", "-d", "flaot", "-o", "summ", "--algo", "foo", "--bogus",
                           words=[", ".join(TYPES), "sum, prod, max, min, avg",
                                  "ring, tree, oneshot, twoshot", "--bogus", "--minbytes"])
        self.assertEqual(len(run.err.splitlines()), 4)
        self.refused("allredcue", words=["nearest is allreduce", "broadcast"])
        self.refused("allreduce", "--transport", "rdma", words=["shm"])
        self.refused("allreduce", "--wire", "fast", words=["staged", "pull", "ll"])
        self.refused("allreduce", "extra", words=["extra"])

    def test_algorithms_of_other_operations(self):
        self.refused("allgather", "--algo", "tree", words=["tree", "valid are ring"])

    def test_the_algorithm_asked_for_runs(self):
        """Forced ones fell back silently: nccl-tests#65, nccl#1444."""
        for algo in ["ring", "tree", "oneshot", "twoshot"]:
            rows = self.run_json("allreduce", "--size", "4K", "--ranks", "3", "--algo", algo,
                                 *QUICK)["rows"]
            self.assertEqual([row["algo"] for row in rows], [algo])
        rows = self.run_json("allreduce", "--size", "4K", "--ranks", "2", "--algo", "auto", *QUICK)
        self.assertNotEqual(rows["rows"][0]["algo"], "auto")

    def test_foreign_flags(self):
        run = self.run_fine("all_reduce_perf", "-b", "8", "-e", "8", "-g", "1", "-t", "1", "-z",
                            "0", "-G", "0", "-R", "0", "-a", "1", "-m", "2", "--ranks", "2", *QUICK)
        self.assertEqual(run.column(0), ["8"])
        self.refused("allreduce", "-g", "2", "-G", "1", words=["--ngpus 2", "--cudagraph 1"])
        self.refused("allreduce", "-r", "1", words=["no root"])
        self.refused("broadcast", "-r", "2", "--ranks", "2", words=["0 to 1"])

    def test_help_and_list(self):
        for args in (["--help"], ["allreduce", "--help"], ["list"], ["--list"],
                     ["schedule", "--help"], ["bench-step", "--help"], ["--version"]):
            run = Run(args)
            self.assertEqual((run.code, run.err), (0, ""), args)
            self.assertTrue(run.out)
        self.assertIn("twoshot", Run(["list"]).out)
        self.assertEqual(Run([]).code, 2)

    def test_agents_are_shown_and_not_run(self):
        """Rows that reduce inside switches are listed apart, refused by name, and left out of all."""
        runs, simulated = Run(["list"]).out.split("\nAlgorithms for commsim alone: ")
        rows = {tuple(line.split()[:2]) for line in simulated.split("\n\n")[0].splitlines()[2:]}
        self.assertIn(("allreduce", "sharp"), rows)
        for operation, algo in rows:
            self.assertNotRegex(runs, rf"(?m)^  {operation} +{algo} ")
            self.refused(operation, "--algo", algo, "--ranks", "2", words=[algo, "commsim coll"])
            run = Run(["schedule", operation, "--algo", algo, "--ranks", "3", "--verify"])
            self.assertEqual((run.code, run.out.count("passed")), (0, 6), run.out)
        args = ["schedule", "allreduce", "--algo", "nvls", "--ranks", "4"]
        self.assertEqual(len(Run(args).rows), 4 * 2 + 4 + 4)
        self.assertEqual(len(Run([*args, "--rank", "4"]).rows), 4 + 4)
        self.assertIn("agent 4", Run([*args, "--draw"]).out)
        self.refused(*args, "--rank", "5", words=["0 to 4"])
        for suffix in ("xml", "goal"):
            self.refused(*args, "--export", f"/nonexist/x.{suffix}", words=["1 agent"])
        self.refused("schedule", "broadcast", "--algo", "nvls", "--nodes", "2x2", words=["2 nodes"])

    def test_help_says_the_bandwidths(self):
        """Users cannot tell algbw from busbw: nccl-tests#159."""
        self.assertIn("busbw = algbw x 2(n-1)/n", " ".join(Run(["allreduce", "--help"]).out.split()))

    def test_schedules(self):
        run = Run(["schedule", "allreduce", "--algo", "ring", "--ranks", "4"])
        self.assertEqual(run.code, 0, run.err)
        self.assertEqual(len(run.rows), 4 * 2 * (2 * 4 - 2))
        run = Run(["schedule", "allreduce", "--algo", "ring", "--ranks", "4", "--verify"])
        self.assertEqual((run.code, run.out.count("passed")), (0, 6), run.out)
        for option in ("--draw", "--linked"):
            self.assertEqual(Run(["schedule", "broadcast", "-r", "2", option]).code, 0)
        self.refused("schedule", "allreduce", "--rank", "4", "--ranks", "4", words=["0 to 3"])
        self.refused("schedule", words=["one operation"])


    def test_a_link_named_after_an_operation(self):
        """Scripts call all_reduce_perf; the ranks are started by the same name."""
        with tempfile.TemporaryDirectory() as folder:
            for name, said in (("all_reduce_perf", "# Collective test starting: all_reduce_perf"),
                               ("broadcast", "# command: broadcast -b 8")):
                path = os.path.join(folder, name)
                os.symlink(PROGRAM, path)
                done = subprocess.run([path, "-b", "8", "-e", "8", "--ranks", "2", *QUICK],
                                      capture_output=True, text=True, timeout=30)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(said, done.stdout)

    def test_list_and_version_after_an_operation(self):
        self.assertEqual(Run(["allreduce", "--list"]).out, Run(["list"]).out)
        self.assertEqual(Run(["allreduce", "--version"]).out, Run(["--version"]).out)
        self.refused("--version", "extra", words=["takes no words", "extra"])

    def test_the_program_is_named_once(self):
        for args in (["list", "x"], ["schedule"], ["bench-step", "x"]):
            run = self.refused(*args)
            self.assertEqual(run.err.count("collbench"), 1, run.err)

    def test_the_command_line_can_be_pasted(self):
        """A newline in an argument broke the comment line."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a\nb'c\\", "two words", "it's"):
                path = os.path.join(folder, name)
                run = self.run_fine("allreduce", "--size", "8", "--ranks", "2", *QUICK, "--csv", path)
                line = next(at for at in run.lines if at.startswith("# command: "))
                words = subprocess.run(["bash", "-c", "printf '%s\\0' " + line[len("# command: "):]],
                                       capture_output=True, text=True, check=True).stdout
                self.assertEqual(words.split("\0")[-2], path)

    def test_schedule_options_are_looked_at(self):
        """Options without effect in a view were taken silently."""
        for options in (["--rank", "0", "--draw"], ["--rank", "0", "--verify"], ["--wire", "ll"],
                        ["--unfused"], ["--in-place"]):
            self.refused("schedule", "allreduce", *options, words=[options[0]])
        out = Run(["schedule", "allreduce", "--verify", "--wire", "ll"]).out
        self.assertEqual((out.count("  ll "), out.count("staged"), out.count("pull")), (2, 0, 0))
        out = Run(["schedule", "allreduce", "--verify", "--in-place"]).out
        self.assertEqual((out.count("in place"), out.count("out of place")), (3, 0))
        self.assertEqual(Run(["schedule", "allreduce", "--linked", "--rank", "1", "--wire", "ll",
                              "--in-place", "--unfused"]).code, 0)

    def test_a_full_stdout_is_reported(self):
        for args in (["list"], ["--help"], ["--version"], ["schedule", "allreduce"],
                     ["allreduce", "--help"], ["allreduce", "--size", "8", "--ranks", "2", *QUICK]):
            with open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([PROGRAM, *args], stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=30)
            self.assertEqual(done.returncode, 1, args)
            self.assertEqual(done.stderr, "collbench: stdout could not be written in full: "
                             "No space left on device\n")


class Memory(Case):
    def test_far_too_much(self):
        """Need, have, and what would fit; before anything is allocated."""
        for extra in ([], ["--ranks", "2"]):
            run = self.refused("allreduce", "--size", "4T", *extra,
                               words=["needs 16", "TiB", "the largest size that fits is"])
            self.assertEqual(len(run.err.splitlines()), 1)
        self.refused("alltoall", "--size", "1K", "--ranks", "1000000", words=["use fewer ranks"])
        self.refused("allreduce", "-b", "8", "-e", "4T", "-f", "2", words=["largest"])


class Rows(Case):
    def test_one_header_one_row_per_size(self):
        """Every row came twice: nccl-tests#182, #294."""
        run = self.run_fine("allreduce", "-b", "1K", "-e", "4K", "-f", "2", "--ranks", "3", "--algo",
                            "ring,tree", *QUICK)
        self.assertEqual(run.out.count("#wrong     time"), 1)
        self.assertEqual([(row[0], row[13]) for row in run.rows],
                         [(size, algo) for size in ("1024", "2048", "4096")
                          for algo in ("ring", "tree")])

    def test_one_rank(self):
        """busbw 0 taken for a defect: nccl-tests#249, #335, #287."""
        for operation in OPERATIONS:
            document = self.run_json(operation, "--size", "4K", "--ranks", "1", *QUICK)
            for place in PLACES:
                row = document["rows"][0]
                self.assertGreaterEqual(row[place + "_time_us"], 0)
                self.assertEqual(row[place + "_wrong"], 0)
                if operation not in ("broadcast", "reduce", "sendrecv"):
                    self.assertEqual(row[place + "_busbw_GBps"], 0)
        self.assertIn("# one rank: nothing travels",
                      self.run_fine("allreduce", "--size", "4K", "--ranks", "1", *QUICK).out)

    def test_bandwidth_formulas(self):
        """algbw x time = size: nccl-tests#45; alltoall's factor: nccl-tests#59, #130."""
        factors = {"allreduce": lambda n: 2 * (n - 1) / n, **dict.fromkeys(
            ("broadcast", "reduce", "sendrecv"), lambda n: 1)}
        for operation in OPERATIONS:
            for n in (2, 3, 4, 8):
                document = self.run_json(operation, "--size", "96K", "--ranks", str(n), *QUICK)
                factor = factors.get(operation, lambda n: (n - 1) / n)(n)
                self.assertTrue(math.isclose(document["meta"]["busbw_factor"], factor))
                for row in document["rows"]:
                    for place in PLACES:
                        algbw = row["size_B"] / row[place + "_time_us"] / 1e3
                        self.assertTrue(math.isclose(row[place + "_algbw_GBps"], algbw,
                                                     rel_tol=1e-3))
                        self.assertTrue(math.isclose(row[place + "_busbw_GBps"], algbw * factor,
                                                     rel_tol=1e-3))

    def test_in_place_is_right(self):
        """In-place alltoall printed 320 TB/s with errors: microsoft/msccl#48, nccl#1839."""
        for operation in OPERATIONS:
            for extra in (["--wire", "staged"], ["--buffers", "private"], ["--wire", "ll"]):
                run = self.run_fine(operation, "--size", "20K", "--ranks", "3", "--in-place",
                                    "--algo", "all", *extra, *QUICK)
                self.assertEqual(set(run.column(12)), {"0"})
                self.assertEqual(set(run.column(5)), {"N/A"})

    def test_types_and_operators(self):
        run = self.run_fine("allreduce", "--size", "1K", "--ranks", "3", "-d", "all", "-o", "all",
                            *QUICK)
        self.assertEqual([(row[2], row[3]) for row in run.rows],
                         [(dtype, op) for dtype in TYPES
                          for op in ("sum", "prod", "max", "min", "avg")])
        for operation in [*OPERATIONS, "alltoallv"]:
            run = self.run_fine(operation, "--size", "1000", "--ranks", "5", "-d", "all", "-o",
                                "all", "-n", "1", "-w", "0")
            self.assertEqual(len({row[2] for row in run.rows}), len(TYPES), operation)

    def test_roots_and_threads(self):
        for operation in ROOTED:
            run = self.run_fine(operation, "--size", "100K", "--ranks", "3", "-r", "2", "--algo",
                                "all", "--ranks-as", "threads", *QUICK)
            self.assertEqual(set(run.column(4)), {"2"})
        self.refused("sendrecv", "-r", "1", words=["no root"])

    def test_barrier(self):
        run = self.run_fine("barrier", "-b", "8", "-e", "1M", "-f", "2", "--ranks", "5", "--algo",
                            "all", *QUICK)
        self.assertEqual(set(run.column(0)), {"0"})
        self.assertEqual(set(run.column(9)), {"N/A"})
        self.refused("barrier", "--in-place", words=["in place", "no data"])

    def test_a_barrier_that_does_not_wait_is_seen(self):
        run = Run(["barrier", "--ranks", "3", *QUICK], env={"COLLBENCH_WRONG": "1:0"})
        self.assertEqual(run.code, 1)
        self.assertNotIn(": 0 OK", run.out)

    def test_uneven_blocks(self):
        """Counts at both ends, as a router of experts gives them."""
        for factor in ("1", "1.7", "3"):
            run = self.run_fine("alltoallv", "-b", "1", "-e", "300K", "-f", "30", "--ranks", "3",
                                "--imbalance", factor, "--algo", "all", *QUICK)
            self.assertEqual(set(run.column(8)), {"0"})
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("0 1 2\n0 0 0\n7 0 1\n")
            file.flush()
            for wire in ("staged", "pull", "ll"):
                run = self.run_fine("alltoallv", "--matrix", file.name, "-b", "36", "-e", "300K",
                                    "-f", "30", "--ranks", "3", "--wire", wire, "--slice", "4K",
                                    "--algo", "all", *QUICK)
                self.assertEqual(set(run.column(8)), {"0"})
            self.refused("alltoallv", "--matrix", file.name, "--ranks", "4", words=[":1:", "4 ranks"])
            self.refused("alltoallv", "--matrix", file.name, "--imbalance", "2", "--ranks", "3",
                         words=["give one"])
        document = self.run_json("alltoallv", "--imbalance", "2", "--size", "3000", "--ranks", "3",
                                 *QUICK)
        self.assertEqual(document["meta"]["cut"], "imbalance 2")
        self.assertTrue(math.isclose(document["meta"]["busbw_factor"], 4 / 3))
        row = document["rows"][0]
        self.assertTrue(math.isclose(row["out_of_place_busbw_GBps"],
                                     row["out_of_place_algbw_GBps"] * 4 / 3))
        self.refused("alltoallv", "--imbalance", "4", "--ranks", "3", words=["1 times", "3 times"])
        self.refused("alltoall", "--imbalance", "2", words=["equal blocks"])
        self.refused("alltoallv", "--in-place", words=["in place"])

    def test_node_groups(self):
        for nodes, ranks in (("2+3", 5), ("1+4", 5), ("4+4", 8), ("2x2+1", 5)):
            run = self.run_json("allreduce", "--algo", "all", "--size", "3000", "--nodes", nodes,
                                *QUICK)
            self.assertEqual({row["nranks"] for row in run["rows"]}, {ranks})
            self.assertEqual({row["out_of_place_wrong"] for row in run["rows"]}, {0})
        for nodes in ("2+", "0+2", "x", "3x", "1+-1", "99999999"):
            self.refused("allreduce", "--nodes", nodes, words=["--nodes " + nodes])
        self.refused("allreduce", "--nodes", "2+3", "--ranks", "4", words=["5 ranks", "4"])

    def test_many_more_ranks_than_cores(self):
        """Minutes became hours: ompi#10426, mpich#2248."""
        ranks = 4 * len(os.sched_getaffinity(0))
        run = self.run_fine("allreduce", "--size", "1K", "--ranks", str(ranks), timeout=60)
        self.assertIn("# WARNING: more ranks", run.out)
        self.assertIn("too short", run.out)

    def test_both_transports_are_shown(self):
        """One mode stood for both placements although in place was staged."""
        args = ["alltoall", "--size", "64K", "--ranks", "3", "--algo", "direct", *QUICK]
        run = self.run_fine(*args)
        self.assertEqual(run.column(14), ["shm/pull+staged"])
        self.assertIn("# transport of a row: shm/A+B", run.out)
        row = self.run_json(*args)["rows"][0]
        self.assertEqual([row[place + "_transport"] for place in PLACES], ["shm/pull", "shm/staged"])
        row = self.run_json(*args, "--in-place")["rows"][0]
        self.assertEqual((row["transport"], row["out_of_place_transport"]), ("shm/staged", None))

    def test_empty_chunks_are_said(self):
        args = ["allreduce", "--size", "1K", "--ranks", "2", "--algo", "ring", *QUICK]
        run = self.run_fine(*args, "--parts", "4096")
        self.assertIn("# 1 KiB, ring: blocks of 256 elements in 8192 chunks, most of them empty",
                      run.out)
        self.assertNotIn("most of them empty", self.run_fine(*args, "--parts", "4").out)

    def test_the_header_comes_at_once(self):
        """16 million rows were walked through before the first line."""
        args = ["allreduce", "-b", "1", "-e", "64M", "-i", "1", "--ranks", "2", "-n", "1"]
        with subprocess.Popen([PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as parent:
            rows = 0
            for line in parent.stdout:
                rows += not line.startswith("#")
                if rows == 2:
                    break
            with open(f"/proc/{parent.pid}/stat", encoding="utf-8") as stat:
                used = sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
            self.assertLess(used / os.sysconf("SC_CLK_TCK"), AT_ONCE_S)
            parent.send_signal(signal.SIGTERM)
            parent.stdout.read()
            self.assertEqual(parent.wait(timeout=60), 128 + signal.SIGTERM)

    def test_a_wrong_element_is_found_and_named(self):
        """Constant data hid misplaced shards: mscclpp#198."""
        for operation in OPERATIONS:
            rank = 0 if operation in ("reduce", "gather") else 1  # who has a result
            run = Run([operation, "--size", "1K", "--ranks", "2", *QUICK],
                      env={"COLLBENCH_WRONG": f"{rank}:77"})
            self.assertEqual(run.code, 1, run.out)
            self.assertIn("Out of bounds values", run.out)
            self.assertIn("FAILED", run.out)
            self.assertIn(f"rank {rank}, output element 77, expected ", run.err)
            self.assertIn(operation, run.err)
            self.assertEqual(run.column(5), ["N/A"]) # no time for a wrong result


class Threads(Case):
    def test_every_wire(self):
        """Ranks as threads: what the thread sanitizer can see when it is built in."""
        for operation in OPERATIONS:
            for extra in (["--wire", "staged"], ["--wire", "ll"], ["--buffers", "private"], []):
                run = self.run_fine(operation, "-b", "0", "-e", "20K", "-f", "20", "--ranks", "3",
                                    "--ranks-as", "threads", "--algo", "all", *extra, *QUICK)
                self.assertGreaterEqual(len(run.rows), 4)


class Samples(Case):
    def sides(self, *args):
        document = self.run_json("allreduce", "--size", "2K", "--ranks", "2", *args)
        row = document["rows"][0]
        for place in PLACES:
            values = {key: row[f"{place}_{key}_us"] for key in ("min", "p50", "p95", "p99", "max",
                                                                "time", "samples")}
            self.assertEqual(row[place + "_nsamples"], len(values["samples"]))
            yield values

    def test_one_sample(self):
        for side in self.sides("-n", "1"):
            self.assertEqual(len(side["samples"]), 1)
            for key in ("min", "p50", "p95", "p99", "max", "time"):
                self.assertEqual(side[key], side["samples"][0])

    def test_percentiles(self):
        for side in self.sides("-n", "100"):
            ordered = sorted(side["samples"])
            self.assertEqual(len(ordered), 100)
            self.assertEqual((side["min"], side["max"]), (ordered[0], ordered[-1]))
            self.assertEqual((side["p50"], side["p95"], side["p99"]),
                             (ordered[49], ordered[94], ordered[98]))
            self.assertTrue(math.isclose(side["time"], sum(ordered) / 100, rel_tol=1e-6))

    def test_few_samples(self):
        """The median was 0 with few iterations: ucx#6939."""
        for side in self.sides("-n", "3", "--warmup_iters", "0"):
            self.assertEqual(side["p50"], sorted(side["samples"])[1])
            self.assertGreater(side["p50"], 0)

    def test_without_a_number(self):
        for side in self.sides():
            self.assertGreaterEqual(len(side["samples"]), 20)

    def test_aggregation(self):
        """An aggregated run is labelled: nccl#1984."""
        document = self.run_json("allreduce", "--size", "2K", "--ranks", "2", "-m", "7", "-n", "5")
        self.assertGreaterEqual(document["rows"][0]["batch"], 7)


class Files(Case):
    def test_json_is_strict(self):
        secret = {"MY_TOKEN": "tiger-1", "A_SECRET": "tiger-2", "SSH_KEY": "tiger-3"}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            args = ["allreduce", "-b", "1K", "-e", "2K", "-f", "2", "--ranks", "2", "-J", path,
                    "--csv", os.path.join(folder, "out.csv"), *QUICK]
            text = self.run_fine(*args, env=secret)
            with open(path, encoding="utf-8") as file:
                whole = file.read()
            document = json.loads(whole, parse_constant=reject)
            self.assertNotIn("tiger", whole + text.out)
            self.assertEqual(len(document["rows"]), len(text.rows))
            self.assertIs(document["summary"]["okay"], True)
            self.assertIsInstance(document["rows"][0]["size_B"], int)
            self.assertIsInstance(document["rows"][0]["out_of_place_time_us"], float)
            self.assertEqual(document["meta"]["cadence"], "back-to-back")
            self.assertIn("collbench allreduce -b 1K", document["meta"]["command"])
            self.check_csv(os.path.join(folder, "out.csv"), document["rows"])
            run = Run(args)  # a file is not overwritten silently
            self.assertEqual(run.code, 2)
            self.assertIn("out.json", run.err)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), whole)
            self.run_fine(*args, "--overwrite")

    def refused_outputs(self, *options, words):
        return self.refused("allreduce", "--size", "8", "--ranks", "2", *QUICK, *options, words=words)

    def test_a_refused_run_changes_no_file(self):
        """--overwrite emptied one file before the other was found to be impossible; a new file
        stayed, so that the corrected run was refused."""
        with tempfile.TemporaryDirectory() as folder:
            good, new = os.path.join(folder, "good.json"), os.path.join(folder, "new.json")
            with open(good, "w", encoding="ascii") as file:
                file.write("precious")
            self.refused_outputs("--json", good, "--csv", "/nonexist/x", "--overwrite",
                                 words=["/nonexist/x"])
            with open(good, encoding="ascii") as file:
                self.assertEqual(file.read(), "precious")
            self.refused_outputs("--json", new, "--csv", "/nonexist/x", words=["/nonexist/x"])
            self.refused("allreduce", "--size", "4T", "--ranks", "2", "--json", new)
            self.assertEqual(os.listdir(folder), ["good.json"])

    def test_two_outputs_in_one_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "same")
            self.refused_outputs("--json", path, "--csv", folder + "/./same",
                                 words=["two outputs name one file"])
            self.assertEqual(os.listdir(folder), [])
        self.refused_outputs("--json", "-", "--csv", "-", words=["two outputs go to stdout"])

    def test_json_of_a_killed_launcher(self):
        """Killed before its first row, it leaves a document."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            args = ["allreduce", "--size", "1M", "--ranks", "2", "-n", "1000000", "--json", path]
            with subprocess.Popen([PROGRAM, *args], stdout=subprocess.PIPE, text=True) as parent:
                for line in parent.stdout:
                    if line.startswith("# clock"):
                        break
                parent.kill()
            with open(path, encoding="utf-8") as file:
                document = json.loads(file.read(), parse_constant=reject)
            self.assertEqual((document["rows"], document["meta"]["cadence"]), ([], "back-to-back"))

    def test_a_reader_that_goes_away(self):
        """SIGPIPE killed the launcher with its files open."""
        for lines in (1, 20):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "out.json")
                args = ["allreduce", "-b", "8", "-e", "4M", "-i", "8", "--ranks", "2", "-n", "20",
                        "--json", path]
                with subprocess.Popen([PROGRAM, *args], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) as parent:
                    for _ in range(lines):
                        parent.stdout.readline()
                    parent.stdout.close()
                    self.assertEqual(parent.stderr.read(), "")
                    self.assertEqual(parent.wait(timeout=60), 128 + signal.SIGPIPE)
                with open(path, encoding="utf-8") as file:
                    document = json.loads(file.read(), parse_constant=reject)
                self.assertIs(document["summary"].get("okay", document["meta"].get("okay")), False)

    def check_csv(self, path, rows):
        """Quoted fields with spaces broke readers: rccl-tests#140."""
        with open(path, newline="", encoding="utf-8") as file:
            table = list(csv.reader(file, strict=True))
        self.assertEqual(table[0], list(rows[0].keys()))
        self.assertEqual(len(table), len(rows) + 1)
        for line, row in zip(table[1:], sorted(rows, key=lambda row: row["size_B"])):
            self.assertEqual(len(line), len(table[0]))
            self.assertEqual(line[0], str(row["size_B"]))


class Failures(Case):
    def gone(self, run, seconds):
        self.assertEqual(run.code, 1, run.err)
        self.assertLess(run.seconds, seconds)
        for line in run.err.splitlines():
            self.assertTrue(line.startswith("collbench: "), line)

    def test_a_rank_dies_before_the_first_operation(self):
        """The survivors ignored the timeout: gloo#520."""
        run = Run(["allreduce", "--size", "1K", "--ranks", "3", "-T", "30"],
                  env={"COLLBENCH_FAULT": "kill:1:0"})
        self.gone(run, 30)
        self.assertIn("rank 1", run.err)
        self.assertIn("starting", run.err)
        self.assertIn("# Out of bounds values : N/A, the run failed; 0 results were checked", run.out)

    def test_a_rank_dies_mid_run(self):
        """Rows measured so far and valid JSON; the rank, operation, size, step, peer named."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            run = Run(["allreduce", "-b", "1K", "-e", "64K", "-f", "2", "--ranks", "3", "--algo",
                       "ring", "-n", "20", "-w", "1", "-T", "30", "--json", path],
                      env={"COLLBENCH_FAULT": "kill:1:200"})
            self.gone(run, 30)
            with open(path, encoding="utf-8") as file:
                document = json.loads(file.read(), parse_constant=reject)
        self.assertGreater(len(run.rows), 0)
        self.assertIn("# Out of bounds values : N/A, the run failed", run.out)
        self.assertEqual(len(document["rows"]), len(run.rows))
        self.assertIs(document["summary"]["okay"], False)
        for word in ("rank 1", "killed by signal 9", "allreduce ring", " B,", "step", "peer"):
            self.assertIn(word, run.err)

    def test_a_rank_is_killed_from_outside(self):
        args = ["allreduce", "--size", "1K", "--ranks", "3", "-n", "1000000", "-T", "5"]
        with subprocess.Popen([PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as parent:
            for line in parent.stdout:  # the ranks run when they have measured the clock
                if line.startswith("# clock"):
                    break
            with open(f"/proc/{parent.pid}/task/{parent.pid}/children", encoding="ascii") as file:
                ranks = [int(pid) for pid in file.read().split()]
            os.kill(ranks[2], signal.SIGKILL)
            _, err = parent.communicate(timeout=60)
        self.assertEqual(parent.returncode, 1, err)
        self.assertIn("rank 2", err)
        for pid in ranks:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_a_stopped_rank(self):
        """Hangs without a message: nccl-tests#26, #102; who is it: nccl#1324, gloo#511."""
        before = shared_files()
        run = Run(["allreduce", "--size", "1K", "--ranks", "3", "--algo", "ring", "--timeout", "2",
                   "-n", "20"], env={"COLLBENCH_FAULT": "stop:2:30"})
        self.gone(run, 2 + SLACK_S)
        for word in ("rank 2", "no progress for 2 s", "allreduce ring", "1024 B", "waited", "peer"):
            self.assertIn(word, run.err)
        self.assertEqual(shared_files() - before, set())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_collbench.py PROGRAM [unittest arguments]")
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
