/* SPDX-License-Identifier: Apache-2.0
 * Errors: a code and one or more sentences, in a struct the caller owns. The first finder writes
 * the sentence; callers only pass it on. Several broken rules are several sentences. */
#pragma once

enum err_code {
    ERR_NONE = 0,   /* nothing went wrong */
    ERR_FAILED = 1, /* the run failed or the data was wrong: exit status 1 */
    ERR_USAGE = 2,  /* the request cannot be served as asked: exit status 2 */
};

struct err {
    enum err_code code; /* the gravest code added so far (USAGE beats FAILED) */
    unsigned count;     /* sentences held */
    char *text;         /* the sentences, one per line, no newline at the end; NULL when none */
};

#define ERR_INIT                                                                                   \
    {                                                                                              \
        ERR_NONE, 0, 0                                                                             \
    }

/* Appends one sentence, printf-like, without newline at its end. Always returns -1, so that a
 * finder can write `return err_add(err, ERR_USAGE, ...)`. `err` must not be NULL. */
int err_add(struct err *err, enum err_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends all sentences of `from` to `to` and releases `from`. Returns -1 if there were any,
 * else 0. */
int err_move(struct err *to, struct err *from);

/* Prints each sentence to stderr as "PROG: sentence". Nothing when empty. */
void err_print(const struct err *err, const char *prog);

/* Frees the text and makes the struct empty again; accepts an empty one. */
void err_release(struct err *err);
