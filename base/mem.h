/* SPDX-License-Identifier: Apache-2.0
 * Heap memory that never returns NULL: out of memory ends the program in one place, with one
 * sentence. Sizes are checked against overflow. */
#pragma once

#include <stdarg.h>
#include <stddef.h>

/* `count` elements of `size` bytes, zeroed. A count of 0 gives a pointer that can be freed. */
void *mem_calloc(size_t count, size_t size);

/* Resizes to `count` elements of `size` bytes; new bytes are not initialised. */
void *mem_realloc(void *ptr, size_t count, size_t size);

/* A copy of `text`; NULL gives NULL. Freed by the caller with free(). */
char *mem_strdup(const char *text);

/* printf into a new string, freed by the caller with free(). */
char *mem_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *mem_vprintf(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

/* Makes room for one more element of *items: doubles *cap (elements) when count == *cap. */
#define MEM_GROW(items, count, cap)                                                                \
    do {                                                                                           \
        if ((count) == (cap)) {                                                                    \
            (cap) = (cap) ? 2 * (cap) : 16;                                                        \
            (items) = mem_realloc((items), (cap), sizeof *(items));                                \
        }                                                                                          \
    } while (0)
