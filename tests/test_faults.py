#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted faults on every transport: each run ends within its timeout and a margin, says which rank,
and leaves nothing behind - no process, no file in /dev/shm or in its folder for temporary files.

Usage: test_faults.py PROGRAM [--count N] [--seed S] [unittest arguments]

--count and --seed are of the faults drawn by lot (Random); a failure names the seed and shows the
command, so that it can be run again."""

import argparse
import glob
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
COUNT, SEED = 10, 1
TIMEOUT_S = 3
MARGIN_S = 20  # starting, ending and telling, on a machine that does other things too
GONE_S = 20    # what is left behind then has been left behind
MARK = "COLLBENCH_TEST_FAULTS"
OPERATIONS = ["allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "broadcast",
              "reduce", "gather", "scatter", "sendrecv"]

# name -> (arguments, may be over two hosts, ranks may be threads, a connection can be cut)
TRANSPORTS = {
    "shm": (["--transport", "shm"], False, True, False),
    "tcp": (["--transport", "tcp"], True, True, True),
    "shm+tcp": (["--transport", "shm+tcp"], True, True, True),
    "ofi tcp": (["--transport", "ofi", "--provider", "tcp"], True, True, True),
    "ofi shm": (["--transport", "ofi", "--provider", "shm"], False, True, False),
    "shm+ofi": (["--transport", "shm+ofi", "--provider", "tcp"], True, True, True),
    "mpi": (["--transport", "mpi"], False, False, False),
    "cuda-ipc": (["--transport", "cuda-ipc"], False, True, False),
    "cuda-peer": (["--transport", "cuda-peer"], False, True, False),
}
DATA = ["flip", "swap"]
ENDS = ["kill", "exit", "stop", "stall", "drop"]


def available():
    """Those of TRANSPORTS that this build and machine have."""
    text = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True).stdout
    usable = {line.split()[0] for line in text.split("Transports\n")[1].split("\n\n")[0].splitlines()
              if " - not built" not in line and "cannot be used here" not in line}
    providers = subprocess.run([PROGRAM, "allreduce", "--ranks", "2", "--size", "8", "-n", "1",
                                "--transport", "ofi", "--provider", "nosuch"], capture_output=True,
                               text=True, check=False).stderr
    return [name for name, (args, *_) in TRANSPORTS.items() if args[1] in usable and
            ("--provider" not in args or f"{args[-1]}" in providers.split("there are:")[-1])]


def marked():
    """Living processes that a run of this program has started: (pid, command line)."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if f"{MARK}={os.getpid()}".encode() not in environ.read().split(b"\0"):
                    continue
            with open(f"/proc/{pid}/cmdline", "rb") as words:
                found.append((int(pid), words.read().decode().replace("\0", " ")))
        except OSError:
            continue
    return found


