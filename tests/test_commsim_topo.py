#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transcripts of commsim topo and commsim goal: topologies, and files of other programs, are shown,
checked, converted, drawn and timed; what makes no sense is refused with file and line.

Usage: test_commsim_topo.py PROGRAM CASES [unittest arguments]"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = CASES = ""


def topo(*args, text=None):
    return subprocess.run([PROGRAM, "topo", *args], input=text, text=True, capture_output=True,
                          timeout=60, check=False)


def goal(*args, text=None):
    return subprocess.run([PROGRAM, "goal", *args], input=text, text=True, capture_output=True,
                          timeout=60, check=False)


def shipped():
    """Names of the topologies that come with the program."""
    unknown = topo("check", "/no/such/topology").stderr
    return [name for name in unknown.split("valid: ")[1].strip().split(", ")]


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
        files = [path for form in ("smi/*.txt", "nvlink/*.txt", "nccl/*.xml")
                 for path in glob.glob(f"{CASES}/{form}")]
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

    def test_nics_spread_over_switches(self):
        """Also where accelerators do not divide by NICs: 2 NICs, 5 accelerators, 2 switches."""
        text = {"schema": 1, "form": "uniform", "about": "x", "accelerator": "A100-PCIe-80GB",
                "hosts": 3, "accelerators_per_host": 5,
                "host": {"sockets": 2, "switches": 2, "source": "x"},
                "network": {"kind": "roce", "nics_per_host": 2, "nic_Gbps": 100, "source": "x"}}
        table = cells(self.fine("show", "-", text=json.dumps(text)))
        for gpu, near in enumerate("00011"):
            self.assertEqual(table[f"GPU{gpu}", f"NIC{near}"], "PIX", gpu)
            self.assertEqual(table[f"GPU{gpu}", f"NIC{1 - int(near)}"], "SYS", gpu)

    def test_check_says_only_what_is_wrong(self):
        self.assertEqual(self.fine("check", f"{CASES}/nccl/dgx1-v100.xml"), "")
        self.assertIn("WARNING: ", self.fine("check", f"{CASES}/smi/e09.txt"))
        self.refused("check", f"{CASES}/smi/e12e_cells.txt", words=["e12e_cells.txt:", "NODENODE"])

    def test_nvlink_status(self):
        """C27: links per GPU with their rate; some down is a fault, all down on a PCIe card not."""
        out = self.fine("show", f"{CASES}/nvlink/c27-v100.txt")
        self.assertIn("# gpu0, Tesla V100-SXM2-16GB: 4 x nvlink, 103.1 GB/s per direction", out)
        out = self.fine("check", f"{CASES}/nvlink/c27-v100.txt")
        self.assertIn("a fault: 4 of 6 NVLinks are active (not: 3, 5): 67 % of the NVLink "
                      "bandwidth", out)
        out = self.fine("check", f"{CASES}/nvlink/c27-a100-pcie.txt")
        self.assertIn("all 12 NVLinks are inactive: normal for this card", out)
        self.assertNotIn("a fault", out)
        self.assertEqual(cells(self.fine("show", f"{CASES}/nvlink/h100.txt"))["GPU0", "GPU3"],
                         "NV18")
        self.refused("check", "-", text="GPU 0: A\n\t Link 0: fast\n",
                     words=["-:2: link 0", "25.781 GB/s"])

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


