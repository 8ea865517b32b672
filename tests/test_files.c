/* SPDX-License-Identifier: Apache-2.0
 * Schedules to files and back: every row of the algorithm table survives MSCCL's XML, with our
 * attributes as an equal schedule and without them as one that is proved again; planted faults in
 * files are found; GOAL text is what LogGOPSim's grammar wants and moves the same bytes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "sched/copy.h"
#include "sched/goal.h"
#include "sched/msccl.h"
#include "sched/verify.h"

static struct sched *build(const struct algo *algo, struct algo_args args)
{
    struct err err = ERR_INIT;
    struct sched *sched = algo_build(algo, &args, false, &err);
    cr_assert(sched, "%s", err.text ? err.text : "");
    return sched;
}

static struct sched *named(enum coll_id coll, const char *name, uint32_t n, uint32_t channels,
                           uint32_t parts)
{
    struct err err = ERR_INIT;
    const struct algo *algo = algo_find(coll, name, &err);
    cr_assert(algo);
    return build(algo, (struct algo_args){.nranks = n, .channels = channels, .parts = parts});
}

static char *to_text(const struct sched *sched, bool plain)
{
    char *text = NULL;
    size_t bytes = 0;
    struct err err = ERR_INIT;
    FILE *to = open_memstream(&text, &bytes);
    cr_assert(!msccl_write(to, sched, &(struct msccl_opts){.plain = plain}, &err), "%s %s: %s",
              sched->coll->name, sched->name, err.text ? err.text : "");
    fclose(to);
    return text;
}

static struct sched *from_text(const char *text, const char *what)
{
    struct err err = ERR_INIT;
    struct sched *sched = msccl_parse("x.xml", text, strlen(text), &err);
    cr_assert(sched, "%s: %s", what, err.text ? err.text : "");
    return sched;
}

static bool right(const struct sched *sched, bool in_place)
{
    struct err err = ERR_INIT;
    bool good = !verify_sched(sched, in_place, &err);
    err_release(&err);
    cr_assert_eq(good, verify_oracle(sched, in_place));
    return good;
}

/* ---- there and back ---- */

static void round_trip(const struct sched *sched, const char *what)
{
    struct err why = ERR_INIT;
    char *text = to_text(sched, false), *plain = to_text(sched, true);
    struct sched *same = from_text(text, what), *again = from_text(plain, what);
    cr_expect(sched_equal(sched, same, &why), "%s: %s", what, why.text ? why.text : "");
    cr_expect_null(strstr(plain, " at=\""));
    for (int in_place = 0; in_place <= coll_in_place(sched->coll); in_place++) {
        if (!right(sched, in_place)) continue;
        cr_expect(right(same, in_place), "%s", what);
        cr_expect(right(again, in_place), "%s without our attributes", what);
    }
    char *twice = to_text(same, false);
    cr_expect_str_eq(text, twice, "%s: written again it is another file", what);
    err_release(&why);
    free(twice);
    free(text);
    free(plain);
    sched_free(same);
    sched_free(again);
}

Test(msccl, every_row_survives_the_round_trip)
{
    static const uint32_t group[] = {2, 3}, pair[] = {4, 4};
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        for (uint32_t n = 1; n <= 9 && algo_runs_on_ranks(&table[a]); n++) {
            for (uint32_t i = 0; i < 4; i++) {
                struct algo_args args = {.nranks = n, .channels = 1 + i % 2, .parts = 1 + i / 2};
                args.root = coll_get(table[a].coll)->rooted ? (n / 2 + i) % n : 0;
                args.nnodes = n == 5 || n == 8 ? 2 : 0;
                args.nodes = n == 5 ? group : n == 8 ? pair : NULL;
                struct sched *sched = build(&table[a], args);
                char *what = mem_printf("%s %s n=%u channels=%u parts=%u", sched->coll->name,
                                        sched->name, n, args.channels, args.parts);
                round_trip(sched, what);
                free(what);
                sched_free(sched);
            }
        }
    }
}

