/* SPDX-License-Identifier: Apache-2.0
 * Reads the statuses of the ranks of a failed run and tells the story: one rank at fault, what it
 * worked on, who waited for it. */
#include "exec/blame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/cgroup.h"
#include "exec/launch.h"
#include "sched/sched.h"

enum { MOST_NAMED = 4 }; /* waiting ranks listed in a sentence */

static bool is_waiting(const struct rank_status *status)
{
    return atomic_load_explicit(&status->waiting, memory_order_acquire) != 0; /* see rank_waits */
}

static uint32_t waits_for(const struct rank_status *status)
{
    return (uint32_t)atomic_load_explicit(&status->wait_peer, memory_order_relaxed);
}

/* ---- the sentence --------------------------------------------------------------------------- */

static void say_step(FILE *out, const struct rank_status *status)
{
    uint32_t kind = atomic_load_explicit(&status->wait_kind, memory_order_relaxed);
    int32_t peer = (int32_t)waits_for(status);
    if (kind == UINT32_MAX) {
        fprintf(out, "in a barrier (peer %d)", peer);
        return;
    }
    if (kind == WAIT_LIBRARY) {
        fprintf(out, "in the library's call");
        return;
    }
    if (kind == WAIT_CONNECTION) {
        fprintf(out, "at its connection to rank %d", peer);
        return;
    }
    const char *name = kind < STEP_KIND_COUNT ? step_info((enum step_kind)kind)->name : "unknown";
    fprintf(out, "at step %u (%s, peer %d, pass %llu)",
            atomic_load_explicit(&status->wait_step, memory_order_relaxed), name, peer,
            (unsigned long long)atomic_load_explicit(&status->wait_pass, memory_order_relaxed));
}

/* True when the rank waits for `culprit`. A library does not say for whom it waits: for all. */
static bool waits_on(const struct rank_status *status, uint32_t culprit)
{
    uint32_t kind = atomic_load_explicit(&status->wait_kind, memory_order_relaxed);
    return culprit == NO_RANK || kind == WAIT_LIBRARY || waits_for(status) == culprit;
}

/* Adds who waited for `culprit`; for NO_RANK: everyone who waited. */
static void say_waiting(FILE *out, struct world *world, uint32_t culprit)
{
    uint32_t named = 0, more = 0;
    for (uint32_t r = 0; r < world_nranks(world); r++) {
        const struct rank_status *status = world_status(world, r);
        if (r == culprit || !is_waiting(status) || !waits_on(status, culprit)) continue;
        if (named == MOST_NAMED) {
            more++;
            continue;
        }
        fprintf(out, "%s rank %u waited %s", named ? "," : ";", r,
                culprit == NO_RANK ? "" : "for it ");
        say_step(out, status);
        named++;
    }
    if (more) fprintf(out, ", and %u more", more);
}

/* What the rank, or the first of its process that says anything, works on. */
static void say_work(FILE *out, struct world *world, const struct blame *blame)
{
    uint32_t first = blame->nranks ? blame->first : 0;
    uint32_t end = first + (blame->nranks ? blame->nranks : world_nranks(world));
    if (blame->rank != NO_RANK) {
        first = blame->rank;
        end = first + 1;
    }
    for (uint32_t r = first; r < end; r++) {
        const struct rank_status *status = world_status(world, r);
        if (!status->what[0]) continue;
        fprintf(out, " during %.*s", (int)sizeof status->what - 1, status->what);
        return;
    }
}

char *blame_sentence(struct world *world, const struct blame *blame)
{
    char *sentence = NULL;
    size_t bytes;
    FILE *out = open_memstream(&sentence, &bytes);
    if (!out) return mem_strdup(blame->verb);
    const char *on = blame->host ? " on " : "", *host = blame->host ? blame->host : "";
    if (blame->rank != NO_RANK && blame->threads) {
        fprintf(out, "rank %u%s%s (a thread of process %d) ", blame->rank, on, host, blame->pid);
    } else if (blame->rank != NO_RANK) {
        fprintf(out, "rank %u%s%s (pid %d) ", blame->rank, on, host, blame->pid);
    } else if (blame->wrapper) {
        fprintf(out, "%s (pid %d) ", blame->wrapper, blame->pid);
    } else if (blame->nranks) {
        fprintf(out, "the process of ranks %u to %u (pid %d) ", blame->first,
                blame->first + blame->nranks - 1, blame->pid);
    } else if (blame->host) {
        fprintf(out, "host %s ", blame->host);
    }
    fprintf(out, "%s", blame->verb);
    say_work(out, world, blame);
    if (blame->name_waiting) say_waiting(out, world, blame->rank);
    fclose(out);
    return sentence;
}

