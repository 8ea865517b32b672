/* SPDX-License-Identifier: Apache-2.0
 * `collbench bench-step`: programs of many steps on chunks of one granule (64 bytes), so small that
 * the time is the executor's. Local steps run on one rank; messages run between two ranks, both
 * ways at once, and contain what the cache line costs on its way. Nothing is fused. */
#include "bench/step_cmd.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "bench/clock.h"
#include "bench/stats.h"
#include "exec/exec.h"
#include "exec/launch.h"
#include "sched/layout.h"
#include "sched/verify.h"

enum { CHUNKS = 512, BYTES = CHUNKS * LAYOUT_GRANULE, SAMPLES = 101, WARMUP = 20, NRANKS = 2 };

/* ---- the programs ---- */

static void emit_copy(struct prog *prog, uint32_t c)
{
    sched_copy(prog, ref_out(c), ref_in(c));
}

static void emit_reduce(struct prog *prog, uint32_t c)
{
    sched_reduce(prog, ref_out(c), ref_in(c), ref_in(c + 1 < CHUNKS ? c + 1 : 0));
}

static void emit_swap(struct prog *prog, uint32_t c)
{
    sched_send_ref(prog, 1 - prog->rank, ref_in(c));
    sched_recv_ref(prog, 1 - prog->rank, ref_out(c));
}

static const struct program {
    const char *name;
    uint32_t nranks;
    enum wire_mode mode;
    void (*emit)(struct prog *prog, uint32_t chunk);
} programs[] = {
    {"copy", 1, WIRE_STAGED, emit_copy},        {"reduce", 1, WIRE_STAGED, emit_reduce},
    {"message, ll", 2, WIRE_LL, emit_swap},     {"message, staged", 2, WIRE_STAGED, emit_swap},
    {"message, pull", 2, WIRE_PULL, emit_swap},
};

enum { NPROGRAMS = sizeof programs / sizeof *programs };

struct step_times {
    double min_ns[NPROGRAMS], p50_ns[NPROGRAMS]; /* per step */
    uint64_t steps[NPROGRAMS];
};

static struct linked *make_linked(const struct program *program, struct sched **sched,
                                  struct err *err)
{
    *sched = sched_new(program->name, COLL_ALLREDUCE, program->nranks, 0, CHUNKS);
    for (uint32_t rank = 0; rank < program->nranks; rank++) {
        struct prog *prog = sched_prog(*sched, rank);
        for (uint32_t c = 0; c < CHUNKS; c++)
            program->emit(prog, c);
    }
    struct link_opts opts = {.mode = program->mode};
    struct linked *linked = link_sched(*sched, &opts, err);
    if (linked && verify_linked(linked, linked->least_depth, err)) {
        linked_free(linked);
        linked = NULL;
    }
    return linked;
}

/* ---- the ranks ---- */

/* Nanoseconds per step of an opened program. */
static void time_steps(struct rank *rk, struct exec *exec, bool together, double *ns)
{
    for (int i = 0; i < WARMUP; i++)
        exec_run(exec);
    for (int i = 0; i < SAMPLES; i++) {
        if (together) rank_barrier(rk);
        uint64_t start = clock_ns();
        exec_run(exec);
        ns[i] = (double)(clock_ns() - start) / (double)exec_steps(exec);
    }
}

/* What every program leaves in the output when both ranks' inputs are the same. */
static int check_output(const struct program *program, const float *in, const float *out,
                        struct err *err)
{
    enum { PER_CHUNK = LAYOUT_GRANULE / sizeof(float) };
    for (uint32_t i = 0; i < CHUNKS * PER_CHUNK; i++) {
        float next = in[(i + PER_CHUNK) % (CHUNKS * PER_CHUNK)];
        float expected = program->emit == emit_reduce ? in[i] + next : in[i];
        if (out[i] == expected) continue;
        return err_add(err, ERR_FAILED, "%s: element %u is %g, expected %g", program->name, i,
                       (double)out[i], (double)expected);
    }
    return 0;
}

static int run_program(struct rank *rk, uint32_t number, float *in, float *out,
                       struct step_times *times, struct err *err)
{
    static const uint32_t group[NRANKS] = {0, 1};
    const struct program *program = &programs[number];
    struct sched *sched;
    struct linked *linked = make_linked(program, &sched, err);
    struct exec *exec = NULL;
    int bad = -1;
    if (!linked) goto out;
    memset(out, 0xff, BYTES);
    struct exec_spec spec = {
        .linked = linked,
        .rank = rk,
        .group = group,
        .me = rk->rank,
        .tag = number + 1,
        .transport = transport_table()[0],
        .in = in,
        .out = out,
        .shared = true,
        .dtype = DT_FLOAT,
        .op = OP_SUM,
        .block_count = BYTES / sizeof(float),
    };
    exec = exec_open(&spec, err);
    if (!exec) goto out;
    double ns[SAMPLES];
    time_steps(rk, exec, program->nranks == NRANKS, ns);
    times->steps[number] = exec_steps(exec);
    times->p50_ns[number] = stats_median(ns, SAMPLES);
    times->min_ns[number] = ns[0];
    if (program->nranks == NRANKS) rank_barrier(rk);
    bad = check_output(program, in, out, err);
out:
    exec_close(exec);
    linked_free(linked);
    sched_free(sched);
    return bad;
}

