#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""collbench bench-gpu, what records say about GPUs, and tests/gpu/check, on the emulation of CUDA.
Bytes are judged, for the emulation counts them; times are not.

Usage: test_bench_gpu.py PROGRAM EMULATED_PLUGIN [unittest arguments]"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import test_collbench as base

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu", "check")
GPUS = {"CUEMU_DEVICES": "2", "CUEMU_THREADS": "4", "CUEMU_TIMEOUT_S": "60"}
SHAPES = {"copy": 2, "reduce": 3, "reduce-copy": 4}  # times the size: read + written
VERSIONS = ["naive", "vector", "flight"]


class Gpu(base.Case):
    def bench(self, *args, code=0, **env):
        run = base.Run(["bench-gpu", "-n", "2", *args, "--json", "-"], env=GPUS | env)
        self.assertEqual(run.code, code, f"{args}\n{run.out}\n{run.err}")
        return json.loads(run.out, parse_constant=base.reject)


class Kernels(Gpu):
    def bench(self, *args, **more):
        return super().bench("--part", "kernels", *args, **more)

    def test_rows_and_bytes(self):
        document = self.bench("-b", "20004", "-e", "20004", "-d", "float,bfloat16")
        rows = document["rows"]
        self.assertEqual([(row["type"], row["what"], row["version"]) for row in rows],
                         [(dtype, shape, version) for dtype in ["float", "bfloat16"]
                          for shape in SHAPES for version in VERSIONS])
        for row in rows:
            self.assertEqual(row["size_B"], 20004)
            self.assertEqual(row["moved_B"], SHAPES[row["what"]] * 20004)
            self.assertEqual(row["counted_B"], row["moved_B"], row)  # each byte once
            self.assertEqual(row["wrong"], 0)
            self.assertEqual(row["source"], "emulated")
            self.assertAlmostEqual(row["of_copy_pct"], 100 * row["rate_GBps"] / row["copy_GBps"])
            self.assertAlmostEqual(row["rate_GBps"], row["moved_B"] / row["p50_us"] / 1e3)

    def test_every_type_and_operator(self):
        rows = self.bench("-b", "8", "-e", "1016", "-i", "1008", "-d", "all", "-o", "all")["rows"]
        self.assertEqual(len(rows), 12 * 2 * (3 + 5 * 6))
        self.assertEqual({row["wrong"] for row in rows}, {0})

    def test_sizes_below_an_element(self):
        self.assertEqual([row["size_B"] for row in
                          self.bench("-b", "0", "-e", "9", "-i", "3", "-d", "double")["rows"]],
                         [8] * 9)

    def test_a_wrong_element_is_found(self):
        for size, element in [(4096, 5), (1100000, 1099999)]:  # the second by its last window
            document = self.bench("-b", str(size), "-e", str(size), "-d", "int8", code=1,
                                  COLLBENCH_WRONG=f"0:{element}")
            self.assertEqual({row["wrong"] for row in document["rows"]}, {1}, size)
            self.assertEqual(document["summary"], {"okay": False, "wrong": 9})


