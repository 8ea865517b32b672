/* SPDX-License-Identifier: Apache-2.0
 * Tests of the kernels for GPUs, through the table of a plug-in (COLLBENCH_GPU_PLUGIN, else the
 * emulated one): folds of every type, operator and version against the plain C reference, bit for
 * bit, with the bytes that they move; data of the correctness check and conversions against the
 * CPU's. All memory is pinned, so that host and device see the same. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/data.h"
#include "kernels/gpu.h"
#include "kernels/kernels.h"
#include "tests/elements.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Slots begin at multiples of GUARD, and have room for offsets of 2 GUARD. */
enum { GUARD = 64, MOST = 4099, SLOT = (MOST * 8 / GUARD + 6) * GUARD };
enum { NSLOTS = 2 * KERNEL_MAX_IN };
enum { FILLED = 0xa5 };

static const size_t counts[] = {0, 1, 2, 3, 5, 17, 255, 256, 257, 1000, MOST};
enum { NCOUNTS = sizeof counts / sizeof counts[0] };
static const uint32_t nins[] = {1, 2, 3, 4, 16};
enum { NNINS = sizeof nins / sizeof nins[0] };
static const uint32_t divisors[] = {0, 1, 2, 3, 7, 8, 16384, 0x80000000, UINT32_MAX};
enum { NDIVISORS = sizeof divisors / sizeof divisors[0] };

/* The device, a stream, and pinned memory as host and device see it. */
static const struct gpu *gpu;
static void *stream;
static uint8_t *slots, *device_slots;

static void ok(int error, const char *what)
{
    cr_assert_eq(error, 0, "%s: %s", what, gpu->error_text(error));
}

static void setup(void)
{
    const char *why;
    setenv("COLLBENCH_GPU_PLUGIN", EMULATED_PLUGIN, 0);
    setenv("CUEMU_THREADS", "5", 0); /* of a block: fewer are faster, and find as much */
    gpu = gpu_open(&why);
    cr_assert(gpu, "%s", why);
    void *memory, *device;
    ok(gpu->use(0), "use");
    ok(gpu->stream_new(&stream), "stream_new");
    ok(gpu->host_alloc(&memory, (size_t)NSLOTS * SLOT), "host_alloc");
    ok(gpu->host_device(memory, &device), "host_device");
    slots = memory;
    device_slots = device;
}

static void sync(void)
{
    ok(gpu->stream_sync(stream), "stream_sync");
    ok(gpu->last_error(), "last_error");
}

/* True if the guards around `bytes` bytes from `off` on are untouched. */
static bool guarded(const uint8_t *slot, size_t off, size_t bytes)
{
    size_t end = off + bytes;
    for (size_t i = off - GUARD; i < end + GUARD; i++) {
        if (i == off) i = end;
        if (slot[i] != FILLED) return false;
    }
    return true;
}

/* ---- folds ----------------------------------------------------------------------------------- */

/* One case: what is called, and where things lie. */
struct call {
    enum dtype dtype;
    enum redop op;
    enum gpu_version version;
    uint32_t nin, nout;
    size_t count;
    uint32_t divisor;
    uint32_t shift;   /* 0: all on lines of 64 bytes; 1: all as far behind one; 2: every one else */
    bool aliased;     /* outputs lie on inputs, while there are any */
    bool grid_chosen; /* blocks and threads 0 */
};

static uint8_t pristine[KERNEL_MAX_IN][MOST * 8], want[MOST * 8];

static const char *describe(const struct call *call)
{
    static char text[200];
    snprintf(text, sizeof text,
             "%s %s %s: %u in, %u out, %zu elements, divisor %u, shift %u, aliased %d, grid %d",
             dtype_name(call->dtype), redop_name(call->op), gpu_version_name(call->version),
             call->nin, call->nout, call->count, call->divisor, call->shift, call->aliased,
             call->grid_chosen);
    return text;
}

