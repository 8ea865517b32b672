/* SPDX-License-Identifier: Apache-2.0
 * Errors as a growing text of sentences, one per line. Prints nothing by itself: the program's
 * main calls err_print once. The idea (a code and a sentence in a caller-owned struct) is
 * jansson's json_error_t. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Takes `sentences` (one or more, one per line) and appends them to err. */
static void append(struct err *err, enum err_code code, char *sentences, unsigned count)
{
    if (!err->text) {
        err->text = sentences;
    } else {
        char *both = mem_printf("%s\n%s", err->text, sentences);
        free(err->text);
        free(sentences);
        err->text = both;
    }
    err->count += count;
    if (code > err->code) err->code = code;
}

int err_add(struct err *err, enum err_code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *sentence = mem_vprintf(format, args);
    va_end(args);
    for (char *c = sentence; *c; c++)
        if (*c == '\n') *c = ' '; /* a sentence is a line, whatever a user's value holds */
    append(err, code, sentence, 1);
    return -1;
}

int err_move(struct err *to, struct err *from)
{
    if (!from->count) return 0;
    append(to, from->code, from->text, from->count);
    *from = (struct err)ERR_INIT;
    return -1;
}

void err_print(const struct err *err, const char *prog)
{
    for (const char *line = err->text; line;) {
        size_t length = strcspn(line, "\n");
        fprintf(stderr, "%s: %.*s\n", prog, (int)length, line);
        line = line[length] ? line + length + 1 : NULL;
    }
}

void err_release(struct err *err)
{
    free(err->text);
    *err = (struct err)ERR_INIT;
}
