#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records read back: collbench compare and collbench plot on files made here, whose truth is known.

Usage: test_record.py PROGRAM [unittest arguments]"""

import copy
import csv
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
META = {"program": "collbench 0.1.0", "schema": 2, "collective": "allreduce", "nranks": 2,
        "processor": "Abacus", "command": "collbench allreduce", "clock_cost_s": 2e-8,
        "barrier_s": 1e-7, "ping_s": 5e-8}


def draw(rng, median, count, sd=0.02, rho=0.5):
    """Log-normal samples around a median, each like the one before."""
    z, samples = rng.gauss(0, 1), []
    for _ in range(count):
        samples.append(median * math.exp(sd * z))
        z = rho * z + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
    return samples


def make_row(size, out_of_place, in_place=None, **more):
    row = {"size_B": size, "count_elements": size // 4, "type": "float", "redop": "sum",
           "root": -1, "algo": "ring", "transport": "shm/pull", "buffers": "shared",
           "source": "measured", "nranks": 2}
    for place, samples in (("out_of_place", out_of_place), ("in_place", in_place)):
        if samples is None:
            continue
        p50 = sorted(samples)[(len(samples) + 1) // 2 - 1]
        row |= {f"{place}_p50_us": p50, f"{place}_algbw_GBps": size / p50 / 1e3,
                f"{place}_busbw_GBps": size / p50 / 1e3, f"{place}_transport": "shm/pull",
                f"{place}_bound_time_us": p50 / 2, f"{place}_nsamples": len(samples),
                f"{place}_samples_us": samples}
    return row | more


def make_record(rows, **meta):
    return {"meta": META | meta, "rows": rows, "summary": {"okay": True}, "notes": []}


def sweep(seed, count=10, samples=100, **kwargs):
    """`count` sizes from 8 B, in both placements."""
    rng = random.Random(seed)
    return [make_row(8 << k, draw(rng, 10 * 1.5 ** k, samples, **kwargs),
                     draw(rng, 8 * 1.5 ** k, samples, **kwargs)) for k in range(count)]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="record-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, record):
        with open(self.path(name), "w") as file:
            if isinstance(record, str):
                file.write(record)
            else:
                json.dump(record, file, indent=1)
        return self.path(name)

    def run_program(self, *args, code=0):
        done = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def compare(self, a, b, *args, code=0):
        """The JSON of a comparison; records are written first unless they are paths."""
        a, b = (path if isinstance(path, str) else self.write(f"{name}.json", path)
                for path, name in ((a, "a"), (b, "b")))
        return json.loads(self.run_program("compare", a, b, "--json", "-", *args, code=code).stdout)

    def verdicts(self, *args, **kwargs):
        return [row["verdict"] for row in self.compare(*args, **kwargs)["rows"]]

    def refused(self, *args, words=()):
        """Exit status 2, nothing on stdout, and one sentence with these words."""
        done = self.run_program(*args, code=2)
        self.assertEqual(done.stdout, "", args)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr, args)


class Verdicts(Case):
    def test_a_file_with_itself(self):
        a = self.write("a.json", make_record(sweep(1)))
        self.assertEqual(set(self.verdicts(a, a)), {"no difference"})
        done = self.run_program("compare", a, a)
        self.assertIn("20 rows compared: 0 slower, 0 faster, 20 no difference, 0 inconclusive; "
                      "0 only in A, 0 only in B", done.stdout)

    def test_one_row_slower(self):
        """Exit status 1, and that row is named, and no other."""
        rows = sweep(1)
        other = copy.deepcopy(rows)
        slow = other[4]["in_place_samples_us"]
        other[4]["in_place_samples_us"] = [1.2 * us for us in slow]
        result = self.compare(make_record(rows), make_record(other), code=1)
        changed = [row for row in result["rows"] if row["verdict"] != "no difference"]
        self.assertEqual(len(changed), 1)
        row = changed[0]
        self.assertEqual((row["verdict"], row["size_B"], row["placement"]),
                         ("slower", 128, "in-place"))
        self.assertAlmostEqual(row["change_pct"], 20, places=6)
        self.assertTrue(5 < row["low_pct"] < 20 < row["high_pct"] < 35)
        named = [note for note in result["notes"] if note.startswith("slower: ")]
        self.assertEqual(len(named), 1)
        self.assertIn("allreduce, 2 ranks, 128 B, float sum, ring, shared, in-place: +20.0 %",
                      named[0])
        # the other way round it is faster, which is no failure
        result = self.compare(make_record(other), make_record(rows), code=0)
        self.assertEqual(result["summary"]["faster"], 1)

    def test_ten_times_the_spread(self):
        """The same median, but nobody can know: inconclusive, and no failure."""
        rows = sweep(2)
        other = copy.deepcopy(rows)
        samples = other[3]["out_of_place_samples_us"]
        middle = other[3]["out_of_place_p50_us"]
        other[3]["out_of_place_samples_us"] = [middle * (us / middle) ** 10 for us in samples]
        result = self.compare(make_record(rows), make_record(other))
        odd = [row for row in result["rows"] if row["verdict"] != "no difference"]
        self.assertEqual([(row["verdict"], row["size_B"], row["placement"]) for row in odd],
                         [("inconclusive", 64, "out-of-place")])
        self.assertAlmostEqual(odd[0]["change_pct"], 0, places=9)

    def test_the_same_twice(self):
        """A/A: 100 rows drawn twice from the same law; no row slower, 95 of 100 no difference."""
        rng = random.Random(3)
        medians = [10 * 1.1 ** k for k in range(100)]
        records = [make_record([make_row(8 * (k + 1), draw(rng, median, 200, 0.05, 0.6))
                                for k, median in enumerate(medians)]) for _ in range(2)]
        verdicts = self.verdicts(*records)
        self.assertGreaterEqual(verdicts.count("no difference"), 95)
        self.assertEqual(verdicts.count("slower") + verdicts.count("faster"), 0)

    def test_a_change_within_the_threshold(self):
        """However sure: 3 % is no matter at 5 %, and one at 2 %."""
        rows = sweep(4, count=2, samples=1000)
        other = copy.deepcopy(rows)
        other[1]["in_place_samples_us"] = [1.03 * us for us in other[1]["in_place_samples_us"]]
        a, b = self.write("a.json", make_record(rows)), self.write("b.json", make_record(other))
        self.assertEqual(set(self.verdicts(a, b)), {"no difference"})
        for threshold in ("2%", "0.02"):
            verdicts = self.verdicts(a, b, "--threshold", threshold, code=1)
            self.assertEqual(verdicts, 3 * ["no difference"] + ["slower"])

    def test_many_rows_are_corrected(self):
        """p = 0.01 of one row among 100 is what chance does."""
        rng = random.Random(5)
        rows = [make_row(8 * k, draw(rng, 10, 50, 0.1, 0)) for k in range(1, 101)]
        other = copy.deepcopy(rows)
        other[0]["out_of_place_samples_us"] = [1.07 * us for us in rows[0]["out_of_place_samples_us"]]
        alone = self.compare(make_record(rows[:1]), make_record(other[:1]), code=1)["rows"][0]
        self.assertTrue(0.0005 < alone["p"] < 0.05, alone)
        many = self.compare(make_record(rows), make_record(other))["rows"][0]
        self.assertEqual(many["p"], alone["p"])
        self.assertAlmostEqual(many["p_holm"], min(1, 100 * many["p"]))
        self.assertEqual(many["verdict"], "inconclusive")

    def test_no_verdict_over_the_mean(self):
        """One row twice as slow behind many a little faster still fails."""
        rows = sweep(6)
        other = copy.deepcopy(rows)
        for k, row in enumerate(other):
            factor = 2 if k == 0 else 0.8
            row["out_of_place_samples_us"] = [factor * us for us in row["out_of_place_samples_us"]]
        result = self.compare(make_record(rows), make_record(other), code=1)
        self.assertEqual(result["summary"]["slower"], 1)
        self.assertEqual(result["summary"]["faster"], 9)


class Launches(Case):
    def launches(self, medians, seed=0, pooled=True):
        """A row per launch, all in one row behind them as collbench writes it, and a plain row."""
        rng = random.Random(seed)
        lists = [draw(rng, median, 100, 0.01, 0) for median in medians]
        rows = [make_row(64, us, launch=k + 1) for k, us in enumerate(lists)]
        if pooled:
            rows.append(make_row(64, sum(lists, []), launch=0))
        return make_record(rows)

    def test_launches_scatter(self):
        """Launches that differ by 15 % hide a change of 8 %, however many samples each has."""
        a, b = [10, 11.5, 10.2, 11.2, 9.7], [10.8, 12.4, 11, 12.1, 10.5]
        row, = self.compare(self.launches(a, 1), self.launches(b, 2))["rows"]
        self.assertEqual((row["method"], row["launches_A"], row["launches_B"], row["verdict"]),
                         ("launches", 5, 5, "inconclusive"))
        self.assertAlmostEqual(row["change_pct"], 8, delta=1)

    def test_launches_agree(self):
        a, b = [10, 10.1, 10.05, 9.95, 10], [11.5, 11.4, 11.6, 11.5, 11.45]
        row, = self.compare(self.launches(a, 1), self.launches(b, 2), code=1)["rows"]
        self.assertEqual(row["verdict"], "slower")
        row, = self.compare(self.launches(a, 1, False), self.launches(a, 2, False))["rows"]
        self.assertEqual((row["verdict"], row["launches_A"]), ("no difference", 5))

    def near_and_far(self, far, factor, seed):
        """Launches of which those listed ran on cores that share no cache: four times as slow."""
        rng, rows = random.Random(seed), []
        for k in range(6):
            median = 10 * factor * (4 if k in far else 1) * math.exp(rng.gauss(0, 0.01))
            rows.append(make_row(64, draw(rng, median, 50, 0.01, 0), launch=k + 1,
                                 ping_us=0.24 if k in far else 0.05))
        return make_record(rows)

    def test_near_and_far_cores(self):
        """Launches are compared with their like, so 15 % show through a factor of four."""
        a, same = self.near_and_far({0, 1}, 1, 1), self.near_and_far({2, 3, 4, 5}, 1, 2)
        slower = self.near_and_far({3}, 1.15, 3)
        result = self.compare(a, same)
        self.assertEqual(result["rows"][0]["verdict"], "no difference")
        self.assertIn("under and over 110 ns", " ".join(result["notes"]))
        row, = self.compare(a, slower, code=1)["rows"]
        self.assertEqual(row["verdict"], "slower")
        self.assertAlmostEqual(row["change_pct"], 15, delta=3)
        self.assertAlmostEqual(row["median_B_us"] / row["median_A_us"], 1 + row["change_pct"] / 100)
        far = self.near_and_far(range(6), 1, 4)
        near = self.near_and_far([], 1, 5)
        row, = self.compare(near, far)["rows"]
        self.assertEqual((row["verdict"], row["method"]), ("inconclusive", "none"))
        for row in a["rows"][1:] + same["rows"]: # one unknown way, and nothing can be told apart
            row["ping_us"] = None
        row, = self.compare(a, same)["rows"]
        self.assertEqual(row["verdict"], "inconclusive")

    def test_one_launch_against_many(self):
        row, = self.compare(self.launches([10, 10.1, 10]), self.launches([10.1]))["rows"]
        self.assertEqual((row["method"], row["launches_A"]), ("block bootstrap", 3))

    def test_all_in_one_row(self):
        """A file that has only the row of all launches is compared by it."""
        record = self.launches([10, 10.1])
        record["rows"] = record["rows"][-1:]
        row, = self.compare(record, record)["rows"]
        self.assertEqual((row["method"], row["verdict"]), ("block bootstrap", "no difference"))


class Matching(Case):
    def test_rows_of_one_file(self):
        rows = sweep(7, count=4)
        result = self.compare(make_record(rows[:3]), make_record(rows[1:]))
        self.assertEqual([row["verdict"] for row in result["rows"]],
                         2 * ["only in A"] + 4 * ["no difference"] + 2 * ["only in B"])
        self.assertIsNone(result["rows"][0]["median_B_us"])
        self.assertIsNone(result["rows"][-1]["median_A_us"])

    def test_nothing_in_common(self):
        rows = sweep(7, count=1)
        a, b = self.write("a.json", make_record(rows)), self.write("b.json", make_record(
            rows, collective="broadcast"))
        self.refused("compare", a, b, words=["no row in common", "allreduce", "broadcast"])

    def test_what_identifies_a_row(self):
        base, = sweep(8, count=1)
        for key, value in {"type": "double", "redop": "max", "root": 1, "buffers": "private",
                           "source": "reference", "nranks": 3, "size_B": 16}.items():
            rows = [base, base | {key: value}]
            self.assertEqual(self.verdicts(make_record(rows[:1]), make_record(rows)),
                             2 * ["no difference"] + 2 * ["only in B"], key)

    def test_another_choice_of_algorithm(self):
        """Where each file has one algorithm, --algo auto may have chosen another: still compared."""
        rows = sweep(9, count=1)
        other = [row | {"algo": "tree"} for row in rows]
        result = self.compare(make_record(rows), make_record(other))
        self.assertEqual({(row["algo"], row["verdict"]) for row in result["rows"]},
                         {("ring>tree", "no difference")})
        result = self.compare(make_record(rows), make_record(rows + other))
        self.assertEqual([row["verdict"] for row in result["rows"]],
                         2 * ["no difference"] + 2 * ["only in B"])

    def test_contests(self):
        """Two things of one run are two rows; a library's best form and buffers may change."""
        row, = sweep(9, count=1)
        own, other = row | {"series": "own"}, row | {"series": "together"}
        self.assertEqual(self.verdicts(make_record([own, other]), make_record([row])),
                         2 * ["no difference"] + 2 * ["only in A"])
        mpi = row | {"source": "reference", "algo": "mpi", "series": "mpi/polled"}
        result = self.compare(make_record([mpi]), make_record(
            [mpi | {"series": "mpi/blocking", "buffers": "MPI's"}]))
        self.assertEqual([row["verdict"] for row in result["rows"]], 2 * ["no difference"])

    def test_samples_are_needed(self):
        """Medians alone carry no verdict."""
        rows = sweep(10, count=1)
        bare = [{key: value for key, value in row.items() if "samples" not in key} for row in rows]
        self.assertEqual(self.verdicts(make_record(rows), make_record(bare)), 2 * ["inconclusive"])


