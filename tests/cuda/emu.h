/* SPDX-License-Identifier: Apache-2.0
 * An emulation of the CUDA runtime, for tests: what its files share. How it works:
 *
 *     a block        one thread of the host, so that __shared__ is thread_local and blocks that
 *                    wait for each other run at once
 *     a CUDA thread  a fiber of that thread; a barrier, or a turn of a waiting loop, switches to
 *                    the next fiber
 *     a stream       a thread of the host that works off a queue
 *     device memory  a memory file between two guard pages, mapped by other processes through
 *                    /proc/PID/fd/N, so that nothing outlives its process
 *
 * The files are not instrumented under the thread sanitizer. They tell it of every fiber, and of
 * what CUDA orders and nothing else: launches, barriers, streams, events, stream memory operations.
 *
 *     emu_block.cpp   settings, fibers, blocks        emu_stream.cpp  streams, events, graphs
 *     emu_memory.cpp  devices, memory, copies, IPC */
#pragma once

#include <functional>
#include <vector>

#include "cuda_runtime.h"

namespace emu
{

struct settings {
    std::vector<int> visible; /* devices of the machine, in this process's order */
    int devices, sms, island, timeout_s, memory_MB;
    unsigned threads, seed, jitter_us;
};
enum { BLOCKS_PER_SM = 2, MOST_THREADS = 1024, MOST_SHARED = 227 << 10 };

/* The environment's, read at the first call. */
const settings &setting();

/* Prints "cuemu: .." and aborts. */
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

double now_s();

/* Waits a little for others in a loop that makes no progress: yields first, then sleeps longer and
 * longer. Aborts when nothing has happened for timeout_s; `what` ends the sentence. */
struct patience {
    unsigned turns = 0;
    double since_s = 0;
    void wait(const char *what);
};

/* What the thread sanitizer is told; nothing without it. */
void happens_before(const void *what); /* all so far .. */
void happens_after(const void *what);  /* .. is visible from here on */

/* A kernel with its launch shape. */
struct launch {
    std::function<void()> body;
    uint3 grid, block;
    int device;      /* of the machine */
    void (*touch)(); /* makes the kernel's module have its thread_locals in this thread */
};
void run(const launch &launch); /* until all blocks are done */
int running_device();           /* of the block that this host thread runs */

/* Keeps the error for cudaGetLastError, and returns it. */
cudaError_t failed(cudaError_t error);

/* The current device of this thread, of the machine's; -1: this process has none. */
int current_device();
int ordinal_of(int device); /* -1: not visible */
bool peers(int device, int other);
/* 0, or the error of every call when CUDA cannot be used here: no device, or in a child of a
 * process that had used it. */
cudaError_t usable();

} // namespace emu
