#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transcripts of commsim: what newcomers to the simulator tripped over, as commands and what must
come out.

Usage: test_commsim.py PROGRAM [unittest arguments]"""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "topologies")


class Case(unittest.TestCase):
    def run_it(self, line, code=0, **kwargs):
        """Runs a command line; its exit status must be `code`."""
        done = subprocess.run([PROGRAM, *line.split()], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=60, **kwargs)
        self.assertEqual(done.returncode, code, f"{line}\n{done.stdout}\n{done.stderr}")
        return done

    def refused(self, line, *words, code=2, **kwargs):
        done = self.run_it(line, code, **kwargs)
        for word in words:
            self.assertIn(word, done.stderr, line)
        return done

    def meta(self, line):
        return json.loads(self.run_it(line + " --json -").stdout)["meta"]

    def rows(self, line):
        """Of the first table; others follow behind an empty line."""
        first = self.run_it(line + " --csv -").stdout.split("\n\n")[0]
        return list(csv.DictReader(first.splitlines()))


class Network(Case):
    def oversubscribed(self, ratio, folder):
        with open(os.path.join(SHIPPED, "dgx-h100.json"), encoding="utf-8") as file:
            topology = json.load(file)
        topology["hosts"] = 4
        topology["network"]["oversubscribed"] = ratio
        topology["network"]["leaf_hosts"] = 1
        path = os.path.join(folder, f"over{ratio}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(topology, file)
        return path

    def test_every_sharding_feels_the_network(self):
        with tempfile.TemporaryDirectory() as folder:
            one, eight = self.oversubscribed(1, folder), self.oversubscribed(8, folder)
            for strategy in ("dp32", "zero1", "zero3", "fsdp", "fsdp8x4"):
                line = f"--model llama3-70b --strategy {strategy} --topo "
                before, after = self.meta(line + one), self.meta(line + eight)
                self.assertGreater(after["step_s"], 1.01 * before["step_s"], strategy)
            self.assertIn("1:8 oversubscribed", after["cluster"])
            self.assertNotIn("oversubscribed", before["cluster"])
            inside = "--gpus 8 --strategy fsdp --topo "
            self.assertEqual(self.meta(inside + one)["step_s"], self.meta(inside + eight)["step_s"])


class Numbers(Case):
    def test_one_mfu(self):
        """step and compare divide by the same peak, and name it."""
        for topo, precision, unit in (("dgx-h100", "bf16", "bf16"), ("dgx-h100", "fp8", "fp8"),
                                      ("dgx-b200", "mxfp8", "fp8"), ("dgx-b200", "nvfp4", "fp4"),
                                      ("dgx-a100", "tf32", "tf32"), ("dgx-h100", "fp32", "fp32")):
            job = f"--topo {topo} --strategy tp8 --precision {precision}"
            step, row = self.meta(job), self.rows("compare " + job)[0]
            self.assertAlmostEqual(step["mfu_pct"], float(row["mfu_pct"]), 6, job)
            self.assertLess(step["mfu_pct"], 100, job)
            self.assertEqual(step["peak_unit"], unit, job)
            self.assertEqual(row["peak_unit"], unit, job)
            self.assertIn(f"the dense {unit} peak", self.run_it(job).stdout)

    def test_one_nvidia_smi(self):
        for strategy in ("fsdp", "tp8", "dp8zero1", "pp8"):
            job = f"--topo dgx-h100 --strategy {strategy}"
            step, text = self.meta(job), self.run_it("memory " + job).stdout
            found = re.search(r"([\d.]+) reserved .*, ([\d.]+) in nvidia-smi", text)
            reserved, smi = float(found[1]), float(found[2])
            self.assertGreaterEqual(smi, reserved, job)
            self.assertAlmostEqual(step["memory_nvidia_smi_GiB"], smi, delta=0.051)
            self.assertAlmostEqual(step["memory_reserved_GiB"], reserved, delta=0.051)

    def test_zero_levels_hold_ever_less(self):
        """One layer is gathered ahead: Megatron's 500 M parameters are half of the small model."""
        for model in ("llama3-8b", "llama3.2-1b", "mixtral-8x7b"):
            held = [self.meta(f"--topo dgx-h100x2 --model {model} --strategy {s}")
                    ["memory_allocated_GiB"]
                    for s in ("zero0", "zero1", "zero2", "zero3 --prefetch 1")]
            self.assertEqual(held, sorted(held, reverse=True), model)
        one = [self.rows(f"memory --topo dgx-h100 --gpus 1 --strategy {s}")[0]
               for s in ("zero1", "zero2")]
        self.assertEqual(one[0]["peak_GiB"], one[1]["peak_GiB"])
        self.assertEqual(float(one[1]["gathered_GiB"]), 0)

    def test_zero_bubble_needs_micro_batches(self):
        """With one micro-batch the first stage waits for p - 1 forwards and p - 1 backwards."""
        job = "--topo dgx-h100 --strategy pp8 --seq 8K --step closed --schedule "
        left = {}
        for schedule in ("1f1b", "zb", "zb-2p"):
            left[schedule] = [self.bubble(f"{job}{schedule} --accumulation {m}")
                              for m in (1, 4, 8, 14, 15, 64)]
        for schedule in ("zb", "zb-2p"):
            self.assertAlmostEqual(left[schedule][0] / left["1f1b"][0], 2 / 3, 6)
            self.assertEqual(left[schedule], sorted(left[schedule], reverse=True))
        for zb, zb2 in zip(left["zb"], left["zb-2p"]):
            self.assertLessEqual(zb2, zb)
        self.assertGreater(left["zb-2p"][3], 0)
        self.assertEqual(left["zb-2p"][4:], [0, 0])

    def bubble(self, line):
        rows = {row["key"]: float(row["time_ms"]) for row in self.rows(line)}
        return rows.get("bubble", 0)

    def test_machine_factor_is_bounded(self):
        for factor in ("1e308", "0", "-1", "0.05", "11"):
            self.refused(f"--topo dgx-h100 --machine-factor {factor}", "0.1..10")
        self.run_it("--topo dgx-h100 --machine-factor 10")


