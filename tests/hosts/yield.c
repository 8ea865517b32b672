/* SPDX-License-Identifier: Apache-2.0
 * Preloaded, makes an MPICH over UCX give its core away when it finds nothing to do. It polls
 * without end otherwise, which takes milliseconds from ranks that share a core; so it would lose
 * every comparison on such a machine for a reason that hosts of their own do not have. */
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>

enum { PATIENCE = 20 }; /* polls in vain */

unsigned ucp_worker_progress(void *worker);

unsigned ucp_worker_progress(void *worker)
{
    static _Thread_local unsigned in_vain;
    unsigned (*progress)(void *) = NULL;
    *(void **)&progress = dlsym(RTLD_NEXT, "ucp_worker_progress");
    unsigned events = progress ? progress(worker) : 0;
    in_vain = events ? 0 : in_vain + 1;
    if (in_vain >= PATIENCE) {
        in_vain = 0;
        sched_yield();
    }
    return events;
}