/* Where element 0 lies in a slot. */
static size_t offset(const struct call *call, uint32_t slot)
{
    static const uint32_t apart[] = {1, 2, 5, 3, 11, 7};
    uint32_t by = call->shift == 2 ? apart[slot % 6] + slot / 6 : call->shift * 3;
    return GUARD + by * dtype_bytes(call->dtype);
}

static uint32_t out_slot(const struct call *call, uint32_t k)
{
    return call->aliased && k < call->nin ? call->nin - 1 - k : KERNEL_MAX_IN + k;
}

static void make_expected(const struct call *call)
{
    struct fold fold = {.out = {want}, .nin = call->nin, .nout = 1, .count = call->count};
    fold.divisor = call->divisor;
    for (uint32_t k = 0; k < call->nin; k++) {
        fold.in[k] = pristine[k];
    }
    kernels_all()[0]->fold[call->dtype][call->op](&fold);
}

static void clear_slot(const struct call *call, uint32_t slot)
{
    size_t bytes = call->count * dtype_bytes(call->dtype);
    memset(slots + (size_t)slot * SLOT, FILLED, offset(call, slot) + bytes + GUARD);
}

static void lay_out(const struct call *call, struct fold *fold)
{
    size_t bytes = call->count * dtype_bytes(call->dtype);
    *fold = (struct fold){.nin = call->nin, .nout = call->nout, .divisor = call->divisor};
    fold->count = call->count;
    for (uint32_t k = 0; k < call->nout; k++) {
        uint32_t slot = out_slot(call, k);
        clear_slot(call, slot);
        fold->out[k] = device_slots + (size_t)slot * SLOT + offset(call, slot);
    }
    for (uint32_t k = 0; k < call->nin; k++) {
        size_t at = (size_t)k * SLOT + offset(call, k);
        clear_slot(call, k);
        memcpy(slots + at, pristine[k], bytes);
        fold->in[k] = device_slots + at;
    }
}

static void look_at(const struct call *call)
{
    size_t bytes = call->count * dtype_bytes(call->dtype);
    bool output[NSLOTS] = {false};
    for (uint32_t k = 0; k < call->nout; k++) {
        output[out_slot(call, k)] = true;
    }
    for (uint32_t k = 0; k < NSLOTS; k++) {
        const uint8_t *slot = slots + (size_t)k * SLOT;
        if (k >= call->nin && !output[k]) continue;
        if (memcmp(slot + offset(call, k), output[k] ? want : pristine[k], bytes))
            cr_assert_fail("slot %u: %s", k, describe(call));
        if (!guarded(slot, offset(call, k), bytes))
            cr_assert_fail("guards of slot %u: %s", k, describe(call));
    }
}

static void run_call(const struct call *call)
{
    struct fold fold;
    size_t bytes = call->count * dtype_bytes(call->dtype);
    uint32_t blocks = call->grid_chosen ? 0 : 1 + call->nin % 2;
    uint64_t read = 0, written = 0;
    lay_out(call, &fold);
    if (gpu->moved) gpu->moved(&read, &written);
    ok(gpu->fold(&fold, call->dtype, call->op, call->version, blocks,
                 call->grid_chosen ? 0 : 1 + (uint32_t)call->count % 7, stream),
       "fold");
    sync();
    look_at(call);
    if (!gpu->moved) return;
    gpu->moved(&read, &written);
    if (read != call->nin * bytes || written != call->nout * bytes)
        cr_assert_fail("%lu bytes read, %lu written: %s", read, written, describe(call));
}

/* All versions, numbers of outputs and placements for the inputs in `pristine`. */
static void run_all_ways(struct call call)
{
    make_expected(&call);
    for (unsigned way = 0; way < GPU_VERSION_COUNT * 3 * 3; way++) {
        call.version = way % GPU_VERSION_COUNT;
        call.nout = 1 + way / GPU_VERSION_COUNT % 3;
        call.shift = way / GPU_VERSION_COUNT / 3;
        call.aliased = (call.nin + call.nout + call.shift) % 2;
        call.grid_chosen = call.count % 5 == 0;
        run_call(&call);
    }
}