class Advice(Case):
    def test_remedies_are_legal(self):
        """What "to fit" proposes can be run: with ep it goes without ep, in Megatron."""
        for topo in ("dgx-h100x2", "dgx-h100x4"):
            job = f"--topo {topo} --model mixtral-8x7b --strategy "
            closed = self.run_it(job + "ep4 --step closed").stdout
            note = re.search("to fit: (.*)", closed)[1]
            self.assertIn("fsdp without expert parallelism (ep 1), with full recomputation", note)
            self.refused(job + "ep4fsdp", "nearest: ep 1")
            reserved = self.meta(job + "fsdp --recompute full --step closed")["memory_reserved_GiB"]
            self.assertIn(f"{reserved:.1f} GiB", note)

    def test_proposed_layers_are_legal(self):
        """Each number that stage-ends proposes is taken when it is given."""
        proposed = 0
        for pp, vpp, first, last in ((2, 1, 40, 0), (4, 1, 31, 31), (4, 1, 0, 30), (8, 1, 3, 0),
                                     (4, 2, 12, 2), (4, 2, 4, 2), (5, 1, 31, 0), (2, 2, 40, 0),
                                     (8, 1, 1, 2), (8, 1, 9, 16)):
            line = f"--topo dgx-h100x5 --strategy pp{pp}vpp{vpp} --global-batch 3200 "
            ends = lambda a, b: "".join(f"--{name}-stage-layers {n} " for name, n in
                                        (("first", a), ("last", b)) if n)
            done = self.refused(line + ends(first, last), "stage-ends")
            for number in re.search(r"nearest: ([\d or]+) in", done.stderr)[1].split(" or "):
                both = first and last
                a = vpp if both else int(number) if first else 0
                self.run_it(line + ends(a, int(number) - a if last else 0))
                proposed += 1
        self.assertGreater(proposed, 10)

    def test_bands_only_where_runs_are_alike(self):
        self.assertIn("over 196 published runs", self.run_it("--topo dgx-h100").stdout)
        for line in ("--topo hgx-mi300x", "--topo cpu2 --precision fp32 --model llama3.2-1b",
                     "--topo dgx-h100x1024 --strategy tp8"):
            done = self.run_it(line)
            self.assertIn("no published run of this kind", done.stdout, line)
            self.assertNotIn("error_p90_pct", self.meta(line), line)
        self.assertIn("error_p90_pct", self.meta("--topo dgx-h100"))

    def test_the_largest_part_is_named(self):
        for line in ("tp8", "fsdp", "pp8 --accumulation 1", "dp8"):
            rows = self.rows(f"--topo dgx-h100 --strategy {line}")
            largest = max(rows[:-1], key=lambda row: float(row["time_ms"]))
            text = self.run_it(f"--topo dgx-h100 --strategy {line}").stdout
            limit = re.search("limited by (.*?) is ", text)[1]
            self.assertTrue(limit.endswith(largest["part"]), f"{line}: {limit}")

    def test_wrong_unit(self):
        for topo in ("dgx-a100", "dgx-h100"):
            self.refused(f"--topo {topo} --precision mxfp8", "scales by blocks", "legal: bf16")
        self.refused("--topo dgx1-v100 --precision bf16", "needs a bf16 unit", "legal: fp16")


