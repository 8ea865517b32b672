#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of a Markdown file and compares what they print with what the file shows.

    readme.py README.md ROOT BUILD

An example is a fenced block with lines that start with "$ ": each such line is a command, the lines
below it are its output (stdout and stderr). Commands run by bash in a scratch copy (links) of ROOT
where build/ is BUILD, so they can be written as a reader would type them. What must agree is the
shape: the same lines once every number, with the unit behind it, is a placeholder and white space
is collapsed. A line "..." stands for any lines, also none. A command must exit with 0, or with N
if it ends in "# exit N". "./setup" and "./setup test" themselves are not run again (they run this
test), but what follows them after "&&" is.
"""
import os
import re
import subprocess
import sys
import tempfile

LIMIT_S = 300  # for one command
UNIT = r"(?:\s*(?:[pnum]?s|[KMGT]?i?B(?:/s)?|[KMGT]?b/s|[KMGT])(?![\w/]))?"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?" + UNIT + r"|\d+")
SETUP = re.compile(r"^\./setup(?: test)?\s*(?:&&\s*|$)")


class Example:
    """A command, the line where it stands, and the output shown below it."""

    def __init__(self, command, line):
        self.command, self.line, self.shown = command, line, []

    def status(self):
        """The exit status that the command must have."""
        said = re.search(r"#\s*exit (\d+)\s*$", self.command)
        return int(said.group(1)) if said else 0


def examples(text):
    """All examples of a Markdown text, in order."""
    found, fence, current = [], None, None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence is None:
            if mark:
                fence, current = mark.group(1), None
        elif mark and line.strip() == fence:
            fence = None
        elif current and not current.shown and current.command.endswith("\\"):
            current.command += "\n" + re.sub(r"^> ", "", line)
        elif line.startswith("$ "):
            current = Example(line[2:], number)
            found.append(current)
        elif current:
            current.shown.append(line)
    return found


def shape(line):
    """The line with its numbers and blanks made equal. A run of dashes or stars counts as one."""
    return re.sub(r"\s+", " ", re.sub(r"([-=*.#|])\1{3,}", r"\1", NUMBER.sub("<n>", line))).strip()


def agree(shown, got):
    """Whether the lines got have the shape of the lines shown, where "..." is any lines."""
    lines = ["..." if line.strip() == "..." else shape(line) for line in shown]
    got = [shape(line) for line in got]
    reach = {0}  # how many of the lines got may be used up so far
    for line in lines:
        if line == "...":
            reach = set(range(min(reach), len(got) + 1)) if reach else reach
        else:
            reach = {i + 1 for i in reach if i < len(got) and got[i] == line}
    return len(got) in reach


def trimmed(lines):
    """The lines without empty ones at either end."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    while lines and not lines[0].strip():
        lines = lines[1:]
    return lines


def scratch(root, build, folder):
    """Fills folder with links to what is in root, and build."""
    for name in os.listdir(root):
        if not name.startswith("build"):
            os.symlink(os.path.join(root, name), os.path.join(folder, name))
    os.symlink(build, os.path.join(folder, "build"))


def run(example, folder):
    """None if the example holds, else a text that says what is wrong."""
    command = SETUP.sub("", example.command)
    if not command.strip():
        return None
    try:
        done = subprocess.run(["bash", "-c", command], cwd=folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s"
    got = trimmed(done.stdout.decode(errors="replace").splitlines())
    if done.returncode != example.status():
        said = f"exit status {done.returncode}, not {example.status()}; it printed:"
        return "\n".join([said] + got)
    shown = trimmed(example.shown)
    if not agree(shown, got):
        return "\n".join(["the output shown is"] + shown + ["but the command printed"] + got)
    return None


def check(text, root, build):
    """Runs all examples of the text; the number of examples, and the faults as texts."""
    found, faults = examples(text), []
    with tempfile.TemporaryDirectory() as folder:
        scratch(os.path.abspath(root), os.path.abspath(build), folder)
        for example in found:
            fault = run(example, folder)
            print(f"{'FAIL' if fault else 'ok'}  line {example.line}: $ {example.command}", flush=True)
            if fault:
                faults.append(f"line {example.line}: $ {example.command}\n{fault}")
    return len(found), faults


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    with open(sys.argv[1], encoding="utf-8") as text:
        count, faults = check(text.read(), sys.argv[2], sys.argv[3])
    for fault in faults:
        print("\n" + fault)
    print(f"\n{count} examples, {len(faults)} wrong")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
