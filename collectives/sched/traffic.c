/* SPDX-License-Identifier: Apache-2.0
 * Traffic matrices: see traffic.h. */
#include "sched/traffic.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static uint64_t between(const struct traffic *traffic, uint32_t from, uint32_t to)
{
    return traffic->elements[(size_t)from * traffic->nranks + to];
}

/* ---- shares ---- */

/* The numbers of one line; how many there were, or -1. Only the first `nranks` are kept. */
static int64_t read_line(const char *path, uint64_t number, char *line, uint32_t nranks,
                         double *row, struct err *err)
{
    int64_t count = 0;
    line[strcspn(line, "#")] = '\0';
    for (char *word = strtok(line, " \t\r\n,;"); word; word = strtok(NULL, " \t\r\n,;"), count++) {
        char *end;
        double value = strtod(word, &end);
        if (*end || !(value >= 0) || isinf(value)) {
            return err_add(err, ERR_USAGE, "%s:%llu: '%s' is no share: it is a number of 0 or more",
                           path, (unsigned long long)number, word);
        }
        if (count < nranks) row[count] = value;
    }
    return count;
}

static int read_rows(const char *path, FILE *file, uint32_t nranks, double *shares, struct err *err)
{
    char *line = NULL;
    size_t room = 0;
    uint64_t number = 0, rows = 0;
    int bad = 0;
    double unused[1];
    while (!bad && getline(&line, &room, file) > 0) {
        double *row = rows < nranks ? shares + rows * nranks : unused;
        int64_t count = read_line(path, ++number, line, rows < nranks ? nranks : 0, row, err);
        if (count < 0) {
            bad = -1;
        } else if (count > 0 && count != nranks) {
            bad = err_add(err, ERR_USAGE, "%s:%llu: %lld numbers, but with %u ranks a row has %u",
                          path, (unsigned long long)number, (long long)count, nranks, nranks);
        }
        rows += count > 0;
    }
    free(line);
    if (!bad && rows != nranks && !ferror(file)) {
        bad = err_add(err, ERR_USAGE, "%s: %llu rows, but with %u ranks there are %u", path,
                      (unsigned long long)rows, nranks, nranks);
    }
    return bad;
}

double *traffic_read(const char *path, uint32_t nranks, struct err *err)
{
    FILE *file = fopen(path, "r");
    if (!file) {
        err_add(err, ERR_USAGE, "cannot read %s: %s", path, strerror(errno));
        return NULL;
    }
    double *shares = mem_calloc((size_t)nranks * nranks, sizeof *shares), sum = 0;
    int bad = read_rows(path, file, nranks, shares, err);
    if (!bad && ferror(file)) {
        bad = err_add(err, ERR_USAGE, "cannot read %s: %s", path, strerror(errno));
    }
    fclose(file);
    for (size_t i = 0; !bad && i < (size_t)nranks * nranks; i++)
        sum += shares[i];
    if (!bad && !(sum > 0 && !isinf(sum))) {
        bad =
            err_add(err, ERR_USAGE,
                    "%s: the shares add up to %g; that must be a finite number above 0", path, sum);
    }
    if (bad) {
        free(shares);
        return NULL;
    }
    return shares;
}

void traffic_imbalance(uint32_t nranks, double factor, double *shares)
{
    double hot = nranks > 1 ? factor / nranks : 1;
    for (size_t i = 0; i < (size_t)nranks * nranks; i++)
        shares[i] = i % nranks == 0 ? hot : (1 - hot) / (nranks - 1);
}

double *traffic_shares(const struct coll *coll, uint32_t nranks, const struct traffic_wish *wish,
                       struct err *err)
{
    unsigned before = err->count;
    if (!coll->uneven && (wish->factor_given || wish->matrix)) {
        err_add(err, ERR_USAGE, "%s has equal blocks: --%s is for alltoallv", coll->name,
                wish->factor_given ? "imbalance" : "matrix");
    } else if (wish->factor_given && wish->matrix) {
        err_add(err, ERR_USAGE, "--imbalance and --matrix both say who gets how much: give one");
    } else if (before == 0 && !(wish->factor >= 1 && wish->factor <= nranks)) {
        err_add(err, ERR_USAGE,
                "--imbalance %g: rank 0 receives 1 times the mean (even) to %u times (all of it)",
                wish->factor, nranks);
    }
    if (!coll->uneven || err->count > 0) return NULL;
    if (wish->matrix) return traffic_read(wish->matrix, nranks, err);
    double *shares = mem_calloc((size_t)nranks * nranks, sizeof *shares);
    traffic_imbalance(nranks, wish->factor, shares);
    return shares;
}

