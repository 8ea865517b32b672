#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares collbench's all-reduce over shaped test hosts with that of the system's MPICH.

    versus.py BUILD [--hosts 4] [--rate 1G] [--sizes 8,1K,64K,1M,4M,16M] [--rounds 5] [--no-yield]

BUILD is a build folder. One rank per host; both run in turn over the same hosts, `--rounds` times;
a line per size: medians over the rounds of each run's median time, and how many times as long
MPICH takes, with the least and the most of any round. MPICH's mpiexec runs in host 0 and starts
the others over the remote shell, as between real hosts; it sends over TCP alone, though it could
see that the hosts are one machine. MPICH polls without end, which takes milliseconds from ranks
that share a core; so hosts/yield.c makes it give the core away, unless --no-yield.
MPICH 4.0.2 over UCX 1.13 hangs in MPI_Finalize in about every second run, once its program has
printed all: one rank waits for an answer of another that waits for its launcher. It is killed then.
Exit status: 0, 1 if a run failed or MPICH is faster at some size, 77 (skipped) without MPICH or
without test hosts."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
import netns  # noqa: E402

# Between hosts of one machine MPICH and UCX must not look for shared memory.
APART = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
SECONDS_OF_WORK = 4   # of one size in one run, about
FINALIZE_S = 3        # MPICH's last line is there; it may end


def find_mpiexec():
    """The launcher of MPICH, hydra; None if there is none."""
    for name in ["mpiexec.mpich", "mpiexec.hydra", "mpiexec"]:
        path = shutil.which(name)
        if path and "HYDRA" in subprocess.run([path, "--version"], capture_output=True, text=True,
                                              check=False).stdout:
            return path
    return None


def samples_of(size, rate):
    """Operations of one size in a run: what fits into SECONDS_OF_WORK, from 5 to 200."""
    return max(5, min(200, int(SECONDS_OF_WORK * rate / 8 / (2 * size))))


def run_mpich(options, hosts, size):
    """MPICH's median time of one size in us."""
    words = [options.mpiexec, "-launcher", "ssh", "-launcher-exec", netns.RSH, "-iface", "eth0",
             "-hosts", ",".join(hosts.addresses), "-n", str(hosts.count)]
    settings = dict(APART)
    if not options.no_yield:
        settings["LD_PRELOAD"] = os.path.join(options.build, "tests", "libyield_ucx.so")
    for name, value in settings.items():
        words += ["-genv", name, value]
    words += [os.path.join(options.build, "tests", "mpi_allreduce"),
              str(samples_of(size, options.rate)), str(size)]
    child = hosts.popen(0, words, stdout=subprocess.PIPE, text=True)
    line = child.stdout.readline().split()
    try:
        child.wait(FINALIZE_S)
    except subprocess.TimeoutExpired:
        child.terminate()
        child.wait()
    if len(line) != 4 or line[3] != "0":
        raise RuntimeError(f"{' '.join(words)} printed {line}")
    return float(line[2])


def run_ours(options, hosts, size):
    """Ours."""
    words = [os.path.join(options.build, "collbench"), "allreduce", "--out-of-place", "--json", "-",
             "--hosts", ",".join(f"{a}:1" for a in hosts.addresses), "--rsh", netns.RSH,
             "--iface", "eth0", "--size", str(size), "-n", str(samples_of(size, options.rate)),
             *options.more]
    done = hosts.run(0, words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}")
    row = json.loads(done.stdout)["rows"][0]
    return row["out_of_place_p50_us"]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    size = netns.number_reader(1024, "a size, as 4M")
    parser.add_argument("build", metavar="BUILD", type=os.path.abspath)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=netns.number_reader(1000, "a rate, as 100M"),
                        default=1_000_000_000)
    parser.add_argument("--sizes", type=lambda t: [size(word) for word in t.split(",")],
                        default=[8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-yield", action="store_true")
    options, options.more = parser.parse_known_args()
    options.mpiexec = find_mpiexec()
    return options


def compare(options, hosts, size):
    """Prints the line of one size; whether MPICH is faster there."""
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(run_ours(options, hosts, size))
        theirs.append(run_mpich(options, hosts, size))
    ratios = [b / a for a, b in zip(ours, theirs)]
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"{size:12} {statistics.median(ours):12.1f} {statistics.median(theirs):12.1f} "
          f"{ratio:7.2f} {min(ratios):7.2f} {max(ratios):7.2f}", flush=True)
    return ratio < 1


def main():
    options = read_options()
    netns.end_by_exception()
    if not options.mpiexec:
        print("versus.py: skipped: there is no mpiexec of MPICH", file=sys.stderr)
        return 77
    try:
        with netns.Hosts(options.hosts, options.rate) as hosts:
            print(f"# {options.rate / 1e6:g} Mbit/s, {options.hosts} hosts, {options.rounds} rounds\n"
                  f"#{'bytes':>11} {'collbench_us':>12} {'mpich_us':>12} {'ratio':>7} {'least':>7} "
                  f"{'most':>7}", flush=True)
            slower = [size for size in options.sizes if compare(options, hosts, size)]
    except netns.Unavailable as why:
        print(f"versus.py: skipped: {why}", file=sys.stderr)
        return 77
    except RuntimeError as fault:
        print(f"versus.py: {fault}", file=sys.stderr)
        return 1
    for size in slower:
        print(f"versus.py: {size} bytes: MPICH is faster", file=sys.stderr)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
