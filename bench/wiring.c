/* SPDX-License-Identifier: Apache-2.0
 * Words to transports and wires: see wiring.h. */
#include "bench/wiring.h"

#include <stddef.h>

#include "bench/plan.h"
#include "exec/transport.h"

const char *const wire_words[] = {"auto", "staged", "pull", "ll", NULL};
static const int wire_modes[] = {PLAN_WIRE_AUTO, WIRE_STAGED, WIRE_PULL, WIRE_LL};
const char *const buffer_words[] = {"shared", "private", NULL};

struct wiring wiring_of(const char *name, unsigned wire, unsigned buffers, struct err *err)
{
    struct wiring wiring = {.wire = wire_modes[wire], .shared = buffers == 0};
    const struct transport *transport = transport_find(name, err);
    const struct transport *const *table = transport_table();
    while (transport && table[wiring.transport] != transport)
        wiring.transport++;
    wiring.device = transport && transport->device;
    if (transport && wiring.wire >= 0 && !(transport->modes >> wiring.wire & 1)) {
        err_add(err, ERR_USAGE, "transport %s has no %s wires", transport->name, wire_words[wire]);
    }
    if (wiring.wire == WIRE_PULL && !wiring.shared) {
        err_add(err, ERR_USAGE,
                "--wire pull reads the sender's buffer, which --buffers private cannot share; use "
                "--wire staged, or --buffers shared");
    }
    return wiring;
}
