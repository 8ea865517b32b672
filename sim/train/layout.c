/* SPDX-License-Identifier: Apache-2.0
 * Which layers run where: deals the layers of a model over the chunks of a pipeline. */
#include <string.h>

#include "train/strategy.h"

/* Deals `layers` over `n` places, the fuller ones first; place i is to[i * step]. */
static void deal_even(uint64_t layers, uint64_t n, uint64_t *to, uint64_t step)
{
    for (uint64_t i = 0; i < n; i++)
        to[i * step] = layers / n + (i < layers % n);
}

/* First or last stage given: they hold what was said, the stages between share the rest. */
static void deal_ends(const struct layout_args *args, uint64_t *layout)
{
    uint64_t pp = args->pp, vpp = args->vpp;
    uint64_t from = args->first != 0, to = pp - (args->last != 0 && pp > from);
    uint64_t ends = args->first + args->last;
    uint64_t rest = args->layers > ends ? args->layers - ends : 0;
    for (uint64_t chunk = 0, n = vpp * (to - from), i = 0; chunk < vpp; chunk++)
        for (uint64_t stage = from; stage < to; stage++, i++)
            layout[chunk * pp + stage] = rest / n + (i < rest % n);
    if (args->first) deal_even(args->first, vpp, layout, pp);
    if (args->last && pp > from) deal_even(args->last, vpp, layout + pp - 1, pp);
}

/* Takes one layer from the first chunk of `stage` that has one, trying them from `chunk` on. */
static bool take(const struct layout_args *args, uint64_t *layout, uint64_t stage, uint64_t chunk)
{
    for (uint64_t i = 0; i < args->vpp; i++) {
        uint64_t *at = &layout[(chunk + i) % args->vpp * args->pp + stage];
        if (*at) {
            --*at;
            return true;
        }
    }
    return false;
}

/* Takes `surplus` layers from last and first stage in turn; false if they have not enough. */
static bool take_from_ends(const struct layout_args *args, uint64_t *layout, uint64_t surplus)
{
    for (uint64_t i = 0; i < surplus; i++) {
        uint64_t turn = i / 2 % args->vpp;
        uint64_t chunk = i % 2 ? turn : args->vpp - 1 - turn;
        uint64_t stage = i % 2 ? 0 : args->pp - 1;
        if (!take(args, layout, stage, chunk) && !take(args, layout, args->pp - 1 - stage, chunk))
            return false;
    }
    return true;
}

void strategy_layout(const struct layout_args *args, uint64_t *layout)
{
    uint64_t n = args->pp * args->vpp, extra = (uint64_t)args->embedding + args->loss;
    if (args->first || args->last) {
        deal_ends(args, layout);
        return;
    }
    uint64_t c = (args->layers + extra + n - 1) / n;
    for (uint64_t i = 0; i < n; i++)
        layout[i] = c;
    layout[0] -= args->embedding;
    layout[n - 1] -= args->loss;
    if (!take_from_ends(args, layout, n * c - extra - args->layers))
        deal_even(args->layers, n, layout, 1);
}

uint64_t strategy_stage_layers(const struct strategy *strategy, uint64_t stage)
{
    uint64_t layers = 0;
    for (uint64_t i = stage; i < strategy->nlayout; i += strategy->pp)
        layers += strategy->layout[i];
    return layers;
}
