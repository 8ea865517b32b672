/* SPDX-License-Identifier: Apache-2.0
 * Asking NVML: see nvml.h. Types and numbers below are those of its binary interface (nvml.h of
 * NVIDIA's driver), which has kept them since version 11. */
#include "bench/nvml.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char nvml_variable[] = "COLLBENCH_NVML";
static const char library_name[] = "libnvidia-ml.so.1";

/* ---- the binary interface -------------------------------------------------------------------- */

enum { SUCCESS, NVML_TEXT = 96, LINKS = 64 /* numbers to ask for: GPUs have 18 at most so far */ };
enum { FIELD_LINK_MBps = 90, VALUE_UINT = 1 };

typedef void *device;

struct pci_info {
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
        unsigned long long ull;
    } value;
};

struct functions {
#define NVML_FUNCTION(need, name, symbol, parameters) int(*name) parameters;
#define NVML_FUNCTIONS                                                                             \
    NVML_FUNCTION(true, init, nvmlInit_v2, (void))                                                 \
    NVML_FUNCTION(true, shutdown, nvmlShutdown, (void))                                            \
    NVML_FUNCTION(true, version, nvmlSystemGetNVMLVersion, (char *, unsigned))                     \
    NVML_FUNCTION(true, driver, nvmlSystemGetDriverVersion, (char *, unsigned))                    \
    NVML_FUNCTION(true, count, nvmlDeviceGetCount_v2, (unsigned *))                                \
    NVML_FUNCTION(true, handle, nvmlDeviceGetHandleByIndex_v2, (unsigned, device *))               \
    NVML_FUNCTION(true, name, nvmlDeviceGetName, (device, char *, unsigned))                       \
    NVML_FUNCTION(true, pci, nvmlDeviceGetPciInfo_v3, (device, struct pci_info *))                 \
    NVML_FUNCTION(false, generation, nvmlDeviceGetMaxPcieLinkGeneration, (device, unsigned *))     \
    NVML_FUNCTION(false, width, nvmlDeviceGetMaxPcieLinkWidth, (device, unsigned *))               \
    NVML_FUNCTION(false, link_state, nvmlDeviceGetNvLinkState, (device, unsigned, unsigned *))     \
    NVML_FUNCTION(false, link_pci, nvmlDeviceGetNvLinkRemotePciInfo_v2,                            \
                  (device, unsigned, struct pci_info *))                                           \
    NVML_FUNCTION(false, link_end, nvmlDeviceGetNvLinkRemoteDeviceType,                            \
                  (device, unsigned, unsigned *))                                                  \
    NVML_FUNCTION(false, fields, nvmlDeviceGetFieldValues, (device, int, struct field *))          \
    NVML_FUNCTION(false, coherent, nvmlDeviceGetC2cModeInfoV, (device, unsigned *))
    NVML_FUNCTIONS
#undef NVML_FUNCTION
    const char *(*error)(int code);
};

static const struct {
    const char *symbol;
    size_t offset;
    bool must;
} rows[] = {
#define NVML_FUNCTION(need, name, symbol, parameters)                                              \
    {#symbol, offsetof(struct functions, name), need},
    NVML_FUNCTIONS
#undef NVML_FUNCTION
    {"nvmlErrorString", offsetof(struct functions, error), true},
};

/* The library that is named, or the usual one. NULL with the reason. */
static void *open_library(struct err *err)
{
    const char *named = getenv(nvml_variable);
    bool given = named && *named;
    void *library = dlopen(given ? named : library_name, RTLD_NOW | RTLD_LOCAL);
    if (!library && given) {
        err_add(err, ERR_USAGE, "no NVML: %s=%s cannot be loaded: %s", nvml_variable, named,
                dlerror());
    } else if (!library) {
        err_add(err, ERR_FAILED, "no NVML: %s", dlerror());
    }
    return library;
}

static int find_functions(void *library, struct functions *fn, struct err *err)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *symbol = dlsym(library, rows[i].symbol);
        memcpy((char *)fn + rows[i].offset, &symbol, sizeof symbol);
        if (!symbol && rows[i].must)
            return err_add(err, ERR_FAILED, "no NVML: the library has no function %s",
                           rows[i].symbol);
    }
    return 0;
}

/* ---- one GPU --------------------------------------------------------------------------------- */

/* NVML's "00000000:06:00.0" as Linux writes it; NULL where all is F, as of what has no address. */
static char *address_of(const struct pci_info *pci)
{
    char text[sizeof pci->address + 1] = {0};
    unsigned domain, bus, slot, function;
    memcpy(text, pci->address, sizeof pci->address);
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return NULL;
    return domain >= 0xfffffff ? NULL
                               : mem_printf("%04x:%02x:%02x.%x", domain, bus, slot, function);
}

