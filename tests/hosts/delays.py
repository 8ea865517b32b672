#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures collbench's ring all-reduce over links with delays, and compares with predict.py.

    delays.py BUILD [--ranks 4] [--delays-ms 2,10] [--rate 100M] [-b 64K] [-e 1M]

The links are the relay's (tests/relay.c), which needs no root: the ranks run here over tcp, led
through it by tests/via.c. alpha is what the smallest row, 64 bytes, takes per step through a relay
without delay. Every row is judged: within 10 %.
Exit status: 0, 1 if a row is off, data are wrong or a run failed."""

import argparse
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import netns  # noqa: E402
import predict  # noqa: E402

SMALLEST = 64  # bytes of the row that shows alpha
SHARE = 0.10


def relay(options, delay_s):
    """A relay with links of the rate and the delay, and the environment that leads through it."""
    child = subprocess.Popen(
        [os.path.join(options.build, "tests", "relay"), "--delay-us", str(round(delay_s * 1e6)),
         "--rate", f"{options.rate / 1e6:g}Mb/s", "--pair", "127.0.0.1:0,named"],
        stdout=subprocess.PIPE, text=True)
    return child, {**os.environ, "RELAY": child.stdout.readline().split()[1],
                   "LD_PRELOAD": os.path.join(options.build, "tests", "librelay_via.so")}


def measure(options, delay_s, sizes):
    """[(bytes, seconds, wrong)] of one call of collbench, by size."""
    child, environment = relay(options, delay_s)
    words = [os.path.join(options.build, "collbench"), "allreduce", "--transport", "tcp",
             "--ranks", str(options.ranks), "--algo", "ring", "--out-of-place", "--json", "-",
             *sizes, *options.more]
    try:
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True,
                              check=False)
    finally:
        child.kill()
        child.wait()
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}")
    return sorted((row["size_B"], row["out_of_place_p50_us"] * 1e-6, row["out_of_place_wrong"])
                  for row in json.loads(done.stdout)["rows"])


def compare(options, delay_s, alpha_s):
    """Prints a line per row; the sentences on what is off."""
    faults = []
    print(f"# {delay_s * 1e3:g} ms, {options.rate / 1e6:g} Mbit/s, {options.ranks} ranks, "
          f"alpha {alpha_s * 1e6:.1f} us\n"
          f"#{'bytes':>11} {'measured_us':>12} {'predicted_us':>12} {'ratio':>7}", flush=True)
    for size, seconds, wrong in measure(options, delay_s,
                                        ["-b", options.b, "-e", options.e, "-f", "4"]):
        said = predict.ring_allreduce_s(options.ranks, size, alpha_s, options.rate / 8,
                                        delay_s=delay_s)
        print(f"{size:12} {seconds * 1e6:12.1f} {said * 1e6:12.1f} {seconds / said:7.3f}",
              flush=True)
        if abs(seconds / said - 1) > SHARE:
            faults.append(f"{size} bytes with {delay_s * 1e3:g} ms take {seconds / said:.3f} of "
                          f"what is predicted, beyond {SHARE:.0%}")
        if wrong:
            faults.append(f"{size} bytes: {wrong} wrong values")
    return faults


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD", type=os.path.abspath)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--delays-ms", type=lambda t: [float(word) for word in t.split(",")],
                        default=[2, 10])
    parser.add_argument("--rate", type=netns.number_reader(1000, "a rate, as 100M"),
                        default=100_000_000)
    parser.add_argument("-b", default="64K")
    parser.add_argument("-e", default="1M")
    options, options.more = parser.parse_known_args()
    return options


def main():
    options = read_options()
    try:
        small = measure(options, 0, ["--size", str(SMALLEST)])
        alpha_s = small[0][1] / (2 * (options.ranks - 1))
        faults = [fault for delay in options.delays_ms
                  for fault in compare(options, delay * 1e-3, alpha_s)]
    except RuntimeError as fault:
        faults = [str(fault)]
    for fault in faults:
        print(f"delays.py: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
