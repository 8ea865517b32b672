/* SPDX-License-Identifier: Apache-2.0
 * One line on a terminal, redrawn in place with a carriage return and "erase to end of line". */
#include "base/progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const double QUIET_S = 1.0;  /* nothing is shown before */
static const double REDRAW_S = 0.1; /* nor sooner after the last time */

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_init(struct progress *progress, const char *what, uint64_t total)
{
    *progress = (struct progress){
        .what = what, .total = total, .start_s = now_s(), .terminal = isatty(STDERR_FILENO) == 1};
}

void progress_step(struct progress *progress, uint64_t done, const char *detail)
{
    if (!progress->terminal) return;
    double now = now_s();
    if (now - progress->start_s < QUIET_S || now - progress->shown_s < REDRAW_S) return;
    fprintf(stderr, "\r%s: %llu", progress->what, (unsigned long long)done);
    if (progress->total) fprintf(stderr, " of %llu", (unsigned long long)progress->total);
    fprintf(stderr, "%s%s, %.0f s\033[K", detail ? ": " : "", detail ? detail : "",
            now - progress->start_s);
    fflush(stderr);
    progress->shown_s = now;
    progress->visible = true;
}

void progress_clear(struct progress *progress)
{
    if (!progress->visible) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->visible = false;
}