class Machines(Case):
    def test_another_cache_line(self):
        """Cores farther apart explain a row that is slower by less, either way, since what travels may do so."""
        rng = random.Random(11)
        rows, factors = [], (1, 1.5, 3.9, 4.5, 0.8)
        slow = []
        for k, factor in enumerate(factors):
            samples = draw(rng, 10 << k, 200)
            rows.append(make_row(8 << k, samples))
            slow.append(make_row(8 << k, [factor * us for us in samples]))
        result = self.compare(make_record(rows), make_record(slow, ping_s=2e-7), code=1)
        self.assertEqual([row["verdict"] for row in result["rows"]],
                         ["no difference"] + 2 * ["inconclusive"] + ["slower", "inconclusive"])
        notes = " ".join(result["notes"])
        self.assertIn("cache line from rank 0 to 1: 50.0 ns in A, 200 ns in B", notes)
        self.assertIn("a factor of up to 4", notes)
        result = self.compare(make_record(slow, ping_s=2e-7), make_record(rows))
        self.assertEqual([row["verdict"] for row in result["rows"]],
                         ["no difference"] + 2 * ["inconclusive"] + ["faster", "inconclusive"])
        # a little is noise of that measurement, and several launches have seen several placements
        self.assertEqual(set(self.verdicts(make_record(rows), make_record(rows, ping_s=5.9e-8))),
                         {"no difference"})
        launches = [row | {"launch": k} for row in rows for k in (1, 2, 3)]
        self.assertEqual(set(self.verdicts(make_record(launches),
                                           make_record(launches, ping_s=2e-7))), {"no difference"})

    def test_another_spread_behind_a_narrow_interval(self):
        """With thousands of samples the median is sure even where they scatter ten times as much;
        still it is not the same run."""
        rng = random.Random(31)
        one = [make_row(8 << k, draw(rng, 10, 3000, sd=0.01, rho=0)) for k in range(9)]
        other = list(one)
        other[4] = make_row(8 << 4, draw(rng, 10, 3000, sd=0.1, rho=0))
        verdicts = self.verdicts(make_record(one), make_record(other))
        self.assertEqual(verdicts, 4 * ["no difference"] + ["inconclusive"] +
                         4 * ["no difference"])

    def test_single_launches_scatter(self):
        """Two runs of one launch each differ by more than their samples say: no verdict from that;
        a row that is far off all the same is named."""
        rng = random.Random(21)
        one, other = [], []
        for k in range(60):
            median = 10 * 1.1 ** k
            one.append(make_row(8 * (k + 1), draw(rng, median, 200)))
            moved = median * math.exp(rng.gauss(0, 0.04)) * (2 if k == 33 else 1)
            other.append(make_row(8 * (k + 1), draw(rng, moved, 200)))
        result = self.compare(make_record(one), make_record(other), code=1)
        slower = [row["size_B"] for row in result["rows"] if row["verdict"] == "slower"]
        self.assertEqual(slower, [8 * 34])
        self.assertNotIn("faster", [row["verdict"] for row in result["rows"]])
        self.assertIn("scatter by", " ".join(result["notes"]))

    def test_other_facts(self):
        rows = sweep(12, count=1)
        other = make_record(rows, processor="Difference Engine", barrier_s=1.3e-7, clock_cost_s=2.1e-8)
        other["summary"]["okay"] = False
        notes = " ".join(self.compare(make_record(rows), other)["notes"])
        self.assertIn("processor: Abacus in A, Difference Engine in B", notes)
        self.assertIn("barrier: 100 ns in A, 130 ns in B", notes)
        self.assertNotIn("reading of the clock", notes)
        self.assertIn("B: the run FAILED", notes)


