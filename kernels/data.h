/* SPDX-License-Identifier: Apache-2.0
 * The data of the correctness check: what each rank puts into its input, and what a collective
 * must make of it. Every value is a function of (salt, rank, position) alone, so any rank can
 * check any element without asking another, and all results are exact in the type whatever the
 * order of the additions, so the comparison is bit by bit.
 *
 *   operator   value of a rank at a position
 *   sum, avg   other than 0 for a few ranks, 0 for the others. Which ones is chosen by a hash of
 * the position and turns with the salt: over data_rounds() salts in a row every rank has its turn
 * at every position. So small that the exact result changes when any one contribution is lost or
 * comes twice. 8 ranks have their turn at once, in types of few values fewer: 7 in f8e5m2; in
 * averages 7 in f8e4m3, 3 in f8e5m2, and in 8-bit integers as many as their range allows. prod the
 * same with 1 for 0: (-2)^e in the float types, (-3)^e, which wraps, in integers max, min distinct
 * per rank (up to half the number of values the type has); the rank that holds the extreme depends
 * on the position and turns with the salt OP_COUNT   no operator, data is only moved: any bit
 * pattern, finite in the float types
 *
 * Averages that hide a loss whatever the data: int8 over more than 127 and uint8 over more than 255
 * ranks are always 0; f8e4m3 over more than 16384 ranks gives one of a few subnormal numbers.
 *
 * "Position" is the index of an element in a rank's whole input; both sides of a check must use
 * the same. */
#pragma once

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One wrong element: its index in the buffer that was checked. */
struct data_bad {
    size_t index;
    double expected, got;
};

/* Writes `count` elements of `rank`'s input, positions first, first + 1, .. `nranks` is 1 .. 2^26.
 * Cannot fail. */
void data_fill(void *buf, enum dtype dtype, enum redop op, uint32_t nranks, uint32_t rank,
               uint64_t first, size_t count, uint64_t salt);

/* How many of `count` elements differ from the reduction over all ranks at positions first,
 * first + 1, ..; when any, the lowest one in *bad. `op` must not be OP_COUNT. */
size_t data_check_reduced(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                          uint64_t first, size_t count, uint64_t salt, struct data_bad *bad);

/* The same for elements that must be those of `rank`'s input. */
size_t data_check_copy(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                       uint32_t rank, uint64_t first, size_t count, uint64_t salt,
                       struct data_bad *bad);

/* Fills an output before a run with what no right result can hold: a NaN in every float type, an
 * odd number beyond all data in integers of 32 and 64 bits, in every integer a number that is no
 * product. Bytes of 8-bit integers can hold any sum or maximum: there, an output never written is
 * right at few positions, and at others the next time, since results turn with the salt. Any
 * `bytes`; the pattern has four bytes and starts with the first at `buf`. */
void data_poison(void *buf, size_t bytes, uint64_t salt);

/* Runs with salts s, s + 1, .. after which every rank has contributed at every position (sum, prod,
 * avg); at least 2. For max and min every rank has held the extreme everywhere after `nranks`. */
uint32_t data_rounds(enum dtype dtype, enum redop op, uint32_t nranks);

#ifdef __cplusplus
}
#endif
