/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter: one kernel that runs a rank's linked program, so that a whole collective is
 * one launch. A block is a lane. It goes through the groups of its lane in order:
 *
 *      thread k:      wait for what record k needs, find its addresses      top threads: fetch the
 *      -- barrier --                                                        next group's records
 *      all threads:   one fold over the chunk
 *      -- barrier --
 *      thread k:      post or release the message of record k
 *
 * Waiting and posting go through 64-bit message numbers in peer-visible memory, each written by one
 * lane only: loads with acquire, stores with release, at the scope of the system. What bounds a
 * step: small messages, two barriers of the block and the way of a flag, which is a store to the
 * peer and a load from local memory; LL wires carry the flag beside each 4 bytes of data, so that
 * the flag's way is the data's, at half the bandwidth. Large ones, the wires: slices are long
 * enough that a slot in flight covers the way of its flag back.
 *
 * What the host must see to: all lanes of all ranks that share a device run at once, and the
 * records of a group are at most GROUP_MOST. A lane that waits looks at `stop` now and then. */
#pragma once

#include "kernels/cuda/fold.cuh"

enum {
    GROUP_MOST = KERNEL_MAX_IN + KERNEL_MAX_OUT,
    STOP_POLLS = 1 << 10,   /* polls between two looks at `stop` */
    REPORT_POLLS = 1 << 12, /* polls before the host is told */
};

/* Where one input or output of a group lies: in memory, or in the lines of an LL wire. */
struct end {
    uint64_t *lines; /* NULL: in memory, at the fold's pointer */
    uint32_t flag;
};

/* What the threads of a lane share. */
struct lane {
    /* This group's, the next one's, and the last one's, which some threads still settle. */
    alignas(16) struct lstep records[3][GROUP_MOST];
    struct fold fold;
    struct end in[KERNEL_MAX_IN], out[KERNEL_MAX_OUT];
    size_t bytes; /* of the chunk at hand */
    uint32_t stop;
};

/* What a thread knows of its lane. */
struct place {
    const struct gpu_rank *rank;
    struct lane *lane;
    uint32_t number, start, end, pc;
    uint64_t pass, first; /* pass of this operation; passes before it */
};

/* ---- what kinds mean ------------------------------------------------------------------------- */

static __device__ __forceinline__ bool receives(const struct lstep &step)
{
    return step.kind == STEP_RECV || step.kind == STEP_RECV_REDUCE;
}

static __device__ __forceinline__ bool reads_own(const struct lstep &step)
{
    return step.kind != STEP_RECV && step.kind < STEP_CALC && !(step.flags & LS_ACC);
}

static __device__ __forceinline__ bool reads_second(const struct lstep &step)
{
    return receives(step) || step.kind == STEP_REDUCE;
}

static __device__ __forceinline__ bool stores(const struct lstep &step)
{
    return step.kind != STEP_SEND && step.kind < STEP_CALC && !(step.flags & LS_NOSTORE);
}

/* ---- where bytes lie ------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t kind_of(uint32_t buf)
{
    return buf < 2 ? buf : 2;
}

static __device__ struct gpu_range cut(struct gpu_range whole, uint64_t slice, uint64_t pass)
{
    uint64_t skip = pass * slice < whole.len ? pass * slice : whole.len, left = whole.len - skip;
    return {whole.off + skip, left < slice ? left : slice};
}

/* Chunk `chunk + i` of a buffer in a pass. */
static __device__ struct gpu_range range_of(const struct gpu_rank *rank, uint32_t buf,
                                            uint32_t chunk, uint32_t i, uint64_t pass)
{
    uint32_t kind = kind_of(buf), c = chunk + i;
    c = c >= rank->nchunks[kind] ? c - rank->nchunks[kind] : c;
    struct gpu_range whole = rank->chunks[kind][c], range = cut(whole, rank->slice_bytes, pass);
    if (kind == 2) range.off = (buf - 2) * rank->plane_bytes + whole.off;
    return range;
}

