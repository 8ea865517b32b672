/* SPDX-License-Identifier: Apache-2.0
 * `commsim pipeline`: a pipeline schedule by itself. Each command returns an exit status. */
#pragma once

int pipeline_cmd(int argc, char **argv);
