#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""collbench on GPUs as users call it, on the emulation of CUDA: data, words, refusals, failures. No
time is judged: the emulation's mean nothing.

Usage: test_gpu.py PROGRAM EMULATED_PLUGIN [unittest arguments]"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import test_collbench as base

OPERATIONS = base.OPERATIONS + ["alltoallv", "barrier"]
QUICK = base.QUICK
GPUS = {"CUEMU_DEVICES": "4", "CUEMU_THREADS": "4", "CUEMU_TIMEOUT_S": "60"}
TRANSPORTS = ["cuda-ipc", "cuda-peer"]


def gpus(**more):
    return {**GPUS, **more}


def networks():
    """Those of the transports that can be used here."""
    lines = base.Run(["list"]).lines
    return [name for name in ("tcp", "shm+tcp", "ofi", "shm+ofi", "mpi")
            if any(line.split()[0] == name and "unusable" not in line and "cannot" not in line
                   for line in lines if line.strip())]


class Gpu(base.Case):
    def run_rows(self, *args, env=None):
        """The record's rows; every element that was checked is right."""
        document = self.run_json(*args, *QUICK, env=env or gpus())
        self.assertTrue(document["rows"], args)
        for row in document["rows"]:
            for place in base.PLACES:
                self.assertIn(row[place + "_wrong"], (0, None), args)
            self.assertEqual(row["source"], "emulated", args)
        self.assertTrue(document["summary"]["okay"])
        self.assertIs(document["meta"]["emulated"], True)
        return document


class Data(Gpu):
    def test_every_operation_and_algorithm(self):
        for transport in TRANSPORTS:
            for operation in OPERATIONS:
                more = ["--imbalance", "2"] if operation == "alltoallv" else []
                self.run_rows(operation, "--transport", transport, "--ranks", "3", "--algo", "all",
                              "-b", "0", "-e", "40K", "-f", "64", *more)

    def test_types_and_operators(self):
        document = self.run_rows("allreduce", "--transport", "cuda-ipc", "--ranks", "2", "-d",
                                 "all", "-o", "all", "--size", "3001")
        self.assertEqual(len(document["rows"]), 12 * 5)

    def test_wires(self):
        for wire in ("staged", "pull", "ll"):
            rows = self.run_rows("allreduce", "--transport", "cuda-ipc", "--ranks", "3", "--algo",
                                 "ring", "--size", "100K", "--slice", "4K", "--wire", wire)["rows"]
            self.assertEqual(rows[0]["transport"].split("/")[1], wire)
            self.assertGreater(rows[0]["passes"], 3)

    def test_ways_to_run(self):
        """Graphs, private buffers, threads, several ranks on a GPU, as one launch and not."""
        for more in (["-G", "1"], ["--buffers", "private"], ["--ranks-as", "threads"],
                     ["--ranks-as", "threads", "-G", "1"], ["--channels", "5"]):
            self.run_rows("allreduce", "--transport", "cuda-ipc", "--ranks", "3", "--size", "50K",
                          *more)
        self.run_rows("allreduce", "--transport", "cuda-ipc", "--ranks", "5", "--oversubscribe",
                      "--ranks-as", "threads", "--size", "6M")
        for transport in TRANSPORTS:
            self.run_rows("alltoall", "--transport", transport, "--ranks", "5", "--oversubscribe",
                          "--size", "10K", env=gpus(CUEMU_DEVICES="2"))
            self.run_rows("reduce", "--transport", transport, "--ranks", "4", "-r", "2", "--size",
                          "70K", env=gpus(CUEMU_P2P_GROUP="2"))

    def test_one_rank_per_gpu_without_asking(self):
        document = self.run_rows("allreduce", "--transport", "cuda-ipc", "--size", "8",
                                 env=gpus(CUEMU_DEVICES="3"))
        self.assertEqual(document["meta"]["nranks"], 3)

    def test_a_wrong_element_is_found(self):
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "2", "--size", "64K",
                        *QUICK], env=gpus(COLLBENCH_WRONG="1:7"))
        self.assertEqual(run.code, 1)
        self.assertIn("rank 1, output element 7", run.err)

    def test_two_kinds_of_time(self):
        document = self.run_rows("allreduce", "--transport", "cuda-ipc", "--ranks", "2", "--size",
                                 "1K")
        for row in document["rows"]:
            self.assertGreater(row["out_of_place_host_us"], 0)
            self.assertGreater(row["out_of_place_launch_cost_us"], 0)