class Files(Case):
    def test_truncated(self):
        text = json.dumps(make_record(sweep(13)), indent=1)
        whole = self.write("whole.json", text)
        for length in (0, 1, len(text) // 3, len(text) - 2):
            cut = self.write("cut.json", text[:length])
            lines = text[:length].count("\n") + 1
            for command in (("compare", whole, cut), ("plot", cut, "-o", self.path("x.gp"))):
                self.refused(*command, words=["cut.json:", "not valid JSON"])
                if length > 1:
                    done = self.run_program(*command, code=2)
                    line = int(done.stderr.split("cut.json:")[1].split(":")[0])
                    self.assertLessEqual(abs(line - lines), 1)

    def test_damaged(self):
        rows = sweep(14, count=2)
        good = self.write("good.json", make_record(rows))
        cases = [
            ([], ["no record", "rows"]),
            ({"meta": META}, ["no record", "rows"]),
            (make_record([]), ["no row holds a measurement"]),
            (make_record([1]), ["a row must be an object"]),
            (make_record(rows, schema=3), ["schema", "3", "1..2"]),
            (make_record([rows[0], {**rows[1], "size_B": "big"}]), ["size_B", "whole number"]),
            (make_record([rows[0], {**rows[1], "nranks": 0}]), ["nranks", "0"]),
            (make_record([rows[0], {**rows[1], "out_of_place_samples_us": [1, None]}]),
             ["sample 2 of 2"]),
            (make_record([rows[0], {**rows[1], "in_place_samples_us": [-1]}]), ["sample 1 of 1"]),
            (make_record([rows[0], {**rows[1], "out_of_place_samples_us": "1;2"}]), ["a list"]),
        ]
        for key in ("size_B", "type", "algo", "source", "nranks"):
            row = {k: v for k, v in rows[1].items() if k != key}
            cases.append((make_record([rows[0], row]), [f'no "{key}"']))
        for record, words in cases:
            bad = self.write("bad.json", record)
            self.refused("compare", good, bad, words=["bad.json", *words])
        # the line is the row's: with indent=1 it opens behind the first row
        line = json.dumps(make_record([rows[0]]), indent=1).split("\n").index("  }") + 2
        bad = self.write("bad.json", make_record([rows[0], {**rows[1], "nranks": None}]))
        self.refused("compare", good, bad, words=[f"bad.json:{line}: the row has no \"nranks\""])
        self.refused("compare", good, self.path("none.json"), words=["none.json", "No such file"])

    def test_more_than_it_knows(self):
        """Members of later versions are skipped; schema 1 had no number."""
        rows = sweep(15, count=1)
        record = make_record([row | {"weather": {"rain": [1, 2]}, "verdict": "x"} for row in rows],
                             host="h")
        del record["meta"]["schema"], record["summary"]
        self.assertEqual(self.verdicts(record, make_record(rows)), 2 * ["no difference"])

    def test_a_long_file(self):
        """Raw samples may take more than the 16 MiB of a file that people write."""
        samples = draw(random.Random(16), 10, 1_000_000)
        path = self.write("long.json", make_record([make_row(8, samples)]))
        self.assertGreater(os.path.getsize(path), 16 << 20)
        self.assertEqual(self.verdicts(path, path), ["no difference"])

    def test_what_collbench_writes(self):
        """A run of this very program is read back whole."""
        path = self.path("run.json")
        self.run_program("allreduce", "-b", "0", "-e", "1K", "-f", "4", "--ranks", "2", "-n", "20",
                         "--json", path)
        with open(path) as file:
            rows = json.load(file)["rows"]
        result = self.compare(path, path)
        self.assertEqual(result["summary"]["slower"], 0)
        self.assertEqual({(row["size_B"], row["placement"]) for row in result["rows"]},
                         {(row["size_B"], place) for row in rows
                          for place in ("out-of-place", "in-place")})
        self.run_program("plot", path, "-o", self.path("run.gp"))

    def test_csv(self):
        a = self.write("a.json", make_record(sweep(17, count=1)))
        path = self.path("out.csv")
        self.run_program("compare", a, a, "--csv", path)
        with open(path) as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["verdict"] for row in rows], 2 * ["no difference"])
        self.run_program("compare", a, a, "--csv", path, code=2)
        self.run_program("compare", a, a, "--csv", path, "--overwrite")


