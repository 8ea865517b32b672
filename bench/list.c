/* SPDX-License-Identifier: Apache-2.0
 * `collbench list`: see list.h. Everything comes from the tables of the other folders. */
#include "bench/list.h"

#include <stdio.h>

#include "algo/algo.h"
#include "base/opts.h"
#include "bench/bound.h"
#include "exec/transport.h"
#include "kernels/kernels.h"
#include "ref/mpi.h"
#include "ref/nccl.h"

static void list_operations(void)
{
    printf("Operations\n");
    for (int id = 0; id < COLL_COUNT; id++) {
        const struct coll *coll = coll_get((enum coll_id)id);
        printf("  %-16s%s; busbw = algbw x %s\n", coll->name, coll->promise, coll->busbw);
    }
}

static void list_rows(bool run_here)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    printf("  %-16s%-24s%-10s%-10s%s\n", "operation", "algorithm", "symmetry", "channels", "what");
    for (size_t i = 0; i < count; i++) {
        const struct algo *algo = &table[i];
        if (algo_runs_on_ranks(algo) != run_here) continue;
        printf("  %-16s%-24s%-10s%-10u%s%s (%s)\n", coll_get(algo->coll)->name, algo->name,
               algo->symmetry == SYM_SHIFT ? "shift" : "none", algo->channels, algo->what,
               algo->grouped ? "; looks at --nodes" : "", algo->paper);
    }
}

static void list_algorithms(void)
{
    printf("\nAlgorithms (shift: one program, turned by the rank; channels: default)\n");
    list_rows(true);
    printf("\nAlgorithms for commsim alone: agents in the switches reduce and multicast, which no "
           "transport here can have them do\n");
    list_rows(false);
}

/* Ways to reach a peer's memory that no transport takes, and why. */
static const struct {
    const char *name, *why;
} not_built[] = {
    {"cuda-vmm", "memory is shared by CUDA IPC handles alone, not by those of cuMem"},
    {"cuda-fabric", "handles for GPUs of other machines of a rack: ranks run on one"},
    {"nvls", "reduction inside an NVLink switch, over multicast memory"},
    {"mpi-rma",
     "MPI_Win_flush holds the sender of an 8 B put for 13 to 25 ms while its target computes "
     "for 10 ms; MPI_Isend returns in 2 to 17 us (MPICH 4.0.2)"},
};

static void list_transports(void)
{
    printf("\nTransports\n");
    for (const struct transport *const *at = transport_table(); *at; at++) {
        const char *why = (*at)->absent();
        printf("  %-16s", (*at)->name);
        for (int mode = 0; mode < WIRE_MODE_COUNT; mode++) {
            if ((*at)->modes >> mode & 1) printf("%s ", wire_mode_name((enum wire_mode)mode));
        }
        const char *none;
        const struct gpu *gpu = (*at)->device ? gpu_open(&none) : NULL;
        printf("%s%s%s\n", why ? "- cannot be used here: " : "", why ? why : "",
               gpu && gpu->emulated ? "- on emulated GPUs, whose times mean nothing" : "");
    }
    for (size_t i = 0; i < sizeof not_built / sizeof *not_built; i++)
        printf("  %-16s- not built: %s\n", not_built[i].name, not_built[i].why);
}

static const char unusable[] = "cannot be used here: ";

static void list_mpi(void)
{
    struct mpi_setup mpi = {0};
    struct err why = ERR_INIT;
    bool found = mpi_find(&mpi, NULL, 2, &why) == 0;
    printf("  %-16s%s%s\n", "mpi", found ? "" : unusable, found ? mpi.text : why.text);
    mpi_setup_release(&mpi);
    err_release(&why);
}

/* The library may be there without a GPU to use it on. */
static void list_nccl(void)
{
    struct err why = ERR_INIT;
    struct nccl_library *nccl = nccl_load(&why);
    int devices;
    const char *no_gpu = NULL;
    bool gpu = gpu_devices(&devices, &no_gpu) != NULL;
    printf("  %-16s%s%s%s%s\n", "nccl", nccl && gpu ? "" : unusable,
           nccl ? nccl_text(nccl) : why.text, gpu ? "" : "; ", gpu ? "" : no_gpu);
    nccl_library_free(nccl);
    err_release(&why);
}

static void list_libraries(void)
{
    printf("\nLibraries to compare with (--vs)\n");
    list_mpi();
    list_nccl();
}

static void list_types(void)
{
    printf("\nTypes          ");
    for (int dtype = 0; dtype < DT_COUNT; dtype++)
        printf(" %s", dtype_name((enum dtype)dtype));
    printf("\nOperators      ");
    for (int op = 0; op < OP_COUNT; op++)
        printf(" %s", redop_name((enum redop)op));
    printf("\nKernels        ");
    for (const struct kernels *const *at = kernels_all(); *at; at++)
        printf(" %s", (*at)->name);
    printf("\n");
}

int version_print(void)
{
    printf("collbench %s\n", COLLBENCH_VERSION);
    return 0;
}

int list_cmd(int argc, char **argv)
{
    static const struct opts_row rows[] = {{.name = NULL}};
    struct opts opts;
    struct err err = ERR_INIT;
    char unused;
    opts_parse(&opts, rows, &unused, argc, argv, &err);
    if (err.count == 0 && opts.npositionals > 0) {
        err_add(&err, ERR_USAGE, "takes no words, \"%s\" was given", opts.positionals[0]);
    }
    if (opts.help) {
        opts_help(stdout, "collbench list", "Prints what can be asked for on this machine.", rows);
    } else if (err.count == 0) {
        list_operations();
        list_algorithms();
        list_transports();
        list_libraries();
        list_types();
        printf("\nLeast bytes per rank behind %%bound, in units of the size, mean over n ranks "
               "(out of place; in place)\n");
        bound_print(stdout);
    }
    int status = (int)err.code;
    err_print(&err, "collbench list");
    err_release(&err);
    opts_release(&opts);
    return status;
}
