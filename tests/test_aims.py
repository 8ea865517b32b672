#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What collbench compares an operation with, and how it goes on over several launches: shapes and
relations that hold on any machine; no time is judged.

Usage: test_aims.py PROGRAM [unittest arguments]"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

import test_collbench as base

OPERATIONS = base.OPERATIONS
PLACES = base.PLACES
QUICK = ["-n", "7", "-w", "2"]
MPIEXEC = shutil.which("mpiexec")


def pairs(document):
    """(own row, compared row) by order of measuring and algorithm of the own row."""
    rows = document["rows"]
    return [(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]


class Pairs(base.Case):
    def check_ratio(self, own, other, place):
        """The ratio is that of the medians, inside its interval."""
        ratio = own[place + "_ratio"]
        self.assertAlmostEqual(ratio, other[place + "_p50_us"] / own[place + "_p50_us"],
                               delta=1e-6 * ratio)
        if own[place + "_ratio_low"] is not None:
            self.assertLessEqual(own[place + "_ratio_low"], ratio)
            self.assertGreaterEqual(own[place + "_ratio_high"], ratio)

    def check_samples(self, row, place, count):
        samples = row[place + "_samples_us"]
        self.assertEqual(len(samples), count)
        self.assertEqual(row[place + "_nsamples"], count)
        self.assertAlmostEqual(sorted(samples)[(count - 1) // 2], row[place + "_p50_us"])


@unittest.skipUnless(MPIEXEC, "no mpiexec in PATH")
class Mpi(Pairs):
    def test_every_operation(self):
        for operation in OPERATIONS:
            for buffers in ("shared", "private"):
                document = self.run_json(operation, "-b", "8", "-e", "32K", "-f", "4096", "--ranks",
                                         "2", "--buffers", buffers, "--vs", "mpi", *QUICK)
                self.assertEqual(len(document["rows"]), 4)
                for own, other in pairs(document):
                    self.check_pair(operation, own, other)

    def check_pair(self, operation, own, other):
        self.assertEqual((own["source"], own["series"]), ("measured", "own"))
        self.assertEqual(other["source"], "reference")
        self.assertIn(other["series"], ("mpi/blocking", "mpi/polled"))
        self.assertEqual((own["size_B"], own["type"]), (other["size_B"], other["type"]))
        for place in PLACES:
            if operation == "broadcast" and place == "out_of_place":
                self.assertIsNone(own[place + "_ratio"])
                self.assertIsNone(other[place + "_p50_us"])
                continue
            self.assertEqual((own[place + "_wrong"], other[place + "_wrong"]), (0, 0))
            self.check_ratio(own, other, place)
            self.check_samples(own, place, 7)
            self.check_samples(other, place, 7)
            low, high = own[place + "_ratio_low"], own[place + "_ratio_high"]
            verdict = "faster" if low > 1 else "slower" if high < 1 else "no difference"
            self.assertEqual(own[place + "_verdict"], verdict)

    def test_odd_counts_and_many_ranks(self):
        for size in ("0", "4", "20", "4444"):
            document = self.run_json("allreduce", "--size", size, "--ranks", "5", "-d", "int32",
                                     "-o", "max", "--vs", "mpi", "-n", "3", "-w", "0")
            for own, other in pairs(document):
                self.assertEqual([row[place + "_wrong"] for row in (own, other)
                                  for place in PLACES], [0] * 4)

    def test_cold_is_cold_for_both(self):
        """What is flushed are our buffers: the library may not use others then."""
        document = self.run_json("allreduce", "-b", "64", "-e", "256K", "-f", "16", "--ranks", "2",
                                 "--cold", "--vs", "mpi", *QUICK)
        self.assertEqual({row["buffers"] for row in document["rows"]}, {"shared"})

    def test_what_mpi_lacks_is_said(self):
        run = base.Run(["allreduce", "--size", "1K", "--ranks", "2", "-d", "bfloat16", "--vs", "mpi",
                        *QUICK])
        self.assertEqual(run.code, 0, run.err)
        self.assertIn("# not compared: bfloat16", run.out)
        self.assertEqual(len(run.rows), 1)

    def test_a_rank_dies_under_mpiexec(self):
        for fault in ("kill:1:20", "exit:1:20", "stop:0:20"):
            run = base.Run(["allreduce", "--size", "1K", "--ranks", "2", "--vs", "mpi", "-T", "2"],
                           env={"COLLBENCH_FAULT": fault})
            self.assertEqual(run.code, 1, run.err)
            self.assertIn(f"rank {fault.split(':')[1]}", run.err)
            self.assertIn("allreduce", run.err)
            self.assertLess(run.seconds, 2 + base.SLACK_S)

    def test_no_mpiexec(self):
        self.refused("allreduce", "--size", "8", "--vs", "mpi", "--mpiexec", "/nonexist/mpiexec",
                     words=["/nonexist/mpiexec"])


class Others(Pairs):
    def test_groups(self):
        document = self.run_json("allreduce", "--size", "1K", "--groups", "2x2", *QUICK)
        (own, other), = pairs(document)
        self.assertEqual((own["series"], other["series"]), ("alone", "together"))
        self.assertEqual((own["nranks"], document["meta"]["ngroups"]), (2, 2))
        for place in PLACES:
            self.assertEqual((own[place + "_wrong"], other[place + "_wrong"]), (0, 0))
            self.check_ratio(own, other, place)

    def test_overlap(self):
        document = self.run_json("allreduce", "--size", "1M", "--ranks", "2", "--overlap", *QUICK)
        (own, other), = pairs(document)
        self.assertEqual((own["series"], other["series"]), ("pure", "overlapped"))
        for place in PLACES:
            self.check_ratio(own, other, place)
            pure, both = own[place + "_p50_us"], other[place + "_p50_us"]
            said = 100 - 100 * (both - other[place + "_compute_us"]) / pure
            self.assertAlmostEqual(other[place + "_overlap_pct"], min(max(said, 0), 100), places=6)
            self.assertGreater(other[place + "_cores"], 0)
            self.assertEqual(other[place + "_wrong"], 0)

    def test_overlap_without_warm_up(self):
        """How much to compute is known all the same."""
        document = self.run_json("allreduce", "--size", "64K", "--ranks", "2", "--overlap", "-n",
                                 "5", "-w", "0")
        self.assertGreater(document["rows"][1]["out_of_place_compute_us"], 0)

    def test_a_late_rank(self):
        def once():
            document = self.run_json("allreduce", "--size", "1K", "--ranks", "2", "--skew", "20ms",
                                     *QUICK)
            (own, other), = pairs(document)
            self.assertEqual((own["series"], other["series"]), ("on time", "one late"))
            self.assertEqual(document["meta"]["cadence"], "isolated")
            for place in PLACES:
                # the others wait for it, and its lateness is not in the time
                self.assertGreater(other[place + "_wait_us"], 15000)
                self.assertLess(other[place + "_p50_us"], 15000)
        base.attempts(once)

    def test_cold_caches(self):
        """Flushed, 1 MiB comes from memory: many times the time of what lies in a cache."""
        def median(*options):
            document = self.run_json("allreduce", "--size", "256K", "--ranks", "2", "--cadence",
                                     "isolated", "-n", "41", *options)
            self.assertEqual(document["meta"]["cold"], "--cold" in options)
            return document["rows"][0]["out_of_place_p50_us"]
        self.assertTrue(any(median("--cold") > 1.2 * median() for _ in range(5)))

    def test_exclusive(self):
        for words in (["--groups", "2x2", "--overlap"], ["--skew", "1ms", "--overlap"],
                      ["--trace", "x.json", "--repeat-check"]):
            self.refused("allreduce", "--size", "8", *words, words=[words[0], "aims"])


class Launches(base.Case):
    def test_rows_of_each_and_of_all(self):
        document = self.run_json("allreduce", "-b", "8", "-e", "64", "-f", "8", "--ranks", "2",
                                 "--launches", "3", "-n", "20")
        rows = document["rows"]
        self.assertEqual(sorted(row["launch"] for row in rows), [0, 0, 1, 1, 2, 2, 3, 3])
        for size in (8, 64):
            each = [row for row in rows if row["size_B"] == size and row["launch"] > 0]
            over, = [row for row in rows if row["size_B"] == size and row["launch"] == 0]
            medians = [row["out_of_place_p50_us"] for row in each]
            self.assertAlmostEqual(over["out_of_place_p50_us"], statistics.geometric_mean(medians))
            self.assertEqual(over["out_of_place_interval"], "launches")
            self.assertLessEqual(over["out_of_place_ci_low_us"], over["out_of_place_p50_us"])
            self.assertGreaterEqual(over["out_of_place_ci_high_us"], over["out_of_place_p50_us"])
            self.assertEqual(over["out_of_place_min_us"],
                             min(row["out_of_place_min_us"] for row in each))

    def test_soak(self):
        """Launches until the time is over, with time stamps that go up."""
        start = time.monotonic()
        document = self.run_json("allreduce", "--size", "64", "--ranks", "2", "--time", "1.5s",
                                 "-n", "20")
        self.assertGreater(time.monotonic() - start, 1.4)
        stamps = [row["timestamp"] for row in document["rows"] if row["launch"] > 0]
        self.assertGreater(len(stamps), 2)
        self.assertEqual(stamps, sorted(stamps))
        self.assertRegex(stamps[0], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4}$")

    def test_interrupted(self):
        """What was measured is there, with the rows over all launches, and a valid file."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "soak.json")
            process = subprocess.Popen([base.PROGRAM, "allreduce", "--size", "64", "--ranks", "2",
                                        "--launches", "0", "-n", "20", "--json", path],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(600):  # until something was measured
                time.sleep(0.1)
                try:
                    with open(path, encoding="utf-8") as file:
                        if len(json.load(file)["rows"]) > 2:
                            break
                except (OSError, ValueError):
                    continue
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130)
            self.assertIn("Avg bus bandwidth", out)
            with open(path, encoding="utf-8") as file:
                rows = json.load(file)["rows"]
            self.assertIn(0, [row["launch"] for row in rows])


class Stopping(base.Case):
    def test_precision_or_count_or_time(self):
        document = self.run_json("allreduce", "--size", "64", "--ranks", "2", "--precision", "50%")
        row, = document["rows"]
        for place in PLACES:
            self.assertIn(row[place + "_stop"], ("precision", "time"))
            if row[place + "_stop"] == "precision":
                half = (row[place + "_ci_high_us"] - row[place + "_ci_low_us"]) / 2
                self.assertLess(half / row[place + "_p50_us"], 1)
        document = self.run_json("allreduce", "--size", "64", "--ranks", "2", "-n", "33")
        self.assertEqual(document["rows"][0]["in_place_stop"], "count")
        self.assertEqual(document["rows"][0]["in_place_nsamples"], 33)

    def test_order(self):
        """Listed rows are measured as printed; shuffled ones are not, the same seed the same."""
        def order(*options):
            document = self.run_json("allreduce", "-b", "8", "-e", "1M", "-f", "2", "--ranks", "2",
                                     *QUICK, *options)
            return [row["size_B"] for row in document["rows"]]
        listed = order("--order", "listed")
        self.assertEqual(listed, sorted(listed))
        self.assertNotEqual(order(), listed)
        self.assertEqual(order("--seed", "7"), order("--seed", "7"))
        self.assertEqual(sorted(order()), listed)


if __name__ == "__main__":
    base.PROGRAM = sys.argv.pop(1)
    unittest.main()
