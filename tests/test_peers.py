#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users of other benchmarks reported, as commands to collbench and what must come out of them.
Section3 holds one test per report of public threads, Section4 the transcripts written from them;
the numbers are those of the list of these cases. Each can be shown on one machine without a GPU.

Usage: test_peers.py PROGRAM [unittest arguments]"""

# Cases that are not here, and why:
#
#   3.04  more ranks than GPUs                              needs a GPU; there is no GPU transport
#   3.05  ranks on the GPUs that a variable leaves visible  the same
#   3.33  reduce must not touch outputs of other ranks      there is no operation reduce; 3_28 shows
#                                                           that changed inputs are found
#   3.53  the wrong network interface                       there is no network transport
#   4.02, 4.04, 4.06, 4.07, 4.10, 4.14, 4.16, 4.20          there are no cases of these numbers
#
# Cases of which a part is not here:
#
#   3.31  the report counts how far algorithms differ in ulp; it does not bound the error against
#         an exact sum
#   3.37  ranks take their sizes from one plan and cannot disagree; what is shown is that copies
#         started with different sizes by another launcher are refused
#   3.42, 3.54  128 against 127 hosts: here 2 ranks against 3, and neighbouring sizes
#   4.11  collbench itself has no hook that swaps blocks; what is swapped is the result of an MPI
#         library, which goes through the same check, and one element of the own result
#   3.24, 3.28, 3.44, 4.11 need MPICH (all but 3.44 a compiler too), 3.38 the right to mount, 3.43
#         and 4.17 6 GiB and 3.44 8 GiB of memory: skipped without

import contextlib
import csv
import datetime
import functools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import test_collbench as house
from test_collbench import (ONE_BLOCK, OPERATIONS, PLACES, QUICK, TYPES, Case, Run, attempts,
                            reject)

ALGORITHMS = {
    "allreduce": ["ring", "tree", "oneshot", "twoshot", "recursive_doubling", "halving_doubling",
                  "swing", "hierarchical"],
    "allgather": ["ring", "recursive_doubling", "bruck", "pat", "direct"],
    "reduce_scatter": ["ring", "recursive_halving", "bruck", "pat", "direct"],
    "alltoall": ["pairwise", "direct", "hierarchical", "bruck"],
    "broadcast": ["binomial", "chain", "scatter_allgather", "double_tree"],
    "reduce": ["direct", "binomial", "chain", "reduce_scatter_gather"],
    "gather": ["direct", "binomial"], "scatter": ["direct", "binomial"], "sendrecv": ["shift"]}
WIRES = [["--wire", "staged"], ["--wire", "ll"], ["--wire", "pull"], ["--buffers", "private"]]
FACTORS = {**dict.fromkeys(OPERATIONS, lambda n: (n - 1) / n),
           **dict.fromkeys(ONE_BLOCK, lambda n: 1), "allreduce": lambda n: 2 * (n - 1) / n}
CHECKED_OK = "# Out of bounds values : 0 OK"


@contextlib.contextmanager
def cores(most):
    """Commands within may use so many cores at most."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:most])
    try:
        yield min(most, len(before))
    finally:
        os.sched_setaffinity(0, before)


def available_B():
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) << 10