class VirtualRanks(Gpu):
    def bench(self, *args, **more):
        return super().bench("--part", "virtual", *args, **more)

    def test_bytes_and_steps(self):
        rows = self.bench("-b", "46080", "-e", "46080", "--ranks", "2,3,5,8", "--small",
                          "2880")["rows"]
        self.assertEqual(len(rows), 4 * 5)
        for row in rows:
            n, size = row["ranks"], row["size_B"]
            staged, pull = (6 * n - 4) * size, 5 * (n - 1) * size
            self.assertEqual(row["moved_B"], pull if row["version"] == "pull" else staged)
            if row["version"] != "ll":  # lines are not counted
                self.assertEqual(row["counted_B"], row["moved_B"], row)
            self.assertEqual(row["steps"], 2 * n - 1)
            self.assertAlmostEqual(row["step_ns"], row["p50_us"] * 1e3 / row["steps"])
            self.assertEqual((row["wrong"], row["source"]), (0, "emulated"))
        self.assertEqual({(row["version"], row["size_B"]) for row in rows},
                         {("ll", 2880), ("staged", 2880), ("pull", 2880), ("staged", 46080),
                          ("pull", 46080)})

    def test_several_passes_and_odd_counts(self):
        rows = self.bench("-b", "3000003", "-e", "3000003", "--ranks", "3", "-d", "uint8", "-o",
                          "max", "--channels", "1", "--small", "1")["rows"]
        self.assertEqual({row["wrong"] for row in rows}, {0})
        staged = [row for row in rows if row["version"] == "staged"][-1]
        self.assertEqual(staged["steps"] % 5, 0)
        self.assertGreater(staged["steps"], 5)  # slices of 512 KiB

    def test_another_device(self):
        document = self.bench("-b", "64", "-e", "64", "--ranks", "2", "--device", "1",
                              CUDA_VISIBLE_DEVICES="1,0")
        self.assertEqual(document["meta"]["device"], 1)
        self.assertEqual({row["wrong"] for row in document["rows"]}, {0})

    def test_more_than_fit(self):
        for args, words in [(["--ranks", "33"], ["--ranks 33", "32 blocks", "at most 32"]),
                            (["--channels", "17"], ["17 lanes", "2 ranks", "--channels 16"])]:
            run = base.Run(["bench-gpu", "--part", "virtual", "-b", "64", "-e", "64", "--ranks",
                            "2", *args], env=GPUS)
            self.assertEqual(run.code, 2, args)
            for word in words:
                self.assertIn(word, run.err, args)

    def test_a_wrong_element_is_found(self):
        document = self.bench("-b", "64K", "-e", "64K", "--ranks", "2,3", code=1,
                              COLLBENCH_WRONG="1:7")
        self.assertEqual({row["wrong"] for row in document["rows"]}, {1})


class Command(Gpu):
    def test_launches(self):
        rows = self.bench("--part", "launch")["rows"]
        self.assertEqual(len(rows), 6)
        for row in rows:
            self.assertGreater(row["p50_us"], 0, row)
            self.assertIsNone(row["moved_B"])

    def test_text_says_that_it_is_emulated(self):
        run = base.Run(["bench-gpu", "--part", "launch", "-n", "1"], env=GPUS)
        self.assertIn("# WARNING: emulated GPUs, the times mean nothing", run.lines)
        for row in run.rows:
            self.assertEqual(row[-1], "emulated")

    def test_refusals(self):
        for args, words in [(["--device", "2"], ["--device 2", "the last one is 1"]),
                            (["--ranks", "1"], ["--ranks 1", "2 to"]),
                            (["--ranks", "2,x"], ["--ranks x"]), (["word"], ["takes no words"]),
                            (["-d", "floot"], ["floot", "float"]),
                            (["--part", "kernel"], ["kernel", "virtual"]),
                            (["-b", "8", "-e", "4"], ["8", "4"])]:
            run = base.Run(["bench-gpu", *args], env=GPUS)
            self.assertEqual((run.code, run.out), (2, ""), args)
            for word in words:
                self.assertIn(word, run.err, args)

    def test_no_gpu(self):
        for env, word in [({"CUEMU_DEVICES": "0"}, "no usable GPU"),
                          ({"COLLBENCH_GPU_PLUGIN": "/nowhere.so"}, "cannot be loaded")]:
            run = base.Run(["bench-gpu"], env=GPUS | env)
            self.assertEqual((run.code, run.out), (2, ""))
            self.assertIn(word, run.err)


