/* SPDX-License-Identifier: Apache-2.0
 * The table of transports. */
#include "exec/transport.h"

#include <stdio.h>
#include <string.h>

extern const struct transport shm_transport, ofi_transport, tcp_transport, shm_tcp_transport,
    shm_ofi_transport, mpi_transport, shm_mpi_transport, cuda_ipc_transport, cuda_peer_transport;

static const struct transport *const table[] = {&shm_transport,       &tcp_transport,
                                                &shm_tcp_transport,   &ofi_transport,
                                                &shm_ofi_transport,   &mpi_transport,
                                                &shm_mpi_transport,   &cuda_ipc_transport,
                                                &cuda_peer_transport, NULL};

const struct transport *const *transport_table(void)
{
    return table;
}

void transport_sweep(const struct world *world)
{
    for (size_t i = 0; table[i]; i++) {
        if (table[i]->sweep && strcmp(table[i]->name, world_net(world)->transport) == 0)
            table[i]->sweep(world);
    }
}

struct net_spec transport_net(const struct transport *transport)
{
    struct net_spec net = {.connections = 0};
    if (transport->join) snprintf(net.transport, sizeof net.transport, "%s", transport->name);
    return net;
}

size_t transport_rank_bytes(const struct transport *transport, const struct net_spec *net)
{
    return transport->rank_bytes ? transport->rank_bytes(net) : 0;
}

const struct transport *transport_named(const char *name, struct err *err)
{
    char valid[256] = "";
    size_t at = 0;
    for (size_t i = 0; table[i]; i++) {
        if (strcmp(table[i]->name, name) == 0) return table[i];
        at +=
            (size_t)snprintf(valid + at, sizeof valid - at, "%s%s", at ? ", " : "", table[i]->name);
    }
    err_add(err, ERR_USAGE, "unknown transport '%s': valid are %s", name, valid);
    return NULL;
}

const struct transport *transport_find(const char *name, struct err *err)
{
    const struct transport *transport = transport_named(name, err);
    const char *why = transport ? transport->absent() : NULL;
    if (!why) return transport;
    err_add(err, ERR_USAGE, "transport %s cannot be used here: %s", name, why);
    return NULL;
}
