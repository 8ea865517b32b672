#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `--algo auto` should choose, from measurement: prints rows for the table `ranges` of
collectives/algo/algo.c, or checks the table that is built in.

    results/choose.py measure DIR [OPERATION..]    measures all algorithms into DIR (half an hour)
    results/choose.py ranges DIR                   prints the rows that follow
    results/choose.py check DIR                    how far auto's choice is behind the best one

A choice goes over a range of sizes. What it loses at a size is counted only as far as it is sure:
from the best one's upper end of the 95 % interval to its own lower end. A switch to another
algorithm must win more than SWITCH in the sum of these losses over the sizes, so that noise does
not make the table flip. Both placements count, in geometric mean."""
import json
import math
import os
import subprocess
import sys

SWITCH = 0.15
RANKS = (2, 4, 8)
PIECES = {  # more than the default cut is tried for pipelines: (channels, parts)
    ("broadcast", "chain"): [(1, 4)],
    ("broadcast", "double_tree"): [(2, 4)],
    ("reduce", "chain"): [(1, 4)],
}
OPERATIONS = ["allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather",
              "scatter", "alltoallv", "barrier", "sendrecv"]
SIDES = ("out_of_place", "in_place")


def program():
    return os.environ.get("COLLBENCH", "build/collbench")


SWEEPS = {  # large calls get few samples
    "small": ["-b", "8", "-e", "2M", "-f", "4", "--max-time", "0.06", "--precision", "3%"],
    "large": ["-b", "8M", "-e", "64M", "-f", "8", "-n", "7", "-w", "2"],
}


def run(path, operation, ranks, buffers, algo, sweep, *more):
    command = [program(), operation, "--ranks", str(ranks), "--buffers", buffers, "--algo", algo,
               *SWEEPS[sweep], "--launches", "3", "-c", "0", "--json", path, "--overwrite", *more]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")


def measure(folder, operations):
    os.makedirs(folder, exist_ok=True)
    for ranks in RANKS:
        for operation in operations:
            for buffers in ("private", "shared"):
                for sweep in SWEEPS if operation != "barrier" else ["small"]:
                    name = f"{folder}/{operation}-{buffers}-{ranks}-{sweep}"
                    print(name, flush=True)
                    run(f"{name}.json", operation, ranks, buffers, "all", sweep)
                    for (op, algo), cuts in PIECES.items():
                        for channels, parts in cuts if op == operation else []:
                            run(f"{name}-{algo}-{parts}.json", operation, ranks, buffers, algo,
                                sweep, "--channels", str(channels), "--parts", str(parts))


def records(folder):
    """{(operation, buffers, ranks): {size: {(algo, channels, parts): (low, p50, high)}}}"""
    found = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".json"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            record = json.load(file)
        operation, buffers = name.split("-")[:2]
        for row in record["rows"]:
            if row["launch"] != 0:
                continue
            sides = [s for s in SIDES if row[f"{s}_p50_us"]]
            mean = [math.exp(sum(math.log(row[f"{s}_{part}_us"]) for s in sides) / len(sides))
                    for part in ("ci_low", "p50", "ci_high")]
            sizes = found.setdefault((operation, buffers, row["nranks"]), {})
            key = (row["algo"], row["channels"], row["parts"])
            sizes.setdefault(row["size_B"], {})[key] = tuple(mean)
    return found


def loss(times, key):
    """What `key` is surely behind the best, as a logarithm; (sure, likely)."""
    best = min(times.values(), key=lambda t: t[1])
    low, middle, _ = times[key]
    return max(0.0, math.log(low / best[2])), math.log(middle / best[1])


def cheapest(sizes):
    """The choice per size: least sum of sure losses and switches, then of likely losses."""
    order = sorted(sizes)
    keys = sorted(set.intersection(*(set(sizes[s]) for s in order)))
    state = {k: (0.0, 0.0, []) for k in keys}
    for size in order:
        stay = {}
        for k in keys:
            sure, likely = loss(sizes[size], k)
            options = [(c[0] + (SWITCH if p != k and c[2] else 0) + sure, c[1] + likely, c[2] + [k])
                       for p, c in state.items()]
            stay[k] = min(options, key=lambda o: (round(o[0], 6), o[1]))
        state = stay
    best = min(state.values(), key=lambda o: (round(o[0], 6), o[1]))
    return list(zip(order, best[2]))


def ranges(folder):
    found = records(folder)
    for operation in OPERATIONS:
        for ranks in RANKS:
            for buffers in ("private", "shared"):
                sizes = found.get((operation, buffers, ranks))
                if not sizes:
                    continue
                chosen = cheapest(sizes)
                for i, (size, key) in enumerate(chosen):
                    last = i + 1 == len(chosen)
                    if not last and chosen[i + 1][1] == key:
                        continue
                    most = "SIZE_MAX" if last else str(int(math.sqrt(size * chosen[i + 1][0])))
                    people = "UINT32_MAX" if ranks == RANKS[-1] else ranks
                    print(f'    {{COLL_{operation.upper()}, {buffers.upper()}, {people}, {most}, '
                          f'"{key[0]}", {key[1]}, {key[2]}}},')


def check(folder):
    """Every size of every record: what auto chose (its key is measured under its own name)."""
    worst = []
    for (operation, buffers, ranks), sizes in records(folder).items():
        for size, times in sizes.items():
            choice = subprocess.run(
                [program(), operation, "--size", str(size), "--ranks", str(ranks), "--buffers",
                 buffers, "-n", "1", "-w", "0", "-c", "0", "--json", "-"],
                capture_output=True, text=True, check=True)
            row = json.loads(choice.stdout)["rows"][0]
            key = (row["algo"], row["channels"], row["parts"])
            if key not in times:
                print(f"{operation} {buffers} {ranks} ranks {size} B: {key} was not measured")
                continue
            sure, likely = loss(times, key)
            worst.append((likely, sure, operation, buffers, ranks, size, key,
                          min(times, key=lambda k: times[k][1])))
    worst.sort(reverse=True)
    for likely, sure, operation, buffers, ranks, size, key, best in worst[:40]:
        print(f"{100 * math.expm1(likely):5.1f} % ({100 * math.expm1(sure):5.1f} % surely) behind: "
              f"{operation} {buffers} {ranks} ranks {size} B: {key[0]}, best {best[0]} {best[1:]}")
    beyond = sum(math.expm1(w[1]) > 0.1 for w in worst)
    print(f"{len(worst)} cases, {sum(math.expm1(w[0]) > 0.1 for w in worst)} more than 10 % behind, "
          f"{beyond} of them surely")
    return beyond > 0


def main():
    words = sys.argv[1:]
    if len(words) < 2 or words[0] not in ("measure", "ranges", "check"):
        sys.exit(__doc__)
    if words[0] == "measure":
        measure(words[1], words[2:] or OPERATIONS)
    elif words[0] == "ranges":
        ranges(words[1])
    else:
        sys.exit(check(words[1]))


if __name__ == "__main__":
    main()