/* Each rank sends its whole input to all others at once. */
Test(msccl, steps_of_several_chunks_survive)
{
    struct sched *sched = sched_new("spans", COLL_ALLGATHER, 3, 0, 2);
    for (uint32_t r = 0; r < 3; r++) {
        struct prog *prog = sched_prog(sched, r);
        sched_copy(prog, ref_out(2 * r), ref_in(0));
        sched_span(prog, 2);
        for (uint32_t d = 1; d < 3; d++) {
            sched_send_ref(prog, (r + d) % 3, ref_in(0));
            sched_span(prog, 2);
        }
        for (uint32_t d = 1; d < 3; d++) {
            uint32_t from = (r + 3 - d) % 3;
            sched_recv_ref(prog, from, ref_out(2 * from));
            sched_span(prog, 2);
        }
    }
    round_trip(sched, "spans");
    sched_free(sched);
}

/* Rank k adds chunks first[k] and the next one, and sends them back: 3 and 0 go round the end. */
Test(msccl, steps_round_the_end_of_a_buffer_survive)
{
    static const uint32_t first[2] = {1, 3};
    struct sched *sched = sched_new("wrapped", COLL_ALLREDUCE, 2, 0, 4);
    for (uint32_t r = 0; r < 2; r++) {
        struct prog *prog = sched_prog(sched, r);
        uint32_t mine = first[r], other = first[1 - r];
        sched_send_ref(prog, 1 - r, ref_in(other));
        sched_span(prog, 2);
        sched_recv_reduce_ref(prog, 1 - r, ref_out(mine), ref_in(mine));
        sched_span(prog, 2);
        sched_final(prog);
        sched_send_ref(prog, 1 - r, ref_out(mine));
        sched_span(prog, 2);
        sched_recv_ref(prog, 1 - r, ref_out(other));
        sched_span(prog, 2);
    }
    cr_assert(right(sched, false) && right(sched, true));
    round_trip(sched, "wrapped");
    sched_free(sched);
}

/* Lanes that touch one chunk: the order between their blocks must be in the file. */
Test(msccl, hazards_between_blocks_become_dependencies)
{
    struct sched *sched = named(COLL_ALLREDUCE, "twoshot", 4, 1, 1);
    char *text = to_text(sched, true);
    cr_assert(strstr(text, "depid=\"0\"") || strstr(text, "depid=\"1\""));
    for (char *at = text; (at = strstr(at, " depid=\"")); at++) { /* without any: a race */
        if (at[8] != '-') {
            char *end = strstr(at, " hasdep");
            memset(at, ' ', (size_t)(end - at));
        }
    }
    struct err err = ERR_INIT;
    cr_expect_null(msccl_parse("x.xml", text, strlen(text), &err));
    cr_expect(strstr(err.text, "data race: rank "), "%s", err.text);
    cr_expect_eq(err.count, 1);
    err_release(&err);
    free(text);
    sched_free(sched);
}

/* Whatever single dependency is taken away: it is missed, or others imply it. */
Test(msccl, dependencies_written_are_needed)
{
    struct sched *sched = named(COLL_ALLREDUCE, "tree", 6, 2, 1);
    char *text = to_text(sched, true);
    uint32_t missed = 0, implied = 0;
    for (char *at = text; (at = strstr(at, " depid=\"")); at++) {
        if (at[8] == '-') continue;
        char *end = strstr(at, " hasdep"), *kept = mem_strdup(text);
        memset(kept + (at - text), ' ', (size_t)(end - at));
        struct err err = ERR_INIT;
        struct sched *again = msccl_parse("x.xml", kept, strlen(kept), &err);
        cr_expect(again ? right(again, false) && right(again, true)
                        : strstr(err.text, "data race") != NULL);
        *(again ? &implied : &missed) += 1;
        err_release(&err);
        sched_free(again);
        free(kept);
    }
    cr_expect_geq(missed, 10, "%u missed, %u implied", missed, implied);
    free(text);
    sched_free(sched);
}

/* ---- files of others ---- */

/* clang-format off */
#define STEP(s, type, sb, so, db, dof, cnt, dep)                                                   \
    "<step s=\"" #s "\" type=\"" #type "\" srcbuf=\"" #sb "\" srcoff=\"" #so "\" dstbuf=\"" #db    \
    "\" dstoff=\"" #dof "\" cnt=\"" #cnt "\" " dep " hasdep=\"0\"/>\n"
#define FREE "depid=\"-1\" deps=\"-1\""
#define ALGO(coll, chunks, n, more)                                                                \
    "<algo name=\"t\" proto=\"LL\" nchannels=\"1\" nchunksperloop=\"" #chunks "\" ngpus=\"" #n     \
    "\" coll=\"" coll "\" " more ">\n"
