/* SPDX-License-Identifier: Apache-2.0
 * A layer as the operators that a GPU runs: matrix products, attention, element-wise kernels, and
 * the collectives between them, in the order in which they are issued. One list per pass:
 *
 *   forward         norm, [tp gather], qkv, rope, [cp], attention, o, [tp scatter], norm, mlp ..
 *   backward of     the same backwards, each product as the gradient of its input, so that what
 *   the input       the layer before waits for comes first
 *   backward of     the gradients of the weights
 *   the weights
 *   both            what frameworks do that do not split: after each input's gradient its weight's
 *
 * Times of compute come from the constants (train/constants.h), those of collectives from fluid
 * jobs (net/fluid.h); recomputation is forward operators again at the head of a backward list. */
#pragma once

#include "net/fluid.h"
#include "train/constants.h"
#include "train/job.h"
#include "train/step.h"

enum op_lane { OP_COMPUTE, OP_TP, OP_CP, OP_EP, NOP_LANES };

enum pass { PASS_F, PASS_B, PASS_W, PASS_BW, NPASSES }; /* as enum pipeline_kind's first four */

enum layer_kind { LAYER_DENSE, LAYER_MOE, LAYER_EMBEDDING, LAYER_HEAD, NLAYER_KINDS };

struct op {
    const char *name; /* "qkv", "attention", "dispatch": static */
    uint8_t lane;     /* enum op_lane */
    uint8_t part;     /* enum step_part that its time counts as */
    uint32_t kernels; /* that the host issues for it; 0: it rides on another's */
    bool again;       /* recomputation */
    bool sync;        /* the host reads its result, and issues nothing before it has ended */
    int32_t after[2]; /* ops of this list that it waits for, beside the one before it on its own
                         lane; -1: none. What is on another lane must be named */
    double seconds;   /* compute alone; of a collective 0 */
    double flops;     /* executed, 0 for element-wise work; the backward of an attention counts
                         twice its forward */
    double peak;      /* FLOP/s, dense, of the unit that they run on; 0 */
    double bytes;     /* of memory traffic, or, of a collective, its (piece's) */
    uint64_t m, n, k, count; /* of matrix products; else 0 */
    const char *limit;       /* "compute", "memory", "launch", "network": static */
    struct fluid_call call;  /* of a collective: n > 1 */
    uint32_t pieces; /* the operator is one of so many of the call, steps of its ring: it takes that
                        share of its time and bytes; else 1 */
};

struct ops {
    struct op *list;
    uint32_t count, cap;
    uint32_t last; /* what is appended next goes on from this one's result */
};

/* Appends the operators of a pass over one layer. `layer`: its number, 0 .. layers - 1, which tells
 * windows apart; `place`: its number in its chunk, which tells recomputed blocks apart; both are
 * ignored by embedding and head. Lists appended to each other are one chain: the first operators of
 * a layer wait for `last` of what was there. Appends nothing where there is nothing to do (the
 * gradient of the embedding's input). Cannot fail. */
void ops_layer(struct ops *ops, const struct job *job, const struct constants *c,
               enum layer_kind kind, enum pass pass, uint32_t layer, uint32_t place);

/* The collectives of operators `from` and later are those of `span` ranks from `base` on
 * (fluid_call), where these are enough; else of the first that there are. */
void ops_place(struct ops *ops, uint32_t from, uint32_t base, uint32_t span);

/* Layers of one job with equal keys have equal lists. */
uint32_t ops_key(const struct job *job, enum layer_kind kind, uint32_t layer, uint32_t place);
void ops_release(struct ops *ops); /* leaves it empty */

/* Seconds that the host needs to issue one kernel of this job: 0 in a captured graph. */
double ops_issue_s(const struct job *job, const struct constants *c);

/* Seconds of so many bytes of memory traffic. */
double ops_traffic_s(const struct job *job, const struct constants *c, double bytes);

/* The optimizer's step over what this rank owns: seconds, by memory traffic. `owned` parameters
 * are updated, `held` weights are written again (ZeRO-1 and -2), 0: none. */
double ops_optimizer_s(const struct job *job, const struct constants *c, double owned, double held);
