/* SPDX-License-Identifier: Apache-2.0
 * MPI as an opponent: blocking and polled calls, in our buffers and in MPI's own memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/opponent.h"

/* A way is form % MPI_FORM_COUNT in the memory way / MPI_FORM_COUNT: ours, MPI's. */
enum { OURS, THEIRS, MEMORIES };

/* Non-blocking calls of MPICH 4.0 fail with messages of 2 GiB and more. */
#define POLLED_MOST (UINT64_C(1) << 31)

struct state {
    struct bench *bench;
    struct mpi *mpi;
    uint8_t *memory[MEMORIES];       /* .. of MPI: NULL: none */
    struct mpi_call calls[MEMORIES]; /* of the placement at hand */
    bool forms[MPI_FORM_COUNT];
    size_t result;
};

static void release_calls(struct state *state)
{
    for (int memory = 0; memory < MEMORIES; memory++)
        mpi_call_release(&state->calls[memory]);
}

static void close_mpi(void *ctx)
{
    struct state *state = ctx;
    if (!state) return;
    release_calls(state);
    if (state->memory[THEIRS]) mpi_memory_free(state->mpi, state->memory[THEIRS]);
    mpi_close(state->mpi);
    free(state);
}

/* Private: as ours. Cold: what is flushed are our buffers, so both use these. */
static int allocate(struct state *state)
{
    struct bench *bench = state->bench;
    if (!bench->plan->shared || bench->plan->cold) return 0;
    state->memory[THEIRS] = mpi_memory(state->mpi, bench->memory_bytes, bench->err);
    if (!state->memory[THEIRS]) return -1;
    return rank_prefault(bench->rk, state->memory[THEIRS], bench->memory_bytes, bench->err);
}

static void *open_mpi(struct bench *bench)
{
    rank_says(bench->rk, "opening MPI");
    struct state *state = mem_calloc(1, sizeof *state);
    *state = (struct state){.bench = bench, .mpi = mpi_open(bench->rk, bench->err)};
    state->memory[OURS] = bench->memory;
    if (state->mpi && allocate(state) == 0) return state;
    close_mpi(state);
    return NULL;
}

static const char *says_mpi(const void *ctx)
{
    const struct state *state = ctx;
    return mpi_version(state->mpi);
}

static const char *meet_mpi(void *ctx, const struct side *side)
{
    struct state *state = ctx;
    const struct plan *plan = side->bench->plan;
    release_calls(state);
    for (int memory = 0; memory < MEMORIES; memory++) {
        uint8_t *base = state->memory[memory];
        if (!base) continue;
        struct mpi_args args = {
            .coll = plan->coll,
            .dtype = side->row->dtype,
            .op = side->row->op,
            .block_count = side->row->block_count,
            .traffic = side->traffic,
            .root = plan->root,
            .in = base + side->check.places.in,
            .out = base + side->check.places.out,
            .in_place = side->in_place,
        };
        state->result = (size_t)((uint8_t *)mpi_result(&args) - base);
        const char *why = mpi_lacks(state->mpi, &args);
        if (why) return why;
        mpi_call_make(state->mpi, &args, &state->calls[memory]);
    }
    bool small = side->row->in_bytes < POLLED_MOST && side->row->out_bytes < POLLED_MOST;
    for (unsigned form = 0; form < MPI_FORM_COUNT; form++) {
        state->forms[form] = mpi_call_has(&state->calls[OURS], (enum mpi_form)form) &&
                             (form != MPI_FORM_POLLED || small);
    }
    return NULL;
}

static bool has_mpi(const void *ctx, unsigned way)
{
    const struct state *state = ctx;
    return state->memory[way / MPI_FORM_COUNT] && state->forms[way % MPI_FORM_COUNT];
}

static uint8_t *memory_mpi(const void *ctx, unsigned way)
{
    const struct state *state = ctx;
    return state->memory[way / MPI_FORM_COUNT];
}

static size_t result_mpi(const void *ctx)
{
    const struct state *state = ctx;
    return state->result;
}

static void start_mpi(void *ctx, unsigned way)
{
    struct state *state = ctx;
    mpi_call_run(&state->calls[way / MPI_FORM_COUNT], (enum mpi_form)(way % MPI_FORM_COUNT));
}

/* "MPICH Version: 4.0.2" -> "MPICH 4.0.2", "Open MPI v4.1.4, package: .." -> "OpenMPI 4.1.4". */
static void short_version(const char *version, char *text, size_t room)
{
    static const char open_mpi[] = "Open MPI";
    bool open = strncmp(version, open_mpi, sizeof open_mpi - 1) == 0;
    const char *number = version + strcspn(version, "0123456789");
    snprintf(text, room, "%.*s %.*s", open ? 7 : (int)strcspn(version, " "),
             open ? "OpenMPI" : version, (int)strspn(number, "0123456789."), number);
}

static void describe_mpi(const void *ctx, unsigned way, struct result *result)
{
    const struct state *state = ctx;
    snprintf(result->series, sizeof result->series, "mpi/%s",
             mpi_form_name((enum mpi_form)(way % MPI_FORM_COUNT)));
    short_version(mpi_version(state->mpi), result->transport, sizeof result->transport);
    if (way >= MPI_FORM_COUNT) snprintf(result->buffers, sizeof result->buffers, "MPI's");
}

const struct opponent opponent_mpi = {
    .name = "mpi",
    .nways = MEMORIES * MPI_FORM_COUNT,
    .open = open_mpi,
    .close = close_mpi,
    .says = says_mpi,
    .meet = meet_mpi,
    .has = has_mpi,
    .memory = memory_mpi,
    .result = result_mpi,
    .start = start_mpi,
    .describe = describe_mpi,
};
