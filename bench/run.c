/* SPDX-License-Identifier: Apache-2.0
 * The parent's side of a run: options -> plan -> memory -> ranks -> rows. It measures nothing. */
#include "bench/run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/progress.h"
#include "bench/across.h"
#include "bench/board.h"
#include "bench/clock.h"
#include "bench/fit.h"
#include "bench/header.h"
#include "bench/links.h"
#include "bench/list.h"
#include "bench/measure.h"
#include "bench/opponent.h"
#include "bench/options.h"
#include "bench/repeat.h"
#include "bench/rows.h"
#include "bench/trace.h"
#include "exec/launch.h"
#include "exec/place.h"
#include "sched/table.h"

/* What a run needs besides the plan. */
struct setting {
    const struct request *request;
    const struct fitted *fitted;
    struct across *across; /* --hosts */
    struct links links;
    struct place *place;
    struct opponent_setup opponent; /* --vs */
    char **argv;                    /* the whole command line */
    int argc;
    char **words; /* .. as the ranks get it: freed by the owner, its words are borrowed */
};

struct run {
    const struct setting *setting;
    struct plan *plan;
    struct world *world; /* of the launch at hand */
    struct err *err;
    struct outputs outputs;
    struct rows *rows;
    struct footer footer;
    struct traced traced;   /* MODE_TRACE */
    struct repeats repeats; /* MODE_REPEAT */
    struct progress progress;
    uint64_t done; /* rows of this launch */
    bool unread;   /* the reader of stdout went away, so the run was ended */
    int signal;    /* that ended the run from outside; 0: none */
};

/* ---- outputs ---- */

/* Two outputs in one place: the second would overwrite the first. The first one is there. */
static int check_same(const char *first, const char *second, struct err *err)
{
    struct stat one, other;
    if (!first || !second) return 0;
    if (strcmp(first, "-") == 0 && strcmp(second, "-") == 0)
        return err_add(err, ERR_USAGE, "two outputs go to stdout; give one of them a file");
    bool same = stat(first, &one) == 0 && stat(second, &other) == 0 && S_ISREG(one.st_mode) &&
                one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    if (!same) return 0;
    return err_add(err, ERR_USAGE, "two outputs name one file: %s and %s; give each its own", first,
                   second);
}

static int open_outputs(struct run *run, struct err *err)
{
    const struct request *request = run->setting->request;
    const struct plan *plan = run->plan;
    static const unsigned shows[] = {
        [CONTEST_NONE] = 0,
        [CONTEST_MPI] = TABLE_CONTEST,
        [CONTEST_NCCL] = TABLE_CONTEST,
        [CONTEST_GROUPS] = TABLE_CONTEST,
        [CONTEST_OVERLAP] = TABLE_CONTEST | TABLE_OVERLAP,
        [CONTEST_SKEW] = TABLE_CONTEST | TABLE_WAIT,
    };
    unsigned show =
        TABLE_SURE | shows[plan->contest] | (plan->device ? TABLE_GPU : 0) |
        (plan->launches != 1 ? TABLE_LAUNCH : 0) |
        (request->timestamps || request->timestamp || request->soak_s > 0 ? TABLE_TIME : 0);
    bool repeat = plan->mode == MODE_REPEAT; /* a table of its own */
    run->outputs = (struct outputs){
        .record = repeat ? repeat_table() : table_new(0),
        .sheet = repeat ? repeat_table() : table_new(0),
        .text = repeat ? repeat_table() : format_new((enum format)request->format, plan, show),
        .format = (enum format)request->format,
    };
    bool dash = false;
    int bad = 0;
    if (request->json) {
        dash = strcmp(request->json, "-") == 0;
        bad |=
            out_add(run->outputs.record, OUT_FORMAT_JSON, request->json, request->overwrite, err);
    }
    bad |= check_same(request->json, request->csv, err);
    if (request->csv && !bad) {
        dash = dash || strcmp(request->csv, "-") == 0;
        bad |= out_add(run->outputs.sheet, OUT_FORMAT_CSV, request->csv, request->overwrite, err);
    }
    if (!dash) bad |= out_add(run->outputs.text, OUT_FORMAT_TEXT, NULL, request->overwrite, err);
    bad |= check_same(request->json, request->trace, err) |
           check_same(request->csv, request->trace, err);
    if (!bad && plan->mode == MODE_TRACE)
        bad = traced_open(&run->traced, plan, request->trace, request->overwrite, err);
    return bad;
}