class Pairs(Gpu):
    def p2p(self, *args, env=None):
        run = base.Run(["p2p", *args, "-n", "5", "--passes", "1"], env=env or gpus())
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assertRegex(run.out, "# wrong elements : 0 in [0-9]+ of [0-9]+ pairs checked OK")
        return run

    def test_matrices(self):
        for transport in TRANSPORTS:
            run = self.p2p("--transport", transport, "--ranks", "3", "--size", "8,64K")
            for title in ("latency in us, 8 B", "one way bandwidth in GB/s, 64 KiB",
                          "both ways bandwidth in GB/s, the sum, 64 KiB"):
                self.assertIn(f"# {title}:", run.out)
            self.assertEqual(len(run.rows), 3 * 2 * 2)

    def test_apart(self):
        run = self.p2p("--transport", "cuda-ipc", "--ranks", "3", "--size", "8,64K",
                       env=gpus(CUEMU_P2P_GROUP="2"))
        self.assertIn("ranks 0-2 1-2 have no peer access", run.out)
        self.assertIn("WARNING: emulated GPUs", run.out)
        self.p2p("--transport", "cuda-peer", "--ranks", "3", "--oversubscribe", "--buffers",
                 "private", "--size", "8,64K", env=gpus(CUEMU_DEVICES="1"))


class Networks(Gpu):
    """Buffers on GPUs over transports that know nothing of them."""

    def test_every_operation(self):
        for transport in networks():
            for operation in OPERATIONS:
                more = ["--imbalance", "2"] if operation == "alltoallv" else []
                rows = self.run_rows(operation, "--transport", transport, "--memory", "gpu",
                                     "--ranks", "3", "-b", "0", "-e", "40K", "-f", "64",
                                     *more)["rows"]
                self.assertEqual({row["buffers"] for row in rows}, {"gpu"})
                self.assertEqual({row["transport"] for row in rows}, {transport + "/staged"})

    def test_several_passes_types_and_operators(self):
        for more in (["--algo", "ring", "--size", "100K", "--slice", "4K"],
                     ["-d", "all", "-o", "all", "--size", "3001"],
                     ["--oversubscribe", "--size", "4M"], ["--buffers", "private", "--size", "8"],
                     ["--ranks-as", "threads", "--size", "64K"]):
            self.run_rows("allreduce", "--transport", "tcp", "--memory", "gpu", "--ranks", "3",
                          *more, env=gpus(CUEMU_DEVICES="2" if "--oversub" in more[0] else "4"))

    def test_the_header_says_how_they_travel(self):
        for transport, text, key in (("tcp", "through pinned slots of the host, which", "pinned"),
                                     ("shm+tcp", "through slots on the sender's GPU (CUDA IPC)",
                                      "pinned between hosts")):
            run = base.Run(["allreduce", "--transport", transport, "--memory", "gpu", "--ranks",
                            "2", "--size", "8", *QUICK], env=gpus())
            self.assertEqual(run.code, 0, run.err)
            self.assertIn("# buffers on GPUs: through pinned slots of the host", run.out)
            self.assertIn(text, run.out)
            meta = self.run_rows("allreduce", "--transport", transport, "--memory", "gpu",
                                 "--ranks", "2", "--size", "8")["meta"]
            self.assertEqual((meta["gpu_buffers"], meta["memory"], meta["buffers"]),
                             (key, "gpu", "gpu"))
        run = base.Run(["allreduce", "--transport", "shm+tcp", "--memory", "gpu", "--ranks", "3",
                        "--size", "8", *QUICK], env=gpus(CUEMU_P2P_GROUP="2"))
        self.assertIn("ranks 0-2 1-2 have no peer access", run.out)

    def test_what_libraries_say(self):
        for transport, text in (("ofi", "memory of GPUs (FI_HMEM)"),
                                ("mpi", "memory of GPUs (MPIX_Query_cuda_support)")):
            if transport not in networks(): continue
            meta = self.run_rows("allreduce", "--transport", transport, "--memory", "gpu",
                                 "--ranks", "2", "--size", "8")["meta"]
            self.assertIn(text, meta["gpu_direct"])

    def test_over_hosts(self):
        hosts = ["allreduce", "--hosts", "127.0.0.1:2,127.0.0.2:2", "--memory", "gpu", "-b", "0",
                 "-e", "100000", "-i", "50000"]
        for transport in ("shm+tcp", "tcp"):
            self.run_rows(*hosts, "--transport", transport, env=gpus(CUEMU_DEVICES="2"))
        run = base.Run(hosts, env=gpus(CUEMU_DEVICES="1"))
        self.assertEqual((run.code, run.out), (2, ""))
        self.assertIn("2 ranks need as many GPUs, but there are 1", run.err)

    def test_pairs(self):
        run = base.Run(["p2p", "--transport", "tcp", "--memory", "gpu", "--ranks", "2", "-n", "4",
                        "--size", "8,64K"], env=gpus())
        self.assertEqual(run.code, 0, run.err)
        self.assertIn("buffers gpu", run.out)
        self.assertIn("# wrong elements : 0 in", run.out)
        run = base.Run(["p2p", "--hosts", "127.0.0.1:1,127.0.0.2:1", "--memory", "gpu"], env=gpus())
        self.assertEqual((run.code, run.out), (2, ""))
        self.assertIn("p2p over several hosts is for --memory host", run.err)

    def test_a_wrong_element_is_found(self):
        run = base.Run(["allreduce", "--transport", "tcp", "--memory", "gpu", "--ranks", "2",
                        "--size", "64K", *QUICK], env=gpus(COLLBENCH_WRONG="1:7"))
        self.assertEqual(run.code, 1)
        self.assertIn("rank 1, output element 7", run.err)

    def test_a_rank_dies(self):
        for fault in ("kill:1:30", "stop:1:30"):
            run = base.Run(["allreduce", "--transport", "tcp", "--memory", "gpu", "--ranks", "3",
                            "--size", "64K", "-n", "30", "-T", "3"],
                           env=gpus(COLLBENCH_FAULT=fault))
            self.assertEqual(run.code, 1, run.err)
            self.assertIn("rank 1", run.err)
            self.assertLess(run.seconds, 3 + base.SLACK_S)

    def test_refusals(self):
        for args, words in ((["--transport", "cuda-ipc", "--memory", "host"],
                             ["--memory host", "cuda-ipc", "such as shm or tcp"]),
                            (["--transport", "tcp", "--memory", "gpu", "--wire", "pull"],
                             ["--wire pull", "tcp", "--wire staged"]),
                            (["--transport", "tcp", "--memory", "gpu", "--vs", "nccl"],
                             ["--vs nccl", "--memory gpu", "cuda-ipc"]),
                            (["--transport", "tcp", "--memory", "gpu", "--vs", "mpi"],
                             ["--vs mpi", "--memory host"]),
                            (["--transport", "tcp", "--memory", "gpu", "--ranks", "5"],
                             ["5 ranks", "there are 4", "--ranks 4", "--oversubscribe"]),
                            (["--transport", "tcp", "--memory", "card"],
                             ["--memory", "card", "auto, host, gpu"])):
            run = base.Run(["allreduce", "--size", "8", *args], env=gpus())
            self.assertEqual((run.code, run.out), (2, ""), args)
            for word in words:
                self.assertIn(word, run.err, args)


    def test_a_flag_of_osu(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "osu_allreduce")
            os.symlink(base.PROGRAM, path)
            run = subprocess.run([path, "-d", "cuda"], capture_output=True, text=True, check=False)
            self.assertEqual((run.returncode, run.stdout), (2, ""))
            self.assertIn("-d of OSU's programs is whose memory the buffers lie in, here --memory",
                          run.stderr)


