/* SPDX-License-Identifier: Apache-2.0
 * Numbers with units, both ways. In sizes K, M, G, T are 2^10, 2^20, 2^30, 2^40 bytes; in
 * bandwidths GB/s is 10^9 bytes per second, Gb/s 10^9 bits per second, GiB/s 2^30 bytes per
 * second. A reader that fails adds one sentence to `err` that names the option, the value and
 * what is accepted (ERR_USAGE), returns -1 and leaves its result alone; else it returns 0. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Bytes from "4096", "64K", "1.5k", "1KiB", "1 KB", "1G". Exact: a fraction of a byte and more
 * than UINT64_MAX bytes are errors. `option` is how the user knows the value, e.g. "--size". */
int units_read_size(const char *option, const char *text, uint64_t *bytes, struct err *err);

/* Picoseconds from "10ns", "2.5us", "3ms", "2s", "400ps", rounded to the nearest; a number
 * without unit is seconds if `plain_seconds`, else an error. */
int units_read_time_ps(const char *option, const char *text, bool plain_seconds, uint64_t *time_ps,
                       struct err *err);

/* The same in seconds, without rounding to picoseconds. */
int units_read_time_s(const char *option, const char *text, bool plain_seconds, double *time_s,
                      struct err *err);

/* Bytes per second, more than 0, from "50GB/s", "25GB", "400Gb/s", "400Gbps", "2GiB/s". */
int units_read_bandwidth(const char *option, const char *text, double *bytes_per_s,
                         struct err *err);

/* A whole number in min..max (both included), decimal digits only. */
int units_read_uint(const char *option, const char *text, uint64_t min, uint64_t max,
                    uint64_t *value, struct err *err);

/* A finite decimal number, with sign and exponent if wanted. */
int units_read_double(const char *option, const char *text, double *value, struct err *err);

/* A share between 0 and 1, both excluded: "5%" or "0.05". */
int units_read_fraction(const char *option, const char *text, double *fraction, struct err *err);

/* The same, 0 and 1 included. */
int units_read_share(const char *option, const char *text, double *share, struct err *err);

#define UNITS_TEXT 32 /* bytes that hold any text made below */

/* The text of a number, written into `buf` of UNITS_TEXT bytes and returned, so that a caller can
 * write printf("%s", units_size((char[UNITS_TEXT]){0}, bytes)). */

/* Exact, in the largest unit that divides it: "1 MiB", "1536 B", "0 B". units_read_size reads it
 * back to the same number. */
char *units_size(char *buf, uint64_t bytes);

/* Rounded to three digits, for messages on memory: "12.3 GiB", "1.50 KiB", "999 B". */
char *units_size_near(char *buf, uint64_t bytes);

/* Three significant digits: "2.50 us", "123 ns", "1.00 s"; "N/A" if not finite or negative. */
char *units_time(char *buf, double time_s);

/* Three significant digits in GB/s: "50.0 GB/s", "0.0125 GB/s", "1234 GB/s"; "N/A" as above. */
char *units_bandwidth(char *buf, double bytes_per_s);