def in_use(path):
    """Whether a process has the file mapped: then it is somebody else's."""
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(maps, encoding="utf-8", errors="replace") as lines:
                if path in lines.read():
                    return True
        except OSError:
            continue
    return False


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Run:
    """One run of the program from its start to its end."""

    def __init__(self, words, fault="", more=None):
        self.words, self.folder = words, tempfile.TemporaryDirectory()
        self.shm = set(os.listdir("/dev/shm"))
        self.env = {MARK: str(os.getpid()), "TMPDIR": self.folder.name, **(more or {})}
        if fault:
            self.env["COLLBENCH_FAULT"] = fault
        self.begin = time.monotonic()
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True,
                                        env={**os.environ, **self.env})

    def finish(self, seconds=TIMEOUT_S + MARGIN_S):
        """Waits for the end; a run that has none is shown, and ended."""
        self.hangs = ""
        try:
            self.out, self.err = self.process.communicate(timeout=seconds)
            self.out = getattr(self, "read", "") + self.out
        except subprocess.TimeoutExpired:
            self.hangs = "\n".join(f"{pid} {words}" for pid, words in marked())
            for pid, _ in marked():
                os.kill(pid, signal.SIGKILL)
            self.out, self.err = self.process.communicate()
        self.seconds = time.monotonic() - self.begin
        self.code = self.process.returncode
        self.left = self.leftovers()
        return self

    def leftovers(self):
        """What it has left behind."""
        wait_until(lambda: not marked(), GONE_S)
        left = [f"process {pid}: {words}" for pid, words in marked()]
        files = lambda: set(os.listdir("/dev/shm")) - self.shm
        wait_until(lambda: not files(), 1 if files() else 0)
        left += [f"/dev/shm/{name}" for name in files() if not in_use(f"/dev/shm/{name}")
                 and os.path.exists(f"/dev/shm/{name}")]
        left += [os.path.join(self.folder.name, name) for name in os.listdir(self.folder.name)]
        self.folder.cleanup()
        return left

    def __str__(self):
        env = " ".join(f"{name}={value}" for name, value in self.env.items()
                       if name.startswith("COLLBENCH_FAULT"))
        rows = [line for line in self.out.splitlines() if not line.startswith("#")]
        return (f"{env} {shlex.join(self.words)}\nexit {self.code} after {self.seconds:.1f} s\n" +
                "\n".join(rows[-3:] + self.err.splitlines()[-6:]))


def told(run, kind, rank, threads):
    """None if the sentence fits the fault, else what it should have said."""
    whole = r"the process of ranks \d+ to \d+"
    who = rf"(rank {rank}\b|{whole})" if threads else rf"rank {rank}\b"
    words = {
        "kill": rf"{who}.* was killed by signal 9",
        "exit": rf"{who}.* exited with status 3",
        "stall": rf"rank {rank}\b.* made no progress for {TIMEOUT_S} s",
        # of a process that was stopped all threads stand still
        "stop": r"(rank \d+\b|process of ranks).* made no progress" if threads else
                rf"rank {rank}\b.* made no progress for {TIMEOUT_S} s",
        "drop": r"rank \d+\b.*rank \d+\b",
        "flip": r"wrong elements?; the first: rank \d+, (output|input) element \d+",
        "swap": r"wrong elements?; the first: rank \d+, (output|input) element \d+",
    }.get(kind)
    if words and not re.search(words, run.err):
        return f"no sentence like {words!r}"
    return None


class Case(unittest.TestCase):
    def check(self, run, kind, rank=0, threads=False):
        """Everything that must hold behind a run with a planted fault."""
        code = 0 if kind in ("delay", "") else 1
        self.assertEqual(run.hangs, "", f"it did not end:\n{run}")
        self.assertEqual(run.code, code, run)
        self.assertEqual(run.left, [], f"left behind by\n{run}")
        fault = told(run, kind, rank, threads)
        self.assertIsNone(fault, f"{fault}\n{run}")
        if kind in ("delay", ""):
            self.assertIn("# Out of bounds values : 0 OK", run.out, run)
            self.assertEqual(run.err, "", run)


def command(transport, operation, ranks, size, kind, threads=False, hosts=1):
    """The words of a run that lasts long enough for the fault."""
    words = [PROGRAM, operation, *TRANSPORTS[transport][0], "-T", str(TIMEOUT_S),
             "-n", "1000000" if kind in ENDS else "30"]
    words += ["--size", str(size)] if operation != "barrier" else []
    words += ["--ranks-as", "threads"] if threads else []
    if hosts == 1:
        return words + ["--ranks", str(ranks)]
    return words + ["--hosts", f"127.0.0.1:{ranks - ranks // 2},127.0.0.2:{ranks // 2}"]