class Words(Gpu):
    def test_more_ranks_than_gpus(self):
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "5", "--size", "8"],
                       env=gpus())
        self.assertEqual((run.code, run.out), (2, ""))
        for word in ("5 ranks", "there are 4", "--ranks 4", "--oversubscribe"):
            self.assertIn(word, run.err)

    def test_visible_devices(self):
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "3", "--size", "8"],
                       env=gpus(CUDA_VISIBLE_DEVICES="1,3"))
        self.assertIn("there are 2", run.err)
        self.run_rows("allreduce", "--transport", "cuda-ipc", "--ranks", "2", "--size", "8",
                      env=gpus(CUDA_VISIBLE_DEVICES="1,3"))

    def test_pull_needs_peers(self):
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "3", "--size", "1M",
                        "--wire", "pull"], env=gpus(CUEMU_P2P_GROUP="2"))
        self.assertEqual(run.code, 2)
        for word in ("0-2 1-2", "--wire staged or ll"):
            self.assertIn(word, run.err)

    def test_what_gpus_do_not_have(self):
        for args in (["--trace", "x.json"], ["--overlap"], ["--groups", "2x2"], ["--cold"],
                     ["--vs", "mpi"], ["--repeat-check"]):
            run = base.Run(["allreduce", "--transport", "cuda-ipc", "--size", "8", "--ranks", "2",
                            *args] if args[0] != "--groups" else
                           ["allreduce", "--transport", "cuda-ipc", "--size", "8", *args],
                           env=gpus())
            self.assertEqual(run.code, 2, args)
            self.assertIn(args[0], run.err)
        run = base.Run(["allreduce", "--transport", "cuda-peer", "--ranks", "2", "--size", "8",
                        "-G", "1"], env=gpus())
        self.assertEqual((run.code, run.out), (2, ""))
        self.assertIn("graphs are there with --transport cuda-ipc", run.err)

    def test_what_processors_do_not_have(self):
        for args in (["-G", "1"], ["--oversubscribe"], ["--vs", "nccl"]):
            self.refused("allreduce", "--size", "8", *args, words=[args[0].replace(
                "-G", "--cudagraph"), "--transport shm", "cuda-ipc"])

    def test_more_lanes_than_fit(self):
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "2", "--size", "1M",
                        "--algo", "ring", "--channels", "50"], env=gpus(CUEMU_SMS="8"))
        self.assertNotEqual(run.code, 0)
        self.assertIn("50 lanes", run.err)
        self.assertIn("use --channels 16", run.err)
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "5", "--oversubscribe",
                        "--ranks-as", "threads", "--size", "6M", "--channels", "16"], env=gpus())
        self.assertEqual(run.code, 2, run.err)
        self.assertIn("for 2 ranks of this process; use --channels 8", run.err)

    def test_batches_that_no_stream_holds(self):
        run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "2", "--size", "8",
                        "-m", "201"], env=gpus())
        self.assertEqual((run.code, run.out), (2, ""))
        self.assertIn("at most 200", run.err)

    def test_foreign_formats_say_emulated(self):
        for style in ("nccl", "osu"):
            run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "2", "-b", "64",
                            "-e", "64", "--format", style, *QUICK], env=gpus())
            self.assertEqual(run.code, 0, run.err)
            self.assertIn("# WARNING: emulated GPUs", run.out)


