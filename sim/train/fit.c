/* SPDX-License-Identifier: Apache-2.0
 * The residuals of measured steps: see fit.h, and solve.h for the solver. A constant of a device,
 * class or kind moves only the steps on it; the others keep their time. */
#include "train/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const double scale = .03; /* errors beyond 3 % count linearly */

struct problem {
    const struct const_table *table;
    struct runner *runner;
    const struct fit_point *points;
    size_t npoints, nall;
    bool *keep;                 /* by point of the runner: not timed */
    struct step *whole;         /* likewise: with no constant moved .. */
    struct step *brief, *moved; /* .. the brief steps, and those with one moved */
};

static int run(struct problem *p, const struct const_row *row, bool brief, struct step *steps,
               struct err *err)
{
    for (size_t i = 0; i < p->npoints; i++) {
        const struct fit_point *point = &p->points[i];
        p->keep[point->at] = row && !const_touches(row, point->job);
    }
    struct runner_ask ask = {.keep = p->keep, .brief = brief};
    return runner_steps(p->runner, &p->table->values, &ask, steps, err);
}

/* What a moved constant changes is seen on brief steps. */
static int residuals(void *context, enum solve_ask ask, size_t row, double *out, struct err *err)
{
    struct problem *p = context;
    bool move = ask == SOLVE_MOVED;
    if (move) {
        memcpy(p->moved, p->brief, p->nall * sizeof *p->moved);
        if (run(p, &p->table->list.rows[row], true, p->moved, err)) return -1;
    } else if (ask == SOLVE_SLOPES) {
        if (run(p, NULL, true, p->brief, err)) return -1;
    } else if (run(p, NULL, false, p->whole, err)) {
        return -1;
    }
    for (size_t i = 0; i < p->npoints; i++) {
        const struct fit_point *point = &p->points[i];
        size_t at = point->at;
        double change = move ? p->moved[at].time_s / p->brief[at].time_s : 1;
        double ratio = change * p->whole[at].time_s / point->measured_s;
        out[i] = solve_residual(log(ratio), scale, point->weight);
    }
    return 0;
}

int fit_constants(struct const_table *table, struct runner *runner, const struct fit_point *points,
                  size_t npoints, bool from_prior, size_t max_iterations,
                  struct solve_report *report, struct err *err)
{
    struct problem p = {.table = table,
                        .runner = runner,
                        .points = points,
                        .npoints = npoints,
                        .nall = runner_points(runner)};
    struct step **steps[] = {&p.whole, &p.brief, &p.moved};
    p.keep = mem_calloc(p.nall + 1, sizeof *p.keep);
    memset(p.keep, true, p.nall);
    for (int i = 0; i < 3; i++)
        *steps[i] = mem_calloc(p.nall + 1, sizeof **steps[i]);
    struct solve solve = {.list = &table->list,
                          .values = &table->values,
                          .npoints = npoints,
                          .residuals = residuals,
                          .context = &p,
                          .keep_slopes = runner_engine(runner) == ENGINE_EVENT ? 3 : 1,
                          .from_prior = from_prior,
                          .max_iterations = max_iterations};
    int bad = solve_constants(&solve, report, err);
    free(p.keep);
    for (int i = 0; i < 3; i++)
        free(*steps[i]);
    return bad;
}
