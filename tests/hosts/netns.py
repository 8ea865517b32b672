# SPDX-License-Identifier: Apache-2.0
"""Hosts made of network namespaces: each has an address, a name and one interface, eth0, and a
bridge in a namespace of its own joins them. Links can be shaped. No address leaves the namespaces.

         host 0 [eth0]---[port0]                  [port1]---[eth0] host 1
                     tbf        bridge of the hub        tbf
    what host 0 sends is shaped at its eth0, what host 1 receives at its port of the bridge

    with Hosts(4, rate=100_000_000) as hosts:
        hosts.run(2, ["ip", "address"])       # a command in host 2
All is removed at the end of the block, processes in the namespaces included. Needs root; where
that or something else is missing, Unavailable says what."""

import argparse
import ctypes
import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import time

NETNS = "/run/netns"
NAME = re.compile(r"(cb(\d+)n\d+)(?:h(\d+)|hub)$")  # of a namespace: run, process, host
NETWORK = ipaddress.ip_network("10.77.0.0/16")
RSH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rsh")
FRAME = 1514      # bytes of a full Ethernet frame
GSO_MOST = 65536  # bytes that the kernel hands to an interface at once, at most
# Congestion control of TCP in the hosts: Linux's own default. Some systems set bbr, which stops each
# connection for 0.2 s every 10 s to measure (probe_rtt), and so bends a measurement.
CONGESTION = "cubic"
PATIENCE_S = 5    # for processes to end once they are killed
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000


class Unavailable(Exception):
    """This machine or user cannot have such hosts, and why."""


def address_of(index):
    return str(NETWORK[index + 1])


def usual_burst(rate):
    """Bytes of a token bucket for `rate` bit/s: what flows in 1 ms (the timer's grain), rounded up
    to a power of two, 16 KiB at least. A small bucket bends the plain model T = alpha + S/beta
    least; below 1 ms it costs rate."""
    burst = 16384
    while burst < rate / 8 * 1e-3:
        burst *= 2
    return burst


