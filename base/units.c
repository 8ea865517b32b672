/* SPDX-License-Identifier: Apache-2.0
 * Reading and writing sizes, times and bandwidths. Reading is exact: a number is kept as an
 * integer and a power of ten until its unit is known, so "1.5K" is 1536 and "0.1K" is an error and
 * not 102. */
#include "base/units.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SIZES[] =
    "bytes, or K, M, G, T for 2^10, 2^20, 2^30, 2^40 bytes, such as 4096, 64K, 1.5M or 1GiB";
static const char TIMES[] = "a number with ps, ns, us, ms, s, min or h, such as 10ns or 2.5us";
static const char PLAIN_TIMES[] =
    "seconds, or a number with ps, ns, us, ms, s, min or h, such as 5, 2.5us or 10ms";
static const char BANDWIDTHS[] = "a number with GB/s (10^9 bytes), GiB/s (2^30 bytes) or Gb/s "
                                 "(10^9 bits), also with k, M or T, such as 50GB/s or 400Gb/s";
static const char FRACTIONS[] = "a share such as 5% or 0.05";
static const char NUMBERS[] = "a number such as 0.5, 3 or 1e-6";

/* digits / 10^scale, and the text behind it */
struct number {
    uint64_t digits;
    unsigned scale; /* at most 19 */
    const char *unit;
};

static const uint64_t POW10[] = {1ull,
                                 10ull,
                                 100ull,
                                 1000ull,
                                 10000ull,
                                 100000ull,
                                 1000000ull,
                                 10000000ull,
                                 100000000ull,
                                 1000000000ull,
                                 10000000000ull,
                                 100000000000ull,
                                 1000000000000ull,
                                 10000000000000ull,
                                 100000000000000ull,
                                 1000000000000000ull,
                                 10000000000000000ull,
                                 100000000000000000ull,
                                 1000000000000000000ull,
                                 10000000000000000000ull};

static int refuse(const char *option, const char *text, const char *why, const char *accepted,
                  struct err *err)
{
    return err_add(err, ERR_USAGE, "%s: \"%s\" %s; accepted: %s", option, text, why, accepted);
}

/* Appends digit characters from `text` to n->digits; returns the first other character, or NULL
 * if the number grows beyond 64 bits. */
static const char *read_digits(const char *text, uint64_t *digits)
{
    for (; isdigit((unsigned char)*text); text++)
        if (__builtin_mul_overflow(*digits, 10u, digits) ||
            __builtin_add_overflow(*digits, (uint64_t)(*text - '0'), digits))
            return NULL;
    return text;
}

/* Reads "12", "1.5", ".5" and skips blanks behind it. Returns NULL, or why it is no number. */
static const char *read_number(const char *text, struct number *n)
{
    *n = (struct number){0};
    if (!*text) return "is empty";
    if (*text == '-') return "is negative";
    const char *point = text + strspn(text, "0123456789");
    size_t whole = (size_t)(point - text), fraction = 0;
    if (*point == '.') fraction = strspn(point + 1, "0123456789");
    if (whole + fraction == 0) return "is not a number";
    const char *end = *point == '.' ? point + 1 + fraction : point;
    while (fraction && point[fraction] == '0')
        fraction--; /* trailing zeros say nothing */
    if (!read_digits(text, &n->digits)) return "is too large";
    for (size_t i = 1; i <= fraction; i++, n->scale++)
        if (__builtin_mul_overflow(n->digits, 10u, &n->digits) ||
            __builtin_add_overflow(n->digits, (uint64_t)(point[i] - '0'), &n->digits) ||
            n->scale == 19)
            return "has too many digits";
    n->unit = end + strspn(end, " ");
    return NULL;
}

/* Power of the prefix k, M, G, T (1 to 4; `*used` characters), 0 if there is none. */
static unsigned read_prefix(const char *unit, size_t *used)
{
    static const char upper[] = "KMGT";
    const char *found = *unit ? strchr(upper, toupper((unsigned char)*unit)) : NULL;
    *used = found ? 1 : 0;
    return found ? (unsigned)(found - upper) + 1 : 0;
}