/* The same in the memory of a peer, as an address. */
static __device__ uint8_t *peer_address(const struct gpu_rank *rank, uint32_t peer, uint32_t buf,
                                        uint32_t chunk, uint32_t i, uint64_t pass)
{
    uint8_t *base = rank->peers[peer * 3 + kind_of(buf)];
    if (!rank->theirs) return base + range_of(rank, buf, chunk, i, pass).off;
    uint32_t c = (chunk + i) % rank->nchunks[buf];
    struct gpu_range whole = rank->theirs[peer][buf * rank->nchunks[0] + c];
    return base + cut(whole, rank->slice_bytes, pass).off;
}

static __device__ uint8_t *own_address(const struct gpu_rank *rank, uint32_t buf, uint64_t off)
{
    return rank->base[kind_of(buf)] + off;
}

/* The chunks that a record speaks of, as its message has them. */
static __device__ struct gpu_range said(const struct place &at, const struct lstep &step,
                                        uint32_t i)
{
    bool source = step.kind == STEP_SEND;
    return range_of(at.rank, source ? step.src_buf : step.dst_buf, source ? step.src : step.dst, i,
                    at.pass);
}

/* Bytes in front of chunk i in a message, where chunks lie at multiples of 16, and lines of LL. */
static __device__ uint64_t offset_of(const struct place &at, const struct lstep &step, uint32_t i)
{
    uint64_t off = 0;
    for (uint32_t k = 0; k < i; k++) {
        off += (said(at, step, k).len + 15) / 16 * 16;
    }
    return off;
}

static __device__ bool is_empty(const struct place &at, const struct lstep &step)
{
    for (uint32_t k = 0; k < step.nchunks; k++) {
        if (said(at, step, k).len > 0) return false;
    }
    return true;
}

/* ---- wires ----------------------------------------------------------------------------------- */

static __device__ uint64_t message(const struct place &at, const struct gpu_wire &wire,
                                   uint32_t msg, uint64_t back)
{
    return (at.first + at.pass - back) * wire.nmsgs + msg;
}

static __device__ uint8_t *slot_of(const struct gpu_wire &wire, uint64_t number)
{
    return wire.slots + number % wire.depth * wire.slot_stride;
}

/* Counts the polls of one wait. False: the run was ended. */
static __device__ bool go_on(const struct place &at, uint32_t *polls)
{
    ++*polls;
    if (*polls % STOP_POLLS == 0 && ld_stop(at.rank->stop)) return false;
    if (*polls == REPORT_POLLS) {
        volatile struct gpu_report *report = &at.rank->reports[at.number];
        report->pass = at.pass;
        report->record = at.pc;
        report->waiting = 1;
    }
    spin_wait();
    return true;
}

/* Waits until *word >= least; false when the run was ended. */
static __device__ bool await(const struct place &at, const uint64_t *word, uint64_t least)
{
    uint32_t polls = 0;
    while (ld_acquire_sys(word) < least) {
        if (!go_on(at, &polls)) return false;
    }
    if (polls >= REPORT_POLLS) at.rank->reports[at.number].waiting = 0;
    return true;
}

/* The 8 bytes of a line of an LL wire, once they have come. */
static __device__ bool await_line(const struct place &at, const uint64_t *line, uint32_t flag,
                                  uint32_t word[2])
{
    uint32_t polls = 0;
    uint64_t pair[2];
    for (ld_ll(line, pair); (uint32_t)(pair[0] >> 32) != flag || (uint32_t)(pair[1] >> 32) != flag;
         ld_ll(line, pair)) {
        if (!go_on(at, &polls)) return false;
    }
    if (polls >= REPORT_POLLS) at.rank->reports[at.number].waiting = 0;
    word[0] = (uint32_t)pair[0];
    word[1] = (uint32_t)pair[1];
    return true;
}

