#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up records of `collbench OPERATION --vs mpi` as a page: lost rows first, then the geometric
mean of the ratios (the library's median / ours) in bands of size.

    summary.py RECORD.json..
"""
import json
import math
import os
import sys

BANDS = [("to 4 KiB", 0, 4 << 10), ("8 to 32 KiB", 8 << 10, 32 << 10),
         ("64 KiB to 4 MiB", 64 << 10, 4 << 20), ("8 MiB and more", 8 << 20, 1 << 60)]
PLACES = [("out_of_place", "out of place"), ("in_place", "in place")]
LOST = 0.95  # a row is lost if its whole interval lies below


def size_text(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or size % 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} TiB"


def ratios(record, place):
    """(size, ratio, low, high, row) of every row that was compared."""
    return [(row["size_B"], row[place + "_ratio"], row[place + "_ratio_low"],
             row[place + "_ratio_high"], row)
            for row in record["rows"] if row.get(place + "_ratio")]


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def lost_rows(name, record):
    for place, said in PLACES:
        for size, ratio, low, high, row in ratios(record, place):
            if high is not None and high < LOST:
                yield (f"| {name} | {size_text(size)} | {said} | {row['algo']} "
                       f"{row[place + '_transport']} | {ratio:.2f} | {low:.2f} to {high:.2f} |")


def band_row(name, record, place, said):
    cells = []
    for _, low, high in BANDS:
        value = mean([r[1] for r in ratios(record, place) if low <= r[0] <= high])
        cells.append(f"{value:.2f}" if value else "-")
    found = ratios(record, place)
    worst = min(found, key=lambda r: r[1])
    return (f"| {name} | {said} | " + " | ".join(cells) +
            f" | {worst[1]:.2f} at {size_text(worst[0])} |")


def main(paths):
    records = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            records.append((os.path.splitext(os.path.basename(path))[0], json.load(file)))
    meta = records[0][1]["meta"]
    print("# Against MPI, on the development machine\n\nMade by `results/make`, which has every "
          "command; each record names its own. Ratio: median of the library's call / median of "
          "ours, samples in turns in the same processes; above 1 ours is faster.\n")
    print(f"{meta['processor']}, {meta['cores']} cores, {meta['system_release']}; "
          f"{meta.get('mpi_library')}.\n")
    for name, record in records:
        ping = record["meta"]["ping_s"]
        print(f"- {name}: `{record['meta']['command']}`, {record['meta'].get('started')}, cache "
              f"line {ping * 1e9:.0f} ns one way")
    print(f"\n## Lost: the whole 95 % interval below {LOST}\n")
    lost = [line for name, record in records for line in lost_rows(name, record)]
    if lost:
        print("| record | size | placement | how | ratio | interval |\n|---|---|---|---|---|---|")
        print("\n".join(lost))
    else:
        print("No row.")
    with open(os.path.join(os.path.dirname(__file__), "LOST.md"), encoding="utf-8") as file:
        print("\n" + file.read().strip())
    print("\n## Geometric means of the ratios\n")
    print("| record | placement | " + " | ".join(b[0] for b in BANDS) + " | worst |")
    print("|---|---|" + "---|" * (len(BANDS) + 1))
    for name, record in records:
        for place, said in PLACES:
            if ratios(record, place):
                print(band_row(name, record, place, said))


if __name__ == "__main__":
    main(sys.argv[1:])