class Kinds(Case):
    def test_every_kind_on_every_transport(self):
        for transport in available():
            for kind in [*DATA, "delay", "kill", *(["drop"] if TRANSPORTS[transport][3] else [])]:
                with self.subTest(transport=transport, kind=kind):
                    hosts = 2 if kind == "drop" and "+" in transport else 1
                    # in a ring every rank of two hosts has a neighbour on the other one
                    words = [*command(transport, "allreduce", 3, 4096, kind, hosts=hosts),
                             "--algo", "ring"]
                    run = Run(words, f"{kind}:1:12")
                    self.check(run.finish(), kind, 1)

    def test_who_sends_nothing_is_found_too(self):
        for operation, rank in [("broadcast", 2), ("reduce", 0), ("gather", 1), ("scatter", 2)]:
            for kind in DATA:
                with self.subTest(operation=operation, kind=kind):
                    run = Run(command("shm", operation, 3, 4096, kind), f"{kind}:{rank}:5")
                    self.check(run.finish(), kind, rank)

    def test_one_fault_is_one_fault(self):
        """The data of one operation: of two placements one is wrong, and no other row is."""
        run = Run([PROGRAM, "allgather", "--ranks", "3", "-b", "1K", "-e", "4K", "-f", "2",
                   "-n", "9"],
                  "flip:0:2").finish()
        rows = [line.split() for line in run.out.splitlines() if line and line[0] != "#"]
        self.assertEqual(len(rows), 3, run)
        wrong = [int(row[column]) for row in rows for column in (8, 12)]
        self.assertEqual(len([count for count in wrong if count]), 1, run)
        self.assertLessEqual(sum(wrong), 3, run)  # on each rank at most

    def test_late_beyond_the_timeout(self):
        """Half a second is late for a timeout of 0.2 s; so may others be, on a machine that does
        other things too, but not always."""
        for _ in range(10):
            run = Run([PROGRAM, "allreduce", "--ranks", "3", "--size", "4K", "-n", "50", "-T",
                       "0.2"], "delay:2:9").finish()
            self.assertEqual(run.code, 1, run)
            self.assertRegex(run.err, r"made no progress for 0\.2 s", run)
            if re.search(r"rank 2 .*made no progress for 0\.2 s", run.err):
                return
        self.fail(f"rank 2 is never named\n{run}")

    def test_a_fault_that_never_came_is_told(self):
        run = Run([PROGRAM, "allreduce", "--ranks", "2", "--size", "64", "-n", "3"],
                  "kill:1:100000000").finish()
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.err, r"rank 1: COLLBENCH_FAULT=kill:1:100000000 has not happened in "
                         r"\d+ operations")

    def test_refused(self):
        base = [PROGRAM, "allreduce", "--size", "4K", "-n", "3", "--ranks", "2"]
        barrier = [PROGRAM, "barrier", "--ranks", "2", "-n", "3"]
        for fault, words, sentence in [
                ("flap:1:2", base, "not of the form kill|stop|stall|exit|drop|delay|flip|swap:"
                 "RANK:TICK"),
                ("flip:1", base, "not of the form"), ("flip:1:2x", base, "not of the form"),
                ("kill:2:1", base, "there is no rank 2, ranks are 0 to 1"),
                ("drop:1:2", base, "there is no connection to cut"),
                ("swap:0:1", [*base, "--check", "0"], "data are not checked (--check 0)"),
                ("flip:0:1", barrier, "a barrier has no data")]:
            with self.subTest(fault=fault):
                run = Run(words, fault).finish()
                self.assertEqual(run.code, 2, run)
                self.assertIn(sentence, run.err)
                self.assertEqual(run.left, [])

    def test_refused_where_the_library_has_the_connections(self):
        for transport, words in [("mpi", "transport mpi has no connection of its own to cut"),
                                 ("ofi shm", "provider shm has no connection that can be cut")]:
            with self.subTest(transport=transport):
                if transport not in available():
                    self.skipTest(f"no {transport} here")
                run = Run(command(transport, "allreduce", 2, 4096, "drop"), "drop:1:5").finish()
                self.assertEqual(run.code, 2, run)
                self.assertIn(words, run.err)
                self.assertEqual(run.left, [])


def tiny_shm(size, words):
    """The words of a run that has a /dev/shm of its own, of that size."""
    return ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size={size} tmpfs /dev/shm && "
            f"exec {shlex.join(words)}"]


