/* SPDX-License-Identifier: Apache-2.0
 * Reads what a topology file says of the network between hosts and of a host's inside, and what is
 * usual where it says nothing. See topo.h, topologies/README.md. */
#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/ship.h"
#include "net/topo_parts.h"

static const char *const layouts[NTOPO_LAYOUTS + 1] = {"switch", "fat-tree", "rail", "torus",
                                                       "dragonfly"};

const char *topo_layout_name(enum topo_layout layout)
{
    return layouts[layout];
}

/* What is usual around accelerators of a class: NVLink per link; PCIe x16 of its generation; what
 * joins the sockets of its time, and their memory. Per direction, 10^9 bytes/s; line rates. PCIe
 * and NVLink: stas00/ml-engineering:network/README.md. Sockets: three UPI links of 10.4 GT/s
 * (62.4), three xGMI links of 16 GT/s (96), four of 32 GB/s (128). Memory: 6 channels of
 * DDR4-2666, 8 of DDR4-3200, 8 of DDR5-4800. Sockets and memory are background knowledge. */
static const struct usual {
    const char *name; /* of a class, or of a type that is not like its class */
    double nvlink_GBps, pcie_GBps, socket_GBps, memory_GBps;
} usuals[] = {
    {"V100", 25, 15.75, 62.4, 128},    {"A100", 25, 31.5, 96, 204.8},
    {"H100", 25, 63, 128, 307.2},      {"H100-500W", 25, 63, 128, 307.2},
    {"H200", 25, 63, 128, 307.2},      {"B200", 50, 63, 128, 307.2},
    {"B300", 50, 121, 128, 307.2},     {"MI250X", 50, 31.5, 96, 204.8},
    {"MI300", 64, 63, 128, 307.2},     {"MI355", 76.5, 63, 128, 307.2},
    {"MI100", 46, 31.5, 96, 204.8},    {"CPU", 25, 63, 128, 460.8},
    {"A40", 14.0625, 31.5, 96, 204.8},
};

static const struct usual *usual_of(const struct accel *accel)
{
    const struct usual *found = &usuals[1];
    for (size_t i = 0; i < sizeof usuals / sizeof *usuals; i++) {
        if (accel->name && strcmp(usuals[i].name, accel->name) == 0) return &usuals[i];
        if (accel->class_name && strcmp(usuals[i].name, accel->class_name) == 0) found = &usuals[i];
    }
    return found;
}

double topo_nvlink_GBps(const struct accel *accel)
{
    return usual_of(accel)->nvlink_GBps;
}

/* ---- members ---- */

int topo_need(struct doc *doc, const json_t *object, const char *key, int got, struct err *err)
{
    if (got == 0) doc_fault(doc, err, object, NULL, "\"%s\" is missing", key);
    return got == 1 ? 0 : -1;
}

int topo_need_source(struct doc *doc, const json_t *object, struct err *err)
{
    const char *source = NULL;
    int got = doc_string(doc, object, "source", &source, err);
    if (got == 1 && *source == '\0')
        return doc_fault(doc, err, object, "source", "\"source\" is empty");
    return topo_need(doc, object, "source", got, err);
}

/* A member that is one of `names` (ended by NULL): 1 with its index, 0 absent, -1 with a fault. */
static int read_word(struct doc *doc, const json_t *object, const char *key, const char *what,
                     const char *const *names, unsigned *index, struct err *err)
{
    const char *name = NULL;
    int got = doc_string(doc, object, key, &name, err);
    if (got <= 0) return got;
    for (unsigned i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) {
            *index = i;
            return 1;
        }
    struct err inner = ERR_INIT;
    opts_unknown(&inner, what, name, names);
    doc_fault(doc, err, object, key, "%s", inner.text);
    err_release(&inner);
    return -1;
}

/* A list of whole numbers in min..max: 1 with the list and its length, 0 absent, -1. */
static int read_numbers(struct doc *doc, const json_t *object, const char *key, uint64_t min,
                        uint64_t max, uint32_t **list, uint32_t *count, struct err *err)
{
    json_t *array = NULL;
    int got = doc_child(doc, object, key, JSON_ARRAY, &array, err);
    if (got <= 0) return got;
    size_t length = json_array_size(array);
    uint32_t *numbers = mem_calloc(length, sizeof *numbers);
    for (size_t i = 0; i < length; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t value = json_integer_value(item);
        bool good =
            json_is_integer(item) && value >= 0 && (uint64_t)value >= min && (uint64_t)value <= max;
        if (!good)
            got = doc_fault_item(doc, err, array, i,
                                 "\"%s\" holds whole numbers in %" PRIu64 "..%" PRIu64, key, min,
                                 max);
        numbers[i] = good ? (uint32_t)value : 0;
    }
    *list = numbers;
    *count = (uint32_t)length;
    return got;
}