static void matrix(enum dtype dtype)
{
    struct rng rng;
    rng_init(&rng, 1 + dtype);
    for (unsigned op = 0; op < OP_COUNT; op++) {
        for (size_t k = 0; k < NNINS; k++) {
            for (size_t c = 0; c < NCOUNTS; c++) {
                struct call call = {.dtype = dtype, .op = op, .nin = nins[k], .count = counts[c]};
                if (SANITIZED && (op + k + c) % 7) continue;
                call.divisor = divisors[rng_below(&rng, NDIVISORS)];
                for (uint32_t i = 0; i < call.nin; i++) {
                    random_elements(&rng, dtype, pristine[i], call.count);
                }
                run_all_ways(call);
            }
        }
    }
}

ParameterizedTestParameters(gpu, folds_equal_reference)
{
    static enum dtype dtypes[DT_COUNT];
    for (unsigned i = 0; i < DT_COUNT; i++) {
        dtypes[i] = i;
    }
    return cr_make_param_array(enum dtype, dtypes, DT_COUNT);
}

ParameterizedTest(enum dtype *dtype, gpu, folds_equal_reference, .init = setup)
{
    matrix(*dtype);
}

/* Every pair of odd values meets, divided by everything. */
Test(gpu, odd_values_meet, .init = setup)
{
    for (unsigned dtype = 0; dtype < DT_COUNT; dtype++) {
        for (unsigned op = 0; op < OP_COUNT; op++) {
            struct call call = {.dtype = dtype, .op = op, .nin = 2, .count = (size_t)NODD * NODD};
            call.nout = 1;
            call.version = op % GPU_VERSION_COUNT;
            for (size_t i = 0; i < call.count; i++) {
                put(dtype, pristine[0], i, (uint64_t)odd_values[i / NODD] << 32);
                put(dtype, pristine[1], i, (uint64_t)odd_values[i % NODD] << 32);
            }
            for (size_t d = 0; d < (op == OP_AVG ? NDIVISORS : 1); d++) {
                call.divisor = divisors[d];
                make_expected(&call);
                run_call(&call);
            }
        }
    }
}

/* Sixteen outputs, on the inputs and elsewhere; one input and no operator: a copy. */
Test(gpu, sixteen_outputs, .init = setup)
{
    struct rng rng;
    rng_init(&rng, 3);
    for (unsigned way = 0; way < GPU_VERSION_COUNT * 2 * 2; way++) {
        struct call call = {
            .dtype = DT_HALF, .nin = 16, .nout = 16, .count = 777, .shift = way / 6};
        call.version = way % GPU_VERSION_COUNT;
        call.aliased = way / GPU_VERSION_COUNT % 2;
        for (uint32_t i = 0; i < call.nin; i++) {
            random_elements(&rng, call.dtype, pristine[i], call.count);
        }
        make_expected(&call);
        run_call(&call);
    }
    for (unsigned dtype = 0; dtype < DT_COUNT; dtype++) {
        struct call call = {
            .dtype = dtype, .nin = 1, .nout = 2, .count = 500, .version = dtype % 3};
        random_elements(&rng, dtype, pristine[0], call.count);
        make_expected(&call);
        call.op = OP_COUNT;
        struct fold fold;
        lay_out(&call, &fold);
        ok(gpu->fold(&fold, call.dtype, call.op, call.version, 0, 0, stream), "copy");
        sync();
        look_at(&call);
    }
}

/* More threads than the kernels are compiled for are refused, not launched. */
Test(gpu, too_many_threads, .init = setup)
{
    struct call call = {.dtype = DT_FLOAT, .nin = 2, .nout = 1, .count = 10};
    struct fold fold;
    lay_out(&call, &fold);
    cr_assert_neq(gpu->fold(&fold, DT_FLOAT, OP_SUM, GPU_FLIGHT, 1, 1024, stream), 0);
}

