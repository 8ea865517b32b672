/* SPDX-License-Identifier: Apache-2.0
 * The start of a program: see start.h. */
#include "base/start.h"

#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

void program_start(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) { /* open gives the lowest number */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) abort();
    }
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
}
