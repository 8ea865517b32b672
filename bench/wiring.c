/* SPDX-License-Identifier: Apache-2.0
 * Words to transports and wires: see wiring.h. */
#include "bench/wiring.h"

#include <stddef.h>

#include "bench/plan.h"
#include "exec/device.h"
#include "exec/transport.h"

const char *const wire_words[] = {"auto", "staged", "pull", "ll", NULL};
static const int wire_modes[] = {PLAN_WIRE_AUTO, WIRE_STAGED, WIRE_PULL, WIRE_LL};
const char *const buffer_words[] = {"shared", "private", NULL};

const char *const memory_words[] = {"auto", "host", "gpu", NULL};
enum { MEMORY_AUTO, MEMORY_HOST, MEMORY_GPU };

/* Where buffers lie: with transports of GPUs there, with others if asked for, through their slots.
 */
static void wiring_memory(struct wiring *wiring, const struct transport *transport, unsigned memory,
                          struct err *err)
{
    wiring->device = transport->device || memory == MEMORY_GPU;
    if (transport->device && memory == MEMORY_HOST) {
        err_add(err, ERR_USAGE,
                "--memory host: %s moves what lies in the memory of GPUs; use another transport, "
                "such as shm or tcp",
                transport->name);
    }
    if (transport->device || memory != MEMORY_GPU) return;
    if (wiring->wire >= 0 && wiring->wire != WIRE_STAGED) {
        err_add(err, ERR_USAGE,
                "--wire %s: what lies on GPUs goes over %s through slots: use --wire staged",
                wire_mode_name((enum wire_mode)wiring->wire), transport->name);
    }
    wiring->wire = WIRE_STAGED;
}

struct wiring wiring_of(const char *name, unsigned wire, unsigned buffers, unsigned memory,
                        struct err *err)
{
    struct wiring wiring = {.wire = wire_modes[wire], .shared = buffers == 0};
    const struct transport *transport = transport_named(name, err);
    if (transport && !transport->mpiexec) transport = transport_find(name, err);
    const struct transport *const *table = transport_table();
    while (transport && table[wiring.transport] != transport)
        wiring.transport++;
    if (transport) wiring_memory(&wiring, transport, memory, err);
    if (transport && wiring.wire >= 0 && !(transport->modes >> wiring.wire & 1)) {
        err_add(err, ERR_USAGE, "transport %s has no %s wires", transport->name, wire_words[wire]);
    }
    if (wiring.wire == WIRE_PULL && !wiring.shared) {
        err_add(err, ERR_USAGE,
                "--wire pull reads the sender's buffer, which --buffers private cannot share; use "
                "--wire staged, or --buffers shared");
    }
    return wiring;
}

const char *wiring_buffers(uint32_t transport, bool shared, bool device)
{
    if (device && !transport_table()[transport]->device) return memory_words[MEMORY_GPU];
    return buffer_words[!shared];
}

int wiring_processes(const struct wiring *wiring, bool threads, struct err *err)
{
    const struct transport *transport = transport_table()[wiring->transport];
    if (!transport || !transport->mpiexec || !threads) return 0;
    return err_add(err, ERR_USAGE,
                   "--transport %s needs ranks that are processes, --ranks-as threads gives one "
                   "process",
                   transport->name);
}

/* One block on each multiprocessor, shared by the ranks of a process that have one device. */
static uint32_t lanes_of(const struct gpu *gpu, uint32_t ranks)
{
    int devices;
    const char *why;
    struct gpu_info info;
    if (!gpu_devices(&devices, &why) || gpu->info(0, &info)) return 1;
    uint32_t sharers = (ranks + (uint32_t)devices - 1) / (uint32_t)devices;
    return info.sms / sharers > 0 ? info.sms / sharers : 1;
}

int wiring_devices(struct wiring *wiring, uint32_t nranks, bool oversubscribe, bool threads,
                   struct err *err)
{
    const struct gpu *gpu;
    char pairs[128];
    if (device_fit(nranks, oversubscribe, &gpu, err)) return -1;
    if (!transport_table()[wiring->transport]->device) return 0; /* the host drives all */
    wiring->most_lanes = lanes_of(gpu, threads ? nranks : 1);
    wiring->apart = device_apart(nranks, pairs, sizeof pairs) > 0;
    if (!wiring->apart || wiring->wire != WIRE_PULL) return 0;
    return err_add(err, ERR_USAGE,
                   "--wire pull needs peer access between all pairs of GPUs, which ranks %s do not "
                   "have: use --wire staged or ll",
                   pairs);
}
