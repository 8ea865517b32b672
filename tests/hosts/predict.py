#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of a ring all-reduce between hosts whose links are token buckets, as test hosts' are.

    T = 2 (n-1) (alpha + delay) + max(0, 2 (n-1)/n S - bucket) / beta

    n       hosts, one rank each
    S       bytes of the buffer; a step sends S/n of them (the last chunks may be an element less)
    alpha   s per step: system calls and wake-ups, measured (8 bytes take 2 (n-1) alpha)
    delay   s one way, of a link that has one (the relay)
    beta    bytes/s of payload that a link carries, in both directions at once, see goodput_Bps()
    bucket  bytes that leave without waiting, since the bucket filled while the link was idle

The plain form, T = 2 (n-1) (alpha + S/n / beta), is the ring's cost in R. Thakur, R. Rabenseifner
and W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005),
section 4.4, without its term for the reduction, which overlaps here.

    predict.py --hosts 4 --size 1M --rate 1G [--burst 128K] [--alpha-us 33] [--delay-us 0]"""

import argparse
import sys

sys.dont_write_bytecode = True
import netns  # noqa: E402

SEGMENT = 1448  # bytes of payload of a full TCP segment: 1500 less 20 (IP) 20 (TCP) 12 (time stamps)
FRAME = 1514    # bytes of its frame that the bucket counts: 1500 and 14 of Ethernet
ACK = 66        # bytes of a frame that acknowledges: 14 + 20 + 20 + 12
SEGMENTS_PER_ACK = 2  # RFC 9293 section 3.8.6.3: at least every second segment


def goodput_Bps(rate_bps, duplex=True):
    """Bytes of payload per second of a link of rate_bps bit/s. duplex: both directions are full of
    data, so each also carries the acknowledgements of the other, 66/2 = 33 bytes per segment:
    rate x 1448/(1514 + 33), else rate x 1448/1514."""
    return rate_bps / 8 * SEGMENT / (FRAME + (ACK / SEGMENTS_PER_ACK if duplex else 0))


def bucket_bytes(rate_bps, burst_bytes, idle_s=None):
    """Bytes in the bucket of a link that had nothing to send for idle_s seconds; None: long enough
    to be full. A transfer gains them once, at its start: then the bucket is empty."""
    return burst_bytes if idle_s is None else min(burst_bytes, rate_bps / 8 * idle_s)


def ring_allreduce_s(nhosts, size, alpha_s, bandwidth_Bps, bucket=0, delay_s=0.0):
    """Seconds from the common start to the end of the last rank. size in bytes; bandwidth_Bps:
    beta, goodput_Bps() of a shaped link or the rate of a relay, which counts payload only."""
    steps = 2 * (nhosts - 1)
    waiting = max(0, steps * size / nhosts - bucket) / bandwidth_Bps
    return steps * (alpha_s + delay_s) + waiting


def shaped_allreduce_s(nhosts, size, rate_bps, burst_bytes, alpha_s, idle_s=None):
    """The same over hosts whose links have rate_bps bit/s and buckets of burst_bytes."""
    return ring_allreduce_s(nhosts, size, alpha_s, goodput_Bps(rate_bps),
                            bucket_bytes(rate_bps, burst_bytes, idle_s))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--size", type=netns.number_reader(1024, "a size, as 1M"), required=True)
    parser.add_argument("--rate", type=netns.number_reader(1000, "a rate, as 1G"), required=True)
    parser.add_argument("--burst", type=netns.number_reader(1024, "a size, as 16K"),
                        default=0)
    parser.add_argument("--alpha-us", type=float, default=0)
    parser.add_argument("--delay-us", type=float, default=0)
    options = parser.parse_args()
    beta = goodput_Bps(options.rate)
    time_s = ring_allreduce_s(options.hosts, options.size, options.alpha_us * 1e-6, beta,
                              options.burst, options.delay_us * 1e-6)
    print(f"{time_s * 1e6:.1f} us (beta {beta / 1e6:.3f} MB/s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
