/* SPDX-License-Identifier: Apache-2.0
 * Whether the hosts of a run can reach each other, tried before anything is measured: every host
 * connects to every other one. A firewall, or an interface that leads nowhere, is so found within
 * seconds and named, where else some rank would wait for a connection in the middle of the run.
 * Private to the executor. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "exec/world.h"

/* What a host tells the others, so that they can try. */
struct probe_card {
    char where[NET_NAME]; /* it listens there: "10.77.0.1:4711" */
    char host[64];        /* name of the host */
    char boot[64];        /* see agent_hello: the same, one machine, */
    uint64_t net;         /* .. and the same, one network namespace */
};

/* Listens at `address` and fills in *card. The socket, or -1 with the sentence. */
int probe_listen(const char *address, struct probe_card *card, struct err *err);

/* Connects from `address` to each of the `nhosts` cards but the own one. A connection is made by
 * the kernel of the other host, so that it need not accept any. -1 with a sentence that names the
 * first pair that fails: addresses that lead back to this host, or no connection within 3 s. */
int probe_hosts(struct rank *rk, const struct probe_card *cards, uint32_t nhosts, uint32_t own,
                const char *address, struct err *err);