/* ---- data of the correctness check ----------------------------------------------------------- */

enum { DATA = 700 };

/* Settings: type, operator (or none), ranks, and positions that cross 2^32 or not. */
static struct gpu_data data_setting(unsigned i)
{
    static const uint32_t ranks[] = {1, 2, 5, 8, 19, 300};
    struct gpu_data data = {.dtype = i % DT_COUNT, .op = i / DT_COUNT % (OP_COUNT + 1)};
    data.nranks = ranks[i / DT_COUNT / (OP_COUNT + 1)];
    data.rank = (i * 7 + 3) % data.nranks;
    data.first = i % 3 == 0 ? (UINT64_C(5) << 32) - 300 : i * 77;
    data.salt = 1000 + i;
    return data;
}
enum { NSETTINGS = DT_COUNT * (OP_COUNT + 1) * 6 };

/* What a check of the first slot finds. */
static struct gpu_bad checked(const struct gpu_data *data, bool reduced, size_t count)
{
    struct gpu_bad *bad = (struct gpu_bad *)(void *)(slots + 2 * SLOT);
    struct gpu_bad *device_bad = (struct gpu_bad *)(void *)(device_slots + 2 * SLOT);
    *bad = (struct gpu_bad){0, UINT64_MAX};
    ok(gpu->check(device_slots + GUARD, data, reduced, count, device_bad, stream), "check");
    sync();
    return *bad;
}

Test(gpu, fill_equals_the_hosts, .init = setup)
{
    static uint8_t host[DATA * 8];
    for (unsigned i = 0; i < NSETTINGS; i++) {
        struct gpu_data d = data_setting(i);
        size_t count = i % 7 == 0 ? i % 5 : DATA, bytes = count * dtype_bytes(d.dtype);
        memset(slots, FILLED, bytes + 2 * GUARD);
        ok(gpu->fill(device_slots + GUARD, &d, count, stream), "fill");
        sync();
        data_fill(host, d.dtype, d.op, d.nranks, d.rank, d.first, count, d.salt);
        cr_assert_arr_eq(slots + GUARD, host, bytes, "type %d, operator %d, %u ranks", d.dtype,
                         d.op, d.nranks);
        cr_assert(guarded(slots, GUARD, bytes));
        cr_assert_eq(checked(&d, false, count).count, 0);
    }
}

/* The host's sum of all inputs is right for the device, and every planted error is found. */
Test(gpu, check_finds_what_is_wrong, .init = setup)
{
    static uint8_t in[DATA * 8], sum[DATA * 8];
    struct rng rng;
    rng_init(&rng, 8);
    for (unsigned i = 0; i < NSETTINGS; i++) {
        struct gpu_data d = data_setting(i);
        size_t bytes = DATA * dtype_bytes(d.dtype);
        if (d.op == OP_COUNT || (SANITIZED && i % 5)) continue;
        for (uint32_t r = 0; r < d.nranks; r++) {
            struct fold fold = {.out = {sum}, .in = {sum, in}, .nin = 2, .nout = 1, .count = DATA};
            fold.divisor = r + 1 == d.nranks ? d.nranks : 1;
            data_fill(r ? in : sum, d.dtype, d.op, d.nranks, r, d.first, DATA, d.salt);
            if (r) kernels_all()[0]->fold[d.dtype][d.op](&fold);
        }
        memcpy(slots + GUARD, sum, bytes);
        struct gpu_bad bad = checked(&d, true, DATA);
        cr_assert_eq(bad.count, 0, "%s %s, %u ranks: %lu wrong, first %lu", dtype_name(d.dtype),
                     redop_name(d.op), d.nranks, bad.count, bad.lowest);
        uint64_t nwrong = 1 + rng_below(&rng, 3), lowest = rng_below(&rng, DATA / 2);
        for (uint64_t k = 0; k < nwrong; k++) { /* any one bit of any byte */
            size_t byte = (lowest + k * 60) * dtype_bytes(d.dtype);
            byte += rng_below(&rng, dtype_bytes(d.dtype));
            slots[GUARD + byte] ^= (uint8_t)(1 << rng_below(&rng, 8));
        }
        bad = checked(&d, true, DATA);
        cr_assert_eq(bad.count, nwrong);
        cr_assert_eq(bad.lowest, lowest);
        bad = checked(&d, true, lowest); /* all before it are right, none at all too */
        cr_assert_eq(bad.count, 0);
        cr_assert_eq(bad.lowest, UINT64_MAX);
    }
}

