/* SPDX-License-Identifier: Apache-2.0
 * What we say of NCCL's binary interface against the library's own header, line by line, and the
 * library itself where there is one (NCCL_LIBRARY): its version, its functions, and that without a
 * driver there is a reason instead of a crash. */
#include <criterion/criterion.h>

#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "ref/nccl.h"
#include "ref/nccl_abi.h"

/* ---- the header ----------------------------------------------------------------------------- */

Test(nccl_abi, numbers_are_those_of_the_header)
{
    static const struct {
        int ours, theirs;
    } rows[] = {
        {DT_INT8, ncclInt8},
        {DT_UINT8, ncclUint8},
        {DT_INT32, ncclInt32},
        {DT_UINT32, ncclUint32},
        {DT_INT64, ncclInt64},
        {DT_UINT64, ncclUint64},
        {DT_HALF, ncclFloat16},
        {DT_FLOAT, ncclFloat32},
        {DT_DOUBLE, ncclFloat64},
        {DT_BFLOAT16, ncclBfloat16},
#if NCCL_VERSION_CODE >= 22400
        {DT_F8E4M3, ncclFloat8e4m3},
        {DT_F8E5M2, ncclFloat8e5m2},
#endif
        {OP_SUM, ncclSum},
        {OP_PROD, ncclProd},
        {OP_MAX, ncclMax},
        {OP_MIN, ncclMin},
        {OP_AVG, ncclAvg},
        {NCCL_SUCCESS, ncclSuccess},
        {NCCL_IN_PROGRESS, ncclInProgress},
#if NCCL_VERSION_CODE >= 22700
        {NCCL_WINDOW_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC},
#endif
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(rows[i].ours, rows[i].theirs, "row %zu", i);
    cr_expect_eq(NCCL_ID_BYTES, NCCL_UNIQUE_ID_BYTES);
    cr_expect_eq(sizeof(nccl_id), sizeof(ncclUniqueId));
    cr_expect_eq(sizeof(nccl_result), sizeof(ncclResult_t));
    cr_expect_eq(sizeof(nccl_dtype), sizeof(ncclDataType_t));
    cr_expect_eq(sizeof(nccl_redop), sizeof(ncclRedOp_t));
    cr_expect_eq(NCCL_NUMBER(2, 28, 9), NCCL_VERSION(2, 28, 9));
}

/* The list of functions once more, with the header's types under our names. */
#define nccl_result ncclResult_t
#define nccl_dtype ncclDataType_t
#define nccl_redop ncclRedOp_t
#define nccl_id ncclUniqueId
#define nccl_comm ncclComm_t
#define nccl_window ncclWindow_t
#define nccl_stream cudaStream_t

#define NCCL_FUNCTION(need, result, name, symbol, parameters)                                      \
    cr_expect(__builtin_types_compatible_p(__typeof__(symbol), result parameters), #symbol);

Test(nccl_abi, functions_are_declared_so_in_the_header)
{
    if (NCCL_VERSION_CODE < 22800) cr_skip_test("the header is older than the list");
#include "ref/nccl_functions.h"
}
#undef NCCL_FUNCTION
#undef nccl_result
#undef nccl_dtype
#undef nccl_redop
#undef nccl_id
#undef nccl_comm
#undef nccl_window
#undef nccl_stream

/* ---- the library ---------------------------------------------------------------------------- */

static struct nccl_library *real(void)
{
    struct err err = ERR_INIT;
    setenv("COLLBENCH_GPU_PLUGIN", EMULATED_PLUGIN, 1);
    setenv("COLLBENCH_NCCL", NCCL_LIBRARY, 1);
    if (!*NCCL_LIBRARY) cr_skip_test("no libnccl.so.2 here");
    struct nccl_library *library = nccl_load(&err);
    cr_assert_not_null(library, "%s", err.text);
    return library;
}

Test(nccl_abi, the_library_has_the_functions)
{
    struct nccl_library *library = real();
    cr_expect_eq(nccl_version(library), NCCL_VERSION_CODE);
    cr_expect_not(library->stub);
    cr_expect_eq(strncmp(nccl_text(library), "NCCL 2.", 7), 0, "%s", nccl_text(library));
    void *handle = dlopen(NCCL_LIBRARY, RTLD_NOW);
    cr_assert_not_null(handle);
#define NCCL_FUNCTION(need, result, name, symbol, parameters)                                      \
    cr_expect(dlsym(handle, #symbol) == (void *)library->fn.name && library->fn.name, #symbol);
#include "ref/nccl_functions.h"
#undef NCCL_FUNCTION
    dlclose(handle);
    nccl_library_free(library);
}

static void alone(void *ctx, void *bytes, size_t count)
{
    (void)ctx;
    (void)bytes;
    (void)count;
}

Test(nccl_abi, without_a_driver_there_is_a_reason)
{
    struct nccl_library *library = real();
    struct err err = ERR_INIT;
    const char *why;
    const struct gpu *gpu = gpu_open(&why);
    cr_assert_not_null(gpu, "%s", why);
    struct nccl_spec spec = {.library = library, .gpu = gpu, .nranks = 1, .share = alone};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver) cr_skip_test("there is a driver");
    struct nccl *nccl = nccl_open(&spec, &err);
    cr_assert_null(nccl);
    cr_expect_eq(err.code, ERR_FAILED);
    cr_expect(strstr(err.text, "ncclCommInitRank fails: unhandled cuda error ("), "%s", err.text);
    err_release(&err);
    nccl_library_free(library);
}
