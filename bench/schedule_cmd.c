/* SPDX-License-Identifier: Apache-2.0
 * `collbench schedule OPERATION`: see schedule_cmd.h. Printing is sched/print.h's business, proving
 * sched/verify.h's. */
#include "bench/schedule_cmd.h"

#include <stdio.h>
#include <string.h>

#include "algo/algo.h"
#include "base/opts.h"
#include "sched/print.h"
#include "sched/verify.h"

enum { MOST = 1 << 20 };

static const char *const wire_choices[] = {"staged", "pull", "ll", NULL};
static const enum wire_mode wire_modes[] = {WIRE_STAGED, WIRE_PULL, WIRE_LL};

struct show {
    uint64_t nranks, root, rank, channels, parts;
    unsigned wire;
    const char *algo;
    bool draw, verify, linked, in_place, unroll, unfused;
};

#define ROW(name_, letter_, type_, field, value_, arg_, help_, ...)                                \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct show, field), .value = (value_), .arg = (arg_), .help = (help_), \
        __VA_ARGS__                                                                                \
    }

static const struct opts_row rows[] = {
    ROW("algo", 0, OPTS_STRING, algo, NULL, "NAME", "without it, the operation's first one",
        .section = "The schedule"),
    ROW("ranks", 0, OPTS_UINT, nranks, "4", "N", "ranks", .min = 1, .max = MOST),
    ROW("root", 'r', OPTS_UINT, root, "0", "RANK", "root of a broadcast", .max = MOST),
    ROW("channels", 0, OPTS_UINT, channels, NULL, "N",
        "copies of the pattern; without it, the algorithm's own number", .min = 1, .max = MOST),
    ROW("parts", 0, OPTS_UINT, parts, "1", "N", "pieces of each channel's share", .min = 1,
        .max = MOST),
    ROW("unroll", 0, OPTS_FLAG, unroll, NULL, NULL,
        "build one program per rank even where one would do for all"),
    ROW("rank", 0, OPTS_UINT, rank, NULL, "RANK", "show this rank alone; without it, all",
        .section = "What to show; without any of these, the steps as drawn", .max = MOST),
    ROW("draw", 0, OPTS_FLAG, draw, NULL, NULL, "a picture: rounds downwards, ranks across"),
    ROW("linked", 0, OPTS_FLAG, linked, NULL, NULL, "the records that really run"),
    ROW("verify", 0, OPTS_FLAG, verify, NULL, NULL, "prove it and say what was proven"),
    ROW("wire", 0, OPTS_CHOICE, wire, "staged", "KIND",
        "how messages travel; --verify without it proves staged and pull",
        .section = "Linking, for --draw, --linked and --verify", .choices = wire_choices),
    ROW("in-place", 0, OPTS_FLAG, in_place, NULL, NULL,
        "input and output are one buffer; --verify without it proves both placements"),
    ROW("unfused", 0, OPTS_FLAG, unfused, NULL, NULL, "without joining neighbouring steps"),
    {.name = NULL},
};

/* The first algorithm of a collective. */
static const struct algo *first_algo(enum coll_id coll)
{
    size_t count;
    const struct algo *algo = algo_table(&count);
    while (algo->coll != coll)
        algo++;
    return algo;
}

/* One mode and placement: how it links and what is proven. */
static int verify_one(const struct sched *sched, enum wire_mode mode, bool in_place, bool fuse,
                      struct err *err)
{
    struct link_opts opts = {.mode = mode, .in_place = in_place, .fuse = fuse};
    struct err why = ERR_INIT;
    const char *place = in_place ? "in place" : "out of place";
    struct linked *linked = link_sched(sched, &opts, &why);
    if (!linked && mode == WIRE_PULL) { /* a fact about the algorithm, not a fault */
        printf("  %-8s%-14scannot be pulled: %s\n", wire_mode_name(mode), place, why.text);
        err_release(&why);
        return 0;
    }
    if (!linked) return err_move(err, &why);
    int bad = verify_linked(linked, linked->least_depth, err);
    if (!bad) {
        printf("  %-8s%-14sprogress and freedom: passed, with room for %u message%s per wire\n",
               wire_mode_name(mode), place, linked->least_depth,
               linked->least_depth == 1 ? "" : "s");
    }
    linked_free(linked);
    return bad;
}

