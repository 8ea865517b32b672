/* SPDX-License-Identifier: Apache-2.0
 * Pictures: stacked bars, drawn by gnuplot, which is opened at run time. The script with its data
 * can be had instead of the picture. */
#pragma once

#include <stddef.h>

#include "base/err.h"

/* nbars bars (>= 1), each a stack of nparts parts. */
struct plot_bars {
    const char *title, *y_label; /* y_label with its unit */
    size_t nbars, nparts;
    const char *const *bars;  /* names below the bars */
    const char *const *parts; /* names in the key */
    const double *values;     /* values[bar * nparts + part]; a part that is 0 everywhere is left
                                 out of the key; a NaN draws nothing */
};

/* Draws into `path`, which ends in .png or .svg, or writes the gnuplot script if it ends in .gp. An
 * existing file is replaced. Returns 0, or -1 with a sentence: another suffix (ERR_USAGE), no
 * gnuplot, or gnuplot failed (ERR_FAILED). */
int plot_bars(const struct plot_bars *bars, const char *path, struct err *err);
