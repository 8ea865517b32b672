#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Timelines (--trace) of collbench and commsim, and the determinism report (--repeat-check).

    test_trace.py COLLBENCH COMMSIM [TestClass ...]
"""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

COLLBENCH = COMMSIM = ""
OPERATIONS = ["allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast"]
QUICK = ["-w", "1", "-T", "30"]


def run(program, *args, env=None):
    return subprocess.run([program, *args], env={**os.environ, **(env or {})}, timeout=100,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def reject(constant):
    raise ValueError(f"JSON holds {constant}, which is no JSON")


class Timeline:
    """A file of the trace event format, taken apart."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as text:
            self.document = json.load(text, parse_constant=reject)
        self.about = self.document["otherData"]
        self.events = self.document["traceEvents"]
        self.steps = self.of("X", "step")
        self.waits = self.of("X", "wait")
        self.operations = self.of("X", "operation")

    def of(self, phase, cat=None):
        return [e for e in self.events if e["ph"] == phase and cat in (None, e.get("cat"))]


def identity(event):
    """What a step is, without its times."""
    args = {key: value for key, value in event["args"].items() if key != "last_chain"}
    return (event["pid"], event["tid"], event["name"], tuple(sorted(args.items())))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name="trace.json"):
        return os.path.join(self.folder.name, name)

    def fine(self, program, *args, env=None):
        done = run(program, *args, env=env)
        self.assertEqual(done.returncode, 0, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def measure(self, *args, env=None):
        """The timeline of `collbench ARGS`, and what it printed."""
        path = self.path()
        done = self.fine(COLLBENCH, *args, *QUICK, "--trace", path, "--overwrite", env=env)
        timeline = Timeline(path)
        self.check(timeline)
        return timeline, done.stdout

    def simulate(self, *args):
        path = self.path("simulated.json")
        done = self.fine(COMMSIM, "coll", *args, "--trace", path, "--overwrite")
        timeline = Timeline(path)
        self.check(timeline)
        return timeline, done.stdout

    # What holds for every timeline.
    def check(self, timeline):
        self.assertEqual(timeline.about["steps"], len(timeline.steps))
        self.assertEqual(sorted(e["pid"] for e in timeline.operations),
                         list(range(timeline.about["nranks"])))
        names = {e["pid"]: e["args"]["name"] for e in timeline.of("M")
                 if e["name"] == "process_name"}
        self.assertEqual(names, {r: f"rank {r}" for r in range(timeline.about["nranks"])})
        self.check_lanes(timeline)
        self.check_messages(timeline)

    def check_lanes(self, timeline):
        """Groups and waits of a lane follow each other; all lies within the rank's operation."""
        spans = {e["pid"]: (e["ts"], e["ts"] + e["dur"]) for e in timeline.operations}
        lanes = collections.defaultdict(dict)
        for e in timeline.steps:
            group = ("step", e["args"]["pass"], e["args"]["group"])
            lanes[e["pid"], e["tid"]].setdefault(group, set()).add((e["ts"], e["dur"]))
        for e in timeline.waits:
            wait = ("wait", e["args"]["pass"], e["args"]["step"])
            self.assertGreater(e["dur"], 0)
            self.assertNotIn(wait, lanes[e["pid"], e["tid"]])
            lanes[e["pid"], e["tid"]][wait] = {(e["ts"], e["dur"])}
        for (rank, lane), groups in lanes.items():
            for group, times in groups.items():
                self.assertEqual(len(times), 1, f"fused steps {group} of rank {rank}: {times}")
            times = sorted(times for group in groups.values() for times in group)
            end = spans[rank][0]
            for begin, duration in times:
                self.assertGreaterEqual(begin, end - 1e-5, f"rank {rank} lane {lane}")
                end = begin + duration
            self.assertLessEqual(end, spans[rank][1] + 1e-5)

    def check_messages(self, timeline):
        """Each send has one receive, which did not end before the send began, and an arrow."""
        sends, receives = {}, {}
        for e in timeline.steps:
            args = e["args"]
            if args["kind"] == "send":
                key = (e["pid"], args["peer"], args["channel"], args["message"])
                self.assertNotIn(key, sends)
                sends[key] = e
            elif args["kind"] in ("recv", "recv_reduce"):
                key = (args["peer"], e["pid"], args["channel"], args["message"])
                self.assertNotIn(key, receives)
                receives[key] = e
        self.assertEqual(sends.keys(), receives.keys())
        for key, send in sends.items():
            self.assertEqual(send["args"]["bytes"], receives[key]["args"]["bytes"], key)
            self.assertLessEqual(send["ts"], receives[key]["ts"], key)
        starts = {e["id"]: e for e in timeline.of("s")}
        ends = {e["id"]: e for e in timeline.of("f")}
        self.assertEqual(starts.keys(), ends.keys())
        self.assertEqual(len(timeline.of("s")) + len(timeline.of("f")), 2 * len(starts))
        self.assertEqual(len(starts), len(sends))
        arrows = collections.Counter((s["pid"], ends[i]["pid"], s["ts"], ends[i]["ts"])
                                     for i, s in starts.items())
        pairs = collections.Counter((key[0], key[1], send["ts"], receives[key]["ts"])
                                    for key, send in sends.items())
        self.assertEqual(arrows, pairs)


class Measured(Case):
    def test_a_ring_of_four(self):
        """2 (n - 1) sends and as many receives on each rank, in the order of the schedule."""
        timeline, text = self.measure("allreduce", "--algo", "ring", "--ranks", "4", "--size", "1M")
        self.assertEqual(len(timeline.steps), 4 * 2 * 2 * 3)
        for rank in range(4):
            steps = sorted((e for e in timeline.steps if e["pid"] == rank),
                           key=lambda e: e["args"]["step"])
            self.assertEqual([e["args"]["step"] for e in steps], list(range(12)))
            names = [e["name"] for e in steps]
            after, before = (rank + 1) % 4, (rank - 1) % 4
            self.assertEqual(names[0], f"send {rank} -> {after}")
            self.assertEqual(names[1], f"recv_reduce {before} <- {before}")
            self.assertEqual({e["args"]["peer"] for e in steps}, {after, before})
            self.assertEqual(sum(e["args"]["bytes"] for e in steps), 12 * (1 << 18))
        self.assertEqual(timeline.about["source"], "measured")
        self.assertIn("allreduce ring, 1048576 B", timeline.about["what"])
        for words in ("# timeline: 48 steps on 4 ranks in ", "# rank 3: ", "# ended last: rank ",
                      "# the chain behind it: "):
            self.assertIn(words, text)

    def test_steps_are_those_executed(self):
        """Programs, passes and lanes: as many events as the table says that a rank executes."""
        for args in (["--wire", "staged", "--slice", "4K"], ["--wire", "pull", "--slice", "8K"],
                     ["--channels", "2"], ["--in-place"], ["--ranks-as", "threads"],
                     ["--buffers", "private"]):
            table = self.path("table.json")
            timeline, _ = self.measure("allreduce", "--algo", "ring", "--ranks", "3", "--size",
                                       "100000", *args, "--json", table)
            with open(table, encoding="utf-8") as text:
                row = json.load(text)["rows"][0]
            per_rank = collections.Counter(e["pid"] for e in timeline.steps)
            self.assertEqual(set(per_rank.values()), {row["steps"]}, args)
            passes = {e["args"]["pass"] for e in timeline.steps}
            self.assertEqual(passes, set(range(row["passes"])), args)
            self.assertEqual({e["tid"] for e in timeline.steps}, set(range(row["channels"])), args)
            self.assertEqual("--slice" in args, row["passes"] > 1, args)
            place = "in_place" if "--in-place" in args else "out_of_place"
            longest = max(e["ts"] + e["dur"] for e in timeline.operations)
            self.assertAlmostEqual(longest, row[place + "_time_us"], 2)

    def test_smallest(self):
        for size in ("0", "4"):
            for ranks in ("1", "2", "5"):
                timeline, _ = self.measure("allreduce", "--ranks", ranks, "--size", size)
                self.assertEqual(timeline.about["nranks"], int(ranks))

    def test_what_must_be_given(self):
        path = self.path()
        done = run(COLLBENCH, "allreduce", "-b", "8", "-e", "64", "-f", "2", "-d", "all", "-o",
                   "all", "--algo", "all", "--in-place", "--out-of-place", "--trace", path)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        for words in ("4 sizes", "--size", "12 element types", "5 operators", "algorithms", "--algo",
                      "2 placements", "--in-place"):
            self.assertIn(words, done.stderr)
        self.assertFalse(os.path.exists(path))

    def test_files(self):
        path = self.path()
        call = ["allreduce", "--ranks", "2", "--size", "1K", *QUICK, "--trace"]
        with open(path, "w", encoding="utf-8") as text:
            text.write("kept")
        done = run(COLLBENCH, *call, path)
        self.assertEqual(done.returncode, 2)
        self.assertIn("exists and is kept", done.stderr)
        with open(path, encoding="utf-8") as text:
            self.assertEqual(text.read(), "kept")
        self.fine(COLLBENCH, *call, path, "--overwrite")
        self.assertGreater(len(Timeline(path).steps), 0)
        for bad in ("-", "", self.path("no/such/folder.json")):
            self.assertEqual(run(COLLBENCH, *call, bad).returncode, 2, bad)

    def test_a_failed_run_leaves_no_file(self):
        path = self.path()
        done = run(COLLBENCH, "allreduce", "--ranks", "2", "--size", "1K", "-w", "5", "-T", "5",
                   "--trace", path, env={"COLLBENCH_FAULT": "exit:1:2"})
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertFalse(os.path.exists(path))

    def test_data_are_checked(self):
        path = self.path()
        done = run(COLLBENCH, "allreduce", "--ranks", "2", "--size", "1K", *QUICK, "--trace", path,
                   env={"COLLBENCH_WRONG": "1:3"})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("wrong elements", done.stderr)


class Simulated(Case):
    def test_a_ring_of_four(self):
        """All that is known in closed form: 2 (n - 1) rounds of alpha + S/n/beta, each waited for
        by the whole chain."""
        timeline, text = self.simulate("allreduce", "--algo", "ring", "--ranks", "4", "--size",
                                       "1M", "--alpha", "5us", "--beta", "50GB/s")
        self.assertEqual(len(timeline.steps), 48)
        total = 6 * (5 + (1 << 18) / 50e3)
        self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in timeline.operations), total, 5)
        self.assertEqual(timeline.about["source"], "simulated")
        chain = {(e["pid"], e["args"]["group"]) for e in timeline.steps if e["args"]["last_chain"]}
        self.assertEqual(len(chain), 7)
        self.assertIn("(6 waited for)", text)
        for rank in range(4):
            waits = [e for e in timeline.waits if e["pid"] == rank]
            self.assertAlmostEqual(sum(e["dur"] for e in waits), total, 5)

    def test_lanes_and_work(self):
        timeline, _ = self.simulate("allreduce", "--algo", "ring", "--ranks", "5", "--size", "1M",
                                    "--channels", "3", "--gamma", "20GB/s", "--slice", "64K",
                                    "--overhead", "1us")
        self.assertEqual({e["tid"] for e in timeline.steps}, {0, 1, 2})
        for e in timeline.steps:
            if e["args"]["kind"] != "recv": # which takes no time in this model
                self.assertGreater(e["dur"], 0, e)

    def test_what_must_be_given(self):
        path = self.path()
        done = run(COMMSIM, "coll", "allreduce", "-b", "8", "-e", "64", "-f", "2", "--algo", "all",
                   "--trace", path)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--size", done.stderr)
        self.assertIn("--algo", done.stderr)
        self.assertFalse(os.path.exists(path))

    def test_files(self):
        path = self.path()
        with open(path, "w", encoding="utf-8") as text:
            text.write("kept")
        done = run(COMMSIM, "coll", "allreduce", "--size", "1K", "--trace", path)
        self.assertEqual(done.returncode, 2)
        with open(path, encoding="utf-8") as text:
            self.assertEqual(text.read(), "kept")