static bool reader_gone(const struct run *run)
{
    return out_reader_gone(run->outputs.record) || out_reader_gone(run->outputs.sheet) ||
           out_reader_gone(run->outputs.text);
}

static void close_outputs(struct run *run, struct err *err)
{
    out_close(run->outputs.record, err);
    out_close(run->outputs.sheet, err);
    out_close(run->outputs.text, err);
}

/* ---- a launch ---- */

static void take_facts(struct run *run, const struct facts *facts)
{
    header_facts(run->outputs.record, facts);
    across_note_addresses(run->world, run->outputs.record);
    if (run->outputs.format == FORMAT_OWN) across_note_addresses(run->world, run->outputs.text);
    format_facts(run->outputs.text, run->outputs.format, run->plan, run->world, facts);
}

static void take_repeated(struct run *run, const struct repeated *repeated)
{
    repeat_take(&run->repeats, repeated, run->err);
    repeat_row(run->outputs.record, repeated);
    repeat_row(run->outputs.sheet, repeated);
    repeat_row(run->outputs.text, repeated);
}

static void on_message(void *ctx, uint32_t rank, const void *bytes, size_t length)
{
    struct run *run = ctx;
    struct message message;
    if (length != sizeof message) return;
    memcpy(&message, bytes, sizeof message);
    if (run->plan->mode == MODE_TRACE) traced_take(&run->traced, &message);
    if (rank != 0 || message.kind == MESSAGE_STEPS) return;
    if (message.kind == MESSAGE_REPEATED) {
        progress_clear(&run->progress);
        take_repeated(run, &message.u.repeated);
    } else if (message.kind == MESSAGE_FACTS) {
        if (run->plan->launch == 1) take_facts(run, &message.u.facts);
    } else {
        progress_clear(&run->progress);
        if (rows_take(run->rows, &message)) progress_step(&run->progress, ++run->done, NULL);
    }
    if (!run->unread && reader_gone(run)) {
        run->unread = true;
        raise(SIGTERM); /* to launch_run, which ends the ranks */
    }
}

/* Starts the ranks once and prints what they send. */
static void launch(struct run *run)
{
    const struct setting *setting = run->setting;
    struct hosts *hosts = setting->across->hosts;
    struct world_spec memory = setting->fitted->spec;
    if (hosts) {
        memory.token = hosts_token(hosts);
        memory.machine_ranks = across_machine_ranks(setting->across, 0);
    }
    run->world = world_create(&memory, run->err);
    run->footer.failed = true;
    if (!run->world) return;
    board_init(run->world, run->plan);
    struct launch_spec spec = {
        .prog = "collbench",
        .argv = setting->words,
        .world = run->world,
        .place = setting->place,
        .threads = run->plan->threads,
        .timeout_s = setting->request->timeout_s,
        .on_message = on_message,
        .ctx = run,
        .interrupted = &run->signal,
        .hosts = hosts,
        .bind = (enum bind)setting->request->bind,
        .blob_used = run->plan->bytes,
    };
    opponent_launch(&setting->opponent, &spec);
    run->done = 0;
    progress_init(&run->progress, coll_get(run->plan->coll)->name, plan_rows(run->plan));
    struct err launch_err = ERR_INIT;
    run->footer.failed = launch_run(&spec, &launch_err) != 0;
    if (run->unread) {
        err_release(&launch_err); /* nobody but us ended it */
    } else {
        err_move(run->err, &launch_err);
    }
    progress_clear(&run->progress);
    rows_end_launch(run->rows);
    world_close(run->world);
}

/* All launches: as many as asked for, or until the time is over. */
static void launch_all(struct run *run)
{
    double soak_s = run->setting->request->soak_s;
    uint64_t start = clock_ns(), launches = run->plan->launches;
    for (run->plan->launch = 1;; run->plan->launch++) {
        launch(run);
        if (!run->signal) run->signal = launch_signal_pending(); /* between two launches */
        if (run->footer.failed || run->signal) break;
        if (launches && run->plan->launch >= launches) break;
        if (!launches && soak_s > 0 && (double)(clock_ns() - start) / 1e9 >= soak_s) break;
    }
    rows_over_launches(run->rows);
}

