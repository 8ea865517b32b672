/* SPDX-License-Identifier: Apache-2.0
 * Where the shipped files are. The program looks beside itself first, so that a build folder and a
 * moved copy use their own files; the folders fixed at build time come last. */
#include "base/ship.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* Folder of the running program, without a slash at its end; NULL if the kernel does not say. */
static char *program_folder(void)
{
    char *path = realpath("/proc/self/exe", NULL);
    char *slash = path ? strrchr(path, '/') : NULL;
    if (slash) {
        *slash = '\0';
    }
    return path;
}

char *ship_folder(const char *folder)
{
    static const char *const beside[] = {"", "/..", "/../share/collbench"};
    static const char *const fixed[] = {SHIP_SOURCE, SHIP_INSTALL};
    char *program = program_folder(), *path = NULL;
    for (size_t i = 0; program && !path && i < sizeof beside / sizeof *beside; i++) {
        path = mem_printf("%s%s/%s", program, beside[i], folder);
        if (!is_folder(path)) {
            free(path);
            path = NULL;
        }
    }
    for (size_t i = 0; !path && i < sizeof fixed / sizeof *fixed; i++) {
        path = mem_printf("%s/%s", fixed[i], folder);
        if (!is_folder(path)) {
            free(path);
            path = NULL;
        }
    }
    free(program);
    return path;
}

/* `path` or `path`+suffix, whichever is a file; NULL if neither. */
static char *with_suffix(const char *path, const char *suffix)
{
    if (is_file(path)) {
        return mem_strdup(path);
    }
    char *longer = mem_printf("%s%s", path, suffix);
    if (is_file(longer)) {
        return longer;
    }
    free(longer);
    return NULL;
}

char *ship_find(const char *folder, const char *name, const char *suffix)
{
    char *found = *name ? with_suffix(name, suffix) : NULL;
    /* a name with a slash is a path: it never reaches into the shipped folder */
    char *shipped = found || !*name || strchr(name, '/') ? NULL : ship_folder(folder);
    if (shipped) {
        char *path = mem_printf("%s/%s", shipped, name);
        found = with_suffix(path, suffix);
        free(path);
    }
    free(shipped);
    return found;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **ship_names(const char *folder, const char *suffix, size_t *count)
{
    size_t n = 0, cap = 0, tail = strlen(suffix);
    char **names = NULL, *path = ship_folder(folder);
    DIR *dir = path ? opendir(path) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        size_t length = strlen(e->d_name);
        if (length > tail && strcmp(e->d_name + length - tail, suffix) == 0) {
            MEM_GROW(names, n, cap);
            names[n++] = mem_printf("%.*s", (int)(length - tail), e->d_name);
        }
    }
    if (dir) {
        closedir(dir);
    }
    free(path);
    if (n > 1) {
        qsort(names, n, sizeof *names, by_name);
    }
    MEM_GROW(names, n, cap);
    names[n] = NULL;
    if (count) {
        *count = n;
    }
    return names;
}

void ship_names_free(char **names)
{
    for (char **name = names; names && *name; name++) {
        free(*name);
    }
    free(names);
}