#define GPU(id, s) "<gpu id=\"" #id "\" i_chunks=\"2\" o_chunks=\"0\" s_chunks=\"" #s "\">\n"
#define TB(id, send, recv, chan)                                                                   \
    "<tb id=\"" #id "\" send=\"" #send "\" recv=\"" #recv "\" chan=\"" #chan "\">\n"

/* All pairs of two ranks, in place, as msccl-tools writes it: everything in the input, and scratch
 * chunk 0 of rank 1 holds part 1. */
static const char pairs_text[] =
    ALGO("allreduce", 2, 2, "inplace=\"1\"")
    GPU(0, 1)
    TB(0, 1, 1, 0)
    STEP(0, s, i, 1, s, 0, 1, FREE)
    STEP(1, r, i, 0, s, 0, 1, FREE)
    STEP(2, s, i, 0, i, 0, 1, "depid=\"1\" deps=\"0\"")
    STEP(3, r, i, 1, i, 1, 1, FREE)
    "</tb>\n"
    TB(1, -1, -1, 0)
    STEP(0, re, s, 0, i, 0, 1, "depid=\"0\" deps=\"1\"")
    "</tb></gpu>\n"
    GPU(1, 1)
    TB(0, 0, 0, 0)
    STEP(0, s, i, 0, s, 0, 1, FREE)
    STEP(1, r, i, 1, s, 0, 1, FREE)
    STEP(2, s, i, 1, i, 1, 1, "depid=\"1\" deps=\"0\"")
    STEP(3, r, i, 0, i, 0, 1, FREE)
    "</tb>\n"
    TB(1, -1, -1, 0)
    STEP(0, re, s, 0, i, 1, 1, "depid=\"0\" deps=\"1\"")
    "</tb></gpu></algo>\n";

/* A ring of three whose sum rank 1 only passes on. */
static const char fused_text[] =
    ALGO("allreduce", 1, 3, "inplace=\"1\" outofplace=\"1\"")
    GPU(0, 0)
    TB(0, 1, 2, 0)
    STEP(0, s, i, 0, o, 0, 1, FREE)
    STEP(1, rcs, i, 0, o, 0, 1, FREE)
    "</tb></gpu>\n"
    GPU(1, 0)
    TB(0, 2, 0, 0)
    STEP(0, rrs, i, 0, o, 0, 1, FREE)
    STEP(1, rcs, i, 0, o, 0, 1, FREE)
    "</tb></gpu>\n"
    GPU(2, 0)
    TB(0, 0, 1, 0)
    STEP(0, rrcs, i, 0, o, 0, 1, FREE)
    STEP(1, r, i, 0, o, 0, 1, FREE)
    "</tb></gpu></algo>";

static const char broadcast_text[] =
    ALGO("broadcast", 2, 2, "inplace=\"1\" root=\"1\"")
    GPU(0, 0)
    TB(0, -1, 1, 0)
    STEP(0, r, i, 0, o, 0, 2, FREE)
    "</tb></gpu>\n"
    GPU(1, 0)
    TB(0, 0, -1, 0)
    STEP(0, s, o, 0, o, 0, 2, FREE)
    "</tb></gpu></algo>";

static const char reduce_scatter_text[] =
    ALGO("reduce_scatter", 3, 3, "inplace=\"1\"")
    GPU(0, 0)
    TB(0, 1, 2, 0)
    STEP(0, s, i, 2, i, 2, 1, FREE)
    STEP(1, rrcs, i, 1, i, 1, 1, FREE)
    STEP(2, rrc, i, 0, i, 0, 1, FREE)
    "</tb></gpu>\n"
    GPU(1, 0)
    TB(0, 2, 0, 0)
    STEP(0, s, i, 0, i, 0, 1, FREE)
    STEP(1, rrcs, i, 2, i, 2, 1, FREE)
    STEP(2, rrc, i, 1, o, 0, 1, FREE)
    "</tb></gpu>\n"
    GPU(2, 0)
    TB(0, 0, 1, 0)
    STEP(0, s, i, 1, i, 1, 1, FREE)
    STEP(1, rrcs, i, 0, i, 0, 1, FREE)
    STEP(2, rrc, i, 2, i, 2, 1, FREE)
    "</tb></gpu></algo>";

