#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What collbench prints with --format nccl and --format osu, through parsers that refuse whatever
those benchmarks do not print; and the parsers themselves, with damaged tables.

Usage: test_formats.py PROGRAM [unittest arguments]"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Callable, NamedTuple

from strict_parsers import NCCL_TYPES, parse_nccl, parse_osu

PROGRAM = ""
QUICK = ["-n", "5", "-w", "1"]
PLACES = ["out_of_place", "in_place"]


class Operation(NamedTuple):
    """What the peers call it, and how they count."""
    nccl: str        # name of the test in nccl-tests; "": there is none
    osu: str         # in OSU's title; "": there is none
    factor: Callable # busbw / algbw, of the number of ranks
    shared: bool     # the size is that of one block per rank
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True


def one(_ranks):
    return 1


def share(ranks):
    return (ranks - 1) / ranks


def twice_share(ranks):
    return 2 * share(ranks)


OPERATIONS = {
    "allreduce": Operation("all_reduce", "Allreduce", twice_share, False, reduces=True),
    "allgather": Operation("all_gather", "Allgather", share, True),
    "reduce_scatter": Operation("reduce_scatter", "Reduce_scatter", share, True, reduces=True),
    "alltoall": Operation("alltoall", "All-to-All Personalized Exchange", share, True),
    "broadcast": Operation("broadcast", "Broadcast", one, False, rooted=True),
    "reduce": Operation("reduce", "Reduce", one, False, reduces=True, rooted=True),
    "gather": Operation("gather", "Gather", share, True, rooted=True),
    "scatter": Operation("scatter", "Scatter", share, True, rooted=True),
    "sendrecv": Operation("sendrecv", "", one, False),
    "alltoallv": Operation("alltoallv", "All-to-Allv Personalized Exchange", share, True,
                           in_place=False),
    "barrier": Operation("", "Barrier", one, True, in_place=False),
}


