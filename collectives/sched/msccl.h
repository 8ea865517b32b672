/* SPDX-License-Identifier: Apache-2.0
 * Schedules as MSCCL's XML files (github.com/microsoft/msccl, msccl-tools), read and written.
 *
 *   <algo name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes>
 *     <gpu id i_chunks o_chunks s_chunks>
 *       <tb id send recv chan>                    a thread block: one peer each way, one channel
 *         <step s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep/>
 *
 *   type   effect (src and dst are local; i, o, s: input, output, scratch)    becomes
 *   -----  -----------------------------------------------------------------  ----------------
 *   s      sends src                                                          send
 *   r      dst = arrived                                                      recv
 *   rcs    dst = arrived, sends dst                                           recv, send
 *   rrc    dst = src (+) arrived                                              recv_reduce
 *   rrcs   dst = src (+) arrived, sends dst                                   recv_reduce, send
 *   rrs    sends src (+) arrived                                              .. with dst in
 * scratch cpy    dst = src                                                          copy re     dst
 * = dst (+) src                                                  reduce nop    waits for step
 * `deps` of block `depid`, as every step may          -
 *
 * Attributes of our own, which other readers pass over: `root` of a rooted operation; and, for an
 * equal schedule after reading, list="1" with the lane of each block and the place of each step in
 * the program (at="12"; a fused step has the next place too; neighbours with the same place are
 * one step of the program). */
#pragma once

#include <stdio.h>

#include "sched/sched.h"

struct msccl_opts {
    bool plain;                    /* without list, lane and at */
    const char *proto;             /* "Simple", "LL" or "LL128"; NULL: "Simple" */
    uint64_t min_bytes, max_bytes; /* sizes for which MSCCL takes it; max 0: no bound */
};

/* Reads a file and proves it: in the placements that it names (inplace, outofplace) it gives the
 * right result, cannot hang, and has no data race, that is, its dependencies, its blocks' order and
 * its messages order every two steps of which one writes what the other touches. Marks of final
 * reduces are derived. NULL with one sentence "PATH:LINE: ..." (ERR_USAGE). Memory stays within a
 * multiple of the file's size.
 * The other placement may be right or not: ask verify_sched. A file for in place alone is turned
 * into a schedule that works in both where it can. Freed with sched_free. */
struct sched *msccl_read(const char *path, struct err *err);

/* The same from text in memory that the user knows as `path`. */
struct sched *msccl_parse(const char *path, const char *text, size_t bytes, struct err *err);

/* Writes a schedule that is right in at least one placement; both are checked first. Blocks are
 * (lane, channel, peer to send to, peer to receive from); a receive is fused with the send behind
 * it; hazards between blocks become dependencies. -1 with ERR_USAGE for a schedule that is wrong or
 * has compute steps, with ERR_FAILED when writing fails. `opts` NULL: all defaults. */
int msccl_write(FILE *to, const struct sched *sched, const struct msccl_opts *opts,
                struct err *err);
