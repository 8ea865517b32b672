#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program under the system's MPICH with one rank on each of some test hosts.

    mpich.py [--hosts 4] [--rate 1G] [--burst 128K] -- PROGRAM...

mpiexec runs in host 0 and starts the others over the remote shell, as between real hosts. MPICH sends
over TCP alone, though it could see that the hosts are one machine.
MPICH 4.0.2 over UCX 1.13 hangs in MPI_Finalize in about every second run, once its program has printed
all: one rank waits for an answer of another that waits for its launcher. Give it a time limit.
Exit status: that of mpiexec, 77 (skipped) without MPICH's own mpiexec or without test hosts."""

import argparse
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import netns  # noqa: E402

# Between hosts of one machine MPICH and UCX must not look for shared memory.
APART = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}


def find_mpiexec():
    """The launcher of MPICH, hydra; None if there is none."""
    for name in ["mpiexec.mpich", "mpiexec.hydra", "mpiexec"]:
        path = shutil.which(name)
        if path and "HYDRA" in subprocess.run([path, "--version"], capture_output=True, text=True,
                                              check=False).stdout:
            return path
    return None


def run(hosts, mpiexec, settings, program):
    words = [mpiexec, "-launcher", "ssh", "-launcher-exec", netns.RSH, "-iface", "eth0",
             "-hosts", ",".join(hosts.addresses), "-n", str(hosts.count), *settings, *program]
    return hosts.run(0, words, check=False).returncode


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=netns.number_reader(1000, "a rate, as 100M"))
    parser.add_argument("--burst", type=netns.number_reader(1024, "a size, as 16K"))
    parser.add_argument("program", nargs="+")
    return parser.parse_args()


def main():
    options = read_options()
    netns.end_by_exception()
    mpiexec = find_mpiexec()
    if not mpiexec:
        print("mpich.py: skipped: there is no mpiexec of MPICH", file=sys.stderr)
        return 77
    settings = [word for name, value in APART.items() for word in ["-genv", name, value]]
    try:
        with netns.Hosts(options.hosts, options.rate, options.burst) as hosts:
            return run(hosts, mpiexec, settings, options.program)
    except netns.Unavailable as why:
        print(f"mpich.py: skipped: {why}", file=sys.stderr)
        return 77


if __name__ == "__main__":
    sys.exit(main())
