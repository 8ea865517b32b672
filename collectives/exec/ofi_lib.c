/* SPDX-License-Identifier: Apache-2.0
 * Libfabric at run time: the program is not linked to it, and runs where it is missing. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "exec/ofi.h"

static struct {
    bool loaded;
    struct ofi_lib lib;
    char why[256];
} found; /* written once */
static pthread_once_t found_once = PTHREAD_ONCE_INIT;

/* The structs of fi_info have versions, and so have the functions that take them: OFI_ABI is the
 * version that the headers belong to, as the build found it; "" takes the library's newest. */
static const struct symbol {
    const char *name;
    const char *version;
    size_t place;
} symbols[] = {
    {"fi_getinfo", OFI_ABI, offsetof(struct ofi_lib, getinfo)},
    {"fi_freeinfo", OFI_ABI, offsetof(struct ofi_lib, freeinfo)},
    {"fi_dupinfo", OFI_ABI, offsetof(struct ofi_lib, dupinfo)},
    {"fi_fabric", "", offsetof(struct ofi_lib, fabric)},
    {"fi_strerror", "", offsetof(struct ofi_lib, strerror)},
    {"fi_version", "", offsetof(struct ofi_lib, version)},
};

static void load(void)
{
    struct ofi_signals *kept = ofi_signals_keep();
    void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    ofi_signals_restore(kept);
    if (!library) {
        snprintf(found.why, sizeof found.why, "libfabric cannot be loaded (Debian: libfabric1): %s",
                 dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const struct symbol *symbol = &symbols[i];
        void *at = *symbol->version ? dlvsym(library, symbol->name, symbol->version)
                                    : dlsym(library, symbol->name);
        if (!at) {
            snprintf(found.why, sizeof found.why, "libfabric.so.1 has no function %s %s",
                     symbol->name, symbol->version);
            dlclose(library);
            return;
        }
        *(void **)(void *)((uint8_t *)&found.lib + symbol->place) = at;
    }
    found.loaded = true;
}

const struct ofi_lib *ofi_lib(const char **why)
{
    pthread_once(&found_once, load);
    *why = found.why;
    return found.loaded ? &found.lib : NULL;
}

/* ---- signals ---- */

struct ofi_signals {
    struct sigaction actions[NSIG];
};
static pthread_mutex_t signals_lock = PTHREAD_MUTEX_INITIALIZER;

struct ofi_signals *ofi_signals_keep(void)
{
    pthread_mutex_lock(&signals_lock);
    struct ofi_signals *kept = mem_calloc(1, sizeof *kept);
    for (int s = 1; s < NSIG; s++)
        sigaction(s, NULL, &kept->actions[s]);
    return kept;
}

void ofi_signals_restore(struct ofi_signals *kept)
{
    for (int s = 1; s < NSIG; s++)
        sigaction(s, &kept->actions[s], NULL); /* of SIGKILL and SIGSTOP: refused, as it should */
    free(kept);
    pthread_mutex_unlock(&signals_lock);
}
