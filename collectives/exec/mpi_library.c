/* SPDX-License-Identifier: Apache-2.0
 * A rank's side of MPI: opening the library. See mpi.h. */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/mpi.h"
#include "exec/mpi_env.h"

enum { TEXT_BYTES = 8192 }; /* most that either library writes into a string: MPICH's version */
enum { LEAVE_MS = 2000 };   /* the launcher's answer to who leaves; none is needed */

static const struct mpi_name base_names[] = {
    {"MPI_Init", offsetof(struct mpi_base, init)},
    {"MPI_Finalize", offsetof(struct mpi_base, finalize)},
    {"MPI_Comm_rank", offsetof(struct mpi_base, rank)},
    {"MPI_Comm_size", offsetof(struct mpi_base, size)},
    {"MPI_Comm_set_errhandler", offsetof(struct mpi_base, set_errhandler)},
    {"MPI_Error_string", offsetof(struct mpi_base, error_text)},
    {"MPI_Get_library_version", offsetof(struct mpi_base, version_text)},
    {"MPI_Test", offsetof(struct mpi_base, test)},
    {"MPI_Iprobe", offsetof(struct mpi_base, probe)},
};

/* Tries PREFIX/lib/NAME, PREFIX/lib64/NAME, then NAME where the loader looks. */
static void *open_library(const struct mpi_abi *abi, const char *prefix, struct err *err)
{
    static const char *const folders[] = {"/lib/", "/lib64/", NULL};
    char *why = NULL;
    for (size_t f = 0; f < 3; f++) {
        for (const char *const *name = abi->libraries; *name; name++) {
            char *path =
                mem_printf("%s%s%s", folders[f] ? prefix : "", folders[f] ? folders[f] : "", *name);
            bool there = !folders[f] || access(path, R_OK) == 0;
            void *library = there ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
            free(path);
            if (library) {
                free(why);
                return library;
            }
            if (!there || why) continue;
            const char *text = dlerror();
            why = mem_strdup(text ? text : "it cannot be opened");
        }
    }
    err_add(err, ERR_FAILED, "the library of %s cannot be opened: %s", abi->name, why);
    free(why);
    return NULL;
}

uintptr_t mpi_library_handle(const struct mpi_library *mpi, const struct mpi_handle *row)
{
    return row->symbol ? (uintptr_t)dlsym(mpi->library, row->symbol) : row->value;
}

int mpi_library_find(const struct mpi_library *mpi, const struct mpi_name *names, size_t count,
                     void *functions, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(mpi->library, names[i].name);
        if (!symbol)
            return err_add(err, ERR_FAILED, "the library of %s has no %s", mpi->abi->name,
                           names[i].name);
        memcpy((char *)functions + names[i].offset, &symbol, sizeof symbol);
    }
    return 0;
}

static int find_base(struct mpi_library *mpi, struct err *err)
{
    size_t count = sizeof base_names / sizeof *base_names;
    if (mpi_library_find(mpi, base_names, count, &mpi->fn, err)) return -1;
    mpi->world = mpi_library_handle(mpi, &mpi->abi->world);
    memcpy(&mpi->status_ignore, &mpi->abi->status_ignore, sizeof mpi->status_ignore);
    if (mpi->world) return 0;
    return err_add(err, ERR_FAILED, "the library of %s has no communicator of all ranks",
                   mpi->abi->name);
}

/* The first line, tabs as blanks. `wanted` is the version of mpiexec: library and launcher of two
 * installations would not find each other. */
static int check_version(struct mpi_library *mpi, const char *wanted, struct err *err)
{
    char *text = mem_calloc(TEXT_BYTES, 1);
    int length;
    mpi->fn.version_text(text, &length);
    text[strcspn(text, "\r\n")] = '\0';
    for (char *at = text; (at = strchr(at, '\t'));)
        *at = ' ';
    mpi->version = text;
    if (strstr(text, wanted)) return 0;
    return err_add(err, ERR_FAILED, "mpiexec is %s %s, but the library found is \"%s\"",
                   mpi->abi->name, wanted, text);
}

/* While the rank waits elsewhere: MPI need not do anything for peers outside of its calls, so that
 * a message or an answer that could not go at once, say because the library was still connecting,
 * goes when it is next called. A look for what the own rank sent would not reach the network. Who
 * waits for a peer that failed is told so by the launcher. */
