/* SPDX-License-Identifier: Apache-2.0
 * Test hook: makes the data of one operation wrong, as a broken memory or cable would, so that it
 * can be seen that the check finds it. A flip is of one bit of the first message that the rank
 * posts, before it is posted; where it posts none, or a kernel does, of its result. A swap is of
 * two blocks of its result, or of two elements where that is one block; a rank without a result
 * does it to a message. See enum fault_kind. */
#include <string.h>

#include "exec/device.h"
#include "exec/engine.h"
#include "exec/launch.h"

enum { PIECE = 4096 };      /* bytes exchanged at once */
enum { HIGH_BIT = 1 << 6 }; /* of an element's last byte: no sum in any type is the same then */

static void copy(const struct exec *exec, void *to, const void *from, size_t bytes)
{
    if (exec->rank->device) {
        device_copy(exec->rank, to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
}

static void flip(const struct exec *exec, uint8_t *element)
{
    uint8_t byte, *at = element + exec->esize - 1;
    copy(exec, &byte, at, 1);
    byte ^= HIGH_BIT;
    copy(exec, at, &byte, 1);
}

/* False when both are the same. */
static bool exchange(const struct exec *exec, uint8_t *a, uint8_t *b, size_t bytes)
{
    uint8_t one[PIECE], other[PIECE];
    bool differ = false;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < PIECE ? bytes - done : PIECE;
        copy(exec, one, a + done, n);
        copy(exec, other, b + done, n);
        if (memcmp(one, other, n) == 0) continue;
        differ = true;
        copy(exec, a + done, other, n);
        copy(exec, b + done, one, n);
    }
    return differ;
}

/* The first element and the next one that is another. */
static bool swap_elements(const struct exec *exec, uint8_t *at, size_t bytes)
{
    for (size_t off = exec->esize; off < bytes; off += exec->esize) {
        if (exchange(exec, at, at + off, exec->esize)) return true;
    }
    return false;
}

/* Block `block` of the result, if something is promised of it; else of no bytes. */
static struct range promised(const struct exec *exec, uint32_t block)
{
    const struct sched *sched = exec->sched;
    struct layout whole = exec->layout[BUF_OUT];
    struct promise promise =
        coll_after(sched->coll, sched->nranks, sched->root, exec->spec.me, block);
    whole.nparts = 1;
    struct range range = chunk_whole(&whole, block, 0);
    if (promise.content == CONTENT_FREE) range.len = 0;
    return range;
}

/* The first two blocks that differ, as far as the shorter goes. */
static bool swap_blocks(const struct exec *exec)
{
    uint8_t *out = exec->own.base[BUF_OUT];
    uint32_t nblocks = exec->layout[BUF_OUT].nblocks;
    for (uint32_t a = 0; a < nblocks; a++) {
        for (uint32_t b = a + 1; b < nblocks; b++) {
            struct range one = promised(exec, a), other = promised(exec, b);
            size_t bytes = one.len < other.len ? one.len : other.len;
            if (exchange(exec, out + one.off, out + other.off, bytes)) return true;
        }
    }
    return false;
}

/* The first block of the result that has bytes; of no bytes: there is none. */
static struct range first_block(const struct exec *exec)
{
    struct range range = {0, 0};
    for (uint32_t b = 0; b < exec->layout[BUF_OUT].nblocks && range.len == 0; b++)
        range = promised(exec, b);
    return range;
}

static bool spoil_result(const struct exec *exec)
{
    struct range first = first_block(exec);
    uint8_t *at = (uint8_t *)exec->own.base[BUF_OUT] + first.off;
    if (first.len == 0) return false;
    if (exec->spoil == FAULT_SWAP) return swap_blocks(exec) || swap_elements(exec, at, first.len);
    flip(exec, at);
    return true;
}

void exec_spoil_message(struct exec *exec, void *at, size_t bytes)
{
    bool done = false;
    if (bytes > 0 && exec->spoil == FAULT_FLIP) {
        flip(exec, at);
        done = true;
    } else if (bytes > 0 && exec->spoil == FAULT_SWAP && first_block(exec).len == 0) {
        done = swap_elements(exec, at, bytes);
    }
    if (done) exec->spoil = FAULT_NONE;
}

void exec_spoil(struct exec *exec)
{
    const struct rank *rk = exec->rank;
    if (!launch_spoils(rk) || rk->faults < rk->fault_at) return;
    exec->spoil = rk->fault;
    exec->observed = true;
}

void exec_spoiled(struct exec *exec)
{
    if (!exec->observed || !launch_spoils(exec->rank)) return;
    bool done = exec->spoil == FAULT_NONE || spoil_result(exec);
    exec->spoil = FAULT_NONE;
    exec->observed = exec->spec.keep_log;
    if (done) exec->rank->fault = FAULT_NONE;
}
