#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Launch problems that users of other programs reported, a test for each: what they typed, and that
collbench says what is wrong, ends with another status than 0, and does not hang.

D02, D04 and D10 do not exist. D18 (a time that no transfer can have) is in test_bench.c, since no
command line makes the clock wrong. D19 (partitions of one GPU by MIG) has no test: it needs a GPU
that has them, the emulation has none, and to CUDA a partition is a device like others. D06, D08 and
D17 run on the emulation of CUDA. Parts that need root, or namespaces, are skipped without.

Usage: test_cases_d.py PROGRAM EMULATED_PLUGIN|- [unittest arguments]"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "hosts"))
import netns  # noqa: E402

PROGRAM, PLUGIN = "", "-"
TWO = ["--hosts", "127.0.0.1:2,127.0.0.2:2"]
QUICK = ["-n", "3", "-w", "1"]
MARK = "COLLBENCH_TEST_CASES_D"
BOOT = "/proc/sys/kernel/random/boot_id"


def start(*args, env=None, before=(), program=None):
    return subprocess.Popen([*before, program or PROGRAM, *args], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True,
                            env={**os.environ, MARK: str(os.getpid()), **(env or {})})


def finish(run, timeout=100):
    try:
        run.out, run.err = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    run.rows = [line.split() for line in run.out.splitlines() if line and line[0] != "#"]
    return run


def marked():
    """Processes of these tests."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if f"{MARK}={os.getpid()}".encode() in environ.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def sockets():
    """Sockets of these tests' processes: (process, own address, port, listens)."""
    table, found = {}, []
    with open("/proc/net/tcp", encoding="ascii") as lines:
        for words in map(str.split, list(lines)[1:]):
            number, port = words[1].split(":")
            address = ".".join(str(byte) for byte in reversed(bytes.fromhex(number)))
            table[words[9]] = (address, int(port, 16), words[3] == "0A")
    for pid in marked():
        try:
            for file in os.listdir(f"/proc/{pid}/fd"):
                match = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{file}"))
                if match and match[1] in table:
                    found.append((pid, *table[match[1]]))
        except OSError:
            continue
    return found


def available_B():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