/* ---- the network ---- */

static uint64_t product(const struct topo *topo)
{
    uint64_t hosts = 1;
    for (uint32_t i = 0; i < topo->ndims && hosts <= INT32_MAX; i++)
        hosts *= topo->dims[i];
    return hosts;
}

static char *dims_text(const struct topo *topo)
{
    char *text = mem_printf("%" PRIu32, topo->dims[0]);
    for (uint32_t i = 1; i < topo->ndims; i++) {
        char *longer = mem_printf("%s x %" PRIu32, text, topo->dims[i]);
        free(text);
        text = longer;
    }
    return text;
}

int topo_check_dims(const struct topo *topo, struct err *err)
{
    if (!topo->dims || product(topo) == topo->hosts) return 0;
    char *text = dims_text(topo);
    err_add(err, ERR_USAGE,
            "%s: a torus of %s hosts has %" PRIu64 ", but %" PRIu64
            " are asked for; leave \"dims\" out to have sides chosen",
            topo->path ? topo->path : topo->name, text, product(topo), topo->hosts);
    free(text);
    return -1;
}

static int read_dims(struct doc *doc, const json_t *network, struct topo *topo, struct err *err)
{
    int got = read_numbers(doc, network, "dims", 1, INT32_MAX, &topo->dims, &topo->ndims, err);
    if (got <= 0) return got;
    if (topo->layout != TOPO_TORUS)
        return doc_fault(doc, err, network, "dims", "\"dims\" is for the layout \"torus\", not %s",
                         layouts[topo->layout]);
    if (topo->ndims == 0)
        return doc_fault(doc, err, network, "dims",
                         "\"dims\" is empty; a torus has 1 axis or more");
    if (product(topo) == topo->hosts) return 0;
    char *text = dims_text(topo);
    doc_fault(doc, err, network, "dims",
              "\"dims\": a torus of %s has %" PRIu64 " hosts, but \"hosts\" is %" PRIu64, text,
              product(topo), topo->hosts);
    free(text);
    return -1;
}

static int read_burst(struct doc *doc, const json_t *network, struct topo *topo, struct err *err)
{
    int rate = doc_double(doc, network, "burst_Gbps", 1e-3, 1e6, &topo->burst_Gbps, err);
    int size = doc_double(doc, network, "burst_GB", 1e-9, 1e9, &topo->burst_GB, err);
    if (rate < 0 || size < 0) return -1;
    if (rate != size)
        return doc_fault(doc, err, network, rate ? "burst_Gbps" : "burst_GB",
                         "\"%s\" is missing beside \"%s\": a token bucket has a rate and a size",
                         rate ? "burst_GB" : "burst_Gbps", rate ? "burst_Gbps" : "burst_GB");
    if (rate && topo->burst_Gbps < topo->one_nic_Gbps)
        return doc_fault(doc, err, network, "burst_Gbps",
                         "\"burst_Gbps\" is %g, below the sustained \"nic_Gbps\" of %g",
                         topo->burst_Gbps, topo->one_nic_Gbps);
    return 0;
}

static int read_layout(struct doc *doc, const json_t *network, struct topo *topo, struct err *err)
{
    unsigned layout = topo->nics > 1 ? TOPO_RAIL : TOPO_FAT_TREE;
    int result = read_word(doc, network, "layout", "layout of the network", layouts, &layout, err);
    topo->layout = (enum topo_layout)layout;
    result |= doc_uint(doc, network, "leaf_hosts", 1, INT32_MAX, &topo->leaf_hosts, err);
    result |= read_burst(doc, network, topo, err);
    result |= result < 0 ? 0 : read_dims(doc, network, topo, err);
    return result < 0 ? -1 : 0;
}

