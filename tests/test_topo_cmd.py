#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`collbench topo`: this machine, machines that hwloc reads from files, and GPUs that a stand-in
for NVIDIA's management library shows. What it writes has to be read again by commsim.

Usage: test_topo_cmd.py COLLBENCH COMMSIM NVML_STUB [unittest arguments]"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

COLLBENCH, COMMSIM, STUB = "", "", ""
COMMON = {}  # environment of all runs
# Made by hand: two sockets, eight GPUs, five NICs, in all the ways in which devices can be near.
# bridge0 10: a switch with GPUs 13, 14 and NIC 15; NIC 1f at a root port of its own. bridge1 20: a
# switch with NIC 27 and a second switch, with GPUs 25, 26. bridge2 80: GPUs 81 to 84, each at a root
# port; NIC 85 with two functions; the display of the management controller at 86, which is no
# accelerator. (hwloc without libxml2 reads no comments, so they stand here.)
TWO_SOCKETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases", "topo",
                           "two-sockets.xml")
OURS = ("HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT", "COLLBENCH_NVML", "NVML_STUB")

# Devices in the order of the table: GPUs at 13, 14 (one switch, with NIC 15), 25, 26 (behind the
# second of two switches, NIC 27 behind the first), 81 to 84 (each at its own root port).
NEAR = """
    X    PIX  NODE NODE SYS  SYS  SYS  SYS  PIX  PHB  NODE SYS  SYS
    PIX  X    NODE NODE SYS  SYS  SYS  SYS  PIX  PHB  NODE SYS  SYS
    NODE NODE X    PIX  SYS  SYS  SYS  SYS  NODE NODE PXB  SYS  SYS
    NODE NODE PIX  X    SYS  SYS  SYS  SYS  NODE NODE PXB  SYS  SYS
    SYS  SYS  SYS  SYS  X    PHB  PHB  PHB  SYS  SYS  SYS  PHB  PHB
    SYS  SYS  SYS  SYS  PHB  X    PHB  PHB  SYS  SYS  SYS  PHB  PHB
    SYS  SYS  SYS  SYS  PHB  PHB  X    PHB  SYS  SYS  SYS  PHB  PHB
    SYS  SYS  SYS  SYS  PHB  PHB  PHB  X    SYS  SYS  SYS  PHB  PHB
    PIX  PIX  NODE NODE SYS  SYS  SYS  SYS  X    PHB  NODE SYS  SYS
    PHB  PHB  NODE NODE SYS  SYS  SYS  SYS  PHB  X    NODE SYS  SYS
    NODE NODE PXB  PXB  SYS  SYS  SYS  SYS  NODE NODE X    SYS  SYS
    SYS  SYS  SYS  SYS  PHB  PHB  PHB  PHB  SYS  SYS  SYS  X    PIX
    SYS  SYS  SYS  SYS  PHB  PHB  PHB  PHB  SYS  SYS  SYS  PIX  X
"""
NAMES = [f"GPU{i}" for i in range(8)] + [f"NIC{i}" for i in range(5)]


def near_rows():
    return [line.split() for line in NEAR.strip().splitlines()]