static const char allgather_text[] =
    ALGO("allgather", 2, 2, "inplace=\"1\"")
    GPU(0, 0)
    TB(0, 1, 1, 0)
    STEP(0, s, o, 0, o, 0, 1, FREE)
    STEP(1, r, o, 1, o, 1, 1, FREE)
    "</tb></gpu>\n"
    GPU(1, 0)
    TB(0, 0, 0, 0)
    STEP(0, s, i, 0, o, 1, 1, FREE)
    STEP(1, r, o, 0, o, 0, 1, FREE)
    "</tb></gpu></algo>";

/* Scratch chunk 0 of rank 0 holds part 0, then part 1; two chunks go back in one message. */
static const char scratch_text[] =
    ALGO("allreduce", 2, 2, "inplace=\"1\" outofplace=\"1\"")
    GPU(0, 1)
    TB(0, 1, 1, 0)
    STEP(0, r, i, 0, s, 0, 1, FREE)
    STEP(1, cpy, i, 0, o, 0, 2, FREE)
    STEP(2, re, s, 0, o, 0, 1, FREE)
    STEP(3, r, i, 1, s, 0, 1, FREE)
    STEP(4, re, s, 0, o, 1, 1, FREE)
    STEP(5, s, o, 0, o, 0, 2, FREE)
    "</tb></gpu>\n"
    GPU(1, 0)
    TB(0, 0, 0, 0)
    STEP(0, s, i, 0, s, 0, 1, FREE)
    STEP(1, s, i, 1, s, 0, 1, FREE)
    STEP(2, r, o, 0, o, 0, 2, FREE)
    "</tb></gpu></algo>";

/* Rank 0 overwrites what it has sent when the other end has answered. */
static const char answer_text[] =
    ALGO("broadcast", 1, 2, "inplace=\"0\"")
    GPU(0, 0)
    TB(0, 1, -1, 0)
    STEP(0, cpy, i, 0, o, 0, 1, FREE)
    STEP(1, s, o, 0, o, 0, 1, FREE)
    "</tb>\n"
    TB(1, -1, 1, 1)
    STEP(0, r, o, 0, o, 0, 1, FREE)
    "</tb></gpu>\n"
    GPU(1, 1)
    TB(0, -1, 0, 0)
    STEP(0, r, o, 0, o, 0, 1, FREE)
    "</tb>\n"
    TB(1, 0, -1, 1)
    STEP(0, s, o, 0, o, 0, 1, "depid=\"0\" deps=\"0\"")
    "</tb></gpu></algo>";

static const char gpu_twice_text[] =
    ALGO("allreduce", 1, 2, "")
    GPU(1, 0)
    "</gpu>\n"
    GPU(1, 0)
    "</gpu></algo>";

static const char wire_twice_text[] =
    ALGO("allreduce", 1, 3, "")
    GPU(0, 0)
    TB(0, 1, -1, 0)
    "</tb>\n"
    TB(1, 1, -1, 0)
    "</tb></gpu>" GPU(1, 0) "</gpu>" GPU(2, 0) "</gpu></algo>";
/* clang-format on */

Test(msccl, in_place_files_of_others_work_in_both_placements)
{
    struct sched *sched = from_text(pairs_text, "pairs");
    cr_expect(right(sched, true));
    cr_expect(right(sched, false));
    cr_expect_eq(sched->progs[0].nlanes, 2);
    struct err err = ERR_INIT;
    cr_expect(!verify_all(sched, &err), "%s", err.text ? err.text : "");
    round_trip(sched, "pairs");
    sched_free(sched);
}

Test(msccl, fused_kinds_split)
{
    struct sched *sched = from_text(fused_text, "fused");
    cr_expect(right(sched, false));
    cr_expect(right(sched, true));
    cr_assert_eq(sched_prog_of(sched, 1)->nsteps, 4);
    cr_expect_eq(sched_prog_of(sched, 1)->steps[0].kind, STEP_RECV_REDUCE);
    cr_expect_eq(sched_prog_of(sched, 1)->steps[0].dst.buf, BUF_SCRATCH);
    cr_expect(sched_prog_of(sched, 2)->steps[0].final);
    cr_expect_not(sched_prog_of(sched, 1)->steps[0].final);
    sched_free(sched);
}

Test(msccl, a_broadcast_in_place_gets_the_copy_it_needs_out_of_place)
{
    struct sched *sched = from_text(broadcast_text, "broadcast");
    cr_expect(right(sched, true));
    cr_expect(right(sched, false));
    cr_expect_eq(sched_prog_of(sched, 1)->nsteps, 3);
    sched_free(sched);
}