static __device__ void send_line(uint64_t *line, uint32_t flag, uint32_t low, uint32_t high)
{
    uint64_t pair[2] = {(uint64_t)flag << 32 | low, (uint64_t)flag << 32 | high};
    st_ll(line, pair);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static __device__ bool await_hazard(const struct place &at, const struct lwait &wait)
{
    if (at.pass < wait.distance) return true;
    if (wait.kind == LWAIT_RELEASE) {
        const struct gpu_wire &wire = at.rank->wires[wait.index];
        return await(at, wire.released, message(at, wire, wait.number, wait.distance) + 1);
    }
    const uint64_t *progress = at.rank->progress + wait.index * (GPU_LINE / sizeof(uint64_t));
    uint64_t passes = at.first + at.pass - wait.distance;
    return await(at, progress, passes << 32 | (wait.number - at.rank->lane_start[wait.index] + 1));
}

/* What record k needs: room for what it sends, or what it receives. */
static __device__ bool await_record(const struct place &at, const struct lstep &step)
{
    if (step.kind != STEP_SEND && !receives(step)) return true;
    const struct gpu_wire &wire = at.rank->wires[step.wire];
    uint64_t number = message(at, wire, step.msg, 0);
    if (step.kind == STEP_SEND) {
        return number < wire.depth || await(at, wire.released, number - wire.depth + 1);
    }
    if (wire.mode != WIRE_LL) return await(at, wire.posted, number + 1);
    uint32_t none[2]; /* lines say themselves that they have come; an empty message has one */
    return !is_empty(at, step) ||
           await_line(at, (const uint64_t *)slot_of(wire, number), (uint32_t)(number + 1), none);
}

/* ---- one chunk of a group as a fold ------------------------------------------------------------
 */

/* Inputs and outputs of the records before record k. */
static __device__ void count_ends(const struct lstep *group, uint32_t k, uint32_t *in,
                                  uint32_t *out)
{
    *in = *out = 0;
    for (uint32_t i = 0; i < k; i++) {
        *in += reads_own(group[i]) + reads_second(group[i]);
        *out += stores(group[i]) || group[i].kind == STEP_SEND;
    }
}

static __device__ void add_in(struct lane *lane, uint32_t at, const void *from)
{
    lane->fold.in[at] = from;
    lane->in[at].lines = NULL;
}

static __device__ void add_out(struct lane *lane, uint32_t at, void *to)
{
    lane->fold.out[at] = to;
    lane->out[at].lines = NULL;
}

static __device__ void add_arrival(const struct place &at, const struct lstep &step, uint32_t i,
                                   uint32_t to)
{
    const struct gpu_wire &wire = at.rank->wires[step.wire];
    uint64_t number = message(at, wire, step.msg, 0), off = offset_of(at, step, i);
    if (wire.mode == WIRE_LL) {
        at.lane->in[to] = {(uint64_t *)(slot_of(wire, number) + 2 * off), (uint32_t)(number + 1)};
    } else if (wire.mode == WIRE_STAGED) {
        add_in(at.lane, to, slot_of(wire, number) + off);
    } else if (wire.mode == WIRE_PULL) {
        uint64_t ref = wire.refs[number % wire.depth];
        add_in(at.lane, to,
               peer_address(at.rank, wire.peer, (uint32_t)(ref >> 32), (uint32_t)ref, i, at.pass));
    } else { /* pushed: it is already where it belongs */
        add_in(at.lane, to, own_address(at.rank, step.dst_buf, said(at, step, i).off));
    }
}

/* A pulled message has no place of its own: NULL. */
static __device__ void add_departure(const struct place &at, const struct lstep &step, uint32_t i,
                                     uint32_t to)
{
    const struct gpu_wire &wire = at.rank->wires[step.wire];
    uint64_t number = message(at, wire, step.msg, 0), off = offset_of(at, step, i);
    if (wire.mode == WIRE_LL) {
        at.lane->out[to] = {(uint64_t *)(slot_of(wire, number) + 2 * off), (uint32_t)(number + 1)};
    } else if (wire.mode == WIRE_STAGED) {
        add_out(at.lane, to, slot_of(wire, number) + off);
    } else if (wire.mode == WIRE_PUSH) {
        add_out(at.lane, to, peer_address(at.rank, wire.peer, step.dst_buf, step.dst, i, at.pass));
    } else {
        add_out(at.lane, to, NULL);
    }
}

/* The ends of record k for chunk i. */
static __device__ void add_record(const struct place &at, const struct lstep *group, uint32_t k,
                                  uint32_t count, uint32_t i)
{
    const struct lstep &step = group[k];
    uint32_t in, out;
    count_ends(group, k, &in, &out);
    if (reads_own(step)) {
        struct gpu_range src = range_of(at.rank, step.src_buf, step.src, i, at.pass);
        add_in(at.lane, in++, own_address(at.rank, step.src_buf, src.off));
    }
    if (receives(step)) {
        add_arrival(at, step, i, in++);
    } else if (step.kind == STEP_REDUCE) {
        struct gpu_range src = range_of(at.rank, step.msg, step.wire, i, at.pass);
        add_in(at.lane, in++, own_address(at.rank, step.msg, src.off));
    }
    if (step.kind == STEP_SEND) {
        add_departure(at, step, i, out++);
    } else if (stores(step)) {
        add_out(at.lane, out++, own_address(at.rank, step.dst_buf, said(at, step, i).off));
    }
    if (step.flags & LS_FINAL) at.lane->fold.divisor = at.rank->nranks;
    if (k == count - 1) {
        at.lane->fold.nin = in;
        at.lane->fold.nout = out;
        at.lane->bytes = said(at, step, i).len;
        at.lane->fold.count = at.lane->bytes / at.rank->esize;
    }
}

/* ---- running it ------------------------------------------------------------------------------ */

/* 8 bytes of an input that lies in memory, fewer at its end, element by element. */
template <enum dtype T>
static __device__ void load_word(const uint8_t *from, uint32_t bytes, uint32_t word[2])
{
    constexpr uint32_t esize = sizeof(bits_of<T>);
    uint64_t value = 0;
    if (bytes == 8 && (uintptr_t)from % 8 == 0) {
        value = ld_data((const uint64_t *)from);
    } else {
        for (uint32_t i = 0; i < bytes; i += esize) {
            value |= (uint64_t)ld_data((const bits_of<T> *)(from + i)) << (8 * i);
        }
    }
    word[0] = (uint32_t)value;
    word[1] = (uint32_t)(value >> 32);
}

template <enum dtype T>
static __device__ void store_word(uint8_t *to, uint32_t bytes, const uint32_t word[2])
{
    constexpr uint32_t esize = sizeof(bits_of<T>);
    uint64_t value = (uint64_t)word[1] << 32 | word[0];
    if (bytes == 8 && (uintptr_t)to % 8 == 0) {
        st_data((uint64_t *)to, value);
        return;
    }
    for (uint32_t i = 0; i < bytes; i += esize) {
        st_data((bits_of<T> *)(to + i), (bits_of<T>)(value >> (8 * i)));
    }
}

/* A fold some of whose ends are lines of LL wires: 8 bytes per thread and turn. */
template <enum dtype T, enum redop OP>
static __device__ void fold_lines(const struct place &at, uint32_t thread, uint32_t nthreads)
{
    struct lane *lane = at.lane;
    const struct fold &f = lane->fold;
    for (size_t w = thread; w * 8 < lane->bytes; w += nthreads) {
        size_t left = lane->bytes - w * 8;
        uint32_t bytes = left < 8 ? (uint32_t)left : 8, sum[2] = {0, 0}, word[2];
        for (uint32_t k = 0; k < f.nin; k++) {
            const struct end &in = lane->in[k];
            if (!in.lines) {
                load_word<T>((const uint8_t *)f.in[k] + w * 8, bytes, word);
            } else if (!await_line(at, in.lines + w * 2, in.flag, word)) {
                lane->stop = 1;
                return;
            }
            if (k == 0) {
                sum[0] = word[0];
                sum[1] = word[1];
            } else {
                combine_words<T, OP>(&sum[0], &sum[1], word[0], word[1],
                                     k + 1 == f.nin ? f.divisor : 1);
            }
        }
        for (uint32_t k = 0; k < f.nout; k++) {
            const struct end &out = lane->out[k];
            if (out.lines) {
                send_line(out.lines + w * 2, out.flag, sum[0], sum[1]);
            } else if (f.out[k]) {
                store_word<T>((uint8_t *)f.out[k] + w * 8, bytes, sum);
            }
        }
    }
}

/* Whether some end is an LL wire: then all wires of the program are. Threads agree. */
static __device__ bool has_lines(const struct place &at, const struct lstep *group, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        bool wired = group[k].kind == STEP_SEND || receives(group[k]);
        if (wired) return at.rank->wires[group[k].wire].mode == WIRE_LL;
    }
    return false;
}