/* What was found out after the plan was made. */
static void note_setting(const struct run *run)
{
    const struct setting *setting = run->setting;
    const char *const *warnings;
    size_t count = place_warnings(setting->place, &warnings);
    across_note(setting->across, run->outputs.record);
    links_note(&setting->links, setting->across->hosts, run->outputs.record);
    if (run->outputs.format == FORMAT_OWN) {
        across_note(setting->across, run->outputs.text);
        links_note(&setting->links, setting->across->hosts, run->outputs.text);
    }
    header_place(run->outputs.record, setting->place);
    if (run->outputs.format == FORMAT_OWN) header_place(run->outputs.text, setting->place);
    opponent_note(&setting->opponent, run->plan, &run->outputs);
    for (size_t i = 0; i < count; i++)
        outputs_note(&run->outputs, "WARNING: %s", warnings[i]);
}

/* The end of a run that traced or repeated. */
static void end_mode(struct run *run, bool failed, struct err *err)
{
    struct out *outs[] = {run->outputs.record, run->outputs.sheet, run->outputs.text};
    char *command = header_command(run->setting->argc, run->setting->argv);
    bool traced = run->plan->mode == MODE_TRACE &&
                  traced_write(&run->traced, command, failed, err) == 0 && !failed;
    free(command);
    for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
        if (traced) traced_note(&run->traced, outs[i]);
        if (run->plan->mode == MODE_REPEAT) repeat_note(&run->repeats, outs[i], failed);
    }
}

/* The signal that ended the run from outside, SIGPIPE when the reader of stdout went away; 0: none.
 */
static int run_plan(const struct setting *setting, struct err *err)
{
    signal(SIGPIPE, SIG_IGN); /* writing says it too, and files are completed */
    launch_block_signals();
    const struct fitted *fitted = setting->fitted;
    struct run run = {.setting = setting, .plan = fitted->plan, .err = err};
    if (open_outputs(&run, err) == 0) {
        run.rows = rows_new(run.plan, &run.outputs, err);
        header_plan(run.outputs.record, fitted, setting->argc, setting->argv);
        format_preamble(run.outputs.text, run.outputs.format, fitted, setting->argc, setting->argv);
        note_setting(&run);
        if (run.plan->mode == MODE_REPEAT) {
            repeat_header(run.outputs.record, run.plan);
            repeat_header(run.outputs.text, run.plan);
        }
        bool failed = true; /* until the ranks have come to their end */
        if (!reader_gone(&run)) {
            launch_all(&run);
            failed = run.footer.failed;
        }
        run.footer = *rows_footer(run.rows);
        run.footer.failed = failed;
        if (run.plan->mode != MODE_REPEAT) {
            header_footer(run.outputs.record, &run.footer);
            format_footer(run.outputs.text, run.outputs.format, run.plan, &run.footer);
        }
        end_mode(&run, failed, err);
    }
    int ended = reader_gone(&run) ? SIGPIPE : run.signal;
    close_outputs(&run, err);
    rows_free(run.rows);
    traced_release(&run.traced);
    repeats_release(&run.repeats);
    return ended;
}

/* ---- the command ---- */

static int verify(const struct fitted *fitted, struct err *err)
{
    if (fitted->plan->nranks > READY_VERIFY_RANKS && !fitted->plan->drawn_at) return 0;
    for (size_t i = 0; i < fitted->ready.count; i++) {
        if (ready_verify(&fitted->ready.items[i], err)) return -1;
    }
    return 0;
}

/* What the plan needs from outside: cores, a library. */
static int prepare(struct setting *setting, struct err *err)
{
    const struct request *request = setting->request;
    const struct plan *plan = setting->fitted->plan;
    if (format_check((enum format)request->format, plan, err)) return -1;
    if (opponent_find(&setting->opponent, request, plan, err)) return -1;
    setting->links = links_count(setting->fitted);
    if (links_check(&setting->links, setting->fitted, setting->across->hosts, err)) return -1;
    if (across_open(setting->across, request, err)) return -1;
    if (links_check(&setting->links, setting->fitted, setting->across->hosts, err)) return -1;
    uint32_t here = across_machine_ranks(setting->across, plan_world(plan));
    setting->place = place_plan((enum bind)request->bind, here);
    return 0;
}

/* The ranks' command line names the operation, which the name of a link may have said: a launcher
 * starts the program by another name. Ranks look at no other word. */