static void drive(struct rank *rk)
{
    const struct mpi_library *mpi = rk->mpi;
    int there = 0;
    mpi->fn.probe((intptr_t)((rk->rank + 1) % rk->nranks), 0, mpi->world, &there,
                  mpi->status_ignore);
}

static int initialise(struct mpi_library *mpi, struct err *err)
{
    int rank, size, rc = mpi->fn.init(NULL, NULL);
    if (rc) return err_add(err, ERR_FAILED, "MPI_Init fails with code %d", rc);
    mpi->initialised = true;
    /* Hydra tells ranks so that another one has left without MPI_Finalize: see library_free. */
    if (world_nhosts(mpi->rk->world) > 1) signal(SIGUSR1, SIG_IGN);
    rank_tick(mpi->rk);
    uintptr_t errors_return = mpi_library_handle(mpi, &mpi->abi->errors_return);
    if (errors_return) mpi->fn.set_errhandler(mpi->world, errors_return);
    mpi->fn.rank(mpi->world, &rank);
    mpi->fn.size(mpi->world, &size);
    if ((uint32_t)rank == mpi->rk->rank && (uint32_t)size == mpi->rk->nranks) return 0;
    return err_add(err, ERR_FAILED,
                   "MPI takes rank %u of %u for rank %d of %d; its mpiexec must start all ranks, "
                   "once and in this order",
                   mpi->rk->rank, mpi->rk->nranks, rank, size);
}

/* Tells MPICH's launcher, in words of its PMI 1, that this process ends of its own will. */
static void take_leave(void)
{
    const char *number = getenv("PMI_FD");
    static const char words[] = "cmd=finalize\n";
    char answer[64];
    struct pollfd socket = {.fd = number ? atoi(number) : -1, .events = POLLIN};
    if (socket.fd < 0 || write(socket.fd, words, sizeof words - 1) < 0) return;
    if (poll(&socket, 1, LEAVE_MS) > 0 && read(socket.fd, answer, sizeof answer) < 0) return;
}

/* Over several hosts nobody finalises. MPICH 4.0.2 with UCX 1.13.1 hung in MPI_Finalize over four
 * hosts in about every second run: a rank that is through with its connections waits for the others
 * at their launcher, no longer driving UCX, while another waits for UCX's answer from it. Ranks
 * come here behind a barrier of our own, with nothing under way, and their mpiexec lets them go:
 * 100 of 100 runs over two hosts ended so. */
static void library_free(struct mpi_library *mpi)
{
    if (mpi->initialised && world_nhosts(mpi->rk->world) > 1) {
        take_leave();
    } else if (mpi->initialised) {
        mpi->fn.finalize();
        rank_tick(mpi->rk);
    }
    free(mpi->version); /* the library stays: what it left running must not lose its code */
    free(mpi);
}

struct mpi_library *mpi_library_open(struct rank *rk, struct err *err)
{
    if (rk->mpi) {
        rk->mpi->users++;
        return rk->mpi;
    }
    const char *chosen = getenv(MPI_ENV);
    char *version = NULL;
    unsigned family = MPI_FAMILIES;
    int at = 0;
    struct mpi_library *mpi = NULL;
    if (!chosen || sscanf(chosen, "%u %ms %n", &family, &version, &at) < 2 ||
        family >= MPI_FAMILIES) {
        err_add(err, ERR_FAILED, "this rank was not started by an mpiexec");
        goto out;
    }
    mpi = mem_calloc(1, sizeof *mpi);
    mpi->rk = rk;
    mpi->abi = mpi_abi_get((enum mpi_family)family);
    mpi->users = 1;
    mpi->library = open_library(mpi->abi, chosen + at, err);
    if (mpi->library && !find_base(mpi, err) && !check_version(mpi, version, err) &&
        !initialise(mpi, err)) {
        rk->mpi = mpi;
        rk->drive = drive;
        goto out;
    }
    library_free(mpi);
    mpi = NULL;
out:
    free(version);
    return mpi;
}

void mpi_library_close(struct mpi_library *mpi)
{
    if (!mpi || --mpi->users > 0) return;
    mpi->rk->mpi = NULL;
    mpi->rk->drive = NULL;
    library_free(mpi);
}

int mpi_library_error(const struct mpi_library *mpi, int code, const char *what, struct err *err)
{
    char *text = mem_calloc(TEXT_BYTES, 1);
    int length;
    mpi->fn.error_text(code, text, &length);
    text[strcspn(text, "\r\n")] = '\0';
    err_add(err, ERR_FAILED, "%s fails: %s", what, text);
    free(text);
    return -1;
}
