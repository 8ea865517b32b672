/* SPDX-License-Identifier: Apache-2.0
 * What a run on GPUs says about them: see header.h. Emulated ones are called so in text and in the
 * record, so that their times go into no table and no picture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "bench/header.h"
#include "exec/device.h"
#include "exec/transport.h"

/* "ranks 0 2 share 0000:01:00.0, ranks 1 3 share 0000:02:00.0". Freed by the caller. */
static char *shared_text(const struct gpu *gpu, uint32_t nranks, int devices)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    for (uint32_t d = 0; to && d < (uint32_t)devices && d + (uint32_t)devices < nranks; d++) {
        struct gpu_info info;
        fprintf(to, "%sranks", d ? ", " : "");
        for (uint32_t r = d; r < nranks; r += (uint32_t)devices)
            fprintf(to, " %u", r);
        fprintf(to, " share %s", gpu->info((int)d, &info) ? "a device" : info.pci);
    }
    if (to) fclose(to);
    return text;
}

/* "0 1 0 1": the device of each rank. freed by the caller. */
static char *devices_text(uint32_t nranks, int devices)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    for (uint32_t r = 0; to && r < nranks; r++)
        fprintf(to, "%s%u", r ? " " : "", r % (uint32_t)devices);
    if (to) fclose(to);
    return text;
}

enum source header_source(bool device)
{
    int devices;
    const char *why;
    const struct gpu *gpu = device ? gpu_devices(&devices, &why) : NULL;
    return gpu && gpu->emulated ? SOURCE_EMULATED : SOURCE_MEASURED;
}

/* Name, place and memory of every device that a rank has. */
static void note_devices(struct out *out, const struct gpu *gpu, uint32_t nranks, int devices)
{
    char *pci = NULL, *names = NULL, memory[UNITS_TEXT];
    size_t length;
    FILE *to = open_memstream(&pci, &length), *names_to = open_memstream(&names, &length);
    for (int d = 0; to && names_to && d < devices && (uint32_t)d < nranks; d++) {
        struct gpu_info info;
        if (gpu->info(d, &info)) continue;
        out_note(out, "device %d: %s, sm_%d%d, %u multiprocessors, %s, at %s", d, info.name,
                 info.major, info.minor, info.sms, units_size_near(memory, info.bytes), info.pci);
        fprintf(to, "%s%s", d ? " " : "", info.pci);
        fprintf(names_to, "%s%s", d ? ", " : "", info.name);
    }
    if (to) fclose(to);
    if (names_to) fclose(names_to);
    out_meta(out, "gpu", out_text(names));
    out_meta(out, "gpu_pci", out_text(pci));
    free(names);
    free(pci);
}

static void note_apart(struct out *out, uint32_t nranks)
{
    char pairs[256];
    uint32_t apart = device_apart(nranks, pairs, sizeof pairs);
    if (apart) {
        out_note(
            out,
            "ranks %s have no peer access to each other's GPU (%u pairs): between them through "
            "pinned host memory",
            pairs, apart);
    }
    out_meta(out, "pairs_without_peer_access", out_uint(apart));
    if (apart) out_meta(out, "ranks_without_peer_access", out_text(pairs));
}

/* How buffers on GPUs travel over a transport that knows nothing of them. */
static void note_pinned(struct out *out, const char *transport)
{
    bool near = strncmp(transport, "shm", 3) == 0; /* see shm.c */
    out_note(out,
             "buffers on GPUs: through pinned slots of the host%s, which kernels read and write in "
             "place",
             near ? " between hosts, and between ranks of one without peer access to each other's "
                    "GPU; else through slots on the sender's GPU (CUDA IPC)"
                  : "");
    out_meta(out, "gpu_buffers", out_text(near ? "pinned between hosts" : "pinned"));
}

void header_gpus(struct out *out, const struct gpu *gpu, uint32_t nranks,
                 const struct transport *transport)
{
    int devices, runtime = 0, driver = 0;
    const char *why;
    if (!gpu_devices(&devices, &why)) return;
    gpu->versions(&runtime, &driver);
    if (gpu->emulated) out_note(out, "WARNING: emulated GPUs, the times mean nothing");
    int used = nranks < (uint32_t)devices ? (int)nranks : devices;
    out_note(out, "%s, driver for CUDA %d.%d; %d device%s visible, %d used", gpu->name,
             driver / 1000, driver % 1000 / 10, devices, devices == 1 ? "" : "s", used);
    note_devices(out, gpu, nranks, devices);
    char *by_rank = devices_text(nranks, devices);
    if (nranks > (uint32_t)devices) {
        char *shared = shared_text(gpu, nranks, devices);
        out_note(out, "%u ranks share %d device%s: %s", nranks, devices, devices == 1 ? "" : "s",
                 nranks <= 64 && by_rank ? by_rank : "see JSON");
        if (nranks <= 64 && shared)
            out_note(out, "%s: libraries call that a duplicate GPU", shared);
        free(shared);
    }
    out_meta(out, "emulated", out_bool(gpu->emulated));
    out_meta(out, "gpu_runtime", out_text(gpu->name));
    out_meta(out, "gpu_runtime_version", out_int(runtime));
    out_meta(out, "gpu_driver_version", out_int(driver));
    out_meta(out, "devices", out_int(devices));
    out_meta(out, "devices_by_rank", out_text(by_rank));
    free(by_rank);
    bool staged = transport && !transport->device;
    if (staged) note_pinned(out, transport->name);
    if (!staged || strncmp(transport->name, "shm", 3) == 0) note_apart(out, nranks);
}
