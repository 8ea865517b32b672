/* SPDX-License-Identifier: Apache-2.0
 * The tables of MPI's binary interface against MPICH's own header, and what mpi_find makes of what
 * an mpiexec says. Calls are tested under mpiexec: see test_mpi.py. */
#include <criterion/criterion.h>

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "ref/mpi.h"
#include "ref/mpi_verbs.h"

/* ---- MPICH's header ------------------------------------------------------------------------- */

Test(ref, handles_are_those_of_the_header)
{
    const struct mpi_abi *abi = mpi_abi_get(MPI_MPICH);
    const struct {
        const char *name;
        struct mpi_handle ours;
        MPI_Comm theirs; /* all handles are ints */
    } rows[] = {
        {"MPI_COMM_WORLD", abi->world, MPI_COMM_WORLD},
        {"MPI_ERRORS_RETURN", abi->errors_return, MPI_ERRORS_RETURN},
        {"MPI_INFO_NULL", abi->info_null, MPI_INFO_NULL},
        {"MPI_REQUEST_NULL", abi->request_null, MPI_REQUEST_NULL},
        {"MPI_INT8_T", abi->dtype[DT_INT8], MPI_INT8_T},
        {"MPI_UINT8_T", abi->dtype[DT_UINT8], MPI_UINT8_T},
        {"MPI_INT32_T", abi->dtype[DT_INT32], MPI_INT32_T},
        {"MPI_UINT32_T", abi->dtype[DT_UINT32], MPI_UINT32_T},
        {"MPI_INT64_T", abi->dtype[DT_INT64], MPI_INT64_T},
        {"MPI_UINT64_T", abi->dtype[DT_UINT64], MPI_UINT64_T},
        {"MPI_FLOAT", abi->dtype[DT_FLOAT], MPI_FLOAT},
        {"MPI_DOUBLE", abi->dtype[DT_DOUBLE], MPI_DOUBLE},
        {"MPI_UINT8_T", abi->bits8, MPI_UINT8_T},
        {"MPI_UINT16_T", abi->bits16, MPI_UINT16_T},
        {"MPI_SUM", abi->op[OP_SUM], MPI_SUM},
        {"MPI_PROD", abi->op[OP_PROD], MPI_PROD},
        {"MPI_MAX", abi->op[OP_MAX], MPI_MAX},
        {"MPI_MIN", abi->op[OP_MIN], MPI_MIN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_null(rows[i].ours.symbol);
        cr_assert_eq(rows[i].ours.value, (uintptr_t)(unsigned)rows[i].theirs, "%s", rows[i].name);
    }
}

Test(ref, addresses_and_sizes_are_those_of_the_header)
{
    const struct mpi_abi *abi = mpi_abi_get(MPI_MPICH);
    cr_assert_eq(abi->in_place, (uintptr_t)MPI_IN_PLACE);
    cr_assert_eq(abi->status_ignore, (uintptr_t)MPI_STATUS_IGNORE);
    cr_assert_eq(abi->tag_ub, MPI_TAG_UB);
    cr_assert_eq(abi->request_bytes, sizeof(MPI_Request));
    cr_assert_eq(abi->status_bytes, sizeof(MPI_Status));
    cr_assert_eq(abi->status_error, offsetof(MPI_Status, MPI_ERROR));
    cr_assert_eq(MPI_SUCCESS, 0);
    /* what goes through a word of the call */
    cr_assert_leq(sizeof(MPI_Comm), sizeof(uintptr_t));
    cr_assert_leq(sizeof(MPI_Request), sizeof(uintptr_t));
    cr_assert_eq(sizeof(MPI_Count), sizeof(intptr_t));
    cr_assert_eq(sizeof(MPI_Aint), sizeof(intptr_t));
    /* our strings have 8192 bytes */
    cr_assert_leq(MPI_MAX_LIBRARY_VERSION_STRING, 8192);
    cr_assert_leq(MPI_MAX_ERROR_STRING, 8192);
}

/* ---- what MPI has --------------------------------------------------------------------------- */

/* A word of the reason why MPI cannot do that; NULL: it can. */
static const char *expected_word(const struct mpi_args *args)
{
    static const enum dtype absent[] = {DT_HALF, DT_BFLOAT16, DT_F8E4M3, DT_F8E5M2};
    if (coll_get(args->coll)->reduces) {
        for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
            if (args->dtype == absent[i]) return "no type";
        }
        if (args->op == OP_AVG) return "average";
    }
    if (args->coll == COLL_BROADCAST && !args->in_place) return "in place only";
    if (args->coll == COLL_ALLTOALLV && args->in_place) return "as long as";
    return args->coll == COLL_BARRIER && args->in_place ? "no data" : NULL;
}