class Case(unittest.TestCase):
    def tearDown(self):
        end = time.monotonic() + 30
        while marked() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(marked(), [])

    def fine(self, *args, **more):
        run = finish(start(*args, **more), 300)
        self.assertEqual(run.returncode, 0, f"{args}\n{run.out}\n{run.err}")
        return run

    def refused(self, *args, code=2, **more):
        """Another end than 0, soon, without a row."""
        begin = time.monotonic()
        run = finish(start(*args, **more))
        self.assertEqual(run.returncode, code, f"{args}\n{run.out}\n{run.err}")
        self.assertEqual(run.rows, [], args)
        self.assertLess(time.monotonic() - begin, 60)
        return run

    def script(self, text):
        """A program that stands in for a remote shell: $1 is a host, the rest words."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "rsh")
        with open(path, "w", encoding="ascii") as script:
            script.write("#!/bin/sh\nshift\n" + text)
        os.chmod(path, 0o755)
        return path

    def head(self, run, meanwhile=lambda: None):
        """What a run says until it has told its addresses."""
        head = ""
        for line in run.stdout:
            meanwhile()
            head += line
            if line.startswith("# addresses by rank"):
                return head
        raise AssertionError(head + run.stderr.read())

    def needs_namespaces(self):
        done = subprocess.run(["unshare", "-i", "-m", "true"], capture_output=True, check=False)
        if done.returncode:
            self.skipTest("needs root and namespaces")

    def copies(self, size, port, *args, before=lambda rank: (), program=lambda rank: None):
        """Copies as torchrun starts them on what it takes for one host."""
        runs = []
        for rank in range(size):
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            runs.append(start("allreduce", "--size", "8", "--timeout", "10", *QUICK, *args, env=env,
                              before=before(rank), program=program(rank)))
        return [finish(run) for run in runs]

    def other_machine(self):
        """Words that run a command as if it were on another machine: with another boot id."""
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("00000000-0000-4000-8000-000000000000\n")
        self.addCleanup(os.unlink, file.name)
        return f"mount --bind {file.name} {BOOT}"


class Launchers(Case):
    def test_D01_two_runs_instead_of_one(self):
        """Copies of a launcher that cannot meet: refused. Two tables never."""
        two = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
        run = self.refused("allreduce", "--size", "8", "--timeout", "1", code=1, env=two)
        self.assertIn("1 of the 2 copies that mpirun of Open MPI has started came", run.err)
        for command in ["bench-step", "bench-gpu"]:
            run = self.refused(command, env=two)
            self.assertIn("mpirun of Open MPI has started 2 copies", run.err)
            self.assertIn("run it once, without that launcher", run.err)
        runs = [start("allreduce", "--size", "8", *QUICK, "--timeout", "10",
                      env={**two, "OMPI_COMM_WORLD_RANK": str(rank)}) for rank in range(2)]
        runs = [finish(run) for run in runs]
        self.assertEqual([(run.returncode, len(run.rows)) for run in runs], [(0, 1), (0, 0)])

    def test_D09_slots(self):
        """Hosts without numbers: the table as it was understood, and how to write it."""
        run = self.refused("allreduce", "--hosts", "127.0.0.1,127.0.0.2:3", "--ranks", "8")
        self.assertIn("--ranks 8: --hosts has room for 4 (127.0.0.1 1 (no number was given), "
                      "127.0.0.2 3); write NAME:RANKS for more", run.err)
        run = self.fine("allreduce", "--hosts", "127.0.0.1,127.0.0.2", "--size", "8", *QUICK)
        self.assertIn("# hosts and ranks: 127.0.0.1 1 (no number was given), 127.0.0.2 1 (no "
                      "number was given)", run.out)
        self.assertIn("NAME:RANKS gives a host more than one", run.out)

    def test_D03_dev_shm_too_small(self):
        """Memory that is missing is named before anything starts; /dev/shm is not needed."""
        run = self.fine("allreduce", "--ranks", "8", "--size", "1M", *QUICK)
        self.assertRegex(run.out, r"needs [\d.]+ MiB of [\d.]+ [GM]iB memory")
        run = self.refused("allreduce", "--ranks", "16", "--size", "64G")
        self.assertRegex(run.err, r"needs [\d.]+ TiB of memory, but only [\d.]+ [GM]iB are "
                         r"available, .*; the largest size that fits is \d")
        self.needs_namespaces()
        small = ["unshare", "-m", "sh", "-c",
                 "mount -t tmpfs -o size=64k none /dev/shm; exec \"$0\" \"$@\""]
        run = self.fine("allreduce", "--ranks", "8", "--size", "4M", *QUICK, before=small)
        self.assertIn("# Out of bounds values : 0 OK", run.out)


class Hosts(Case):
    def test_D05_connections_before_launch(self):
        """Counted from the schedule, and compared with the files that a process may have open."""
        run = self.fine("alltoall", *TWO, "--transport", "tcp", "--algo", "direct", "--size", "1K",
                        *QUICK)
        self.assertIn("# connections: up to 6 per rank (2 per pair), 8 over the interface of "
                      "127.0.0.1, 12 in all; up to ", run.out)
        run = self.fine("alltoall", *TWO, "--algo", "direct", "--size", "1K", *QUICK)
        self.assertIn("up to 4 per rank (2 per pair), 8 over", run.out)  # the rest share memory
        run = self.fine("allreduce", "--ranks", "4", "--transport", "tcp", "--algo", "ring",
                        "--connections", "5", "--size", "1K", *QUICK)
        self.assertIn("up to 10 per rank (5 per pair), 20 in all", run.out)
        few = ["sh", "-c", "ulimit -n 1024; exec \"$0\" \"$@\""]
        run = self.refused("alltoall", "--ranks", "600", "--transport", "tcp", "--algo", "direct",
                           "--size", "8", before=few)
        self.assertIn("alltoall on 600 ranks needs 1198 connections in one rank", run.err)
        self.assertIn("may have 1024 open", run.err)
        self.assertIn("--connections 1", run.err)

    def test_D05_that_many_there_are(self):
        run = start("alltoall", "--ranks", "3", "--transport", "tcp", "--algo", "direct",
                    "--connections", "3", "--size", "64K", "-n", "1000000")
        head = self.head(run)
        counts = []
        for _ in range(1000):
            made = [pid for pid, _, _, listens in sockets() if not listens]
            counts = [made.count(pid) for pid in set(made)]
            if counts == [6] * 3:
                break
            time.sleep(0.05)
        run.terminate()
        finish(run)
        self.assertEqual(counts, [6] * 3)
        self.assertIn("up to 6 per rank (3 per pair), 9 in all", head)

    def test_D07_same_host_name_on_every_node(self):
        """Two machines of one image: one name, here one address too. They are two hosts, even where
        the launcher has counted the ranks of one."""
        self.needs_namespaces()
        other = self.other_machine()
        shell = self.script(f"exec unshare -m sh -c \"{other}; $*\"\n")
        words = "two machines of one host name, "
        run = self.refused("allreduce", *TWO, "--size", "8", "--timeout", "10", "--rsh", shell)
        self.assertIn(f"hosts 127.0.0.1 and 127.0.0.2 are {words}", run.out)
        self.assertIn("leads to itself, for both have that address", run.err)
        runs = self.copies(4, 29731, before=lambda rank: [] if rank < 2 else [
            "unshare", "-m", "sh", "-c", f"{other}; exec \"$0\" \"$@\""])
        self.assertRegex(runs[0].out, r"hosts and ranks: \S+ 2, \S+ [12]")
        self.assertIn(words, runs[0].out)
        self.assertEqual([run.returncode for run in runs], [2] * 4)

    def test_D11_interfaces_and_addresses(self):
        """Which interface was taken, and of what kind its address is; wrong ones are refused."""
        run = self.fine("allreduce", *TWO, "--size", "8", "--iface", "lo", *QUICK)
        self.assertRegex(run.out, r"# addresses by rank: 0 127\.0\.0\.1:\d+, 1 127\.0\.0\.1:\d+, ")
        self.assertIn("# interfaces: ranks 0-3 lo (loopback)", run.out)
        self.needs_namespaces()
        shell = self.script(f"exec unshare -m sh -c \"{self.other_machine()}; $*\"\n")
        run = self.refused("allreduce", *TWO, "--size", "8", "--rsh", shell, "--iface", "lo")
        self.assertRegex(run.err, r"host 1 \(\S+\) listens at 127\.0\.0\.1:\d+, which from host 0 "
                         r"\(\S+\) leads to its own loopback: choose .* --iface")
        inner = ["unshare", "-n", "sh", "-c", "ip link set lo up; ip link add docker0 type bridge; "
                 "ip address add 172.17.0.1/16 dev docker0; ip link set docker0 up; "
                 "exec \"$0\" \"$@\""]
        run = self.refused("allreduce", *TWO, "--size", "8", before=inner)
        self.assertIn("no interface that is up leads to other hosts; this host has lo 127.0.0.1, "
                      "docker0 172.17.0.1", run.err)

    def test_D11_all_pairs_are_tried(self):
        """A firewall between two of three hosts, whose ranks would not speak for long."""
        try:
            with netns.Hosts(3) as hosts:
                netns.call(["ip", "-n", f"{hosts.name}h1", "route", "add", "unreachable",
                            hosts.addresses[2]])
                done = hosts.run(0, [PROGRAM, "broadcast", "--hosts", ",".join(hosts.addresses),
                                     "--rsh", netns.RSH, "--size", "8", *QUICK],
                                 capture_output=True, text=True, timeout=30, check=False)
                self.assertRegex(done.stderr, r"host 1 \(cbh1\) cannot reach host 2 \(cbh2\): cannot "
                                 r"connect to 10\.77\.0\.3:\d+ from 10\.77\.0\.2: No route to host")
                self.assertEqual(done.returncode, 1)
                netns.call(["ip", "-n", f"{hosts.name}h1", "route", "del", "unreachable",
                            hosts.addresses[2]])
                done = hosts.run(0, [PROGRAM, "broadcast", "--hosts", ",".join(hosts.addresses),
                                     "--rsh", netns.RSH, "--size", "8", *QUICK],
                                 capture_output=True, text=True, timeout=30, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("interfaces: ranks 0-2 eth0 (private)", done.stdout)
        except netns.Unavailable as why:
            self.skipTest(str(why))

    def test_D20_two_containers(self):
        """One machine, but other IPC namespaces or another /dev/shm: it runs, over the network."""
        self.needs_namespaces()
        words = "are the same machine, in different "
        for what, text in [("IPC namespaces", "exec unshare -i sh -c \"$*\"\n"),
                           ("file systems /dev/shm", "exec unshare -m sh -c \"mount -t tmpfs none "
                            "/dev/shm; $*\"\n")]:
            run = self.fine("allreduce", *TWO, "--size", "8", *QUICK, "--rsh", self.script(text))
            self.assertRegex(run.out, rf"{words}{what} \(\d+, \d+\): shm is unavailable between")
            self.assertIn("# Out of bounds values : 0 OK", run.out)
        runs = self.copies(2, 29741, before=lambda rank: ["unshare", "-i"] if rank else [])
        self.assertEqual([run.returncode for run in runs], [0, 0], runs[0].err)
        self.assertIn(words, runs[0].out)
        self.assertRegex(runs[0].out, r"hosts and ranks: \S+ 1, \S+ 1")

    def test_other_versions(self):
        """An agent or a copy of another version: refused, both named."""
        with open(PROGRAM, "rb") as file, tempfile.NamedTemporaryFile(delete=False) as other:
            own = subprocess.run([PROGRAM, "--version"], capture_output=True, check=True).stdout
            own = own.split()[-1]
            image = file.read()
            self.assertIn(own + b"\0", image)
            other.write(image.replace(own + b"\0", own[:-1] + b"x\0"))
        self.addCleanup(os.unlink, other.name)
        os.chmod(other.name, 0o755)
        text = own.decode()
        says = rf"runs collbench {re.escape(text[:-1])}x .*, this one {re.escape(text)} .*install"
        shell = self.script(f"exec sh -c \"$(echo \"$*\" | sed 's#exec [^ ]*#exec {other.name}#')\"\n")
        run = self.refused("allreduce", *TWO, "--size", "8", "--rsh", shell)
        self.assertRegex(run.err, "host 127.0.0.2 " + says)
        runs = self.copies(2, 29751, program=lambda rank: other.name if rank else None)
        self.assertEqual([run.returncode for run in runs], [2, 2])
        self.assertRegex(runs[0].err, says)

    def test_sockets_are_bound_to_the_interface(self):
        """Rendezvous and data: no socket of a run is at another address than the chosen one."""
        run = start("allreduce", *TWO, "--transport", "tcp", "--iface", "127.0.0.0/8", "--size",
                    "64K", "-n", "1000000")
        seen = set()
        self.head(run, lambda: seen.update(sockets()))
        time.sleep(0.3)
        seen.update(sockets())
        run.terminate()
        finish(run)
        self.assertEqual({address for _, address, _, _ in seen}, {"127.0.0.1"})
        self.assertEqual(len({port for _, _, port, listens in seen if listens}), 4)


class Sizes(Case):
    def test_D12_sizes_that_become_zero(self):
        """8 ranks, 8 to 64 bytes: rounded up with a note, never to 0; nothing has no speed."""
        run = self.fine("allgather", "--ranks", "8", "-b", "8", "-e", "64", "-f", "2", *QUICK)
        self.assertEqual([row[0] for row in run.rows], ["32", "64"])
        self.assertIn("# 8 B asked: 32 B used, whole float elements per rank", run.out)
        self.assertIn("# 2 more sizes round to 32 B and are left out", run.out)
        run = self.fine("allgather", "--ranks", "2", "-b", "0", "-e", "8", "-f", "2", "--json", "-",
                        *QUICK)
        for row in json.loads(run.out)["rows"]:
            for place in ["out_of_place_", "in_place_"]:
                self.assertGreater(row[place + "time_us"], 0)
                speed = row[place + "algbw_GBps"]
                self.assertTrue(speed is None if row["size_B"] == 0 else speed > 0, row)

    def test_D13_odd_sizes(self):
        """1000 bytes on 3 ranks: what was asked, and what was used."""
        run = self.fine("allgather", "--ranks", "3", "--size", "1000", *QUICK)
        self.assertEqual([row[:2] for row in run.rows], [["996", "83"]])
        self.assertIn("# 1000 B asked: 996 B used, whole float elements per rank", run.out)

    def test_D14_counts_beyond_2_to_31(self):
        """One byte around 2^31 elements; none of them wraps."""
        if available_B() < 6 << 30:
            self.skipTest("needs 6 GiB of memory")
        once = ["-d", "uint8", "--in-place", "-n", "1", "-w", "0", "--timeout", "200"]
        run = self.fine("broadcast", "--ranks", "2", "-b", str(2**31 - 1), "-e", str(2**31), "-i",
                        "1", "-c", "0", *once)
        self.assertEqual([row[:2] for row in run.rows],
                         [[str(size)] * 2 for size in (2**31 - 1, 2**31)])
        run = self.fine("broadcast", "--ranks", "2", "--size", str(2**31 + 1), *once)
        self.assertEqual([row[:2] for row in run.rows], [[str(2**31 + 1)] * 2])
        self.assertIn("# Out of bounds values : 0 OK", run.out)
        run = self.fine("allreduce", "--ranks", "1", "--size", str(2**32), "-c", "0", *once)
        self.assertEqual([row[:2] for row in run.rows], [[str(2**32)] * 2])

    def test_D15_no_size_is_reduced_silently(self):
        for more in [[], ["--check", "0"]]:
            run = self.refused("allreduce", "--ranks", "2", "-b", "1M", "-e", "32T", "-f", "2",
                               *more)
            self.assertRegex(run.err, r"allreduce of 32 TiB with 2 ranks needs \d+ TiB of memory, "
                             r"but only [\d.]+ [GM]iB are available, with or without the data "
                             r"check; the largest size that fits is \d+ [GM]iB")

    def test_D16_an_average_of_nothing(self):
        run = self.fine("allreduce", "--ranks", "2", "-b", "8", "-e", "64", "-f", "2", *QUICK)
        self.assertIn("# Avg bus bandwidth    : N/A (no row of 1 MB or more", run.out)
        self.assertIn("# Out of bounds values : 0 OK", run.out)
        run = self.fine("allreduce", "--ranks", "2", "-b", "8", "-e", "4M", "-f", "524288", *QUICK)
        mean = float(re.search(r"Avg bus bandwidth    : (\S+) \(GB/s, mean over rows of 1 MB", run.out)[1])
        large = [float(run.rows[1][place]) for place in (7, 11)]
        self.assertAlmostEqual(mean, sum(large) / 2, delta=0.011)


class Gpus(Case):
    def setUp(self):
        if PLUGIN == "-":
            self.skipTest("the emulation of CUDA was not built")
        self.env = {"COLLBENCH_GPU_PLUGIN": PLUGIN, "CUEMU_THREADS": "4", "CUEMU_TIMEOUT_S": "60"}

    def gpus(self, count):
        return {**self.env, "CUEMU_DEVICES": str(count)}

    def test_D06_more_ranks_than_gpus(self):
        for ranks, devices in [("40", 4), ("64", 8)]:
            run = self.refused("allreduce", "--transport", "cuda-ipc", "--ranks", ranks, "--size",
                               "8", env=self.gpus(devices))
            self.assertIn(f"{ranks} ranks need as many GPUs, but there are {devices}; use --ranks "
                          f"{devices}", run.err)
        run = self.refused("allreduce", "--transport", "cuda-ipc", "-g", "8", env=self.gpus(8))
        self.assertIn("--ngpus 8", run.err)

    def test_D08_duplicate_gpu(self):
        """Who shares which; a library that cannot is not even started."""
        run = self.fine("allreduce", "--transport", "cuda-ipc", "--ranks", "3", "--oversubscribe",
                        "--size", "8", *QUICK, env=self.gpus(2))
        self.assertIn("# ranks 0 2 share 0000:01:00.0: libraries call that a duplicate GPU", run.out)

    def test_D17_one_gpu_of_eight(self):
        run = self.fine("allreduce", "--transport", "cuda-ipc", "--ranks", "1", "--size", "8",
                        *QUICK, env=self.gpus(8))
        self.assertIn("; 8 devices visible, 1 used", run.out)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    PLUGIN = sys.argv.pop(1)
    unittest.main()
