#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes an all-reduce in the radix R with D digits as an MSCCL file, for R^D ranks.

Ranks are numbers of D digits. Reduce-scatter: one round per digit, the first digit first; in it the
R ranks that differ in this digit alone exchange directly: each sends every other the part of what it
still holds that the other is to keep, and adds what it gets. All-gather: the same rounds backwards.

    R = 3, D = 2, rank 00:   round 1 with 10, 20: keeps chunks 0-2 of 9
                             round 2 with 01, 02: keeps chunk 0, complete
                             rounds 3 and 4: chunk 0 to 01, 02; chunks 0-2 to 10, 20

Messages per rank 2 D (R-1), rounds 2 D, bytes 2 (n-1)/n S: the least there is. R = n is the direct
exchange (two rounds, 2 (n-1) messages); R = 2 is recursive halving and doubling (2 log2 n of both).
Where posting a message costs o and its latency is a, the time is 2 D (a + (R-1) o) + bytes, so that
a radix in between is best when o is a share of a; and R^D need not be a power of two."""
import argparse


class Rank:
    """Blocks of one rank, one per peer, and the dependencies that its steps need."""

    def __init__(self, rank):
        self.rank, self.blocks, self.at = rank, {}, 0
        self.writer, self.readers = {}, {}

    def step(self, peer, kind, buf, first, count):
        steps = self.blocks.setdefault(peer, [])
        need = set()  # in place, input and output are one: a chunk is its number
        for chunk in range(first, first + count):
            need.add(self.writer.get(chunk))
            if kind != "s":
                need.update(self.readers.get(chunk, ()))
        latest = {}
        for block, s in filter(None, need):
            if block != peer:
                latest[block] = max(s, latest.get(block, 0))
        deps = sorted(latest.items())
        for block, s in deps[1:]:
            steps.append(["nop", buf, 0, 0, (block, s), None])
        steps.append([kind, buf, first, count, deps[0] if deps else None, self.at])
        self.at += 1
        me = (peer, len(steps) - 1)
        for chunk in range(first, first + count):
            if kind == "s":
                self.readers.setdefault(chunk, []).append(me)
            else:
                self.writer[chunk], self.readers[chunk] = me, []

    def print(self, n):
        ids = {peer: i for i, peer in enumerate(self.blocks)}
        waited = {step[4] for steps in self.blocks.values() for step in steps}
        print(f'  <gpu id="{self.rank}" i_chunks="{n}" o_chunks="{n}" s_chunks="0">')
        for peer, steps in self.blocks.items():
            print(f'    <tb id="{ids[peer]}" send="{peer}" recv="{peer}" chan="0" lane="0">')
            for s, (kind, buf, first, count, dep, at) in enumerate(steps):
                depid, deps = (ids[dep[0]], dep[1]) if dep else (-1, -1)
                print(f'      <step s="{s}" type="{kind}" srcbuf="{buf}" srcoff="{first}" '
                      f'dstbuf="o" dstoff="{first}" cnt="{count}" depid="{depid}" deps="{deps}" '
                      f'hasdep="{int((peer, s) in waited)}"'
                      + (f' at="{at}"/>' if at is not None else "/>"))
            print("    </tb>")
        print("  </gpu>")


def program(rank, radix, digits):
    me, base, size = Rank(rank), 0, radix ** digits
    rounds = []
    for d in range(digits):
        size //= radix  # also the weight of this digit
        mine = rank // size % radix
        rounds.append((size, mine, base))
        buf = "i" if d == 0 else "o"
        for k in range(1, radix):
            digit = (mine + k) % radix
            me.step(rank + (digit - mine) * size, "s", buf, base + digit * size, size)
        base += mine * size
        for k in range(1, radix):
            digit = (mine - k) % radix
            me.step(rank + (digit - mine) * size, "rrc", buf if k == 1 else "o", base, size)
    for size, mine, base in reversed(rounds):
        for k in range(1, radix):
            digit = (mine + k) % radix
            me.step(rank + (digit - mine) * size, "s", "o", base + mine * size, size)
        for k in range(1, radix):
            digit = (mine - k) % radix
            me.step(rank + (digit - mine) * size, "r", "o", base + digit * size, size)
    return me


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--radix", type=int, default=3)
    parser.add_argument("--digits", type=int, default=3)
    args = parser.parse_args()
    if args.radix < 2 or args.digits < 1:
        parser.error("--radix is at least 2, --digits at least 1")
    n = args.radix ** args.digits
    print(f'<algo name="radix{args.radix}" proto="Simple" nchannels="1" nchunksperloop="{n}" '
          f'ngpus="{n}" coll="allreduce" inplace="1" outofplace="1" minBytes="0" '
          f'maxBytes="9223372036854775807" list="1">')
    for rank in range(n):
        program(rank, args.radix, args.digits).print(n)
    print("</algo>")


if __name__ == "__main__":
    main()