def usual_gso(burst):
    """Bytes handed to an interface at once: two such blocks must fit into the bucket (else the
    rate is halved), and no less than a frame."""
    return max(FRAME, min(GSO_MOST, burst // 2))


def number_reader(unit, what):
    """Reads options such as 100M for argparse; K, M, G are powers of `unit`, 1000 or 1024."""
    def read(text):
        power = "KMG".find(text[-1:].upper()) + 1 if text else 0
        try:
            number = int(float(text[:-1] if power else text) * unit ** power)
        except (ValueError, OverflowError):
            number = 0
        if number < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return number
    return read


# ---- from inside a process: entering a host ----

def check(result):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def own_sysfs():
    """/sys of the network namespace this process is in, in a mount namespace of its own: libraries
    look for interfaces there. The groups of resources that were mounted below it stay."""
    check(LIBC.unshare(CLONE_NEWNS))
    check(LIBC.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None))
    try:
        groups = os.open("/sys/fs/cgroup", os.O_PATH)
    except OSError:
        groups = -1
    check(LIBC.mount(b"sysfs", b"/sys", b"sysfs", 0, None))
    if groups >= 0:
        LIBC.mount(f"/proc/self/fd/{groups}".encode(), b"/sys/fs/cgroup", None,
                   MS_BIND | MS_REC, None)
        os.close(groups)


def enter(run, index):
    """Moves this process into host `index` of `run`, under that host's name."""
    place = os.open(f"{NETNS}/{run}h{index}", os.O_RDONLY)
    check(LIBC.setns(place, CLONE_NEWNET))
    os.close(place)
    own_sysfs()
    check(LIBC.unshare(CLONE_NEWUTS))
    socket.sethostname(f"cbh{index}")


def where():
    """(run, index) of the host that this process is in, or None."""
    own = os.stat("/proc/self/ns/net").st_ino
    for name in namespaces():
        match = NAME.match(name)
        if match and match[3] and inode(name) == own:
            return match[1], int(match[3])
    return None


# ---- namespaces and the processes in them ----

def namespaces():
    return sorted(os.listdir(NETNS)) if os.path.isdir(NETNS) else []


def inode(name):
    try:
        return os.stat(f"{NETNS}/{name}").st_ino
    except OSError:
        return None


def processes(inodes):
    """Processes in the network namespaces with these numbers; a dead one that nobody waited for
    is in none."""
    found = []
    for word in os.listdir("/proc"):
        try:
            if word.isdigit() and os.stat(f"/proc/{word}/ns/net").st_ino in inodes:
                found.append(int(word))
        except OSError:
            continue
    return found


def kill_all(inodes):
    """Kills what runs in the namespaces, again until nothing does. Those that resist."""
    end = time.monotonic() + PATIENCE_S
    while left := processes(inodes):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if time.monotonic() > end:
            return left
        time.sleep(0.01)
    return []


def remove(names):
    """Removes namespaces with all that runs in them; sentences on what could not be removed."""
    inodes = {inode(name) for name in names}
    faults = [f"process {pid} cannot be killed" for pid in kill_all(inodes)]
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    faults += [f"namespace {name} is still there" for name in namespaces() if name in names]
    faults += [f"process {pid} came late and runs on" for pid in kill_all(inodes)]
    return faults


def remove_stale():
    """Removes what runs left whose process was killed before it could."""
    for name in namespaces():
        match = NAME.match(name)
        if match and not os.path.exists(f"/proc/{match[2]}"):
            remove([name])


class Hosts:
    """`count` hosts; rate: bit/s of each link and direction, None: as fast as they go; burst:
    bytes of the token buckets; limit: bytes that wait before a link, at most, then are lost."""

    made = 0

    def __init__(self, count, rate=None, burst=None, limit=None):
        if not 1 <= count <= NETWORK.num_addresses - 2:
            raise ValueError(f"{count} hosts: from 1 to {NETWORK.num_addresses - 2} are possible")
        self.count, self.rate = count, rate
        self.burst = burst or (usual_burst(rate) if rate else None)
        if rate and self.burst < 2 * FRAME:
            raise ValueError(f"a burst of {self.burst} bytes is less than two frames, "
                             f"{2 * FRAME} bytes: links would run at half their rate")
        self.limit = limit or max(1 << 20, 2 * (self.burst or 0))
        self.addresses = [address_of(i) for i in range(count)]
        self.name = f"cb{os.getpid()}n{Hosts.made}"
        Hosts.made += 1
        self.environment = {"HOSTS_ADDRESSES": ",".join(self.addresses), "HOSTS_RSH": RSH}

    def __enter__(self):
        needs()
        remove_stale()
        try:
            self.build_hub()
            for index in range(self.count):
                self.build_host(index)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind, value, trace):
        faults = self.remove()
        if faults and not kind:
            raise RuntimeError("; ".join(faults))

    def build_hub(self):
        """The bridge; and a shaped link beside it, to see whether the kernel can do it."""
        hub = f"{self.name}hub"
        try:
            call(["ip", "netns", "add", hub])
            call(["ip", "-n", hub, "-batch", "-"], """\
link set lo up
link add bridge0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
link set bridge0 addrgenmode none up
link add probe0 type veth peer name probe1
""")
            call(["tc", "-n", hub, "qdisc", "add", "dev", "probe0", "root", "tbf", "rate", "1mbit",
                  "burst", "16384", "limit", "100000"])
            call(["ip", "-n", hub, "link", "del", "probe0"])
        except RuntimeError as fault:
            raise Unavailable(f"this machine has no namespaces with shaped links: {fault}") from None

    def build_host(self, index):
        host, hub = f"{self.name}h{index}", f"{self.name}hub"
        call(["ip", "netns", "add", host])
        call(["ip", "-n", hub, "link", "add", f"port{index}", "type", "veth",
              "peer", "name", "eth0", "netns", host])
        gso = f"gso_max_size {usual_gso(self.burst)}" if self.rate else ""
        call(["ip", "-n", hub, "-batch", "-"],
             f"link set port{index} addrgenmode none master bridge0 {gso} up\n")
        call(["ip", "-n", host, "-batch", "-"], f"""\
link set lo up
link set eth0 addrgenmode none {gso} up
address add {self.addresses[index]}/{NETWORK.prefixlen} dev eth0 noprefixroute
route add {NETWORK} dev eth0 src {self.addresses[index]} congctl {CONGESTION}
""")
        if self.rate:
            for place, device in [(host, "eth0"), (hub, f"port{index}")]:
                call(["tc", "-n", place, "qdisc", "add", "dev", device, "root", "tbf",
                      "rate", f"{self.rate}bit", "burst", f"{self.burst}b",
                      "limit", f"{self.limit}b"])

    def popen(self, index, command, env=None, **options):
        """subprocess.Popen in host `index`."""
        return subprocess.Popen(command, env={**os.environ, **self.environment, **(env or {})},
                                preexec_fn=lambda: enter(self.name, index), **options)

    def run(self, index, command, env=None, **options):
        """subprocess.run in host `index`."""
        return subprocess.run(command, env={**os.environ, **self.environment, **(env or {})},
                              preexec_fn=lambda: enter(self.name, index), **options)

    def names(self):
        """The namespaces of this run that are there."""
        return [name for name in namespaces() if (m := NAME.match(name)) and m[1] == self.name]

    def remove(self):
        """Removes all, undisturbed by signals; sentences on what is left."""
        signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            return remove(self.names())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def needs():
    """Raises Unavailable if something is missing that can be seen before anything is built."""
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    if os.geteuid() != 0:
        raise Unavailable("only root may make network namespaces")
    for tool in ["ip", "tc"]:
        if not shutil.which(tool):
            raise Unavailable(f"there is no {tool} (Debian: iproute2)")


def end_by_exception():
    """Lets a signal that ends this program raise SystemExit, so that blocks of Hosts are left."""
    def leave(number, _):
        raise SystemExit(128 + number)
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        signal.signal(number, leave)


def call(command, text=None):
    """Runs one of the tools; RuntimeError with its sentence if it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said}")
