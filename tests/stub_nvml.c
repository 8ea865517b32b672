/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for NVIDIA's management library, for tests of `collbench topo` alone: eight GPUs at
 * the bus addresses of tests/cases/topo/two-sockets.xml. NVML_STUB says what it shows:
 *
 *     switches   18 NVLinks of each GPU to four switches (5, 4, 5, 4), of 26.562 GB/s
 *     pairs      12 NVLinks between GPUs 0-1, 2-3, ..; GPU 0 is the one at 14, GPU 1 that at 13
 *     hidden     as switches, but the host does not see the switches
 *     broken     as pairs; GPU 1 has one link that is not active, GPU 7 lies at an address that
 *                is not on the bus
 *     none       no GPUs
 *     dead       does not start
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_DRIVER = 9 };
enum { NGPUS = 8, SWITCHED = 18, PAIRED = 12, END_GPU = 0, END_SWITCH = 2 };

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
};

struct field {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type;
    int code;
    union {
        double d;
        unsigned u;
    } value;
};

int nvml_stub = 1;

static int shows(const char *word)
{
    const char *set = getenv("NVML_STUB");
    return strcmp(set ? set : "switches", word) == 0;
}

static int direct(void)
{
    return shows("pairs") || shows("broken");
}

static unsigned index_of(void *device)
{
    return *(unsigned *)device;
}

static void set_address(struct pci *pci, unsigned domain, unsigned bus)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->address, sizeof pci->address, "%08X:%02X:%02X.%u", domain, bus,
             domain == ~0u ? 0xff : 0, domain == ~0u ? 0xf : 0);
}

static unsigned bus_of(unsigned gpu)
{
    static const unsigned buses[NGPUS] = {0x13, 0x14, 0x25, 0x26, 0x81, 0x82, 0x83, 0x84};
    if (shows("broken") && gpu == 7) return 0xc4;
    return buses[shows("pairs") && gpu < 2 ? 1 - gpu : gpu];
}

int nvmlInit_v2(void)
{
    return shows("dead") ? NO_DRIVER : OK;
}

int nvmlShutdown(void)
{
    return OK;
}

const char *nvmlErrorString(int code)
{
    return code == NO_DRIVER ? "Driver Not Loaded" : "Error";
}

int nvmlSystemGetNVMLVersion(char *text, unsigned bytes)
{
    snprintf(text, bytes, "12.0.0");
    return OK;
}

int nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    snprintf(text, bytes, "0.0.0");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = shows("none") ? 0 : NGPUS;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    static unsigned numbers[NGPUS] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (index >= NGPUS) return BAD_ARGUMENT;
    *device = &numbers[index];
    return OK;
}

int nvmlDeviceGetName(void *device, char *text, unsigned bytes)
{
    (void)device;
    snprintf(text, bytes, "Stub GPU");
    return OK;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    set_address(pci, 0, bus_of(index_of(device)));
    return OK;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *generation)
{
    (void)device;
    *generation = 4;
    return OK;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *lanes)
{
    (void)device;
    *lanes = 16;
    return OK;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
    if (link >= (direct() ? PAIRED : SWITCHED)) return BAD_ARGUMENT;
    *active = !(shows("broken") && index_of(device) == 1 && link == 3);
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *pci)
{
    /* switches of links 0 to 17: 5, 4, 5 and 4 of them */
    unsigned at = link < 5 ? 0 : link < 9 ? 1 : link < 14 ? 2 : 3;
    if (direct()) {
        set_address(pci, 0, bus_of(index_of(device) ^ 1));
    } else if (shows("hidden")) {
        set_address(pci, ~0u, 0xff);
    } else {
        set_address(pci, 0, 5 + at);
    }
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *type)
{
    (void)device;
    (void)link;
    *type = direct() ? END_GPU : END_SWITCH;
    return OK;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    (void)device;
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].id == 90 ? OK : NOT_SUPPORTED;
        fields[i].type = 1;
        fields[i].value.u = 26562;
    }
    return OK;
}
