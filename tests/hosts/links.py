#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures collbench's ring all-reduce over shaped test hosts, and compares with predict.py.

    links.py COLLBENCH [--hosts 4] [--rates 100M,200M,1G] [-b 64K] [-e 16M] [--transport tcp]
    links.py --recorded FILE.json --rates 100M      a table that was written before

One rank per host. alpha is what the run itself measured: the time of its smallest row, 64 bytes,
over the number of steps. The operations follow each other at once, so that buckets are empty.
A row is judged where the bytes of a step outweigh what the kernel does by the millisecond: below
500 Mbit/s from 256 KiB, within 5 %; above from 4 MiB, within 10 %.
Exit status: 0, 1 if a judged row is off, data are wrong or the run failed, 77 without test hosts."""

import argparse
import json
import sys

sys.dont_write_bytecode = True
import netns  # noqa: E402
import predict  # noqa: E402

SMALLEST = 64  # bytes of the row that shows alpha
JUDGED = [(500_000_000, 256 << 10, 0.05), (netns.GSO_MOST * 10 ** 9, 4 << 20, 0.10)]


def limits(rate):
    """(least bytes, share) that rows at `rate` bit/s are judged by."""
    return next((least, share) for most, least, share in JUDGED if rate < most)


def rows_of(document):
    """(hosts, [(bytes, seconds, wrong)] by size) of collbench's JSON."""
    rows = sorted((row["size_B"], row["out_of_place_p50_us"] * 1e-6, row["out_of_place_wrong"])
                  for row in document["rows"])
    return document["meta"]["nranks"], rows


def compare(document, rate, print_line):
    """Prints a line per row; the sentences on what is off."""
    nhosts, rows = rows_of(document)
    burst, steps = netns.usual_burst(rate), 2 * (nhosts - 1)
    alpha_s = rows[0][1] / steps
    faults = []
    if rows[0][0] > 1024:
        faults.append(f"the smallest row has {rows[0][0]} bytes, which do not show alpha")
    least, share = limits(rate)
    print_line(f"# {rate / 1e6:g} Mbit/s, {nhosts} hosts, burst {burst} bytes, "
               f"alpha {alpha_s * 1e6:.1f} us")
    print_line(f"#{'bytes':>11} {'measured_us':>12} {'predicted_us':>12} {'ratio':>7}")
    for size, seconds, wrong in rows[1:]:
        said = predict.shaped_allreduce_s(nhosts, size, rate, burst, alpha_s, idle_s=0)
        ratio = seconds / said
        off = size >= least and abs(ratio - 1) > share
        print_line(f"{size:12} {seconds * 1e6:12.1f} {said * 1e6:12.1f} {ratio:7.3f}"
                   f"{'  off' if off else '' if size >= least else '  not judged'}")
        if off:
            faults.append(f"{size} bytes at {rate / 1e6:g} Mbit/s take {ratio:.3f} of what is "
                          f"predicted, beyond {share:.0%}")
        if wrong:
            faults.append(f"{size} bytes: {wrong} wrong values")
    return faults


def command(options, addresses, size):
    """One call of collbench: from the smallest size by factors of 4, or one size."""
    sizes = ["--size", str(SMALLEST)] if size else ["-b", options.b, "-e", options.e, "-f", "4"]
    return [options.program, "allreduce", "--hosts", ",".join(f"{a}:1" for a in addresses),
            "--rsh", netns.RSH, "--transport", options.transport, "--algo", "ring",
            "--out-of-place", "--iface", "eth0", "--json", "-", *sizes, *options.more]


def measure(options, rate):
    """The JSON of both calls in one: the smallest size, and the others."""
    with netns.Hosts(options.hosts, rate) as hosts:
        documents = []
        for small in [True, False]:
            words = command(options, hosts.addresses, small)
            done = hosts.run(0, words, stdout=-1, text=True, check=False)  # -1: a pipe
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}")
            documents.append(json.loads(done.stdout))
        documents[1]["rows"] += documents[0]["rows"]
        return documents[1]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    rate = netns.number_reader(1000, "a rate, as 100M")
    parser.add_argument("program", nargs="?", metavar="COLLBENCH")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", type=lambda t: [rate(word) for word in t.split(",")],
                        default=[100_000_000, 200_000_000, 1_000_000_000])
    parser.add_argument("-b", default="64K")
    parser.add_argument("-e", default="16M")
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--recorded", metavar="FILE")
    options, options.more = parser.parse_known_args()
    if not options.program and not options.recorded:
        parser.error("neither COLLBENCH nor --recorded is given")
    return options


def main():
    options, faults = read_options(), []
    netns.end_by_exception()
    try:
        for rate in options.rates:
            if options.recorded:
                with open(options.recorded, encoding="utf-8") as file:
                    document = json.load(file)
            else:
                document = measure(options, rate)
            faults += compare(document, rate, lambda line: print(line, flush=True))
    except netns.Unavailable as why:
        print(f"links.py: skipped: {why}", file=sys.stderr)
        return 77
    except RuntimeError as fault:
        faults.append(str(fault))
    for fault in faults:
        print(f"links.py: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