/* Partial sums in the input are no input any more: out of place they go to scratch. */
Test(msccl, a_reduce_scatter_in_place_keeps_the_input_out_of_place)
{
    struct sched *sched = from_text(reduce_scatter_text, "reduce_scatter");
    cr_expect(right(sched, true));
    cr_expect(right(sched, false));
    cr_expect_eq(sched->nplanes, 1);
    sched_free(sched);
}

Test(msccl, an_allgather_in_place_reads_its_block_of_the_output)
{
    struct sched *sched = from_text(allgather_text, "allgather");
    cr_expect(right(sched, true));
    cr_expect(right(sched, false));
    sched_free(sched);
}

/* MSCCL's chunks are all alike, so that a scratch chunk may hold one part after the other; ours
 * have the length of their part. Steps of two chunks are cut, at both ends. */
Test(msccl, a_scratch_chunk_of_several_parts_becomes_several_places)
{
    struct sched *sched = from_text(scratch_text, "scratch");
    cr_expect(right(sched, true));
    cr_expect(right(sched, false));
    cr_expect_eq(sched_prog_of(sched, 1)->nsteps, 4, "sends two, receives two");
    struct err err = ERR_INIT;
    cr_expect(!verify_all(sched, &err), "%s", err.text ? err.text : "");
    round_trip(sched, "scratch");
    sched_free(sched);
}

Test(msccl, messages_there_and_back_are_an_order)
{
    struct sched *sched = from_text(answer_text, "answer");
    cr_expect(right(sched, false));
    sched_free(sched);
    static const char waits[] = "depid=\"0\" deps=\"0\"";
    char *racing = mem_strdup(answer_text);
    memset(strstr(racing, waits), ' ', strlen(waits));
    struct err err = ERR_INIT;
    cr_expect_null(msccl_parse("x.xml", racing, strlen(racing), &err));
    cr_expect(err.text && strstr(err.text, "data race: rank "), "%s", err.text ? err.text : "");
    err_release(&err);
    free(racing);
}

/* ---- faults ---- */

static void refused(const char *text, const char *line, const char *sentence)
{
    struct err err = ERR_INIT;
    struct sched *sched = msccl_parse("x.xml", text, strlen(text), &err);
    cr_expect_null(sched, "accepted: %s", text);
    cr_expect(err.code == ERR_USAGE && err.count == 1 && !strchr(err.text, '\n'), "%s",
              err.text ? err.text : "no sentence");
    cr_expect(err.text && strncmp(err.text, line, strlen(line)) == 0 && strstr(err.text, sentence),
              "wanted %s .. %s, got: %s", line, sentence, err.text ? err.text : "");
    err_release(&err);
    sched_free(sched);
}

/* pairs_text with `from` replaced where it stands first. */
static void refused_with(const char *from, const char *to, const char *line, const char *sentence)
{
    const char *at = strstr(pairs_text, from);
    cr_assert(at, "%s", from);
    char *text = mem_printf("%.*s%s%s", (int)(at - pairs_text), pairs_text, to, at + strlen(from));
    refused(text, line, sentence);
    free(text);
}

