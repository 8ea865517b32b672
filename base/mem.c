/* SPDX-License-Identifier: Apache-2.0
 * Heap memory that never returns NULL. The one place where the program ends for want of memory;
 * large buffers whose failure must be an answer and not an end do not come from here. */
#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *ptr, size_t count, size_t size)
{
    if (ptr) return ptr;
    fprintf(stderr, "out of memory: %zu elements of %zu bytes\n", count, size);
    exit(1);
}

void *mem_calloc(size_t count, size_t size)
{
    if (!count || !size) return checked(calloc(1, 1), count, size);
    return checked(calloc(count, size), count, size);
}

void *mem_realloc(void *ptr, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size) return checked(NULL, count, size);
    size_t bytes = count * size;
    return checked(realloc(ptr, bytes ? bytes : 1), count, size);
}

char *mem_strdup(const char *text)
{
    return text ? checked(strdup(text), strlen(text) + 1, 1) : NULL;
}

char *mem_vprintf(const char *format, va_list args)
{
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0) return checked(NULL, strlen(format), 1);
    return text;
}

char *mem_printf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    return text;
}
