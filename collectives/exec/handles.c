/* SPDX-License-Identifier: Apache-2.0
 * Words about handles: see handles.h. */
#include "exec/handles.h"

#include <assert.h>

_Atomic uint64_t *handles_publish(struct rank *rk, uint32_t tag, const void *block, struct err *err)
{
    uint8_t *extent = world_extent(rk->world, rk->rank, err);
    if (!extent) return NULL;
    size_t place = (size_t)((const uint8_t *)block - extent);
    assert(place % HANDLE_PLACE == 0);
    uint64_t word = (uint64_t)tag << 32 | (place / HANDLE_PLACE + 1);
    for (uint32_t i = 0; i < STATUS_HANDLES; i++) {
        _Atomic uint64_t *handle = &rk->status->handles[i];
        if (atomic_load_explicit(handle, memory_order_relaxed) == 0) {
            /* pairs with the acquire in handles_find */
            atomic_store_explicit(handle, word, memory_order_release);
            return handle;
        }
    }
    err_add(err, ERR_FAILED, "rank %u has %d handles open already, the most there can be", rk->rank,
            STATUS_HANDLES);
    return NULL;
}

void handles_drop(_Atomic uint64_t *handle)
{
    atomic_store_explicit(handle, 0, memory_order_release);
}

void *handles_find(struct rank *rk, uint32_t rank, uint32_t tag, uint8_t **extent, struct err *err)
{
    *extent = world_extent(rk->world, rank, err);
    if (!*extent) return NULL;
    _Atomic uint64_t *handles = world_status(rk->world, rank)->handles;
    for (struct waiter waiter = {0};; waiter_pause(&waiter, rk)) {
        for (uint32_t i = 0; i < STATUS_HANDLES; i++) {
            uint64_t word = atomic_load_explicit(&handles[i], memory_order_acquire);
            if (word >> 32 == tag && word != 0) {
                size_t place = (uint32_t)word - 1u;
                return *extent + place * HANDLE_PLACE;
            }
        }
    }
}
