#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transcripts of commsim topo: shows, checks, converts and draws files of other programs, and
refuses what makes no sense with file and line.

Usage: test_commsim_topo.py PROGRAM CASES [unittest arguments]"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = CASES = ""


def topo(*args, text=None):
    return subprocess.run([PROGRAM, "topo", *args], input=text, text=True, capture_output=True,
                          timeout=60, check=False)


def cells(table):
    """{(row, column): code} of a table of accelerators and NICs."""
    lines = [line for line in table.splitlines() if line and line[0] != "#"]
    columns = lines[0].split("CPU")[0].split()
    rows = {}
    for line in lines[1:1 + len(columns)]:
        words = line.split()
        rows.update({(words[0], column): code for column, code in zip(columns, words[1:])})
    return rows


class Case(unittest.TestCase):
    def fine(self, *args, **kwargs):
        done = topo(*args, **kwargs)
        self.assertEqual(done.returncode, 0, f"{args}\n{done.stdout}\n{done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout

    def refused(self, *args, words=(), **kwargs):
        done = topo(*args, **kwargs)
        self.assertEqual(done.returncode, 2, f"{args}\n{done.stdout}\n{done.stderr}")
        for word in words:
            self.assertIn(word, done.stderr)
        return done.stderr


class Files(Case):
    def test_all_that_can_be_read_go_round(self):
        """What was converted reads back as the same table and the same file."""
        files = glob.glob(f"{CASES}/smi/*.txt") + glob.glob(f"{CASES}/nccl/*.xml")
        read = [path for path in files if topo("check", path).returncode == 0]
        self.assertGreater(len(read), 35)
        for path in read:
            with self.subTest(path=path):
                own = self.fine("convert", path)
                self.assertEqual(json.loads(own)["form"], "graph")
                self.assertEqual(self.fine("convert", "-", text=own), own)
                self.assertEqual(cells(self.fine("show", "-", text=own)),
                                 cells(self.fine("show", path)))

    def test_show(self):
        out = self.fine("show", f"{CASES}/nccl/dgx-a100.xml")
        self.assertIn("# 8 x gpu", out)
        table = cells(out)
        self.assertEqual(table["GPU0", "GPU7"], "NV12")
        self.assertEqual(table["GPU3", "GPU3"], "X")
        out = self.fine("show", f"{CASES}/smi/e09.txt")
        self.assertIn("# WARNING: ", out)
        self.assertIn("GPU without a local NIC (all are SYS): GPU1, GPU3, GPU5, GPU7", out)
        self.assertEqual(cells(out)["GPU4", "NIC2"], "PIX")

    def test_check_says_only_what_is_wrong(self):
        self.assertEqual(self.fine("check", f"{CASES}/nccl/dgx1-v100.xml"), "")
        self.assertIn("WARNING: ", self.fine("check", f"{CASES}/smi/e09.txt"))
        self.refused("check", f"{CASES}/smi/e12e_cells.txt", words=["e12e_cells.txt:", "NODENODE"])

    def test_draw(self):
        out = self.fine("draw", f"{CASES}/nccl/dgx1-v100.xml")
        self.assertTrue(out.startswith("graph "))
        self.assertEqual(out.count("shape=box"), 12)  # 8 GPUs, 4 NICs
        self.assertEqual(out.count("nvlink x2"), 8)
        self.assertEqual(out.count("{"), out.count("}"))

    def test_output(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.json")
            args = ["convert", f"{CASES}/smi/e01.txt", "-o", path]
            self.assertEqual(self.fine(*args), "")
            self.assertIn("GPU0", self.fine("show", path))
            self.refused(*args, words=["--output", "--overwrite"])
            self.fine(*args, "--overwrite")
            self.refused("show", path, "-o", path, "--overwrite", words=["--output (-o)", "show"])

    def test_a_shipped_description(self):
        out = self.fine("show", "dgx-h100x4")
        self.assertIn("4 hosts x 8 H100-80GB", out)


GRAPH = """{
  "schema": 1, "form": "graph",
  "nodes": [
    {"name": "numa0", "kind": "numa", "number": 0},
    {"name": "a", "kind": "gpu", "number": 0, "parent": "numa0"},
    {"name": "b", "kind": "gpu", "number": 1, "parent": "numa0"}
  ],
  "links": [
    {"kind": "nvlink", "between": ["a", "b"], "count": 4}
  ]
}
"""


class Faults(Case):
    def test_the_form_itself(self):
        self.assertEqual(cells(self.fine("show", "-", text=GRAPH))["GPU0", "GPU1"], "NV4")

    def test_each_fault_has_its_line(self):
        for old, new, words in [
                ('"number": 1, "parent": "numa0"', '"number": 0, "parent": "numa0"',
                 "-:6: a and b are both number 0 of their kind"),
                ('"number": 0, "parent": "numa0"', '"number": 0, "parent": "numa9"',
                 '-:5: there is no node "numa9"'),
                ('"number": 0, "parent": "numa0"', '"number": 0, "parent": "b"',
                 "a, a gpu, cannot hang below b, a gpu"),
                ('"a", "b"]', '"a", "a"]', "-:9: a link (nvlink) leads from a to itself"),
                ('"a", "b"]', '"a", "numa0"]', "nvlink joins GPUs and NVSwitches"),
                ('"a", "b"]', '"a"]', "-:9: between is not two names"),
                ('"count": 4', '"count": 0', "-:9: "),
                ('"count": 4', '"count": 4, "GBps": 100', "source is missing"),
                ('"kind": "nvlink"', '"kind": "rope"', 'kind "rope" is none; it is one of: nvlink'),
                ('"kind": "numa"', '"kind": "cpu"', 'kind "cpu" is none; it is one of: gpu'),
                ('"nvlink", "between"', '"nvlink", "betwen"', "betwen"),
                ('"form": "graph"', '"form": "uniform"', 'a graph has the form "graph"'),
                ('"schema": 1, ', "", "schema is missing")]:
            with self.subTest(new=new):
                self.assertIn(old, GRAPH)
                self.refused("check", "-", text=GRAPH.replace(old, new, 1), words=[words])

    def test_one_name_twice(self):
        text = GRAPH.replace('"name": "b"', '"name": "a"')
        text = text.replace('{"kind": "nvlink", "between": ["a", "b"], "count": 4}', "")
        self.refused("check", "-", text=text, words=["-:6: two nodes are called a"])

    def test_all_faults_at_once(self):
        text = GRAPH.replace('"kind": "gpu"', '"kind": "cpu"').replace('"count": 4', '"count": -1')
        err = self.refused("show", "-", text=text)
        for line in "-:5:", "-:6:", "-:9:":
            self.assertIn(line, err)

    def test_words(self):
        self.refused("shwo", "x", words=["shwo", "show"])
        self.refused("show", words=["takes a word", "1 words"])
        self.refused("show", "/nowhere/x.json", words=["/nowhere/x.json", "no such file"])
        self.refused("check", "-", text="nothing of the kind", words=["-:1"])


if __name__ == "__main__":
    PROGRAM, CASES = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    unittest.main()
