/* SPDX-License-Identifier: Apache-2.0
 * The least bytes of each operation: see bound.h. Every entry is of the form a + b/n + c/n^2.
 */
#include "bench/bound.h"

#include <stdlib.h>
#include <string.h>

struct term {
    int one, nth, square; /* one + nth/n + square/n^2, in units of S */
};

struct least {
    struct term read[2], written[2]; /* out of place, in place */
};

static const struct least table[2][COLL_COUNT] = {
    /* private */
    {
        [COLL_ALLREDUCE] = {{{3, -2, 0}, {3, -2, 0}}, {{2, 0, 0}, {2, 0, 0}}},
        [COLL_ALLGATHER] = {{{1, 0, 0}, {1, 0, 0}}, {{1, 1, 0}, {1, 0, 0}}},
        [COLL_REDUCE_SCATTER] = {{{2, -1, 0}, {2, -1, 0}}, {{1, 0, 0}, {1, 0, 0}}},
        [COLL_ALLTOALL] = {{{2, -1, 0}, {2, -2, 0}}, {{2, -1, 0}, {2, -2, 0}}},
        [COLL_BROADCAST] = {{{1, 0, 0}, {1, 0, 0}}, {{1, 1, 0}, {1, 0, 0}}},
        [COLL_REDUCE] = {{{2, -1, 0}, {2, -1, 0}}, {{1, 0, 0}, {1, 0, 0}}},
        [COLL_GATHER] = {{{0, 2, -1}, {0, 2, -2}}, {{0, 2, -1}, {0, 2, -2}}},
        [COLL_SCATTER] = {{{0, 2, -1}, {0, 2, -2}}, {{0, 2, -1}, {0, 2, -2}}},
        [COLL_SENDRECV] = {{{2, 0, 0}, {2, 0, 0}}, {{2, 0, 0}, {2, 0, 0}}},
        [COLL_ALLTOALLV] = {{{1, 0, 0}, {1, 0, 0}}, {{1, 0, 0}, {1, 0, 0}}},
    },
    /* shared */
    {
        [COLL_ALLREDUCE] = {{{1, 0, 0}, {1, 0, 0}}, {{1, 0, 0}, {1, 0, 0}}},
        [COLL_ALLGATHER] = {{{0, 1, 0}, {0, 1, 0}}, {{1, 0, 0}, {1, -1, 0}}},
        [COLL_REDUCE_SCATTER] = {{{1, 0, 0}, {1, 0, 0}}, {{0, 1, 0}, {0, 1, 0}}},
        [COLL_ALLTOALL] = {{{1, 0, 0}, {1, -1, 0}}, {{1, 0, 0}, {1, -1, 0}}},
        [COLL_BROADCAST] = {{{0, 1, 0}, {0, 1, 0}}, {{1, 0, 0}, {1, -1, 0}}},
        [COLL_REDUCE] = {{{1, 0, 0}, {1, 0, 0}}, {{0, 1, 0}, {0, 1, 0}}},
        [COLL_GATHER] = {{{0, 1, 0}, {0, 1, -1}}, {{0, 1, 0}, {0, 1, -1}}},
        [COLL_SCATTER] = {{{0, 1, 0}, {0, 1, -1}}, {{0, 1, 0}, {0, 1, -1}}},
        [COLL_SENDRECV] = {{{1, 0, 0}, {1, 0, 0}}, {{1, 0, 0}, {1, 0, 0}}},
        [COLL_ALLTOALLV] = {{{1, 0, 0}, {1, 0, 0}}, {{1, 0, 0}, {1, 0, 0}}},
    },
};

static double value(struct term term, uint32_t nranks)
{
    return term.one + ((double)term.nth + (double)term.square / nranks) / nranks;
}

struct bound bound_least(enum coll_id coll, uint32_t nranks, size_t bytes, bool shared,
                         bool in_place)
{
    double size = (double)bytes;
    if (nranks == 1) {
        return in_place ? (struct bound){0} : (struct bound){.read = size, .written = size};
    }
    const struct least *least = &table[shared][coll], *mapped = &table[1][coll];
    struct bound bound = {.read = size * value(least->read[in_place], nranks),
                          .written = size * value(least->written[in_place], nranks)};
    bound.slots = bound.read + bound.written - size * value(mapped->read[in_place], nranks) -
                  size * value(mapped->written[in_place], nranks);
    return bound;
}

bool bound_rewrites(enum coll_id coll)
{
    return coll == COLL_ALLREDUCE || coll == COLL_ALLTOALL || coll == COLL_REDUCE_SCATTER ||
           coll == COLL_REDUCE || coll == COLL_SENDRECV;
}

double bound_us(const struct bound *bound, double copy_Bps, double slot_Bps)
{
    if (!(copy_Bps > 0) || (bound->slots > 0 && !(slot_Bps > 0))) return 0;
    double us = (bound->read + bound->written - bound->slots) / (2 * copy_Bps) * 1e6;
    return bound->slots > 0 ? us + bound->slots / slot_Bps * 1e6 : us;
}

static char *term_text(char text[32], struct term term)
{
    if (term.square) {
        snprintf(text, 32, "%d/n - %d/n^2", term.nth, -term.square);
    } else if (term.nth == 0) {
        snprintf(text, 32, "%d", term.one);
    } else if (term.one == 0) {
        snprintf(text, 32, "%d/n", term.nth);
    } else {
        snprintf(text, 32, "%d %c %d/n", term.one, term.nth < 0 ? '-' : '+', abs(term.nth));
    }
    return text;
}

void bound_print(FILE *to)
{
    char text[4][32];
    fprintf(to, "%-10s%-16s%-14s%-14s%-14s%s\n", "buffers", "operation", "read", "written", "read",
            "written");
    for (int shared = 1; shared >= 0; shared--) {
        for (int coll = 0; coll < COLL_COUNT; coll++) {
            const struct least *least = &table[shared][coll];
            fprintf(to, "%-10s%-16s%-14s%-14s%-14s%s\n", shared ? "shared" : "private",
                    coll_get((enum coll_id)coll)->name, term_text(text[0], least->read[0]),
                    term_text(text[1], least->written[0]), term_text(text[2], least->read[1]),
                    term_text(text[3], least->written[1]));
        }
    }
}