def start(program, args, env=None):
    return subprocess.run([program, *args], env={**os.environ, **(env or {})}, timeout=60,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


class Case(unittest.TestCase):
    def table(self, parse, args, program=None):
        """What the parser reads from a run that ends well."""
        done = start(program or PROGRAM, args)
        self.assertEqual((done.returncode, done.stderr), (0, ""), args)
        try:
            return parse(done.stdout)
        except ValueError as error:
            self.fail(f"{args}: {error}\n{done.stdout}")

    def nccl(self, *args):
        return self.table(parse_nccl, [*args, "--format", "nccl"])

    def osu(self, *args):
        return self.table(parse_osu, [*args, "--format", "osu"])

    def table_and_json(self, parse, args):
        """The table, and the rows by size of the JSON document of the same run. Of several launches
        the rows over all of them (launch 0) are those that the table has."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            table = self.table(parse, [*args, "--json", path])
            with open(path, encoding="utf-8") as file:
                rows = json.load(file)["rows"]
        rows = [row for row in rows if row.get("launch") == 0] or rows
        return table, sorted(rows, key=lambda row: row["size_B"])

    def shown(self, text, value, decimals=2):
        """`text` is `value` rounded to as many decimals as were there."""
        self.assertAlmostEqual(text, value, delta=0.50001 * 10 ** -decimals + 1e-4 * abs(value))


def nearly(value):
    """How far a printed number may be off: half a unit of its last digit."""
    return 0.5 if value >= 99999.95 else 0.05 if value >= 999.995 else 0.00501


class Nccl(Case):
    def bandwidths(self, row, factor):
        """algbw = size / time and busbw = algbw x factor, as exactly as the digits allow."""
        for place in PLACES:
            half = row[place]
            if not half:
                continue
            spare, off = nearly(half["algbw"]), nearly(half["time"])
            least = row["size"] / (half["time"] + off) / 1e3 - spare
            most = row["size"] / max(half["time"] - off, 1e-4) / 1e3 + spare
            self.assertTrue(least <= half["algbw"] <= most, (least, most, row))
            self.assertAlmostEqual(half["busbw"], half["algbw"] * factor,
                                   delta=spare * factor + nearly(half["busbw"]), msg=row)

    def test_operations_types_and_sizes(self):
        """nccl-tests#45, #130: what algbw and busbw are, in each operation."""
        for name, operation in OPERATIONS.items():
            for ranks in (2, 3) if operation.nccl else ():
                table = self.nccl(name, "-b", "0", "-e", "64K", "-f", "16", "-d", "all", "--ranks",
                                  str(ranks), *QUICK)
                self.assertEqual(table["test"], operation.nccl)
                self.assertEqual((table["min"], table["max"], table["step"], table["step_kind"]),
                                 (0, 65536, 16, "factor"))
                self.assertEqual((table["warmup"], table["iters"], table["validation"]), (1, 5, 1))
                self.assertEqual({row["type"] for row in table["rows"]}, set(NCCL_TYPES))
                places = PLACES if operation.in_place else PLACES[:1]
                means = []
                for row in table["rows"]:
                    self.assertEqual(row["size"], row["count"] * NCCL_TYPES[row["type"]] *
                                     (ranks if operation.shared else 1))
                    self.assertEqual(row["redop"], "sum" if operation.reduces else "none")
                    self.assertEqual(row["root"], 0 if operation.rooted else -1)
                    self.assertEqual([row[place]["wrong"] for place in places], [0] * len(places))
                    self.assertEqual(row["in_place"] is not None, operation.in_place)
                    self.bandwidths(row, operation.factor(ranks))
                    means += [row[place]["busbw"] for place in places]
                self.assertEqual((table["wrong"], table["okay"]), (0, True))
                self.assertAlmostEqual(table["busbw"], sum(means) / len(means), delta=0.006 +
                                       1e-3 * table["busbw"])

    def test_there_is_no_barrier(self):
        done = start(PROGRAM, ["barrier", "--ranks", "2", "--format", "nccl"])
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("nccl-tests have no test of barrier", done.stderr)

    def test_the_devices_are_the_ranks(self):
        """Each with the number of its process or thread."""
        for kind in ("processes", "threads"):
            devices = self.nccl("allreduce", "--size", "8", "--ranks", "3", "--ranks-as", kind,
                                *QUICK)["devices"]
            self.assertEqual([device["device"] for device in devices], [0, 1, 2])
            self.assertEqual(len({device["pid"] for device in devices}), 3)
            for device in devices:
                self.assertGreater(device["pid"], 1)
                self.assertEqual(device["host"], os.uname().nodename.split(".")[0])

    def test_operators_and_a_root(self):
        rows = self.nccl("allreduce", "--size", "1K", "-o", "all", "--ranks", "2", *QUICK)["rows"]
        self.assertEqual([row["redop"] for row in rows], ["sum", "prod", "max", "min", "avg"])
        rows = self.nccl("broadcast", "--size", "1K", "-r", "1", "--ranks", "2", *QUICK)["rows"]
        self.assertEqual([row["root"] for row in rows], [1])

    def test_a_step_in_bytes(self):
        table = self.nccl("allreduce", "-b", "4K", "-e", "10K", "-i", "2K", "--ranks", "2", *QUICK)
        self.assertEqual([row["size"] for row in table["rows"]], [4096, 6144, 8192, 10240])
        self.assertEqual((table["step"], table["step_kind"]), (2048, "bytes"))

    def test_rounded_sizes_add_no_line(self):
        rows = self.nccl("allgather", "--size", "100", "--ranks", "3", *QUICK)["rows"]
        self.assertEqual([row["size"] for row in rows], [96])

    def test_one_rank(self):
        """busbw is 0: nccl-tests#249."""
        row, = self.nccl("allreduce", "--size", "64K", "--ranks", "1", *QUICK)["rows"]
        self.assertEqual([row[place]["busbw"] for place in PLACES], [0, 0])

    def test_launches_are_cycles(self):
        """As -N of nccl-tests: the rows once more, and no rows over all of them."""
        rows = self.nccl("allreduce", "-b", "8", "-e", "64", "-f", "8", "-N", "3", "--ranks", "2",
                         *QUICK)["rows"]
        self.assertEqual([row["size"] for row in rows], [8, 64] * 3)

    def test_unchecked(self):
        table = self.nccl("allreduce", "--size", "1K", "-c", "0", "--ranks", "2", *QUICK)
        self.assertEqual(table["validation"], 0)
        self.assertEqual([table["rows"][0][place]["wrong"] for place in PLACES], [None, None])

    def test_one_placement(self):
        for flag, here, gone in (("--in-place", "in_place", "out_of_place"),
                                 ("--out-of-place", "out_of_place", "in_place")):
            row, = self.nccl("alltoall", "--size", "1K", flag, "--ranks", "2", *QUICK)["rows"]
            self.assertIsNone(row[gone])
            self.assertEqual(row[here]["wrong"], 0)

    def test_the_text_is_what_json_has(self):
        table, rows = self.table_and_json(parse_nccl, [
            "allreduce", "-b", "8", "-e", "1M", "-f", "8", "--ranks", "2", "--format", "nccl",
            *QUICK])
        self.assertEqual([row["size"] for row in table["rows"]], [row["size_B"] for row in rows])
        for text, row in zip(table["rows"], rows):
            for place in PLACES:
                self.shown(text[place]["time"], row[f"{place}_time_us"])
                self.shown(text[place]["algbw"], row[f"{place}_algbw_GBps"])
                self.shown(text[place]["busbw"], row[f"{place}_busbw_GBps"])

    def test_a_failed_run_has_no_footer(self):
        """Scripts look for the last lines to know that the run is complete."""
        done = start(PROGRAM, ["allreduce", "-b", "8", "-e", "64K", "-f", "2", "--ranks", "2",
                               "--format", "nccl", *QUICK], env={"COLLBENCH_FAULT": "exit:1:20"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("rank 1", done.stderr)
        self.assertNotIn("OK", done.stdout)
        with self.assertRaisesRegex(ValueError, "no count of wrong values|no line of a rank|"
                                                "expected"):
            parse_nccl(done.stdout)

    def test_rows_that_could_not_be_told_apart(self):
        done = start(PROGRAM, ["allreduce", "--size", "8", "--ranks", "2", "--algo", "all",
                               "--format", "nccl"])
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--algo", done.stderr)


class Osu(Case):
    def test_operations_and_sizes(self):
        """Size is per rank, but per pair of ranks where a rank's data have as many parts."""
        for name, operation in OPERATIONS.items():
            if not operation.osu or name == "barrier":
                continue
            table = self.osu(name, "-b", "12", "-e", "12K", "-f", "32", "--ranks", "3", *QUICK)
            self.assertEqual((table["test"], table["version"]), (operation.osu, "7.4"))
            self.assertEqual(table["datatype"], "MPI_FLOAT")
            part = 3 if operation.shared and not operation.reduces else 1
            self.assertEqual([row["size"] for row in table["rows"]],
                             [size // part for size in (12, 384, 12288)])
            for row in table["rows"]:
                self.assertTrue(row["valid"])
                self.assertGreaterEqual(row["iterations"], 5)
                self.assertEqual(row["iterations"] % 5, 0)

    def test_a_barrier(self):
        """One row, without size, type and validation."""
        for check in ("0", "1"):
            table = self.osu("barrier", "-c", check, "--ranks", "3", *QUICK)
            self.assertEqual((table["test"], table["datatype"]), ("Barrier", None))
            row, = table["rows"]
            self.assertGreaterEqual(row["iterations"], 5)
            self.assertGreater(row["avg"], 0)

    def test_there_is_no_sendrecv(self):
        done = start(PROGRAM, ["sendrecv", "--size", "8", "--ranks", "2", "--format", "osu"])
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("no test of sendrecv", done.stderr)

    def test_types(self):
        for dtype, name in (("int32", "MPI_INT"), ("float", "MPI_FLOAT"),
                            ("double", "MPI_DOUBLE"), ("uint8", "MPI_UINT8_T"),
                            ("bfloat16", "bfloat16"), ("f8e4m3", "f8e4m3")):
            table = self.osu("allreduce", "--size", "8", "-d", dtype, "--ranks", "2", *QUICK)
            self.assertEqual(table["datatype"], name)

    def test_unchecked_has_no_validation(self):
        table = self.osu("allreduce", "--size", "1K", "-c", "0", "--ranks", "2", *QUICK)
        self.assertFalse(table["validated"])

    def test_the_text_is_what_json_has(self):
        """Of two placements the one that OSU measures is printed: out of place."""
        for flags, place in (([], "out_of_place"), (["--in-place"], "in_place")):
            table, rows = self.table_and_json(parse_osu, [
                "alltoall", "-b", "8", "-e", "64K", "-f", "8", "--ranks", "2", "--format", "osu",
                *QUICK, *flags])
            self.assertEqual(len(table["rows"]), len(rows))
            for text, row in zip(table["rows"], rows):
                self.assertEqual(text["size"] * 2, row["size_B"])
                self.assertEqual(text["iterations"], row[f"{place}_nsamples"] * row["batch"])
                for key, column in (("avg", "time_us"), ("min", "min_us"), ("max", "max_us")):
                    self.shown(text[key], row[f"{place}_{column}"])

    def test_rows_that_could_not_be_told_apart(self):
        done = start(PROGRAM, ["allreduce", "--size", "8", "--ranks", "2", "-d", "all", "-o",
                               "sum,max", "--algo", "ring,tree", "--launches", "2", "--format",
                               "osu"])
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        for option in ("--datatype", "--op", "--algo", "--launches"):
            self.assertIn(option, done.stderr)


class Links(Case):
    NAMES = {
        "all_reduce_perf": (parse_nccl, "all_reduce"),
        "all_gather_perf": (parse_nccl, "all_gather"),
        "reduce_scatter_perf": (parse_nccl, "reduce_scatter"),
        "alltoall_perf": (parse_nccl, "alltoall"),
        "broadcast_perf": (parse_nccl, "broadcast"),
        "reduce_perf": (parse_nccl, "reduce"),
        "gather_perf": (parse_nccl, "gather"),
        "scatter_perf": (parse_nccl, "scatter"),
        "sendrecv_perf": (parse_nccl, "sendrecv"),
        "alltoallv_perf": (parse_nccl, "alltoallv"),
        "osu_allreduce": (parse_osu, "Allreduce"),
        "osu_allgather": (parse_osu, "Allgather"),
        "osu_reduce_scatter": (parse_osu, "Reduce_scatter"),
        "osu_reduce_scatter_block": (parse_osu, "Reduce_scatter_block"),
        "osu_alltoall": (parse_osu, "All-to-All Personalized Exchange"),
        "osu_bcast": (parse_osu, "Broadcast"),
        "osu_reduce": (parse_osu, "Reduce"),
        "osu_gather": (parse_osu, "Gather"),
        "osu_scatter": (parse_osu, "Scatter"),
        "osu_alltoallv": (parse_osu, "All-to-Allv Personalized Exchange"),
        "osu_barrier": (parse_osu, "Barrier"),
    }

    def test_names_choose_the_format(self):
        args = ["-b", "64", "-e", "64", "--ranks", "2", *QUICK]
        with tempfile.TemporaryDirectory() as folder:
            for name, (parse, test) in self.NAMES.items():
                path = os.path.join(folder, name)
                os.symlink(PROGRAM, path)
                table = self.table(parse, args, program=path)
                self.assertEqual((table["test"], len(table["rows"])), (test, 1), name)
            path = os.path.join(folder, "all_reduce_perf")
            table = self.table(parse_osu, [*args, "--format", "osu"], program=path)
            self.assertEqual(table["test"], "Allreduce")
            done = start(path, [*args, "--format", "own"])
            self.assertIn("algo", done.stdout)
            self.assertIn("collbench", done.stdout.splitlines()[0])

    def test_the_default_is_our_own(self):
        args = ["allreduce", "--size", "64", "--ranks", "2", *QUICK]
        for more in ([], ["--format", "own"]):
            done = start(PROGRAM, [*args, *more])
            self.assertIn("algo", done.stdout)
        done = start(PROGRAM, [*args, "--format", "imb"])
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("own, nccl, osu", done.stderr)


class Parsers(Case):
    """A parser that lets damage pass proves nothing."""

    NCCL = ["allreduce", "-b", "1K", "-e", "64K", "-f", "8", "--ranks", "2", "--format", "nccl"]
    OSU = ["allreduce", "-b", "1K", "-e", "64K", "-f", "8", "--ranks", "2", "--format", "osu"]
    BARRIER = ["barrier", "--ranks", "2", "--format", "osu"]

    def damaged(self, parse, text, what):
        with self.assertRaises(ValueError, msg=f"{what} passed:\n{text}"):
            parse(text)

    def tables(self):
        for parse, args in ((parse_nccl, self.NCCL), (parse_osu, self.OSU),
                            (parse_osu, self.BARRIER)):
            text = start(PROGRAM, [*args, *QUICK]).stdout
            parse(text)
            yield parse, text

    def test_lines(self):
        for parse, text in self.tables():
            lines = text.splitlines(keepends=True)
            for i, line in enumerate(lines):
                rest = lines[:i] + lines[i + 1:]
                free = line[:1].isdigit() or line[:1] == " " or line.startswith("#  Rank  1")
                if not free: # a table may have fewer rows and ranks
                    self.damaged(parse, "".join(rest), f"without line {i}")
                for extra in ("# a note\n", "\n", "word\n", "#\n"):
                    self.damaged(parse, "".join(lines[:i] + [extra] + lines[i:]),
                                 f"{extra!r} before line {i}")
            self.damaged(parse, text + "# a note\n", "a line behind the end")
            self.damaged(parse, text[:-1], "no newline at the end")

    def test_characters(self):
        """In rows, headings and footers no character is free, beyond one digit for another."""
        for parse, text in self.tables():
            lines = text.splitlines(keepends=True)
            for i, line in enumerate(lines):
                if line.startswith(("#  Rank", "# collbench", "# OSU")): # names are in there
                    continue
                for at, old in enumerate(line[:-1]):
                    if line.startswith("# Avg") and at == len(line) - 2:
                        continue # this blank may be missing
                    for new in ("", "x", old + old):
                        if new == old or (old.isdigit() and new == old + old and line[0] == "#"):
                            continue # a longer number in a free line is a number
                        if line[0] == "#" and old.isdigit() and new == "":
                            continue
                        if line.startswith("# Datatype") or line.startswith("# Avg"):
                            if new != "x" or old in "_MPIFLOAT":
                                continue
                        broken = "".join(lines[:i] + [line[:at] + new + line[at + 1:]] +
                                         lines[i + 1:])
                        self.damaged(parse, broken, f"line {i}: {old!r} -> {new!r} at {at}")

    def test_wrong_data_is_read(self):
        """Counts that are not zero, and Fail, are neither refused nor lost."""
        for parse, text in self.tables():
            if parse is parse_osu and "Pass" not in text: # a barrier
                continue
            if parse is parse_osu:
                self.assertFalse(parse(text.replace("Pass", "Fail", 1))["rows"][0]["valid"])
                self.damaged(parse, text.replace("Pass", "pass", 1), "pass")
                continue
            lines = text.splitlines(keepends=True)
            row = next(i for i, line in enumerate(lines) if line[0] == " ")
            lines[row] = lines[row][:-3] + "17\n"
            self.damaged(parse, "".join(lines).replace("values : 0 OK", "values : 17 OK"), "17 OK")
            table = parse("".join(lines).replace("values : 0 OK", "values : 17 FAILED"))
            self.assertEqual((table["wrong"], table["okay"]), (17, False))
            self.assertEqual(table["rows"][0]["in_place"]["wrong"], 17)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_formats.py PROGRAM [unittest arguments]")
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