static char **rank_words(const struct coll *coll, char **argv, int argc)
{
    char **words = mem_calloc((size_t)argc + 2, sizeof *words);
    words[0] = argv[0];
    words[1] = (char *)(uintptr_t)coll->name;
    memcpy(words + 2, argv + 1, (size_t)argc * sizeof *words); /* with the NULL */
    return words;
}

/* A run from its options; the signal that ended it, or 0. */
static int run_request(struct request *request, struct opts *opts, const struct coll *coll,
                       const struct foreign *foreign, char **argv, struct err *err)
{
    struct fitted fitted = {0};
    struct across across;
    struct setting setting = {
        .request = request, .fitted = &fitted, .across = &across, .argv = argv};
    int ended = 0;
    while (argv[setting.argc])
        setting.argc++;
    setting.words = rank_words(coll, argv, setting.argc);
    int bad = foreign->name ? across_copies(&across, foreign, request, opts, argv, err)
                            : across_read(&across, request, opts, err);
    if (!bad && !fit(request, opts, coll, &fitted, err) && !verify(&fitted, err) &&
        !prepare(&setting, err)) {
        ended = run_plan(&setting, err);
    } else {
        ended = launch_signal_pending(); /* while hosts were started */
    }
    across_close(&across, ended ? 128 + ended : (int)err->code);
    free(request->host_groups);
    free(setting.words);
    place_free(setting.place);
    opponent_setup_release(&setting.opponent);
    fitted_release(&fitted);
    return ended;
}

/* Flags of OSU's programs that mean something else here: under their names nobody must guess. */
static int refuse_osu_flags(char **argv, struct err *err)
{
    static const struct {
        char letter;
        const char *theirs, *ours;
    } flags[] = {
        {'m', "the message sizes, here --minbytes and --maxbytes", "--agg_iters"},
        {'i', "the iterations, here --iters", "--stepbytes"},
        {'f', "all columns, which are always there", "--stepfactor"},
        {'c', "the data check without a number, here --check 1", "--check N"},
        {'d', "whose memory the buffers lie in, here --memory", "--datatype"},
    };
    int bad = 0;
    for (char **word = argv + 1; *word; word++) {
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
            if ((*word)[0] != '-' || (*word)[1] != flags[i].letter) continue;
            bad = err_add(err, ERR_USAGE,
                          "-%c of OSU's programs is %s; for ours, %s, write the long name",
                          flags[i].letter, flags[i].theirs, flags[i].ours);
        }
    }
    return bad;
}

int run_cmd(const struct coll *coll, int argc, char **argv, char **whole_argv)
{
    if (launch_is_child()) return launch_child(measure_rank);
    struct request request;
    struct opts opts;
    struct foreign foreign;
    struct err err = ERR_INIT, kernels_err = ERR_INIT;
    int bad = request_parse(&request, &opts, argc, argv, &err);
    int ended = 0;
    if (!opts_is_set(&opts, "format")) request.format = format_of_program(whole_argv[0]);
    if (opts.help) {
        request_help(stdout, coll);
    } else if (!bad && request.version) {
        version_print();
    } else if (!bad && request.list) {
        list_cmd(1, argv);
    } else {
        if (!kernels_get(&kernels_err)) bad |= err_move(&err, &kernels_err);
        int torn = foreign_read(&foreign, &err); /* copies that cannot tell who they are */
        bad |= torn;
        if (format_of_program(whole_argv[0]) == FORMAT_OSU) bad |= refuse_osu_flags(argv, &err);
        bool follows = !torn && foreign.name && foreign.rank > 0;
        /* faults of words that only the plan can find come in the same go */
        if (follows) { /* copy 0 speaks for all */
            int status = bad ? (int)err.code
                             : foreign_follow(&foreign, whole_argv, across_patience_s(&request));
            foreign_release(&foreign);
            opts_release(&opts);
            err_release(&err);
            return status;
        }
        if (bad) {
            free(request_plan(&request, &opts, coll, UINT32_MAX, &err));
        } else {
            ended = run_request(&request, &opts, coll, &foreign, whole_argv, &err);
        }
        foreign_release(&foreign);
    }
    opts_release(&opts);
    bool quiet = ended == SIGPIPE && err.count > 0;             /* a fault came first */
    int status = ended && !quiet ? 128 + ended : (int)err.code; /* as shells count */
    err_print(&err, "collbench");
    err_release(&err);
    return status;
}