class Run:
    """One finished command: exit status, streams, and the table as rows by name."""

    def __init__(self, args, program=None, **env):
        clean = {key: value for key, value in os.environ.items() if key not in OURS}
        done = subprocess.run([program or COLLBENCH, *args], env={**clean, **COMMON, **env}, timeout=60,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.notes = [line[2:] for line in self.out.splitlines() if line.startswith("# ")]
        body = [line for line in self.out.splitlines() if not line.startswith("#")]
        table = body[:body.index("")] if "" in body else body
        self.head = table[0].split() if table else []
        self.rows = {row.split()[0]: row.split()[1:] for row in table[1:]}
        self.legend = [line.strip() for line in body[len(table):] if ": " in line]


class Topo(unittest.TestCase):
    def run_fine(self, *args, **env):
        run = Run(["topo", *args], **env)
        self.assertEqual((run.code, run.err), (0, ""), run.out)
        return run

    def graph(self, **env):
        """The document on stdout, which commsim must accept; nodes by name."""
        run = self.run_fine("--json", "-", **env)
        document = json.loads(run.out)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "machine.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(run.out)
            read = Run(["topo", "check", path], program=COMMSIM)
        self.assertEqual(read.code, 0, read.out + read.err)
        return document, {node["name"]: node for node in document["nodes"]}


class ThisMachine(Topo):
    def test_prints_what_there_is(self):
        run = self.run_fine()
        self.assertTrue(run.notes[0].startswith("collbench "), run.out)
        self.assertEqual(run.notes[1], "command: collbench topo")
        self.assertTrue(any(note.startswith("processors and the bus: hwloc ") and
                            "not from this machine" not in note for note in run.notes), run.out)
        self.assertEqual(sum("NVML" in note for note in run.notes), 1, run.out)
        processors = [note for note in run.notes if note.startswith("numa")]
        online = subprocess.run(["getconf", "_NPROCESSORS_ONLN"], capture_output=True, text=True)
        count = 0
        for note in processors:
            for part in note.split(": processors ")[1].split(","):
                ends = part.split("-")
                count += int(ends[-1]) - int(ends[0]) + 1
        self.assertEqual(count, int(online.stdout), run.out)

    def test_json_is_the_same_machine(self):
        run = self.run_fine()
        _, nodes = self.graph()
        for name, node in nodes.items():
            if node["kind"] == "numa":
                self.assertIn(f"{name}: processors {node['cpus']}", run.notes)
        kinds = [node["kind"] for node in nodes.values()]
        self.assertEqual("there is no accelerator" in run.out, "gpu" not in kinds)


class Elsewhere(Topo):
    def test_nothing_but_processors(self):
        env = {"HWLOC_SYNTHETIC": "package:2 numa:1 core:4 pu:1"}
        run = self.run_fine(**env)
        self.assertEqual(run.rows, {})
        self.assertIn("there is no accelerator and no NIC", run.notes)
        self.assertIn("numa0: processors 0-3", run.notes)
        self.assertIn("numa1: processors 4-7", run.notes)
        document, nodes = self.graph(**env)
        self.assertEqual(sorted(nodes), ["numa0", "numa1"])
        self.assertEqual([link["kind"] for link in document["links"]], ["socket"])

    def test_two_sockets(self):
        run = self.run_fine(HWLOC_XMLFILE=TWO_SOCKETS)
        self.assertIn("NVML was not asked: it knows this machine alone", run.notes)
        self.assertEqual(run.head[:13], NAMES)
        for name, want in zip(NAMES, near_rows()):
            self.assertEqual(run.rows[name][:13], want, name)
        for gpu in range(8):
            half = gpu // 4
            self.assertEqual(run.rows[f"GPU{gpu}"][13:], [["0-3", "4-7"][half], str(half)])
        self.assertEqual(run.legend, ["NIC0: mlx5_0", "NIC1: mlx5_1", "NIC2: mlx5_2", "NIC3: eth0",
                                      "NIC4: eth1"])

    def test_rates_models_and_parents(self):
        _, nodes = self.graph(HWLOC_XMLFILE=TWO_SOCKETS)
        gpu = nodes["gpu2"]
        self.assertEqual((gpu["address"], gpu["type"]), ("0000:25:00.0", "PCI 10de:2330"))
        self.assertAlmostEqual(gpu["up_GBps"], 63.015385, 4)
        above = nodes[gpu["parent"]]
        self.assertEqual((above["kind"], above["address"]), ("pcie-switch", "0000:23:00.0"))
        self.assertAlmostEqual(above["up_GBps"], 31.507692, 4)
        self.assertEqual(nodes[above["parent"]]["address"], "0000:21:00.0")
        bridge = nodes[nodes[above["parent"]]["parent"]]
        self.assertEqual((bridge["kind"], bridge["parent"]), ("bridge", "numa0"))
        self.assertEqual(nodes["mlx5_0"]["type"], "Mellanox ConnectX-7")
        self.assertEqual(nodes["gpu4"]["parent"], nodes[nodes["eth0"]["parent"]]["parent"])
        kinds = [node["kind"] for node in nodes.values()]
        self.assertEqual(kinds.count("gpu"), 8)  # the server's own display is none
        self.assertEqual(kinds.count("bridge"), 3)
        self.assertEqual(kinds.count("pcie-switch"), 4)
        addresses = [node.get("address") for node in nodes.values()]
        self.assertNotIn("0000:86:00.0", addresses)

    def test_unreadable(self):
        for variable, value in (("HWLOC_XMLFILE", "/nonexistent.xml"), ("HWLOC_XMLFILE", __file__),
                                ("HWLOC_SYNTHETIC", "socket"), ("HWLOC_FSROOT", "/nonexistent")):
            run = Run(["topo"], **{variable: value})
            self.assertEqual((run.code, run.out), (2, ""), variable)
            self.assertIn(f"hwloc cannot read the machine of {variable}={value}", run.err)


class Rates(Topo):
    """A folder that looks like a system's /sys to hwloc: one NUMA node, two processors, NICs."""

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(text + "\n")

    def link(self, path, to):
        path, to = os.path.join(self.root, path), os.path.join(self.root, to)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.path.relpath(to, os.path.dirname(path)), path)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, system = folder.name, "sys/devices/system"
        for cpu in range(2):
            topology = f"{system}/cpu/cpu{cpu}/topology"
            for name, text in (("core_id", cpu), ("physical_package_id", 0), ("package_cpus", 3),
                               ("core_cpus", 1 << cpu)):
                self.write(f"{topology}/{name}", str(text))
        for name in ("online", "possible", "present"):
            self.write(f"{system}/cpu/{name}", "0-1")
        self.write(f"{system}/node/node0/cpumap", "3")
        self.write(f"{system}/node/node0/meminfo", "Node 0 MemTotal: 1024 kB")
        self.write(f"{system}/node/online", "0")

    def nic(self, slot, pci_class, kind, name, speed="32.0 GT/s PCIe"):
        address = f"0000:00:{slot:02x}.0"
        device = f"sys/devices/pci0000:00/{address}"
        for key, text in (("class", pci_class), ("vendor", "0x15b3"), ("device", "0x1021"),
                          ("subsystem_vendor", "0x0"), ("subsystem_device", "0x0"),
                          ("revision", "0x0"), ("numa_node", "0"), ("local_cpus", "3"),
                          ("current_link_speed", speed), ("current_link_width", "16")):
            self.write(f"{device}/{key}", text)
        os.makedirs(os.path.join(self.root, device, kind, name))
        self.link(f"sys/bus/pci/devices/{address}", device)
        self.link(f"sys/class/{kind}/{name}", f"{device}/{kind}/{name}")
        self.link(f"{device}/{kind}/{name}/device", device)
        return f"{device}/{kind}/{name}"

    def test_active_ports_count(self):
        rdma = self.nic(3, "0x020700", "infiniband", "mlx5_0")
        for port, state, rate in ((1, "4: ACTIVE", "200 Gb/sec (4X HDR)"),
                                  (2, "4: ACTIVE", "100 Gb/sec (2X HDR)"),
                                  (3, "1: DOWN", "10 Gb/sec (4X SDR)")):
            self.write(f"{rdma}/ports/{port}/state", state)
            self.write(f"{rdma}/ports/{port}/rate", rate)
        self.write(self.nic(4, "0x020000", "net", "eth0", "16.0 GT/s PCIe") + "/speed", "25000")
        self.write(self.nic(5, "0x020000", "net", "eth1") + "/speed", "-1")
        run = self.run_fine(HWLOC_FSROOT=self.root)
        self.assertIn("mlx5_0: PCI 15b3:1021, 0000:00:03.0, 300 Gb/s, 63 GB/s to bridge0",
                      run.notes)
        self.assertIn("eth0: PCI 15b3:1021, 0000:00:04.0, 25 Gb/s, 31.5 GB/s to bridge0",
                      run.notes)
        self.assertIn("eth1: PCI 15b3:1021, 0000:00:05.0, 63 GB/s to bridge0", run.notes)
        _, nodes = self.graph(HWLOC_FSROOT=self.root)
        self.assertEqual([nodes[name].get("rate_Gbps") for name in ("mlx5_0", "eth0", "eth1")],
                         [300, 25, None])