double traffic_busbw(uint32_t nranks, const double *shares)
{
    double sum = 0, most = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        double out = 0, in = 0;
        for (uint32_t i = 0; i < nranks; i++) {
            sum += shares[(size_t)r * nranks + i];
            out += i == r ? 0 : shares[(size_t)r * nranks + i];
            in += i == r ? 0 : shares[(size_t)i * nranks + r];
        }
        most = fmax(most, fmax(out, in));
    }
    return most / sum * nranks;
}

char *traffic_text(uint32_t nranks, const double *shares)
{
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    for (size_t i = 0; to && i < (size_t)nranks * nranks; i++)
        fprintf(to, "%s%.17g", i == 0 ? "" : i % nranks ? " " : "; ", shares[i]);
    if (to) fclose(to);
    return text;
}

/* ---- elements ---- */

struct remainder {
    double part;
    size_t pair;
};

static int compare_remainders(const void *a, const void *b)
{
    const struct remainder *x = a, *y = b;
    if (x->part != y->part) return x->part > y->part ? -1 : 1;
    return x->pair < y->pair ? -1 : 1;
}

struct traffic *traffic_deal(uint32_t nranks, const double *shares, uint64_t total)
{
    size_t pairs = (size_t)nranks * nranks;
    struct traffic *traffic = mem_calloc(1, sizeof *traffic + pairs * sizeof *traffic->elements);
    struct remainder *rest = mem_calloc(pairs, sizeof *rest);
    double sum = 0;
    uint64_t dealt = 0;
    traffic->nranks = nranks;
    for (size_t i = 0; i < pairs; i++)
        sum += shares[i];
    for (size_t i = 0; i < pairs; i++) {
        double exact = (double)total * (shares[i] / sum), whole = floor(exact);
        rest[i] = (struct remainder){exact - whole, i};
        traffic->elements[i] = (uint64_t)whole < total - dealt ? (uint64_t)whole : total - dealt;
        dealt += traffic->elements[i];
    }
    qsort(rest, pairs, sizeof *rest, compare_remainders);
    for (size_t i = 0; dealt < total; i = (i + 1) % pairs) { /* pairs that send nothing: never */
        if (shares[rest[i].pair] > 0) {
            traffic->elements[rest[i].pair]++;
            dealt++;
        }
    }
    free(rest);
    return traffic;
}

size_t *traffic_offsets(const struct traffic *traffic, enum buf buf, uint32_t rank, size_t esize)
{
    uint32_t n = traffic->nranks;
    size_t *offsets = mem_calloc((size_t)n + 1, sizeof *offsets);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t elements = buf == BUF_IN ? between(traffic, rank, i) : between(traffic, i, rank);
        offsets[i + 1] = offsets[i] + elements * esize;
    }
    return offsets;
}

uint64_t traffic_longest(const struct traffic *traffic)
{
    uint64_t most = 0;
    for (size_t i = 0; i < (size_t)traffic->nranks * traffic->nranks; i++)
        most = traffic->elements[i] > most ? traffic->elements[i] : most;
    return most;
}

uint64_t traffic_sum(const struct traffic *traffic, enum buf buf, uint32_t rank)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < traffic->nranks; i++)
        sum += buf == BUF_IN ? between(traffic, rank, i) : between(traffic, i, rank);
    return sum;
}

uint64_t traffic_largest(const struct traffic *traffic, enum buf buf)
{
    uint64_t most = 0;
    for (uint32_t rank = 0; rank < traffic->nranks; rank++) {
        uint64_t sum = traffic_sum(traffic, buf, rank);
        most = sum > most ? sum : most;
    }
    return most;
}
