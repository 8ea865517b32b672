/* SPDX-License-Identifier: Apache-2.0
 * Pictures: stacked bars, lines over size, and boxes over time, drawn by gnuplot, which is opened
 * at run time. The script with its data can be had instead of the picture. */
#pragma once

#include <stdbool.h>
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

/* A line over sizes. Points with a NaN (or with a number that a log axis cannot show) are gaps. */
struct plot_line {
    const char *name;  /* in the key */
    const double *x;   /* `count` sizes in bytes, ascending, more than 0 */
    const double *y;   /* in the unit of the axis */
    const double *low; /* with `high` the band around it; NULL: none */
    const double *high;
    size_t count;
    bool bound; /* grey, dashed, without points: a limit and no measurement */
};

/* Lines on one pair of axes. */
struct plot_panel {
    const char *y_label;
    const char *y_format; /* of gnuplot: "%.0s %cs" shows seconds as 1 ms, "%g" a plain number */
    bool log_y;           /* else the axis begins at 0 */
    const struct plot_line *lines;
};

/* npanels (>= 1) side by side, each with the same nlines (>= 1) names, and one key at the right.
 * The axis of sizes is logarithmic and labelled 8, 1Ki, 1Mi. */
struct plot_lines {
    const char *title, *x_label;
    size_t npanels, nlines;
    const struct plot_panel *panels;
};

/* As plot_bars. */
int plot_lines(const struct plot_lines *lines, const char *path, struct err *err);

/* A box of a row, from `start` to `end` on the axis. */
struct plot_box {
    size_t row, kind;
    double start, end;
    const char *text; /* drawn inside where it fits; NULL: none */
};

/* Who does what when: nrows (>= 1) rows from the top, boxes in the colours of nkinds kinds. */
struct plot_gantt {
    const char *title, *x_label; /* x_label with its unit */
    size_t nrows, nkinds, nboxes;
    const char *const *rows;  /* names at the left */
    const char *const *kinds; /* names in the key; one without a box is left out */
    const struct plot_box *boxes;
    double end; /* of the axis, which starts at 0 */
};

/* As plot_bars. */
int plot_gantt(const struct plot_gantt *gantt, const char *path, struct err *err);

/* Whether a picture can be drawn into a file of this name; -1 with the sentence of plot_bars. For
 * those who want to know before long work. */
int plot_check(const char *path, struct err *err);