/* Outputs that are none: of pulled messages, and copies onto themselves. */
static __device__ void drop_outputs(struct fold *fold)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < fold->nout; k++) {
        bool same = fold->nin == 1 && fold->out[k] == fold->in[0];
        if (fold->out[k] && !same) fold->out[kept++] = fold->out[k];
    }
    fold->nout = kept;
}

/* ---- settling -------------------------------------------------------------------------------- */

static __device__ void log_message(const struct place &at, const struct lstep &step,
                                   uint64_t number)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < step.nchunks; k++) {
        bytes += said(at, step, k).len;
    }
    uint64_t place = atomicAdd((unsigned long long *)at.rank->nlog, 1ull);
    at.rank->log[place] = {step.wire, 0, number, bytes};
}

static __device__ void settle(const struct place &at, const struct lstep &step)
{
    if (step.kind != STEP_SEND && !receives(step)) return;
    const struct gpu_wire &wire = at.rank->wires[step.wire];
    uint64_t number = message(at, wire, step.msg, 0);
    if (receives(step)) {
        st_release_sys(wire.released, number + 1); /* pairs with await in await_record */
        return;
    }
    if (at.rank->log) log_message(at, step, number);
    if (wire.mode == WIRE_LL) {
        if (is_empty(at, step)) {
            send_line((uint64_t *)slot_of(wire, number), (uint32_t)(number + 1), 0, 0);
        }
        return;
    }
    if (wire.mode == WIRE_PULL) {
        wire.refs[number % wire.depth] = (uint64_t)step.src_buf << 32 | step.src;
    }
    st_release_sys(wire.posted, number + 1); /* pairs with await in await_record */
}

