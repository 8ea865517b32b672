/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the emulation share: see test_emulator.cpp. */
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/gpu.h"

struct test {
    const char *name;
    void (*run)();
    std::vector<const char *> settings; /* NAME=value */
    const char *dies;                   /* it must, saying this; NULL: it must not */
};

/* Of test_blocks.cpp, and of test_runtime.cpp. */
extern const std::vector<test> block_tests, runtime_tests;

/* The table of the plug-in in that file. */
const struct gpu *opened(const char *path);
extern const char *emulated_plugin, *real_plugin; /* files; NULL: there is none */

#define CHECK(what) ((what) ? (void)0 : fail(__FILE__, __LINE__, #what))
#define OK(call) ok(__FILE__, __LINE__, #call, (int)(call))

[[noreturn]] void fail(const char *file, int line, const char *what);
void ok(const char *file, int line, const char *what, int error);

template <class T> static T *device_memory(size_t count)
{
    void *memory = nullptr;
    OK(cudaMalloc(&memory, count * sizeof(T)));
    OK(cudaMemset(memory, 0, count * sizeof(T)));
    return static_cast<T *>(memory);
}

template <class T> static T *pinned_memory(size_t count)
{
    void *memory = nullptr;
    OK(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocDefault));
    memset(memory, 0, count * sizeof(T));
    return static_cast<T *>(memory);
}

template <class T> static T fetched(const T *address)
{
    T value;
    OK(cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}
