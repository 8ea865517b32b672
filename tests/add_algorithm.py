#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves the page "Add an algorithm": does what it says in a copy of the tree.

    add_algorithm.py ROOT CMAKE COMPILER [CLANG_FORMAT]

The code blocks of ALGORITHM.md are put where the line above each says, the copy is built, and all
commands of the page are run there and compared with what it shows (as house/readme.py does for the
README). Then what the page claims in words is checked, and each mistake of its table is made and
must be refused in the words of the table. Exit status 77 (skipped) without ninja."""
import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "house"))
import readme  # noqa: E402

NAME, OPERATION = "twoway", "allgather"
SCHEDULES = {"twoway.c": (OPERATION, NAME), "ring.c": ("allreduce", "ring")}
PLACE = re.compile(r"^\*\*`([^`]+)`\*\*, (?:a new file|below `([^`]+)`)")


class Fault(Exception):
    """Something that the page says is not so."""


def blocks(page):
    """(file, anchor or None, code) for each code block that has a place."""
    found, place = [], None
    lines = iter(page.splitlines(True))
    for line in lines:
        said = PLACE.match(line)
        if said:
            place = said.groups()
        elif line.startswith("```"):
            code = "".join(iter(lambda: next(lines), "```\n"))
            if place:
                found.append((*place, code))
            place = None
    return found


def put(tree, name, anchor, code):
    """A new file, or the code below the one line that holds the anchor."""
    path = os.path.join(tree, name)
    if anchor is None:
        if os.path.exists(path):
            raise Fault(f"{name} is no new file")
        text = code
    else:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
        at = [i for i, line in enumerate(lines) if anchor in line]
        if len(at) != 1:
            raise Fault(f"{name} has {len(at)} lines with `{anchor}`, not 1")
        lines.insert(at[0] + 1, code)
        text = "".join(lines)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def copy_tree(root, tree):
    """The sources: all but build folders and what git keeps."""
    def left_out(folder, names):
        top = os.path.samefile(folder, root)
        return [n for n in names if top and (n.startswith((".git", ".cache")) or
                                             (n.startswith("build") and
                                              os.path.isdir(os.path.join(folder, n))))]
    shutil.copytree(root, tree, ignore=left_out, symlinks=True)


def run(tree, *command, status=0):
    """Stdout and stderr of a command that must exit with that status."""
    done = subprocess.run(command, cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", timeout=300,
                          check=False)
    if done.returncode != status:
        raise Fault(f"{' '.join(command)}: exit status {done.returncode}, not {status}:\n"
                    f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout, done.stderr


def build(tree, *targets):
    return run(tree, "ninja", "-C", "build", *targets)


def configure(tree, cmake, compiler):
    """As the page does, with that compiler. The compiler cache, if there is one, is to know the
    objects again in the next copy, which lies in another folder."""
    os.environ.update(CCACHE_BASEDIR=tree, CCACHE_NOHASHDIR="1")
    run(tree, cmake, "-G", "Ninja", "-S", ".", "-B", "build", f"-DCMAKE_C_COMPILER={compiler}")


def check_builder(page):
    """It is as short as the page says."""
    code = next(code for name, _, code in blocks(page) if name.endswith(f"/{NAME}.c"))
    body = code[code.index("\nvoid "):].strip().splitlines()
    if len(body) > 20:  # "at most twenty lines"
        raise Fault(f"the builder has {len(body)} lines, more than 20")
    return f"the builder has {len(body)} lines"


def check_format(tree, clang_format):
    said = subprocess.run(["tests/house/format.sh", tree, clang_format], cwd=tree, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if said.returncode not in (0, 77):
        raise Fault(said.stdout)
    return "formatted as the rest" if said.returncode == 0 else "formatting not checked"


def check_example(tree, example):
    """It exits as it should and prints what the page shows."""
    fault = readme.run(example, tree)
    if fault:
        raise Fault(f"ALGORITHM.md:{example.line}: $ {example.command}\n{fault}")
    return f"line {example.line}: $ {example.command}"


def rows(tree, program, *args):
    """The rows of a program's CSV."""
    text, _ = run(tree, f"build/{program}", *args, "--csv", "-")
    found = list(csv.DictReader(io.StringIO(text)))
    if not found:
        raise Fault(f"{program} {' '.join(args)} has no rows")
    return found


def check_run(tree):
    """0 wrong in every row, for sizes and rank counts that the page does not show."""
    count = 0
    for ranks in "1", "2", "3", "6":
        for row in rows(tree, "collbench", OPERATION, "--algo", NAME, "--ranks", ranks, "-b", "8",
                        "-e", "1M", "-f", "8", "-n", "2"):
            count += 1
            if row["algo"] != NAME or row["out_of_place_wrong"] != "0" or \
                    row["in_place_wrong"] != "0":
                raise Fault(f"{ranks} ranks: {row}")
    return f"{count} rows executed, 0 wrong"