static int step_rank(struct rank *rk, struct err *err)
{
    struct step_times times = {.steps = {0}};
    float *in = rank_alloc(rk, BYTES, err), *out = in ? rank_alloc(rk, BYTES, err) : NULL;
    if (!out) return -1;
    for (uint32_t i = 0; i < BYTES / sizeof(float); i++)
        in[i] = (float)(i % 1009);
    for (uint32_t i = 0; i < NPROGRAMS; i++) {
        size_t mark = rank_mark(rk);
        rank_says(rk, "bench-step, %s", programs[i].name);
        bool takes_part = rk->rank < programs[i].nranks;
        if (takes_part && run_program(rk, i, in, out, &times, err)) return -1;
        rank_barrier(rk); /* the others wait here; and nobody reuses memory before */
        rank_rewind(rk, mark);
    }
    return rk->rank == 0 ? rank_send(rk, &times, sizeof times, err) : 0;
}

/* ---- the parent ---- */

static void on_times(void *ctx, uint32_t rank, const void *bytes, size_t length)
{
    if (rank == 0 && length == sizeof(struct step_times)) memcpy(ctx, bytes, length);
}

static void print_times(struct out *out, const struct step_times *times)
{
    out_note(out, "nanoseconds per step, steps of %d bytes, %s kernels; nothing fused",
             LAYOUT_GRANULE, kernels_get(&(struct err)ERR_INIT)->name);
    out_note(out, "copy and reduce: one rank alone; messages: two ranks, both ways at once");
    for (uint32_t i = 0; i < NPROGRAMS; i++) {
        out_row(out, (struct out_cell[]){out_text(programs[i].name), out_uint(programs[i].nranks),
                                         out_uint(times->steps[i]), out_double(times->min_ns[i]),
                                         out_double(times->p50_ns[i])});
    }
}

static int start(struct step_times *times, char **argv, struct err *err)
{
    enum { EXTENT = 16 << 20 };
    struct world *world = world_create(
        &(struct world_spec){.nranks = NRANKS, .extent_bytes = EXTENT, .resident_bytes = EXTENT},
        err);
    if (!world) return -1;
    struct launch_spec spec = {
        .prog = "collbench",
        .argv = argv,
        .world = world,
        .threads = true,
        .timeout_s = 60,
        .on_message = on_times,
        .ctx = times,
    };
    int bad = launch_run(&spec, err);
    world_close(world);
    return bad;
}

int step_cmd(int argc, char **argv, char **whole_argv)
{
    static const struct out_column columns[] = {
        {"program", NULL, -16, 0, OUT_TEXT, NULL, NULL},
        {"ranks", NULL, 6, 0, OUT_UINT, NULL, NULL},
        {"steps", NULL, 6, 0, OUT_UINT, NULL, NULL},
        {"min", "ns", 8, 2, OUT_DOUBLE, NULL, NULL},
        {"p50", "ns", 8, 2, OUT_DOUBLE, NULL, NULL},
    };
    static const struct opts_row rows[] = {
        {.name = "json",
         .letter = 'J',
         .type = OPTS_STRING,
         .arg = "FILE",
         .help = "write the table as JSON too; - is stdout, without the text",
         .section = "Output"},
        {.name = NULL},
    };
    if (launch_is_child()) return launch_child(step_rank);
    struct opts opts;
    struct err err = ERR_INIT;
    const char *json = NULL;
    opts_parse(&opts, rows, &json, argc, argv, &err);
    if (opts.npositionals > 0) {
        err_add(&err, ERR_USAGE, "takes no words, \"%s\" was given", opts.positionals[0]);
    }
    if (opts.help) {
        opts_help(stdout, "collbench bench-step [options]",
                  "Measures what the executor costs per step of a program.", rows);
    } else if (err.count == 0) {
        signal(SIGPIPE, SIG_IGN); /* the file is completed although nobody reads stdout */
        struct step_times times;
        struct out *out = out_new(columns, sizeof columns / sizeof *columns);
        int bad = out_add_asked(out, json, NULL, false, &err);
        if (!bad && start(&times, whole_argv, &err) == 0) print_times(out, &times);
        out_close(out, &err);
    }
    int status = (int)err.code;
    err_print(&err, "collbench bench-step");
    err_release(&err);
    opts_release(&opts);
    return status;
}
