/* SPDX-License-Identifier: Apache-2.0
 * NCCL's binary interface, as far as it is used: types, numbers and a table of functions. Nothing
 * of NCCL is needed to build. Source: nccl.h of NCCL 2.28.9; the numbers are those of every 2.x.
 * Private to ref/ and the tests. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The type of an element and the operator are numbered as enum dtype and enum redop are. */
typedef int nccl_result, nccl_dtype, nccl_redop;
typedef struct ncclComm *nccl_comm;
typedef struct ncclWindow_vidmem *nccl_window;
typedef struct CUstream_st *nccl_stream;

enum { NCCL_ID_BYTES = 128 };
typedef struct {
    char bytes[NCCL_ID_BYTES];
} nccl_id;

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_WINDOW_SYMMETRIC = 1 };

/* Versions as ncclGetVersion counts them, from 2.9 on. */
#define NCCL_NUMBER(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))

struct nccl_functions {
#define NCCL_FUNCTION(need, result, name, symbol, parameters) result(*name) parameters;
#include "ref/nccl_functions.h"
#undef NCCL_FUNCTION
};

/* A library that was opened. It stays loaded until the process ends. */
struct nccl_library {
    struct nccl_functions fn;
    int version;
    bool stub; /* exports the symbol nccl_stub: a test's, not NCCL */
    char *path, *text;
};
