/* SPDX-License-Identifier: Apache-2.0
 * Connections between all pairs of hosts: see probe.h. */
#include "exec/probe.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "exec/agent.h"
#include "exec/sock.h"

enum { TRIES = 3 }; /* of a second each, in which the watcher sees that this rank goes on */

int probe_listen(const char *address, struct probe_card *card, struct err *err)
{
    struct agent_hello own;
    agent_describe(&own);
    *card = (struct probe_card){.net = own.net};
    snprintf(card->host, sizeof card->host, "%s", own.name);
    snprintf(card->boot, sizeof card->boot, "%s", own.boot);
    return sock_listen(address, 0, card->where, err);
}

/* Whether two addresses "A:PORT" are one but for the port. */
static bool is_one_address(const char *a, const char *b)
{
    const char *end = strrchr(a, ':');
    size_t length = end ? (size_t)(end - a) : strlen(a);
    return strncmp(a, b, length) == 0 && b[length] == ':';
}

/* An address that another host has too, or that no other host can reach. */
static int check_address(const struct probe_card *own, const struct probe_card *other,
                         uint32_t own_number, uint32_t number, struct err *err)
{
    if (strcmp(own->boot, other->boot) == 0 && own->net == other->net) return 0;
    bool loopback = sock_is_loopback(other->where);
    if (!loopback && !is_one_address(own->where, other->where)) return 0;
    return err_add(err, ERR_USAGE,
                   "host %u (%s) listens at %s, which from host %u (%s) leads %s: choose an "
                   "interface that joins them with --iface",
                   number, other->host, other->where, own_number, own->host,
                   loopback ? "to its own loopback" : "to itself, for both have that address");
}

static int try_host(struct rank *rk, const struct probe_card *other, uint32_t number,
                    const struct probe_card *own, uint32_t own_number, const char *address,
                    struct err *err)
{
    for (int second = 1;; second++) {
        struct err said = ERR_INIT;
        int fd = sock_connect(other->where, address, 1, &said);
        rank_tick(rk);
        rank_beat(rk);
        if (fd >= 0) {
            close(fd);
            return 0;
        }
        if (second == TRIES)
            err_add(err, ERR_FAILED,
                    "host %u (%s) cannot reach host %u (%s): %s; is there a firewall between them, "
                    "or another interface that joins them (--iface)?",
                    own_number, own->host, number, other->host, said.text);
        err_release(&said);
        if (second == TRIES) return -1;
    }
}

int probe_hosts(struct rank *rk, const struct probe_card *cards, uint32_t nhosts, uint32_t own,
                const char *address, struct err *err)
{
    for (uint32_t i = 1; i < nhosts; i++) {
        if (check_address(&cards[own], &cards[(own + i) % nhosts], own, (own + i) % nhosts, err))
            return -1;
    }
    for (uint32_t i = 1; i < nhosts; i++) { /* each begins with another one */
        uint32_t h = (own + i) % nhosts;
        if (try_host(rk, &cards[h], h, &cards[own], own, address, err)) return -1;
    }
    return 0;
}
