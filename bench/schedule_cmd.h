/* SPDX-License-Identifier: Apache-2.0
 * `collbench schedule OPERATION`: shows and verifies schedules without running them. */
#pragma once

int schedule_cmd(int argc, char **argv);
