/* SPDX-License-Identifier: Apache-2.0
 * collbench: the benchmark's command line. The first word is an operation or one of the commands
 * below; each has its own file. Called through a link with the name of an operation, as the
 * programs of nccl-tests are, it is that operation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opts.h"
#include "base/start.h"
#include "bench/compare_cmd.h"
#include "bench/gpu_cmd.h"
#include "bench/list.h"
#include "bench/p2p_cmd.h"
#include "bench/plot_cmd.h"
#include "bench/run.h"
#include "bench/schedule_cmd.h"
#include "bench/step_cmd.h"
#include "bench/topo_cmd.h"
#include "exec/foreign.h"
#include "exec/hosts.h"
#include "exec/launch.h"

static int run_list(int argc, char **argv, char **whole_argv)
{
    (void)whole_argv;
    return list_cmd(argc, argv);
}

static int run_schedule(int argc, char **argv, char **whole_argv)
{
    (void)whole_argv;
    return schedule_cmd(argc, argv);
}

static int run_compare(int argc, char **argv, char **whole_argv)
{
    (void)whole_argv;
    return compare_cmd(argc, argv);
}

static int run_plot(int argc, char **argv, char **whole_argv)
{
    (void)whole_argv;
    return plot_cmd(argc, argv);
}

static const struct {
    const char *name, *what;
    int (*run)(int argc, char **argv, char **whole_argv);
    bool once; /* it starts its ranks itself: copies that a launcher starts would each do so */
} commands[] = {
    {"list", "prints algorithms, wires, transports, types (also --list)", run_list, false},
    {"schedule", "prints, draws and verifies the schedule of an algorithm", run_schedule, false},
    {"compare", "compares two records: which rows became slower or faster", run_compare, false},
    {"plot", "draws records: time and bandwidth over size", run_plot, false},
    {"p2p", "measures latency and bandwidth of every pair of ranks", p2p_cmd, false},
    {"topo", "shows this machine's processors, GPUs, NICs and links", topo_here_cmd, true},
    {"bench-step", "measures what the executor costs per step", step_cmd, true},
    {"bench-gpu", "measures a GPU: kernels, launches, virtual ranks", gpu_cmd, true},
};

enum { NCOMMANDS = sizeof commands / sizeof *commands };

static int help(FILE *to)
{
    fprintf(to, "Usage: collbench OPERATION [options]    (a link named OPERATION needs no word)\n"
                "       collbench COMMAND [options]\n"
                "Runs hand-written collectives between ranks on this machine, checks and measures "
                "them.\n\nOperations (the names of nccl-tests are understood too)\n");
    for (int id = 0; id < COLL_COUNT; id++) {
        const struct coll *coll = coll_get((enum coll_id)id);
        fprintf(to, "  %-26s%s\n", coll->name, coll->promise);
    }
    fprintf(to, "\nCommands\n");
    for (size_t i = 0; i < NCOMMANDS; i++)
        fprintf(to, "  %-26s%s\n", commands[i].name, commands[i].what);
    fprintf(to,
            "\n  %-26s%s\n  %-26s%s\n\ncollbench WORD --help explains an operation or command.\n",
            "--help, -h", "print this and exit", "--version", "print the version and exit");
    return 0;
}

/* No operation and no command. */
static int unknown(const char *word)
{
    const char *names[COLL_COUNT + NCOMMANDS + 3] = {0};
    size_t count = 0;
    for (int id = 0; id < COLL_COUNT; id++)
        names[count++] = coll_get((enum coll_id)id)->name;
    for (size_t i = 0; i < NCOMMANDS; i++)
        names[count++] = commands[i].name;
    names[count++] = "--help";
    names[count++] = "--version";
    struct err err = ERR_INIT;
    opts_unknown(&err, "operation or command", word, names);
    err_print(&err, "collbench");
    err_release(&err);
    return ERR_USAGE;
}

/* The operation of that name, or NULL. */
static const struct coll *operation(const char *name)
{
    struct err none = ERR_INIT;
    const struct coll *coll = coll_find(name, &none);
    err_release(&none);
    return coll;
}

static int print_version(int nmore, char **more)
{
    if (nmore == 0) return version_print();
    fprintf(stderr, "collbench: --version takes no words, \"%s\" was given\n", more[0]);
    return ERR_USAGE;
}

/* Two tables instead of one would come out of copies. */
static int refuse_copies(const char *name)
{
    struct foreign foreign;
    struct err err = ERR_INIT;
    if (!foreign_read(&foreign, &err) && foreign.name)
        err_add(&err, ERR_USAGE,
                "%s has started %u copies of collbench %s, which starts its ranks itself: run it "
                "once, without that launcher",
                foreign.name, foreign.size, name);
    int status = (int)err.code;
    err_print(&err, "collbench");
    err_release(&err);
    foreign_release(&foreign);
    return status;
}

static int dispatch(int argc, char **argv)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *program = slash ? slash + 1 : argc > 0 ? argv[0] : "";
    const struct coll *coll = operation(program); /* called through a link of that name */
    if (coll) return run_cmd(coll, argc, argv, argv);
    size_t length = strlen(program);
    bool peer = strncmp(program, "osu_", 4) == 0 ||
                (length > 5 && strcmp(program + length - 5, "_perf") == 0);
    if (peer) return unknown(program); /* a link named after a program that has no counterpart */
    if (argc < 2) {
        help(stderr);
        return ERR_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return help(stdout);
    if (strcmp(word, "--version") == 0) return print_version(argc - 2, argv + 2);
    if (strcmp(word, "--list") == 0) word = "list";
    if (strcmp(word, "agent") == 0 && argc == 3) return agent_main(argv[2]); /* by --hosts alone */
    for (size_t i = 0; i < NCOMMANDS; i++) {
        if (strcmp(commands[i].name, word) != 0) continue;
        int status = commands[i].once ? refuse_copies(word) : 0;
        return status ? status : commands[i].run(argc - 1, argv + 1, argv);
    }
    coll = operation(word);
    return coll ? run_cmd(coll, argc - 1, argv + 1, argv) : unknown(word);
}

int main(int argc, char **argv)
{
    program_start();
    launch_wrap();
    return program_end("collbench", dispatch(argc, argv));
}