/* A second check adds to what the first one found. */
Test(gpu, checks_add_up, .init = setup)
{
    struct gpu_data d = {.dtype = DT_INT32, .op = OP_COUNT, .nranks = 1};
    struct gpu_bad *bad = (struct gpu_bad *)(void *)(slots + 2 * SLOT);
    void *device_bad = device_slots + 2 * SLOT;
    *bad = (struct gpu_bad){0, UINT64_MAX};
    memset(slots, FILLED, SLOT);
    ok(gpu->check(device_slots + GUARD, &d, false, 40, device_bad, stream), "check");
    sync();
    cr_assert_eq(bad->count, 40);
    cr_assert_eq(bad->lowest, 0);
    d.first = 10;
    ok(gpu->check(device_slots + GUARD, &d, false, 5, device_bad, stream), "check");
    sync();
    cr_assert_eq(bad->count, 45);
    cr_assert_eq(bad->lowest, 0);
}

Test(gpu, poison_equals_the_hosts, .init = setup)
{
    static uint8_t host[100];
    for (size_t bytes = 0; bytes <= sizeof host; bytes++) {
        for (size_t off = GUARD; off < GUARD + 4; off++) {
            memset(slots, FILLED, SLOT);
            ok(gpu->poison(device_slots + off, bytes, bytes / 2, stream), "poison");
            sync();
            data_poison(host, bytes, bytes / 2);
            cr_assert(memcmp(slots + off, host, bytes) == 0, "%zu bytes", bytes);
            cr_assert(guarded(slots, off, bytes));
        }
    }
}

/* ---- conversions ----------------------------------------------------------------------------- */

Test(gpu, convert_equals_the_hosts, .init = setup)
{
    static const size_t some[] = {0, 1, 2, 7, 16, 33, MOST};
    static uint8_t src[MOST * 8], host[MOST * 8];
    struct rng rng;
    rng_init(&rng, 4);
    for (unsigned i = 0; i < DT_COUNT * DT_COUNT * 7 * 2; i++) {
        enum dtype to = i % DT_COUNT, from = i / DT_COUNT % DT_COUNT;
        size_t count = some[i / DT_COUNT / DT_COUNT % 7], bytes = count * dtype_bytes(to);
        bool shifted = i / DT_COUNT / DT_COUNT / 7;
        size_t off = GUARD + (shifted ? dtype_bytes(to) : 0);
        size_t src_off = SLOT + (i % 5 == 0 ? dtype_bytes(from) : 0);
        uint64_t read = 0, written = 0;
        memset(slots, FILLED, off + bytes + GUARD);
        random_elements(&rng, from, src, count);
        memcpy(slots + src_off, src, count * dtype_bytes(from));
        if (gpu->moved) gpu->moved(&read, &written);
        ok(gpu->convert(device_slots + off, to, device_slots + src_off, from, count, stream),
           "convert");
        sync();
        kernels_convert(host, to, src, from, count);
        cr_assert(memcmp(slots + off, host, bytes) == 0, "%s to %s, %zu elements", dtype_name(from),
                  dtype_name(to), count);
        cr_assert(guarded(slots, off, bytes));
        if (!gpu->moved) continue;
        gpu->moved(&read, &written);
        cr_assert_eq(read, count * dtype_bytes(from));
        cr_assert_eq(written, bytes);
    }
}