class TinyShm(Case):
    """D03: containers have a /dev/shm of 64 MiB or less (NVIDIA/nccl#342, dmlc/xgboost#5963): what
    needs more of it says so before anything is timed, and nothing ends by a bus error."""

    def setUp(self):
        if subprocess.run(tiny_shm("1m", ["true"]), capture_output=True, check=False).returncode:
            self.skipTest("no mount of its own here (needs root)")

    def run_in(self, size, transport, ranks=3):
        run = Run(tiny_shm(size, command(transport, "allreduce", ranks, 65536, "")))
        run.finish()
        self.assertEqual(run.hangs, "", run)
        self.assertEqual(run.left, [], run)
        self.assertNotIn("signal 7", run.err)
        return run

    def test_works_or_is_refused(self):
        for size in ["64k", "1m", "64m"]:
            for transport in available():
                with self.subTest(size=size, transport=transport):
                    run = self.run_in(size, transport)
                    if run.code == 0:
                        self.check(run, "")
                        continue
                    self.assertIn(transport, ["ofi shm", "mpi"], run)
                    self.assertRegex(run.err, r"\d+ B of /dev/shm|/dev/shm has \d+ B free", run)
                    self.assertRegex(run.err, r"--shm-size or --ipc=host")
                    self.assertIsNone(re.search(r"(?m)^ +\d+ ", run.out), run)  # no row

    def test_need_and_have(self):
        if "ofi shm" not in available():
            self.skipTest("no libfabric with the provider shm here")
        run = self.run_in("64m", "ofi shm", 8)
        self.assertEqual(run.code, 2, run)
        self.assertIn(f"needs {9 << 24} B of /dev/shm (8 ranks x {1 << 24} B and {1 << 24} B to "
                      f"spare), but {1 << 26} B are free", run.err)

    def test_all_ranks_choose_alike(self):
        """Enough for one rank, not for all."""
        if "ofi shm" not in available():
            self.skipTest("no libfabric with the provider shm here")
        words = [PROGRAM, "allreduce", "--transport", "ofi", "--ranks", "3", "--size", "64K", "-n",
                 "20"]
        for size, provider in [("40m", "tcp"), ("70m", "shm")]:
            run = Run(tiny_shm(size, words)).finish()
            self.check(run, "")
            self.assertEqual(len(re.findall(rf"\d {provider}", run.out)), 3, run)


class Copies(Case):
    """Under a foreign launcher: what was measured stays, nobody says 0, nobody stays."""
    SWEEP = ["allreduce", "-b", "8", "-e", "16M", "-f", "8", "-n", "20", "-w", "1",
             "--order", "listed", "-T", str(TIMEOUT_S)]

    def measured(self, run):
        rows = [line for line in run.out.splitlines() if line and line[0] != "#"]
        self.assertGreaterEqual(len(rows), 1, run)
        self.assertIn("# the run FAILED", run.out)

    def torchrun(self, port, fault="", more=()):
        """Four copies, two on each of two hosts that are both this one."""
        variables = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [Run([PROGRAM, *self.SWEEP, *more], fault,
                    {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank % 2)})
                for rank in range(4)]

    def ended(self, runs):
        for run in runs:
            run.finish(TIMEOUT_S + 2 * MARGIN_S)
            self.assertEqual(run.hangs, "", run)
        for run in runs:
            self.assertNotEqual(run.code, 0, run)
        self.measured(runs[0])
        self.assertEqual(marked(), [])

    def test_a_rank_dies(self):
        for number, kind in enumerate(["kill", "stop"]):
            with self.subTest(kind=kind):
                runs = self.torchrun(29811 + number, f"{kind}:3:150")
                self.ended(runs)
                self.assertIsNone(told(runs[0], kind, 3, False), runs[0])

    def test_a_copy_is_killed(self):
        """That which speaks for the other host."""
        runs = self.torchrun(29821)
        row = lambda out: any(line and line[0] != "#" for line in out.splitlines())
        runs[0].read = ""
        while not row(runs[0].read):
            line = runs[0].process.stdout.readline()
            self.assertNotEqual(line, "", runs[0].process.poll())
            runs[0].read += line
        runs[2].process.kill()
        self.ended(runs)
        self.assertRegex(runs[0].err, r"host \S+ is lost")

    def test_mpiexec(self):
        if not shutil.which("mpiexec"):
            self.skipTest("no mpiexec here")
        for transport in [name for name in ["tcp", "shm", "mpi"] if name in available()]:
            with self.subTest(transport=transport):
                run = Run(["mpiexec", "-n", "4", PROGRAM, *self.SWEEP,
                           *TRANSPORTS[transport][0]], "kill:2:150").finish()
                self.assertEqual(run.hangs, "", run)
                self.assertNotEqual(run.code, 0, run)
                self.measured(run)
                self.assertRegex(run.err, r"rank 2\b.* was killed by signal 9")
                self.assertEqual(run.left, [], run)


