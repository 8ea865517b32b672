/* SPDX-License-Identifier: Apache-2.0
 * Builds, links and verifies schedules: see ready.h. */
#include "net/ready.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/out.h"
#include "sched/verify.h"

/* Links and verifies one placement. A placement that cannot be linked (a swap in place cannot be
 * pulled) leaves its cells unknown, and `why` says so. */
static int link_placement(const struct ready_list *list, struct ready *ready, bool in_place,
                          struct err *why, struct err *err)
{
    struct link_opts opts = {.mode = list->mode, .in_place = in_place, .fuse = true};
    struct linked *linked = link_sched(ready->sched, &opts, why);
    ready->linked[in_place] = linked;
    if (!linked || list->args.nranks > list->verify_ranks) return 0;
    return verify_sched(ready->sched, in_place, err) ||
                   verify_linked(linked, linked->least_depth, err)
               ? -1
               : 0;
}

static int link_both(const struct ready_list *list, struct ready *ready, struct err *err)
{
    struct err why = ERR_INIT;
    int bad = 0;
    int placements = list->in_place && coll_in_place(list->coll) ? 2 : 1;
    for (int in_place = 0; in_place < placements; in_place++) {
        if (list->drawn && verify_sched(ready->sched, in_place, &why)) continue;
        bad |= link_placement(list, ready, in_place, &why, err);
    }
    if (!bad && !ready->linked[0] && !ready->linked[1]) return err_move(err, &why);
    if (why.count > 0) {
        out_note(list->notes, "%s is not run %s: %s", ready->sched->name,
                 ready->linked[0] ? "in place" : "out of place", why.text);
    }
    err_release(&why);
    return bad;
}

const struct ready *ready_get(struct ready_list *list, const struct algo_choice *choice,
                              struct err *err)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct algo_choice *c = &list->items[i]->choice;
        if (c->algo == choice->algo && c->channels == choice->channels && c->parts == choice->parts)
            return list->items[i];
    }
    struct algo_args args = list->args;
    args.channels = choice->channels;
    args.parts = choice->parts;
    MEM_GROW(list->items, list->count, list->cap);
    struct ready *ready = list->items[list->count++] = mem_calloc(1, sizeof *ready);
    ready->choice = *choice;
    ready->sched = list->drawn ? list->drawn : algo_build(choice->algo, &args, false, err);
    return ready->sched && link_both(list, ready, err) == 0 ? ready : NULL;
}

void ready_release(struct ready_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        linked_free(list->items[i]->linked[0]);
        linked_free(list->items[i]->linked[1]);
        if (list->items[i]->sched != list->drawn) sched_free(list->items[i]->sched);
        free(list->items[i]);
    }
    free(list->items);
}