/* ---- a lane ---------------------------------------------------------------------------------- */

static __device__ void fetch(const struct place &at, uint32_t pc, struct lstep *to)
{
    uint32_t most = GROUP_MOST, left = at.end - pc, pieces = 2 * (left < most ? left : most);
    const uint4 *from = (const uint4 *)(at.rank->steps + pc);
    for (uint32_t p = blockDim.x - 1 - threadIdx.x; p < pieces; p += blockDim.x) {
        ((uint4 *)to)[p] = from[p];
    }
}

static __device__ uint32_t group_size(const struct lstep *group)
{
    uint32_t count = 1;
    while (group[count - 1].flags & LS_CHAIN) {
        count++;
    }
    return count;
}

/* Sources that peers read in place are the rank's again only when they have been read. */
static __device__ void await_pulled(const struct place &at)
{
    for (uint32_t r = at.start + threadIdx.x; r < at.end; r += blockDim.x) {
        const struct lstep &step = at.rank->steps[r];
        if (step.kind != STEP_SEND) continue;
        const struct gpu_wire &wire = at.rank->wires[step.wire];
        if (wire.mode != WIRE_PULL) continue;
        if (!await(at, wire.released, message(at, wire, step.msg, 1) + 1)) return;
    }
}

/* One group, whose records are at `group`. False: the run was ended. */
template <enum dtype T, enum redop OP>
static __device__ bool run_group(const struct place &at, const struct lstep *group, uint32_t count,
                                 uint32_t next, struct lstep *room)
{
    struct lane *lane = at.lane;
    uint32_t thread = threadIdx.x, nthreads = blockDim.x;
    bool held = true;
    if (thread == 0) lane->fold.divisor = 1;
    for (uint32_t k = thread; k < group[0].nwaits; k += nthreads) {
        held = held && await_hazard(at, at.rank->waits[group[0].wait + k]);
    }
    for (uint32_t k = thread; k < count; k += nthreads) {
        held = held && await_record(at, group[k]);
    }
    fetch(at, next, room);
    if (!held) lane->stop = 1;
    bool lines = has_lines(at, group, count);
    for (uint32_t i = 0; i < group[0].nchunks; i++) {
        __syncthreads();
        if (lane->stop) return false;
        for (uint32_t k = thread; k < count; k += nthreads) {
            add_record(at, group, k, count, i);
        }
        __syncthreads();
        if (lines) {
            fold_lines<T, OP>(at, thread, nthreads);
        } else {
            if (thread == 0) drop_outputs(&lane->fold);
            __syncthreads();
            if (lane->fold.nout > 0) fold_range<T, OP, GPU_FLIGHT>(lane->fold, thread, nthreads);
        }
    }
    __syncthreads();
    if (lane->stop) return false;
    for (uint32_t k = thread; k < count; k += nthreads) {
        settle(at, group[k]);
    }
    return true;
}

