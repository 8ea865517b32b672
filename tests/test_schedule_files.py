#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Schedules from and to files, as `collbench schedule` reads and writes them.

    test_schedule_files.py COLLBENCH [TestClass ...]
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

COLLBENCH = ""
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLE = os.path.join(ROOT, "examples", "allreduce-27-radix3.xml")


def schedule(*args):
    return subprocess.run([COLLBENCH, "schedule", *args], timeout=60, capture_output=True,
                          stdin=subprocess.DEVNULL, text=True)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def fine(self, *args):
        done = schedule(*args)
        self.assertEqual((done.returncode, done.stderr), (0, ""), args)
        return done.stdout

    def refused(self, *args):
        """The one sentence of a refusal."""
        done = schedule(*args)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        return lines[0]

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as to:
            to.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as text:
            return text.read()


class RoundTrip(Case):
    def test_the_steps_of_a_file_are_those_of_the_algorithm(self):
        for algo in ["ring", "tree", "oneshot", "twoshot"]:
            name = self.path(algo + ".xml")
            build = ["allreduce", "--algo", algo, "--ranks", "5", "--unroll"]
            self.assertEqual(self.fine(*build, "--export", name), "")
            drawn = self.fine(*build)
            self.assertEqual(self.fine("--schedule", name), drawn)
            self.assertEqual(self.fine("allreduce", "--schedule", name), drawn)
            self.fine("--schedule", name, "--export", self.path("again.xml"), "--overwrite")
            self.assertEqual(self.read("again.xml"), self.read(algo + ".xml"))

    def test_all_views_of_a_file(self):
        name = self.path("a.xml")
        self.fine("allgather", "--ranks", "4", "--export", name)
        self.assertIn("staged  in place      progress and freedom: passed",
                      self.fine("--schedule", name, "--verify"))
        self.assertIn("round", self.fine("--schedule", name, "--draw"))
        self.assertIn("rank 3 linked", self.fine("--schedule", name, "--linked"))
        self.assertEqual(self.fine("--schedule", name, "--rank", "1").splitlines()[2][:6], "     1")

    def test_a_file_for_one_placement_says_so(self):
        self.fine("allreduce", "--ranks", "2", "--algo", "oneshot", "--export", self.path("a.xml"))
        text = self.read("a.xml").replace('inplace="1" outofplace="1"', 'outofplace="1" inplace="0"')
        told = self.fine("--schedule", self.write("b.xml", text), "--verify")
        self.assertIn("out of place  shape and meaning: passed", told)


class Refusals(Case):
    def setUp(self):
        super().setUp()
        self.fine("allreduce", "--algo", "tree", "--ranks", "6", "--export", self.path("a.xml"))
        self.text = self.read("a.xml")

    def changed(self, pattern, to):
        text, n = re.subn(pattern, to, self.text, count=1)
        self.assertEqual(n, 1)
        return self.write("b.xml", text)

    def test_faults_of_files(self):
        place = re.escape(self.path("b.xml")) + r":\d+: "
        for pattern, to, sentence in [
                (r'depid="\d+" deps="\d+"', 'depid="-1" deps="-1"', "data race: rank 0 tb"),
                (r'type="rrc"', 'type="r"', "lacking contributions|contributions are missing"),
                (r'type="rrc"', 'type="add"', "valid are s, r, rcs"),
                (r'depid="-1" deps="-1"', 'depid="0" deps="0"', "deadlock: rank 0 tb 0 step 0"),
                (r"</algo>", "</algo>" + "junk " * 1000, "no XML"),
        ]:
            said = self.refused("--schedule", self.changed(pattern, to))
            self.assertRegex(said, place + ".*(" + sentence + ")")

    def test_options(self):
        name = self.path("a.xml")
        for args, sentence in [
                (["--schedule", name, "--ranks", "4"], "--ranks is for building a schedule"),
                (["--schedule", name, "--algo", "ring"], "--algo is for building a schedule"),
                (["broadcast", "--schedule", name], "is a schedule of allreduce, not of broadcast"),
                (["--schedule", self.path("none.xml")], "No such file"),
                (["--schedule", self.folder.name], "directory"),
                (["allreduce", "--export", name], "exists and is kept"),
                (["allreduce", "--export", self.path("a.json")], "ends in .xml"),
                (["allreduce", "--export", self.path("no/a.xml")], "cannot write"),
                (["allreduce", "--size", "4K"], "--export FILE.goal alone"),
                (["allreduce", "--overwrite"], "beside --export"),
                (["allreduce", "--export", self.path("a.goal"), "--wire", "pull"], "staged"),
                (["--verify"], "takes one operation"),
        ]:
            self.assertIn(sentence, self.refused(*args), args)
        self.assertFalse(os.path.exists(self.path("a.goal")))


class Goal(Case):
    def test_bytes_and_times(self):
        self.fine("allreduce", "--algo", "ring", "--ranks", "4", "--export", self.path("a.goal"),
                  "--size", "4K", "--gamma", "1GB/s")
        text = self.read("a.goal")
        self.assertTrue(text.startswith("num_ranks 4\n"))
        self.assertEqual(len(re.findall(r"send 1024b to \d tag 0 cpu 0 nic 0", text)), 4 * 6)
        self.assertEqual(len(re.findall(r"recv 1024b from \d tag 0 cpu 0 nic 0", text)), 4 * 6)
        self.assertEqual(len(re.findall(r"calc 1024 cpu 0", text)), 4 * 3)


class Example(Case):
    def test_the_script_writes_the_shipped_file(self):
        script = os.path.join(ROOT, "examples", "allreduce_radix.py")
        made = subprocess.run([sys.executable, "-B", script], capture_output=True, text=True,
                              check=True, timeout=60).stdout
        with open(EXAMPLE, encoding="utf-8") as text:
            self.assertEqual(text.read(), made)

    def test_it_is_proved_in_any_radix(self):
        script = os.path.join(ROOT, "examples", "allreduce_radix.py")
        for radix, digits in [(2, 1), (2, 3), (3, 2), (4, 2), (5, 1)]:
            made = subprocess.run([sys.executable, "-B", script, "--radix", str(radix), "--digits",
                                   str(digits)], capture_output=True, text=True, check=True,
                                  timeout=60).stdout
            told = self.fine("--schedule", self.write("r.xml", made), "--verify")
            self.assertIn("staged  in place      progress and freedom: passed", told)
            self.assertIn("staged  out of place  progress and freedom: passed", told)


if __name__ == "__main__":
    COLLBENCH = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