int topo_read_network(struct doc *doc, struct topo *topo, struct err *err)
{
    static const char *const known[] = {"kind",     "nics_per_host", "nic_Gbps",   "oversubscribed",
                                        "layout",   "leaf_hosts",    "dims",       "burst_Gbps",
                                        "burst_GB", "latency_ns",    "efficiency", "source",
                                        NULL};
    json_t *network = NULL;
    topo->fabric = FABRIC_UNSTATED;
    topo->one_nic_Gbps = topo->nic_Gbps = topo->accel.usual_nic_Gbps;
    topo->nics = topo->full_host;
    topo->layout = topo->nics > 1 ? TOPO_RAIL : TOPO_FAT_TREE;
    topo->leaf_hosts = TOPO_LEAF_HOSTS;
    topo->oversubscribed = 1;
    int got = doc_child(doc, doc->root, "network", JSON_OBJECT, &network, err);
    if (got <= 0) return got;
    int result = doc_keys(doc, network, known, err) | topo_need_source(doc, network, err);
    const char *names[NFABRICS + 1] = {0};
    for (unsigned i = 0; i < NFABRICS; i++)
        names[i] = topo_fabric_name((enum fabric)i);
    unsigned fabric = FABRIC_UNSTATED;
    got = read_word(doc, network, "kind", "kind of network", names, &fabric, err);
    topo->fabric = (enum fabric)fabric;
    result |= topo_need(doc, network, "kind", got, err);
    uint64_t nics = topo->nics;
    double rate = topo->one_nic_Gbps;
    got = doc_uint(doc, network, "nics_per_host", 1, 1u << 16, &nics, err);
    result |= topo_need(doc, network, "nics_per_host", got, err);
    got = doc_double(doc, network, "nic_Gbps", 1e-3, 1e6, &rate, err);
    result |= topo_need(doc, network, "nic_Gbps", got, err);
    result |= doc_double(doc, network, "oversubscribed", 1, 1e3, &topo->oversubscribed, err) < 0;
    double *efficiency = &topo->network_efficiency;
    result |= doc_double(doc, network, "efficiency", 1e-3, 1, efficiency, err) < 0;
    result |= doc_double(doc, network, "latency_ns", 1e-3, 1e9, &topo->network_latency_ns, err) < 0;
    topo->nics = nics;
    topo->one_nic_Gbps = rate;
    result |= read_layout(doc, network, topo, err);
    if (result) return -1;
    topo->nic_Gbps = (double)nics * rate / (double)topo->full_host;
    topo->nic_stated = true;
    return 0;
}

/* ---- the inside of a host ---- */

static int read_nic_at(struct doc *doc, const json_t *object, struct topo *topo, struct err *err)
{
    uint32_t count = 0;
    int got = read_numbers(doc, object, "nic_at", 0, topo->full_host - 1, &topo->host.nic_at,
                           &count, err);
    if (got == 1 && count != topo->nics)
        return doc_fault(doc, err, object, "nic_at",
                         "\"nic_at\" places %" PRIu32 " NICs, but a host has %" PRIu64, count,
                         topo->nics);
    return got;
}