class Nvml(Topo):
    def env(self, shows):
        return {"HWLOC_XMLFILE": TWO_SOCKETS, "COLLBENCH_NVML": STUB, "NVML_STUB": shows}

    def table(self, run, nv):
        """The table's cells must be those by the bus, but `nv` between GPUs."""
        for a, (name, want) in enumerate(zip(NAMES, near_rows())):
            cells = [nv(a, b) if a != b and a < 8 and b < 8 and nv(a, b) else cell
                     for b, cell in enumerate(want)]
            self.assertEqual(run.rows[name][:13], cells, name)

    def test_switches(self):
        run = self.run_fine(**self.env("switches"))
        self.table(run, lambda a, b: "NV18")
        self.assertTrue(any("STUB" in note and "NVML 12.0.0" in note for note in run.notes))
        self.assertIn("gpu3: 5 nvlink to nvswitch0, 4 nvlink to nvswitch1, 5 nvlink to nvswitch2, "
                      "4 nvlink to nvswitch3; 478.1 GB/s in all", run.notes)
        document, nodes = self.graph(**self.env("switches"))
        switches = [node["address"] for node in nodes.values() if node["kind"] == "nvswitch"]
        self.assertEqual(switches, [f"0000:0{i}:00.0" for i in range(5, 9)])
        links = [link for link in document["links"] if link["kind"] == "nvlink"]
        self.assertEqual([link["count"] for link in links], [5, 4, 5, 4] * 8)
        self.assertAlmostEqual(links[0]["GBps"], 5 * 26.562, 3)
        self.assertEqual(nodes["gpu0"]["type"], "Stub GPU")
        self.assertAlmostEqual(nodes["gpu0"]["up_GBps"], 16 * 16 / 8 * 128 / 130, 3)  # gen 4, x16

    def test_pairs_in_its_own_order(self):
        run = self.run_fine(**self.env("pairs"))
        self.table(run, lambda a, b: "NV12" if a // 2 == b // 2 else None)
        document, nodes = self.graph(**self.env("pairs"))
        self.assertEqual([nodes[f"gpu{i}"]["address"] for i in (0, 1, 2)],
                         ["0000:14:00.0", "0000:13:00.0", "0000:25:00.0"])
        counts = [link["count"] for link in document["links"] if link["kind"] == "nvlink"]
        self.assertEqual(counts, [12] * 4)
        self.assertNotIn("warning", run.out)

    def test_switches_that_the_host_does_not_see(self):
        run = self.run_fine(**self.env("hidden"))
        self.table(run, lambda a, b: "NV18")
        _, nodes = self.graph(**self.env("hidden"))
        switches = [node for node in nodes.values() if node["kind"] == "nvswitch"]
        self.assertEqual(len(switches), 1)
        self.assertNotIn("address", switches[0])

    def test_what_looks_wrong_is_said(self):
        run = self.run_fine(**self.env("broken"))
        for words in ("1 of the 12 NVLinks of gpu1 are not active",
                      "gpu0 names 12 NVLinks to gpu1, which names 11 back",
                      "NVML knows gpu7 at 0000:c4:00.0, which hwloc does not see"):
            self.assertIn(words, run.out)
        self.assertEqual(run.rows["GPU7"][-2:], ["N/A", "N/A"])
        self.assertEqual(run.rows["GPU6"][7], "NV12")
        self.assertEqual(run.head[8], "GPU8")  # hwloc's at 84, behind all that NVML counts
        self.graph(**self.env("broken"))

    def test_without_it(self):
        by_bus = self.run_fine(HWLOC_XMLFILE=TWO_SOCKETS).rows
        for shows, words in (("dead", "no NVML: it does not start: Driver Not Loaded"),
                             ("none", "GPUs and NVLinks: a STUB")):
            run = self.run_fine(**self.env(shows))
            self.assertEqual(run.rows, by_bus)
            self.assertEqual(sum(note.startswith(words) for note in run.notes), 1, run.out)

    def test_named_but_not_there(self):
        run = Run(["topo"], COLLBENCH_NVML="/nonexistent.so")
        self.assertEqual((run.code, run.out), (2, ""))
        self.assertIn("COLLBENCH_NVML=/nonexistent.so cannot be loaded", run.err)

    def test_found_by_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(STUB, os.path.join(folder, "libnvidia-ml.so.1"))
            run = self.run_fine(LD_LIBRARY_PATH=folder)
            self.assertIn("STUB of NVML", run.out)
            self.assertEqual(run.rows["GPU0"][7], "NV18")


class Options(Topo):
    def test_file_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.json")
            first = self.run_fine("--json", path, HWLOC_XMLFILE=TWO_SOCKETS)
            self.assertIn("GPU0", first.rows)
            again = Run(["topo", "--json", path])
            self.assertEqual((again.code, again.out), (2, ""))
            self.assertIn(f"{path} exists and is kept", again.err)
            with open(path, encoding="utf-8") as file:
                self.assertIn("mlx5_0", file.read())
            self.run_fine("--json", path, "--overwrite")
            with open(path, encoding="utf-8") as file:
                self.assertNotIn("mlx5_2", file.read())
            self.assertEqual(Run(["topo", "--json", folder + "/none/x.json"]).code, 2)

    def test_usage(self):
        self.assertEqual(Run(["topo", "word"]).code, 2)
        self.assertEqual(Run(["topo", "--jsno", "x"]).code, 2)
        copies = Run(["topo"], OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
        self.assertEqual((copies.code, copies.out), (2, ""))
        self.assertIn("COLLBENCH_NVML", Run(["topo", "--help"]).out.replace("\n", " "))

    def test_measure(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one processor")
        run = self.run_fine("--measure")
        ranks = [note for note in run.notes if note.startswith("rank ")]
        self.assertGreaterEqual(len(ranks), 2, run.out)
        self.assertEqual(len({note.split(": ")[1] for note in ranks}), len(ranks), run.out)
        rows = [line.split() for line in run.out.splitlines() if line.startswith("     ")]
        pairs = {(row[0], row[1]) for row in rows if len(row) == 10}
        self.assertEqual(len(pairs), len(ranks) * (len(ranks) - 1), run.out)
        self.assertIn("pairs checked OK", run.out)

    def test_measure_what_cannot_be(self):
        for args, env, words in ((["--json", "-"], {}, "has stdout"),
                                 ([], {"HWLOC_XMLFILE": TWO_SOCKETS}, "names another one")):
            run = Run(["topo", "--measure", *args], **env)
            self.assertEqual((run.code, run.out), (2, ""))
            self.assertIn(words, run.err)

    def test_full_disk(self):
        run = Run(["topo", "--json", "/dev/full", "--overwrite"])
        self.assertEqual(run.code, 1, run.out)
        self.assertIn("/dev/full was not written", run.err)


if __name__ == "__main__":
    COLLBENCH, COMMSIM, STUB = (os.path.abspath(path) for path in sys.argv[1:4])
    with open(COLLBENCH, "rb") as program:
        if b"__asan_init" in program.read():  # libpciaccess, in hwloc's plug-in, leaks 1 KB
            COMMON["HWLOC_PLUGINS_BLACKLIST"] = "hwloc_pci.so"
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