int units_read_size(const char *option, const char *text, uint64_t *bytes, struct err *err)
{
    struct number n;
    const char *why = read_number(text, &n);
    if (why) return refuse(option, text, why, SIZES, err);
    size_t used;
    unsigned power = read_prefix(n.unit, &used);
    const char *rest = n.unit + used;
    if (strcmp(rest, "") != 0 && strcmp(rest, "B") != 0 && !(power && strcmp(rest, "iB") == 0))
        return refuse(option, text, "has an unknown unit", SIZES, err);
    unsigned __int128 scaled = (unsigned __int128)n.digits << (10 * power);
    if (scaled % POW10[n.scale]) return refuse(option, text, "is not whole bytes", SIZES, err);
    scaled /= POW10[n.scale];
    if (scaled > UINT64_MAX)
        return refuse(option, text, "is too large (2^64 bytes or more)", SIZES, err);
    *bytes = (uint64_t)scaled;
    return 0;
}

/* Picoseconds in the unit, 0 if unknown. */
static uint64_t time_unit_ps(const char *unit, bool plain_seconds)
{
    static const struct {
        const char *name;
        uint64_t ps;
    } units[] = {
        {"ps", 1},          {"ns", 1000},         {"us", 1000000},         {"\u00b5s", 1000000},
        {"ms", 1000000000}, {"s", 1000000000000}, {"min", 60000000000000}, {"h", 3600000000000000}};
    if (!*unit) return plain_seconds ? 1000000000000 : 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(unit, units[i].name) == 0) return units[i].ps;
    return 0;
}

/* Reads a time as digits / 10^scale units of *unit_ps picoseconds. */
static int read_time(const char *option, const char *text, bool plain_seconds, struct number *n,
                     uint64_t *unit_ps, struct err *err)
{
    const char *accepted = plain_seconds ? PLAIN_TIMES : TIMES;
    const char *why = read_number(text, n);
    if (why) return refuse(option, text, why, accepted, err);
    *unit_ps = time_unit_ps(n->unit, plain_seconds);
    if (!*unit_ps)
        return refuse(option, text, *n->unit ? "has an unknown unit" : "has no unit", accepted,
                      err);
    return 0;
}

int units_read_time_ps(const char *option, const char *text, bool plain_seconds, uint64_t *time_ps,
                       struct err *err)
{
    struct number n;
    uint64_t unit_ps;
    if (read_time(option, text, plain_seconds, &n, &unit_ps, err)) return -1;
    unsigned __int128 scaled = (unsigned __int128)n.digits * unit_ps;
    scaled = (scaled + POW10[n.scale] / 2) / POW10[n.scale];
    if (scaled > UINT64_MAX)
        return refuse(option, text, "is too large (2^64 picoseconds, 213 days)", TIMES, err);
    *time_ps = (uint64_t)scaled;
    return 0;
}

int units_read_time_s(const char *option, const char *text, bool plain_seconds, double *time_s,
                      struct err *err)
{
    struct number n;
    uint64_t unit_ps;
    if (read_time(option, text, plain_seconds, &n, &unit_ps, err)) return -1;
    double per_s = 1e12 / (double)unit_ps; /* exact: a power of ten up to 10^12 */
    *time_s = (double)n.digits / (double)POW10[n.scale] / per_s;
    return 0;
}

/* Bytes per second of "GB/s", "Gbps", "GiB" and so on; 0 if unknown. */
static double bandwidth_unit(const char *unit)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B/s", 1},   {"B", 1},       {"Bps", 1},      {"b/s", 0.125},
                 {"b", 0.125}, {"bps", 0.125}, {"bit/s", 0.125}};
    size_t used;
    unsigned power = read_prefix(unit, &used);
    bool binary = power && unit[used] == 'i';
    const char *rest = unit + used + (binary ? 1 : 0);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(rest, units[i].name) == 0)
            return units[i].bytes * pow(binary ? 1024 : 1000, power);
    return 0;
}

int units_read_bandwidth(const char *option, const char *text, double *bytes_per_s, struct err *err)
{
    struct number n;
    const char *why = read_number(text, &n);
    if (why) return refuse(option, text, why, BANDWIDTHS, err);
    double unit = bandwidth_unit(n.unit);
    if (unit <= 0)
        return refuse(option, text, *n.unit ? "has an unknown unit" : "has no unit", BANDWIDTHS,
                      err);
    if (!n.digits) return refuse(option, text, "is not more than 0", BANDWIDTHS, err);
    *bytes_per_s = (double)n.digits * unit / (double)POW10[n.scale];
    return 0;
}