Test(faults, values_out_of_range)
{
    static const struct {
        const char *from, *to, *line, *sentence;
    } rows[] = {
        {"type=\"re\"", "type=\"rx\"", "x.xml:10:", "valid are s, r, rcs"},
        {"type=\"re\"", "typ=\"re\"", "x.xml:10:", "lacks the attribute \"type\""},
        {"srcbuf=\"i\"", "srcbuf=\"q\"", "x.xml:4:", "valid are i, o and s"},
        {"srcoff=\"1\"", "srcoff=\"2\"", "x.xml:4:", "gpu 0 has 2"},
        {"srcoff=\"1\"", "srcoff=\"-1\"", "x.xml:4:", "gpu 0 has 2"},
        {"srcoff=\"1\"", "srcoff=\"99999999999999999999\"", "x.xml:4:", "whole number"},
        {"srcoff=\"1\"", "srcoff=\"0x1\"", "x.xml:4:", "whole number"},
        {"cnt=\"1\"", "cnt=\"0\"", "x.xml:4:", "from 1 to"},
        {"cnt=\"1\"", "cnt=\"1000000000\"", "x.xml:4:", "gpu 0 has 2"},
        {"cnt=\"1\"", "", "x.xml:4:", "lacks the attribute \"cnt\""},
        {"s=\"1\" type=\"r\"", "s=\"0\" type=\"r\"", "x.xml:5:", "the next one of block 0 is 1"},
        {"coll=\"allreduce\"", "coll=\"allreduced\"", "x.xml:1:", "unknown operation"},
        {"ngpus=\"2\"", "ngpus=\"3\"", "x.xml:1:", "ngpus is 3, but there are 2"},
        {"ngpus=\"2\"", "ngpus=\"1000000000\"", "x.xml:1:", "too many"},
        {"nchunksperloop=\"2\"", "nchunksperloop=\"900000000\"", "x.xml:1:", "too many"},
        {"s_chunks=\"1\"", "s_chunks=\"900000000\"", "x.xml:1:", "too many"},
        {"send=\"1\"", "send=\"2\"", "x.xml:3:", "from -1 to 1"},
        {"send=\"1\"", "send=\"0\"", "x.xml:3:", "the gpu itself"},
        {"send=\"1\"", "send=\"-1\"", "x.xml:4:", "no peer to send to"},
        {"<tb id=\"1\"", "<tb id=\"0\"", "x.xml:9:", "has the id of"},
        {"depid=\"1\" deps=\"0\"", "depid=\"7\" deps=\"0\"", "x.xml:6:", "no such block"},
        {"depid=\"1\" deps=\"0\"", "depid=\"1\" deps=\"5\"", "x.xml:6:", "no such step"},
        {"depid=\"1\" deps=\"0\"", "depid=\"1\" deps=\"-1\"", "x.xml:6:", "both or none"},
        {"inplace=\"1\"", "inplace=\"0\" outofplace=\"0\"", "x.xml:1:", "neither"},
        {"inplace=\"1\"", "inplace=\"1\" root=\"1\"", "x.xml:1:", "has no root"},
        {"inplace=\"1\"", "inplace=\"1\" root=\"9\"", "x.xml:1:", "from 0 to 1"},
        {"inplace=\"1\"", "inplace=\"1\" list=\"1\"", "x.xml:3:", "\"lane\""},
        {"</algo>", "</algo>junk", "x.xml:21:", "no XML"},
        {"</algo>", "", "x.xml:22:", "no XML"},
        {"<algo", "<!DOCTYPE a [<!ENTITY b \"c\">]><algo", "x.xml:1:", "DOCTYPE"},
        {"<algo", "<alg", "x.xml:1:", "no schedule"},
        {"<gpu", "<step/><gpu", "x.xml:2:", "wrong place"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        refused_with(rows[i].from, rows[i].to, rows[i].line, rows[i].sentence);
    }
    refused("", "x.xml:1:", "no XML");
    refused(gpu_twice_text, "x.xml:4:", "a second time");
    refused(wire_twice_text, "x.xml:5:", "sends to the peer and channel of block 0 (line 3)");
}

Test(faults, wrong_result_deadlock_race)
{
    /* the last receive of rank 0 goes to the wrong chunk */
    refused_with("srcoff=\"1\" dstbuf=\"i\" dstoff=\"1\"", "srcoff=\"1\" dstbuf=\"i\" dstoff=\"0\"",
                 "x.xml:", "tb");
    /* the reduce waits for what waits for it */
    refused_with("depid=\"0\" deps=\"1\"", "depid=\"0\" deps=\"3\"", "x.xml:", "deadlock: rank");
    /* .. and for nothing */
    refused_with("depid=\"0\" deps=\"1\"", "depid=\"-1\" deps=\"-1\"",
                 "x.xml:5:", "data race: rank 0");
    /* a message nobody receives, one nobody sends */
    refused_with("type=\"r\" srcbuf=\"i\" srcoff=\"1\"", "type=\"nop\" srcbuf=\"i\" srcoff=\"1\"",
                 "x.xml:", "never received");
    refused_with("type=\"s\" srcbuf=\"i\" srcoff=\"0\"", "type=\"nop\" srcbuf=\"i\" srcoff=\"0\"",
                 "x.xml:", "never sent");
}

Test(faults, junk_and_depth)
{
    static const char head[] = "<algo coll=\"allreduce\" ngpus=\"1\" nchunksperloop=\"1\">";
    enum { JUNK = 10 << 20 };
    char *junk = mem_calloc(JUNK + 1, 1);
    memset(junk, 'x', JUNK);
    refused(junk, "x.xml:1:", "no XML");
    memcpy(junk, "<algo ", 6);
    refused(junk, "x.xml:1:", "no XML");
    memcpy(junk, head, strlen(head));
    refused(junk, "x.xml:1:", "no XML");
    for (size_t i = strlen(head); i + 3 <= JUNK; i += 3) {
        memcpy(junk + i, "<a>", 3);
    }
    refused(junk, "x.xml:1:", "no XML");
    refused(junk + strlen(head), "x.xml:1:", "no schedule");
    free(junk);
}

Test(faults, paths_that_cannot_be_read)
{
    struct err err = ERR_INIT;
    cr_expect_null(msccl_read("/nowhere/x.xml", &err));
    cr_expect_null(msccl_read("/", &err));
    cr_expect_eq(err.count, 2);
    cr_expect_eq(err.code, ERR_USAGE);
    err_release(&err);
}

/* ---- GOAL ---- */

struct goal_sums {
    uint64_t sent, received, sends, recvs, calc_ns;
};

/* Reads the text back by its grammar; every label that is required was given. */
static struct goal_sums read_goal(const char *text, uint32_t nranks)
{
    struct goal_sums sums = {0};
    char *copy = mem_strdup(text), *save = NULL;
    uint32_t ranks = 0, labels = 0;
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        unsigned long long a, bytes;
        unsigned b, peer, tag, cpu, nic;
        if (sscanf(line, "num_ranks %u", &b) == 1) {
            cr_expect_eq(b, nranks);
        } else if (sscanf(line, "rank %u {", &b) == 1) {
            cr_expect_eq(b, ranks);
            ranks++;
            labels = 0;
        } else if (sscanf(line, "l%llu: send %llub to %u tag %u cpu %u nic %u", &a, &bytes, &peer,
                          &tag, &cpu, &nic) == 6) {
            sums.sent += bytes;
            sums.sends++;
            labels++;
        } else if (sscanf(line, "l%llu: recv %llub from %u tag %u cpu %u nic %u", &a, &bytes, &peer,
                          &tag, &cpu, &nic) == 6) {
            sums.received += bytes;
            sums.recvs++;
            labels++;
        } else if (sscanf(line, "l%llu: calc %llu cpu %u", &a, &bytes, &cpu) == 3) {
            sums.calc_ns += bytes;
            labels++;
        } else if (sscanf(line, "l%llu requires l%u", &a, &b) == 2) {
            cr_expect(b < labels && a < labels && a != b, "%s: labels come first", line);
        } else {
            cr_expect_str_eq(line, "}");
        }
    }
    free(copy);
    return sums;
}

