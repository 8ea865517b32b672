/* SPDX-License-Identifier: Apache-2.0
 * Comment lines and facts about a run: see header.h. The environment is not copied: of it, only
 * what changes a result is named. */
#include "bench/header.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/mem.h"
#include "base/units.h"
#include "bench/facts.h"
#include "bench/wiring.h"
#include "exec/launch.h"
#include "exec/transport.h"
#include "kernels/gpu.h"
#include "sched/table.h"

char *header_processor(void)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256], *name = NULL;
    while (file && !name && fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *colon = strchr(line, ':');
        line[strcspn(line, "\n")] = '\0';
        if (colon && colon[1]) name = mem_strdup(colon + 2);
    }
    if (file) fclose(file);
    return name ? name : mem_strdup("unknown processor");
}

/* Writes one argument so that a shell reads it back, on one line whatever it holds. */
static void put_argument(FILE *to, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "@%+=:,./_-";
    bool control = false;
    for (const char *c = text; *c; c++)
        control = control || iscntrl((unsigned char)*c);
    if (*text && strspn(text, plain) == strlen(text)) {
        fputs(text, to);
        return;
    }
    fputs(control ? "$'" : "'", to);
    for (const char *c = text; *c; c++) {
        if (iscntrl((unsigned char)*c)) {
            fprintf(to, "\\%03o", (unsigned)(unsigned char)*c);
        } else if (*c == '\'') {
            fputs(control ? "\\'" : "'\\''", to);
        } else {
            fprintf(to, control && *c == '\\' ? "\\%c" : "%c", *c);
        }
    }
    fputc('\'', to);
}

char *header_command(int argc, char **argv)
{
    char *line = NULL;
    size_t length;
    FILE *to = open_memstream(&line, &length);
    if (!to) return mem_strdup("unknown");
    const char *slash = strrchr(argv[0], '/');
    put_argument(to, slash ? slash + 1 : argv[0]);
    for (int i = 1; i < argc; i++) {
        fputc(' ', to);
        put_argument(to, argv[i]);
    }
    fclose(to);
    return line;
}

static const char *wire_text(const struct plan *plan)
{
    return plan->wire == PLAN_WIRE_AUTO ? "auto" : wire_mode_name((enum wire_mode)plan->wire);
}

void header_machine(struct out *out, enum source source, int argc, char **argv)
{
    struct err none = ERR_INIT;
    const struct kernels *kernels = kernels_get(&none);
    struct utsname uts;
    char *cpu = header_processor(), *line = header_command(argc, argv);
    uname(&uts);
    out_note(out, "collbench %s, %s kernels; %s, %u cores; %s %s", COLLBENCH_VERSION,
             kernels ? kernels->name : "no", cpu, launch_cores(), uts.sysname, uts.release);
    out_note(out, "command: %s", line);
    out_meta(out, "schema", out_uint(RECORD_SCHEMA));
    out_meta(out, "program", out_text("collbench " COLLBENCH_VERSION));
    out_meta(out, "source", out_text(source_name(source)));
    out_meta(out, "command", out_text(line));
    out_meta(out, "kernels", out_text(kernels ? kernels->name : NULL));
    out_meta(out, "cores", out_uint(launch_cores()));
    err_release(&none);
    free(line);
    free(cpu);
}

static void note_ranks(struct out *out, const struct fitted *fitted)
{
    const struct plan *plan = fitted->plan;
    const struct coll *coll = coll_get(plan->coll);
    char available[UNITS_TEXT], need[UNITS_TEXT];
    units_size_near(available, fitted->available);
    units_size_near(need, world_need(&fitted->spec));
    const char *kind = plan->threads ? "threads" : "processes";
    if (fitted->asked) {
        out_note(out, "%s of %u ranks (%s); needs %s of %s memory", coll->name, plan->nranks, kind,
                 need, available);
    } else if (plan->device) {
        out_note(out, "%s of %u ranks (%s; one per GPU); needs %s of %s memory", coll->name,
                 plan->nranks, kind, need, available);
    } else {
        out_note(out, "%s of %u ranks (%s; one per core, 2 to 8%s); needs %s of %s memory",
                 coll->name, plan->nranks, kind,
                 plan->nranks < fitted->wanted ? ", lowered until half of the memory is enough"
                                               : "",
                 need, available);
    }
    if (plan_world(plan) > launch_cores()) {
        out_note(out,
                 "with more ranks than cores, a root and few iterations times can be too short "
                 "as well (late ranks find their messages waiting)");
    }
    if (plan->nranks == 1 && coll->busbw_factor(1) == 0) {
        out_note(out, "one rank: nothing travels, so busbw is 0 (algbw x %s)", coll->busbw);
    }
    out_meta(out, "collective", out_text(coll->name));
    out_meta(out, "nranks", out_uint(plan->nranks));
    out_meta(out, "nranks_wanted", out_uint(fitted->wanted));
    out_meta(out, "ranks_as", out_text(kind));
    out_meta(out, "memory_need_B", out_uint(world_need(&fitted->spec)));
    out_meta(out, "memory_available_B", out_uint(fitted->available));
}

