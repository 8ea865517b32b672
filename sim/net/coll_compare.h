/* SPDX-License-Identifier: Apache-2.0
 * The same call on several clusters (--compare A,B,C): one table, one line per size, a column of
 * time and one of busbw for each cluster; and a picture of busbw over size. */
#pragma once

#include "net/coll_request.h"

/* 0, or -1 with all faults. */
int coll_compare(struct coll_request *request, const struct opts *opts, const char *command,
                 struct err *err);
