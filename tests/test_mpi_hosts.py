#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""collbench over the MPI library between hosts of their own, network namespaces: started by one
mpiexec on all of them, who is named when a rank of another host dies, and that nothing is left on
any. Exit status 77 (skipped) where such hosts cannot be, or where there is no MPICH.

Usage: test_mpi_hosts.py PROGRAM [unittest arguments]"""

import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "hosts"))
import netns  # noqa: E402
import versus  # noqa: E402

PROGRAM = ""
HOSTS = 2
RUNS = 5  # in every second one MPICH hung in its end, once
ENVIRONMENT = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}  # of hosts of one machine


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = netns.Hosts(HOSTS)
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.__exit__, None, None, None)

    def run_on(self, *words, fault=""):
        """Runs collbench on all hosts, two ranks on each; afterwards they are empty."""
        done = self.hosts.run(
            0, [PROGRAM, *words, "--hosts", ",".join(f"{a}:2" for a in self.hosts.addresses),
                "--rsh", netns.RSH, "--iface", "eth0", "--mpiexec", versus.find_mpiexec()],
            env={**ENVIRONMENT, "COLLBENCH_FAULT": fault}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=100, check=False)
        inodes = {netns.inode(name) for name in self.hosts.names()}
        self.assertEqual(netns.processes(inodes), [])
        return done

    def test_results(self):
        for transport in "mpi", "shm+mpi":
            for attempt in range(RUNS):
                with self.subTest(transport=transport, attempt=attempt):
                    done = self.run_on("allreduce", "--transport", transport, "-b", "0", "-e", "1M",
                                       "-i", "524288", "-n", "3", "-w", "1")
                    self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                    rows = [line for line in done.stdout.splitlines() if line and line[0] != "#"]
                    self.assertEqual([row.split()[0] for row in rows], ["0", "524288", "1048576"])
                    self.assertIn("# Out of bounds values : 0 OK", done.stdout)

    def test_who_dies_is_named(self):
        for rank in 1, 2:
            with self.subTest(rank=rank):
                done = self.run_on("allreduce", "--transport", "mpi", "--size", "64K", "-n",
                                   "1000000", "--timeout", "10", fault=f"kill:{rank}:20")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, rf"^collbench: rank {rank} on 10\.77\.0\.{1 + rank // 2} "
                                 r"\(pid \d+\) (was killed by signal 9|died)")
                self.assertIn("# the run FAILED", done.stdout)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    netns.end_by_exception()
    try:
        if not versus.find_mpiexec():
            raise netns.Unavailable("there is no mpiexec of MPICH")
        with netns.Hosts(1):
            pass
    except netns.Unavailable as why:
        print(f"test_mpi_hosts.py: skipped: {why}")
        sys.exit(77)
    unittest.main()
