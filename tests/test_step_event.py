#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bare command with the event engine: its tables sum up, its pictures show the step, its faults
are felt, and its advice holds when it is followed.

Usage: test_step_event.py PROGRAM [unittest arguments]"""

import collections
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
PIPELINE = "--topo dgx2x8 --strategy tp2pp4 --global-batch 16 --step event"
FSDP = "--topo dgx-h100x2 --strategy fsdp --global-batch 64 --step event"
ZERO = "--topo dgx-h100x2 --strategy tp4zero1 --global-batch 64 --step event"


class Case(unittest.TestCase):
    def run_it(self, line, code=0):
        done = subprocess.run([PROGRAM, *line.split()], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, code, f"{line}\n{done.stdout}\n{done.stderr}")
        return done

    def json(self, line):
        return json.loads(self.run_it(line + " --json -").stdout)

    def step(self, line):
        return self.json(line)["meta"]["step_s"]

    def refused(self, line, *words):
        done = self.run_it(line, 2)
        for word in words:
            self.assertIn(word, done.stderr, line)
        self.assertEqual(done.stdout, "", line)


class Tables(Case):
    def test_parts_sum_to_the_step(self):
        for line in (PIPELINE, FSDP, ZERO, PIPELINE + " --detail op"):
            answer = self.json(line)
            step_ms = 1e3 * answer["meta"]["step_s"]
            parts = {row["key"]: row["time_ms"] for row in answer["rows"]}
            self.assertAlmostEqual(parts.pop("step"), step_ms, 6)
            self.assertAlmostEqual(sum(parts.values()), step_ms, delta=1e-8 * step_ms)
            for stage in answer["stages"]:
                keys = [k for k in stage if k.endswith("_ms") and
                        k not in ("compute_ms", "idle_ms", "at_peak_ms")]
                self.assertAlmostEqual(sum(stage[k] for k in keys), step_ms, delta=1e-8 * step_ms)
                self.assertAlmostEqual(stage["compute_ms"] + stage["idle_ms"], step_ms, 6)
                self.assertLessEqual(stage["at_peak_ms"], step_ms)
            worst = answer["meta"].get("slowest_stage", 0)
            least = min(stage["bubble_ms"] for stage in answer["stages"])
            self.assertEqual(answer["stages"][worst]["bubble_ms"], least)
            self.assertEqual(answer["stages"][worst]["bubble_ms"], parts.get("bubble", 0))

    def test_text_csv_and_json_agree(self):
        answer = self.json(PIPELINE)
        text = self.run_it(PIPELINE).stdout
        self.assertEqual(len(answer["stages"]), 4)
        for stage in answer["stages"]:
            self.assertRegex(text, rf"(?m)^ +{stage['stage']} +8\.0 +{stage['compute_ms']:.1f} ")
        tables = self.run_it(PIPELINE + " --csv -").stdout.split("\n\n")
        self.assertEqual([table.split(",")[0] for table in tables][:3], ["part", "stage", "stage"])
        stages = list(csv.DictReader(tables[1].splitlines()))
        self.assertEqual([float(row["bubble_ms"]) for row in stages],
                         [row["bubble_ms"] for row in answer["stages"]])

    def test_files_hold_what_stdout_would(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("a.json", "a.csv")]
            line = PIPELINE + " --ops --timeline"
            self.run_it(f"{line} --json {paths[0]} --csv {paths[1]}")
            with open(paths[0], encoding="utf-8") as file:
                written = json.load(file)
            self.assertEqual(written, self.json(line))
            self.assertEqual(list(written)[:6],
                             ["meta", "rows", "stages", "traffic", "advice", "ops"])
            with open(paths[1], encoding="utf-8") as file:
                self.assertEqual(file.read(), self.run_it(line + " --csv -").stdout)

    def test_traffic(self):
        """Two ways to count what a rank sends; what leaves a host is a part of it."""
        rows = self.json(ZERO)["traffic"]
        links = {row["name"]: row["bytes_GB"] for row in rows if row["by"] == "link"}
        axes = {row["name"]: row["bytes_GB"] for row in rows if row["by"] == "axis"}
        self.assertEqual(set(axes), {"tp", "dp"})
        self.assertGreater(links["nvlink"], 0)
        self.assertGreater(links["nic"], 0)
        # 4 all-reduces a layer and micro-batch, of 8192 x 4096 x 2 bytes: 2 (n-1)/n of each
        least = 32 * 16 * 4 * 8192 * 4096 * 2 * 2 * 3 / 4 / 1e9
        self.assertGreaterEqual(axes["tp"], 0.999 * least)

    def test_operators(self):
        for line in (PIPELINE, FSDP):
            answer = self.json(line + " --ops")
            ops = answer["ops"]
            self.assertAlmostEqual(sum(row["share_pct"] for row in ops), 100, 6, line)
            self.assertAlmostEqual(sum(row["charged_ms"] for row in ops),
                                   1e3 * answer["meta"]["step_s"], 5, line)
            worst = answer["stages"][answer["meta"].get("slowest_stage", 0)]
            self.assertAlmostEqual(sum(row["flops_TFLOP"] for row in ops) /
                                   worst["executed_TFLOP"], 1, 6, line)
            for row in ops:
                if row["efficiency_pct"] is not None:
                    self.assertLess(row["efficiency_pct"], 100, row)
                if row["m"]:
                    self.assertAlmostEqual(row["flops_TFLOP"], row["count"] * row["batch"] * 2e-12 *
                                           row["m"] * row["n"] * row["k"] *
                                           (2 if row["pass"] == "B+W" and not row["recomputed"]
                                            and row["flops_TFLOP"] > 3e-12 * row["count"] *
                                            row["batch"] * row["m"] * row["n"] * row["k"] else 1),
                                           6, row)
            self.assertTrue({"F", "B+W"} <= {row["pass"] for row in ops})

    def test_operators_in_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, read in (("ops.csv", lambda f: list(csv.DictReader(f))),
                               ("ops.json", lambda f: json.load(f)["rows"])):
                path = os.path.join(folder, name)
                self.run_it(f"{PIPELINE} --ops {path}")
                with open(path, encoding="utf-8") as file:
                    shares = [float(row["share_pct"]) for row in read(file)]
                self.assertAlmostEqual(sum(shares), 100, 6)
                self.refused(f"{PIPELINE} --ops {path}", "exists and is kept")


class Pictures(Case):
    def test_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            for line in (PIPELINE, FSDP, ZERO, PIPELINE + " --detail op",
                         PIPELINE + " --schedule zb", PIPELINE + " --vpp 2"):
                path = os.path.join(folder, "trace.json")
                step_us = 1e6 * self.step(f"{line} --trace {path} --overwrite")
                with open(path, encoding="utf-8") as file:
                    events = json.load(file)["traceEvents"]
                lanes = collections.defaultdict(list)
                for event in events:
                    if event["ph"] == "X":
                        lanes[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
                names = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
                self.assertEqual(names, set(lanes), line)
                for spans in lanes.values():
                    at = 0
                    for start, span in sorted(spans):
                        self.assertGreaterEqual(start, at - 2e-6, line)
                        self.assertGreater(span, 0)
                        at = start + span
                end = max(start + span for spans in lanes.values() for start, span in spans)
                self.assertAlmostEqual(end, step_us, delta=1e-5, msg=line)
                micro = {e["args"]["micro_batch"] for e in events
                         if e["ph"] == "X" and e["name"].startswith("F ")}
                self.assertEqual(micro, set(range(len(micro))), line)
            self.refused(f"{PIPELINE} --trace {path}", "exists and is kept")

    def lines(self, line):
        text = self.run_it(line + " --timeline").stdout
        self.assertIn("timeline of a step", text)
        return re.findall(r"(?m)^# (stage \d+) (\S+(?: \d+)?) +([^ \n]+)$", text), text

    def test_characters(self):
        rows, text = self.lines(PIPELINE)
        compute = [chart for _, lane, chart in rows if lane == "compute"]
        self.assertEqual(len(compute), 4)
        self.assertEqual(len({len(chart) for _, _, chart in rows}), 1)
        self.assertTrue(all(len(line) <= 100 for line in text.splitlines()
                            if line.startswith("# stage")))
        for chart in compute:
            self.assertRegex(chart, r"^[FBoh:.\d-]+$")
            self.assertIn("F", chart)
            self.assertIn("B", chart)
        self.assertRegex(compute[0], r"^F0")        # the first stage begins,
        self.assertRegex(compute[3], r"^[.:]+F")    # the last one waits for it
        self.assertLess(compute[0].count("."), 100)
        gradients = [chart for _, lane, chart in self.lines(PIPELINE + " --schedule zb")[0]
                     if lane == "compute"]
        self.assertTrue(all("W" in chart for chart in gradients))

    def test_drawing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "step.gp")
            self.run_it(f"{PIPELINE} --timeline {path}")
            with open(path, encoding="utf-8") as file:
                script = file.read()
            for word in ("stage 0 compute", "stage 3 compute", "forward", "backward", "boxxyerror"):
                self.assertIn(word, script)
            self.refused(f"{PIPELINE} --timeline {path}", "exists and is kept")
            self.refused(f"{PIPELINE} --timeline {path}.jpg", "a picture ends in .png or .svg")


class Faults(Case):
    def test_are_felt(self):
        plain = self.step(PIPELINE)
        for fault in ("gpu3=0.8", "host1/gpu3=0.8", "host*/gpu*=0.8", "host0/nic*=0.05",
                      "link:host0/gpu2=0.1"):
            answer = self.json(f"{PIPELINE} --fault {fault}")
            self.assertGreater(answer["meta"]["step_s"], plain, fault)
            self.assertTrue(any(note.startswith("fault: ") for note in answer["notes"]), fault)
        for nic in range(8): # a stage boundary is crossed there by 0..3, back by 4..7
            slow = self.step(f"{PIPELINE} --fault host0/nic{nic}=0.1")
            self.assertGreater(slow, 1.005 * plain, nic)
            if nic % 4 == 0:
                full = self.step(f"{PIPELINE} --fault host0/nic{nic}=0.1 --net full")
                self.assertAlmostEqual(slow, full, delta=0.003 * full)
        rows = ("--topo dgx-h100x4 --strategy tp2pp8@order=tp,pp,dp --global-batch 16 "
                "--step event --fault host2/nic0=0.02")  # a pipeline on two hosts, and another
        slow = self.step(rows)
        self.assertAlmostEqual(slow, self.step(rows + " --net full"), delta=0.003 * slow)
        every = self.json(f"{PIPELINE} --fault gpu*=0.5")
        self.assertLess(every["meta"]["step_s"], 2 * plain)
        self.assertGreater(every["meta"]["step_s"], 1.4 * plain)
        shared = "--topo dgx-a100x2 --strategy fsdp --seq 1K --global-batch 64 --step event"
        self.assertGreater(self.step(shared + " --other-job 0.5"), 1.2 * self.step(shared))

    def test_are_refused_together(self):
        self.refused(f"{PIPELINE} --fault gpu16=0.5 --fault gpu0=1.5 --fault host2/gpu0=.5",
                     "there is no accelerator 16; they are 0..15", "a speed of 1.5",
                     "there is no host 2; hosts are 0..1")
        self.refused(f"{PIPELINE} --fault host0/nic99=0.5", "nic99")
        for fault in ("host9/nic3=0.5", "link:host9/gpu2=0.5"):
            self.refused(f"{PIPELINE} --fault {fault}", "there is no host9; hosts are 0..1")
            self.refused(f"{PIPELINE} --fault {fault}".replace(" --step event", ""), "host9")
        self.refused(f"{PIPELINE} --fault link:host0/gpu9=0.5", "gpu9")
        self.refused(f"{PIPELINE} --fault broken", "a fault is")
        for share in ("0.99", "1", "100%"):
            self.refused(f"{PIPELINE} --other-job {share}", "0..0.95")
        self.refused(f"{PIPELINE} --fault broken", "gpu3=0.8", "link:host0/gpu2=0.5")

    def test_what_they_cost_comes_first(self):
        """The first line of advice is the same step with nothing broken."""
        plain = self.step(PIPELINE)
        for fault in ("--fault tcp", "--fault gpu*=0.8", "--fault gpu3=0.5 --other-job 0.3",
                      "--other-job 0.5"):
            answer = self.json(f"{PIPELINE} {fault}")
            self.assertAlmostEqual(answer["meta"]["healthy_step_s"], plain, 9, fault)
            advice = [note for note in answer["notes"]
                      if re.match("without what is|quicker|would fit|no single", note)]
            self.assertTrue(advice[0].startswith("without what is broken"), advice)
        self.assertNotIn("healthy_step_s", self.json(PIPELINE + " --other-job 0")["meta"])
        self.assertEqual(self.step(PIPELINE + " --other-job 0"), plain)
        self.assertIn("TCP through", self.json(PIPELINE + " --fault tcp")["meta"]["limit"])

    def test_stragglers_are_named(self):
        notes = self.json(PIPELINE + " --fault gpu15=0.8 --fault gpu2=0.9")["notes"]
        self.assertIn("the others wait for accelerator 15 (host1/gpu7), at 0.8 of the speed",
                      notes)
        everyone = self.json(PIPELINE + " --fault gpu*=0.8")["notes"]
        self.assertNotIn("others wait for acc", " ".join(everyone))
        self.assertNotIn("others wait for acc", " ".join(self.json(PIPELINE)["notes"]))

    def test_many_faults_are_one_line(self):
        notes = self.json(PIPELINE + " --fault gpu*=0.8")["notes"]
        faults = [note for note in notes if note.startswith("fault: ")]
        self.assertEqual(len(faults), 1, faults)
        self.assertIn("accelerators 0 (host0/gpu0) to 15 (host1/gpu7)", faults[0])

    def test_no_more_passes_than_can_run(self):
        self.refused("--topo dgx-h100x8 --model llama3-8b --strategy pp8 --schedule dualpipev "
                     "--accumulation 200000 --step event", "nearest: 131072 micro-batches")
        for schedule in ("1f1b", "zb"):  # periods repeat
            answer = self.json("--topo dgx-h100x8 --model llama3-8b --strategy pp8 --step event "
                               f"--accumulation 1000000 --schedule {schedule}")
            self.assertGreater(answer["meta"]["step_s"], 1e5)

    def test_closed_forms_know_none(self):
        for option in ("--fault gpu0=.5", "--ops", "--timeline", "--trace x.json", "--detail op",
                       "--other-job .3"):
            self.refused(f"--topo dgx2x8 --step closed {option}", "needs --step event")


class Advice(Case):
    OPTIONS = {"micro-batch", "recompute", "schedule", "bucket-size", "prefetch", "cp-comm",
               "offload"}

    def options(self, change):
        """A change as options beside the strategy's word; None: it is about the machine."""
        options = []
        for part in change.split(", "):
            name, _, value = part.partition(" ")
            if name == "NICs":
                return None
            if "=" in part:
                options.append("--feature " + part)
            elif name in self.OPTIONS:
                options.append(f"--{name} {value}")
        return " ".join(options)

    def test_what_fits(self):
        """Where the job does not fit, all that is said to fit was tried, and nothing says else."""
        cases = (("--topo dgx-a100x8 --model llama2-70b --strategy fsdp8x8 --framework fsdp "
                  "--recompute full", "fsdp-shards 64"),
                 ("--topo dgx-a100x8 --model llama2-70b --strategy tp8pp2", "zero 1|sp"),
                 ("--topo dgx-h100 --gpus 1 --model llama2-7b --seq 2048 --global-batch 16",
                  "offload optimizer"))
        for line, change in cases:
            answer = self.json(line)
            self.assertEqual(answer["meta"]["verdict"], "does not fit")
            text = "\n".join(answer["notes"])
            self.assertNotIn("to fit:", text)
            self.assertNotIn("nothing that was tried", text)
            self.assertIn("--lora 16", text)
            self.assertTrue(answer["advice"])
            self.assertRegex(" ".join(a["change"] for a in answer["advice"]), change, line)
            self.assertTrue(all(a["verdict"] != "does not fit" for a in answer["advice"]), line)
            self.assertIn("to fit: ", self.run_it(line + " --step closed").stdout)
        answer = self.json("--topo dgx-h100 --gpus 1 --model llama3-405b")
        self.assertIn("nothing that was tried", "\n".join(answer["notes"]))

    def test_what_a_framework_has(self):
        """ZeRO-3 is its own name in DeepSpeed, and its pipeline has ZeRO-1 at most."""
        self.refused("--topo dgx-h100 --framework deepspeed --strategy tp4pp2zero2", "zero-level",
                     "nearest: zero1")
        for strategy in ("zero3 --recompute full --offload optimizer", "tp4pp2", "dp8 --gpus 8"):
            answer = self.json("--topo dgx-h100 --model llama2-7b --framework deepspeed "
                               "--global-batch 64 --strategy " + strategy)
            for advice in answer["advice"]:
                self.assertNotRegex(advice["change"] + advice["strategy"],
                                    "fsdp[0-9]|schedule|tp-overlap|ep-overlap", strategy)

        for more, has in (("", False), (" --feature schedules=zero-bubble", True),
                          (" --framework torchtitan", True)):
            answer = self.json(PIPELINE + more)
            self.assertEqual("schedule" in str(answer["advice"]), has, more)

    def test_two_changes_are_both_needed(self):
        for line, change in (("--topo pcie4-4090 --gpus 1 --model llama3-8b --seq 4096 --lora 16",
                              "recompute full"), ("--topo dgx-h100x2 --seq 1.5K", "zero 1")):
            changes = [advice["change"] for advice in self.json(line)["advice"]]
            self.assertIn(change, changes)
            self.assertFalse([c for c in changes if c != change and change in c], changes)

    def test_all_that_these_gpus_allow(self):
        """No two changes make it fit, but another strategy does; and what was tried is said."""
        line = ("--topo dgx-h100x8 --model llama3-8b --strategy cp8 --seq 1M --global-batch 16 "
                "--recompute full")
        advice = self.json(line)["advice"][0]
        followed = self.json(line.replace("cp8", advice["strategy"], 1))["meta"]
        self.assertNotEqual(followed["verdict"], "does not fit")
        self.assertAlmostEqual(followed["memory_reserved_GiB"], advice["memory_reserved_GiB"], 6)
        big = "--model llama3.1-405b --strategy fsdp --framework fsdp --seq 4096"
        text = self.run_it("--topo dgx-h100x2 " + big).stdout
        self.assertIn("320 whole strategies", text)
        self.assertIn("2048 GiB of a host", text)
        self.assertIn("GiB of each host's memory", self.run_it("--topo dgx-h200x2 " + big).stdout)
        full = self.run_it(f"--topo dgx-h100x2 {big} --recompute full "
                           "--offload optimizer,weights").stdout
        self.assertIn("memory: does not fit in the host's memory", full)
        self.assertIn("of a host in all, of 2048 GiB", full)

    def test_the_host_stays(self):
        """CUDA graphs are not said to save what the host does once a step."""
        answer = self.json("--topo dgx-h100 --gpus 1 --model gpt2 --global-batch 8 --seq 1024")
        graphs = [a for a in answer["advice"] if a["change"] == "graphs=full"]
        self.assertEqual(len(graphs), 1)
        followed = self.step("--topo dgx-h100 --gpus 1 --model gpt2 --global-batch 8 --seq 1024 "
                             "--feature graphs=full")
        self.assertGreater(graphs[0]["step_s"], followed + .02)

    def test_shards_within_hosts(self):
        """Hybrid sharding is found where gathers over hosts are slow, and is kept where it is."""
        slow = "--topo p4d-a100x8 --model llama2-7b --seq 512 --global-batch 64 --step event "
        answer = self.json(slow + "--framework deepspeed --strategy zero3")
        self.assertIn("fsdp-shards 8", [advice["change"] for advice in answer["advice"]])
        for word, kept in (("zero1shards8", "zero1shards8"), ("fsdp8x8", "fsdp8x")):
            answer = self.json(f"{slow} --micro-batch 1 --strategy {word}")
            for advice in answer["advice"]:
                if not re.search("zero|fsdp", advice["change"]):
                    self.assertIn(kept, advice["strategy"])
            self.assertTrue(answer["advice"])

    def test_holds_when_followed(self):
        followed = 0
        for base in ("--topo dgx2x8 --global-batch 16 --step event --strategy tp2pp4",
                     "--topo dgx-h100x2 --global-batch 64 --step event --strategy tp4zero1",
                     "--topo dgx-h100 --global-batch 64 --step event --strategy fsdp "
                     "--recompute full",
                     "--topo dgx-h100x4 --model llama3-70b --global-batch 64 --step event "
                     "--strategy tp8pp2",
                     "--topo p4d-a100x8 --model llama2-7b --framework deepspeed --seq 512 "
                     "--global-batch 64 --step event --strategy zero3",
                     "--topo pcie4-4090x4 --model gpt2-xl --seq 512 --global-batch 32 "
                     "--step event --strategy fsdp4x4"):
            answer = self.json(base)
            step = answer["meta"]["step_s"]
            self.assertLessEqual(len(answer["advice"]), 2)
            text = " ".join(answer["notes"])
            for advice in answer["advice"]:
                self.assertIn(advice["change"], text)
                self.assertNotEqual(advice["verdict"], "does not fit")
                if answer["meta"]["verdict"] != "does not fit":
                    self.assertLess(advice["step_s"], step, base)
                self.assertAlmostEqual(advice["gain_pct"], 100 * (1 - advice["step_s"] / step), 6)
                options = self.options(advice["change"])
                if options is None:
                    continue
                line = re.sub(r"--strategy \S+", "--strategy " + advice["strategy"], base)
                if "recompute" in options:
                    line = re.sub(r"--recompute \S+", "", line)
                other = self.json(f"{line} {options}")["meta"]
                if "graphs=full" in options: # the host's work of a step is not promised away
                    self.assertLess(other["step_s"], advice["step_s"])
                else:
                    self.assertAlmostEqual(other["step_s"] / advice["step_s"], 1, 9,
                                           advice["change"])
                self.assertAlmostEqual(other["memory_reserved_GiB"],
                                       advice["memory_reserved_GiB"], 6, advice["change"])
                followed += 1
        self.assertGreaterEqual(followed, 4)


