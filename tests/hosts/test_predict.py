#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of predict.py and links.py: against figures measured with a ring of plain sockets over 4 shaped hosts
(2 cores, kernel 6.18), and against the limits of its formula.

Usage: test_predict.py [unittest arguments]"""

import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import links  # noqa: E402
import predict  # noqa: E402

K, M = 1 << 10, 1 << 20
ALPHA_S = 33e-6  # of that machine: 29 to 72 us were seen; the figures below go together with 33


class Predict(unittest.TestCase):
    def test_goodput(self):
        self.assertAlmostEqual(predict.goodput_Bps(1e9) * 8 / 1e9, 0.936, 3)
        self.assertAlmostEqual(predict.goodput_Bps(1e9, duplex=False) * 8 / 1e9, 0.956, 3)
        # Measured with iperf3, one direction, Mbit/s: rate, goodput
        for rate, seen in [(100, 95.6), (500, 474), (1000, 955), (2000, 1876)]:
            self.assertAlmostEqual(predict.goodput_Bps(rate * 1e6, False) * 8e-6 / seen, 1,
                                   delta=0.02)

    def test_measured_rings(self):
        """size, rate, burst, ms measured, largest share of error"""
        for size, rate, burst, seen_ms, share in [(1 * M, 1e9, 128 * K, 12.53, 0.005),
                                                  (16 * K, 100e6, 8 * K, 1.59, 0.01)]:
            said_ms = predict.shaped_allreduce_s(4, size, rate, burst, ALPHA_S) * 1e3
            self.assertAlmostEqual(said_ms / seen_ms, 1, delta=share)

    def test_measured_against_the_plain_form(self):
        """size, rate, burst, measured as a share of 6 (alpha + S/4 / (0.956 rate))"""
        for size, rate, burst, seen in [(64 * K, 100e6, 8 * K, 0.937),
                                        (256 * K, 100e6, 8 * K, 1.000),
                                        (1 * M, 100e6, 8 * K, 1.035),
                                        (1 * M, 100e6, 16 * K, 1.025),
                                        (4 * M, 100e6, 16 * K, 1.052),
                                        (16 * M, 100e6, 16 * K, 1.054),
                                        (1 * M, 1e9, 128 * K, 0.92),
                                        (4 * M, 1e9, 128 * K, 1.01)]:
            plain = predict.ring_allreduce_s(4, size, ALPHA_S, predict.goodput_Bps(rate, False))
            said = predict.shaped_allreduce_s(4, size, rate, burst, ALPHA_S)
            self.assertAlmostEqual(said / (seen * plain), 1, delta=0.036, msg=(size, rate, burst))

    def test_limits(self):
        self.assertEqual(predict.shaped_allreduce_s(1, M, 1e9, 0, ALPHA_S), 0)
        # A message that the bucket swallows costs its steps alone; so do no bytes at all.
        for size in [0, 8, 64 * K]:
            self.assertAlmostEqual(predict.shaped_allreduce_s(4, size, 1e9, 128 * K, ALPHA_S),
                                   6 * ALPHA_S)
        # A link that was not idle has an empty bucket; after burst / rate it is full again.
        full = predict.shaped_allreduce_s(4, M, 1e9, 128 * K, ALPHA_S)
        none = predict.shaped_allreduce_s(4, M, 1e9, 0, ALPHA_S)
        again = [predict.shaped_allreduce_s(4, M, 1e9, 128 * K, ALPHA_S, idle) for idle in
                 [0, 0.5 * 128 * K * 8 / 1e9, 128 * K * 8 / 1e9, 1]]
        self.assertEqual([again[0], again[2], again[3]], [none, full, full])
        self.assertAlmostEqual(again[1], (none + full) / 2)
        # Delays are paid once per step: two ranks exchange in two steps.
        self.assertAlmostEqual(predict.ring_allreduce_s(2, 2000, 1e-3, 1e6, delay_s=5e-3), 0.014)

    def test_command(self):
        said = subprocess.run([sys.executable, "-B", predict.__file__, "--size", "1M", "--rate", "1G",
                               "--burst", "128K", "--alpha-us", "33"], capture_output=True,
                              text=True, timeout=20, check=True).stdout
        self.assertEqual(said, "12520.9 us (beta 117.001 MB/s)\n")


class Links(unittest.TestCase):
    """Documents as collbench writes them, with times that are made up."""

    def judge(self, rate, rows):
        lines = []
        document = {"meta": {"nranks": 4},
                    "rows": [{"size_B": size, "out_of_place_p50_us": time_us,
                              "out_of_place_wrong": wrong} for size, time_us, wrong in rows]}
        return links.compare(document, rate, lines.append), lines

    def said_us(self, size, rate, alpha_s):
        return 1e6 * predict.shaped_allreduce_s(4, size, rate, 0, alpha_s)

    def test_rows_are_judged(self):
        for rate, least, share in [(100_000_000, 256 * K, 0.05), (1_000_000_000, 4 * M, 0.10)]:
            right = self.said_us(least, rate, 50e-6)
            for factor, faults in [(1 - 0.9 * share, 0), (1 + 0.9 * share, 0), (1 - 1.1 * share, 1),
                                   (1 + 1.1 * share, 1)]:
                rows = [(least, factor * right, 0), (64, 300, 0), (64 * K, 1, 0)]
                found, lines = self.judge(rate, rows)
                self.assertEqual(len(found), faults, (rate, factor))
                self.assertEqual(len(lines), 4)
                self.assertIn("alpha 50.0 us", lines[0])
                self.assertIn(f"{factor:.3f}", lines[3])

    def test_wrong_data_and_no_alpha_are_faults(self):
        time_us = self.said_us(256 * K, 100e6, 50e-6)
        self.assertEqual(self.judge(100_000_000, [(64, 300, 0), (256 * K, time_us, 0)])[0], [])
        self.assertEqual(len(self.judge(100_000_000, [(64, 300, 0), (256 * K, time_us, 3)])[0]), 1)
        self.assertEqual(len(self.judge(100_000_000, [(64 * K, 300, 0)])[0]), 1)


if __name__ == "__main__":
    unittest.main()
