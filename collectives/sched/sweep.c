/* SPDX-License-Identifier: Apache-2.0
 * The sizes of a run: see sweep.h. */
#include "sched/sweep.h"

int sweep_check(const struct sweep *sweep, struct err *err)
{
    int bad = 0;
    if (sweep->min > sweep->max) {
        bad = err_add(err, ERR_USAGE,
                      "--minbytes (-b) is %llu and --maxbytes (-e) is %llu bytes; the first must "
                      "not be more than the second",
                      (unsigned long long)sweep->min, (unsigned long long)sweep->max);
    }
    if (sweep->min < sweep->max && sweep->factor == 1) {
        bad = err_add(err, ERR_USAGE,
                      "--stepfactor (-f) is 1, which never gets from %llu to %llu bytes; it must "
                      "be at least 2",
                      (unsigned long long)sweep->min, (unsigned long long)sweep->max);
    }
    if (sweep->min < sweep->max && sweep->factor == 0 && sweep->step == 0) {
        bad = err_add(err, ERR_USAGE,
                      "--stepbytes (-i) is 0, which never gets from %llu to %llu bytes; it must "
                      "be at least 1, or give --stepfactor (-f)",
                      (unsigned long long)sweep->min, (unsigned long long)sweep->max);
    }
    return bad;
}

bool sweep_next(const struct sweep *sweep, uint64_t esize, uint64_t *size)
{
    uint64_t next;
    if (sweep->factor == 0) {
        next = sweep->step > UINT64_MAX - *size ? UINT64_MAX : *size + sweep->step;
    } else if (*size == 0) {
        next = esize;
    } else {
        next = sweep->factor > UINT64_MAX / *size ? UINT64_MAX : *size * sweep->factor;
    }
    if (next <= *size || next > sweep->max) { /* the first: it stands still, one size only */
        return false;
    }
    *size = next;
    return true;
}