/* ---- stalls --------------------------------------------------------------------------------- */

enum mood {
    DONE,  /* has returned */
    WAITS, /* blocked, and alive */
    STILL, /* neither: stopped, stuck or computing */
};

static enum mood rank_mood(struct world *world, const bool *beats, uint32_t rank)
{
    const struct rank_status *status = world_status(world, rank);
    if (atomic_load_explicit(&status->done, memory_order_acquire)) return DONE;
    return is_waiting(status) && beats[rank] ? WAITS : STILL;
}

/* The end of the chain of waits that starts at `rank`; NO_RANK when it ends nowhere. */
static uint32_t chain_end(struct world *world, const bool *beats, uint32_t rank)
{
    uint32_t nranks = world_nranks(world), at = rank;
    for (uint32_t hops = 0; hops < nranks; hops++) {
        if (rank_mood(world, beats, at) != WAITS) return at;
        at = waits_for(world_status(world, at));
        if (at >= nranks) break;
    }
    return NO_RANK;
}

char blame_letter(struct world *world, uint32_t rank)
{
    const struct rank_status *status = world_status(world, rank);
    if (world_host(world, rank) != world_own_host(world))
        return status->letter ? status->letter : '?';
    char *path =
        mem_printf("/proc/%d/stat", atomic_load_explicit(&status->pid, memory_order_relaxed));
    char *text = file_text(path);
    const char *name_end = text ? strrchr(text, ')') : NULL;
    char letter = name_end && name_end[1] == ' ' ? name_end[2] : '?';
    free(text);
    free(path);
    return letter;
}

/* Without a chain: any rank that stands still, outside of a wait if there is one (when a whole
 * process was stopped, that is the one which did not wait), else one that is stopped. */
static uint32_t any_still(struct world *world, const bool *beats)
{
    uint32_t found = NO_RANK, stopped = NO_RANK;
    for (uint32_t r = 0; r < world_nranks(world); r++) {
        const struct rank_status *status = world_status(world, r);
        if (rank_mood(world, beats, r) != STILL) continue;
        if (!is_waiting(status)) return r;
        if (found == NO_RANK) found = r;
        if (stopped == NO_RANK && strchr("Tt", blame_letter(world, r))) stopped = r;
    }
    return stopped != NO_RANK ? stopped : found;
}

static uint32_t find_culprit(struct world *world, const bool *beats)
{
    uint32_t gone = NO_RANK;
    for (uint32_t r = 0; r < world_nranks(world); r++) {
        uint32_t end = chain_end(world, beats, r);
        if (end == r || end == NO_RANK) continue;
        if (rank_mood(world, beats, end) == STILL) return end;
        gone = end;
    }
    return gone != NO_RANK ? gone : any_still(world, beats);
}

static const char *thread_state(struct world *world, uint32_t rank)
{
    switch (blame_letter(world, rank)) {
    case 'T':
        return " (it is stopped)";
    case 't':
        return " (a debugger holds it)";
    case 'R':
        return " (it is computing)";
    case 'S':
    case 'D':
        return " (it sleeps, but not in a wait for a peer)";
    }
    return "";
}

uint32_t blame_stalled(struct world *world, const bool *beats, double seconds, char **verb)
{
    uint32_t culprit = find_culprit(world, beats);
    if (culprit == NO_RANK) {
        *verb = mem_printf("no rank made progress for %g s, all wait for each other", seconds);
        return culprit;
    }
    struct rank_status *status = world_status(world, culprit);
    if (atomic_load_explicit(&status->done, memory_order_acquire)) {
        *verb = mem_printf("had returned, and the others made no progress for %g s", seconds);
    } else {
        *verb = mem_printf("made no progress for %g s%s", seconds, thread_state(world, culprit));
    }
    return culprit;
}
