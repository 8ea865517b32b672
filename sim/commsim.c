/* SPDX-License-Identifier: Apache-2.0
 * commsim: the simulator's command line. Each subcommand is one row here and one file elsewhere. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/opts.h"
#include "base/start.h"
#include "net/bench_cmd.h"
#include "net/coll_cmd.h"
#include "net/goal_cmd.h"
#include "net/topo_cmd.h"
#include "train/compare_cmd.h"
#include "train/model.h"
#include "train/pipeline_cmd.h"
#include "train/step_cmd.h"
#include "train/validate_cmd.h"

static const struct {
    const char *name, *what;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"coll", "simulates a collective on a cluster or on one switch", coll_cmd},
    {"bench", "how fast the network engine is, and how much memory it takes", bench_cmd},
    {"topo", "shows, checks, converts and draws machines and clusters", topo_cmd},
    {"goal", "times a schedule given as GOAL text", goal_cmd},
    {"step", "memory and time of a training step (the same without the word)", step_cmd},
    {"pipeline", "a pipeline schedule by itself: bubble, activations in flight, picture",
     pipeline_cmd},
    {"model", "shape and exact parameter counts of a model", model_cmd},
    {"compare", "clusters and strategies side by side, as a table and a picture", compare_cmd},
    {"memory", "memory per GPU of a training job", memory_cmd},
    {"validate", "scores predictions against published runs", validate_cmd},
    {"constants", "lists the constants of the model and their sources", constants_cmd},
    {"fit", "fits the constants to tables of measurements", fit_cmd},
};

enum { NCOMMANDS = sizeof commands / sizeof *commands };

static int help(FILE *to)
{
    fprintf(to,
            "Usage: commsim --topo CLUSTER [--strategy WORDS] [options]\n"
            "       commsim COMMAND [options]\n"
            "Predicts memory, time and communication of training on a cluster: will it fit, how "
            "fast is it,\nwhat limits it.\n\nCommands\n");
    for (size_t i = 0; i < NCOMMANDS; i++) {
        fprintf(to, "  %-26s%s\n", commands[i].name, commands[i].what);
    }
    fprintf(to, "\n  %-26s%s\n  %-26s%s\n\ncommsim COMMAND --help explains a command.\n",
            "--help, -h", "print this and exit", "--version", "print the version and exit");
    return 0;
}

static int unknown(const char *word)
{
    const char *names[NCOMMANDS + 3] = {0};
    for (size_t i = 0; i < NCOMMANDS; i++) {
        names[i] = commands[i].name;
    }
    names[NCOMMANDS] = "--help";
    names[NCOMMANDS + 1] = "--version";
    struct err err = ERR_INIT;
    opts_unknown(&err, "command", word, names);
    err_print(&err, "commsim");
    err_release(&err);
    return ERR_USAGE;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return ERR_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return help(stdout);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("commsim %s\n", COMMSIM_VERSION);
        return 0;
    }
    for (size_t i = 0; i < NCOMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    if (argv[1][0] == '-') return step_cmd(argc, argv); /* options alone: a prediction */
    return unknown(argv[1]);
}

int main(int argc, char **argv)
{
    program_start();
    return program_end("commsim", dispatch(argc, argv));
}
