/* SPDX-License-Identifier: Apache-2.0
 * The results of several launches: one result for all of them, with an interval from how much their
 * medians scatter, and an alarm when a row drifts away from what it was. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sched/coll.h"

struct history;

struct history *history_new(void);
void history_free(struct history *history);

/* Takes in a row's result of one launch. From the HISTORY_ALARM_FROM-th launch on: a sentence
 * (freed by the caller) when its median is more than 10 % and more than five median absolute
 * deviations away from the median of the launches before; else NULL. */
enum { HISTORY_ALARM_FROM = 4 };
char *history_take(struct history *history, uint64_t row, unsigned series,
                   const struct result *result);

/* Rows taken in so far: numbers below this. */
uint64_t history_rows(const struct history *history);

/* A row's result over all launches: launch 0; least and largest of all, medians over the launches
 * of the percentiles, of p50 with the t interval of the launches (see estimate_launches), the mean
 * of the means. False when there is none of that row, series and placement. */
bool history_over(const struct history *history, uint64_t row, unsigned series, bool in_place,
                  struct result *over);