@functools.lru_cache
def transports():
    """Those that `collbench list` prints and that can be used here. On one host the composites are
    shared memory alone."""
    lines = Run(["list"]).out.split("\nTransports\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if " - " not in line and "+" not in line.split()[0]]


@functools.lru_cache
def above_4_gib():
    """One rank, 2^31 + 1 elements of two bytes: shared by the tests about numbers of 32 bits."""
    if available_B() < 6 << 30:
        raise unittest.SkipTest("needs 6 GiB of memory")
    # the check of so many elements is what takes long, some 15 s
    return Run(["allreduce", "--size", str(2 * (2**31 + 1)), "-d", "bfloat16", "--ranks", "1",
                "--in-place", "-n", "1", "-w", "0", "--json", "-"], timeout=600)


class Peers(Case):
    def sample_median(self, row, place):
        ordered = sorted(row[place + "_samples_us"])
        return ordered[(len(ordered) + 1) // 2 - 1]

    def rows(self, *args, **kwargs):
        """In order of size: JSON has them in the order in which they were measured."""
        return sorted(self.run_json(*args, **kwargs)["rows"], key=lambda row: row["size_B"])

    def broken(self, *args, fault, timeout_s):
        """The error text of a run that fails by itself within its timeout and some slack."""
        run = Run([*args, "-T", str(timeout_s)], env={"COLLBENCH_FAULT": fault})
        self.assertEqual(run.code, 1, run.err)
        self.assertLess(run.seconds, timeout_s + house.SLACK_S)
        self.assertIn("N/A, the run failed", run.out)
        return run.err


# ---- an MPI library with a fault, and made-up records ----

# Stands in front of MPICH: what the library's all-reduce and all-gather return is changed as FAULT
# says. Collectives that are only started are run to their end at once, and are wrong too.
FAULTY_MPI = r"""
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
typedef int handle;
int PMPI_Allreduce(const void *, void *, int, handle, handle, handle);
int PMPI_Allgather(const void *, int, handle, void *, int, handle, handle);
int PMPI_Type_size(handle, int *);
int PMPI_Comm_size(handle, int *);
static void spoil(char *data, size_t block)
{
    const char *fault = getenv("FAULT");
    char *other = data + block, *copy = malloc(block);
    if (fault && !strcmp(fault, "bit")) data[block - 1] ^= 1;
    if (fault && !strcmp(fault, "swap")) {
        memcpy(copy, data, block);
        memcpy(data, other, block);
        memcpy(other, copy, block);
    }
    free(copy);
}
static void spoil_input(const void *in, size_t bytes)
{
    const char *fault = getenv("FAULT");
    if (fault && !strcmp(fault, "input")) ((char *)in)[bytes - 1] ^= 1;
}
static size_t bytes_of(int count, handle type)
{
    int size;
    PMPI_Type_size(type, &size);
    return (size_t)count * size;
}
int MPI_Allreduce(const void *in, void *out, int count, handle type, handle op, handle comm)
{
    int rc = PMPI_Allreduce(in, out, count, type, op, comm);
    spoil(out, bytes_of(count, type) / 2);
    if (in != (void *)-1) spoil_input(in, bytes_of(count, type));
    return rc;
}
int MPI_Allgather(const void *in, int count, handle type, void *out, int count2, handle type2,
                  handle comm)
{
    int rc = PMPI_Allgather(in, count, type, out, count2, type2, comm);
    spoil(out, bytes_of(count2, type2));
    return rc;
}
int MPI_Iallreduce(const void *in, void *out, int count, handle type, handle op, handle comm,
                   handle *request)
{
    *request = 0x2c000000; /* MPI_REQUEST_NULL */
    return MPI_Allreduce(in, out, count, type, op, comm);
}
int MPI_Iallgather(const void *in, int count, handle type, void *out, int count2, handle type2,
                   handle comm, handle *request)
{
    *request = 0x2c000000;
    return MPI_Allgather(in, count, type, out, count2, type2, comm);
}
"""


def mpiexec_or_skip():
    """MPICH's mpiexec."""
    for name in ("mpiexec.mpich", "mpiexec.hydra", "mpiexec"):
        file = shutil.which(name)
        if file and "HYDRA" in subprocess.run([file, "--version"], capture_output=True, text=True,
                                              check=False).stdout.upper():
            return file
    raise unittest.SkipTest("there is no mpiexec of MPICH")


@functools.lru_cache
def faulty_mpi():
    """An mpiexec beside whose library FAULTY_MPI is found; the folder lives as long as this run."""
    mpiexec, compiler = mpiexec_or_skip(), shutil.which("cc") or shutil.which("gcc")
    folder = tempfile.TemporaryDirectory(prefix="peers-")
    for name in ("bin", "lib"):
        os.mkdir(os.path.join(folder.name, name))
    source = os.path.join(folder.name, "faulty.c")
    with open(source, "w", encoding="ascii") as file:
        file.write(FAULTY_MPI)
    for library in ("-l:libmpich.so.12", "-l:libmpi.so.12"):
        built = compiler and subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", folder.name + "/lib/libmpi.so.12", source,
             "-Wl,--no-as-needed", library], capture_output=True, text=True, check=False)
        if built and built.returncode == 0:
            break
    else:
        raise unittest.SkipTest("no compiler that can link with MPICH's library")
    script = folder.name + "/bin/mpiexec"
    with open(script, "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\nexec {mpiexec} "$@"\n')
    os.chmod(script, 0o755)
    return folder, script


def against_faulty_mpi(operation, fault, *args):
    return Run([operation, "--size", "4K", "--ranks", "2", "--vs", "mpi", "--mpiexec",
                faulty_mpi()[1], *QUICK, *args], env={"FAULT": fault} if fault else None)


def made_up_record(rng, medians, spread=0.01, count=200):
    """A record of rows with these medians, in microseconds, by size."""
    rows = []
    for size, median in medians.items():
        samples = [median * math.exp(rng.gauss(0, spread)) for _ in range(count)]
        p50 = sorted(samples)[(count + 1) // 2 - 1]
        rows.append({"size_B": size, "count_elements": size // 4, "type": "float", "redop": "sum",
                     "root": -1, "algo": "ring", "transport": "shm/pull", "buffers": "shared",
                     "source": "measured", "nranks": 2, "out_of_place_p50_us": p50,
                     "out_of_place_algbw_GBps": size / p50 / 1e3,
                     "out_of_place_busbw_GBps": size / p50 / 1e3,
                     "out_of_place_transport": "shm/pull", "out_of_place_nsamples": count,
                     "out_of_place_samples_us": samples})
    return {"meta": {"program": "collbench 0.1.0", "schema": 2, "collective": "allreduce",
                     "nranks": 2, "processor": "Abacus", "command": "collbench allreduce",
                     "clock_cost_s": 2e-8, "barrier_s": 1e-7, "ping_s": 5e-8},
            "rows": rows, "summary": {"okay": True}, "notes": []}


class Section3(Peers):
    """Reports in public threads, by number."""

    def test_s3_01_one_rank_is_no_defect(self):
        """With one rank busbw is 0 and algbw absurd, which was taken for a defect: nccl-tests#249,
        #335, #287."""
        run = self.run_fine("allreduce", "--size", "1M", "--ranks", "1", *QUICK)
        self.assertEqual((run.column(7), run.column(11)), (["0.00"], ["0.00"]))
        self.assertIn("one rank: nothing travels, so busbw is 0", run.out)

    def test_s3_02_copies_by_a_foreign_launcher(self):
        """Built without MPI, N copies ran alone, each as rank 0: nccl-tests#27, #213, #329. Here
        copies meet, and none runs alone when the others do not come."""
        for variables, words in (
                ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "1 of the 2 copies that mpiexec (PMI) has"),
                ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "rank 0 did not open"),
                ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "1 of the 4 copies")):
            run = Run(["allreduce", "--size", "1K", "--timeout", "1", *QUICK], env=variables)
            self.assertEqual((run.code, run.out), (1, ""), variables)
            self.assertIn(words, run.err)
        run = Run(["allreduce", "--size", "1K", "--ranks", "2", *QUICK], env={"PMIX_RANK": "0"})
        self.assertEqual((run.code, run.out), (2, ""))
        self.assertIn('run "collbench OPERATION --ranks N" once', run.err)

    def test_s3_03_one_header_one_row_per_size(self):
        """Every row came twice, from copies that did not know of each other: nccl-tests#182,
        #294."""
        run = self.run_fine("allreduce", "-b", "1K", "-e", "4K", "-f", "2", "--ranks", "4", *QUICK)
        self.assertEqual(run.column(0), ["1024", "2048", "4096"])
        self.assertEqual(sum(line.startswith("#       size") for line in run.lines), 1)
        self.assertEqual(run.out.count("# collbench "), 1)

    def test_s3_06_step_suffix_is_read(self):
        """`-i 2M` was read as 2 bytes: nccl-tests#226 (#225)."""
        run = Run(["allreduce", "-b", "64M", "-e", "70M", "-i", "2M", "--ranks", "1", "--in-place",
                   "-c", "0", "-n", "1", "-w", "0"])
        self.assertEqual((run.code, run.column(0)), (0, [str(m << 20) for m in (64, 66, 68, 70)]))

    def test_s3_07_smallest_above_largest(self):
        """min > max, and small letters as units, were mishandled: nccl-tests#88."""
        self.refused("allreduce", "-b", "1m", "-e", "1k", words=["1048576", "1024"])
        self.assertEqual(self.run_fine("allreduce", "-b", "1k", "-e", "2k", "-f", "2", "--ranks",
                                       "2", *QUICK).column(0), ["1024", "2048"])

    def test_s3_08_memory_is_counted_before(self):
        """A guess of 1 GiB headroom was too small near full memory: nccl-tests#220."""
        units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

        def once():  # others take and give memory meanwhile
            size = available_B() * 5 // 16  # two ranks, an input and an output each
            run = self.refused("allreduce", "--size", str(size), "--ranks", "2", *QUICK,
                               words=["of memory, but only", "are available"])
            fits, unit = run.err.split("the largest size that fits is ")[1].split()
            share = 4 * float(fits) * units[unit] / available_B()
            self.assertTrue(0.8 < share < 1.05, share)
        attempts(once)

    def test_s3_09_json_is_one_document(self):
        """Text had to be parsed, for years: nccl-tests#120, #138, #318; rccl-tests#93."""
        document = self.run_json("allreduce", "-b", "1K", "-e", "4K", "-f", "2", "--ranks", "2",
                                 *QUICK)
        self.assertEqual(sorted(row["size_B"] for row in document["rows"]), [1024, 2048, 4096])
        self.assertEqual(len({row["order"] for row in document["rows"]}), 3)
        self.assertIs(document["summary"]["okay"], True)

    def test_s3_10_csv_reads_back(self):
        """Fields with quotes and blanks broke readers, and the JSON was loose pieces:
        rccl-tests#140."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.csv")
            self.run_fine("broadcast", "-b", "1K", "-e", "4K", "-f", "2", "--ranks", "2", "--csv",
                          path, *QUICK)
            with open(path, newline="", encoding="utf-8") as file:
                table = list(csv.reader(file, strict=True))
            with open(path, encoding="utf-8") as file:
                text = file.read()
        self.assertEqual([line[0] for line in table], ["size_B", "1024", "2048", "4096"])
        self.assertEqual({len(line) for line in table}, {len(table[0])})
        self.assertEqual(len(set(table[0])), len(table[0]))
        self.assertNotIn('"', text)
        for line in table[1:]:
            float(line[table[0].index("out_of_place_time_us")])

    def test_s3_11_formulas_are_told(self):
        """Users cannot tell algbw from busbw: nccl-tests#159, #160, #274, #279, #153."""
        for operation in OPERATIONS:
            meta = self.run_json(operation, "--size", "6K", "--ranks", "3", *QUICK)["meta"]
            self.assertTrue(math.isclose(meta["busbw_factor"], FACTORS[operation](3)), operation)
            formula = meta["busbw_formula"].replace("2(", "2*(").replace("n", "3")
            self.assertTrue(math.isclose(eval(formula), FACTORS[operation](3)), formula)
            said = " ".join(Run([operation, "--help"]).out.split())
            self.assertIn("algbw = size / time; busbw = algbw x " + meta["busbw_formula"], said)

    def test_s3_12_algbw_times_time_is_the_size(self):
        """algbw of an all-gather held (n - 1) / n already: nccl-tests#45. From the table itself,
        with what rounding to its decimals allows."""
        for operation in OPERATIONS:
            row = self.run_fine(operation, "--size", "6M", "--ranks", "3", *QUICK).rows[0]
            for at in (5, 9):
                time_us, algbw, busbw = (float(word) for word in row[at:at + 3])
                self.assertTrue(math.isclose(algbw * time_us * 1e3, int(row[0]),
                                             rel_tol=1e-3 + 0.006 / algbw), row)
                self.assertTrue(math.isclose(busbw, algbw * FACTORS[operation](3),
                                             rel_tol=1e-3, abs_tol=0.012), row)

    def test_s3_13_alltoall_bandwidth(self):
        """What the bandwidth of an all-to-all means was nowhere written: nccl-tests#59, #130, #174,
        #181."""
        for row in self.rows("alltoall", "--size", "64K", "--ranks", "4", *QUICK):
            for place in PLACES:
                ratio = row[place + "_busbw_GBps"] / row[place + "_algbw_GBps"]
                self.assertTrue(math.isclose(ratio, 0.75, rel_tol=1e-9))

    def test_s3_14_barrier_is_not_in_the_time(self):
        """The blocking mode counted the barrier: nccl-tests#72. Before each isolated operation is a
        barrier in which ranks wait 5 ms for the last one; it must not show."""
        def once():
            document = self.run_json("allreduce", "--size", "1K", "--ranks", "2", "--skew", "5ms",
                                     "-n", "11", "-w", "1", "--in-place")
            self.assertEqual(document["meta"]["cadence"], "isolated")
            self.assertEqual({row["series"] for row in document["rows"]}, {"on time", "one late"})
            for row in document["rows"]:
                self.assertLess(row["in_place_p50_us"], 2500, row["series"])
        attempts(once)
        document = self.run_json("allreduce", "--size", "1K", "--ranks", "2", "--cadence",
                                 "isolated", *QUICK)
        self.assertGreater(document["meta"]["barrier_s"], 0)
        self.assertTrue([note for note in document["notes"] if "barrier before each" in note
                         and "not in its time" in note])
        self.assertTrue([note for note in document["notes"] if note.startswith("clock: ")
                         and "; barrier " in note])

    def test_s3_15_both_cadences(self):
        """Isolated and back-to-back operations gave 94.3 and 54.2 GB/s: openucx/ucc#1326."""
        for cadence in ("isolated", "back-to-back"):
            args = ["allreduce", "--size", "4K", "--ranks", "2", "--cadence", cadence, *QUICK]
            self.assertIn(f"cadence: {cadence}", self.run_fine(*args).out)
            self.assertEqual(self.run_json(*args)["meta"]["cadence"], cadence)
        self.assertEqual(self.run_json("allreduce", "--size", "4K", "--ranks", "2",
                                       *QUICK)["meta"]["cadence"], "back-to-back")

    def test_s3_16_alone_as_in_a_sweep(self):
        """The same size gave twice the time in a sweep: nccl-tests#104."""
        args = ["allreduce", "--ranks", "2", "-n", "200"]

        def once():
            alone = self.rows(*args, "--size", "64K")[0]
            sweep = self.rows(*args, "-b", "16K", "-e", "256K", "-f", "2")
            same = [row for row in sweep if row["size_B"] == 65536][0]
            for place in PLACES:
                ratio = same[place + "_p50_us"] / alone[place + "_p50_us"]
                self.assertTrue(1 / 3 < ratio < 3, f"{place}: {ratio}")
        attempts(once)

    def test_s3_17_a_slow_first_call(self):
        """First calls are 10 to 1000 times slower: nccl-tests#304; nccl#415, #552, #1487. Without
        warm-up the first sample must be there to see, and the median must not follow it."""
        def once():
            row = self.rows("allreduce", "--size", "64K", "--ranks", "2", "--in-place", "-n", "31",
                            "--warmup_iters", "0", "-c", "0")[0]
            first = row["in_place_samples_us"][0]
            self.assertGreater(first, 2 * row["in_place_p50_us"])
            self.assertGreaterEqual(row["in_place_max_us"], first)
            self.assertEqual(row["in_place_p50_us"], self.sample_median(row, "in_place"))
        attempts(once, 5)

    def test_s3_18_warm_up_as_asked(self):
        """Warm-up was capped, or in another mode than what was measured: rccl-tests#75; ucx#3750,
        #3740. A rank that dies at its 3900th operation does so in a warm-up of 4000, not without;
        the operation is the one that is measured; and there are not much more than asked for."""
        args = ["allreduce", "--size", "1K", "--ranks", "2", "--in-place", "--algo", "ring", "-n",
                "1", "-c", "0", "-w"]
        said = self.broken(*args, "4000", fault="kill:1:3900", timeout_s=20)
        self.assertIn("allreduce ring, 1024 B, in place, warming up", said)
        for warmup, tick in (("4000", 6000), ("0", 3900)):
            run = Run([*args, warmup], env={"COLLBENCH_FAULT": f"kill:1:{tick}"})
            self.assertEqual(run.code, 0, run.err)
        self.assertEqual(self.run_json(*args, "17")["meta"]["warmup"], 17)

    def test_s3_19_several_operations_per_sample(self):
        """0.5 us as "latency" when aggregated, 3.5 us alone: nccl#1984."""
        args = ["allreduce", "--size", "2K", "--ranks", "2", "-m", "7", "-n", "5"]
        self.assertGreaterEqual(self.rows(*args)[0]["batch"], 7)
        self.assertRegex(self.run_fine(*args).out,
                         r"# 2 results have samples of several operations .* are of batches")

    def test_s3_20_chunk_edges_on_every_wire(self):
        """Wrong values above some size, or with some transport off: nccl-tests#167, #131, #7;
        nccl#1199."""
        for wire in WIRES:
            for edge in (4096, 3 * 8192):  # a slice of 2 KiB, and 3 ranks
                run = self.run_fine("allreduce", "-b", str(edge - 4), "-e", str(edge + 4), "-i",
                                    "4", "--slice", "2K", "--ranks", "3", "--algo", "all", *wire,
                                    "-n", "1", "-w", "0")
                self.assertEqual(len(run.rows), 3 * len(ALGORITHMS["allreduce"]))
                self.assertEqual(set(run.column(8) + run.column(12)), {"0"})

    def test_s3_21_many_rounds_of_small_sizes(self):
        """Wrong with one protocol at small sizes, after many iterations: microsoft/msccl#27."""
        for wire in WIRES:
            run = self.run_fine("allreduce", "-b", "4", "-e", "256", "-f", "4", "--ranks", "2",
                                "--algo", "all", *wire, "-n", "200", "-w", "0", "-c", "200")
            self.assertEqual(set(run.column(8) + run.column(12)), {"0"})

    def test_s3_22_no_time_for_a_wrong_result(self):
        """An all-to-all in place printed 320 TB/s, with errors: microsoft/msccl#48."""
        run = Run(["alltoall", "--size", "1K", "--ranks", "2", "--in-place", *QUICK],
                  env={"COLLBENCH_WRONG": "0:3"})
        self.assertEqual(run.code, 1)
        self.assertEqual(run.rows[0][9:12], ["N/A"] * 3)
        self.assertGreater(int(run.rows[0][12]), 0)

    def test_s3_23_alltoall_in_place(self):
        """Is it legal at all? nccl#1839. Here it is, and it is right."""
        args = ["alltoall", "--size", "20K", "--ranks", "3", "--in-place", "--algo", "all"]
        for wire in (["--wire", "staged"], ["--wire", "ll"], ["--buffers", "private"]):
            run = self.run_fine(*args, *wire, *QUICK)
            self.assertEqual(set(run.column(12)), {"0"})
            self.assertNotIn("N/A", run.column(9))
        self.refused(*args, "--wire", "pull", words=["in place", "valid: --wire auto or staged"])

    def test_s3_24_swapped_blocks_are_found(self):
        """Data that are the same all over a rank hid misplaced blocks: mscclpp#198."""
        for operation in ("allreduce", "allgather"):
            self.assertEqual(against_faulty_mpi(operation, None).code, 0)
            run = against_faulty_mpi(operation, "swap")
            self.assertEqual(run.code, 1, run.out)
            self.assertIn("wrong elements", run.err)

    def test_s3_25_an_odd_large_count(self):
        """10556587 floats on 8 ranks tripped over alignment: mscclpp#682, #697."""
        run = self.run_fine("allreduce", "--size", str(4 * 10556587), "--ranks", "8", "--in-place",
                            "-n", "1", "-w", "0", "-c", "1")
        self.assertEqual((run.column(1), run.column(12)), (["10556587"], ["0"]))

    def test_s3_26_counts_around_128(self):
        """Corruption when the size is no multiple of 128: ROCm/rccl#1556."""
        for operation in OPERATIONS:
            for count in (127, 128, 129, 255):
                for width, dtype in ((2, "bfloat16"), (4, "float")):
                    if count in (128, 255) and width == 4:
                        continue
                    blocks = 1 if operation in ONE_BLOCK else 2
                    run = self.run_fine(operation, "--size", str(count * width * blocks), "-d",
                                        dtype, "--ranks", "2", "--algo", "all", "-n", "1", "-w",
                                        "0")
                    self.assertEqual(set(run.column(1)), {str(count)})
                    self.assertEqual(set(run.column(8) + run.column(12)), {"0"})

    def test_s3_27_what_was_asked_and_what_is_used(self):
        """Sizes were trimmed to 16 bytes per rank in silence: nccl-tests#142; rccl-tests#105."""
        args = ["allgather", "--size", "100", "--ranks", "3", *QUICK]
        run = self.run_fine(*args)
        self.assertEqual(run.column(0), ["96"])
        self.assertIn("# 100 B asked: 96 B used", run.out)
        self.assertTrue([n for n in self.run_json(*args)["notes"] if "100 B asked: 96 B" in n])
        run = self.run_fine("allgather", "--size", "12", "--ranks", "3", *QUICK)  # exact
        self.assertEqual(run.column(0), ["12"])
        self.assertNotIn("asked:", run.out)

    def test_s3_28_a_wrong_library_is_blamed(self):
        """OSU's -c failed with one combination of components of the library: ompi#12717. The
        library is named, not the own algorithm, whose row is whole; so with a library that
        writes to its input."""
        fine = against_faulty_mpi("allreduce", None)
        self.assertEqual(fine.code, 0, fine.err)
        self.assertIn(CHECKED_OK, fine.out)
        for fault in ("bit", "input"):
            run = against_faulty_mpi("allreduce", fault, "--out-of-place")
            self.assertEqual(run.code, 1, run.out)
            self.assertIn("allreduce mpi", run.err)
            self.assertNotIn("allreduce twoshot", run.err)
            self.assertEqual(fault == "input", "input element" in run.err)
            own, other = run.rows
            self.assertIn("own", own)
            self.assertEqual(own[8], "0")
            self.assertNotEqual(own[5], "N/A")
            self.assertEqual(other[5], "N/A")
            self.assertGreater(int(other[8]), 0)

    def test_s3_29_the_check_itself(self):
        """The checker was wrong, and a case allocated 2^64 bytes: intel/mpi-benchmarks#22, #4,
        #51. All types, operators and algorithms are right by it; one wrong element never is."""
        run = self.run_fine("allreduce", "--size", "3000", "--ranks", "5", "-d", "all", "-o", "all",
                            "--algo", "all", "-c", "3", "-n", "1", "-w", "0")
        self.assertEqual(len(run.rows), 5 * len(TYPES) * len(ALGORITHMS["allreduce"]))
        self.assertEqual(set(run.column(8) + run.column(12)), {"0"})
        for dtype in TYPES:
            run = Run(["allreduce", "--size", "6000", "--ranks", "2", "-d", dtype, "-n", "1", "-w",
                       "0"], env={"COLLBENCH_WRONG": "1:700"})
            self.assertEqual(run.code, 1)
            self.assertIn("rank 1, output element 700,", run.err)
        for size in ("0", "1", "3"):
            self.run_fine("alltoall", "--size", size, "--ranks", "3", "-n", "1", "-w", "0")

    def test_s3_30_sums_are_exact(self):
        """What does the "error" of floats mean, and why is it another one for ring and tree?
        nccl-tests#176. Here the data add up exactly, in any order: whole numbers of elements."""
        run = self.run_fine("allreduce", "--size", "64K", "--ranks", "6", "-d", "float,bfloat16",
                            "-o", "sum,avg", "--algo", "ring,tree", *QUICK)
        self.assertEqual(len(run.rows), 8)
        self.assertEqual(set(run.column(8) + run.column(12)), {"0"})
        self.assertEqual(run.out.count("#wrong     time"), 1)

    def test_s3_31_precision_of_algorithms(self):
        """A ring is less precise than a tree in low precision: nccl#1055, #855. How far apart they
        are is reported, in ulp; a maximum, which does not round, is the same in all."""
        args = ["allreduce", "--size", "4K", "--ranks", "4", "-d", "bfloat16", "--algo",
                "ring,tree", "--out-of-place", "--repeat-check"]
        first, other = self.rows(*args)
        self.assertEqual((first["algo"], first["max_ulp"]), ("ring", 0))
        self.assertEqual(other["algo"], "tree")
        self.assertGreater(other["max_ulp"], 0)
        self.assertGreater(other["differ_elements"], 0)
        self.assertTrue(math.isclose(other["differ_pct"], 100 * other["differ_elements"] / 2048,
                                     rel_tol=1e-6))
        for row in self.rows(*args, "-o", "max"):
            self.assertEqual((row["max_ulp"], row["differ_elements"]), (0, 0))

    def test_s3_32_the_same_bits_again(self):
        """Results depend on size, algorithm and run; 34 % of the elements differed: nccl#157,
        #1497; rocm-systems#11661. Said per row; a run that differs fails."""
        args = ["allreduce", "--size", "4K", "--ranks", "3", "--algo", "all", "--repeat-check"]
        document = self.run_json(*args)
        self.assertEqual(len(document["rows"]), 2 * len(ALGORITHMS["allreduce"]))
        for row in document["rows"]:
            self.assertEqual((row["ranks"], row["runs"]), ("same", "same"))
        self.assertIn("differs", {row["vs_first"] for row in document["rows"]})
        self.assertIs(document["summary"]["repeatable"], True)
        again = self.run_json(*args)["rows"]
        self.assertEqual([row["hash"] for row in document["rows"]], [row["hash"] for row in again])

    def test_s3_34_a_hang_ends(self):
        """Hangs for minutes without a word: nccl-tests#26, #102, #193; nccl#199, #1634."""
        said = self.broken("allreduce", "--size", "1K", "--ranks", "3", "-n", "20",
                           fault="stop:2:30", timeout_s=2)
        self.assertRegex(said, r"rank 2 \(pid \d+\) made no progress for 2 s \(it is stopped\)")

    def test_s3_35_who_waits_for_whom(self):
        """Which rank is stuck? nccl#1324, #1911; gloo#511 (PR #513)."""
        said = self.broken("allreduce", "--size", "1K", "--ranks", "3", "--algo", "ring", "-n",
                           "20", fault="stall:1:30", timeout_s=2)
        self.assertRegex(said, r"rank 1 .*made no progress for 2 s")
        for words in ("allreduce ring, 1024 B", "rank 2 waited for it at step", "peer 1"):
            self.assertIn(words, said)

    def test_s3_36_dead_before_the_first_operation(self):
        """The survivor ignored the timeout: gloo#520."""
        said = self.broken("allreduce", "--size", "1K", "--ranks", "3", fault="kill:1:0",
                           timeout_s=5)
        self.assertRegex(said, r"rank 1 \(pid \d+\) was killed by signal 9 .*starting")

    def test_s3_37_ranks_of_different_sizes(self):
        """Ranks that disagreed on the size hung, or left a wrong tail: nccl#1394, #1417. Started by
        a launcher of such ranks, no copy measures anything."""
        copies = [subprocess.Popen([house.PROGRAM, "allreduce", "--size", size, "-T", "20", *QUICK],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": "2"})
                  for rank, size in enumerate(("1K", "2K"))]
        ends = [copy.communicate(timeout=60) for copy in copies]
        self.assertEqual([(copy.returncode, out) for copy, (out, _) in zip(copies, ends)],
                         [(2, ""), (2, "")])
        self.assertIn("rank 1 on", ends[0][1])
        self.assertIn("was started with another command line than rank 0", ends[0][1])
        self.refused("allreduce", "--size", "1K,2K", words=["--size"])

    def test_s3_38_a_small_dev_shm(self):
        """/dev/shm of 64 MB in containers: no space left, or a bus error: nccl#342, #290, #525;
        nccl-tests#143. Here it has 64 KiB, the buffers 16 MiB."""
        if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
            self.skipTest("this user may not mount in a namespace of its own")
        script = ('mount -t tmpfs -o size=64k tmpfs /dev/shm && "$@"; status=$?; '
                  'ls -A /dev/shm >&2; exit $status')
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", house.PROGRAM,
                               "allreduce", "--size", "4M", "--ranks", "2", *QUICK],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn(CHECKED_OK, done.stdout)

    def test_s3_39_a_mask_of_one_core(self):
        """A launcher's binding halved the speed in silence: nccl#644; nccl-tests#57; ompi#5488."""
        args = ["allreduce", "--size", "1K", "--ranks", "2", *QUICK]
        with cores(1):
            run, document = self.run_fine(*args), self.run_json(*args)
        self.assertIn("# WARNING: more ranks (2) than cores (1)", run.out)
        self.assertIn("# WARNING: ranks are not bound to cores", run.out)
        self.assertTrue([n for n in document["notes"] if n.startswith("WARNING: more ranks")])
        self.assertEqual(document["meta"]["bind"], "none")
        self.assertEqual(len(set(document["meta"]["processors_by_rank"].split(" | "))), 1)
        alone = self.run_fine("allreduce", "--size", "1K", "--ranks", "1", *QUICK)
        self.assertNotIn("WARNING: more ranks", alone.out)

    def test_s3_40_four_ranks_per_core(self):
        """Spinning with more ranks than cores made 4 minutes 80: ompi#10426; mpich#2248."""
        with cores(2) as ncores:
            run = self.run_fine("allreduce", "--size", "1K", "--ranks", str(4 * ncores), timeout=60)
        self.assertIn("# WARNING: more ranks", run.out)
        self.assertEqual(len(run.rows), 1)

    def test_s3_41_the_algorithm_that_ran(self):
        """A forced algorithm fell back in silence: nccl-tests#65; nccl#1444, #754, #408, #1304;
        rccl#1137."""
        for operation, algorithms in ALGORITHMS.items():
            run = self.run_fine(operation, "--size", "6K", "--ranks", "3", "--algo",
                                ",".join(algorithms), *QUICK)
            self.assertEqual(run.column(13), algorithms)
        self.assertIn(self.run_fine("allreduce", "--size", "6K", "--ranks", "3",
                                    *QUICK).column(13)[0], ALGORITHMS["allreduce"])
        self.refused("allgather", "--algo", "tree", words=["tree", "ring"])
        self.refused("allreduce", "--buffers", "private", "--wire", "pull", words=["--wire pull"])

    def test_s3_42_no_jump_between_neighbours(self):
        """Tuned tables: 128 ranks were 10 times slower than 127: ompi#8186, #1713, #10947. One more
        rank makes it more than 3 times slower only with a warning; where auto changes the
        algorithm or its parts, the next size does not fall behind."""
        with cores(2) as ncores:
            few, many = (self.run_json("allreduce", "--size", "4K", "--ranks", str(n), "-n", "100")
                         for n in (ncores, ncores + 1))
        warned = [any(note.startswith("WARNING: more ranks") for note in document["notes"])
                  for document in (few, many)]
        self.assertEqual(warned, [False, True])

        def once():
            rows = self.rows("allreduce", "-b", "1K", "-e", "4M", "-f", "2", "--ranks",
                             str(ncores), "-n", "100", "--in-place")
            for row, after in zip(rows, rows[1:]):
                self.assertLess(after["in_place_p50_us"], 6 * row["in_place_p50_us"],
                                (after["size_B"], after["algo"]))
        attempts(once)

    def test_s3_43_above_4_gib(self):
        """A field of 32 bits: random numbers above 4 GB: ucx#10295."""
        run = above_4_gib()
        self.assertEqual(run.code, 0, run.err)
        document = json.loads(run.out, parse_constant=reject)
        row = document["rows"][0]
        self.assertEqual(row["size_B"], 2**32 + 2)
        self.assertTrue(0 <= row["in_place_time_us"] < run.seconds * 1e6)
        self.assertGreater(document["meta"]["memory_need_B"], 2**32)

    def test_s3_44_more_than_2_gib_through_mpi(self):
        """2 GiB wrapped to a negative number, loops never ended: mpich#2317, #2996;
        CommBench#2. It is measured, or the limit is named."""
        mpiexec = mpiexec_or_skip()
        if available_B() < 8 << 30:
            self.skipTest("needs 8 GiB of memory")
        run = Run(["broadcast", "--size", "2G", "--ranks", "2", "--in-place", "--buffers",
                   "private", "--vs", "mpi", "--mpiexec", mpiexec, "-n", "1", "-w", "0", "-c",
                   "0"], timeout=200)
        if run.code:  # then it says what the limit is
            self.assertRegex(run.err, r"MPI.*at most \d+")
            return
        self.assertEqual(run.column(0), [str(2**31)] * 2)
        for row in run.rows:
            self.assertGreater(float(row[9]), 0)
            self.assertLess(float(row[9]), run.seconds * 1e6)

    def test_s3_45_the_overflowing_number_is_named(self):
        """An overflow warning named the wrong thing: intel/mpi-benchmarks#63."""
        self.refused("allreduce", "--size", "99999999999999999999", words=["--size", "too large"])
        self.refused("allreduce", "--ranks", "9999999999", words=["--ranks", "1..1048576"])
        self.refused("allreduce", "-n", "99999999999999999999", words=["-n:", "1..4294967295"])
        self.refused("allreduce", "-m", "4294967296", words=["-m:", "1..4294967295"])
        self.refused("allreduce", "--size", "1048575T", "--ranks", "2", words=["EiB of memory"])

    def test_s3_46_nothing_is_faster_than_the_clock_on_the_wall(self):
        """Times of the sender alone overstated bandwidth: ucx#10184, #285. How much longer a
        run takes for more operations must be in the times it reports."""
        args = ["broadcast", "--size", "1M", "--ranks", "2", "--out-of-place", "-c", "0", "-w", "0",
                "-n", "4", "--json", "-"]

        def once():
            runs = [Run([*args, "-m", batch]) for batch in ("10", "4000")]
            rows = [json.loads(run.out)["rows"][0] for run in runs]
            sums = [sum(row["out_of_place_samples_us"]) * row["batch"] / 1e6 for row in rows]
            longer = runs[1].seconds - runs[0].seconds
            self.assertGreaterEqual(sums[1] - sums[0], longer / 2)
            self.assertLessEqual(sums[1], runs[1].seconds)
        attempts(once)

    def test_s3_47_a_median_of_three(self):
        """The median was 0 with few iterations: ucx#6939."""
        for count in (1, 2, 3):
            row = self.rows("allreduce", "--size", "2K", "--ranks", "2", "-n", str(count))[0]
            for place in PLACES:
                self.assertIn(row[place + "_p50_us"], row[place + "_samples_us"])
                self.assertGreater(row[place + "_p50_us"], 0)
                self.assertEqual(row[place + "_p50_us"], self.sample_median(row, place))

    def test_s3_48_percentiles_in_timed_runs(self):
        """A run by time lost its percentiles: linux-rdma/perftest#80."""
        for limit in (["--time", "0.3s"], ["--max-time", "0.02", "--precision", "0.00001"]):
            rows = self.rows("allreduce", "--size", "2K", "--ranks", "2", *limit)
            for row in rows:
                for place in PLACES:
                    values = [row[f"{place}_{key}_us"] for key in ("min", "p50", "p95", "p99",
                                                                   "max")]
                    self.assertEqual(values, sorted(values))
                    self.assertGreater(values[0], 0)
        if row["in_place_stop"] == "precision":  # steps of the clock can make half the samples equal
            half = (row["in_place_ci_high_us"] - row["in_place_ci_low_us"]) / 2
            self.assertLessEqual(half, 0.000011 * row["in_place_p50_us"])
        else:
            self.assertIn(row["in_place_stop"], ("time", "count"))

    def test_s3_49_the_unit_is_the_divisor(self):
        """MB and MiB were confused: linux-rdma/perftest#35, #257, #97."""
        run = self.run_fine("allreduce", "--size", "4M", "--ranks", "2", *QUICK)
        units = [line for line in run.lines if line.startswith("#        (B)")][0].split()
        self.assertEqual(units[3:6], ["(us)", "(GB/s)", "(GB/s)"])
        row = run.rows[0]
        exact, binary = (int(row[0]) / (float(row[5]) * 1e-6) / unit for unit in (1e9, 2**30))
        self.assertLess(abs(float(row[6]) - exact), abs(float(row[6]) - binary))
        self.assertIn("GB = 10^9 B", run.out)
        self.assertIn("GB is 10^9 bytes", Run(["allreduce", "--help"]).out)

    def compare(self, a, b, code):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("a.json", "b.json")]
            for path, record in zip(paths, (a, b)):
                with open(path, "w", encoding="ascii") as file:
                    json.dump(record, file)
            run = Run(["compare", *paths, "--json", "-"])
        self.assertEqual(run.code, code, run.out + run.err)
        return {row["size_B"]: row["verdict"] for row in json.loads(run.out)["rows"]}

    def test_s3_50_jitter_is_no_regression(self):
        """Healthy machines failed a threshold by jitter, at small sizes most:
        Azure/azurehpc#690; flagos-ai/FlagCX#202."""
        rng = random.Random(50)
        medians = {8 << k: 10.0 * 1.5**k for k in range(6)}
        before = made_up_record(rng, medians)
        after = made_up_record(rng, medians)
        for row in after["rows"]:  # three outliers: the mean is 16 times what it was
            row["out_of_place_samples_us"][10:13] = [1000 * row["out_of_place_p50_us"]] * 3
        self.assertEqual(set(self.compare(before, after, 0).values()), {"no difference"})
        noisy = made_up_record(rng, medians, spread=0.8, count=20)
        self.assertNotIn("slower", self.compare(noisy, made_up_record(rng, medians, 0.8, 20),
                                                0).values())
        slower = made_up_record(rng, {size: 1.3 * us for size, us in medians.items()})
        self.assertEqual(set(self.compare(before, slower, 1).values()), {"slower"})

    def test_s3_51_no_pass_mark_over_all_sizes(self):
        """A mean over rows of 8 B to 16 GB says nothing: DCGM#111; sichek#52. One slow row fails,
        whatever the others gain; and there is no pass mark without a size."""
        rng = random.Random(51)
        medians = {8 << 3 * k: 2.0 * 3**k for k in range(6)}
        changed = {size: us * (1.5 if size == 64 else 0.5) for size, us in medians.items()}
        verdicts = self.compare(made_up_record(rng, medians), made_up_record(rng, changed), 1)
        self.assertEqual(verdicts, {size: "slower" if size == 64 else "faster" for size in medians})
        self.refused("allreduce", "--min-bw", "10", words=['unknown option "--min-bw"'])

    def test_s3_52_time_stamps_of_a_soak(self):
        """Long runs need time stamps: nccl-tests#349."""
        sizes = ["-b", "1K", "-e", "2K", "-f", "2", "--ranks", "2"]
        document = self.run_json("allreduce", *sizes, "-N", "3", "--timestamps", "--order",
                                 "listed", *QUICK)
        rows = document["rows"]
        self.assertEqual([(row["launch"], row["size_B"]) for row in rows],
                         [(launch, size) for launch in (1, 2, 3, 0) for size in (1024, 2048)])
        times = [datetime.datetime.strptime(row["timestamp"], "%Y-%m-%dT%H:%M:%S.%f%z")
                 for row in rows[:6]]
        self.assertEqual(times, sorted(times))
        now = datetime.datetime.now(datetime.timezone.utc)
        self.assertLess(abs((now - times[-1]).total_seconds()), 60)
        with subprocess.Popen([house.PROGRAM, "allreduce", *sizes, "-N", "0", "-S", "1", *QUICK],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as soak:
            stamps = []
            for line in soak.stdout:  # three blocks, then it is ended, just between two
                if not line.startswith("#"):
                    stamps.append(line.split()[-1])
                if len(stamps) == 6:
                    break
            soak.send_signal(signal.SIGINT)
            soak.communicate(timeout=60)
        self.assertEqual(soak.returncode, 128 + signal.SIGINT)
        for stamp in stamps:
            datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%f%z")

    def test_s3_54_two_ranks_against_three(self):
        """An all-gather was slower on 2 ranks than on 3: gloo#471. All on one core, so that both
        have to share it."""
        def once():
            with cores(1):
                two, three = (self.rows("allgather", "--size", "96K", "--ranks", str(n), "-n",
                                        "100")[0] for n in (2, 3))
            for place in PLACES:
                self.assertLess(two[place + "_p50_us"], 1.5 * three[place + "_p50_us"])
        attempts(once)


class Section4(Peers):
    """Transcripts, on every transport there is."""

    def everywhere(self, *args, **kwargs):
        for transport in transports():
            yield self.run_json(*args, "--transport", transport, **kwargs)

    def test_s4_01_sizes_and_their_units(self):
        for transport in transports():
            for text, size in {"1024": "1024", "1K": "1024", "1k": "1024", "1KiB": "1024",
                               "1.5K": "1536"}.items():
                run = self.run_fine("allreduce", "--size", text, "--ranks", "2", "--transport",
                                    transport, *QUICK)
                self.assertEqual(run.column(0), [size], text)
        run = Run(["allreduce", "--size", "1G", "--ranks", "1", "--in-place", "-n", "1", "-w", "0",
                   "-c", "0"])
        self.assertEqual((run.code, run.column(0)), (0, ["1073741824"]))

    def test_s4_03_no_sweep_is_endless(self):
        self.refused("allreduce", "-b", "1M", "-e", "1K", words=["1048576", "1024"])
        self.refused("allreduce", "-b", "1", "-e", "8", "-i", "0", words=["--stepbytes"])
        self.refused("allreduce", "-b", "1", "-e", "8", "-f", "1", words=["--stepfactor"])
        run = Run(["allreduce", "-b", "8", "-e", "16", "-f", "0", "--ranks", "2", *QUICK])
        self.assertEqual((run.code, run.column(0)), (0, ["8"]), run.err)  # 1 MiB is added

    def test_s4_05_steps_are_exact(self):
        run = Run(["allreduce", "-b", "64M", "-e", "70M", "-i", "2M", "--ranks", "1", "--in-place",
                   "-c", "0", "-n", "1", "-w", "0"])
        self.assertEqual(run.column(0), ["67108864", "69206016", "71303168", "73400320"])
        run = self.run_fine("allreduce", "-b", "8", "-e", "100", "-f", "3", "--ranks", "2", *QUICK)
        self.assertEqual(run.column(0), ["8", "24", "72"])

    def test_s4_08_one_rank_every_operation(self):
        for operation in OPERATIONS:
            for document in self.everywhere(operation, "--size", "64K", "--ranks", "1", *QUICK):
                self.assertEqual(document["notes"][-2].split(":")[1].strip(), "0 OK")
                for place in PLACES:
                    row = document["rows"][0]
                    self.assertTrue(0 <= row[place + "_time_us"] < 1e6)
                    busbw = row[place + "_busbw_GBps"]
                    self.assertEqual(busbw == 0, FACTORS[operation](1) == 0, operation)

    def test_s4_09_bandwidths_by_formula(self):
        for operation in OPERATIONS:
            for n in (2, 3, 4, 8):
                for document in self.everywhere(operation, "--size", "96K", "--ranks", str(n),
                                                "-n", "2", "-w", "0"):
                    row = document["rows"][0]
                    for place in PLACES:
                        algbw = row["size_B"] / (row[place + "_time_us"] * 1e-6) / 1e9
                        for key, value in (("algbw", algbw),
                                           ("busbw", algbw * FACTORS[operation](n))):
                            self.assertTrue(math.isclose(row[f"{place}_{key}_GBps"], value,
                                                         rel_tol=1e-3), (operation, n, key))

    def test_s4_11_misplaced_data_are_found(self):
        for operation in OPERATIONS:  # one element of the own result
            rank = 0 if operation in ("reduce", "gather") else 1  # who has a result
            run = Run([operation, "--size", "1K", "--ranks", "2", *QUICK],
                      env={"COLLBENCH_WRONG": f"{rank}:77"})
            self.assertEqual((run.code, run.column(5)), (1, ["N/A"]), run.out)
            self.assertIn(f"rank {rank}, output element 77, expected ", run.err)
        for operation in ("allgather", "allreduce"):  # two blocks of a library's
            run = against_faulty_mpi(operation, "swap", "--out-of-place")
            self.assertEqual(run.code, 1)
            self.assertRegex(run.err, operation + r" mpi.*wrong elements; the first: rank \d, "
                                                  r"output element \d+, expected .*, got ")

    def test_s4_12_unknown_words(self):
        self.refused("allreduce", "-d", "flaot", words=["flaot", ", ".join(TYPES)])
        self.refused("allreduce", "-o", "summ", words=["summ", "sum, prod, max, min, avg"])
        self.refused("allreduce", "--algo", "foo", words=["foo", *ALGORITHMS["allreduce"]])
        self.refused("allreduce", "--bogus", words=["--bogus", "--minbytes"])
        self.refused("allredcue", words=["allreduce", "broadcast"])

    def test_s4_13_the_algorithm_is_the_one_asked_for(self):
        for operation, algorithms in ALGORITHMS.items():
            job = [operation, "--size", "6K", "--ranks", "3", *QUICK, "--algo"]
            if "tree" not in algorithms:
                self.refused(*job, "tree", words=["tree", *algorithms])
            for algo in algorithms:
                self.assertEqual([row["algo"] for row in self.rows(*job, algo)], [algo])
            for document in self.everywhere(*job, ",".join(algorithms)):
                self.assertEqual(sorted(row["algo"] for row in document["rows"]),
                                 sorted(algorithms))

    def test_s4_15_a_rank_is_killed(self):
        timeout_s = 30
        args = ["allreduce", "--size", "1K", "--ranks", "3", "-n", "1000000", "-T", str(timeout_s)]
        with subprocess.Popen([house.PROGRAM, *args], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as parent:
            for line in parent.stdout:  # the ranks run when they have measured the clock
                if line.startswith("# clock"):
                    break
            with open(f"/proc/{parent.pid}/task/{parent.pid}/children", encoding="ascii") as file:
                ranks = [int(pid) for pid in file.read().split()]
            self.assertEqual(len(ranks), 3)
            start = time.monotonic()
            os.kill(ranks[1], signal.SIGKILL)
            _, err = parent.communicate(timeout=60)
            self.assertLess(time.monotonic() - start, timeout_s)
        self.assertEqual(parent.returncode, 1)
        self.assertIn(f"(pid {ranks[1]}) was killed by signal 9", err)
        for pid in ranks:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_s4_17_sizes_beyond_memory_and_beyond_31_bits(self):
        run = self.refused("allreduce", "--size", "4T", "--ranks", "2",
                           words=["needs 16", "TiB of memory, but only", "are available"])
        run = above_4_gib()
        self.assertEqual(run.code, 0, run.err)
        document = json.loads(run.out, parse_constant=reject)
        self.assertEqual(document["rows"][0]["count_elements"], 2**31 + 1)
        self.assertEqual(document["rows"][0]["in_place_wrong"], 0)
        self.assertEqual((document["summary"]["checked"], document["summary"]["wrong"]), (1, 0))

    def test_s4_18_json_files(self):
        secrets = {"MY_TOKEN": "tiger-1", "A_SECRET": "tiger-2", "SSH_KEY": "tiger-3"}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            args = ["allreduce", "--size", "2K", "--ranks", "2", "--json", path, *QUICK]
            self.run_fine(*args, env=secrets)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertNotIn("tiger", text)
            for name in secrets:
                self.assertNotIn(name, text)
            document = json.loads(text, parse_constant=reject)
            row = document["rows"][0]
            for key in ("size_B", "out_of_place_wrong", "out_of_place_nsamples"):
                self.assertIs(type(row[key]), int, key)
            for key in ("out_of_place_time_us", "out_of_place_busbw_GBps"):
                self.assertIs(type(row[key]), float, key)
            self.assertIs(document["summary"]["okay"], True)
            self.assertIs(document["meta"]["verified"], True)
            run = Run(args)  # the file is there
            self.assertEqual(run.code, 2)
            self.assertIn("out.json", run.err)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), text)
            run = Run([*args, "--overwrite", "-T", "5"], env={"COLLBENCH_FAULT": "kill:1:0"})
            self.assertEqual(run.code, 1)
            with open(path, encoding="utf-8") as file:
                failed = json.loads(file.read(), parse_constant=reject)
            self.assertEqual(failed["rows"], [])
            self.assertIs((failed["meta"] | failed["summary"])["okay"], False)

    def test_s4_19_percentiles(self):
        def side(row, place):
            return [row[f"{place}_{key}_us"] for key in ("min", "p50", "p95", "p99", "max")]

        args = ["allreduce", "--size", "2K", "--ranks", "2", "--warmup_iters", "0", "-n"]
        for place in PLACES:
            row = self.rows(*args, "1")[0]
            self.assertEqual(side(row, place), row[place + "_samples_us"] * 5)
            row = self.rows(*args, "100")[0]
            ordered = sorted(row[place + "_samples_us"])
            self.assertEqual((row[place + "_nsamples"], len(ordered)), (100, 100))
            self.assertEqual(side(row, place), [ordered[k] for k in (0, 49, 94, 98, 99)])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_peers.py PROGRAM [unittest arguments]")
    house.PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
