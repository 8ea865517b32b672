/* SPDX-License-Identifier: Apache-2.0
 * Which NCCL there is, and what it is told: see nccl.h. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "ref/nccl.h"
#include "ref/nccl_abi.h"

enum { OLDEST = NCCL_NUMBER(2, 10, 0) };         /* averages and bfloat16 */
enum { SHARES_DEVICES = NCCL_NUMBER(2, 30, 3) }; /* several ranks on a GPU */

static const char library_variable[] = "COLLBENCH_NCCL";
static const char own_choice[] = "its own choice";

/* ---- the library ---------------------------------------------------------------------------- */

static const struct {
    const char *symbol;
    size_t offset; /* in struct nccl_functions */
    bool must;
} function_rows[] = {
#define MUST true
#define MAY false
#define NCCL_FUNCTION(need, result, name, symbol, parameters)                                      \
    {#symbol, offsetof(struct nccl_functions, name), need},
#include "ref/nccl_functions.h"
#undef NCCL_FUNCTION
#undef MUST
#undef MAY
};

/* The library that is named, or the first found. NULL with the reason. */
static void *open_library(struct err *err)
{
    static const char *const names[] = {"libnccl.so.2", "libnccl.so"};
    const char *named = getenv(library_variable);
    bool given = named && *named;
    void *library = dlopen(given ? named : names[0], RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
    char *why = mem_strdup(dlerror());
    if (!given) library = dlopen(names[1], RTLD_NOW | RTLD_LOCAL);
    if (!library && given) {
        err_add(err, ERR_USAGE, "no NCCL: %s=%s cannot be loaded: %s", library_variable, named,
                why);
    } else if (!library) {
        err_add(err, ERR_USAGE, "no NCCL: %s (set %s to the file if it lies elsewhere)", why,
                library_variable);
    }
    free(why);
    return library;
}

/* Where it was loaded from; freed by the caller. */
static char *path_of(void *library)
{
    struct link_map *map = NULL;
    bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name;
    return mem_strdup(known ? map->l_name : "?");
}

/* Looks all functions up; the first that must be there and is missing, or NULL. */
static const char *find_functions(void *library, struct nccl_functions *fn)
{
    const char *missing = NULL;
    for (size_t i = 0; i < sizeof function_rows / sizeof *function_rows; i++) {
        void *symbol = dlsym(library, function_rows[i].symbol);
        memcpy((char *)fn + function_rows[i].offset, &symbol, sizeof symbol);
        if (!symbol && function_rows[i].must && !missing) missing = function_rows[i].symbol;
    }
    return missing;
}

/* "2.28.9", freed by the caller. Up to 2.8 versions had one digit less. */
static char *version_text(int version)
{
    int scale = version < 10000 ? 1000 : 10000;
    return mem_printf("%d.%d.%d", version / scale, version % scale / 100, version % 100);
}

struct nccl_library *nccl_load(struct err *err)
{
    void *handle = open_library(err);
    if (!handle) return NULL;
    struct nccl_library *library = mem_calloc(1, sizeof *library);
    library->path = path_of(handle);
    library->stub = dlsym(handle, "nccl_stub") != NULL;
    const char *missing = find_functions(handle, &library->fn);
    int code = missing ? 0 : library->fn.get_version(&library->version);
    char *version = version_text(library->version);
    library->text =
        mem_printf("%s %s (%s)", library->stub ? "a STUB of NCCL, for tests alone," : "NCCL",
                   version, library->path);
    bool good = false;
    if (missing) {
        err_add(err, ERR_USAGE, "no NCCL: %s has no function %s", library->path, missing);
    } else if (code != NCCL_SUCCESS) {
        err_add(err, ERR_USAGE, "no NCCL: ncclGetVersion of %s fails: %s", library->path,
                library->fn.error_string(code));
    } else if (library->version < OLDEST) {
        err_add(err, ERR_USAGE, "no NCCL: %s is version %s, the oldest supported is 2.10.0",
                library->path, version);
    } else {
        good = true;
    }
    free(version);
    if (good) return library;
    nccl_library_free(library);
    return NULL;
}

void nccl_library_free(struct nccl_library *library)
{
    if (!library) return;
    free(library->path);
    free(library->text);
    free(library);
}

int nccl_version(const struct nccl_library *library)
{
    return library->version;
}

const char *nccl_text(const struct nccl_library *library)
{
    return library->text;
}

char *nccl_short_text(const struct nccl_library *library)
{
    char *version = version_text(library->version);
    char *text = mem_printf("NCCL%s %s", library->stub ? "-stub" : "", version);
    free(version);
    return text;
}

/* ---- what it is told ------------------------------------------------------------------------ */

/* The wish, else what the environment says, else that nothing was asked for. */
static char *asked(const char *wish, const char *variable)
{
    const char *set = wish ? wish : getenv(variable);
    return mem_strdup(set && *set ? set : own_choice);
}

static char *describe_ctas(void)
{
    const char *least = getenv("NCCL_MIN_CTAS"), *most = getenv("NCCL_MAX_CTAS");
    if (!least && !most) return mem_strdup(own_choice);
    return mem_printf("%s to %s (NCCL_MIN_CTAS, NCCL_MAX_CTAS)", least ? least : own_choice,
                      most ? most : own_choice);
}

/* Reductions in the NVLink switch need multicast (compute capability 9.0), a switch, and more than
 * two GPUs (2.28; newer libraries: two). Whether NCCL uses it for a call, it does not say. */
static char *describe_nvls(const struct nccl_wish *wish)
{
    const char *set = getenv("NCCL_NVLS_ENABLE");
    if (set && strcmp(set, "0") == 0) return mem_strdup("off (NCCL_NVLS_ENABLE=0)");
    if (wish->ndevices < 2) return mem_strdup("impossible with one GPU");
    if (wish->major > 0 && wish->major < 9)
        return mem_printf("impossible with compute capability %d (9 or more)", wish->major);
    return mem_printf("on%s%s where an NVLink switch has it; NCCL decides",
                      set ? ", NCCL_NVLS_ENABLE=" : "", set ? set : "");
}

static char *describe_files(void)
{
    const char *home = getenv("HOME");
    char *own = mem_printf("%s/.nccl.conf", home ? home : "");
    bool there[] = {access("/etc/nccl.conf", R_OK) == 0, home && access(own, R_OK) == 0};
    char *text = mem_printf("%s%s%s%s", there[0] || there[1] ? "NCCL reads " : "",
                            there[0] ? "/etc/nccl.conf" : "", there[0] && there[1] ? " and " : "",
                            there[1] ? own : "");
    free(own);
    return text;
}

/* Ranks on shared devices: refused, or what makes it possible. */
static int check_devices(const struct nccl_library *library, const struct nccl_wish *wish,
                         struct nccl_setup *setup, struct err *err)
{
    if (wish->nranks <= wish->ndevices) {
        setup->notes = describe_files();
        return 0;
    }
    bool able = library->version >= SHARES_DEVICES;
    if (!able && !wish->hostid_trick) {
        return err_add(err, ERR_USAGE,
                       "%s takes one rank per GPU: %u ranks, %u GPU%s (from 2.30.3 on, "
                       "NCCL_MULTI_RANK_GPU_ENABLE=1 allows more)",
                       library->text, wish->nranks, wish->ndevices, wish->ndevices == 1 ? "" : "s");
    }
    char *files = describe_files();
    setup->notes = mem_printf("%s%s%s",
                              wish->hostid_trick
                                  ? "every rank pretends to be a host (NCCL_HOSTID): data go over "
                                    "sockets, its times mean nothing"
                                  : "ranks share GPUs (NCCL_MULTI_RANK_GPU_ENABLE=1)",
                              *files ? "; " : "", files);
    free(files);
    return 0;
}

int nccl_find(struct nccl_setup *setup, const struct nccl_wish *wish, struct err *err)
{
    *setup = (struct nccl_setup){0};
    struct nccl_library *library = nccl_load(err);
    if (!library) return -1;
    size_t used = 0;
    setup->env = mem_calloc(3, sizeof *setup->env);
    if (wish->algo) setup->env[used++] = mem_printf("NCCL_ALGO=%s", wish->algo);
    if (wish->proto) setup->env[used++] = mem_printf("NCCL_PROTO=%s", wish->proto);
    setup->library = mem_strdup(library->text);
    setup->stub = library->stub;
    setup->version = library->version;
    setup->major = wish->major;
    setup->algo = asked(wish->algo, "NCCL_ALGO");
    setup->proto = asked(wish->proto, "NCCL_PROTO");
    setup->ctas = describe_ctas();
    setup->nvls = describe_nvls(wish);
    int rc = check_devices(library, wish, setup, err);
    nccl_library_free(library);
    return rc;
}

void nccl_setup_release(struct nccl_setup *setup)
{
    for (size_t i = 0; setup->env && setup->env[i]; i++)
        free(setup->env[i]);
    free(setup->env);
    free(setup->library);
    free(setup->algo);
    free(setup->proto);
    free(setup->ctas);
    free(setup->nvls);
    free(setup->notes);
    *setup = (struct nccl_setup){0};
}