class Measured(Case):
    def test_what_a_measured_step_says(self):
        for time, words in (("20ms", "above the peak of the accelerators"),
                            ("1.4s", "as predicted, within the error band"),
                            ("1.0s", "quicker than the error band"),
                            ("3.3s", "slower than the error band")):
            text = self.run_it(f"{PIPELINE} --measured-time {time}").stdout
            self.assertEqual(re.findall("(?m)^# measured: ([a-z ,]*)", text)[-1][:len(words)],
                             words, time)
        self.assertRegex(text, r"5[78]\.\d % below that time")
        speed = re.search(r"--fault gpu\*=([0-9.]*)", text)[1]
        self.assertAlmostEqual(self.step(f"{PIPELINE} --fault gpu*={speed}"), 3.3, delta=.33)

    def test_is_above_zero(self):
        for words in ("--measured-time 0s", "--measured-rate 0",
                      "--measured-time 1s --measured-rate 9"):
            self.refused(f"{PIPELINE} {words}", "give one of the two, above 0")


class Words(Case):
    def test_what_is_refused_or_doubted(self):
        for seq in ("-1", "1e4", "0.3"):
            self.refused(f"{PIPELINE} --seq {seq}", "is no number of TOKENS", "8K is 8192")
        self.refused(f"{PIPELINE} --recompute norm+norm", "norm stands there twice")
        for words, doubt in (("--recompute mla_up", "the model has no latent attention"),
                             ("--bucket-size 25", "as MiB: 25M"),
                             ("--schedule dualpipev", "megatron has no schedule dualpipev")):
            self.assertIn(doubt, "\n".join(self.json(f"{PIPELINE} {words}")["notes"]))
        done = self.run_it("--topo dgx-h100x2 --strategy tp3 --global-batch 128", 2)
        self.assertIn("world-size: ", done.stderr)
        self.assertNotIn("global-batch: ", done.stderr)

    def test_nvidia_smi_shows_more_than_the_pool(self):
        for line in (PIPELINE, FSDP, ZERO):
            meta = self.json(line)["meta"]
            self.assertGreaterEqual(meta["memory_nvidia_smi_GiB"],
                                    meta["memory_reserved_GiB"] + .5)