Test(goal, a_ring_of_four_moves_what_the_formula_says)
{
    struct sched *sched = named(COLL_ALLREDUCE, "ring", 4, 1, 1);
    struct err err = ERR_INIT;
    struct link_opts link = {WIRE_STAGED, false, true};
    struct linked *linked = link_sched(sched, &link, &err);
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    struct goal_opts opts = {.block_bytes = 4096, .reduce_ns_per_byte = 0.5};
    cr_assert(!goal_write(to, linked, &opts, &err));
    fclose(to);
    struct goal_sums sums = read_goal(text, 4);
    cr_expect_eq(sums.sent, 4 * 2 * 3 * 1024);
    cr_expect_eq(sums.received, sums.sent);
    cr_expect_eq(sums.sends, 4 * 6);
    cr_expect_eq(sums.recvs, 4 * 6);
    cr_expect_eq(sums.calc_ns, 4 * 3 * 512);
    free(text);
    linked_free(linked);
    link.mode = WIRE_PULL;
    linked = link_sched(sched, &link, &err);
    to = open_memstream(&text, &bytes);
    cr_expect(goal_write(to, linked, &opts, &err));
    fclose(to);
    free(text);
    err_release(&err);
    linked_free(linked);
    sched_free(sched);
}

Test(goal, lanes_wait_for_each_other_as_linked)
{
    struct sched *sched = named(COLL_ALLREDUCE, "tree", 6, 1, 1);
    struct err err = ERR_INIT;
    struct linked *linked = link_sched(sched, &(struct link_opts){WIRE_STAGED, true, true}, &err);
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    cr_assert(!goal_write(to, linked, &(struct goal_opts){.block_bytes = 4096}, &err));
    fclose(to);
    struct goal_sums sums = read_goal(text, 6);
    cr_expect_eq(sums.sends, sums.recvs);
    cr_expect(strstr(text, "cpu 1"), "the way down is a lane of its own");
    free(text);
    linked_free(linked);
    sched_free(sched);
}
