#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the relay: rate, delay, back-pressure, and each fault, over loopback. Times are compared
with what the options say; a busy machine only makes them longer, so the best of some is taken.

Usage: test_relay.py PROGRAM [--via LIBRARY] [unittest arguments]"""

import errno
import functools
import os
import socket
import subprocess
import sys
import threading
import time
import unittest

PROGRAM = VIA = ""
CHUNK = 1 << 16


def read_all(connection, most=None):
    """Bytes until the end, or `most`; and the error that ended them, or None."""
    data = bytearray()
    try:
        while most is None or len(data) < most:
            got = connection.recv(CHUNK if most is None else min(CHUNK, most - len(data)))
            if not got:
                break
            data += got
    except OSError as fault:
        return bytes(data), fault.errno
    return bytes(data), None


def pattern(size):
    return bytes(i * 7 % 251 for i in range(size))


def send(connection, data):
    """Sends in the background; a lost connection is no fault of the test."""
    def work():
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def patient(test):
    """A busy machine makes transfers longer, so what takes too long may try again, twice."""
    @functools.wraps(test)
    def attempts(self):
        for left in (2, 1, 0):
            try:
                return test(self)
            except AssertionError:
                if not left:
                    raise
    return attempts


class Case(unittest.TestCase):
    def relay(self, *options, pairs=1):
        """Starts it before `pairs` listeners; the addresses to connect to, and the listeners."""
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(pairs)]
        words = []
        for listener in listeners:
            listener.settimeout(10)
            self.addCleanup(listener.close)
            words += ["--listen", "127.0.0.1:0", "--to", f"127.0.0.1:{listener.getsockname()[1]}"]
        child = subprocess.Popen([PROGRAM, *options, *words], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (child.kill(), child.communicate()))
        self.child = child
        ports = [int(child.stdout.readline().split()[1].rpartition(":")[2]) for _ in range(pairs)]
        return [("127.0.0.1", port) for port in ports], listeners

    def connect(self, address, listener):
        """A connection through the relay: its near and its far end."""
        near = socket.create_connection(address, timeout=10)
        far, _ = listener.accept()
        for end in [near, far]:
            end.settimeout(10)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.addCleanup(end.close)
        return near, far

    def ends(self, *options):
        addresses, listeners = self.relay(*options)
        return self.connect(addresses[0], listeners[0])


class Links(Case):
    def test_bytes_arrive_unchanged_both_ways(self):
        near, far = self.ends("--delay-us", "300")
        data = pattern(3_000_001)
        threads = [send(near, data), send(far, data[::-1])]
        self.assertTrue(read_all(far) == (data, None))
        self.assertTrue(read_all(near) == (data[::-1], None))
        for thread in threads:
            thread.join(5)

    def seconds(self, rate_Mbps, size):
        """From before the first byte is sent until the last has arrived."""
        near, far = self.ends("--rate", f"{rate_Mbps}Mb/s")
        start = time.monotonic()
        send(near, bytes(size))
        self.assertEqual(len(read_all(far)[0]), size)
        return time.monotonic() - start

    @patient
    def test_rate(self):
        size = 1 << 20
        for rate_Mbps in [40, 80]:
            best = min(self.seconds(rate_Mbps, size) for _ in range(3))
            said = size * 8 / (rate_Mbps * 1e6)
            self.assertGreaterEqual(best, said)
            self.assertLess(best, 1.1 * said)

    @patient
    def test_connections_share_a_link(self):
        """Two at once take twice as long, and about the same share each."""
        addresses, listeners = self.relay("--rate", "80Mb/s")
        ends = [self.connect(addresses[0], listeners[0]) for _ in range(2)]
        start = time.monotonic()
        for near, _ in ends:
            send(near, bytes(1 << 19))
        done = []
        threads = [threading.Thread(target=lambda f=far: (read_all(f),
                                                          done.append(time.monotonic() - start)))
                   for _, far in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        said = (1 << 20) * 8 / 80e6
        self.assertGreater(done[1], 0.95 * said)
        self.assertGreater(done[0], 0.6 * done[1])

    @patient
    def test_directions_do_not_share(self):
        near, far = self.ends("--rate", "80Mb/s")
        start = time.monotonic()
        send(near, bytes(1 << 19)), send(far, bytes(1 << 19))
        read_all(far), read_all(near)
        self.assertLess(time.monotonic() - start, 1.6 * (1 << 19) * 8 / 80e6)

    def round_trip(self, near, far):
        start = time.monotonic()
        near.sendall(b"x")
        far.sendall(far.recv(1))
        near.recv(1)
        return time.monotonic() - start

    @patient
    def test_delay(self):
        for delay_us in [2000, 10000]:
            near, far = self.ends("--delay-us", str(delay_us))
            trips = [self.round_trip(near, far) for _ in range(15)]
            self.assertGreaterEqual(min(trips), 2e-6 * delay_us)
            self.assertLess(min(trips), 2.2e-6 * delay_us)

    @patient
    def test_settings_of_a_pair(self):
        """Before the first pair for all, behind a pair for it alone."""
        addresses, listeners = self.relay("--delay-us", "4000", pairs=2)
        trips = []
        for address, listener in zip(addresses, listeners):
            near, far = self.connect(address, listener)
            trips.append(min(self.round_trip(near, far) for _ in range(5)))
        self.assertGreaterEqual(min(trips), 8e-3)
        target = f"127.0.0.1:{listeners[0].getsockname()[1]}"
        child = subprocess.Popen([PROGRAM, "--delay-us", "4000", "--pair", f"127.0.0.1:0,{target}",
                                  "--delay-us", "0", "--pair", f"127.0.0.1:0,{target}"],
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (child.kill(), child.communicate()))
        for least, most in [(0, 4e-3), (8e-3, 1)]:
            port = int(child.stdout.readline().split()[1].rpartition(":")[2])
            near, far = self.connect(("127.0.0.1", port), listeners[0])
            best = min(self.round_trip(near, far) for _ in range(9))
            self.assertTrue(least <= best < most, (least, best, most))

    def test_back_pressure(self):
        """Without a reader the sender is stopped soon: what the relay, its two sockets and both
        ends' sockets hold is all that leaves. Then all of it arrives."""
        addresses, listeners = self.relay("--rate", "800Mb/s", "--window", "64K")
        near, far = self.connect(addresses[0], listeners[0])
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        near.settimeout(1)
        data, sent = pattern(CHUNK), 0
        try:
            while sent < 100 << 20:
                sent += near.send(data[sent % CHUNK:])
        except TimeoutError:
            pass
        self.assertLess(sent, 8 << 20)  # the far end's own buffer grows up to tcp_rmem[2]
        self.assertGreater(sent, 64 << 10)
        near.shutdown(socket.SHUT_WR)
        seen, fault = read_all(far)
        self.assertTrue(fault is None and len(seen) == sent)
        self.assertTrue(seen == (data * (sent // CHUNK + 1))[:sent])

    @patient
    def test_a_slow_connection_does_not_stop_another(self):
        addresses, listeners = self.relay("--window", "64K")
        slow, _ = self.connect(addresses[0], listeners[0])
        send(slow, bytes(50 << 20))
        time.sleep(0.2)
        near, far = self.connect(addresses[0], listeners[0])
        self.assertLess(min(self.round_trip(near, far) for _ in range(5)), 0.5)

    def test_half_closed(self):
        near, far = self.ends()
        near.shutdown(socket.SHUT_WR)
        self.assertEqual(read_all(far), (b"", None))
        far.sendall(b"still here")
        far.close()
        self.assertEqual(read_all(near), (b"still here", None))

    def test_reset_is_passed_on(self):
        near, far = self.ends()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        near.close()
        self.assertEqual(read_all(far)[1], errno.ECONNRESET)

    def test_no_target(self):
        addresses, listeners = self.relay()
        listeners[0].close()
        try:
            with socket.create_connection(addresses[0], timeout=5) as near:
                self.assertEqual(read_all(near)[1], errno.ECONNRESET)
        except ConnectionResetError:
            pass


class Faults(Case):
    DATA = pattern(300_000)

    def test_drop(self):
        for at in [0, 1, 100_000, 300_000]:
            near, far = self.ends("--fault", f"drop@{at}")
            send(near, self.DATA)
            self.assertTrue(read_all(far) == (self.DATA[:at], None), at)
            self.assertEqual(read_all(near)[0], b"")

    def test_drop_of_the_way_back(self):
        near, far = self.ends("--fault", "back:drop@5000")
        send(near, self.DATA[:1000])
        self.assertTrue(read_all(far, 1000)[0] == self.DATA[:1000])
        send(far, self.DATA)
        self.assertTrue(read_all(near)[0] == self.DATA[:5000])

    def test_a_fault_happens_once(self):
        addresses, listeners = self.relay("--fault", "drop@10")
        near, far = self.connect(addresses[0], listeners[0])
        send(near, self.DATA)
        self.assertEqual(len(read_all(far)[0]), 10)
        near, far = self.connect(addresses[0], listeners[0])
        send(near, self.DATA)
        self.assertTrue(read_all(far) == (self.DATA, None))

    def test_the_bytes_of_all_connections_count(self):
        addresses, listeners = self.relay("--fault", "drop@1500")
        first, first_far = self.connect(addresses[0], listeners[0])
        first.sendall(bytes(1000))
        read_all(first_far, 1000)
        second, second_far = self.connect(addresses[0], listeners[0])
        second.sendall(bytes(1000))
        self.assertEqual(len(read_all(second_far)[0]), 500)
        first.sendall(b"whole")
        self.assertEqual(read_all(first_far, 5), (b"whole", None))

    def test_reset(self):
        near, far = self.ends("--fault", "reset@0")
        self.assertEqual(read_all(near)[1], errno.ECONNRESET)
        self.assertEqual(read_all(far)[1], errno.ECONNRESET)

    def test_flip(self):
        for at in [0, 77, 299_999]:
            near, far = self.ends("--fault", f"flip@{at}")
            send(near, self.DATA)
            seen, _ = read_all(far)
            wrong = [i for i, (a, b) in enumerate(zip(self.DATA, seen)) if a != b]
            self.assertEqual((len(seen), wrong), (len(self.DATA), [at]))
            self.assertEqual(self.DATA[at] ^ seen[at], 1)

    def test_stall_for_good(self):
        near, far = self.ends("--fault", "stall@1000")
        send(near, self.DATA)
        self.assertTrue(read_all(far, 1000)[0] == self.DATA[:1000])
        far.settimeout(0.5)
        near.settimeout(0.5)
        far.sendall(b"no way back either")
        for end in [far, near]:
            with self.assertRaises(TimeoutError):
                end.recv(1)

    @patient
    def test_stall_for_a_time(self):
        near, far = self.ends("--fault", "stall@1000:0.3")
        start = time.monotonic()
        send(near, self.DATA)
        read_all(far, 1000)
        self.assertLess(time.monotonic() - start, 0.3)
        self.assertTrue(read_all(far)[0] == self.DATA[1000:])
        self.assertGreaterEqual(time.monotonic() - start, 0.3)

    @patient
    def test_delay(self):
        near, far = self.ends("--fault", "delay@1000:0.3")
        start = time.monotonic()
        send(near, self.DATA)
        read_all(far, 1000)
        far.sendall(b"x")
        self.assertEqual(near.recv(1), b"x")  # the way back is open
        self.assertLess(time.monotonic() - start, 0.3)
        self.assertTrue(read_all(far)[0] == self.DATA[1000:])
        self.assertGreaterEqual(time.monotonic() - start, 0.3)

    def test_several(self):
        near, far = self.ends("--fault", "flip@10", "--fault", "delay@20:100ms", "--fault",
                              "flip@30", "--fault", "drop@40")
        send(near, self.DATA)
        seen, _ = read_all(far)
        self.assertEqual([i for i in range(40) if seen[i] != self.DATA[i]], [10, 30])
        self.assertEqual(len(seen), 40)
        self.child.kill()
        self.assertEqual(self.child.communicate()[1],
                         "relay: flip at byte 10 on its way\nrelay: delay at byte 20 on its way\n"
                         "relay: flip at byte 30 on its way\nrelay: drop at byte 40 on its way\n")


class Named(Case):
    """Programs that know nothing of the relay, led through it by the preloaded library."""

    CLIENT = """
import socket, sys, time
for port in sys.argv[1:]:
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as connection:
            start = time.monotonic()
            connection.sendall(b"x")
            print(connection.makefile().read(), time.monotonic() - start)
    except OSError as fault:
        print(fault.errno)
"""

    def setUp(self):
        if not VIA:
            self.skipTest("the library is not built with sanitizers")

    def start(self, *options):
        child = subprocess.Popen([PROGRAM, *options, "--pair", "127.0.0.1:0,named"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (child.kill(), child.communicate()))
        return child.stdout.readline().split()[1]

    def answer(self, listener, text):
        def work():
            while True:
                try:
                    with listener.accept()[0] as connection:
                        connection.sendall(connection.recv(1) and text)
                except OSError:
                    return
        threading.Thread(target=work, daemon=True).start()

    def client(self, relay, ports):
        done = subprocess.run([sys.executable, "-c", self.CLIENT, *map(str, ports)],
                              env={**os.environ, "LD_PRELOAD": VIA, "RELAY": relay}, text=True,
                              capture_output=True, timeout=30, check=True)
        return [line.split() for line in done.stdout.splitlines()]

    @patient
    def test_targets(self):
        """Each connection reaches its target, late by the delay; a closed port is refused."""
        ports = []
        for text in [b"one", b"two"]:
            listener = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(listener.close)
            self.answer(listener, text)
            ports.append(listener.getsockname()[1])
        with socket.create_server(("127.0.0.1", 0)) as closed:
            ports.append(closed.getsockname()[1])
        lines = self.client(self.start("--delay-us", "5000"), ports * 3)
        self.assertEqual([line[0] for line in lines], ["one", "two", str(errno.ECONNREFUSED)] * 3)
        trips = [float(line[1]) for line in lines if len(line) == 2]
        self.assertGreaterEqual(min(trips), 0.010)
        self.assertLess(min(trips), 0.012)

    def test_a_fault_on_a_link(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        self.answer(listener, b"text")
        lines = self.client(self.start("--fault", "back:flip@5"), [listener.getsockname()[1]] * 3)
        self.assertEqual([line[0] for line in lines], ["text", "tdxt", "text"])

    def test_a_name_that_is_none(self):
        host, port = self.start().split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"abc")
            self.assertEqual(read_all(connection)[1], errno.ECONNRESET)


class Calls(unittest.TestCase):
    PAIR = "127.0.0.1:0,127.0.0.1:9"

    def test_refused(self):
        for text, words in [("", "no pair"), ("--pair x", "LISTEN,TO"), ("--to 127.0.0.1:9", "--to"),
                            ("--listen host:1", "host:1"), ("--listen 127.0.0.1:0", "--to"),
                            (f"--pair {self.PAIR} --to 127.0.0.1:8", "one --to"),
                            (f"--pair {self.PAIR} --to named", "one --to"),
                            ("--pair 127.0.0.1:0,127.0.0.1:0", "65535"), ("--rate 0Mb/s", "--rate"),
                            ("--delay-us -1", "--delay-us"), ("--window x", "--window"),
                            ("--fault cut@1", "flip"), ("--fault drop", "KIND@BYTES"),
                            ("--fault drop@1:2", "no time"), ("--fault delay@1", "delay@0:1.5"),
                            ("--fault stall@x", "--fault"), ("--what 1", "--what"),
                            ("--rate", "value"), (f"--pair {self.PAIR} --fault back:", "KIND")]:
            done = subprocess.run([PROGRAM, *text.split()], capture_output=True, text=True,
                                  timeout=10, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), text)
            self.assertIn(words, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_taken_port(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = subprocess.run([PROGRAM, "--pair", f"127.0.0.1:{port},127.0.0.1:9"],
                                  capture_output=True, text=True, timeout=10, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"127.0.0.1:{port}", done.stderr)

    def test_help(self):
        done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, timeout=10,
                              check=True)
        self.assertIn("--fault", done.stdout)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = sys.argv.pop(1)
    if sys.argv[1:2] == ["--via"]:
        VIA = sys.argv[2]
        del sys.argv[1:3]
    unittest.main()