def check_claim(tree):
    """Half the rounds: half the time where latency is all."""
    time = {row["algo"]: float(row["out_of_place_time_us"])
            for row in rows(tree, "commsim", "coll", OPERATION, "--algo", f"ring,{NAME}",
                            "--ranks", "1000", "--size", "1M")}
    if not 0.49 * time["ring"] < time[NAME] < 0.51 * time["ring"]:
        raise Fault(f"simulated: {NAME} {time[NAME]} us, ring {time['ring']} us: not half")
    return f"1000 ranks simulated: {time[NAME]:.0f} us, ring {time['ring']:.0f} us"


def check_ranks(tree):
    """The verifier passes it for each of some rank counts, as one program and unrolled."""
    counts = (1, 2, 3, 4, 7, 16, 33)
    for ranks in counts:
        for unroll in [], ["--unroll"]:
            run(tree, "build/collbench", "schedule", OPERATION, "--algo", NAME, "--ranks",
                str(ranks), "--parts", "3", "--channels", "2", "--verify", *unroll)
    return f"verified for {', '.join(map(str, counts))} ranks"


def mistakes(page):
    """The rows of the table of mistakes: (mistake, file, instead of, stands, answer)."""
    found = [tuple(cell.strip() for cell in line.strip("|\n").split("|"))
             for line in page.splitlines() if re.match(r"\| [^|]+ \| `\w+\.c` \|", line)]
    if len(found) < 5:
        raise Fault(f"the table of mistakes has {len(found)} rows, not 5 or more")
    return found


def spoiled(text, instead, stands):
    """The text with the mistake in it."""
    quoted = [re.search(r"`([^`]+)`", cell).group(1) for cell in (instead, stands)]
    if instead.startswith("line"):
        lines = text.splitlines(True)
        a, b = (next(i for i, line in enumerate(lines) if part in line) for part in quoted)
        lines[a], lines[b] = lines[b], lines[a]
        return "".join(lines)
    if text.count(quoted[0]) != 1:
        raise Fault(f"`{quoted[0]}` stands {text.count(quoted[0])} times in the file, not once")
    return text.replace(*quoted)


def check_mistake(tree, mistake):
    """The verifier refuses it with the page's sentence."""
    what, file, instead, stands, answer = mistake
    path = os.path.join(tree, "collectives/algo", file.strip("`"))
    with open(path, encoding="utf-8") as source:
        right = source.read()
    operation, algo = SCHEDULES[file.strip("`")]
    with open(path, "w", encoding="utf-8") as source:
        source.write(spoiled(right, instead, stands))
    try:
        build(tree, "collbench")
        more = ["--unroll"] if "--unroll" in what else []
        _, said = run(tree, "build/collbench", "schedule", operation, "--algo", algo, "--ranks",
                      "4", "--verify", *more, status=2)
    finally:
        with open(path, "w", encoding="utf-8") as source:
            source.write(right)
    want = f"collbench schedule: {answer.strip('`')}"
    if said.splitlines()[:1] != [want]:
        raise Fault(f"{what}: the page says\n{want}\nbut the answer is\n{said}")
    return f"refused: {what}"


def check_all(tree, cmake, compiler, clang_format):
    """Yields a line for each thing that holds."""
    with open(os.path.join(tree, "ALGORITHM.md"), encoding="utf-8") as file:
        page = file.read()
    yield check_builder(page)
    places = blocks(page)
    for name, anchor, code in places:
        put(tree, name, anchor, code)
    if len(places) < 4:
        raise Fault(f"{len(places)} code blocks say where they belong, not 4 or more")
    yield f"{len(places)} code blocks are in their places"
    yield check_format(tree, clang_format)
    configure(tree, cmake, compiler)
    for example in readme.examples(page):
        yield check_example(tree, example)
    yield check_ranks(tree)
    yield check_run(tree)
    yield check_claim(tree)
    for mistake in mistakes(page):
        yield check_mistake(tree, mistake)


def main():
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        return 2
    if not shutil.which("ninja"):
        print("ninja is not here")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        tree = os.path.join(os.path.realpath(folder), "tree")
        copy_tree(os.path.abspath(sys.argv[1]), tree)
        try:
            for line in check_all(tree, *sys.argv[2:4], "".join(sys.argv[4:])):
                print(f"ok  {line}", flush=True)
        except Fault as fault:
            print(f"FAIL  {fault}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
