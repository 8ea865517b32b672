#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks under mpiexec: the MPI library's results, and what is said and left when a rank or the
launcher ends badly. Skipped (exit status 77) where there is no mpiexec.

Usage: test_mpi.py PROGRAM [unittest arguments]"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
FORMS = ["blocking", "polled"]
TIMEOUT_S = 3
COUNTS = 6 # of elements that the program tries, if each rank has a core
SLACK_S = 20  # a loaded machine starts mpiexec slowly
PR_SET_CHILD_SUBREAPER = 36


def start(case, ranks, form="blocking", timeout=60, fault=None, env=None):
    """The program in a session of its own; orphans become children of this process."""
    more = {"COLLBENCH_FAULT": fault} if fault else {}
    return subprocess.Popen([PROGRAM, case, str(ranks), form, str(timeout)],
                            env={**os.environ, **more, **(env or {})}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def socket_of(pid):
    """The name of the launcher's socket, as a rank's environment tells it."""
    with open(f"/proc/{pid}/environ", "rb") as environment:
        words = environment.read().split(b"\0")
    return [w.decode().split("=")[1] for w in words if w.startswith(b"COLLBENCH_SOCKET=")][0]


def socket_is_there(name):
    with open("/proc/net/unix", encoding="ascii") as table:
        return any(line.rstrip().endswith(" @" + name) for line in table)


def relatives(pid):
    """All processes below `pid`."""
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            for child in children.read().split():
                found += [int(child), *relatives(int(child))]
    except OSError:
        pass
    return found


class Case(unittest.TestCase):
    def finish(self, run, late_s=0.0):
        """Waits for the end; nothing may be left then (late_s: that long after)."""
        run.out, run.err = run.communicate(timeout=120)
        end = time.monotonic() + late_s
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return run
            if pid == 0:
                self.assertLess(time.monotonic(), end, f"a process is left\n{run.out}\n{run.err}")
                time.sleep(0.02)

    def story(self, case, ranks, form, fault):
        """A run with a planted fault: exit status 1, in time, one sentence and nothing else."""
        begin = time.monotonic()
        run = self.finish(start(case, ranks, form, TIMEOUT_S, fault))
        self.assertEqual(run.returncode, 1, f"{run.out}\n{run.err}")
        self.assertEqual(run.out, "")
        self.assertEqual(len(run.err.splitlines()), 1, run.err)
        self.assertLess(time.monotonic() - begin, TIMEOUT_S + SLACK_S)
        return run.err


class Results(Case):
    # calls per count: collectives x types x operators x placements x forms. The 8 types of MPI are
    # reduced with its 4 operators; all 12 are moved
    CALLS = {"allreduce, reduce_scatter, reduce": 3 * 8 * 4 * 2 * 2,
             "allgather, alltoall, gather, scatter, sendrecv": 5 * 12 * 2 * 2,
             "broadcast in place, alltoallv out of place": 2 * 12 * 2}
    # forms that a library may lack: sendrecv in place, polled (MPI 4 has it), and reduce in place,
    # blocking (see mpi_call_has)
    LEFT_OUT = 12 + 8 * 4
    UNSIGNED = 3 * 3 * 2 * 2 # max and min of 3 types, which some libraries do wrong
    SAID = (r"OK: (\d+) calls, (\d+) left out; large counts: (\d+), (\d+); misordered: (\d+); "
            r"[^\n]*\d\.\d[^\n]*\n")

    def test_all_collectives(self):
        for ranks in range(1, 5):
            with self.subTest(ranks=ranks):
                run = self.finish(start("check", ranks))
                self.assertEqual(run.returncode, 0, run.err)
                said = re.fullmatch(self.SAID, run.out)
                self.assertTrue(said, run.out)
                calls, left_out, large, large_left_out, misordered = map(int, said.groups())
                crowded = ranks > len(os.sched_getaffinity(0))
                counts = 1 if crowded else COUNTS
                self.assertEqual(calls + left_out + 2 * misordered,
                                 counts * sum(self.CALLS.values()))
                self.assertLessEqual(left_out, counts * self.LEFT_OUT)
                if not crowded:
                    self.assertIn(misordered, (0, counts * self.UNSIGNED))
                if "MPICH Version: 4" in run.out: # functions with 64-bit counts: at one count
                    self.assertGreater(large, 0)
                if "MPICH Version: 4" in run.out and not crowded:
                    self.assertEqual(COUNTS * (large + large_left_out) + 2 * misordered,
                                     COUNTS * sum(self.CALLS.values()))
                self.assertEqual(run.err, "")

    def test_a_rank_that_waits_elsewhere_still_answers(self):
        run = self.finish(start("aside", 2, timeout=20))
        self.assertEqual((run.returncode, run.err), (0, ""))

    def test_output_arrives(self):
        with tempfile.TemporaryFile("w+") as out:
            out.write("before\n")
            out.flush()
            run = subprocess.run([PROGRAM, "print", "3", "blocking", "60"], stdout=out,
                                 stderr=subprocess.PIPE, text=True, check=True, timeout=60)
            out.seek(0)
            lines = out.read().splitlines()
        self.assertEqual(lines[0], "before")
        self.assertEqual(sorted(lines[1:]), [f"rank {r} of 3" for r in range(3)])
        said = sorted(run.stderr.splitlines())
        self.assertEqual(len(said), 3)
        for rank, line in enumerate(said):
            self.assertRegex(line, rf"^rank {rank}: glibc.malloc.hugetlb=1:")


class Faults(Case):
    ENDS = {"kill:1:3": r"was killed by signal 9 \(Killed\)", "exit:1:3": "exited with status 3"}
    STALLS = {"stop:1:3": r"\(it is stopped\)", "stall:1:3": r"\(it sleeps"}

    def test_who_dies_first_is_named(self):
        for fault, words in self.ENDS.items():
            for form in FORMS:
                with self.subTest(fault=fault, form=form):
                    said = self.story("work", 3, form, fault)
                    self.assertRegex(said, r"^rankmpi: rank 1 \(pid \d+\) (" + words +
                                     r"|died) during MPI_Allreduce, 1048576 B")

    def test_who_stalls_is_named(self):
        for fault, words in self.STALLS.items():
            for form in FORMS:
                with self.subTest(fault=fault, form=form):
                    said = self.story("work", 3, form, fault)
                    self.assertRegex(said, r"^rankmpi: rank 1 \(pid \d+\) made no progress for 3 s "
                                     + words)
                    self.assertIn("during MPI_Allreduce, 1048576 B", said)
                    self.assertIn("rank 0 waited for it in the library's call", said)

    def test_a_death_before_mpi_is_open(self):
        said = self.story("early", 3, "blocking", None)
        self.assertRegex(said, r"^rankmpi: rank 1 \(pid \d+\) (exited with status 5|died)")

    def test_an_error_of_mpi_is_a_sentence(self):
        for form, name in zip(FORMS, ["MPI_Bcast", "MPI_Ibcast"]):
            with self.subTest(form=form):
                run = self.finish(start("error", 2, form))
                self.assertEqual(run.returncode, 1)
                self.assertRegex(run.err, rf"(?m)^rankmpi: rank \d: {name} fails: .*root")
                self.assertNotIn("BAD TERMINATION", run.out + run.err)

    def test_mpiexec_itself_is_killed(self):
        run = start("work", 2)
        mpiexec = self.wait_for_ranks(run, 2)[0]
        os.kill(mpiexec, signal.SIGKILL)
        self.finish(run)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.err, rf"rankmpi: [^ ]*mpi[^ ]* \(pid {mpiexec}\) was killed by signal")

    def wait_for_ranks(self, run, ranks):
        """Process ids below the launcher, when all ranks work."""
        for _ in range(1200):
            pids = relatives(run.pid)
            working = 0
            for pid in pids:
                try:
                    with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
                        working += "libmpi" in maps.read() and self.is_rank(pid)
                except OSError:
                    pass
            if working >= ranks:
                time.sleep(0.5)
                return pids
            time.sleep(0.05)
        self.fail("the ranks did not come up")
        return []

    @staticmethod
    def is_rank(pid):
        return os.readlink(f"/proc/{pid}/exe") == os.path.realpath(PROGRAM)

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for group in (False, True):
                with self.subTest(number=number, group=group):
                    run = start("work", 2)
                    name = socket_of(self.wait_for_ranks(run, 2)[-1])
                    self.assertTrue(socket_is_there(name))
                    (os.killpg if group else os.kill)(run.pid, number)
                    self.finish(run)
                    self.assertFalse(socket_is_there(name))
                    self.assertEqual(run.returncode, 1)
                    self.assertEqual(run.out, "")
                    self.assertRegex(run.err, rf"^rankmpi: interrupted by signal {number:d} "
                                              r"[^\n]*\n$")

    def test_the_launcher_is_killed(self):
        for form in FORMS:
            with self.subTest(form=form):
                run = start("work", 3, form)
                pids = self.wait_for_ranks(run, 3)
                self.assertGreaterEqual(len(pids), 4)
                name = socket_of(pids[-1])
                run.kill()
                self.finish(run, late_s=SLACK_S)
                self.assertFalse(socket_is_there(name))
                for pid in pids:
                    self.assertFalse(os.path.exists(f"/proc/{pid}"))