class Interrupts(Case):
    def test_while_hosts_are_started(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        shell = os.path.join(folder, "shell")
        with open(shell, "w", encoding="utf-8") as script:
            script.write("#!/bin/sh\nexec sleep 600\n")
        os.chmod(shell, 0o755)
        for number in (signal.SIGINT, signal.SIGTERM):
            run = Run([PROGRAM, "allreduce", "--hosts", "127.0.0.1:2,127.0.0.2:2", "--rsh", shell,
                       "--size", "8", "-n", "3", "-T", "30"])
            self.assertTrue(wait_until(lambda: any("sleep" in words for _, words in marked()), 60))
            run.process.send_signal(number)
            run.finish()
            self.assertEqual(run.hangs, "", run)
            self.assertEqual(run.code, 128 + number, run)
            self.assertEqual(run.left, [], run)


class Random(Case):
    def draw(self, lot, names):
        """The words of a run, and its fault."""
        transport = lot.choice(names)
        _, far, threads, cut = TRANSPORTS[transport]
        kind = lot.choice([*DATA, "delay", *ENDS[:-1], *(["drop"] if cut else [])])
        ranks, hosts = lot.randint(2, 5), 1 + (far and lot.random() < 0.4)
        far_alone = kind == "drop" and "+" in transport
        if far_alone:
            hosts = 2  # else nothing needs the connections
        as_threads = threads and lot.random() < 0.3
        size = lot.choice([256, 4096, 65536, 1 << 20]) + 4 * lot.randint(0, 9)
        operation = lot.choice(OPERATIONS + ([] if kind in DATA else ["barrier"]))
        if kind in DATA and transport.startswith("cuda") and operation in ("reduce", "gather"):
            operation = "allreduce"  # kernels post the messages: only results are spoiled there
        tick = lot.randint(0, 40) if kind in ENDS else lot.randint(0, 8)
        rank = lot.randrange(ranks)
        operation = "alltoall" if far_alone else operation  # every rank needs some
        words = command(transport, operation, ranks, size, kind, as_threads, hosts)
        words += ["--algo", "direct"] if far_alone else []
        return words, kind, rank, tick, as_threads

    def test_faults_in_a_row(self):
        names, lot, slowest = available(), random.Random(SEED), 0.0
        for i in range(COUNT):
            words, kind, rank, tick, threads = self.draw(lot, names)
            with self.subTest(seed=SEED, number=i):
                run = Run(words, f"{kind}:{rank}:{tick}").finish()
                slowest = max(slowest, run.seconds)
                if COUNT > 20:
                    print(f"{i}: {run}\n", flush=True)
                self.check(run, kind, rank, threads)
        print(f"{COUNT} faults, seed {SEED}, {', '.join(names)}: the slowest ended after "
              f"{slowest:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    options, rest = parser.parse_known_args()
    PROGRAM, COUNT, SEED = os.path.abspath(options.program), options.count, options.seed
    unittest.main(argv=[sys.argv[0], *rest])