class Words(Case):
    def test_compare(self):
        a = self.write("a.json", make_record(sweep(18, count=1)))
        self.refused("compare", a, words=["two records", "1"])
        self.refused("compare", a, a, a, words=["two records", "3"])
        for text in ("5", "-1%", "101%", "0", "", "%", "x", "nan", "5%%", "inf"):
            self.refused("compare", a, a, f"--threshold={text}", words=["--threshold"])
        self.assertIn("Holm", self.run_program("compare", "--help").stdout)

    def test_plot(self):
        a = self.write("a.json", make_record(sweep(18, count=1)))
        done = self.run_program("plot", code=2)
        self.assertIn("-o FILE", done.stderr)
        self.assertIn("one or more records", done.stderr)
        self.refused("plot", a, "-o", self.path("a.jpg"), words=[".png", ".svg", ".gp"])
        self.refused("plot", a, "-o", self.path("a.gp"), "--what", "x", words=["time", "busbw"])
        empty = self.write("empty.json", make_record([make_row(0, [1.0, 2.0])]))
        self.refused("plot", empty, "-o", self.path("a.gp"), words=["more than 0 bytes"])


class Pictures(Case):
    def script(self, *args):
        path = self.path("x.gp")
        self.run_program("plot", *args, "-o", path)
        with open(path) as file:
            return file.read()

    def keys(self, script):
        """Names in the key, in order."""
        return [part.split('"')[1] for part in script.split(" title ")[1:]]

    def data(self, script, panel, line):
        block = script.split(f"$panel{panel}_line{line} << END_OF_DATA\n")[1]
        return [[float(word) for word in row.split()]
                for row in block.split("END_OF_DATA")[0].strip().split("\n")]

    def test_script(self):
        """Numbers of the picture: seconds and GB/s, the band, the bound."""
        rows = sweep(19, count=6)
        script = self.script(self.write("a.json", make_record(rows)))
        self.assertEqual(self.keys(script), ["ring", "bound"])
        self.assertIn("allreduce, 2 ranks, float sum, shared buffers, out-of-place, Abacus", script)
        times, rates = self.data(script, 0, 0), self.data(script, 1, 0)
        self.assertEqual([point[0] for point in times], [row["size_B"] for row in rows])
        for row, time, rate in zip(rows, times, rates):
            us = row["out_of_place_p50_us"]
            self.assertAlmostEqual(time[1] / (us * 1e-6), 1, places=6)
            self.assertTrue(0.97 * time[1] < time[2] < time[1] < time[3] < 1.03 * time[1])
            self.assertAlmostEqual(rate[1] * us * 1e3 / row["size_B"], 1, places=6)
            self.assertTrue(rate[2] < rate[1] < rate[3])
        bound = self.data(script, 0, 1)
        self.assertAlmostEqual(bound[0][1] * 1e6 / rows[0]["out_of_place_bound_time_us"], 1, places=6)
        for label in ('"8" 2**3', '"256" 2**8'):
            self.assertIn(label, script)

    def test_intervals_of_the_file(self):
        """What the run worked out itself is drawn as it is."""
        rows = [make_row(1 << k, [2.0] * 9, out_of_place_ci_low_us=1.5, out_of_place_ci_high_us=3.0)
                for k in (10, 20)]
        points = self.data(self.script(self.write("a.json", make_record(rows))), 0, 0)
        self.assertEqual([point[1:] for point in points], 2 * [[2e-6, 1.5e-6, 3e-6]])

    def test_lines(self):
        """A line per algorithm, file and source; one where the algorithm follows the size."""
        rows = sweep(20, count=4)
        auto = [row | {"algo": "oneshot" if k < 2 else "tree"} for k, row in enumerate(rows)]
        theirs = [row | {"source": "reference", "algo": "mpi", "series": f"mpi/{k}", "buffers": "x"}
                  for k, row in enumerate(rows)]
        groups = [row | {"series": series} for row in rows for series in ("alone", "together")]
        a = self.write("a.json", make_record(auto + theirs))
        b = self.write("b.json", make_record(rows + auto))
        self.assertEqual(self.keys(self.script(a)), ["oneshot/tree", "reference mpi", "bound"])
        self.assertEqual(self.keys(self.script(b)), ["ring", "oneshot", "tree", "bound"])
        self.assertEqual(self.keys(self.script(a, b)),
                         ["a oneshot/tree", "a reference mpi", "b ring", "b oneshot", "b tree",
                          "bound"])
        self.assertIn("allreduce, 2 ranks, float sum, shared buffers, out-of-place, Abacus",
                      self.script(a))
        c = self.write("c.json", make_record(groups))
        self.assertEqual(self.keys(self.script(c)), ["alone ring", "together ring", "bound"])
        self.assertEqual(self.keys(self.script(b, "--placement", "both"))[:2],
                         ["out-of-place ring", "in-place ring"])

    def test_panels_and_placements(self):
        a = self.write("a.json", make_record(sweep(21, count=3)))
        for what, labels in {"time": ["time, median"], "busbw": ["bus bandwidth (GB/s)"],
                             "both": ["time, median", "bus bandwidth (GB/s)"]}.items():
            script = self.script(a, "--what", what)
            self.assertEqual([line.split('"')[1] for line in script.splitlines()
                              if line.startswith("set ylabel")], labels)
        self.assertIn(", in-place,", self.script(a, "--placement", "in-place"))
        rows = [make_row(64, None, [1.0] * 9)]
        only = self.write("only.json", make_record(rows))
        self.assertIn(", in-place,", self.script(only))
        self.run_program("plot", only, "-o", self.path("x.gp"), "--placement", "out-of-place", code=2)

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_pictures(self):
        """gnuplot takes the script without a word; odd names do no harm."""
        rows = sweep(22, count=20)
        for row in rows[::2]:
            row["algo"] = 'a "b" `c` \\ $x_1'
        a = self.write("a.json", make_record(rows + sweep(23, count=3)))
        for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            path = self.path(f"x.{suffix}")
            done = self.run_program("plot", a, "-o", path)
            self.assertEqual(done.stdout + done.stderr, "")
            with open(path, "rb") as file:
                self.assertTrue(file.read().startswith(start))
        one = self.write("one.json", make_record([make_row(1000, [3.0])]))
        done = self.run_program("plot", one, "-o", self.path("one.svg"))
        self.assertEqual(done.stdout + done.stderr, "")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
