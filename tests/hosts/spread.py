#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operation and algorithm over test hosts, data checked, by each transport of a network.

    spread.py COLLBENCH [--hosts 4] [--ranks 2,3,4,5,6,7,8] [--transports tcp,shm+tcp,ofi:shm,..]
              [--operations all]

A transport of libfabric is named with its provider, ofi:tcp; the ranks of its provider shm are all
in the first host. Ranks are dealt to the hosts as evenly
as it goes, the first hosts get what is left over. Each run measures, in and out of place, sizes
from 4 bytes (fewer than ranks have blocks for: some get none) to some passes of the pipeline; types
and operators take turns from run to run. A line per transport and number of ranks: rows and wrong
elements.
Exit status: 0, 1 if data are wrong or a run failed, 77 without test hosts."""

import argparse
import itertools
import json
import subprocess
import sys

sys.dont_write_bytecode = True
import netns  # noqa: E402

OPERATIONS = ["allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce",
              "gather", "scatter", "sendrecv", "alltoallv", "barrier"]
TRANSPORTS = ["tcp", "shm+tcp", "ofi:shm", "ofi:tcp", "shm+ofi:tcp", "mpi", "shm+mpi"]
TYPES = ["float", "half", "uint8", "double", "bfloat16", "int64"]
OPERATORS = ["sum", "max", "avg", "min", "prod"]
SIZES = ["--minbytes", "4", "--maxbytes", "3M", "--stepfactor", "55"]
PATIENCE_S = 120


def deal(nranks, nhosts):
    """Ranks of each host that has some."""
    return [count for i in range(nhosts)
            if (count := nranks // nhosts + (i < nranks % nhosts)) > 0]


def words_of(operation, transport, turn):
    name, _, provider = transport.partition(":")
    words = [operation, "--transport", name, "--iters", "2", "--warmup_iters", "1"]
    if provider:
        words += ["--provider", {"tcp": "tcp;ofi_rxm"}.get(provider, provider)]
    if provider != "shm":  # which knows no interfaces
        words += ["--iface", "eth0"]
    if operation == "barrier":
        return words
    words += ["--algo", "all", "--datatype", TYPES[turn % len(TYPES)], *SIZES]
    if operation in ("allreduce", "reduce_scatter", "reduce"):
        words += ["--op", OPERATORS[turn % len(OPERATORS)]]
    return words


def run(options, hosts, counts, words):
    """(rows, wrong elements); RuntimeError if the run failed."""
    places = [f"{address}:{count}" for address, count in zip(hosts.addresses, counts)]
    command = [options.program, *words, "--hosts", ",".join(places), "--rsh", netns.RSH,
               "--json", "-"]
    try:
        done = hosts.run(0, command, capture_output=True, text=True, check=False,
                         timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)} did not end") from None
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    rows = json.loads(done.stdout)["rows"]
    return len(rows), sum(row[f"{place}_wrong"] or 0 for row in rows
                          for place in ["out_of_place", "in_place"])


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="COLLBENCH")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=lambda t: [int(word) for word in t.split(",")],
                        default=list(range(2, 9)))
    parser.add_argument("--transports", type=lambda t: t.split(","), default=TRANSPORTS)
    parser.add_argument("--operations", type=lambda t: t.split(","), default=OPERATIONS)
    return parser.parse_args()


def main():
    options, faults = read_options(), []
    netns.end_by_exception()
    turn = itertools.count()
    try:
        with netns.Hosts(options.hosts) as hosts:
            for transport, nranks in itertools.product(options.transports, options.ranks):
                rows = wrong = 0
                counts = deal(nranks, 1 if transport == "ofi:shm" else options.hosts)
                for operation in options.operations:
                    try:
                        more, bad = run(options, hosts, counts,
                                        words_of(operation, transport, next(turn)))
                        rows, wrong = rows + more, wrong + bad
                    except RuntimeError as fault:
                        faults.append(str(fault))
                print(f"{transport:12} {nranks} ranks on {len(counts)} hosts: {rows:4} rows, "
                      f"{wrong} wrong", flush=True)
                if wrong:
                    faults.append(f"{transport}, {nranks} ranks: {wrong} wrong elements")
    except netns.Unavailable as why:
        print(f"spread.py: skipped: {why}", file=sys.stderr)
        return 77
    for fault in faults:
        print(f"spread.py: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
