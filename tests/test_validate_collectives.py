#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""commsim validate collectives and fit collectives on the shipped table: bars that are met, no
leaks from measured columns, one line per row, faults named with their line.

Usage: test_validate_collectives.py PROGRAM DATA [left-out] [unittest arguments]
With the word left-out, only the slow test of machines that constants have not seen."""

import csv
import io
import os
import random
import subprocess
import sys
import tempfile
import unittest

PROGRAM = DATA = ""
# Inputs by the rules of data/README.md; all other columns must not matter.
INPUTS = ("machine", "op", "n_nodes", "gpus_per_node", "gpu", "intra_link", "inter_network",
          "nccl_version", "algo_proto", "size_bytes", "notes")
BANDS = ("< 64 KiB", "64 KiB - 16 MiB", "> 16 MiB")


def run(*args):
    return subprocess.run([PROGRAM, *args], text=True, capture_output=True, timeout=280,
                          check=False)


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        out.writerows(rows)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.open = os.path.join(DATA, "collectives", "measured.csv")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def fine(self, *args):
        done = run(*args)
        self.assertEqual(done.returncode, 0, f"{args}\n{done.stdout}\n{done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout

    def scores(self, *args):
        """{(group, band): row} of a run."""
        text = self.fine("validate", "collectives", *args, "--csv", "-")
        return {(r["group"], r["band"]): r for r in csv.DictReader(io.StringIO(text))}

    def rows(self, *args):
        self.fine("validate", "collectives", *args, "--rows", self.path("rows"), "--overwrite")
        return table(self.path("rows"))

    def median(self, scores, group, band):
        return float(scores[group, BANDS[band]]["median_pct"])


class Quick(Case):
    def test_bars(self):
        """The open table: 8.4, 10.4 and 2.5 % when this was written; bars 15, 15, 5."""
        scores = self.scores()
        for band, most in enumerate((9, 12, 4)):
            self.assertLessEqual(self.median(scores, "healthy", band), most, BANDS[band])
            self.assertTrue(scores["healthy", BANDS[band]]["bar"].endswith("met"))

    def test_texts_alone(self):
        """Machines that no table knows: all by their text columns."""
        rows = table(self.open)
        for row in rows:
            row["machine"] = "x-" + row["machine"]
        write(self.path("renamed.csv"), rows)
        scores = self.scores(self.path("renamed.csv"))
        for band, most in enumerate((15, 15, 5)):
            self.assertLessEqual(self.median(scores, "healthy", band), most, BANDS[band])
        text = self.fine("validate", "collectives", self.path("renamed.csv"))
        self.assertIn("100.0 % of the rows by their text columns alone", text)

    def test_rows(self):
        """One line per row, in order; a row that is not scored says why; most are scored."""
        source, rows = table(self.open), self.rows()
        self.assertEqual([r["id"] for r in source], [r["id"] for r in rows])
        healthy = scored = 0
        for was, row in zip(source, rows):
            self.assertEqual(row["scored"] == "true", row["reason"] == "", row)
            self.assertTrue(row["topology"] and row["launch"] and row["lib_class"], row)
            self.assertEqual(float(row["measured_us"]), float(was["time_us"]))
            self.assertGreater(float(row["predicted_us"]), 0)
            error = float(row["predicted_us"]) / float(row["measured_us"]) - 1
            self.assertAlmostEqual(float(row["error"]), error, delta=1e-4 * (1 + abs(error)))
            if row["lib_class"] != "MPI":
                self.assertTrue(row["algo"] and row["proto"] and row["limit"], row)
            healthy += was["expected_or_buggy"] == "expected"
            scored += row["scored"] == "true"
        self.assertGreaterEqual(scored, .8 * healthy)

    def test_leaks(self):
        """What is no input may be blank, ids and the file may change, rows may be in any order."""
        rows = table(self.open)
        before = [r["predicted_us"] for r in self.rows()]
        order = list(range(len(rows)))
        random.Random(7).shuffle(order)
        changed = []
        for i in order:
            row = {k: rows[i][k] if k in INPUTS else "" for k in reversed(rows[i])}
            row["id"] = f"n{i}"
            changed.append(row)
        write(self.path("other.csv"), changed)
        after = {r["id"]: r["predicted_us"] for r in self.rows(self.path("other.csv"))}
        for i, value in enumerate(before):
            self.assertEqual(after[f"n{i}"], value, rows[i]["id"])

    def test_no_rule_reads_the_time(self):
        """Buckets stay where every measured time is another."""
        rows = table(self.open)
        before = [r["reason"] for r in self.rows()]
        for i, row in enumerate(rows):
            row["time_us"] = str(1 + i % 13)
        write(self.path("times.csv"), rows)
        self.assertEqual(before, [r["reason"] for r in self.rows(self.path("times.csv"))])

    def test_fit_gives_the_shipped_constants(self):
        self.fine("fit", "collectives", "--out", self.path("fitted.csv"))
        with open(self.path("fitted.csv"), encoding="utf-8") as fitted:
            with open(os.path.join(DATA, "network.csv"), encoding="utf-8") as shipped:
                new = list(csv.DictReader(fitted))
                for was, now in zip(csv.DictReader(shipped), new, strict=True):
                    self.assertEqual((was["name"], was["key"]), (now["name"], now["key"]))
                    self.assertAlmostEqual(float(now["value"]) / float(was["value"]), 1, delta=.02)

    def test_given(self):
        usual = self.rows()
        far = self.rows("--alpha-net", "1ms")
        late = self.rows("--launch", "10ms")
        many = 0
        for a, b, c in zip(usual, far, late):
            self.assertGreaterEqual(float(b["predicted_us"]), float(a["predicted_us"]) * .999)
            if a["lib_class"] != "MPI":
                self.assertGreaterEqual(float(c["predicted_us"]), 9999)
            many += float(b["predicted_us"]) > 1.5 * float(a["predicted_us"])
        self.assertGreater(many, 100)

    def test_require(self):
        self.fine("validate", "collectives", "--require", "15,15,5")
        self.assertEqual(run("validate", "collectives", "--require", "15,15,.1").returncode, 1)
        self.assertEqual(run("validate", "collectives", "--require", "many").returncode, 2)
        self.assertEqual(run("validate", "collectives", "--leave-out", "op").returncode, 2)

    def changed(self, **cells):
        """The first rows of the table, the second with other cells."""
        rows = table(self.open)[:5]
        rows[1].update(cells)
        write(self.path("few.csv"), rows)
        return self.path("few.csv")

    def test_reasons(self):
        for reason, cells in (
                ("no-network", {"n_nodes": "2", "inter_network": "none"}),
                ("nic-rate-0", {"n_nodes": "2", "inter_network": "IB, 8 NICs x 0 Gb/s"}),
                ("nic-rate-0", {"n_nodes": "2", "inter_network": "IB HDR, 0 NICs"}),
                ("nic-rate-0", {"n_nodes": "2", "inter_network": "RoCE, 0 x 400 Gb/s"}),
                ("nic-rate-0", {"n_nodes": "2", "inter_network": "0x 400 Gb/s"}),
                ("op-unknown", {"op": "all_to_none"}),
                ("one-rank", {"gpus_per_node": "1"}),
                ("size-0", {"size_bytes": "0"}),
                ("size-missing", {"size_bytes": ""}),
                ("nodes-missing", {"n_nodes": ""}),
                ("gpus-missing", {"gpus_per_node": ""}),
                ("op-missing", {"op": ""}),
                ("machine-missing", {"machine": ""}),
                ("gpu-missing", {"gpu": ""}),
                ("gpu-unknown", {"machine": "x", "gpu": "Foo9000"}),
                ("gpu-unknown", {"machine": "x", "gpu": "RX A1000 PCIe"}),
                ("gpu-unknown", {"machine": "x", "gpu": "A1000"}),
                ("gpu-unknown", {"machine": "x", "gpu": "MI9000"}),
                ("no-time", {"time_us": ""}),
                ("other-library", {"nccl_version": "MSCCL++ 0.5"}),
                ("symmetric-kernels", {"algo_proto": "symmetric kernels"})):
            rows = self.rows(self.changed(**cells))
            self.assertEqual(rows[1]["reason"], reason)
            self.assertEqual(rows[1]["scored"], "false")
            self.assertEqual(rows[0]["scored"], "true")

    def test_names(self):
        """Names of accelerators as vendors and users write them; what is not known is not drawn."""
        for gpu, word in (("NVIDIA A100-SXM4-80GB", "NVSwitch 300 GB/s"),
                          ("NVIDIA GeForce RTX 4090", "PCIe"), ("DGX H100", "NVSwitch 450 GB/s"),
                          ("AMD Instinct MI300X", "xGMI"), ("Tesla T4", "PCIe")):
            row = self.rows(self.changed(machine="x", gpu=gpu, intra_link=""))[1]
            self.assertNotEqual(row["reason"], "gpu-unknown", gpu)
            self.assertIn(word, row["topology"])
        row = self.rows(self.changed(machine="x", gpu="Foo9000"))[1]
        self.assertIn("8 Foo9000, an accelerator that is not known", row["topology"])
        self.assertEqual((row["predicted_us"], row["error"]), ("", ""))
        row = self.rows(self.changed(machine="x", n_nodes="2", inter_network="none"))[1]
        self.assertTrue(row["topology"].endswith(", no network"), row)

    def test_short_row(self):
        with open(self.path("few.csv"), "w", encoding="utf-8") as file:
            file.write(",".join(table(self.open)[0]) + "\na,b,c\n")
        row, = self.rows(self.path("few.csv"))
        self.assertEqual((row["reason"], row["scored"]), ("op-missing", "false"))

    def test_twice(self):
        """A file given twice scores as once; a column that is there twice is refused."""
        once = self.scores(self.open)
        self.assertEqual(once, self.scores(self.open, self.open))
        rows = self.rows(self.open, self.open)
        half = len(rows) // 2
        self.assertEqual({r["reason"] for r in rows[half:]}, {"repeat"})
        self.assertNotIn("repeat", {r["reason"] for r in rows[:half]})
        text = self.fine("validate", "collectives", self.open, self.open)
        self.assertIn(f"{half} rows repeating another in all columns, counted once", text)
        with open(self.changed(), encoding="utf-8") as file:
            lines = [line.rstrip("\r\n") for line in file]
        with open(self.path("few.csv"), "w", encoding="utf-8") as file:
            file.write("\n".join([lines[0] + ",time_us"] + [line + ",1" for line in lines[1:]]))
        done = run("validate", "collectives", self.path("few.csv"))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"few.csv:1: columns 14 and 19 are both called time_us")

    def test_notes(self):
        """Words and figures that contradict are said; the time is what counts."""
        few = self.changed(expected_or_buggy="maybe")
        self.assertEqual(self.rows(few)[1]["reason"], "unclear")
        self.assertRegex(self.fine("validate", "collectives", few),
                         "1 row with a word in expected_or_buggy that is not .*few.csv:3")
        cells = {"machine": "x", "op": "all_reduce", "size_bytes": str(1 << 30), "time_us": "4200"}
        for busbw, word in (("12", "busbw"), ("447.4", ""), ("460", ""), ("480", "busbw"),
                            ("420", "busbw"), ("0", ""), ("", "")):
            rows = self.rows(self.changed(busbw_gbps=busbw, **cells))
            self.assertEqual([r["contradicts"] for r in rows], ["", word, "", "", ""], busbw)
            self.assertEqual(rows[1]["scored"], "true")
            text = self.fine("validate", "collectives", self.path("few.csv"))
            self.assertEqual("1 row with a busbw that contradicts" in text, word == "busbw")
        self.assertNotIn("contradicts", self.fine("validate", "collectives"))

    def test_help(self):
        self.assertIn("commsim validate collectives [FILE]", self.fine("validate", "--help"))
        text = self.fine("validate", "collectives", "--help")
        for word in ("size_bytes", "inter_network", "gpu-unknown", "no-network", "repeat",
                     "--leave-out", "--require", "Exit: 0"):
            self.assertIn(word, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_malformed(self):
        for cells, word in (({"size_bytes": "1K"}, "size_bytes"), ({"time_us": "fast"}, "time_us"),
                            ({"n_nodes": "-2"}, "n_nodes"), ({"n_nodes": "1.5"}, "n_nodes"),
                            ({"gpus_per_node": "0"}, "gpus_per_node"),
                            ({"time_us": "nan"}, "time_us"),
                            ({"size_bytes": "1e30"}, "size_bytes")):
            done = run("validate", "collectives", self.changed(**cells))
            self.assertEqual(done.returncode, 2, cells)
            self.assertIn(f"few.csv:3: {word}", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        rows = table(self.open)[:5]
        for row in rows:
            del row["gpu"]
        write(self.path("few.csv"), rows)
        done = run("validate", "collectives", self.path("few.csv"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no column gpu", done.stderr)
        self.assertEqual(run("validate", "collectives", self.path("none.csv")).returncode, 2)

    def test_as_above(self):
        """A network "as above" is the machine's, wherever its row stands."""
        rows = [r for r in table(self.open) if r["machine"] == "h100-8node-b"]
        write(self.path("up.csv"), rows)
        write(self.path("down.csv"), rows[::-1])
        up = {r["id"]: r["topology"] for r in self.rows(self.path("up.csv"))}
        down = {r["id"]: r["topology"] for r in self.rows(self.path("down.csv"))}
        self.assertEqual(up, down)
        self.assertTrue(all("400 Gb/s" in text for text in up.values()), up)

    def test_machines(self):
        text = self.fine("validate", "collectives", "--machines")
        for row in table(self.open):
            self.assertIn(f"# {row['machine']}, ", text)

    def test_readme(self):
        """The scores in data/README.md are those of the command."""
        scores = self.scores()
        with open(os.path.join(DATA, "README.md"), encoding="utf-8") as file:
            lines = [[c.strip() for c in line.split("|")[1:-1]] for line in file]
        found = 0
        for line in lines:
            if len(line) < 6 or (line[0], line[1]) not in scores:
                continue
            row = scores[line[0], line[1]]
            self.assertEqual(line[2:4], [row["machines"], row["rows"]], line)
            self.assertAlmostEqual(float(line[4]), float(row["median_pct"]), delta=.06, msg=line)
            self.assertAlmostEqual(float(line[5]), float(row["p90_pct"]), delta=.06, msg=line)
            found += 1
        self.assertGreaterEqual(found, 40)


class LeftOut(Case):
    def test_left_out(self):
        """Each machine by constants that have not seen it: 15.0, 15.7 and 3.4 % when this was
        written; bars 20, 20, 5."""
        scores = self.scores("--leave-out", "machine")
        for band, most in enumerate((20, 20, 5)):
            self.assertLessEqual(self.median(scores, "left out: healthy", band), most, BANDS[band])


if __name__ == "__main__":
    PROGRAM, DATA = sys.argv[1:3]
    words = sys.argv[3:]
    chosen = "LeftOut" if words[:1] == ["left-out"] else "Quick"
    unittest.main(argv=[sys.argv[0], *words[words[:1] == ["left-out"]:]], defaultTest=chosen)
