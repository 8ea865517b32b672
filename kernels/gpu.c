/* SPDX-License-Identifier: Apache-2.0
 * Opening the GPU plug-in: see gpu.h. Looked for once; what was found, or why nothing was, stays.
 */
#include "kernels/gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, REASON_BYTES = 1024 };

static const char plugin_file[] = "collbench_cuda.so";

static struct {
    const struct gpu *gpu;
    char why[REASON_BYTES];
} found;
static pthread_once_t found_once = PTHREAD_ONCE_INIT;

const char *gpu_version_name(enum gpu_version version)
{
    static const char *const names[GPU_VERSION_COUNT] = {"naive", "vector", "flight"};
    return names[version];
}

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(found.why, sizeof found.why, "the GPU plug-in cannot be loaded: %s", dlerror());
        return;
    }
    const struct gpu *(*plugin)(void);
    *(void **)(void *)&plugin = dlsym(library, "gpu_plugin");
    const struct gpu *gpu = plugin ? plugin() : NULL;
    if (gpu && gpu->abi == GPU_ABI) {
        found.gpu = gpu;
        return;
    }
    snprintf(found.why, sizeof found.why,
             "%s is not a GPU plug-in of this version (it says %d, this is %d)", path,
             gpu ? gpu->abi : 0, GPU_ABI);
    dlclose(library);
}

/* The plug-in lies beside the program, or where it is installed. */
static void look(void)
{
    const char *named = getenv("COLLBENCH_GPU_PLUGIN");
    if (named && *named) {
        load(named);
        return;
    }
    static const char *const places[] = {"", "../lib/collbench/"};
    char program[PATH_BYTES], path[PATH_BYTES + 64];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) slash[1] = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%s%s", program, places[i], plugin_file);
        if (access(path, R_OK) == 0) {
            load(path);
            return;
        }
    }
    snprintf(found.why, sizeof found.why,
             "not built: there is no %s beside the program or in ../lib/collbench (it needs nvcc)",
             plugin_file);
}

const struct gpu *gpu_open(const char **why)
{
    pthread_once(&found_once, look);
    *why = found.why;
    return found.gpu;
}

/* ---- devices ---- */

static struct {
    int devices;
    char why[REASON_BYTES];
} counted;
static pthread_once_t counted_once = PTHREAD_ONCE_INIT;

static void count_devices(void)
{
    const char *why;
    const struct gpu *gpu = gpu_open(&why);
    if (!gpu) {
        snprintf(counted.why, sizeof counted.why, "%s", why);
        return;
    }
    int devices = 0, error = gpu->count(&devices);
    if (error) {
        snprintf(counted.why, sizeof counted.why, "no usable GPU: %s (%s)", gpu->error_name(error),
                 gpu->error_text(error));
    } else if (devices <= 0) {
        snprintf(counted.why, sizeof counted.why, "no usable GPU: the device count is 0");
    } else {
        counted.devices = devices;
    }
}

const struct gpu *gpu_devices(int *devices, const char **why)
{
    pthread_once(&counted_once, count_devices);
    *devices = counted.devices;
    *why = counted.why;
    return counted.devices > 0 ? found.gpu : NULL;
}

int gpu_check(const struct gpu *gpu, int error, struct err *err, const char *what, ...)
{
    if (!error) return 0;
    char text[256];
    va_list args;
    va_start(args, what);
    vsnprintf(text, sizeof text, what, args);
    va_end(args);
    return err_add(err, ERR_FAILED, "%s: %s (%s)", text, gpu->error_name(error),
                   gpu->error_text(error));
}
