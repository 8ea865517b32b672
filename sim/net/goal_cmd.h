/* SPDX-License-Identifier: Apache-2.0
 * `commsim goal FILE`: times a schedule that is given as GOAL text. */
#pragma once

int goal_cmd(int argc, char **argv);
