/* SPDX-License-Identifier: Apache-2.0
 * `collbench schedule OPERATION`: see schedule_cmd.h. Printing is sched/print.h's business, proving
 * sched/verify.h's, files those of sched/msccl.h and sched/goal.h. */
#include "bench/schedule_cmd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "base/opts.h"
#include "sched/goal.h"
#include "sched/msccl.h"
#include "sched/print.h"
#include "sched/verify.h"

enum { MOST = 1 << 20 };

static const char *const wire_choices[] = {"staged", "pull", "ll", NULL};
static const enum wire_mode wire_modes[] = {WIRE_STAGED, WIRE_PULL, WIRE_LL};

struct show {
    uint64_t nranks, root, rank, channels, parts;
    uint64_t size;
    double gamma_Bps;
    unsigned wire;
    const char *algo, *nodes, *schedule, *export;
    bool draw, verify, linked, in_place, unroll, unfused, overwrite, ranks_given;
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
    ROW("nodes", 0, OPTS_STRING, nodes, NULL, "N+N..",
        "node groups, for algorithms in two levels: 2+3, or 2x4 for two of four"),
    ROW("root", 'r', OPTS_UINT, root, "0", "RANK", "root of a rooted operation", .max = MOST),
    ROW("channels", 0, OPTS_UINT, channels, NULL, "N",
        "copies of the pattern; without it, the algorithm's own number", .min = 1, .max = MOST),
    ROW("parts", 0, OPTS_UINT, parts, "1", "N", "pieces of each channel's share", .min = 1,
        .max = MOST),
    ROW("unroll", 0, OPTS_FLAG, unroll, NULL, NULL,
        "build one program per rank even where one would do for all"),
    ROW("schedule", 0, OPTS_STRING, schedule, NULL, "FILE",
        "read it from an MSCCL XML file instead, and prove it: wrong results, deadlocks and data "
        "races are refused with the line"),
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
    ROW("export", 0, OPTS_STRING, export, NULL, "FILE",
        "write the schedule: FILE.xml as MSCCL XML, which --schedule reads again, or FILE.goal as "
        "GOAL for LogGOPSim (staged wires)",
        .section = "Files"),
    ROW("size", 0, OPTS_SIZE, size, "1M", "SIZE", "bytes of the call in a GOAL file"),
    ROW("gamma", 0, OPTS_BANDWIDTH, gamma_Bps, NULL, "BANDWIDTH",
        "speed of reduces and copies in a GOAL file; without it they take no time"),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, NULL, "the file may exist already"),
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

/* Meaning in one placement. A file may be for the other one alone: *usable says so. */
static int verify_meaning(const struct show *show, const struct sched *sched, bool in_place,
                          bool *usable, struct err *err)
{
    const char *place = in_place ? "in place" : "out of place";
    struct err why = ERR_INIT;
    *usable = verify_sched(sched, in_place, &why) == 0;
    if (!*usable && !show->schedule) return err_move(err, &why);
    if (*usable) {
        printf("  %-8s%-14sshape and meaning: passed\n", "drawn", place);
    } else {
        printf("  %-8s%-14snot for this placement: %s\n", "drawn", place, why.text);
    }
    err_release(&why);
    return 0;
}