class Compare(Case):
    def test_baseline_fits(self):
        rows = self.rows("compare --topo dgx-h100 --strategy fsdp,tp8,dp8 --model llama3-8b")
        fits = [row for row in rows if row["memory_verdict"] != "does not fit"]
        self.assertTrue(0 < len(fits) < len(rows))
        self.assertEqual(min(float(row["slower_x"]) for row in fits), 1)
        rows = self.rows("compare --topo dgx-h100 --strategy dp8,tp2 --model llama3-405b")
        self.assertEqual(min(float(row["slower_x"]) for row in rows), 1)

    def test_compare_tells_once(self):
        """What a strategy breaks on several clusters alike is one sentence."""
        done = self.refused("compare --topo dgx-h100x2,dgx-a100x2 --strategy tp3,tp8 "
                            "--global-batch 128", "dgx-h100x2,dgx-a100x2 tp3: world-size: ")
        self.assertEqual(done.stderr.count("world-size"), 1, done.stderr)
        self.assertEqual(done.stdout.count("not possible"), 2)

    def test_faults_before_the_table(self):
        line = "compare --topo {} --strategy fsdp,tp8 {}"
        done = self.refused(line.format("nowhere,dgx-h100", ""), "nowhere")
        self.assertEqual(done.stderr.count("unknown topology"), 1)
        self.assertEqual(done.stdout.count("not possible"), 2)
        done = self.refused(line.format("dgx-h100,,dgx-a100", ""), "name 2 of 3")
        self.assertEqual(done.stdout, "")
        done = self.refused(line.format("dgx-h100", "--plot c.pdf"), ".png", "c.pdf")
        self.assertEqual(done.stdout, "")


