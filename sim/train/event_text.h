/* SPDX-License-Identifier: Apache-2.0
 * What the event engine adds to the answer of the bare command: the stage that others wait for, the
 * changes that would help, what a rank sends; and these as tables. */
#pragma once

#include "train/step_text.h"

/* Sentences: the slowest stage, advice, traffic. answer->event is not NULL. */
void event_text_notes(struct out *out, const struct answer *answer);

/* The tables stages, traffic, advice, behind the rows of the breakdown. */
void event_text_tables(struct out *out, const struct answer *answer);