class Offload(Case):
    def test_processors_need_their_memory(self):
        """Adam on the host reads and writes 30 bytes for each parameter, at the memory's rate."""
        line = ("--topo dgx-h100 --model llama2-70b --strategy fsdp8 --framework fsdp --global-batch "
                "64 --recompute full --offload optimizer,weights")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            self.run_it(f"{line} --trace {path}")
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
        longest = max(e["dur"] for e in events if e.get("name") == "optimizer")
        self.assertGreaterEqual(longest / 1e6, 68.9e9 / 8 * 30 / (2 * 307.2e9 / 8) * .99)
        self.assertIn("GiB of a host in all", self.run_it(line).stdout)

    def test_who_gathers_to_save(self):
        base = "--topo dgx-h100 --model llama2-7b --seq 2048 --global-batch 16 --strategy "
        for strategy, said in (("dp8", False), ("dp1 --gpus 1 --lora 16", False)):
            self.assertEqual("saving:" in self.run_it(base + strategy).stdout, said, strategy)
        self.assertIn("saving:", self.run_it("--topo dgx-h100 --model llama2-70b --strategy fsdp8 "
                                             "--framework fsdp").stdout)


class Options(Case):
    def test_traces_are_files(self):
        self.refused(PIPELINE + " --trace -", "--trace -", "a file of its own")

    def test_the_same_number_twice(self):
        plain = self.step("--topo dgx-h100x2 --strategy tp8")
        self.assertEqual(self.step("--topo dgx-h100x2 --gpus 16 --nodes 2 --strategy tp8"), plain)
        self.refused("--topo dgx-h100x2 --gpus 8 --strategy tp8", "give one of the two")

    def test_tokens_are_no_bytes(self):
        for option in ("--seq", "--packed"):
            done = self.run_it(f"{PIPELINE} {option} 0", 2)
            self.assertIn("accepted: 1 to 9223372036854775807 TOKENS", done.stderr)
        self.assertEqual(self.step(PIPELINE + " --seq 8K"), self.step(PIPELINE + " --seq 8192"))

    def test_idle_ones_are_told(self):
        for option in ("--prefetch 2", "--cp-comm ring", "--tp-tiles 4", "--moe-imbalance 1.5"):
            name = option.split()[0][2:]
            answer = self.json(f"{PIPELINE} {option}")
            self.assertTrue(any(note.startswith(f"warning: {name} has no effect")
                                for note in answer["notes"]), option)
            self.assertEqual(answer["meta"]["step_s"], self.step(PIPELINE), option)
        notes = self.json(FSDP + " --prefetch 2")["notes"]
        self.assertFalse(any("no effect" in note for note in notes))

    def test_zero_bubble_has_one_name(self):
        short, whole = (self.json(f"{PIPELINE} --schedule {name}") for name in ("zb", "zb-1p"))
        self.assertEqual(short, whole)
        self.assertIn("schedule zb-1p", "\n".join(whole["notes"]))
        lines = [self.run_it(f"pipeline --schedule {name}").stdout for name in ("zb", "zb-1p")]
        self.assertEqual(*lines)


class Details(Case):
    def test_levels_agree(self):
        for line in (PIPELINE, FSDP, ZERO):
            chunk, op = self.step(line), self.step(line + " --detail op")
            self.assertAlmostEqual(op / chunk, 1, delta=.005, msg=line)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