double nvml_pcie_GBps(unsigned generation, unsigned lanes)
{
    static const struct {
        double transfers_Gps, share;
    } generations[] = {{0, 0},           {2.5, 0.8},       {5, 0.8},        {8, 128 / 130.},
                       {16, 128 / 130.}, {32, 128 / 130.}, {64, 242 / 256.}};
    if (generation >= sizeof generations / sizeof *generations) return 0;
    return generations[generation].transfers_Gps * generations[generation].share * lanes / 8;
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* One more link to that device; takes `address`. */
static void add_link(struct nvml_gpu *gpu, enum nvml_end end, char *address)
{
    size_t i = 0;
    while (i < gpu->npeers && (gpu->peers[i].end != end || !same(gpu->peers[i].address, address)))
        i++;
    if (i < gpu->npeers) {
        free(address);
    } else {
        MEM_GROW(gpu->peers, gpu->npeers, gpu->cap);
        gpu->peers[gpu->npeers++] = (struct nvml_peer){.end = end, .address = address};
    }
    gpu->peers[i].count++;
}

static void read_links(const struct functions *fn, device at, struct nvml_gpu *gpu)
{
    bool able = fn->link_state && fn->link_pci;
    for (unsigned link = 0; able && link < LINKS; link++) {
        unsigned active = 0, end = NVML_END_UNKNOWN;
        struct pci_info pci = {.address = ""};
        if (fn->link_state(at, link, &active) != SUCCESS) continue; /* no such link */
        gpu->active += active != 0;
        gpu->inactive += active == 0;
        if (!active) continue;
        if (fn->link_end && fn->link_end(at, link, &end) != SUCCESS) end = NVML_END_UNKNOWN;
        char *address = fn->link_pci(at, link, &pci) == SUCCESS ? address_of(&pci) : NULL;
        add_link(gpu, (enum nvml_end)end, address);
    }
    struct field speed = {.id = FIELD_LINK_MBps};
    if (gpu->active && fn->fields && fn->fields(at, 1, &speed) == SUCCESS &&
        speed.code == SUCCESS && speed.type == VALUE_UINT)
        gpu->link_GBps = speed.value.u / 1e3;
}

static int read_gpu(const struct functions *fn, unsigned number, struct nvml_gpu *gpu,
                    struct err *err)
{
    device at = NULL;
    char name[NVML_TEXT + 1] = {0};
    struct pci_info pci = {.address = ""};
    unsigned generation = 0, lanes = 0, coherent = 0;
    int code = fn->handle(number, &at);
    if (!code) code = fn->name(at, name, NVML_TEXT);
    if (!code) code = fn->pci(at, &pci);
    if (code)
        return err_add(err, ERR_FAILED, "no NVML: it says of GPU %u: %s", number, fn->error(code));
    gpu->name = mem_strdup(name);
    gpu->address = address_of(&pci);
    bool known =
        fn->generation && fn->width && !fn->generation(at, &generation) && !fn->width(at, &lanes);
    if (known) gpu->pcie_GBps = nvml_pcie_GBps(generation, lanes);
    gpu->coherent = fn->coherent && !fn->coherent(at, &coherent) && coherent;
    read_links(fn, at, gpu);
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static char *describe(void *library, const struct functions *fn)
{
    char version[NVML_TEXT + 1] = "?", driver[NVML_TEXT + 1] = "?";
    struct link_map *map = NULL;
    bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name;
    fn->version(version, NVML_TEXT);
    fn->driver(driver, NVML_TEXT);
    return mem_printf("%sNVML %s (%s), driver %s",
                      dlsym(library, "nvml_stub") ? "a STUB of NVML, for tests alone, " : "",
                      version, known ? map->l_name : library_name, driver);
}

static int read_all(const struct functions *fn, struct nvml *nvml, struct err *err)
{
    unsigned count = 0;
    int code = fn->count(&count), bad = 0;
    if (code) return err_add(err, ERR_FAILED, "no NVML: it counts no GPUs: %s", fn->error(code));
    nvml->gpus = mem_calloc(count, sizeof *nvml->gpus);
    nvml->ngpus = count;
    for (unsigned i = 0; i < count && !bad; i++)
        bad = read_gpu(fn, i, &nvml->gpus[i], err);
    return bad;
}

int nvml_read(struct nvml *nvml, struct err *err)
{
    *nvml = (struct nvml){0};
    struct functions fn;
    void *library = open_library(err);
    if (!library) return -1;
    int bad = find_functions(library, &fn, err), code = bad ? 0 : fn.init();
    if (code) bad = err_add(err, ERR_FAILED, "no NVML: it does not start: %s", fn.error(code));
    if (!bad) {
        nvml->text = describe(library, &fn);
        bad = read_all(&fn, nvml, err);
        fn.shutdown();
    }
    dlclose(library);
    return bad;
}

void nvml_release(struct nvml *nvml)
{
    for (size_t i = 0; i < nvml->ngpus; i++) {
        struct nvml_gpu *gpu = &nvml->gpus[i];
        for (size_t k = 0; k < gpu->npeers; k++)
            free(gpu->peers[k].address);
        free(gpu->peers);
        free(gpu->name);
        free(gpu->address);
    }
    free(nvml->gpus);
    free(nvml->text);
    *nvml = (struct nvml){0};
}
