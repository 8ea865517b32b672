/* SPDX-License-Identifier: Apache-2.0
 * A training framework's own configuration in place of --strategy: Megatron-LM arguments,
 * DeepSpeed's JSON, torchtitan's TOML or flags, accelerate's YAML for FSDP; and the way back, a
 * command or file for a strategy. One row per format; each fills a struct strategy_args, so that
 * nothing behind it knows where a strategy came from. */
#pragma once

#include <stdio.h>

#include "base/opts.h"
#include "train/config_file.h"
#include "train/plan.h"

struct config_format;

/* A figure of the model that stands in a configuration by itself. */
struct config_claim {
    const char *key; /* of its item */
    size_t offset;   /* in struct model */
    bool flag;       /* a bool there, else uint64_t */
    uint64_t value;
};

/* What a configuration says. Zeroed: none. */
struct config {
    const struct config_format *format; /* NULL: none was given */
    struct config_items items;
    struct strategy_args args; /* strings lie in `items` or `owned`, or are constants */
    struct model shape;        /* filled as for model_build, if `has_shape` */
    bool has_shape;
    const char *model;              /* name of a preset; NULL: not named */
    uint64_t hosts, per_host, gpus; /* as stated; 0: not */
    uint64_t recompute_every;    /* every n-th layer is recomputed; 0: recomputation is in `args` */
    bool derive_batch;           /* micro-batch follows from global batch, accumulation and ranks */
    struct config_claim *claims; /* where it does not have all of a shape */
    size_t nclaims, claims_cap;
    const char *lacks;       /* the sentence where some of the shape's main figures are there */
    uint64_t offload_layers; /* so many layers' activations go to the host; 0: see `args` */
    bool host_checkpoints;   /* inputs of layers that are recomputed go to the host */
    uint64_t usual_micro, usual_accumulation; /* where nothing else is said; 0: none */
    char **owned;
    size_t nowned;
};

/* How one framework's configuration is read and written. */
struct config_format {
    const char *option;    /* "megatron-args" */
    const char *emit;      /* name of --emit */
    const char *framework; /* row of the table of frameworks that it is for */
    int (*scan)(struct config_items *items, const char *name, const char *text, struct err *err);
    const struct config_word *words;
    size_t bytes; /* of the struct that the words fill */
    /* From that struct to `config`; contradictions are sentences. */
    int (*translate)(struct config *config, void *said, struct err *err);
    void (*write)(FILE *to, const struct plan *plan);
    const char *const *unmodelled; /* keys that change time or memory all the same; ends in NULL */
    const char *const *beside; /* options of strategy_rows that it has no word for; ends in NULL */
    bool names_model;          /* it names a preset; else it has the shape, or says nothing */
    bool features_beside;      /* features belong to the training script, not to this file */
    bool inline_text;          /* the option's value may be the text itself; @FILE is a file */
};

extern const struct config_format config_megatron, config_deepspeed, config_torchtitan,
    config_accelerate;

enum { NCONFIGS = 4 };

/* Values of --megatron-args, --deepspeed, --torchtitan, --accelerate, in this order; NULL where not
 * given. */
struct config_args {
    const char *text[NCONFIGS];
};

/* Names of --emit, ended by NULL. */
extern const char *const config_emit_names[];

/* Reads the one that is given (two are a fault). Returns 0, or -1 with all faults. config_release
 * in either case. */
int config_read(struct config *config, const struct config_args *args, struct err *err);
void config_release(struct config *config);

/* Reads a text in that format into `config` (zeroed); `name`: how the user knows it, "--OPTION" for
 * the option's own value. Returns 0, or -1 with all faults. config_release in either case. */
int config_parse(struct config *config, const struct config_format *format, const char *name,
                 const char *text, struct err *err);

/* Puts it beside what else the user said (`opts` has parsed into `args`): an option, a word of
 * --strategy or a model that contradicts it is a fault of one sentence; so is a number of GPUs that
 * the cluster does not have. --framework and --feature go over what the configuration implies.
 * args->shape is set where it holds a whole model and --model is not given. `config` must outlive
 * `args` and `opts`. Returns 0 or -1. */
int config_apply(struct config *config, struct plan_args *args, const struct opts *opts,
                 const struct tables *tables, struct err *err);

/* The sentence on what was not read: what has a bearing on time or memory although it is not
 * `modelled`, or all the rest; NULL if there is none. Freed by the caller. */
char *config_note(const struct config *config, bool modelled);

/* The framework whose configuration --emit number `emit` is. */
const char *config_emit_framework(unsigned emit);

/* Writes a plan, whose model the user calls `model`, in the format of --emit number `emit` to `to`,
 * and to `beside` one line on what must be said beside it, if anything. What is written is read
 * back first: whatever would then differ from the plan is a sentence (ERR_USAGE), and nothing is
 * written. Returns 0 or -1. */
int config_write(unsigned emit, const struct plan *plan, const char *model,
                 const struct tables *tables, FILE *to, FILE *beside, struct err *err);

/* ---- for the formats ---- */

/* A text that lives as long as the configuration; takes it. */
const char *config_own(struct config *config, char *text);

/* Adds "NAME=VALUE" as by --feature. */
void config_feature(struct config *config, const char *name, const char *value);

/* The text of a file that --`option` names; NULL with a sentence. Freed by the caller. */
char *config_read_file(const char *option, const char *path, struct err *err);

/* Notes a claim; `offset` is that of a bool or uint64_t in struct model. */
void config_claim(struct config *config, const char *key, size_t offset, bool flag, uint64_t value);

/* Of two names of one thing the one that is said, `key` if neither is. */
const char *config_either(const struct config *config, const char *key, const char *other);

/* Adds the sentence for two items that exclude each other. Returns -1. */
int config_contradiction(const struct config *config, const char *key, const char *other,
                         const char *why, struct err *err);

/* A set of OFFLOAD_ in the words of --offload; "" for none. Freed by the caller. */
char *config_offload_text(unsigned offload);

/* The value of a feature of a plan as text, in `buf` of UNITS_TEXT bytes. */
const char *config_value(const struct plan *plan, const char *feature, char *buf);
bool config_is(const struct plan *plan, const char *feature, const char *value);