/* Of `one_wire` the mode that is shown alone, else the two that need no flag. */
static int verify_and_tell(const struct show *show, const struct sched *sched, bool one_wire,
                           struct err *err)
{
    static const enum wire_mode both[] = {WIRE_STAGED, WIRE_PULL};
    const enum wire_mode *modes = one_wire ? &wire_modes[show->wire] : both;
    size_t nmodes = one_wire ? 1 : sizeof both / sizeof *both;
    int last = coll_in_place(sched->coll);
    bool usable[2] = {false, false};
    printf("%s %s, %u ranks, root %u, %u parts per block\n", sched->coll->name, sched->name,
           sched->nranks, sched->root, sched->nparts);
    for (int in_place = show->in_place; in_place <= last; in_place++) {
        if (verify_meaning(show, sched, in_place, &usable[in_place], err)) return -1;
    }
    for (size_t m = 0; m < nmodes; m++) {
        for (int in_place = show->in_place; in_place <= last; in_place++) {
            if (usable[in_place] && verify_one(sched, modes[m], in_place, !show->unfused, err))
                return -1;
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
    for (uint32_t r = 0; show->linked && r < sched_ends(sched); r++) {
        if (rank == PRINT_ALL || rank == r) linked_print(stdout, linked, r);
    }
    linked_free(linked);
    return 0;
}

/* ---- files ---- */

static bool ends_in(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcmp(path + n - m, suffix) == 0;
}

static bool exports_goal(const struct show *show)
{
    return show->export && ends_in(show->export, ".goal");
}

static int write_goal(FILE *to, const struct show *show, const struct sched *sched, struct err *err)
{
    struct link_opts opts = {
        .mode = wire_modes[show->wire], .in_place = show->in_place, .fuse = !show->unfused};
    struct linked *linked = link_sched(sched, &opts, err);
    if (!linked) return -1;
    double ns_per_byte = show->gamma_Bps > 0 ? 1e9 / show->gamma_Bps : 0;
    struct goal_opts goal = {.block_bytes =
                                 coll_block_count(sched->coll, sched->nranks, show->size, 1),
                             .reduce_ns_per_byte = ns_per_byte,
                             .copy_ns_per_byte = ns_per_byte};
    int bad = goal_write(to, linked, &goal, err);
    linked_free(linked);
    return bad;
}

/* Puts a text into a new file, or one that may be overwritten. */
static int save(const struct show *show, const char *text, size_t bytes, struct err *err)
{
    FILE *to = fopen(show->export, show->overwrite ? "w" : "wx");
    if (!to && errno == EEXIST) {
        return err_add(err, ERR_USAGE,
                       "--export: %s exists and is kept; name another file or give --overwrite",
                       show->export);
    }
    if (!to) {
        return err_add(err, ERR_USAGE, "--export: cannot write %s: %s", show->export,
                       strerror(errno));
    }
    size_t written = fwrite(text, 1, bytes, to);
    if (fclose(to) || written < bytes) {
        return err_add(err, ERR_FAILED, "--export: %s was not written: %s", show->export,
                       strerror(errno));
    }
    return 0;
}

static int export_sched(const struct show *show, const struct sched *sched, struct err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory) return err_add(err, ERR_FAILED, "--export: %s", strerror(errno));
    int bad = exports_goal(show) ? write_goal(memory, show, sched, err)
                                 : msccl_write(memory, sched, NULL, err);
    fclose(memory);
    if (!bad) bad = save(show, text, bytes, err);
    free(text);
    return bad;
}

/* ---- the command ---- */

/* Options of which each means something only beside one of others. */
static bool any_view(const struct show *show)
{
    return show->draw || show->linked || show->verify;
}

static void check_export(const struct show *show, const struct opts *opts, struct err *err)
{
    static const char *const goal_only[] = {"size", "gamma"};
    if (show->export && !ends_in(show->export, ".xml") && !exports_goal(show)) {
        err_add(err, ERR_USAGE, "--export %s: the name ends in .xml (MSCCL) or .goal (LogGOPSim)",
                show->export);
    }
    for (size_t i = 0; i < sizeof goal_only / sizeof *goal_only; i++) {
        if (opts_is_set(opts, goal_only[i]) && !exports_goal(show)) {
            err_add(err, ERR_USAGE, "--%s means something for --export FILE.goal alone",
                    goal_only[i]);
        }
    }
    if (exports_goal(show) && wire_modes[show->wire] != WIRE_STAGED) {
        err_add(err, ERR_USAGE, "--wire %s: a GOAL file is written of staged wires",
                wire_choices[show->wire]);
    }
    if (show->overwrite && !show->export) {
        err_add(err, ERR_USAGE, "--overwrite means something beside --export alone");
    }
}

/* Refuses options that what was asked for does not look at. */
static int check_views(struct show *show, const struct opts *opts, struct err *err)
{
    static const char *const linking[] = {"wire", "in-place", "unfused"};
    static const char *const built[] = {"algo",     "ranks", "nodes", "root",
                                        "channels", "parts", "unroll"};
    if (opts_is_set(opts, "rank") && !show->linked && (show->draw || show->verify)) {
        err_add(err, ERR_USAGE,
                "--rank picks from the steps as drawn or --linked; --draw and --verify are of "
                "all ranks");
    }
    for (size_t i = 0; i < sizeof linking / sizeof *linking; i++) {
        if (!opts_is_set(opts, linking[i]) || any_view(show) || exports_goal(show)) continue;
        err_add(err, ERR_USAGE,
                "--%s means nothing for the steps as drawn; give --draw, --linked or "
                "--verify too",
                linking[i]);
    }
    for (size_t i = 0; show->schedule && i < sizeof built / sizeof *built; i++) {
        if (opts_is_set(opts, built[i])) {
            err_add(err, ERR_USAGE, "--%s is for building a schedule; %s is one already", built[i],
                    show->schedule);
        }
    }
    show->ranks_given = opts_is_set(opts, "ranks");
    check_export(show, opts, err);
    return err->count > 0 ? -1 : 0;
}

static struct sched *build_sched(const struct show *show, const struct coll *coll, struct err *err)
{
    const struct algo *algo =
        show->algo ? algo_find(coll->id, show->algo, err) : first_algo(coll->id);
    if (!algo) return NULL;
    struct algo_args args = {
        .nranks = (uint32_t)show->nranks,
        .root = (uint32_t)show->root,
        .channels = show->channels ? (uint32_t)show->channels : algo->channels,
        .parts = (uint32_t)show->parts,
    };
    if (args.root > 0 && !coll->rooted) {
        err_add(err, ERR_USAGE, "%s has no root: --root (-r) %u means nothing here", coll->name,
                args.root);
        return NULL;
    }
    uint32_t *nodes = NULL;
    if (show->nodes && algo_nodes_parse(show->nodes, &nodes, &args.nnodes, err)) return NULL;
    if (nodes && !show->ranks_given) args.nranks = (uint32_t)algo_nodes_ranks(nodes, args.nnodes);
    args.nodes = nodes;
    struct sched *sched = algo_build(algo, &args, show->unroll, err);
    free(nodes);
    return sched;
}

/* The schedule asked for, built or read. `coll` may be NULL: whatever the file says. */
static struct sched *make_sched(const struct show *show, const struct coll *coll, struct err *err)
{
    if (!show->schedule) return build_sched(show, coll, err);
    struct sched *sched = msccl_read(show->schedule, err);
    if (sched && coll && sched->coll != coll) {
        err_add(err, ERR_USAGE, "%s is a schedule of %s, not of %s", show->schedule,
                sched->coll->name, coll->name);
        sched_free(sched);
        return NULL;
    }
    return sched;
}

static int show_sched(struct show *show, const struct opts *opts, const struct coll *coll,
                      struct err *err)
{
    if (check_views(show, opts, err)) return -1;
    struct sched *sched = make_sched(show, coll, err);
    if (!sched) return -1;
    uint32_t rank = opts_is_set(opts, "rank") ? (uint32_t)show->rank : PRINT_ALL;
    int bad = 0;
    if (rank != PRINT_ALL && rank >= sched_ends(sched)) {
        bad =
            err_add(err, ERR_USAGE, "--rank %u: with %u ranks%s it is 0 to %u", rank, sched->nranks,
                    sched->nagents ? " and the agents behind them" : "", sched_ends(sched) - 1);
    }
    if (!bad && show->export) bad = export_sched(show, sched, err);
    if (!bad && !any_view(show) && !show->export) sched_print_table(stdout, sched, rank);
    if (!bad && (show->draw || show->linked)) bad = print_linked(show, sched, rank, err);
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
                  "and copies. With --schedule that of a file, whose OPERATION may be left out. "
                  "Nothing is run.",
                  rows);
    } else {
        const struct coll *coll = NULL;
        if (opts.npositionals > 1 || (opts.npositionals == 0 && !show.schedule)) {
            err_add(&err, ERR_USAGE, "takes one operation, %zu were given", opts.npositionals);
        } else if (opts.npositionals == 1) {
            coll = coll_find(opts.positionals[0], &err);
        }
        if (err.count == 0) show_sched(&show, &opts, coll, &err);
    }
    int status = (int)err.code;
    err_print(&err, "collbench schedule");
    err_release(&err);
    opts_release(&opts);
    return status;
}
