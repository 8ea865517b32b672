#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the test hosts: they reach each other, links have the rate asked for, rsh behaves as a
remote shell, and nothing is left, whatever ends the program. Exit status 77 (skipped) where such
hosts cannot be.

Usage: test_hosts.py [unittest arguments]"""

import os
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
import netns  # noqa: E402

HOSTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hosts")
PORT = 5000
PAYLOAD = 1448 / 1514  # of a full frame, what a TCP connection carries

# Answers every connection with the name of its host.
SERVER = f"""
import socket
listener = socket.create_server(("", {PORT}), backlog=64)
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(socket.gethostname().encode())
    connection.close()
"""
# Prints the answers of the addresses given.
CLIENT = f"""
import socket, sys
for address in sys.argv[1:]:
    with socket.create_connection((address, {PORT}), timeout=5) as connection:
        print(connection.makefile().read())
"""
# Takes connections one after the other; prints the bytes of each and the seconds they took.
SINK = f"""
import socket, time
listener = socket.create_server(("", {PORT}))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    seen, start = 0, time.monotonic()
    while data := connection.recv(1 << 16):
        seen += len(data)
    print(seen, time.monotonic() - start, flush=True)
"""
SOURCE = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT})) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def start(hosts, index, program, *words):
    """A Python program in host `index`, once it has said that it is ready."""
    child = hosts.popen(index, [sys.executable, "-c", program, *words], stdout=subprocess.PIPE,
                        text=True)
    assert child.stdout.readline() == "ready\n"
    return child


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def of_process(pid):
    """Namespaces of the runs of a process."""
    return [n for n in netns.namespaces() if (m := netns.NAME.match(n)) and int(m[2]) == pid]


class Links(unittest.TestCase):
    def test_each_pair(self):
        with netns.Hosts(4) as hosts:
            servers = [start(hosts, i, SERVER) for i in range(4)]
            for index in range(4):
                done = hosts.run(index, [sys.executable, "-c", CLIENT, *hosts.addresses],
                                 capture_output=True, text=True, timeout=20, check=True)
                self.assertEqual(done.stdout.split(), ["cbh0", "cbh1", "cbh2", "cbh3"])
        for server in servers:
            self.assertEqual(server.wait(5), -signal.SIGKILL)
            server.stdout.close()
        self.assertEqual(of_process(os.getpid()), [])

    def test_rate(self):
        """The best of three, for a busy machine only makes them slower."""
        rate, size, seconds = 100_000_000, 5_000_000, []
        with netns.Hosts(2, rate=rate) as hosts:
            sink = start(hosts, 1, SINK)
            for _ in range(3):
                hosts.run(0, [sys.executable, "-c", SOURCE, hosts.addresses[1], str(size)],
                          timeout=60, check=True)
                seen, took = sink.stdout.readline().split()
                self.assertEqual(int(seen), size)
                seconds.append(float(took))
        sink.wait(5)
        sink.stdout.close()
        share = size * 8 / min(seconds) / (PAYLOAD * rate)
        self.assertAlmostEqual(share, 1, delta=0.1)

    def test_impossible_hosts_are_refused(self):
        for text, words in [("--hosts 0", "0"), ("--hosts 70000", "65534"), ("--rate x", "--rate"),
                            ("--rate 1M --burst 2000", "3028"), ("--burst 4K", "--rate")]:
            done = subprocess.run([HOSTS, *text.split(), "--", "true"], capture_output=True,
                                  text=True, timeout=20, check=False)
            self.assertEqual(done.returncode, 2, text)
            self.assertIn(words, done.stderr)


class Rsh(unittest.TestCase):
    """rsh, inside of host 0 of one run."""

    @classmethod
    def setUpClass(cls):
        cls.hosts = netns.Hosts(3)
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.__exit__, None, None, None)

    def rsh(self, *words, host=0, **options):
        return self.hosts.run(host, [netns.RSH, *words], capture_output=True, text=True,
                              timeout=20, check=False, **options)

    def test_streams_and_status(self):
        done = self.rsh("-x", "-oBatchMode=yes", "-p", "22", "10.77.0.3",
                        "cat; hostname; echo gone >&2; exit 7", input="come\n")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "come\ncbh2\n", "gone\n"))

    def test_words_are_joined_and_read_by_a_shell(self):
        done = self.rsh("user@10.77.0.2", "--", "echo", "a  b", "'c  d'", "$((1 + 2));", "pwd")
        self.assertEqual(done.stdout, f"a b c  d 3\n{os.path.expanduser('~root')}\n")

    def test_environment_is_not_the_callers(self):
        done = self.rsh("10.77.0.2", "env", env={"FROM_HERE": "1"})
        self.assertNotIn("FROM_HERE", done.stdout)
        self.assertIn("PATH=", done.stdout)

    def test_from_host_to_host(self):
        done = self.rsh("10.77.0.2", netns.RSH, "10.77.0.1", "hostname")
        self.assertEqual((done.returncode, done.stdout), (0, "cbh0\n"))

    def test_unknown_host(self):
        done = self.rsh("10.77.0.4", "true")
        self.assertEqual(done.returncode, 255)
        self.assertIn("10.77.0.4", done.stderr)

    def test_wrong_calls(self):
        for words in [[], ["-x"], ["10.77.0.2"], ["-p", "22"]]:
            done = self.rsh(*words)
            self.assertEqual(done.returncode, 255, words)
            self.assertIn("usage", done.stderr, words)

    def test_no_test_host(self):
        done = subprocess.run([netns.RSH, "10.77.0.1", "true"], capture_output=True, text=True,
                              timeout=20, check=False)
        self.assertEqual(done.returncode, 255)

    def test_no_input(self):
        self.assertEqual(self.rsh("-n", "10.77.0.2", "cat", input="text").stdout, "")

    def test_killed_command(self):
        done = self.rsh("10.77.0.2", "kill -KILL $$")
        self.assertEqual(done.returncode, 255)
        self.assertIn("signal 9", done.stderr)

    def test_signals_are_passed_on(self):
        child = self.hosts.popen(0, [netns.RSH, "10.77.0.2", "trap 'echo end; exit 9' TERM; echo "
                                     "ready; while :; do sleep 0.05; done"],
                                 stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "ready\n")
        child.terminate()
        self.assertEqual(child.communicate(timeout=10)[0], "end\n")
        self.assertEqual(child.returncode, 9)


class Leftovers(unittest.TestCase):
    """Nothing is left, whatever ends the program; one process stays behind in each host."""

    STAY = ("trap '' TERM INT; setsid sleep 1000 & echo $!; "
            "$HOSTS_RSH 10.77.0.2 'setsid sleep 1000 >/dev/null & echo $!'; ")

    def start(self, then, shell="sh"):
        """The program, with a command that leaves processes and then does `then`."""
        child = subprocess.Popen([HOSTS, "--hosts", "2", "--", shell, "-c", self.STAY + then],
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.stdout.close)
        stay = [int(child.stdout.readline()) for _ in range(2)]
        return child, stay

    def nothing_left(self, child, stay):
        self.assertEqual([pid for pid in stay if alive(pid)], [])
        self.assertEqual(of_process(child.pid), [])

    def test_ends(self):
        child, stay = self.start("exit 5")
        self.assertEqual(child.wait(20), 5)
        self.nothing_left(child, stay)

    def test_is_killed(self):
        child, stay = self.start("kill -SEGV $$")
        self.assertEqual(child.wait(20), 128 + signal.SIGSEGV)
        self.nothing_left(child, stay)

    def test_signals(self):
        for number in [signal.SIGINT, signal.SIGTERM]:
            child, stay = self.start("exec sleep 1000")
            self.assertEqual(len(of_process(child.pid)), 3)
            self.assertTrue(all(alive(pid) for pid in stay))
            child.send_signal(number)
            self.assertEqual(child.wait(20), 128 + number)
            self.nothing_left(child, stay)

    def test_exception(self):
        with self.assertRaises(ZeroDivisionError), netns.Hosts(2) as hosts:
            sleeper = hosts.popen(1, ["sleep", "1000"])
            self.assertEqual(1 / 0, 0)
        self.assertEqual(sleeper.wait(5), -signal.SIGKILL)
        self.assertEqual(of_process(os.getpid()), [])

    def test_the_next_run_removes_what_a_killed_one_left(self):
        child, stay = self.start("exec sleep 1000")
        child.kill()
        child.wait(5)
        self.assertTrue(of_process(child.pid))
        with netns.Hosts(1):
            self.nothing_left(child, stay)

    def test_two_runs_at_once(self):
        with netns.Hosts(2) as one, netns.Hosts(2) as two:
            self.assertEqual(len(set(one.names() + two.names())), 6)
            with_one = start(one, 1, SERVER)
            client = [sys.executable, "-c", CLIENT, one.addresses[1]]
            self.assertEqual(one.run(0, client, capture_output=True, timeout=20).returncode, 0)
            self.assertEqual(two.run(0, client, capture_output=True, timeout=20).returncode, 1)
        with_one.wait(5)
        with_one.stdout.close()

    def test_without_root_is_skipped(self):
        """As another user, who might not be able to read the sources: they are read before."""
        program = ("import argparse, os, shutil, signal, subprocess, sys\n"
                   "sys.path.insert(0, os.path.dirname(sys.argv[1])); import netns\n"
                   "text = compile(open(sys.argv[1]).read(), 'hosts', 'exec'); os.setuid(65534)\n"
                   "sys.argv = ['hosts', '--', 'true']; exec(text, {'__name__': '__main__'})")
        done = subprocess.run([sys.executable, "-B", "-c", program, HOSTS], capture_output=True,
                              text=True, timeout=20, check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("root", done.stderr)


def main():
    try:
        with netns.Hosts(1):
            pass
    except netns.Unavailable as why:
        print(f"test_hosts: skipped: {why}")
        return 77
    begin = time.monotonic()
    good = unittest.main(exit=False).result.wasSuccessful()
    print(f"test_hosts: {time.monotonic() - begin:.1f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