int units_read_uint(const char *option, const char *text, uint64_t min, uint64_t max,
                    uint64_t *value, struct err *err)
{
    uint64_t number = 0;
    bool digits = *text && !text[strspn(text, "0123456789")];
    if (digits && read_digits(text, &number) && number >= min && number <= max) {
        *value = number;
        return 0;
    }
    const char *why = digits || *text == '-' ? "is out of range" : "is not a whole number";
    if (!*text) why = "is empty";
    if (max == UINT64_MAX)
        return err_add(err, ERR_USAGE, "%s: \"%s\" %s; accepted: a whole number from %llu", option,
                       text, why, (unsigned long long)min);
    return err_add(err, ERR_USAGE, "%s: \"%s\" %s; accepted: a whole number in %llu..%llu", option,
                   text, why, (unsigned long long)min, (unsigned long long)max);
}

int units_read_double(const char *option, const char *text, double *value, struct err *err)
{
    if (!*text) return refuse(option, text, "is empty", NUMBERS, err);
    char *end = NULL;
    double number = strtod(text, &end);
    if (*end || text[strspn(text, "+-.0123456789eE")])
        return refuse(option, text, "is not a number", NUMBERS, err);
    if (!isfinite(number)) return refuse(option, text, "is too large", NUMBERS, err);
    *value = number;
    return 0;
}

/* A number or percentage, whatever its size. */
static int read_part(const char *option, const char *text, double *part, struct err *err)
{
    struct number n;
    const char *why = read_number(text, &n);
    if (why) return refuse(option, text, why, FRACTIONS, err);
    bool percent = strcmp(n.unit, "%") == 0;
    if (*n.unit && !percent) return refuse(option, text, "has an unknown unit", FRACTIONS, err);
    *part = (double)n.digits / (double)POW10[n.scale] / (percent ? 100 : 1);
    return 0;
}

int units_read_share(const char *option, const char *text, double *share, struct err *err)
{
    double value = 0;
    if (read_part(option, text, &value, err)) return -1;
    if (!(value <= 1)) return refuse(option, text, "is not in 0..1 (100 %)", FRACTIONS, err);
    *share = value;
    return 0;
}

int units_read_fraction(const char *option, const char *text, double *fraction, struct err *err)
{
    double value = 0;
    if (read_part(option, text, &value, err)) return -1;
    if (!(value > 0 && value < 1))
        return refuse(option, text, "is not between 0 and 1 (100 %)", FRACTIONS, err);
    *fraction = value;
    return 0;
}

static const char *const SIZE_NAMES[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

char *units_size(char *buf, uint64_t bytes)
{
    unsigned power = 0;
    for (; power < 4 && bytes && bytes % 1024 == 0; power++)
        bytes /= 1024;
    snprintf(buf, UNITS_TEXT, "%llu %s", (unsigned long long)bytes, SIZE_NAMES[power]);
    return buf;
}

/* Decimals that leave three significant digits of value (>= 0), none above 100. */
static int decimals(double value)
{
    int places = 0;
    if (value <= 0) return 2;
    while (places < 12 && value * pow(10, places) < 99.95)
        places++;
    return places;
}

char *units_size_near(char *buf, uint64_t bytes)
{
    if (bytes < 1000) return units_size(buf, bytes);
    double value = (double)bytes;
    unsigned power = 0;
    for (; value >= 999.5 && power < 6; power++)
        value /= 1024;
    snprintf(buf, UNITS_TEXT, "%.*f %s", decimals(value), value, SIZE_NAMES[power]);
    return buf;
}

char *units_time(char *buf, double time_s)
{
    static const char *const names[] = {"ps", "ns", "us", "ms", "s"};
    if (!isfinite(time_s) || time_s < 0) return strcpy(buf, "N/A");
    double value = time_s * 1e12;
    unsigned power = 0;
    for (; value >= 999.5 && power < 4; power++)
        value /= 1000;
    if (time_s == 0) power = 4;
    snprintf(buf, UNITS_TEXT, "%.*f %s", decimals(value), value, names[power]);
    return buf;
}

char *units_bandwidth(char *buf, double bytes_per_s)
{
    if (!isfinite(bytes_per_s) || bytes_per_s < 0) return strcpy(buf, "N/A");
    double value = bytes_per_s / 1e9;
    snprintf(buf, UNITS_TEXT, "%.*f GB/s", decimals(value), value);
    return buf;
}
