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
#include "exec/launch.h"
#include "exec/transport.h"

/* The processor's name as the kernel has it, freed by the caller. */
static char *cpu_name(void)
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

/* Freed by the caller. */
static char *command_line(int argc, char **argv)
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

static void note_machine(struct out *out, int argc, char **argv)
{
    struct err none = ERR_INIT;
    const struct kernels *kernels = kernels_get(&none);
    struct utsname uts;
    char *cpu = cpu_name(), *line = command_line(argc, argv);
    uname(&uts);
    out_note(out, "collbench %s, %s kernels; %s, %u cores; %s %s", COLLBENCH_VERSION,
             kernels ? kernels->name : "no", cpu, launch_cores(), uts.sysname, uts.release);
    out_note(out, "command: %s", line);
    out_meta(out, "program", out_text("collbench " COLLBENCH_VERSION));
    out_meta(out, "source", out_text("measured"));
    out_meta(out, "command", out_text(line));
    out_meta(out, "kernels", out_text(kernels ? kernels->name : NULL));
    out_meta(out, "processor", out_text(cpu));
    out_meta(out, "machine", out_text(uts.machine));
    out_meta(out, "system", out_text(uts.sysname));
    out_meta(out, "system_release", out_text(uts.release));
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
    } else {
        out_note(out, "%s of %u ranks (%s; one per core, 2 to 8%s); needs %s of %s memory",
                 coll->name, plan->nranks, kind,
                 plan->nranks < fitted->wanted ? ", lowered until half of the memory is enough"
                                               : "",
                 need, available);
    }
    if (plan->nranks > launch_cores()) {
        out_note(
            out,
            "more ranks (%u) than cores (%u): times contain waiting for a core; with a root and "
            "few iterations they can be too short as well (late ranks find their messages "
            "waiting)",
            plan->nranks, launch_cores());
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

static void note_measuring(struct out *out, const struct plan *plan)
{
    static const char *const averages[] = {"rank 0", "the mean", "the minimum", "the maximum"};
    static const char *const keys[] = {"rank0", "mean", "min", "max"};
    if (plan->samples) {
        out_note(out, "samples: %llu per row, each %s over the ranks; time is their mean",
                 (unsigned long long)plan->samples, averages[plan->average]);
    } else {
        out_note(out,
                 "samples: %d to %d per row, as many as %g s hold, each %s over the ranks; time is "
                 "their mean",
                 PLAN_SAMPLES_LEAST, PLAN_SAMPLES_MOST, PLAN_SAMPLES_S, averages[plan->average]);
    }
    out_note(out,
             "warm-up: %llu operations%s; cadence: back-to-back, no barrier between operations",
             (unsigned long long)plan->warmup, plan->warm_longer ? ", then 2 ms more" : "");
    out_meta(out, "cadence", out_text("back-to-back"));
    out_meta(out, "warmup", out_uint(plan->warmup));
    out_meta(out, "over_ranks", out_text(keys[plan->average]));
    out_meta(out, "check", out_bool(plan->rounds > 0));
}

static void note_setting(struct out *out, const struct plan *plan)
{
    const struct coll *coll = coll_get(plan->coll);
    const char *transport = transport_table()[plan->transport]->name;
    const char *buffers = plan->shared ? "shared" : "private";
    bool verified = plan->nranks <= READY_VERIFY_RANKS;
    out_note(out, "transport %s, wires %s; buffers %s (peers %s map them)", transport,
             wire_text(plan), buffers, plan->shared ? "can" : "cannot");
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
    note_measuring(out, plan);
    out_note(out,
             "units: sizes in bytes, GB = 10^9 B; algbw = size / time, busbw = algbw x %s; "
             "%%bound = least bytes to move / copy speed of the ranks / p50",
             coll->busbw);
    out_meta(out, "busbw_factor", out_double(coll->busbw_factor(plan->nranks)));
    out_meta(out, "busbw_formula", out_text(coll->busbw));
    out_meta(out, "transport", out_text(transport));
    out_meta(out, "wire", out_text(wire_text(plan)));
    out_meta(out, "buffers", out_text(buffers));
    out_meta(out, "verified", out_bool(verified));
}

void header_plan(struct out *out, const struct fitted *fitted, int argc, char **argv)
{
    note_machine(out, argc, argv);
    note_ranks(out, fitted);
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
}

void header_footer(struct out *out, const struct footer *footer)
{
    if (footer->batched) {
        out_note(out, "%llu results have samples of several operations: see batch in CSV and JSON",
                 (unsigned long long)footer->batched);
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
    double mean = footer->busbw_count ? footer->busbw_sum / (double)footer->busbw_count : 0;
    if (footer->busbw_count) {
        out_note(out, "Avg bus bandwidth    : %g (GB/s, mean over all rows and placements)", mean);
    }
    out_meta(out, "checked", out_uint(footer->checked));
    out_meta(out, "wrong", out_uint(footer->wrong));
    out_meta(out, "okay", out_bool(!footer->failed && footer->wrong == 0));
    out_meta(out, "average_busbw_GBps",
             footer->busbw_count ? out_double(mean) : (struct out_cell){0});
}