class Absent(base.Case):
    """No plug-in, no device, no driver: said, and all else works."""

    def reasons(self, env, word):
        run = base.Run(["list"], env=env)
        self.assertEqual(run.code, 0)
        lines = [line for line in run.lines if line.split()[0] in TRANSPORTS]
        self.assertEqual(len(lines), 2, run.out)
        for line in lines:
            self.assertIn(word, line)
        for transport in TRANSPORTS:
            run = base.Run(["allreduce", "--transport", transport, "--size", "8"], env=env)
            self.assertEqual((run.code, run.out), (2, ""))
            self.assertIn(word, run.err)
        run = base.Run(["allreduce", "--size", "8", "--ranks", "2", *QUICK], env=env)
        self.assertEqual(run.code, 0, run.err)

    def test_no_device(self):
        self.reasons(gpus(CUEMU_DEVICES="0"), "no usable GPU: cudaErrorNoDevice")
        self.reasons(gpus(CUDA_VISIBLE_DEVICES=""), "no usable GPU: cudaErrorNoDevice")

    def test_no_plugin(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "none.so")
            self.reasons({"COLLBENCH_GPU_PLUGIN": path}, path)
            with open(path, "w", encoding="ascii") as file:
                file.write("not a library")
            self.reasons({"COLLBENCH_GPU_PLUGIN": path}, "cannot be loaded")

    def test_a_library_that_is_no_plugin(self):
        library = next(line.split()[2] for line in subprocess.run(
            ["ldd", base.PROGRAM], capture_output=True, text=True, check=True).stdout.splitlines()
                       if "libm.so" in line)
        self.reasons({"COLLBENCH_GPU_PLUGIN": library}, "is not a GPU plug-in")

    def test_the_program_links_no_cuda(self):
        links = subprocess.run(["ldd", base.PROGRAM], capture_output=True, text=True,
                               check=True).stdout.lower()
        for word in ("cuda", "nccl", "nvrtc"):
            self.assertNotIn(word, links)


class Failures(Gpu):
    def test_a_rank_dies(self):
        before = base.shared_files()
        for transport in TRANSPORTS:
            for fault in ("kill:1:30", "exit:1:30", "stop:1:30"):
                run = base.Run(["allreduce", "--transport", transport, "--ranks", "3", "--size",
                                "64K", "-n", "30", "-T", "3"], env=gpus(COLLBENCH_FAULT=fault))
                self.assertEqual(run.code, 1, run.err)
                self.assertIn("rank 1", run.err)
                self.assertIn("allreduce", run.err)
                self.assertLess(run.seconds, 3 + base.SLACK_S)
        self.assertEqual(base.shared_files() - before, set())

    def test_where_the_others_wait(self):
        """A rank that never comes: the others wait inside their kernels, and say for whom."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            run = base.Run(["allreduce", "--transport", "cuda-ipc", "--ranks", "3", "--algo",
                            "ring", "--size", "64K", "-c", "0", "-n", "30", "-T", "3", "--json",
                            path], env=gpus(COLLBENCH_FAULT="stop:1:3"))
            self.assertEqual(run.code, 1, run.err)
            for word in ("rank 1", "no progress for 3 s", "allreduce ring", "65536 B", "step",
                         "peer 1"):
                self.assertIn(word, run.err)
            with open(path, encoding="utf-8") as file:
                json.loads(file.read(), parse_constant=base.reject)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: test_gpu.py PROGRAM EMULATED_PLUGIN [unittest arguments]")
    base.PROGRAM = os.path.abspath(sys.argv.pop(1))
    os.environ["COLLBENCH_GPU_PLUGIN"] = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