static void note_samples(struct out *out, const struct plan *plan)
{
    static const char *const averages[] = {"rank 0", "the mean", "the minimum", "the maximum"};
    const char *over = averages[plan->average];
    if (plan->samples) {
        out_note(out, "samples: %llu per row, each %s over the ranks; time is their mean",
                 (unsigned long long)plan->samples, over);
    } else {
        out_note(out,
                 "samples: until half of the median's 95 %% interval is %g %% of it, or for %s; %d "
                 "to %d per row, each %s over the ranks; time is their mean",
                 100 * plan->precision, units_time((char[UNITS_TEXT]){0}, plan->cap_s),
                 PLAN_SAMPLES_LEAST, PLAN_SAMPLES_MOST, over);
        out_meta(out, "precision", out_double(plan->precision));
        out_meta(out, "max_time_s", out_double(plan->cap_s));
    }
    out_note(out, "+-%%: half of the median's 95 %% interval, by block bootstrap of the samples%s",
             plan->launches == 1 ? "" : "; of all launches together, by their medians (launch 0)");
}

static void note_measuring(struct out *out, const struct plan *plan)
{
    static const char *const keys[] = {"rank0", "mean", "min", "max"};
    bool isolated = plan->cadence == CADENCE_ISOLATED;
    bool shuffled = plan->shuffled && plan_rows(plan) <= PLAN_SHUFFLE_MOST;
    note_samples(out, plan);
    out_note(out, "warm-up: %llu operations%s; cadence: %s; caches: %s; rows measured in %s order",
             (unsigned long long)plan->warmup, plan->warm_longer ? ", then 2 ms more" : "",
             isolated ? "isolated, a barrier before each operation, not in its time"
             : plan->contest == CONTEST_NONE
                 ? "back-to-back, no barrier between operations"
                 : "back-to-back, each sample behind a barrier and one operation not timed",
             plan->cold ? "flushed before each sample" : "as the sample before left them",
             shuffled ? "shuffled" : "listed");
    out_meta(out, "cadence", out_text(isolated ? "isolated" : "back-to-back"));
    out_meta(out, "cold", out_bool(plan->cold));
    out_meta(out, "order", out_text(shuffled ? "shuffled" : "listed"));
    out_meta(out, "seed", out_uint(plan->seed));
    out_meta(out, "launches", out_uint(plan->launches));
    out_meta(out, "warmup", out_uint(plan->warmup));
    out_meta(out, "over_ranks", out_text(keys[plan->average]));
    out_meta(out, "check", out_bool(plan->rounds > 0));
}

/* What the two series of a row are, and what their ratio means. */
static void note_contest(struct out *out, const struct plan *plan)
{
    switch (plan->contest) {
    case CONTEST_NONE:
        break;
    case CONTEST_MPI:
        out_note(out,
                 "against MPI: samples in turns, in the same processes, by the same clock and "
                 "barrier; of blocking and polled calls%s the better one of each row; ratio = "
                 "p50 of MPI / p50 of own, 95 %% interval low to high (paired block "
                 "bootstrap); verdict on own",
                 plan->shared && !plan->cold ? ", in our buffers and in MPI_Alloc_mem's," : "");
        break;
    case CONTEST_NCCL:
        out_note(out,
                 "against NCCL: samples in turns, in the same processes and streams, by the same "
                 "events; of its calls and of graphs of them, in our buffers%s, the best one of "
                 "each row; ratio = p50 of NCCL / p50 of own, 95 %% interval low to high (paired "
                 "block bootstrap); verdict on own. Ours takes a block of 512 threads per lane "
                 "(channels in JSON) and reduces in no switch: where NCCL is faster over NVLink "
                 "switches, NVLS may be why",
                 plan->shared ? ", in registered ones of ncclMemAlloc and in windows" : "");
        break;
    case CONTEST_GROUPS:
        out_note(out,
                 "%u groups of %u ranks: one group alone, then all together, in turns; ratio "
                 "= p50 together / p50 alone, the slowdown",
                 plan->ngroups, plan->nranks);
        break;
    case CONTEST_OVERLAP:
        out_note(out,
                 "pure: the operation; overlapped: beside compute that takes as long, with "
                 "%llu looks at it; ratio = p50 overlapped / p50 pure; overlap = 100 - 100 x "
                 "(overlapped - compute) / pure, as OSU defines it; cores: busy on average",
                 (unsigned long long)plan->looks);
        break;
    case CONTEST_SKEW:
        out_note(out,
                 "on time: all ranks leave one barrier; one late: another rank each time "
                 "comes %s later; both counted from the last arrival to the last departure; "
                 "wait: what the longest stay in the operation was beyond that",
                 units_time((char[UNITS_TEXT]){0}, (double)plan->skew_ns / 1e9));
        break;
    }
    static const char *const names[] = {"none", "mpi", "nccl", "groups", "overlap", "skew"};
    out_meta(out, "compared_with", out_text(names[plan->contest]));
    out_meta(out, "ngroups", out_uint(plan->ngroups));
}