class Launching(Case):
    def fake(self, folder, text):
        path = os.path.join(folder, "mpiexec")
        with open(path, "w", encoding="ascii") as script:
            script.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)
        return path

    def run_with(self, mpiexec, timeout="3"):
        return subprocess.run([PROGRAM, "print", "2", "blocking", timeout, mpiexec], text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)

    def test_somebody_elses_mpiexec_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_with(self.fake(folder, "echo something else 1.0"))
            self.assertEqual(run.returncode, 2)
            self.assertIn('it says "something else 1.0"', run.stderr)
            run = self.run_with(os.path.join(folder, "missing"))
            self.assertEqual(run.returncode, 2)
            self.assertIn("cannot be run", run.stderr)

    HYDRA = 'if [ "$1" = --version ]; then echo HYDRA; echo "Version: 4.0.2"; exit 0; fi\n'

    def test_what_mpiexec_says_is_shown_when_it_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_with(self.fake(folder, self.HYDRA + "echo no slots today; exit 7"))
            self.assertEqual(run.returncode, 1)
            self.assertEqual(run.stdout, "")
            self.assertIn("no slots today\n", run.stderr)
            self.assertRegex(run.stderr, r"mpiexec \(pid \d+\) exited with status 7\n$")

    def test_an_mpiexec_that_starts_nothing_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.run_with(self.fake(folder, self.HYDRA + "exec sleep 100"))
            self.assertEqual(run.returncode, 1)
            self.assertRegex(run.stderr, r"mpiexec \(pid \d+\) did not start rank 0 within 3 s")

    def test_an_mpiexec_that_gives_a_number_twice_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            twice = 'shift 8; export PMI_RANK=0; "$@" & "$@" & wait'
            run = self.run_with(self.fake(folder, self.HYDRA + twice), timeout="20")
            self.assertEqual(run.returncode, 1)
            self.assertRegex(run.stderr, r"started a second rank 0; there are 2 ranks in all")

    def test_a_library_of_another_version_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            other = self.HYDRA.replace("4.0.2", "3.9.9") + f'exec {shutil.which("mpiexec")} "$@"'
            run = self.run_with(self.fake(folder, other), timeout="20")
            self.assertEqual(run.returncode, 1)
            self.assertRegex(run.stderr, r"mpiexec is MPICH 3\.9\.9, but the library found is")

    def test_copies_of_another_launcher_are_told(self):
        run = subprocess.run([shutil.which("mpiexec"), "-n", "2", PROGRAM, "print", "2", "blocking",
                              "9"], text=True, stdin=subprocess.DEVNULL, capture_output=True,
                             timeout=60)
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(run.stderr.count("one of several copies that mpi"), 2, run.stderr)
        run = subprocess.run([PROGRAM, "print", "1", "blocking", "60"], text=True,
                             env={**os.environ, "PMI_RANK": "0", "PMI_SIZE": "1"},
                             capture_output=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if not shutil.which("mpiexec") and not shutil.which("mpirun"):
        print("there is no mpiexec")
        sys.exit(77)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    unittest.main()