int topo_read_host(struct doc *doc, struct topo *topo, struct err *err)
{
    static const char *const known[] = {"sockets",     "switches",    "pcie_GBps",  "uplink_GBps",
                                        "socket_GBps", "memory_GBps", "memory_GiB", "nic_at",
                                        "peer_access", "source",      NULL};
    struct topo_host *host = &topo->host;
    json_t *object = NULL;
    host->peer_access = true;
    host->switches = UINT32_MAX; /* not said */
    int got = doc_child(doc, doc->root, "host", JSON_OBJECT, &object, err);
    if (got <= 0) return got;
    int result = doc_keys(doc, object, known, err) | topo_need_source(doc, object, err);
    const struct {
        const char *key;
        double *to;
    } rates[] = {{"pcie_GBps", &host->pcie_GBps},
                 {"uplink_GBps", &host->uplink_GBps},
                 {"socket_GBps", &host->socket_GBps},
                 {"memory_GBps", &host->memory_GBps},
                 {"memory_GiB", &host->memory_GiB}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        result |= doc_double(doc, object, rates[i].key, 1e-3, 1e6, rates[i].to, err) < 0;
    uint64_t sockets = 0, switches = host->switches;
    result |= doc_uint(doc, object, "sockets", 1, 64, &sockets, err) < 0;
    result |= doc_uint(doc, object, "switches", 0, 1u << 16, &switches, err) < 0;
    result |= doc_bool(doc, object, "peer_access", &host->peer_access, err) < 0;
    result |= read_nic_at(doc, object, topo, err) < 0;
    host->sockets = (uint32_t)sockets;
    host->switches = (uint32_t)switches;
    if (!result && sockets && switches && switches != UINT32_MAX && switches % sockets)
        result = doc_fault(doc, err, object, "switches",
                           "%" PRIu64 " switches do not spread evenly over %" PRIu64
                           " sockets; nearest: %" PRIu64 " or %" PRIu64,
                           switches, sockets, switches / sockets * sockets,
                           (switches / sockets + 1) * sockets);
    return result ? -1 : 0;
}

int topo_read_hands(struct doc *doc, struct topo *topo, struct err *err)
{
    static const char *const known[] = {"buffer_GBps", "cached_GBps", "cache_MiB", "slot_GBps",
                                        "post_us",     "slice_KiB",   "source",    NULL};
    struct topo_hands *hands = &topo->hands;
    json_t *object = NULL;
    int got = doc_child(doc, doc->root, "hands", JSON_OBJECT, &object, err);
    if (got <= 0) return got;
    int result = doc_keys(doc, object, known, err) | topo_need_source(doc, object, err);
    const struct {
        const char *key;
        double *to;
    } needed[] = {{"buffer_GBps", &hands->buffer_GBps},
                  {"cached_GBps", &hands->cached_GBps},
                  {"slot_GBps", &hands->slot_GBps}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        got = doc_double(doc, object, needed[i].key, 1e-3, 1e6, needed[i].to, err);
        result |= topo_need(doc, object, needed[i].key, got, err);
    }
    got = doc_double(doc, object, "cache_MiB", 1e-6, 1e6, &hands->cache_MiB, err);
    result |= topo_need(doc, object, "cache_MiB", got, err);
    result |= doc_double(doc, object, "post_us", 0, 1e6, &hands->post_us, err) < 0;
    result |= doc_uint(doc, object, "slice_KiB", 1, 1u << 30, &hands->slice_KiB, err) < 0;
    return result ? -1 : 0;
}

int topo_read_machine(struct doc *doc, struct topo *topo, struct err *err)
{
    const char *name = NULL;
    int got = doc_string(doc, doc->root, "machine", &name, err);
    if (got <= 0) return got;
    if (json_object_get(doc->root, "host"))
        return doc_fault(doc, err, doc->root, "machine",
                         "\"machine\" and \"host\" both describe the inside of a host; give one");
    char *here = mem_strdup(doc->path);
    char *beside = mem_printf("%s/%s", dirname(here), name);
    bool found = *name && *name != '/' && access(beside, R_OK) == 0;
    topo->machine = found ? mem_strdup(beside) : ship_find("topologies", name, ".json");
    free(beside);
    free(here);
    if (topo->machine) return 0;
    return doc_fault(doc, err, doc->root, "machine",
                     "\"machine\": there is no file %s beside this one, in the working directory "
                     "or among the shipped topologies",
                     name);
}

double topo_usual_through_host(double pcie_GBps)
{
    return pcie_GBps * (pcie_GBps > 32 ? 27 / 63. : 5 / 31.5);
}

double topo_through_host(const struct topo *topo)
{
    return topo->scale_up == SCALE_UP_PCIE_HOST ? topo->ring_GBps : 0;
}

void topo_fill_host(struct topo *topo)
{
    struct topo_host *host = &topo->host;
    const struct usual *usual = usual_of(&topo->accel);
    bool bus = topo->scale_up == SCALE_UP_PCIE || topo->scale_up == SCALE_UP_PCIE_HOST;
    bool flat = topo->scale_up == SCALE_UP_PCIE_HOST || topo->scale_up == SCALE_UP_MEMORY;
    if (topo->scale_up == SCALE_UP_PCIE && !host->peer_access) {
        topo->scale_up = SCALE_UP_PCIE_HOST;
        topo->ring_GBps = fmin(topo->ring_GBps, topo_usual_through_host(topo->line_GBps));
    }
    if (topo->scale_up == SCALE_UP_PCIE_HOST) host->peer_access = false;
    uint64_t most = topo->full_host, nics = topo->nics < most ? topo->nics : most;
    if (!host->sockets)
        host->sockets = !host->switches || host->switches == UINT32_MAX || host->switches % 2 == 0
                            ? (most > 1 ? 2 : 1)
                            : 1;
    uint64_t some = (nics + host->sockets - 1) / host->sockets * host->sockets;
    if (host->switches == UINT32_MAX) host->switches = flat ? 0 : (uint32_t)some;
    if (host->pcie_GBps <= 0) host->pcie_GBps = bus ? topo->line_GBps : usual->pcie_GBps;
    if (host->uplink_GBps <= 0) host->uplink_GBps = host->pcie_GBps;
    if (host->socket_GBps <= 0)
        host->socket_GBps =
            topo->scale_up == SCALE_UP_MEMORY ? topo->line_GBps : usual->socket_GBps;
    if (host->memory_GBps <= 0)
        host->memory_GBps =
            topo->scale_up == SCALE_UP_MEMORY ? topo->accel.memory_GBps : usual->memory_GBps;
}