void header_place(struct out *out, const struct place *place)
{
    facts_note(out, place);
    const char *bound = bind_names[place_bound(place)];
    char *all = NULL;
    size_t length;
    FILE *to = open_memstream(&all, &length);
    for (uint32_t r = 0; to && r < place_nranks(place); r++)
        fprintf(to, "%s%s", r ? " | " : "", place_cpus(place, r));
    if (to) fclose(to);
    bool few = place_nranks(place) <= 16;
    out_note(out, "ranks bound to: %s; processors by rank: %s", bound,
             few && all ? all : "see JSON");
    out_meta(out, "bind", out_text(bound));
    out_meta(out, "processors_by_rank", out_text(all));
    free(all);
}

/* What else tells this call from others. */
static void note_cut(struct out *out, const struct plan *plan)
{
    const double *shares = plan_shares(plan);
    if (plan->cut[0]) out_meta(out, "cut", out_text(plan->cut));
    if (plan->drawn_at) {
        out_note(out, "schedule: from the file %s, %s", plan_drawn(plan), plan->cut);
        out_meta(out, "schedule", out_text(plan_drawn(plan)));
    }
    if (!shares) return;
    out_note(out, "blocks: %s; the busiest rank moves %.3g times the mean input from or to others",
             plan->cut, traffic_busbw(plan->nranks, shares));
    char *text = plan->nranks <= READY_VERIFY_RANKS ? traffic_text(plan->nranks, shares) : NULL;
    out_meta(out, "shares", text ? out_text(text) : (struct out_cell){0});
    free(text);
}

static void note_setting(struct out *out, const struct plan *plan)
{
    const struct coll *coll = coll_get(plan->coll);
    const char *transport = transport_table()[plan->transport]->name;
    const char *buffers = wiring_buffers(plan->transport, plan->shared, plan->device);
    bool mapped = strcmp(buffers, buffer_words[0]) == 0;
    bool verified = plan->nranks <= READY_VERIFY_RANKS;
    out_note(out, "transport %s, wires %s; buffers %s (peers %s map them)", transport,
             wire_text(plan), buffers, mapped ? "can" : "cannot");
    if (plan->wire == PLAN_WIRE_AUTO && plan->place[OUT_OF_PLACE] && plan->place[IN_PLACE]) {
        out_note(out, "transport of a row: %s/A+B means wires A out of place, B in place",
                 transport);
    }
    if (verified) {
        out_note(out,
                 "schedules: verified before anything ran (shape, meaning, progress, freedom)");
    } else {
        out_note(out, "schedules: not verified here, more than %d ranks", READY_VERIFY_RANKS);
    }
    out_note(out, plan->rounds ? "data: checked in untimed rounds, the last behind the timed ones; "
                                 "#wrong: wrong elements over all rounds"
                               : "data: NOT checked");
    const double *shares = plan_shares(plan);
    out_meta(out, "busbw_factor",
             out_double(shares ? traffic_busbw(plan->nranks, shares)
                               : coll->busbw_factor(plan->nranks)));
    note_cut(out, plan);
    out_meta(out, "busbw_formula", out_text(coll->busbw));
    out_meta(out, "transport", out_text(transport));
    out_meta(out, "wire", out_text(wire_text(plan)));
    out_meta(out, "buffers", out_text(buffers));
    out_meta(out, "memory", out_text(plan->device ? "gpu" : "host"));
    out_meta(out, "verified", out_bool(verified));
    if (plan->mode != MODE_TIME) return;
    note_measuring(out, plan);
    note_contest(out, plan);
    out_note(out,
             "units: sizes in bytes, GB = 10^9 B; algbw = size / time, busbw = algbw x %s; "
             "%%bound = least bytes to move / copy speed of the ranks / p50",
             coll->busbw);
}

