/* SPDX-License-Identifier: Apache-2.0
 * Times MPI_Allreduce as a user's program calls it, for comparison over test hosts: see versus.py.
 * A sample is one operation that follows another at once; its time is the largest over the ranks.
 *
 *     mpi_allreduce SAMPLES BYTES...      one line per size: bytes, least and median us, wrong
 * values
 *
 * Values are small whole numbers, so that sums are exact in any order. Exit status 1: wrong data.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

static int rank, nranks;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of the second of two operations on `count` floats, the largest over the ranks. */
static double sample(const float *in, float *out, int count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double start = MPI_Wtime(), own, most;
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    own = MPI_Wtime() - start;
    MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* Measures one size; returns the number of wrong values on all ranks. */
static unsigned long measure(size_t bytes, size_t samples)
{
    size_t count = bytes / sizeof(float);
    float *in = mem_calloc(count, sizeof *in), *out = mem_calloc(count, sizeof *out);
    double *seconds = mem_calloc(samples, sizeof *seconds);
    for (size_t i = 0; i < count; i++) {
        in[i] = (float)((size_t)(rank + 1) * (i % 97));
    }
    for (size_t s = 0; s < samples; s++) {
        seconds[s] = sample(in, out, (int)count);
    }
    unsigned long wrong = 0, all = 0, factor = (unsigned long)(nranks * (nranks + 1) / 2);
    for (size_t i = 0; i < count; i++) {
        wrong += out[i] != (float)(factor * (i % 97));
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    qsort(seconds, samples, sizeof *seconds, by_value);
    if (rank == 0) {
        printf("%12zu %12.1f %12.1f %8lu\n", bytes, 1e6 * seconds[0], 1e6 * seconds[samples / 2],
               all);
        fflush(stdout);
    }
    free(in);
    free(out);
    free(seconds);
    return all;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    size_t samples = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
    unsigned long wrong = 0;
    bool usage = samples == 0;
    for (int i = 2; i < argc && !usage; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10);
        usage = bytes == 0 || bytes % sizeof(float) != 0 || bytes / sizeof(float) > INT32_MAX;
        wrong += usage ? 0 : measure(bytes, samples);
    }
    if (usage && rank == 0) {
        fprintf(stderr, "usage: mpi_allreduce SAMPLES BYTES... (multiples of 4 below 8 GiB)\n");
    }
    MPI_Finalize();
    return usage ? 2 : wrong ? 1 : 0;
}