/* Of `one_wire` the mode that is shown alone, else the two that need no flag. */
static int verify_and_tell(const struct show *show, const struct sched *sched, bool one_wire,
                           struct err *err)
{
    static const enum wire_mode both[] = {WIRE_STAGED, WIRE_PULL};
    const enum wire_mode *modes = one_wire ? &wire_modes[show->wire] : both;
    size_t nmodes = one_wire ? 1 : sizeof both / sizeof *both;
    printf("%s %s, %u ranks, root %u, %u parts per block\n", sched->coll->name, sched->name,
           sched->nranks, sched->root, sched->nparts);
    for (int in_place = show->in_place; in_place < 2; in_place++) {
        if (verify_sched(sched, in_place, err)) return -1;
        printf("  %-8s%-14sshape and meaning: passed\n", "drawn",
               in_place ? "in place" : "out of place");
    }
    for (size_t m = 0; m < nmodes; m++) {
        for (int in_place = show->in_place; in_place < 2; in_place++) {
            if (verify_one(sched, modes[m], in_place, !show->unfused, err)) return -1;
        }
    }
    return 0;
}

static int print_linked(const struct show *show, const struct sched *sched, uint32_t rank,
                        struct err *err)
{
    struct link_opts opts = {
        .mode = wire_modes[show->wire], .in_place = show->in_place, .fuse = !show->unfused};
    struct linked *linked = link_sched(sched, &opts, err);
    if (!linked) return -1;
    if (show->draw) sched_print_draw(stdout, linked);
    for (uint32_t r = 0; show->linked && r < sched->nranks; r++) {
        if (rank == PRINT_ALL || rank == r) linked_print(stdout, linked, r);
    }
    linked_free(linked);
    return 0;
}

/* Refuses options that the views asked for do not look at. */
static int check_views(const struct show *show, const struct opts *opts, struct err *err)
{
    static const char *const linking[] = {"wire", "in-place", "unfused"};
    int bad = 0;
    if (opts_is_set(opts, "rank") && !show->linked && (show->draw || show->verify)) {
        bad =
            err_add(err, ERR_USAGE,
                    "--rank picks from the steps as drawn or --linked; --draw and --verify are of "
                    "all ranks");
    }
    for (size_t i = 0; i < sizeof linking / sizeof *linking; i++) {
        if (!opts_is_set(opts, linking[i]) || show->draw || show->linked || show->verify) continue;
        bad = err_add(err, ERR_USAGE,
                      "--%s means nothing for the steps as drawn; give --draw, --linked or "
                      "--verify too",
                      linking[i]);
    }
    return bad;
}

static int show_sched(const struct show *show, const struct opts *opts, const struct algo *algo,
                      struct err *err)
{
    struct algo_args args = {
        .nranks = (uint32_t)show->nranks,
        .root = (uint32_t)show->root,
        .channels = show->channels ? (uint32_t)show->channels : algo->channels,
        .parts = (uint32_t)show->parts,
    };
    if (check_views(show, opts, err)) return -1;
    uint32_t rank = opts_is_set(opts, "rank") ? (uint32_t)show->rank : PRINT_ALL;
    if (rank != PRINT_ALL && rank >= args.nranks) {
        return err_add(err, ERR_USAGE, "--rank %u: with %u ranks it is 0 to %u", rank, args.nranks,
                       args.nranks - 1);
    }
    if (args.root > 0 && !coll_get(algo->coll)->rooted) {
        return err_add(err, ERR_USAGE, "%s has no root: --root (-r) %u means nothing here",
                       coll_get(algo->coll)->name, args.root);
    }
    struct sched *sched = algo_build(algo, &args, show->unroll, err);
    if (!sched) return -1;
    int bad = 0;
    if (!show->draw && !show->linked && !show->verify) sched_print_table(stdout, sched, rank);
    if (show->draw || show->linked) bad = print_linked(show, sched, rank, err);
    if (!bad && show->verify) bad = verify_and_tell(show, sched, opts_is_set(opts, "wire"), err);
    sched_free(sched);
    return bad;
}

int schedule_cmd(int argc, char **argv)
{
    struct show show = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    opts_parse(&opts, rows, &show, argc, argv, &err);
    if (opts.help) {
        opts_help(stdout, "collbench schedule OPERATION [options]",
                  "Prints the schedule of an algorithm: what every rank sends, receives, reduces "
                  "and copies. Nothing is run.",
                  rows);
    } else {
        const struct coll *coll = NULL;
        const struct algo *algo = NULL;
        if (opts.npositionals != 1) {
            err_add(&err, ERR_USAGE, "takes one operation, %zu were given", opts.npositionals);
        } else {
            coll = coll_find(opts.positionals[0], &err);
        }
        if (coll) algo = show.algo ? algo_find(coll->id, show.algo, &err) : first_algo(coll->id);
        if (err.count == 0) show_sched(&show, &opts, algo, &err);
    }
    int status = (int)err.code;
    err_print(&err, "collbench schedule");
    err_release(&err);
    opts_release(&opts);
    return status;
}
