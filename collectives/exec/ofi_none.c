/* SPDX-License-Identifier: Apache-2.0
 * What stands in the table for the transport `ofi` where the headers of libfabric were not found
 * when this was built. */
#include "exec/transport.h"

static const char *ofi_absent(void)
{
    return "built without the headers of libfabric (Debian: libfabric-dev)";
}

const struct transport ofi_transport = {.name = "ofi", .absent = ofi_absent};
