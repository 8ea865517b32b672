#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the house tests: each must find the fault that is planted here.

    test_house.py ROOT BUILD [CLANG_FORMAT]
"""
import os
import subprocess
import sys
import tempfile
import unittest

import includes
import readme

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT, BUILD = sys.argv[1], sys.argv[2]
CLANG_FORMAT = sys.argv[3] if len(sys.argv) > 3 else ""


def plant(folder, path, text):
    os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
    with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
        file.write(text)


class Includes(unittest.TestCase):
    def faults(self, path, name):
        with tempfile.TemporaryDirectory() as folder:
            plant(folder, path, f'/* x */\n#include <stdio.h>\n#include "{name}"\n')
            return includes.faults(folder)[0]

    def test_right_directions(self):
        for path, name in [("base/a.c", "base/err.h"), ("collectives/exec/a.c", "algo/algo.h"),
                           ("sim/net/a.h", "sched/sched.h"), ("sim/commsim.c", "net/net.h"),
                           ("bench/a.cu", "train/step.h")]:
            self.assertEqual(self.faults(path, name), [])

    def test_wrong_directions(self):
        for path, name in [("base/a.c", "sched/sched.h"), ("kernels/a.cu", "exec/exec.h"),
                           ("collectives/sched/a.h", "algo/algo.h"), ("sim/net/a.c", "exec/exec.h"),
                           ("collectives/exec/a.c", "net/net.h"), ("sim/net/a.c", "train/step.h"),
                           ("collectives/ref/a.c", "bench/plan.h"), ("sim/commsim.c", "bench/a.h"),
                           ("base/a.c", "err.h"), ("base/a.c", "../kernels/kernels.h"),
                           ("base/a.c", "tests/x.h"), ("bench/a.c", "collectives/exec/exec.h")]:
            found = self.faults(path, name)
            self.assertEqual(len(found), 1, (path, name))
            self.assertTrue(found[0].startswith(f"{path}:3: "), found)

    def test_every_folder_with_sources_has_a_rule(self):
        folders = set()
        for top in ("base", "kernels", "collectives", "sim", "bench"):
            for place, _, names in os.walk(os.path.join(ROOT, top)):
                if any(name.endswith(includes.SOURCES) for name in names):
                    folders.add(os.path.relpath(place, ROOT))
        self.assertLessEqual(folders, set(includes.MAY))


class Format(unittest.TestCase):
    def status(self, text):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(ROOT, ".clang-format"), encoding="utf-8") as style:
                plant(folder, ".clang-format", style.read())
            plant(folder, "base/a.c", text)
            return subprocess.run([os.path.join(HERE, "format.sh"), folder, CLANG_FORMAT],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

    def test_a_difference_is_found(self):
        right = self.status("int main(void)\n{\n    return 0;\n}\n")
        if right == 77:
            self.skipTest("clang-format 14 is not here")
        self.assertEqual(right, 0)
        self.assertNotIn(self.status("int main(void) {\n  return 0; }\n"), (0, 77))


class Readme(unittest.TestCase):
    def faults(self, command, *shown):
        text = "\n".join(["```console", "$ " + command, *shown, "```"])
        count, faults = readme.check(text, ROOT, BUILD)
        self.assertEqual(count, 1)
        return faults

    def test_sample(self):
        with open(os.path.join(HERE, "sample.md"), encoding="utf-8") as text:
            count, faults = readme.check(text.read(), ROOT, BUILD)
        self.assertEqual((count, faults), (6, []))
        self.assertFalse(os.path.exists(os.path.join(ROOT, "written-by-an-example")))

    def test_numbers_and_blanks_may_differ(self):
        self.assertEqual(self.faults("echo 'time 1.5e-3 us,   -4 GB/s x2 12K'",
                                     "time 230 ms, 17.2 GB/s x16 1M"), [])

    def test_faults_are_found(self):
        for command, shown in [("true", ["a"]), ("echo a", []), ("echo a", ["b"]),
                               ("echo '3 wrong'", ["0 right"]), ("echo 5 N/A", ["5 5"]),
                               ("echo a; echo b", ["a"]), ("echo a; echo b", ["b"]),
                               ("echo a; echo b", ["...", "a"]), ("echo 5 us", ["5 apples"]),
                               ("false", []), ("true  # exit 1", []), ("false  # exit 2", []),
                               ("no-such-program", ["..."]), ("./setup && echo a", ["b"])]:
            self.assertEqual(len(self.faults(command, *shown)), 1, (command, shown))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
