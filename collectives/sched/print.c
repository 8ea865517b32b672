/* SPDX-License-Identifier: Apache-2.0
 * Tables and pictures of schedules: see print.h. */
#include "sched/print.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/pairs.h"
#include "sched/progress.h"

enum { REF_TEXT = 40 };

static const char *ref_text(char *text, const struct sched *sched, uint32_t rank, struct ref ref,
                            uint32_t nchunks)
{
    ref = sched_ref(sched, rank, ref);
    char name[16] = "in";
    if (ref.buf != BUF_IN) {
        snprintf(name, sizeof name, ref.buf == BUF_OUT ? "out" : "t%u", ref.buf - BUF_SCRATCH);
    }
    if (nchunks == 1) {
        snprintf(text, REF_TEXT, "%s[%u]", name, ref.chunk);
    } else {
        snprintf(text, REF_TEXT, "%s[%u+%u]", name, ref.chunk, nchunks);
    }
    return text;
}

static const struct prog *program_of(const struct sched *sched, uint32_t rank)
{
    return &sched->progs[sched->prog_of[sched->relative ? 0 : rank]];
}

static void print_step(FILE *to, const struct sched *sched, uint32_t rank, size_t index,
                       const struct step *step)
{
    const struct step_info *info = step_info(step->kind);
    char peer[16] = "-", src[2 * REF_TEXT] = "-", dst[REF_TEXT] = "-", a[REF_TEXT], b[REF_TEXT];
    if (info->sends || info->receives) {
        snprintf(peer, sizeof peer, "%u", sched_peer(sched, rank, step->peer));
    }
    if (info->reads_src) {
        ref_text(a, sched, rank, step->src, step->nchunks);
        const char *more =
            info->reads_src2 ? ref_text(b, sched, rank, step->src2, step->nchunks) : "";
        snprintf(src, sizeof src, "%s%s%s", a, *more ? "," : "", more);
    }
    if (info->writes) {
        ref_text(dst, sched, rank, step->dst, step->nchunks);
    }
    fprintf(to, "%6u %6zu %5u %8u  %-12s %6s  %-14s %-10s%s\n", rank, index, step->lane,
            step->channel, info->name, peer, src, dst, step->final ? " final" : "");
}

void sched_print_table(FILE *to, const struct sched *sched, uint32_t rank)
{
    fprintf(to, "# %s %s, %u ranks, %u chunks per block, %s\n", sched->coll->name, sched->name,
            sched->nranks, sched->nparts,
            sched->relative ? "one relative program" : "one program per rank");
    if (sched->nagents) {
        fprintf(to, "# %u to %u are agents: programs inside switches\n", sched->nranks,
                sched_ends(sched) - 1);
    }
    fprintf(to, "#%5s %6s %5s %8s  %-12s %6s  %-14s %s\n", "rank", "step", "lane", "channel",
            "kind", "peer", "src", "dst");
    uint32_t first = rank == PRINT_ALL ? 0 : rank;
    uint32_t end = rank == PRINT_ALL ? sched_ends(sched) : rank + 1;
    for (uint32_t r = first; r < end; r++) {
        const struct prog *prog = program_of(sched, r);
        for (size_t k = 0; k < prog->nsteps; k++) {
            print_step(to, sched, r, k, &prog->steps[k]);
        }
    }
}

/* ---- the picture ---- */

struct picture {
    const struct linked *linked;
    uint32_t **round; /* per end and record: when it is done */
    char **cells;     /* [round][end], grown */
    uint32_t nrounds;
    struct pairs pairs;
};

static uint32_t prog_index(const struct sched *sched, uint32_t rank)
{
    return sched->prog_of[sched->relative ? 0 : rank];
}

/* The round in which the message that `record` receives was sent. */
static uint32_t sent_in(const struct picture *picture, uint32_t rank, const struct lstep *step)
{
    const struct sched *sched = picture->linked->sched;
    const struct lwire *wire = &picture->linked->progs[prog_index(sched, rank)].wires[step->wire];
    uint32_t peer = sched_peer(sched, rank, wire->peer), q = prog_index(sched, peer);
    const struct pairs_prog *theirs = &picture->pairs.progs[q];
    uint32_t other = wire_other_end(sched, rank, wire, theirs->wires, theirs->nwires);
    uint32_t sending = theirs->step_of[theirs->first[other] + step->msg];
    const struct lprog *prog = &picture->linked->progs[q];
    uint32_t record = 0;
    while (prog->source[record] != sending) {
        record++;
    }
    return picture->round[peer][record];
}

static void add_cell(struct picture *picture, uint32_t round, uint32_t rank,
                     const struct lstep *step)
{
    const struct sched *sched = picture->linked->sched;
    while (picture->nrounds <= round) {
        size_t n = sched_ends(sched), at = picture->nrounds++ * n;
        picture->cells = mem_realloc(picture->cells, at + n, sizeof *picture->cells);
        memset(picture->cells + at, 0, n * sizeof *picture->cells);
    }
    const struct lprog *prog = &picture->linked->progs[prog_index(sched, rank)];
    uint32_t chunk = sched_ref(sched, rank, (struct ref){step->dst_buf, step->dst}).chunk;
    uint32_t peer = sched_peer(sched, rank, prog->wires[step->wire].peer);
    char **cell = &picture->cells[(size_t)round * sched_ends(sched) + rank];
    char *longer = mem_printf("%s%s%u%c<%u", *cell ? *cell : "", *cell ? " " : "", chunk,
                              step->kind == STEP_RECV ? '=' : '+', peer);
    free(*cell);
    *cell = longer;
}