static void note_gpus(struct out *out, const struct plan *plan)
{
    const struct transport *transport = transport_table()[plan->transport];
    uint32_t here = plan->nhosts ? plan_host_ranks(plan)[0] : plan_world(plan);
    out_note(out,
             "time, p50, p99: of the GPU, by events around operations%s; host: of one alone as the "
             "host sees it, launch: of the launching call in it",
             transport->device ? " that wait in the stream until all are queued"
                               : ", whose steps the host launches");
    int devices;
    const char *why;
    const struct gpu *gpu = gpu_devices(&devices, &why);
    if (gpu) header_gpus(out, gpu, here, transport);
}

void header_plan(struct out *out, const struct fitted *fitted, int argc, char **argv)
{
    header_machine(out, header_source(fitted->plan->device), argc, argv);
    note_ranks(out, fitted);
    if (fitted->plan->device) note_gpus(out, fitted->plan);
    note_setting(out, fitted->plan);
}

void header_facts(struct out *out, const struct facts *facts)
{
    char cost[UNITS_TEXT], step[UNITS_TEXT], barrier[UNITS_TEXT], ping[UNITS_TEXT];
    out_note(out,
             "clock: %s per reading, steps of %s; barrier %s; cache line from rank 0 to rank 1: %s",
             units_time(cost, facts->clock_cost_s), units_time(step, facts->clock_step_s),
             units_time(barrier, facts->barrier_s), units_time(ping, facts->ping_s));
    out_meta(out, "clock_cost_s", out_double(facts->clock_cost_s));
    out_meta(out, "clock_step_s", out_double(facts->clock_step_s));
    out_meta(out, "barrier_s", out_double(facts->barrier_s));
    out_meta(out, "ping_s", out_double(facts->ping_s));
    if (facts->gpus[0]) {
        out_note(out, "%s; slots are used all the same", facts->gpus);
        out_meta(out, "gpu_direct", out_text(facts->gpus));
    }
    if (facts->mpi[0]) {
        out_note(out, "MPI library: %s", facts->mpi);
        out_meta(out, "mpi_library", out_text(facts->mpi));
    }
}

void header_footer(struct out *out, const struct footer *footer)
{
    out_summary(out);
    if (footer->batched) {
        out_note(out,
                 "%llu results have samples of several operations (batch in CSV and JSON): their "
                 "percentiles are of batches",
                 (unsigned long long)footer->batched);
    }
    if (footer->drifts) {
        out_note(out, "DRIFT: %llu results of a launch were more than 10 %% off those before",
                 (unsigned long long)footer->drifts);
    }
    if (footer->failed) {
        out_note(out, "the run FAILED: the rows above are all that was measured");
    }
    if (footer->failed && footer->wrong == 0) {
        out_note(out, "Out of bounds values : N/A, the run failed; %llu result%s checked%s",
                 (unsigned long long)footer->checked, footer->checked == 1 ? " was" : "s were",
                 footer->checked ? ", none of them wrong" : "");
    } else if (footer->checked) {
        out_note(out, "Out of bounds values : %llu %s", (unsigned long long)footer->wrong,
                 footer->wrong ? "FAILED" : "OK");
    } else {
        out_note(out, "Out of bounds values : N/A, not checked");
    }
    double mean = footer->large_count ? footer->large_sum / (double)footer->large_count : 0;
    if (footer->large_count) {
        out_note(out,
                 "Avg bus bandwidth    : %g (GB/s, mean over rows of 1 MB or more, all placements)",
                 mean);
    } else if (footer->busbw_count) {
        out_note(out, "Avg bus bandwidth    : N/A (no row of 1 MB or more: an average of small "
                      "sizes is not meaningful)");
    }
    if (footer->invalid) {
        out_note(out, "INVALID results      : %llu below the least time there can be",
                 (unsigned long long)footer->invalid);
    }
    out_meta(out, "invalid", out_uint(footer->invalid));
    out_meta(out, "drifts", out_uint(footer->drifts));
    out_meta(out, "checked", out_uint(footer->checked));
    out_meta(out, "wrong", out_uint(footer->wrong));
    out_meta(out, "okay", out_bool(!footer->failed && footer->wrong + footer->invalid == 0));
    out_meta(out, "average_busbw_GBps",
             footer->large_count ? out_double(mean) : (struct out_cell){0});
}
