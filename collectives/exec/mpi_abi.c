/* SPDX-License-Identifier: Apache-2.0
 * The tables: see mpi_abi.h. Sources: mpi.h of MPICH 4.0.2 (its ABI has been frozen since 3.1.1 by
 * the MPICH ABI Compatibility Initiative) and mpi.h of Open MPI 4.1.4. */
#include "exec/mpi_abi.h"

/* Every rank may run on every core: the ranks bind themselves. "-launcher fork -rmk user" keeps
 * the run on this machine inside of a batch job, too. */
static const char *const mpich_options[] = {"-bind-to", "none", "-launcher", "fork",
                                            "-rmk",     "user", NULL};

/* The proxies are started by the launchers of their hosts (launch_hydra.c), which also end the
 * ranks when one has failed: so a rank may leave without MPI_Finalize, as mpi_library.c has them
 * do. */
static const char *const mpich_spread[] = {
    "-bind-to", "none", "-launcher", "manual", "-rmk", "user", "-disable-auto-cleanup", NULL};
static const char *const mpich_libraries[] = {"libmpi.so.12", "libmpich.so.12", NULL};

/* Over shared memory ob1 with vader is the fastest of Open MPI's ways for two ranks. */
static const char *const open_options[] = {"--host",
                                           "localhost",
                                           "--bind-to",
                                           "none",
                                           "--oversubscribe",
                                           "--allow-run-as-root",
                                           "--mca",
                                           "pml",
                                           "ob1",
                                           "--mca",
                                           "btl",
                                           "self,vader",
                                           NULL};
static const char *const open_libraries[] = {"libmpi.so.40", NULL};

static const struct mpi_abi abis[MPI_FAMILIES] =
    {
        [MPI_MPICH] =
            {
                .name = "MPICH",
                .sign = "HYDRA",
                .version_after = "Version:",
                .rank_variable = "PMI_RANK",
                .options = mpich_options,
                .spread = mpich_spread,
                .libraries = mpich_libraries,
                .world = {0x44000000, NULL},
                .errors_return = {0x54000001, NULL},
                .info_null = {0x1c000000, NULL},
                .request_null = {0x2c000000, NULL},
                .dtype = {[DT_INT8] = {0x4c000137, NULL},
                          [DT_UINT8] = {0x4c00013b, NULL},
                          [DT_INT32] = {0x4c000439, NULL},
                          [DT_UINT32] = {0x4c00043d, NULL},
                          [DT_INT64] = {0x4c00083a, NULL},
                          [DT_UINT64] = {0x4c00083e, NULL},
                          [DT_FLOAT] = {0x4c00040a, NULL},
                          [DT_DOUBLE] = {0x4c00080b, NULL}},
                .bits8 = {0x4c00013b, NULL},
                .bits16 = {0x4c00023c, NULL},
                .op = {[OP_SUM] = {0x58000003, NULL},
                       [OP_PROD] = {0x58000004, NULL},
                       [OP_MAX] = {0x58000001, NULL},
                       [OP_MIN] = {0x58000002, NULL}},
                .in_place = UINTPTR_MAX,
                .status_ignore = 1,
                .tag_ub = 0x64400001,
                .request_bytes = 4,
                .status_bytes = 20,
                .status_error = 16,
            },
        [MPI_OPEN] =
            {
                .name = "Open MPI",
                .sign = "(Open",
                .version_after = ") ",
                .rank_variable = "OMPI_COMM_WORLD_RANK",
                .options = open_options,
                .libraries = open_libraries,
                .world = {0, "ompi_mpi_comm_world"},
                .errors_return = {0, "ompi_mpi_errors_return"},
                .info_null = {0, "ompi_mpi_info_null"},
                .request_null = {0, "ompi_request_null"},
                .dtype = {[DT_INT8] = {0, "ompi_mpi_int8_t"},
                          [DT_UINT8] = {0, "ompi_mpi_uint8_t"},
                          [DT_INT32] = {0, "ompi_mpi_int32_t"},
                          [DT_UINT32] = {0, "ompi_mpi_uint32_t"},
                          [DT_INT64] = {0, "ompi_mpi_int64_t"},
                          [DT_UINT64] = {0, "ompi_mpi_uint64_t"},
                          [DT_FLOAT] = {0, "ompi_mpi_float"},
                          [DT_DOUBLE] = {0, "ompi_mpi_double"}},
                .bits8 = {0, "ompi_mpi_uint8_t"},
                .bits16 = {0, "ompi_mpi_uint16_t"},
                .op = {[OP_SUM] = {0, "ompi_mpi_op_sum"},
                       [OP_PROD] = {0, "ompi_mpi_op_prod"},
                       [OP_MAX] = {0, "ompi_mpi_op_max"},
                       [OP_MIN] = {0, "ompi_mpi_op_min"}},
                .in_place = 1,
                .status_ignore = 0,
                .tag_ub = 0,
                .request_bytes = 8,
                .status_bytes = 24,
                .status_error = 8,
            },
};

const struct mpi_abi *mpi_abi_get(enum mpi_family family)
{
    return &abis[family];
}