class Uniform(Case):
    """Topologies of like hosts, as --topo takes them."""

    def test_every_shipped_file(self):
        names = shipped()
        self.assertGreater(len(names), 40)
        for name in names:
            with self.subTest(name=name):
                self.assertEqual(self.fine("check", name), "")
                shown = self.fine("show", f"{name}x3")
                self.assertIn("# network: ", shown)
                picture = self.fine("draw", f"{name}x3")
                self.assertIn(" more hosts\\n", picture)
                own = self.fine("convert", name)
                self.assertEqual(cells(self.fine("show", "-", text=own)), cells(shown))

    def test_shipped_figures_have_sources(self):
        folder = os.path.join(os.path.dirname(CASES), "..", "topologies")
        for name in shipped():
            with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
                text = json.load(file)
            for part in ("scale_up", "host", "network"):
                if part in text:
                    self.assertGreater(len(text[part]["source"]), 10, f"{name} {part}")

    def test_show(self):
        out = self.fine("show", "dgx-h100x4")
        self.assertIn("# 4 hosts x 8 H100-80GB", out)
        self.assertIn("8 NICs of 400 Gb/s a host (50 GB/s an accelerator), rail, leaves of 32", out)
        self.assertIn("# scopes: host 8, domain 8, rail group 32, all 32 accelerators", out)
        self.assertIn("# scopes: host 4, domain 72, rail group 72, all 144 accelerators",
                      self.fine("show", "gb200-nvl72x2"))
        table = cells(out)
        self.assertEqual(table["GPU0", "GPU7"], "NV18")
        self.assertEqual((table["GPU2", "NIC2"], table["GPU2", "NIC3"], table["GPU2", "NIC4"]),
                         ("PIX", "NODE", "SYS"))
        table = cells(self.fine("show", "p4d-a100"))  # a NIC beside every second GPU
        self.assertEqual([table["GPU0", "NIC0"], table["GPU1", "NIC0"], table["GPU2", "NIC0"]],
                         ["PIX", "PIX", "NODE"])
        table = cells(self.fine("show", "dgx1-v100"))
        codes = [table[f"GPU{a}", f"GPU{b}"] for a in range(8) for b in range(a)]
        self.assertEqual([codes.count(code) for code in ("NV2", "NV1", "SYS", "NODE")][:2], [8, 8])
        table = cells(self.fine("show", "pcie8"))
        self.assertEqual((table["GPU0", "GPU3"], table["GPU0", "GPU4"]), ("NODE", "SYS"))
        table = cells(self.fine("show", "pcie8-a40"))
        self.assertTrue(table["GPU0", "GPU1"].startswith("NV"))
        self.assertEqual(table["GPU1", "GPU2"], "NODE")

    def test_draw(self):
        out = self.fine("draw", "dgx-h100x64")
        for words in ["31 more hosts", "32 more hosts", "leaf of rail 7", '"12800 Gb/s"',
                      "64 hosts x 8 H100-80GB"]:
            self.assertIn(words, out)
        self.assertEqual(out.count("{"), out.count("}"))
        self.assertIn("17 more hosts\\nof the scale-up domain", self.fine("draw", "gb200-nvl72"))
        if not shutil.which("dot"):
            self.skipTest("no Graphviz here")
        done = subprocess.run(["dot", "-Tsvg"], input=out, text=True, capture_output=True,
                              timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("leaf of rail 7", done.stdout)

    def test_faults_of_the_machine(self):
        text = """{"schema": 1, "form": "uniform", "accelerator": "H100", "hosts": 2,
          "accelerators_per_host": 8, "faults": [{"link": "host0/nic3", "fraction": 0.5},
          {"missing": "host1/nic2"}, {"fallback": "tcp"}]}"""
        out = self.fine("show", "-", text=text)
        for words in ["host0/nic3 at 0.5", "host1/nic2 is missing", "falls back to TCP"]:
            self.assertIn("# fault: ", out)
            self.assertIn(words, out)
        self.refused("check", "-", text=text.replace("nic3", "nic9"), words=["nic9"])
        out = self.fine("draw", "-", text=text)
        for words in ['"fault 1" -- "nic3" [color=red', '"fault 2" -- "nic2" [color=red',
                      'label="host1/nic2 is missing"', 'label="the network falls back to TCP"']:
            self.assertIn(words, out)
        cables = [row for row in out.splitlines() if ' -- "leaf of rail' in row]
        self.assertEqual([row.split('"')[1] for row in cables if "style=dashed" in row],
                         ["nic2", "nic3"])

    def test_faults_by_option(self):
        out = self.fine("show", "dgx-h100x2", "--fault", "host0/nic3=0.5", "--fault", "nics=4")
        self.assertIn("# fault: host0/nic3 at 0.5 of its rate\n# fault: 4 NICs", out)
        self.assertEqual(self.fine("check", "dgx-h100x2", "--fault", "host*/nic3=0"), "")
        out = self.fine("draw", "dgx-h100x2", "--fault", "nics=4", "--fault",
                        "host*/gpu2 nvlink=0.5")
        self.assertIn('"fault 2" -- "gpu2"', out)
        self.assertEqual(out.count('style=dashed, penwidth=2'), 4)  # of nic4 to nic7
        self.assertNotIn("red", self.fine("draw", "dgx-h100x2"))
        self.refused("draw", "dgx-h100x2", "--fault", "host0/nic9=0.5", words=["nic9"])
        self.refused("convert", "dgx-h100x2", "--fault", "nics=4", words=["--fault is for show"])
        self.refused("show", f"{CASES}/smi/e09.txt", "--fault", "tcp",
                     words=["is of the form graph"])

    def test_faults_have_lines(self):
        base = """{
  "schema": 1,
  "form": "uniform",
  "accelerator": "A100-40GB",
  "hosts": 2,
  "accelerators_per_host": 8,
  "host": {"sockets": 2, "switches": 4, "nic_at": [0, 2, 4, 6], "source": "x"},
  "network": {"kind": "ib", "nics_per_host": 4, "nic_Gbps": 200, "source": "x"}
}
"""
        self.assertEqual(self.fine("check", "-", text=base), "")
        for old, new, words in [
                ('"hosts": 2', '"hosts": 0', '-:5: "hosts"'),
                ('"nic_Gbps": 200', '"nic_Gbps": 0', '-:8: "nic_Gbps"'),
                ("[0, 2, 4, 6]", "[0, 2, 4, 8]", '-:7: "nic_at"'),
                ("[0, 2, 4, 6]", "[0, 2]", '"nic_at" places 2 NICs, but a host has 4'),
                ('"switches": 4', '"switches": 3', "3 switches do not spread evenly"),
                ('"kind": "ib"', '"kind": "ip"', "nearest is ib"),
                ('"nic_Gbps": 200', '"nic_Gbps": 200, "layout": "ring"', "-:8: unknown layout"),
                ('200, "source": "x"', "200", '-:8: "source" is missing')]:
            with self.subTest(new=new):
                self.assertIn(old, base)
                self.refused("check", "-", text=base.replace(old, new, 1), words=[words])
        err = self.refused("check", "-", text=base.replace("200", "-1").replace(": 8", ": 0"))
        self.assertIn("-:6:", err)
        self.assertIn("-:8:", err)


class Astra(Case):
    """Network files of ASTRA-sim, whose GB is 2^30 bytes."""
    TEXT = ("topology: [ FullyConnected, Switch ]  # two dimensions\nnpus_count: [ 4, 16 ]\n"
            "bandwidth: [ 100.0, 20 ]\nlatency: [ 500, 5000.0 ]\n")

    def test_there_and_back(self):
        own = self.fine("convert", "-", "--accelerator", "A100", text=self.TEXT)
        read = json.loads(own)
        self.assertEqual((read["hosts"], read["accelerators_per_host"]), (16, 4))
        self.assertAlmostEqual(read["scale_up"]["line_GBps"], 3 * 107.3741824, 9)
        self.assertAlmostEqual(read["network"]["nic_Gbps"], 8 * 21.47483648, 9)
        self.assertEqual(read["scale_up"]["latency_ns"], 500)
        self.assertEqual(read["network"]["latency_ns"], 5000)
        back = self.fine("convert", "-", "--to", "astra", text=own)
        self.assertEqual(self.fine("convert", "-", "--to", "astra", text=back),
                         "".join(line + "\n" for line in back.splitlines() if line[0] != "#"))
        for line, words in zip(back.splitlines()[2:], [["FullyConnected,", "Switch"], ["4,", "16"],
                                                      [100, 20], ["500,", "5000"]]):
            values = line.split("[ ")[1].split(" ]")[0].split()
            if line.startswith("bandwidth"):
                for value, word in zip(values, words):
                    self.assertAlmostEqual(float(value.strip(",")), word, 11)
            else:
                self.assertEqual(values, words)

    def test_words(self):
        self.assertEqual(self.fine("check", "-", text=self.TEXT), "")
        self.assertIn("# dimension 2: Switch of 16, 21.47 GB/s",
                      self.fine("show", "-", text=self.TEXT))
        self.assertIn("15 more hosts", self.fine("draw", "-", "--accelerator", "A100",
                                                 text=self.TEXT))
        graph = self.fine("convert", "-", "--accelerator", "A100", "--to", "graph", text=self.TEXT)
        self.assertEqual(json.loads(graph)["form"], "graph")

    def test_refused(self):
        self.refused("draw", "-", text=self.TEXT, words=["--accelerator TYPE"])
        self.refused("check", "-", text=self.TEXT.replace("Switch", "FullyConnected"),
                     words=["-:1: hosts that are fully connected"])
        self.refused("check", "-", text=self.TEXT.replace("16", "0"), words=['-:2: npus_count is "0"'])
        self.refused("convert", "dgx1-v100", "--to", "astra", words=["no word for nvlink-cube"])
        self.refused("convert", "dgx-h100", "--to", "uniform", words=["of the form uniform"])
        self.refused("convert", f"{CASES}/nccl/dgx-a100.xml", "--to", "astra", words=["form graph"])
        self.refused("show", "dgx-h100", "--to", "astra", words=["--to is for convert"])


class Goal(unittest.TestCase):
    TEXT = """num_ranks 3
rank 0 { a: send 50000b to 1 b: send 50000b to 2 }
rank 1 { a: recv 50000b from 0 }
rank 2 { a: recv 50000b from 0 b: calc 1000 b requires a }
"""

    def fine(self, *args, text=None):
        done = goal(*args, text=text)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"{args}\n{done.stdout}")
        return done.stdout

    def test_one_switch(self):
        done = json.loads(self.fine("-", "--json", "-", text=self.TEXT))
        row = done["rows"][0]
        self.assertEqual((row["ranks"], row["ops"], row["messages"], row["bytes_B"]),
                         (3, 5, 2, 100000))
        self.assertAlmostEqual(row["time_us"], 2 + 5 + 1, 9)
        out = self.fine("-", "--alpha", "1us", "--beta", "25GB/s", "--links", text=self.TEXT)
        self.assertIn("SIMULATED", out)
        self.assertIn("100000 B", out)
        self.assertIn("6.000", out)

    def test_a_cluster(self):
        done = json.loads(self.fine("-", "--topo", "dgx-a100", "--json", "-", text=self.TEXT))
        self.assertGreater(done["rows"][0]["time_us"], 1)
        slow = json.loads(self.fine("-", "--topo", "cpu2-10gx2", "--json", "-", text=self.TEXT))
        self.assertGreater(slow["rows"][0]["time_us"], 80)

    def test_refused(self):
        for args, text, words in [
                (["-"], "num_ranks 2\nrank 0 { send 1 to 1 }", "-:2: rank 0 sends 1 bytes"),
                (["-", "--topo", "dgx-a100", "--gpus", "2"], self.TEXT, "3 ranks, the network 2"),
                (["-", "--topo", "dgx-a100", "--beta", "1GB/s"], self.TEXT, "--beta"),
                (["-", "--gpus", "2"], self.TEXT, "--gpus"),
                (["/no/such/file"], None, "/no/such/file"),
                ([], None, "takes one file, 0")]:
            done = goal(*args, text=text)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        done = goal("-", text="num_ranks 1 rank 0 { a: calc 1 a requires a }")
        self.assertEqual(done.returncode, 1)
        self.assertIn("in a circle", done.stderr)


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
                ('"form": "graph"', '"form": "grahp"', 'a graph has the form "graph"'),
                ('"form": "graph"', '"form": "uniform"', "-:1: \"hosts\" is missing"),
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
