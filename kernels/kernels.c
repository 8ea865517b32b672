/* SPDX-License-Identifier: Apache-2.0
 * Names of types and operators, conversion of narrow floats, and the choice of a version of the
 * kernels: a pointer table filled once by what the CPU says it can do. No ifuncs: the thread
 * sanitizer cannot start with them. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/narrow.h"
#include "kernels/variants.h"

struct named {
    const char *name;
    size_t bytes;
    const char *alias; /* NCCL's, where it differs; NULL: none */
};

static const struct named dtypes[DT_COUNT] = {
    [DT_INT8] = {"int8", 1, NULL},
    [DT_UINT8] = {"uint8", 1, NULL},
    [DT_INT32] = {"int32", 4, NULL},
    [DT_UINT32] = {"uint32", 4, NULL},
    [DT_INT64] = {"int64", 8, NULL},
    [DT_UINT64] = {"uint64", 8, NULL},
    [DT_HALF] = {"half", 2, "float16"},
    [DT_FLOAT] = {"float", 4, "float32"},
    [DT_DOUBLE] = {"double", 8, "float64"},
    [DT_BFLOAT16] = {"bfloat16", 2, NULL},
    [DT_F8E4M3] = {"f8e4m3", 1, "float8e4m3"},
    [DT_F8E5M2] = {"f8e5m2", 1, "float8e5m2"},
};

static const struct named redops[OP_COUNT] = {
    [OP_SUM] = {"sum", 0, NULL}, [OP_PROD] = {"prod", 0, NULL}, [OP_MAX] = {"max", 0, NULL},
    [OP_MIN] = {"min", 0, NULL}, [OP_AVG] = {"avg", 0, NULL},
};

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

size_t dtype_bytes(enum dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *redop_name(enum redop op)
{
    return redops[op].name;
}

/* Index of `name` in the table, or -1 with the list of valid ones. */
static int find(const struct named *table, int n, const char *what, const char *name,
                struct err *err)
{
    char *list = NULL;
    for (int i = 0; i < n; i++) {
        const char *alias = table[i].alias;
        if (strcmp(table[i].name, name) == 0 || (alias && strcmp(alias, name) == 0)) {
            free(list);
            return i;
        }
        char *longer = mem_printf("%s%s%s", list ? list : "", i ? ", " : "", table[i].name);
        free(list);
        list = longer;
    }
    err_add(err, ERR_USAGE, "unknown %s '%s', valid are: %s", what, name, list);
    free(list);
    return -1;
}

int dtype_parse(const char *name, enum dtype *dtype, struct err *err)
{
    int i = find(dtypes, DT_COUNT, "data type", name, err);
    if (i < 0) return -1;
    *dtype = (enum dtype)i;
    return 0;
}

int redop_parse(const char *name, enum redop *op, struct err *err)
{
    int i = find(redops, OP_COUNT, "operator", name, err);
    if (i < 0) return -1;
    *op = (enum redop)i;
    return 0;
}

float bf16_to_float(uint16_t bits)
{
    return bits_float((uint32_t)bits << 16);
}

uint16_t bf16_from_float(float value)
{
    return (uint16_t)bf16_bits(value);
}

float narrow_to_float(enum dtype dtype, uint32_t bits)
{
    return narrow_value(dtype, bits);
}

uint32_t narrow_from_float(enum dtype dtype, float value)
{
    return narrow_bits(dtype, value);
}

/* ---- versions ------------------------------------------------------------------------------- */

#if KERNELS_X86
#include <cpuid.h>

static bool has_avx2(void)
{
    unsigned a, b, c, d; /* leaf 1; not every compiler's builtin knows F16C */
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static bool always(void)
{
    return true;
}

/* Slowest first. */
static const struct variant {
    const struct kernels *kernels;
    bool (*runs)(void);
} variants[] = {
    {&kernels_reference, always},
    {&kernels_generic, always},
#if KERNELS_X86
    {&kernels_avx2, has_avx2},
    {&kernels_avx512, has_avx512},
#endif
};

enum { NVARIANTS = sizeof variants / sizeof variants[0] };

static const struct kernels *usable[NVARIANTS + 1];
static pthread_once_t usable_once = PTHREAD_ONCE_INIT;

static void fill_usable(void)
{
    size_t n = 0;
    for (size_t i = 0; i < NVARIANTS; i++) {
        if (variants[i].runs()) usable[n++] = variants[i].kernels;
    }
}

const struct kernels *const *kernels_all(void)
{
    pthread_once(&usable_once, fill_usable);
    return usable;
}

const struct kernels *kernels_get(struct err *err)
{
    static _Atomic(const struct kernels *) chosen;
    const struct kernels *now = atomic_load_explicit(&chosen, memory_order_acquire);
    if (now) return now;

    const struct kernels *const *all = kernels_all();
    const char *name = getenv("COLLBENCH_KERNELS");
    struct named names[NVARIANTS] = {{0}};
    int n = 0;
    for (; all[n]; n++) {
        names[n].name = all[n]->name;
    }
    int i = n - 1;
    if (name && *name) i = find(names, n, "kernels in COLLBENCH_KERNELS", name, err);
    if (i < 0) return NULL;
    /* The first thread to get here decides for all: acq_rel pairs with the load above. */
    const struct kernels *none = NULL;
    atomic_compare_exchange_strong_explicit(&chosen, &none, all[i], memory_order_acq_rel,
                                            memory_order_acquire);
    return none ? none : all[i];
}