static void draw_group(void *ctx, uint32_t rank, uint32_t lane, uint32_t first)
{
    struct picture *picture = ctx;
    const struct lprog *prog = &picture->linked->progs[prog_index(picture->linked->sched, rank)];
    uint32_t *round = picture->round[rank];
    uint32_t at = first > prog->lane_start[lane] ? round[first - 1] : 0;
    for (uint32_t i = 0; i < prog->steps[first].nwaits; i++) {
        const struct lwait *wait = &prog->waits[prog->steps[first].wait + i];
        if (wait->kind == LWAIT_LANE && wait->distance == 0 && round[wait->number] > at) {
            at = round[wait->number];
        }
    }
    for (uint32_t r = first; r <= group_last(prog, first); r++) {
        const struct lstep *step = &prog->steps[r];
        if (step_info((enum step_kind)step->kind)->receives) {
            uint32_t sent = sent_in(picture, rank, step);
            at = (sent > at ? sent : at) + 1;
            add_cell(picture, at, rank, step);
        }
        round[r] = at;
    }
}

static void print_cells(FILE *to, const struct picture *picture)
{
    const struct sched *sched = picture->linked->sched;
    uint32_t n = sched_ends(sched);
    size_t width = 8 + (sched->nagents > 0);
    for (size_t i = 0; i < (size_t)picture->nrounds * n; i++) {
        size_t len = picture->cells[i] ? strlen(picture->cells[i]) : 0;
        width = len > width ? len : width;
    }
    fprintf(to,
            "# chunk+<peer: adds what came from the peer; chunk=<peer: replaced by it\n# round");
    for (uint32_t r = 0; r < n; r++) {
        const char *word = sched_end_word(sched, r);
        int pad = r + 1 < n ? (int)(width - strlen(word)) - 1 : 0;
        fprintf(to, "  %s %-*u", word, pad, r);
    }
    fprintf(to, "\n");
    for (uint32_t t = 1; t < picture->nrounds; t++) {
        fprintf(to, "%7u", t);
        for (uint32_t r = 0; r < n; r++) {
            const char *cell = picture->cells[(size_t)t * n + r];
            int pad = r + 1 < n ? (int)width : 0;
            fprintf(to, "  %-*s", pad, cell ? cell : ".");
        }
        fprintf(to, "\n");
    }
}

void sched_print_draw(FILE *to, const struct linked *linked)
{
    const struct sched *sched = linked->sched;
    struct picture picture = {.linked = linked};
    struct err err = ERR_INIT;
    if (pairs_init(&picture.pairs, sched, &err)) {
        err_release(&err);
        return; /* cannot be: it was linked */
    }
    picture.round = mem_calloc(sched_ends(sched), sizeof *picture.round);
    for (uint32_t r = 0; r < sched_ends(sched); r++) {
        uint32_t nsteps = linked->progs[prog_index(sched, r)].nsteps;
        picture.round[r] = mem_calloc(nsteps, sizeof **picture.round);
    }
    progress_run(linked, &(struct progress_opts){linked->most_msgs + 1, true, draw_group, &picture},
                 &err);
    print_cells(to, &picture);
    for (size_t i = 0; i < (size_t)picture.nrounds * sched_ends(sched); i++) {
        free(picture.cells[i]);
    }
    for (uint32_t r = 0; r < sched_ends(sched); r++) {
        free(picture.round[r]);
    }
    free(picture.cells);
    free(picture.round);
    pairs_release(&picture.pairs);
    err_release(&err);
}

/* ---- linked ---- */

static void print_waits(FILE *to, const struct lprog *prog, const struct lstep *step)
{
    for (uint32_t i = 0; i < step->nwaits; i++) {
        const struct lwait *wait = &prog->waits[step->wait + i];
        if (wait->kind == LWAIT_RELEASE) {
            fprintf(to, " wait(message %u of wire %u taken%s)", wait->number, wait->index,
                    wait->distance ? ", pass before" : "");
        } else {
            fprintf(to, " wait(lane %u past record %u%s)", wait->index, wait->number,
                    wait->distance ? ", pass before" : "");
        }
    }
}

void linked_print(FILE *to, const struct linked *linked, uint32_t rank)
{
    const struct sched *sched = linked->sched;
    const struct lprog *prog = &linked->progs[prog_index(sched, rank)];
    fprintf(to, "# %s %u linked: %s%s, room for at least %u message(s) per wire\n",
            sched_end_word(sched, rank), rank, wire_mode_name(linked->opts.mode),
            linked->opts.in_place ? ", in place" : "", linked->least_depth);
    fprintf(to, "#%6s %6s %5s %5s  %-12s %-8s %s\n", "record", "step", "lane", "group", "kind",
            "wire", "");
    uint32_t lane = 0, group = 0;
    for (uint32_t r = 0; r < prog->nsteps; r++) {
        const struct lstep *step = &prog->steps[r];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        lane += r == prog->lane_start[lane + 1];
        char wire[32] = "-";
        if (info->sends || info->receives) {
            snprintf(wire, sizeof wire, "%u/%s", step->wire,
                     wire_mode_name((enum wire_mode)prog->wires[step->wire].mode));
        }
        fprintf(to, "%7u %6u %5u %5u  %-12s %-8s%s%s", r, prog->source[r], lane, group, info->name,
                wire, step->flags & LS_FINAL ? " final" : "",
                step->flags & LS_NOSTORE ? " not-stored" : "");
        print_waits(to, prog, step);
        fprintf(to, "\n");
        group += !(step->flags & LS_CHAIN);
    }
}