Test(ref, what_mpi_lacks_has_a_reason)
{
    int able = 0;
    for (int i = 0; i < COLL_COUNT * DT_COUNT * OP_COUNT * 2; i++) {
        struct mpi_args args = {.in_place = i % 2,
                                .op = (enum redop)(i / 2 % OP_COUNT),
                                .dtype = (enum dtype)(i / 2 / OP_COUNT % DT_COUNT),
                                .coll = (enum coll_id)(i / 2 / OP_COUNT / DT_COUNT),
                                .block_count = 1};
        const char *word = expected_word(&args), *reason = mpi_lacks(NULL, &args);
        able += !reason;
        cr_assert_eq(reason == NULL, word == NULL, "%d", i);
        if (word) cr_assert_not_null(strstr(reason, word), "%s", reason);
    }
    /* 3 collectives reduce 8 types with 4 operators; 5 move 12 types, whatever the operator (5);
     * both in 2 placements. 3 have one placement. */
    cr_assert_eq(able, 3 * 8 * 4 * 2 + 5 * 12 * 5 * 2 + 3 * 12 * 5);
}

/* What stands for a type must be as wide, or it would move too much. */
Test(ref, types_have_the_width_of_the_header)
{
    const struct mpi_abi *abi = mpi_abi_get(MPI_MPICH);
    for (int i = 0; i < DT_COUNT; i++) {
        size_t width = dtype_bytes((enum dtype)i);
        uintptr_t handle = abi->dtype[i].value;
        if (!handle) handle = width == 1 ? abi->bits8.value : abi->bits16.value;
        cr_assert_eq(handle >> 8 & 0xff, width, "%s", dtype_name((enum dtype)i));
    }
}

/* ---- how it is called ----------------------------------------------------------------------- */

/* Names that stand in this program's libmpi: dlsym finds them as it would in mpi_open. */
Test(ref, functions_are_those_of_the_library)
{
    static const char *const suffixes[] = {"", "_c"};
    static const char *const plain[] = {"MPI_Barrier", "MPI_Ibarrier"}; /* have no counts */
    void *library = dlopen("libmpi.so.12", RTLD_NOW);
    if (!library) library = dlopen("libmpich.so.12", RTLD_NOW);
    cr_assert_not_null(library, "%s", dlerror());
    for (int i = 0; i < MPI_VERBS * MPI_FORM_COUNT * MPI_REQUESTS * 2; i++) {
        const char *name = mpi_verbs[i / 2 / MPI_REQUESTS / MPI_FORM_COUNT]
                               .forms[i / 2 / MPI_REQUESTS % MPI_FORM_COUNT]
                               .names[i / 2 % MPI_REQUESTS];
        if (!name) {
            cr_assert_neq(i / 2 % MPI_REQUESTS, 0, "each form has a function");
            continue;
        }
        bool bare = !strcmp(name, plain[0]) || !strcmp(name, plain[1]);
        char *whole = mem_printf("%s%s", name, suffixes[i % 2]);
        cr_expect(dlsym(library, whole) || (bare && i % 2), "%s", whole);
        free(whole);
    }
    dlclose(library);
}