template <enum dtype T, enum redop OP>
static __device__ void run_lane(struct place at, uint64_t *progress)
{
    struct lane *lane = at.lane;
    uint32_t buffer = 0;
    fetch(at, at.start, lane->records[0]);
    __syncthreads();
    for (at.pass = 0; at.pass < at.rank->passes; at.pass++) {
        for (at.pc = at.start; at.pc < at.end;) {
            const struct lstep *group = lane->records[buffer];
            uint32_t count = group_size(group), behind = at.pc + count;
            uint32_t next = behind == at.end ? at.start : behind;
            buffer = (buffer + 1) % 3;
            if (!run_group<T, OP>(at, group, count, next, lane->records[buffer])) return;
            at.pc = behind;
            if (threadIdx.x == 0 && at.rank->crosses) { /* pairs with await in await_hazard */
                uint64_t passes = at.first + at.pass, done = at.pc - at.start;
                st_release_sys(progress,
                               at.pc == at.end ? (passes + 1) << 32 : passes << 32 | done);
            }
        }
    }
    await_pulled(at);
    __syncthreads();
    if (threadIdx.x == 0) progress[1]++;
}

template <enum dtype T, enum redop OP>
static __global__ void __launch_bounds__(FOLD_THREADS, 1)
    interpret(const struct gpu_rank *ranks, uint32_t nlanes)
{
    __shared__ struct lane lane;
    const struct gpu_rank *rank = ranks + blockIdx.x / nlanes;
    uint32_t number = blockIdx.x % nlanes;
    if (threadIdx.x == 0) lane.stop = 0;
    if (number >= rank->nlanes) return;
    uint64_t *progress = rank->progress + number * (GPU_LINE / sizeof(uint64_t));
    struct place at = {.rank = rank,
                       .lane = &lane,
                       .number = number,
                       .start = rank->lane_start[number],
                       .end = rank->lane_start[number + 1],
                       .pc = 0,
                       .pass = 0,
                       .first = progress[1] * rank->passes};
    run_lane<T, OP>(at, progress);
}

/* ---- the launch ------------------------------------------------------------------------------ */

struct interp_entry {
    int (*run)(const struct gpu_launch *launch, void *stream);
    int (*limit)(uint32_t threads, int *blocks);
};

template <enum dtype T, enum redop OP>
static int interp_run(const struct gpu_launch *launch, void *stream)
{
    return (int)CC_LAUNCH((interpret<T, OP>), launch->nranks * launch->nlanes, launch->threads, 0,
                          (cudaStream_t)stream, launch->ranks, launch->nlanes);
}

template <enum dtype T, enum redop OP> static int interp_limit(uint32_t threads, int *blocks)
{
    return (int)cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, interpret<T, OP>,
                                                              (int)threads, 0);
}

#define INTERP_ENTRY(T, OP)                                                                        \
    {                                                                                              \
        interp_run<T, OP>, interp_limit<T, OP>                                                     \
    }

/* The row of one type, for interp_TYPE.cu: all operators. */
#define INTERP_ROW(T)                                                                              \
    {                                                                                              \
        INTERP_ENTRY(T, OP_SUM), INTERP_ENTRY(T, OP_PROD), INTERP_ENTRY(T, OP_MAX),                \
            INTERP_ENTRY(T, OP_MIN), INTERP_ENTRY(T, OP_AVG)                                       \
    }
