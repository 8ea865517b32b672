#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits a topology to this machine and compares commsim's predictions with collbench's measurements.

    simulate.py COLLBENCH COMMSIM                      ranks of one memory
    simulate.py COLLBENCH COMMSIM --rate 1G [--hosts 4]    one rank on each of the shaped test hosts
    simulate.py - COMMSIM --recorded FILE.json         what was measured before and kept with --keep

What is fitted, on operations that are not predicted (sendrecv, gather and reduce): the topology's
"hands" (speeds of buffers in and beyond the cache, of slots, time of a message) and the latency of a
message; over shaped links the time of a message and its latency alone. Rate and bucket of shaped links are those of the test hosts, never fitted. Then five other
operations by three algorithms each are predicted. All are measured in one run, the calls shuffled
and repeated; a row is the median of its calls' medians.
Exit status: 0, 1 if the median error is above --most percent or a run failed, 77 without hosts."""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import netns  # noqa: E402
import predict  # noqa: E402

SLICE = "128K"
FITTED_ON = {"sendrecv": ["shift"], "gather": ["direct"], "reduce": ["direct"]}
PREDICTED = {"allreduce": ["ring", "tree", "halving_doubling"],
             "allgather": ["ring", "bruck", "direct"],
             "reduce_scatter": ["ring", "recursive_halving", "direct"],
             "alltoall": ["pairwise", "direct", "bruck"],
             "broadcast": ["binomial", "chain", "scatter_allgather"]}
LEAST_RATE = 1e-4  # of a fitted value: no bound is hit in practice


class Memory:
    """Ranks of this machine in one memory."""
    start = {"buffer_GBps": 12, "cached_GBps": 60, "cache_MiB": 8, "slot_GBps": 60, "post_us": 0.05,
             "latency_ns": 100}
    fixed = {}

    def __init__(self, options):
        self.ranks = options.ranks
        self.sizes = ["-b", options.b, "-e", options.e, "-f", "2"]

    def measure(self, program, words):
        done = subprocess.run([program, *words, "--ranks", str(self.ranks), "--buffers", "private",
                               "--wire", "staged"], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def topology(self, values):
        return {"hosts": 1, "accelerators_per_host": self.ranks,
                "scale_up": {"kind": "memory", "line_GBps": 1e5, "ring_GBps": 1e5,
                             "latency_ns": values["latency_ns"], "source": "fitted"}}


class Shaped:
    """One rank on each of the test hosts."""
    start = {"post_us": 10, "latency_ns": 30000}
    fixed = {"buffer_GBps": 5, "cached_GBps": 5, "cache_MiB": 1, "slot_GBps": 5}  # far above the wire

    def __init__(self, options, hosts):
        self.ranks, self.hosts, self.rate = options.hosts, hosts, options.rate  # hosts: None if recorded
        self.sizes = ["-b", options.b, "-e", options.e, "-f", "4"]

    def measure(self, program, words):
        where = ["--hosts", ",".join(f"{a}:1" for a in self.hosts.addresses), "--rsh", netns.RSH,
                 "--transport", "tcp", "--iface", "eth0"]
        done = self.hosts.run(0, [program, *words, *where], stdout=subprocess.PIPE, text=True,
                              check=True)
        return done.stdout

    def topology(self, values):
        bucket = predict.bucket_bytes(self.rate, netns.usual_burst(self.rate))
        share = predict.goodput_Bps(self.rate) / (self.rate / 8)
        return {"hosts": self.ranks, "accelerators_per_host": 1,
                "network": {"kind": "tcp", "nics_per_host": 1, "nic_Gbps": self.rate / 1e9,
                            "efficiency": share, "layout": "switch",
                            "burst_Gbps": 10 * self.rate / 1e9, "burst_GB": bucket / 1e9,
                            "latency_ns": values["latency_ns"], "source": "fitted"}}


def calls(operations):
    return [(op, algo) for op, algos in operations.items() for algo in algos]


def measure_all(place, options):
    """{(op, algo, bytes): seconds}, and {(op, algo): (channels, parts)}."""
    times, shapes = {}, {}
    todo = calls({**FITTED_ON, **PREDICTED}) * options.repeat
    random.Random(1).shuffle(todo)
    for op, algo in todo:
        words = [op, "--algo", algo, "--slice", SLICE, "--out-of-place", "--json", "-", *place.sizes]
        for row in json.loads(place.measure(options.collbench, words))["rows"]:
            if row["out_of_place_wrong"]:
                raise RuntimeError(f"{op} {algo}: {row['out_of_place_wrong']} wrong values")
            shapes[op, algo] = (row["channels"], row["parts"])
            key = (op, algo, row["size_B"])
            times.setdefault(key, []).append(row["out_of_place_p50_us"] * 1e-6)
    return {key: statistics.median(samples) for key, samples in times.items()}, shapes


def topology_of(place, values):
    said = {**place.fixed, **values}
    hands = {name: said[name] for name in
             ["buffer_GBps", "cached_GBps", "cache_MiB", "slot_GBps", "post_us"]}
    return {"schema": 1, "form": "uniform", "accelerator": "EPYC-9654", **place.topology(values),
            "hands": {**hands, "source": "fitted by simulate.py on sendrecv, gather and reduce"}}


def predict_all(place, options, values, operations, shapes):
    """{(op, algo, bytes): seconds} by commsim."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "fitted.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(topology_of(place, values), file)
        for op, algo in calls(operations):
            channels, parts = shapes[op, algo]
            done = subprocess.run(
                [options.commsim, "coll", op, "--topo", path, "--as", "collbench", "--algo", algo,
                 "--channels", str(channels), "--parts", str(parts), "--slice", SLICE,
                 "--json", "-", *place.sizes], stdout=subprocess.PIPE, text=True, check=True)
            for row in json.loads(done.stdout)["rows"]:
                times[op, algo, row["size_B"]] = row["out_of_place_time_us"] * 1e-6
    return times


