/* SPDX-License-Identifier: Apache-2.0
 * What the control groups above this process (v1 or v2) leave of memory and processor time. A
 * system without control groups, or a namespace that hides them, sets no limit. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The whole of a file as a string, freed by the caller; NULL when it cannot be read. */
char *file_text(const char *path);

/* The number after `key` at the start of a line ("MemAvailable:", "inactive_file"), in the unit of
 * the file; `missing` when there is none. */
uint64_t text_field(const char *text, const char *key, uint64_t missing);

/* Bytes that the memory limits of every group from this process up to the top still allow:
 * the least of limit - (usage - inactive file cache), 0 when over it, SIZE_MAX when there is no
 * limit. /proc and the mounts are looked for below the directory `root` ("" outside tests). */
size_t cgroup_memory_free(const char *root);

/* Whole processors that the time quotas of those groups allow, at least 1; UINT32_MAX when there
 * is no quota. */
uint32_t cgroup_cpus(const char *root);
