#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--vs nccl as users call it, on the emulation of CUDA with a stand-in for the library: rows,
verdicts and records as against MPI, and what is refused. No time is judged.

Usage: test_vs_nccl.py PROGRAM EMULATED_PLUGIN NCCL_STUB [unittest arguments]"""

import os
import sys
import unittest

import test_collbench as base
import test_gpu

VS = ["--transport", "cuda-ipc", "--vs", "nccl"]
NO_PLACE = ["alltoall", "sendrecv", "alltoallv", "barrier"]  # in place


class VsNccl(test_gpu.Gpu):
    def contest(self, *args, env=None):
        """The record, with NCCL's rows checked and named."""
        document = self.run_rows(*args, *VS, env=env)
        theirs = [row for row in document["rows"] if row["algo"] == "nccl"]
        self.assertTrue(theirs, args)
        for row in theirs:
            self.assertEqual(row["transport"], "NCCL-stub 2.28.9")
        return document, theirs

    def test_every_operation(self):
        for operation in test_gpu.OPERATIONS:
            document, theirs = self.contest(operation, "--ranks", "3", "-b", "0", "-e", "40K",
                                            "-f", "64")
            for row in theirs:
                self.assertEqual(row["out_of_place_wrong"], 0, operation)
                self.assertRegex(row["series"],
                                 r"^nccl/(plain|registered|window)(\+graph)?$")
                if operation not in NO_PLACE:
                    self.assertEqual(row["in_place_wrong"], 0, operation)
            own = [row for row in document["rows"] if row["algo"] != "nccl"]
            for row in own:
                self.assertGreater(row["out_of_place_ratio"], 0)
            self.assertIn("STUB", document["meta"]["nccl_library"])
            self.assertTrue(document["meta"]["nccl_stub"])
            self.assertEqual(document["meta"]["compared_with"], "nccl")

    def test_types_and_operators(self):
        document, theirs = self.contest("allreduce", "--ranks", "2", "-d", "int8,half,double,f8e5m2",
                                        "-o", "prod,avg", "--size", "3000", "--out-of-place")
        self.assertEqual(len(theirs), 4 * 2)

    def test_threads_private_buffers_and_settings(self):
        document, theirs = self.contest("allgather", "--ranks", "2", "--ranks-as", "threads",
                                        "--buffers", "private", "--size", "1K", "--nccl-algo",
                                        "Ring", "--nccl-proto", "LL")
        self.assertTrue(theirs[0]["series"].startswith("nccl/plain"))
        self.assertEqual(document["meta"]["nccl_algo"], "Ring")
        self.assertEqual(document["meta"]["nccl_proto"], "LL")

    def test_what_nccl_lacks_is_not_compared(self):
        document = self.run_rows("allreduce", "--ranks", "3", "-o", "avg", "--size", "1K", *VS)
        self.assertEqual([row["out_of_place_verdict"] for row in document["rows"]],
                         ["not compared"])

    def test_ranks_that_pretend_to_be_hosts(self):
        document, _ = self.contest("alltoall", "--ranks", "2", "--oversubscribe", "--size", "1K",
                                   "--nccl-hostid", env=test_gpu.gpus(CUEMU_DEVICES="1"))
        self.assertIn("its times mean nothing", document["meta"]["nccl_notes"])

    def test_wrong_data_are_seen(self):
        run = base.Run(["allreduce", "--size", "1K", "--ranks", "2", *VS, *base.QUICK],
                       env=test_gpu.gpus(COLLBENCH_WRONG="1:5"))
        self.assertEqual(run.code, 1)
        self.assertIn("allreduce nccl, 1024 B", run.err)

    def refuse(self, *args, env=None, word):
        run = base.Run(["allreduce", "--size", "1K", *args], env=env or test_gpu.gpus())
        self.assertEqual(run.code, 2, run.err)
        self.assertIn(word, run.err)

    def test_refusals(self):
        self.refuse("--vs", "nccl", word="--transport shm")
        self.refuse("--nccl-algo", "Ring", word="--nccl-algo means nothing without --vs nccl")
        self.refuse("--ranks", "2", "--oversubscribe", *VS, env=test_gpu.gpus(CUEMU_DEVICES="1"),
                    word="takes one rank per GPU: 2 ranks, 1 GPU")
        self.refuse("--ranks", "2", *VS, env=test_gpu.gpus(COLLBENCH_NCCL="/nonexistent"),
                    word="COLLBENCH_NCCL=/nonexistent cannot be loaded")

    def test_a_real_library_needs_real_gpus(self):
        env = {**test_gpu.gpus(), "COLLBENCH_NCCL": ""}
        run = base.Run(["allreduce", "--size", "1K", "--ranks", "2", *VS], env=env)
        self.assertEqual((run.code, run.out), (2, ""))  # or there is none
        self.assertRegex(run.err, "needs real GPUs|libnccl")

    def test_a_failing_library_ends_the_run(self):
        run = base.Run(["allreduce", "--size", "1K", "--ranks", "1", *VS, *base.QUICK],
                       env=test_gpu.gpus(NCCL_STUB_FAIL="ncclAllReduce"))
        self.assertEqual(run.code, 1)
        self.assertIn("ncclAllReduce fails: unhandled system error", run.err)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: test_vs_nccl.py PROGRAM EMULATED_PLUGIN NCCL_STUB [unittest arguments]")
    base.PROGRAM = os.path.abspath(sys.argv.pop(1))
    os.environ["COLLBENCH_GPU_PLUGIN"] = os.path.abspath(sys.argv.pop(1))
    os.environ["COLLBENCH_NCCL"] = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
