/* SPDX-License-Identifier: Apache-2.0
 * Narrow floats to float and back, VB / 4 values at a time: narrow.h in vectors. A narrow value
 * lies in the highest bits of a 32-bit lane. */
#pragma once

#include "kernels/narrow.h"
#include "kernels/simd_types.h"

static INLINE vu select_mask(vi mask, vu yes, vu no)
{
    return ((vu)mask & yes) | (~(vu)mask & no);
}

/* The narrow value in the highest bits of each lane; what is below is ignored. Shifted down it
 * keeps its sign; the product also puts subnormals right. */
static INLINE vf widen_top(struct format format, vu bits)
{
    uint32_t up = 23 - format.mantissa, most = (1u << (format.width - 1)) - 1;
    uint32_t mask = 0x80000000u | most << up;
    vu low = (vu)((vi)bits >> (9 + (int)format.mantissa - (int)format.width)) & mask;
    vu value = (vu)((vf)low * ((vf){} + bits_float((254 - format.bias) << 23)));
    vi special = (vi)(low & 0x7fffffffu) >= (int32_t)(format.special << up);
    return (vf)(value | ((vu)special & 0x7f800000u));
}

/* Into the highest bits, zeros below. */
static INLINE vu narrow_top(struct format format, vf value)
{
    uint32_t up = 23 - format.mantissa, least = (128 - format.bias) << 23;
    vu all = (vu)value & 0x7fffffffu, clamp = (vu){} + format.clamp;
    vu magnitude = select_mask((vi)all < (vi)clamp, all, clamp);
    vu exponent = magnitude & 0x7f800000u;
    exponent = select_mask((vi)exponent < (vi){} + (int32_t)least, (vu){} + least, exponent);
    vu anchor = exponent + (up << 23);
    vu significand = (vu)((vf)magnitude + (vf)anchor) - anchor;
    vu code = significand + ((exponent - least) >> up);
    code = code << (32 - format.width) | ((vu)value & 0x80000000u);
    return select_mask(value != value, (vu){} + (format.nan << (32 - format.width)), code);
}
