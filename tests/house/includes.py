#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the direction of the #include lines: a folder includes itself and what stands before it.

    includes.py ROOT      prints each line that breaks the rule; exit status 1 if there is one
"""
import os
import re
import sys

# folder -> (name in an #include, folders whose headers it may include beside its own)
FLOOR = ["base"]
KERNELS = FLOOR + ["kernels"]
SCHED = KERNELS + ["sched"]
ALGO = SCHED + ["algo"]
EXEC = ALGO + ["exec"]
REF = EXEC + ["ref"]
MAY = {
    "base": FLOOR,
    "kernels": KERNELS,
    "kernels/cuda": KERNELS,
    "collectives/sched": SCHED,
    "collectives/algo": ALGO,
    "collectives/exec": EXEC,
    "collectives/ref": REF,
    "sim/net": ALGO + ["net"],
    "sim/train": ALGO + ["net", "train"],
    "sim": ALGO + ["net", "train"],
    "bench": REF + ["net", "train", "bench"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]*)"')
SOURCES = (".c", ".h", ".cu", ".cuh")


def sources(root):
    """(folder, path) of each source file in the folders of MAY."""
    for folder in sorted(MAY):
        place = os.path.join(root, folder)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
            if name.endswith(SOURCES):
                yield folder, os.path.join(place, name)


def faults(root):
    """One sentence for each #include that breaks the rule, and the number of files read."""
    found, files = [], 0
    for folder, path in sources(root):
        files += 1
        with open(path, encoding="utf-8") as text:
            for number, line in enumerate(text, 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                name, where = match.group(1), f"{os.path.relpath(path, root)}:{number}"
                target = name.split("/")[0] if "/" in name else ""
                if target in ("", ".", ".."):
                    found.append(f'{where}: "{name}" does not name its folder, as in "base/err.h"')
                elif target not in MAY[folder]:
                    allowed = ", ".join(MAY[folder])
                    found.append(f"{where}: {folder} must not include {target}; it may: {allowed}")
    return found, files


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found, files = faults(sys.argv[1])
    for sentence in found:
        print(sentence)
    print(f"{files} files, {len(found)} wrong #include lines")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