class Collective(Case):
    """commsim coll on a cluster."""

    def busbw(self, line):
        return float(self.rows("coll " + line)[-1]["out_of_place_busbw_GBps"])

    def test_says_what_it_is(self):
        done = self.run_it("coll allreduce --topo dgx-h100x4 --size 1G").stdout
        for words in ("SIMULATED allreduce of 32 rank(s) as NCCL", "nothing was measured",
                      "cluster dgx-h100x4: 4 hosts x 8 H100-80GB, NVSwitch 450 GB/s", "data/network.csv",
                      "%ceiling", "limited by"):
            self.assertIn(words, done)
        self.assertIn("of 32 ranks", self.run_it("coll allgather --topo dgx-h100x4 --size 1G").stdout)
        meta = self.meta("coll allreduce --topo dgx-h100x4 --size 1G")
        self.assertEqual((meta["nranks"], meta["source"]), (32, "simulated"))
        row = self.rows("coll allreduce --topo dgx-h100x4 --size 1G --algo Ring --proto Simple")[0]
        self.assertEqual((row["algo"], row["proto"], row["transport"]), ("Ring", "Simple", "nccl"))
        self.assertRegex(row["limit"], r"^host\d+/gpu\d+ nvlink (in|out) \(\d+ %\)$")
        self.assertEqual(row["out_of_place_time_us"], row["in_place_time_us"])

    def test_whose_call(self):
        for topo, word in (("cpu2", "mpi"), ("dgx-a100", "nccl"), ("pcie8", "nccl")):
            self.assertEqual(self.rows(f"coll allreduce --topo {topo}")[0]["transport"], word)
        rows = self.rows("coll allreduce --topo dgx-h100x2 --as collbench --algo all --size 1M")
        names = [row["algo"] for row in rows]
        self.assertIn("hierarchical", names)
        self.assertNotIn("nvls", names)
        self.assertIn("nvls", self.run_it("coll allreduce --topo dgx-h100 --as collbench --algo nvls "
                                          "--size 1M").stdout)
        self.assertEqual({row["wrong"] for row in
                          [{"wrong": r["out_of_place_wrong"]} for r in rows]}, {"0"})
        rows = self.rows("coll allreduce --topo dgx-h100x2 --algo all --size 1M --net closed")
        self.assertEqual({"Ring", "Tree", "NVLSTree"}, {row["algo"] for row in rows})

    def test_trees_are_right(self):
        """Schedules of up to 64 ranks are verified before they run."""
        for hosts, gpus in ((2, 16), (3, 24), (5, 5), (8, 64), (7, 14)):
            row = self.rows(f"coll allreduce --topo dgx-h100 --nodes {hosts} --gpus {gpus} "
                            "--algo Tree --proto Simple --size 64M")[0]
            self.assertEqual((row["algo"], row["out_of_place_wrong"]), ("Tree", "0"))

    def test_folded_is_full(self):
        for line in ("allreduce --topo dgx-h100x4 --algo Ring --size 64M",
                     "alltoall --topo dgx-a100x2 --size 1M", "sendrecv --topo dgx-h100x4 --size 1M"):
            flow, full = (float(self.rows(f"coll {line} --net {net}")[0]["out_of_place_time_us"])
                          for net in ("flow", "full"))
            self.assertAlmostEqual(flow / full, 1, 9, line)

    def test_never_above_the_ceiling(self):
        for topo in ("dgx-h100", "dgx-h100x2", "dgx-a100x4", "dgx-b200", "gb200-nvl72", "pcie8",
                     "pcie8-a100", "hgx-mi300x", "dgx1-v100", "dgx2-v100x2", "alps-gh200x2"):
            for operation in ("allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall"):
                row = self.rows(f"coll {operation} --topo {topo} --size 4G --net closed")[0]
                self.assertLessEqual(float(row["of_ceiling_pct"]), 100.5, f"{topo} {operation}")
                # rings through host memory are held to what was measured there, copies are not
                least = 33 if topo == "pcie8" else 40
                self.assertGreater(float(row["of_ceiling_pct"]), least, f"{topo} {operation}")

    def test_bridges_join_pairs_alone(self):
        """By formula and by the engine, what goes round is held to PCIe."""
        for topo in ("a100-pcie-pairs", "h100-pcie-pairs", "pcie8-a40", "a100-pcie-pairsx2"):
            for operation in ("allreduce --algo Ring", "allgather", "alltoall", "sendrecv"):
                line = f"coll {operation} --topo {topo} --size 256M --net "
                closed, flow = (self.rows(line + net)[0] for net in ("closed", "flow"))
                for row in (closed, flow):
                    self.assertLess(float(row["of_ceiling_pct"]), 100.5, line)
                ratio = (float(closed["out_of_place_time_us"]) / float(flow["out_of_place_time_us"]))
                self.assertTrue(0.67 < ratio < 1.5, f"{line}: {ratio}")
        for net in ("closed", "flow"):
            row = self.rows("coll allreduce --topo a100-pcie-pairsx2 --size 64M --algo Tree --net "
                            + net)[0]
            self.assertLess(float(row["of_ceiling_pct"]), 100.5, net)

    def test_oversubscription_by_formula(self):
        with open(os.path.join(SHIPPED, "dgx-h100.json"), encoding="utf-8") as file:
            topology = json.load(file)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "over.json")
            topology["hosts"] = 64
            topology["network"]["oversubscribed"] = 100
            with open(path, "w", encoding="utf-8") as file:
                json.dump(topology, file)
            for operation in ("alltoall", "allreduce --algo Ring", "allreduce --algo Tree",
                              "allreduce --algo NVLSTree", "allgather", "broadcast"):
                row = self.rows(f"coll {operation} --topo {path} --size 4G --net closed")[0]
                self.assertLess(float(row["of_ceiling_pct"]), 100.5, operation)
                self.assertIn("leaf", row["limit"])
            ring = [float(self.rows(f"coll allgather --topo {path} --size 1G --net {net}")[0]
                          ["out_of_place_busbw_GBps"]) for net in ("closed", "flow")]
            self.assertAlmostEqual(ring[0] / ring[1], 1, delta=0.1)

    def test_formula_where_the_engine_runs_long(self):
        """Answers come within seconds, and rows say whose they are."""
        for line in ("allreduce --topo dgx-h100x256 --size 1G", "allreduce --topo a4x-gb200x4 --size 1G",
                     "alltoall --topo dgx-h100x512 --size 1M"):
            self.assertEqual(self.rows("coll " + line)[0]["transport"], "formula", line)
            self.assertRegex(self.run_it("coll " + line).stdout,
                             r"# by formula: \w+ at \d+ [MG]i?B?: the engine would run for long")
        row = self.rows("coll allreduce --compare dgx-h100x256,dgx-h100x2 --size 1G")[0]
        self.assertIn(", formula", row["dgx_h100x256_how"])
        self.assertNotIn("formula", row["dgx_h100x2_how"])
        self.assertEqual(self.rows("coll allreduce --topo dgx-h100x256 --size 1G --algo Ring")[0]
                         ["transport"], "nccl")

    def test_other_forms_of_topology(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("n.yml", "topology: [ Ring ]\n"), ("t.xml", "<?xml?>\n"),
                               ("smi.txt", "\tGPU0\tGPU1\n")):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.refused(f"coll allreduce --topo {path}", f"commsim topo convert {path}")

    def test_one_gpu_copies(self):
        """2 S over 3350 GB/s of memory out of place, nothing in place."""
        for algo in ("auto", "all", "Ring"):
            rows = self.rows(f"coll allreduce --topo dgx-h100 --gpus 1 --size 1G --algo {algo}")
            self.assertEqual(len(rows), 1)
            self.assertAlmostEqual(float(rows[0]["out_of_place_time_us"]), 2 * 2**30 / 3350e3, delta=1)
            self.assertEqual(float(rows[0]["in_place_time_us"]), 0)
            self.assertEqual(rows[0]["algo"], "copy")

    def test_channels_of_nccl(self):
        line = "allreduce --topo dgx-h100 --size 1G --algo Ring --channels "
        one, two, many = (self.busbw(line + n) for n in ("1", "2", "32"))
        self.assertTrue(20 < one < 39, one)
        self.assertAlmostEqual(two / one, 2, delta=0.1)
        self.assertGreater(many, 340)
        self.refused("coll " + line + "65", "1 to 64")
        self.refused("coll " + line + "33 --nccl 2.18", "before 2.19", "1 to 32")
        self.run_it("coll " + line + "64")

    def test_rules_of_the_library(self):
        algo = lambda line: self.rows("coll allreduce --size 1G " + line)[0]["algo"]
        self.assertEqual(algo("--topo dgx-h100x2 --nccl 2.18"), "NVLSTree")
        self.assertNotIn("NVLS", algo("--topo dgx-h100x2 --nccl 2.10"))
        self.refused("coll allreduce --topo dgx-h100 --nccl 2.16 --algo NVLS", "no way")
        self.assertEqual(algo("--topo dgx-a100x4 --sharp --algo Ring"), "Ring")
        best = lambda more: self.busbw("allreduce --topo dgx-h100x2 --net closed --size 1G " + more)
        self.assertEqual(best("--sharp"), max(best(""), best("--sharp --algo CollNetChain")))
        self.refused("coll allreduce --topo dgx-h100-rocex2 --sharp", "InfiniBand", "roce")
        self.refused("coll allreduce --topo cpu2 --as nccl", "no accelerators", "--as mpi")
        for wrong in ("NVLS --proto LL", "Ring,Tree"):
            done = self.refused("coll allreduce --topo dgx-h100 --algo " + wrong, "--algo", "--proto",
                                "Ring (LL/LL128/Simple), NVLS (Simple)")
            self.assertEqual(done.stdout, "")

    def test_options_without_effect(self):
        text = self.run_it("coll allreduce --topo dgx-h100 --sharp --alpha-net 3us --fault nics=1").stdout
        for name in ("--sharp", "--alpha-net", "a fault of the network"):
            self.assertIn(f"# {name} has no effect here", text)
        self.assertIn("for allreduce alone", self.run_it("coll allgather --topo dgx-h100x2 --sharp").stdout)
        self.assertNotIn("no effect", self.run_it("coll allreduce --topo dgx-h100x2 --sharp "
                                                  "--alpha-net 3us --fault nics=1").stdout)

    def test_limit_by_formula(self):
        limit = lambda size: self.rows("coll allreduce --topo dgx-h100 --net closed --size "
                                       + size)[0]["limit"]
        self.assertEqual(limit("1K"), "latency; NVLink of a GPU")
        self.assertEqual(limit("4G"), "NVLink of a GPU")

    def test_measured_beyond_the_model(self):
        line = "coll allreduce --topo dgx-h100x2 "
        for more, words in (("--size 1G --measured 5000", "more than the links carry"),
                            ("--size 1K --measured 5", "latency decides")):
            text = self.run_it(line + more).stdout
            self.assertIn(words, text)
            for word in ("healthy", "no error", "% of what can be had"):
                self.assertNotIn(word, text, more)
        self.assertIn("healthy", self.run_it(line + "--size 4G --measured 500").stdout)

    def test_bridges_of_pairs(self):
        """Two GPUs have the bridge; four go round by PCIe."""
        two, four = (self.rows(f"coll allreduce --topo a100-pcie-pairs --gpus {gpus} --size 1G")[0]
                     for gpus in (2, 4))
        self.assertGreater(float(two["ceiling_GBps"]), 200)
        self.assertAlmostEqual(float(four["ceiling_GBps"]), 25.2, delta=0.1)
        for row in (two, four):
            self.assertLess(float(row["of_ceiling_pct"]), 100.5)
            self.assertGreater(float(row["of_ceiling_pct"]), 85)

    def test_faults(self):
        line = "allreduce --topo dgx-h100x2 --algo Ring --proto Simple --size 1G"
        whole, slow, one, tcp = (self.busbw(line + fault) for fault in (
            "", " --fault host0/nic3=0.5", " --fault nics=1", " --fault tcp"))
        self.assertTrue(tcp < one < slow < whole, (whole, slow, one, tcp))
        self.assertLess(tcp, 8 * 1.5)  # GB/s of a NIC by the kernel's sockets
        self.assertAlmostEqual(whole / slow, 2, delta=0.3)
        self.refused("coll allreduce --topo dgx-h100x2 --fault host0/nic9=0.5", "host0/nic9")
        self.refused("coll allreduce --topo dgx-h100x2 --fault host0/nic3=0.5 --net closed",
                     "knows no single link")

    def test_user_constants(self):
        line = "coll allreduce --topo dgx-h100x2 --size 8 "
        time = lambda more: float(self.rows(line + more)[0]["out_of_place_time_us"])
        self.assertAlmostEqual(time("--launch 100us"), 100, delta=3)
        self.assertGreater(time("--alpha-net 50us"), time("") + 50)
        self.assertGreater(time("--launch-mode torch"), time("--launch-mode graph"))

    def test_links(self):
        text = self.run_it("coll allreduce --topo dgx-h100x2 --algo Ring --size 1G --links").stdout
        found = re.search(r" 16 +host\*/nic\* out +nic +(\d+) ", text)
        # a ring sends 2 (n-1)/n S out of each host, an eighth by each NIC
        self.assertEqual(int(found[1]), 2 * 15 * 2**30 // 16 // 8)
        self.refused("coll allreduce --topo dgx-h100 --links --net closed", "does not run")
        self.refused("coll allreduce --topo dgx-h100 --links --csv -", "--links prints text")

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("t.json", "m.csv", "p.svg", "c.csv")]
            self.run_it(f"coll allreduce --topo dgx-h100x2 --size 1M --algo Ring --trace {paths[0]} "
                        f"--log {paths[1]}")
            with open(paths[0], encoding="utf-8") as file:
                self.assertIn("traceEvents", json.load(file))
            with open(paths[1], encoding="utf-8") as file:
                pairs = {(int(m["src"]), int(m["dst"])) for m in csv.DictReader(file)}
            self.assertEqual(pairs, {(r, (r + 1) % 16) for r in range(16)})
            self.run_it("coll allreduce --compare pcie8,dgx-h100,dgx-h100x2 -b 64K -e 64M -f 32 "
                        f"--plot {paths[2]}.gp --csv {paths[3]}")
            with open(paths[3], encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual(len(rows), 3)
            alone = self.rows("coll allreduce --topo dgx-h100x2 --size 64M")[0]
            self.assertEqual(rows[-1]["dgx_h100x2_time_us"], alone["out_of_place_time_us"])
            with open(paths[2] + ".gp", encoding="utf-8") as file:
                self.assertIn("dgx-h100x2", file.read())

    def test_wrong_requests(self):
        for line, *words in (
                ("--topo dgx-h100 --alpha 1us --ranks 3", "--alpha means nothing", "--ranks means"),
                ("--topo dgx-h100 --algo rign", "algorithm of NCCL", "Ring"),
                ("--topo dgx-h100 --proto LL256", "protocol of NCCL", "LL128"),
                ("--topo dgx-h100 --nccl 3.1 --measured -1", "no version", "--measured"),
                ("--topo dgx-h100 --as collbench --net closed --proto LL", "no formula", "--proto"),
                ("--topo cpu2 --net flow --algo ring", "closed form", "own choice"),
                ("--topo dgx-h100 --net full --trace x -b 1 -e 2M", "sizes go from"),
                ("--topo nowhere", "unknown topology"), ("--gpus 8", "--gpus means nothing"),
                ("--compare dgx-h100,,pcie8", "name 2"), ("--plot x.svg", "--compare"),
                ("--compare dgx-h100 --plot x.pdf", ".png"), ("--compare a --topo b", "--topo"),
                ("--topo dgx-h100 --algo Tree --proto LL", "no way"),
                ("--topo dgx-h100 --net closed --channels 2", "--channels"),
                ("--topo dgx-h100x2 --measured 5 -b 1K -e 1M", "one size")):
            self.refused("coll allreduce " + line, *words)
        self.refused("coll barrier --topo dgx-h100", "NCCL has no barrier")

    def test_edges(self):
        for size in ("0", "1", "4", "3G"):
            for operation in ("allreduce", "alltoall", "broadcast", "gather", "reduce_scatter"):
                for topo in ("dgx-h100 --gpus 1", "dgx-h100 --gpus 3", "dgx-h100x2", "cpu2x3"):
                    self.run_it(f"coll {operation} --topo {topo} --size {size}")


class Command(Case):
    def test_memory_uses_all_options_or_none(self):
        self.refused("memory --model 7b --strategy tp3 --seq 5", "--strategy needs", "--seq needs")
        self.refused("memory --model 7b --nodes 2", "--nodes needs")
        self.assertIn("4 B", self.run_it("memory --model 7b --gpus 8").stdout)

    def test_a_preset_is_a_preset(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "llama3-8b"))
            with open(os.path.join(folder, "llama3-70b"), "w", encoding="utf-8") as file:
                file.write("{}")
            for name in ("llama3-8b", "llama3-70b"):
                self.run_it(f"model {name}", cwd=folder)
                self.run_it(f"model ./{name}", code=2, cwd=folder)
            before = self.run_it("--topo dgx-h100", cwd=folder).stdout
            for table in ("constants.csv", "closed.csv", "bands.csv", "frameworks.json"):
                with open(os.path.join(folder, table), "w", encoding="utf-8") as file:
                    file.write("no table\n")
            self.assertEqual(self.run_it("--topo dgx-h100", cwd=folder).stdout, before)

    def test_nothing_scored_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.csv")
            for text, code, words in (("a,b\n1,2\n", 2, ["has no column"]),
                                      ("id,framework\nx,y\n", 2, ["has no column gpu"])):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                for command in ("validate training {} --require median=50", "fit {}",
                                "validate training {}"):
                    self.refused(command.format(path), "no row could be scored", *words, code=code)

    def test_csv_on_stdout(self):
        table = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "training",
                             "torchtitan.csv")
        for line in ("--topo dgx-h100", "memory --topo dgx-h100", "memory --model 7b",
                     f"validate training {table}", "constants", "compare --topo dgx-h100 --strategy fsdp"):
            rows = self.rows(line)
            self.assertTrue(rows, line)
            self.assertTrue(all(None not in row for row in rows), line)

    def test_full_disk(self):
        for line in ("--help", "--version", "model", "--topo dgx-h100", "memory --help"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([PROGRAM, *line.split()], stdout=full, text=True,
                                      stderr=subprocess.PIPE, check=False)
            self.assertEqual(done.returncode, 1, line)
            self.assertTrue(done.stderr, line)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