class Records(Gpu):
    """What a collective's record says about GPUs, and who takes it."""

    def record(self, folder, name, *args, **env):
        path = os.path.join(folder, name)
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "-b", "64", "-e", "256", "-f", "4",
                        *base.QUICK, *args, "--json", path], env=GPUS | env)
        self.assertEqual(run.code, 0, run.err)
        with open(path, encoding="utf-8") as file:
            return path, run, json.load(file)["meta"]

    def test_header(self):
        with tempfile.TemporaryDirectory() as folder:
            _, run, meta = self.record(folder, "a.json", "--ranks", "4", CUEMU_DEVICES="4",
                                       CUEMU_P2P_GROUP="2")
        self.assertIs(meta["emulated"], True)
        self.assertEqual(meta["gpu"], ", ".join(["emulated GPU"] * 4))
        self.assertEqual((meta["devices"], meta["devices_by_rank"]), (4, "0 1 2 3"))
        self.assertEqual(len(set(meta["gpu_pci"].split())), 4)
        self.assertEqual(meta["gpu_runtime_version"], 13000)
        self.assertEqual(meta["pairs_without_peer_access"], 4)
        self.assertEqual(meta["ranks_without_peer_access"], "0-2 0-3 1-2 1-3")
        self.assertIn("# WARNING: emulated GPUs, the times mean nothing", run.lines)
        self.assertIn("# ranks 0-2 0-3 1-2 1-3 have no peer access to each other's GPU (4 pairs): "
                      "between them through pinned host memory", run.lines)

    def test_shared_gpus(self):
        with tempfile.TemporaryDirectory() as folder:
            _, run, meta = self.record(folder, "a.json", "--ranks", "3", "--oversubscribe")
        self.assertEqual((meta["devices_by_rank"], meta["pairs_without_peer_access"]), ("0 1 0", 0))
        self.assertIn("# 3 ranks share 2 devices: 0 1 0", run.lines)

    def test_processors_say_nothing_of_gpus(self):
        meta = self.run_json("allreduce", "--ranks", "2", "-b", "8", "-e", "8",
                             *base.QUICK)["meta"]
        self.assertEqual([key for key in meta if "gpu" in key or key == "emulated"], [])

    def test_no_tables_and_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            a, _, _ = self.record(folder, "a.json", "--ranks", "2")
            b, _, _ = self.record(folder, "b.json", "--ranks", "2")
            real = os.path.join(folder, "real.json")
            with open(a, encoding="utf-8") as file:
                document = json.load(file)
            document["meta"]["emulated"] = False
            with open(real, "w", encoding="utf-8") as file:
                json.dump(document, file)
            picture = os.path.join(folder, "a.gp")
            for args in (["compare", a, b], ["compare", real, b], ["plot", a, "-o", picture],
                         ["plot", real, b, "-o", picture]):
                run = base.Run(args)
                self.assertEqual((run.code, run.out), (2, ""), args)
                self.assertIn("of emulated GPUs, whose times mean nothing", run.err)
                self.assertFalse(os.path.exists(picture))
            self.assertEqual(base.Run(["plot", real, "-o", picture]).code, 0)
            self.assertEqual(base.Run(["compare", real, real]).code, 0)


class CheckScript(unittest.TestCase):
    """tests/gpu/check where something is missing; a whole run is a test of its own."""

    def run_check(self, *args, **env):
        return subprocess.run([CHECK, *args], env=os.environ | env, capture_output=True, text=True,
                              timeout=60)

    def test_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_check("--build", folder, COLLBENCH_GPU_PLUGIN="")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            for name in ["collbench", "matrix", "collbench_cuda.so"]:
                self.assertIn(name, done.stderr)

    def test_no_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            build = os.path.dirname(base.PROGRAM)
            done = self.run_check("--build", build, "--emulated", "--out", folder,
                                  CUDA_VISIBLE_DEVICES="-1")
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertRegex(done.stdout, "devices and launches +FAILED .*no usable GPU")
            with open(os.path.join(folder, "gpu-none.json"), encoding="utf-8") as file:
                self.assertIs(json.load(file)["okay"], False)

    def test_wrong_elements_fail(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_check("--build", os.path.dirname(base.PROGRAM), "--emulated", "--out",
                                  folder, COLLBENCH_WRONG="0:0")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for part in ["kernels", "virtual ranks", "operations, cuda-ipc", "operations, cuda-peer"]:
            self.assertRegex(done.stdout, f"(?m)^{part} +FAILED ")
        self.assertRegex(done.stdout, "(?m)^matrix, threads +ok ")

    def test_pack(self):
        with tempfile.TemporaryDirectory() as folder:
            build, packed = os.path.dirname(base.PROGRAM), os.path.join(folder, "packed")
            done = self.run_check("--build", build, "--pack", packed)
            if not os.path.exists(os.path.join(build, "collbench_cuda.so")):
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn("collbench_cuda.so", done.stderr)
                return
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(os.path.exists(os.path.join(packed, "collbench_cuda.so")))
            libraries = os.listdir(os.path.join(packed, "lib"))
            self.assertTrue([name for name in libraries if name.startswith("libuv.")], libraries)
            self.assertFalse([name for name in libraries if name.startswith("libc.")], libraries)
            told = subprocess.run(["ldd", os.path.join(packed, "collbench")], text=True,
                                  capture_output=True,
                                  env={"LD_LIBRARY_PATH": os.path.join(packed, "lib")}).stdout
            self.assertIn(os.path.join(packed, "lib", "libuv."), told)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: test_bench_gpu.py PROGRAM EMULATED_PLUGIN [unittest arguments]")
    base.PROGRAM = os.path.abspath(sys.argv.pop(1))
    os.environ["COLLBENCH_GPU_PLUGIN"] = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