def misfit(place, options, values, measured, shapes):
    """Mean |ln(predicted / measured)| of the operations that are fitted on."""
    said = predict_all(place, options, values, FITTED_ON, shapes)
    return statistics.fmean(abs(math.log(said[key] / measured[key])) for key in said)


def fit(place, options, measured, shapes):
    """Each value in turn is made larger or smaller while that helps, by ever smaller steps."""
    values = dict(place.start)
    best = misfit(place, options, values, measured, shapes)
    step = 2.0
    while step > 1.02:
        before = best
        for name in values:
            for factor in (step, 1 / step):
                while True:
                    trial = {**values, name: max(values[name] * factor, LEAST_RATE)}
                    found = misfit(place, options, trial, measured, shapes)
                    if found >= best - 1e-4:
                        break
                    best, values = found, trial
        if before - best < 1e-3:
            step = math.sqrt(step)
    return values, best


def report(said, measured):
    """Prints a line per call; all errors."""
    errors = []
    print(f"# {'operation':<16} {'algo':<20} {'median |p/m - 1|':>16} {'bias':>7}   by size")
    for op, algo in calls(PREDICTED):
        sizes = sorted(size for o, a, size in said if (o, a) == (op, algo))
        ratios = [said[op, algo, size] / measured[op, algo, size] - 1 for size in sizes]
        errors += [abs(ratio) for ratio in ratios]
        print(f"  {op:<16} {algo:<20} {statistics.median(map(abs, ratios)):15.1%} "
              f"{statistics.median(ratios):+7.1%}   " + " ".join(f"{r:+.0%}" for r in ratios))
    return errors


def keep(path, options, measured, shapes):
    rows = [{"op": op, "algo": algo, "size_B": size, "time_us": round(time * 1e6, 3),
             "channels": shapes[op, algo][0], "parts": shapes[op, algo][1]}
            for (op, algo, size), time in sorted(measured.items())]
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps({"rate": options.rate, "hosts": options.hosts, "ranks": options.ranks,
                               "b": options.b, "e": options.e, "repeat": options.repeat,
                               "rows": rows}).replace(', {"op"', ',\n{"op"') + "\n")


def recorded(path, options):
    """What `keep` wrote; its place."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    for name in ["rate", "hosts", "ranks", "b", "e"]:
        setattr(options, name, document[name])
    rows = document["rows"]
    return (Shaped(options, None) if options.rate else Memory(options),
            {(row["op"], row["algo"], row["size_B"]): row["time_us"] * 1e-6 for row in rows},
            {(row["op"], row["algo"]): (row["channels"], row["parts"]) for row in rows})


def run(place, options):
    measured, shapes = measure_all(place, options)
    if options.keep:
        keep(options.keep, options, measured, shapes)
    return judge(place, options, measured, shapes)


def judge(place, options, measured, shapes):
    values, left = fit(place, options, measured, shapes)
    print("# fitted: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
          + f"; misfit {left:.1%}")
    errors = report(predict_all(place, options, values, PREDICTED, shapes), measured)
    median = statistics.median(errors)
    print(f"# {len(errors)} rows of {len(calls(PREDICTED))} calls: median {median:.1%}, "
          f"p90 {sorted(errors)[len(errors) * 9 // 10]:.1%}")
    return 0 if median * 100 <= options.most else 1


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collbench")
    parser.add_argument("commsim")
    parser.add_argument("--rate", type=netns.number_reader(1000, "a rate, as 1G"))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-b", default="256K")
    parser.add_argument("-e", default="16M")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--most", type=float, default=15, metavar="PERCENT")
    parser.add_argument("--keep", metavar="FILE", help="write what was measured")
    parser.add_argument("--recorded", metavar="FILE", help="read it, and measure nothing")
    return parser.parse_args()


def main():
    options = read_options()
    netns.end_by_exception()
    try:
        if options.recorded:
            place, measured, shapes = recorded(options.recorded, options)
            return judge(place, options, measured, shapes)
        if not options.rate:
            return run(Memory(options), options)
        with netns.Hosts(options.hosts, options.rate) as hosts:
            return run(Shaped(options, hosts), options)
    except netns.Unavailable as why:
        print(f"simulate.py: skipped: {why}", file=sys.stderr)
        return 77
    except (RuntimeError, subprocess.CalledProcessError) as fault:
        print(f"simulate.py: {fault}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
