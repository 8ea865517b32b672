/* SPDX-License-Identifier: Apache-2.0
 * The start of a program: see start.h. */
#include "base/start.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

void program_start(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) { /* open gives the lowest number */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) abort();
    }
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

int program_end(const char *prog, int status)
{
    errno = 0;
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (status || !lost) return status; /* a table has reported it already */
    fprintf(stderr, "%s: stdout could not be written in full%s%s\n", prog, errno ? ": " : "",
            errno ? strerror(errno) : "");
    return ERR_FAILED;
}