class Both(Case):
    def test_the_same_steps(self):
        """Of every algorithm: only the clock is a model, never the steps."""
        for operation in OPERATIONS:
            report = json.loads(self.fine(COLLBENCH, operation, "--ranks", "2", "--size", "64",
                                          "--algo", "all", "-n", "2", "--repeat-check", "--json",
                                          "-").stdout)
            algos = {row["algo"] for row in report["rows"]}
            self.assertGreater(len(algos), 0)
            for algo in sorted(algos):
                for ranks in ("3", "4"):
                    call = [operation, "--algo", algo, "--ranks", ranks, "--size", "50000",
                            "--slice", "4K", "--wire", "staged"]
                    measured, _ = self.measure(*call)
                    simulated, _ = self.simulate(*call)
                    self.assertEqual(sorted(map(identity, measured.steps)),
                                     sorted(map(identity, simulated.steps)), call)
                    self.assertGreater(len(measured.steps), 0)


class Repeats(Case):
    def report(self, *args, code=0, env=None):
        done = run(COLLBENCH, *args, "--repeat-check", "--json", "-", env=env)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return json.loads(done.stdout, parse_constant=reject), done.stderr

    def test_the_same_bits(self):
        """On all ranks and in all runs, of every algorithm and operator."""
        for operation in OPERATIONS:
            for ranks in ("3", "4"):
                document, _ = self.report(operation, "--ranks", ranks, "-b", "0", "-e", "4K", "-f",
                                          "16", "-d", "all", "-o", "all", "--algo", "all", "-n",
                                          "3")
                alike = operation in ("allreduce", "allgather", "broadcast")
                for row in document["rows"]:
                    self.assertEqual(row["ranks"], "same" if alike else None, row)
                    self.assertEqual((row["runs"], row["nruns"]), ("same", 3), row)
                self.assertEqual(document["summary"]["repeatable"], True)

    def test_only_the_root_has_an_output(self):
        """Of reduce and gather; what lies in the others' buffers is not compared."""
        for operation in ("reduce", "gather"):
            document, _ = self.report(operation, "--ranks", "3", "--size", "960", "-r", "1",
                                      "--algo", "direct", "-n", "2")
            self.assertEqual([row["vs_first"] for row in document["rows"]], ["first", "same"])
            self.assertEqual(len({row["hash"] for row in document["rows"]}), 1)

    def test_other_algorithms_round_otherwise(self):
        """The data tell orders of addition apart; where sums are exact, nothing differs."""
        document, _ = self.report("allreduce", "--ranks", "4", "--size", "64K", "-d", "all", "-o",
                                  "sum,max", "--algo", "ring,tree", "-n", "2")
        self.assertEqual(len(document["rows"]), 12 * 2 * 2 * 2)
        for row in document["rows"]:
            rounds = "int" not in row["type"] and row["redop"] == "sum" and row["algo"] == "tree"
            first = row["algo"] == "ring" and row["placement"] == "out of place"
            self.assertEqual(row["vs_first"],
                             "first" if first else "differs" if rounds else "same", row)
            self.assertEqual(row["differ_elements"] > 0, rounds, row)
            self.assertEqual(row["max_ulp"] > 0, rounds, row)
            self.assertAlmostEqual(row["differ_pct"], 100 * row["differ_elements"]
                                   / row["count_elements"], 6)

    def test_launches_can_be_compared(self):
        """Hashes: of the same call the same in every launch, of others not."""
        call = ["allreduce", "--ranks", "3", "-b", "4", "-e", "4K", "-f", "4", "-n", "2", "--algo",
                "ring"]
        hashes = [[(row["size_B"], row["placement"], row["hash"]) for row in
                   self.report(*call, *more)[0]["rows"]]
                  for more in ([], ["--ranks-as", "threads"], ["--buffers", "private"])]
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(hashes[0], hashes[2])
        self.assertEqual(len({h for _, _, h in hashes[0]}), len(hashes[0]) // 2)
        self.assertTrue(all(re.fullmatch("[0-9a-f]{16}", h) for _, _, h in hashes[0]))

    def test_a_planted_difference(self):
        """One element of one rank; also the last one of an output longer than the window."""
        for size, element in (("64K", 16383), ("1M", 262143), ("4", 0)):
            for operation in ("allreduce", "broadcast"):
                document, errors = self.report(operation, "--ranks", "3", "--size", size, "-n", "2",
                                               code=1, env={"COLLBENCH_WRONG": f"1:{element}"})
                self.assertEqual(len(document["rows"]), 2)
                for row in document["rows"]:
                    self.assertEqual(row["ranks"], "1 differ", row)
                    self.assertEqual(row["ranks_differ_elements"], 1, row)
                    self.assertEqual(row["runs"], "same", row)
                self.assertEqual(document["summary"]["repeatable"], False)
                self.assertIn("1 of 3 ranks", errors)

    def test_a_planted_difference_of_rank_0(self):
        """Then all others are unlike it."""
        document, _ = self.report("allreduce", "--ranks", "4", "--size", "1K", "-n", "2", code=1,
                                  env={"COLLBENCH_WRONG": "0:7"})
        self.assertEqual(document["rows"][0]["ranks"], "3 differ")
        self.assertEqual(document["rows"][0]["ranks_differ_elements"], 3)


if __name__ == "__main__":
    COLLBENCH, COMMSIM = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
