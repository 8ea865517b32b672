/* SPDX-License-Identifier: Apache-2.0
 * collbench: the benchmark's command line. The first word is an operation or one of the commands
 * below; each has its own file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opts.h"
#include "base/start.h"
#include "bench/list.h"
#include "bench/run.h"
#include "bench/schedule_cmd.h"
#include "bench/step_cmd.h"

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

static const struct {
    const char *name, *what;
    int (*run)(int argc, char **argv, char **whole_argv);
} commands[] = {
    {"list", "prints algorithms, wires, transports, types (also --list)", run_list},
    {"schedule", "prints, draws and verifies the schedule of an algorithm", run_schedule},
    {"bench-step", "measures what the executor costs per step", step_cmd},
};

enum { NCOMMANDS = sizeof commands / sizeof *commands };

static int help(FILE *to)
{
    fprintf(to, "Usage: collbench OPERATION [options]\n"
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

int main(int argc, char **argv)
{
    program_start();
    if (argc < 2) {
        help(stderr);
        return ERR_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return help(stdout);
    if (strcmp(word, "--version") == 0) {
        printf("collbench %s\n", COLLBENCH_VERSION);
        return 0;
    }
    if (strcmp(word, "--list") == 0) word = "list";
    for (size_t i = 0; i < NCOMMANDS; i++) {
        if (strcmp(commands[i].name, word) == 0) return commands[i].run(argc - 1, argv + 1, argv);
    }
    struct err none = ERR_INIT;
    const struct coll *coll = coll_find(word, &none);
    err_release(&none);
    return coll ? run_cmd(coll, argc - 1, argv + 1, argv) : unknown(word);
}
