/* SPDX-License-Identifier: Apache-2.0
 * The launcher's side of MPI: which mpiexec there is, whose it is, and how ranks are started under
 * it so that the library is at its best. See mpi.h. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/mpi.h"
#include "exec/mpi_env.h"

/* Freed memory is kept, and is backed by huge pages: MPICH takes a buffer from malloc in each large
 * all-reduce, and with pages taken anew each time that alone makes it many times slower. */
#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static const char malloc_settings[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:"
                                      "glibc.malloc.mmap_threshold=4294967296:"
                                      "glibc.malloc.trim_threshold=8589934592";

/* The first executable file of that name in PATH, freed by the caller; NULL: there is none. */
static char *in_path(const char *name)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t length = strcspn(path, ":");
        char *file = length ? mem_printf("%.*s/%s", (int)length, path, name) : mem_strdup(name);
        if (access(file, X_OK) == 0) return file;
        free(file);
        path += length + (path[length] == ':');
    }
    return NULL;
}

static char *default_mpiexec(void)
{
    char *file = in_path("mpiexec");
    return file ? file : in_path("mpirun");
}

const char *mpi_absent(void)
{
    char *file = getenv(MPI_ENV) ? mem_strdup("") : default_mpiexec();
    bool found = file != NULL;
    free(file);
    return found ? NULL : "no mpiexec in PATH (Debian: mpich)";
}

/* What `file --version` prints on both streams; NULL when it cannot be run. Freed by the caller. */
static char *version_text(const char *file)
{
    int ends[2];
    if (pipe(ends)) return NULL;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", 0, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    char *argv[] = {mem_strdup(file), mem_strdup("--version"), NULL};
    pid_t pid;
    int rc = posix_spawn(&pid, file, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char *text = NULL;
    size_t room = 0;
    FILE *out = fdopen(ends[0], "r");
    ssize_t got = !rc && out ? getdelim(&text, &room, '\0', out) : -1;
    if (out) fclose(out);
    if (!rc) waitpid(pid, NULL, 0);
    free(argv[0]);
    free(argv[1]);
    if (got >= 0) return text;
    free(text);
    return NULL;
}

/* The version number, freed by the caller, if the text is that of a launcher of this row. */
static char *version_of(const struct mpi_abi *abi, const char *text)
{
    const char *at = strstr(text, abi->sign) ? strstr(text, abi->version_after) : NULL;
    if (!at) return NULL;
    at += strlen(abi->version_after);
    at += strspn(at, " \t");
    size_t length = strcspn(at, " \t\r\n");
    return length ? mem_printf("%.*s", (int)length, at) : NULL;
}

/* The directory above the one the program lies in, links followed; freed by the caller. */
static char *prefix_of(const char *file)
{
    char *real = realpath(file, NULL);
    for (int up = 0; real && up < 2; up++) {
        char *slash = strrchr(real, '/');
        if (slash) *slash = '\0';
    }
    return real ? real : mem_strdup("");
}

static void fill(struct mpi_setup *setup, enum mpi_family family, const char *file,
                 const char *version, uint32_t nranks, const char *const *options)
{
    const struct mpi_abi *abi = mpi_abi_get(family);
    size_t noptions = 0, used = 0;
    while (options[noptions])
        noptions++;
    setup->words = mem_calloc(noptions + 4, sizeof *setup->words);
    setup->words[used++] = mem_strdup(file);
    setup->words[used++] = mem_strdup("-n");
    setup->words[used++] = mem_printf("%u", nranks);
    for (size_t i = 0; i < noptions; i++)
        setup->words[used++] = mem_strdup(options[i]);
    char *prefix = prefix_of(file);
    setup->env = mem_calloc(4, sizeof *setup->env);
    setup->env[0] = mem_printf(MPI_ENV "=%d %s %s", (int)family, version, prefix);
    setup->env[1] = mem_strdup(malloc_settings);
    if (SANITIZED) setup->env[2] = mem_strdup("ASAN_OPTIONS=detect_leaks=0"); /* MPI's own */
    setup->rank_variable = abi->rank_variable;
    setup->text = mem_printf("%s %s by %s, %s", abi->name, version, file, malloc_settings);
    free(prefix);
}

static int find(struct mpi_setup *setup, const char *mpiexec, uint32_t nranks, bool spread,
                struct err *err)
{
    *setup = (struct mpi_setup){0};
    char *file = mpiexec ? mem_strdup(mpiexec) : default_mpiexec();
    if (!file) return err_add(err, ERR_USAGE, "%s", mpi_absent());
    if (mpiexec && access(file, X_OK) && !strchr(file, '/')) {
        free(file);
        file = in_path(mpiexec);
    }
    char *text = file ? version_text(file) : NULL, *version = NULL;
    int rc = 0;
    for (int family = 0; text && !version && family < MPI_FAMILIES; family++) {
        const struct mpi_abi *abi = mpi_abi_get((enum mpi_family)family);
        const char *const *options = spread ? abi->spread : abi->options;
        version = version_of(abi, text);
        if (version && options) {
            fill(setup, (enum mpi_family)family, file, version, nranks, options);
        } else if (version) {
            rc = err_add(err, ERR_USAGE,
                         "%s is that of %s, which starts ranks on one host only; over several use "
                         "--transport tcp, shm+tcp or shm+ofi, or the mpiexec of MPICH (--mpiexec)",
                         file, abi->name);
        }
    }
    if (!text) {
        err_add(err, ERR_USAGE, "%s cannot be run or says nothing about its version",
                file ? file : mpiexec);
    } else if (!version) {
        err_add(err, ERR_USAGE,
                "%s is neither MPICH's (Hydra) nor Open MPI's: it says \"%.*s\" about its version",
                file, (int)strcspn(text, "\r\n"), text);
    }
    if (!version) rc = -1;
    free(version);
    free(text);
    free(file);
    return rc;
}

int mpi_find(struct mpi_setup *setup, const char *mpiexec, uint32_t nranks, struct err *err)
{
    return find(setup, mpiexec, nranks, false, err);
}

int mpi_find_spread(struct mpi_setup *setup, const char *mpiexec, uint32_t nranks, struct err *err)
{
    return find(setup, mpiexec, nranks, true, err);
}

static void free_list(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

void mpi_setup_release(struct mpi_setup *setup)
{
    free_list(setup->words);
    free_list(setup->env);
    free(setup->text);
    *setup = (struct mpi_setup){0};
}
