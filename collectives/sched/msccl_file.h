/* SPDX-License-Identifier: Apache-2.0
 * An MSCCL file as it stands, between XML and schedule: gpus, blocks and steps with their lines,
 * dependencies and messages resolved. Shared by the parts of the reader (msccl_*.c). */
#pragma once

#include "sched/sched.h"

enum { FILE_NONE = UINT32_MAX };

enum file_kind {
    FILE_SEND,
    FILE_RECV,
    FILE_RECV_COPY_SEND,
    FILE_RECV_REDUCE_COPY,
    FILE_RECV_REDUCE_SEND,
    FILE_RECV_REDUCE_COPY_SEND,
    FILE_COPY,
    FILE_REDUCE,
    FILE_NOP,
    FILE_KIND_COUNT
};

/* What a type does; as data. */
struct file_info {
    const char *type;
    bool sends, receives, reads_src, reads_dst, writes_dst;
};
const struct file_info *file_info(enum file_kind kind);

struct file_step {
    uint32_t line, block;     /* block: index into file.blocks */
    uint8_t kind;             /* enum file_kind */
    uint8_t src_buf, dst_buf; /* enum buf; BUF_SCRATCH is all of the scratch */
    uint32_t src, dst, cnt;
    uint32_t depid, deps; /* as written; FILE_NONE: none */
    uint32_t dep;         /* step it waits for; FILE_NONE: none */
    uint32_t from, to;    /* steps that send what it receives, receive what it sends */
    uint32_t at;          /* place in the program; FILE_NONE: not given */
};

struct file_block {
    uint32_t line, id, gpu; /* gpu: index into file.gpus */
    uint32_t send, recv;    /* peers; FILE_NONE: none */
    uint16_t channel, lane;
    uint32_t first, count; /* steps */
};

struct file_gpu {
    uint32_t line, id;
    uint32_t s_chunks;
    uint32_t first, count; /* blocks */
};

struct file {
    const char *path; /* borrowed */
    uint64_t bytes;   /* length of the file */
    uint32_t line;    /* of <algo> */
    char name[32];
    const struct coll *coll;
    uint32_t nranks, root, loop; /* loop: nchunksperloop */
    bool places[2];              /* [0] works out of place, [1] in place */
    bool listed;                 /* lanes and places of steps are given */
    struct file_gpu *gpus;
    size_t ngpus, gpus_cap;
    struct file_block *blocks;
    size_t nblocks, blocks_cap;
    struct file_step *steps;
    size_t nsteps, steps_cap;
    uint32_t *gpu_of; /* per rank */
    uint32_t *order;  /* steps in an order that respects blocks, dependencies and messages */
    uint32_t *pos;    /* per step: its index in `order` */
    uint64_t values;  /* chunks that all steps speak of */
};

/* Adds "PATH:LINE: sentence" (ERR_USAGE) and returns -1. */
int file_fault(const struct file *file, uint32_t line, struct err *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Rank of a step, and its name for sentences: tb and step as the file numbers them. */
uint32_t file_rank(const struct file *file, uint32_t step);
uint32_t file_tb(const struct file *file, uint32_t step);
uint32_t file_s(const struct file *file, uint32_t step);

/* XML to gpus, blocks and steps (msccl_xml.c): every attribute there and in range by itself. Reads
 * `text`, or the file at `path` if that is NULL. 0, or -1 with one sentence. */
int file_parse(struct file *file, const char *path, const char *text, size_t bytes,
               struct err *err);
void file_release(struct file *file);

/* Resolves ids, pairs messages, and finds an order (msccl_order.c); -1 with one sentence. */
int file_order(struct file *file, struct err *err);

/* Every conflicting pair of steps of a rank is ordered by what the file says (msccl_race.c). */
int file_races(const struct file *file, const struct sched *shape, struct err *err);