Test(ref, in_place_the_result_of_reduce_scatter_starts_the_input)
{
    char in, out;
    for (int i = 0; i < COLL_COUNT * 2; i++) {
        struct mpi_args args = {
            .coll = (enum coll_id)(i / 2), .in_place = i % 2, .in = &in, .out = &out};
        bool moved = args.coll == COLL_REDUCE_SCATTER && args.in_place;
        cr_assert_eq(mpi_result(&args), moved ? &in : &out);
    }
}

/* ---- finding mpiexec ------------------------------------------------------------------------ */

static char folder[] = "/tmp/test_ref_XXXXXX";

/* Writes a script that answers --version with `says` and calls it mpiexec; its path. */
static char *fake(const char *says)
{
    cr_assert_not_null(mkdtemp(folder));
    char *path = mem_printf("%s/mpiexec", folder);
    FILE *script = fopen(path, "w");
    cr_assert_not_null(script);
    fprintf(script, "#!/bin/sh\ncat <<'E'\n%s\nE\n", says);
    fclose(script);
    chmod(path, 0755);
    return path;
}

static void discard(char *path)
{
    unlink(path);
    rmdir(folder);
    free(path);
}

static char *joined(char *const *words)
{
    char *text = mem_strdup("");
    for (; *words; words++) {
        char *more = mem_printf("%s%s%s", text, *text ? " " : "", *words);
        free(text);
        text = more;
    }
    return text;
}

static void check_found(const char *says, const char *options, const char *variable,
                        const char *text)
{
    struct err err = ERR_INIT;
    struct mpi_setup setup;
    char *path = fake(says), *wanted = mem_printf("%s %s", path, options);
    cr_assert_eq(mpi_find(&setup, path, 3, &err), 0, "%s", err.text);
    char *words = joined(setup.words);
    cr_assert_str_eq(words, wanted);
    cr_assert_str_eq(setup.rank_variable, variable);
    cr_assert_not_null(strstr(setup.text, text), "%s", setup.text);
    cr_assert_not_null(strstr(setup.env[1], "GLIBC_TUNABLES="));
    mpi_setup_release(&setup);
    free(words);
    free(wanted);
    discard(path);
}

Test(ref, hydra_is_known)
{
    check_found(
        "HYDRA build details:\n    Version:                                 4.0.2\n    CC: x",
        "-n 3 -bind-to none -launcher fork -rmk user", "PMI_RANK", "MPICH 4.0.2 by ");
}

Test(ref, open_mpi_is_known)
{
    check_found("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/",
                "-n 3 --host localhost --bind-to none --oversubscribe --allow-run-as-root --mca "
                "pml ob1 --mca btl self,vader",
                "OMPI_COMM_WORLD_RANK", "Open MPI 4.1.4 by ");
}

Test(ref, others_are_refused)
{
    static const char *const says[] = {"", "srun 22.05", "HYDRA without a number",
                                       "Version: 4.0.2"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        struct err err = ERR_INIT;
        struct mpi_setup setup;
        memcpy(folder, "/tmp/test_ref_XXXXXX", sizeof folder);
        char *path = fake(says[i]);
        cr_assert_eq(mpi_find(&setup, path, 2, &err), -1, "%s", says[i]);
        cr_assert_eq(err.code, ERR_USAGE);
        cr_assert_not_null(strstr(err.text, path), "%s", err.text);
        err_release(&err);
        discard(path);
    }
}

Test(ref, without_mpiexec_there_is_a_reason)
{
    struct err err = ERR_INIT;
    struct mpi_setup setup;
    setenv("PATH", "/nowhere::/proc", 1);
    cr_assert_str_eq(mpi_absent(), "no mpiexec in PATH (Debian: mpich)");
    cr_assert_eq(mpi_find(&setup, NULL, 2, &err), -1);
    cr_assert_str_eq(err.text, "no mpiexec in PATH (Debian: mpich)");
    err_release(&err);
}
