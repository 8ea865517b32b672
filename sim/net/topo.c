/* SPDX-License-Identifier: Apache-2.0
 * Reads topology files (topologies/README.md) and resizes what they describe. */
#include "net/topo.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/ship.h"
#include "base/units.h"
#include "net/accel_read.h"
#include "net/fault.h"
#include "net/topo_parts.h"

static const uint64_t most_gpus = INT32_MAX; /* ranks are 32-bit numbers everywhere */

static const struct {
    const char *name, *title;
} fabrics[NFABRICS] = {
    [FABRIC_IB] = {"ib", "InfiniBand"},
    [FABRIC_ROCE] = {"roce", "RoCE"},
    [FABRIC_EFA] = {"efa", "EFA"},
    [FABRIC_OMNIPATH] = {"omni-path", "Omni-Path"},
    [FABRIC_SLINGSHOT] = {"slingshot", "Slingshot"},
    [FABRIC_TCP] = {"tcp", "TCP"},
    [FABRIC_UNSTATED] = {"unstated", "network of unstated kind"},
};

static const char *const scale_up_titles[NSCALE_UP] = {
    [SCALE_UP_NVSWITCH] = "NVSwitch",
    [SCALE_UP_NVLINK_MESH] = "NVLink mesh",
    [SCALE_UP_NVLINK_CUBE] = "NVLink cube mesh",
    [SCALE_UP_NVLINK_PAIRS] = "NVLink pairs",
    [SCALE_UP_XGMI] = "xGMI",
    [SCALE_UP_PCIE] = "PCIe",
    [SCALE_UP_PCIE_HOST] = "PCIe through host memory",
    [SCALE_UP_MEMORY] = "shared memory",
};

const struct opts_row topo_rows[] = {
    {"topo", 't', OPTS_STRING, offsetof(struct topo_args, topo), NULL, "NAME[xN]",
     "cluster: a file (path, working directory, shipped folder; .json may be left out), or N times "
     "a shipped type: dgx-h100x16",
     "Cluster", 0, 0, false, NULL},
    {"nodes", 0, OPTS_UINT, offsetof(struct topo_args, nodes), NULL, "N",
     "hosts, in place of what the file says", NULL, 1, INT32_MAX, false, NULL},
    {"gpus", 'g', OPTS_UINT, offsetof(struct topo_args, gpus), NULL, "N",
     "accelerators in all: whole hosts, or a part of one host", NULL, 1, INT32_MAX, false, NULL},
    {0},
};

const char *topo_fabric_name(enum fabric fabric)
{
    return fabrics[fabric].name;
}

const char *topo_fabric_title(enum fabric fabric)
{
    return fabrics[fabric].title;
}

enum fabric fabric_from_name(const char *name)
{
    unsigned i = 0;
    while (i < NFABRICS && strcmp(fabrics[i].name, name) != 0)
        i++;
    return (enum fabric)i;
}

/* ---- parts of a file ---- */

static int read_accel(struct doc *doc, const struct accel_table *table, struct topo *topo,
                      struct err *err)
{
    const json_t *value = json_object_get(doc->root, "accelerator");
    if (json_is_object(value)) return accel_read_row(doc, value, &topo->accel, err);
    const char *name = NULL;
    int got = doc_string(doc, doc->root, "accelerator", &name, err);
    if (topo_need(doc, doc->root, "accelerator", got, err)) return -1;
    struct err inner = ERR_INIT;
    const struct accel *accel = accel_find(table, name, &inner);
    if (!accel) {
        doc_fault(doc, err, doc->root, "accelerator", "%s", inner.text);
        err_release(&inner);
        return -1;
    }
    topo->accel = *accel;
    topo->accel.aliases = NULL; /* the table's; a topo answers to no other names */
    topo->accel.naliases = 0;
    return 0;
}

static int read_scale_up(struct doc *doc, struct topo *topo, struct err *err)
{
    static const char *const known[] = {"kind",       "line_GBps", "ring_GBps",
                                        "latency_ns", "source",    NULL};
    json_t *link = NULL;
    topo->scale_up = topo->accel.scale_up;
    topo->line_GBps = topo->accel.line_GBps;
    topo->ring_GBps = topo->accel.ring_GBps;
    int got = doc_child(doc, doc->root, "scale_up", JSON_OBJECT, &link, err);
    if (got <= 0) return got;
    int result = doc_keys(doc, link, known, err) | topo_need_source(doc, link, err);
    result |=
        topo_need(doc, link, "kind", scale_up_read(doc, link, "kind", &topo->scale_up, err), err);
    got = doc_double(doc, link, "line_GBps", 1e-3, 1e6, &topo->line_GBps, err);
    result |= topo_need(doc, link, "line_GBps", got, err);
    got = doc_double(doc, link, "ring_GBps", 1e-3, 1e6, &topo->ring_GBps, err);
    result |= topo_need(doc, link, "ring_GBps", got, err);
    result |= doc_double(doc, link, "latency_ns", 1e-3, 1e9, &topo->scale_up_latency_ns, err) < 0;
    if (result == 0 && topo->ring_GBps > topo->line_GBps)
        result = doc_fault(doc, err, link, "ring_GBps",
                           "\"ring_GBps\" is %g, above the line rate \"line_GBps\" of %g",
                           topo->ring_GBps, topo->line_GBps);
    return result;
}

static int read_hosts(struct doc *doc, struct topo *topo, struct err *err)
{
    const uint64_t most = most_gpus;
    topo->hosts = topo->per_host = topo->domain_hosts = 1;
    int result = 0;
    int got = doc_uint(doc, doc->root, "hosts", 1, most, &topo->hosts, err);
    result |= topo_need(doc, doc->root, "hosts", got, err);
    got = doc_uint(doc, doc->root, "accelerators_per_host", 1, most, &topo->per_host, err);
    result |= topo_need(doc, doc->root, "accelerators_per_host", got, err);
    result |= doc_uint(doc, doc->root, "domain_hosts", 1, most, &topo->domain_hosts, err) < 0;
    if (!result && topo->domain_hosts > topo->hosts)
        result = doc_fault(doc, err, doc->root, "domain_hosts",
                           "\"domain_hosts\" is %" PRIu64 ", more than the %" PRIu64 " \"hosts\"",
                           topo->domain_hosts, topo->hosts);
    topo->full_host = topo->per_host;
    return result ? -1 : 0;
}

static int check_form(struct doc *doc, struct err *err)
{
    static const char *const known[] = {
        "schema",       "form",     "about",   "accelerator", "hosts",   "accelerators_per_host",
        "domain_hosts", "scale_up", "network", "host",        "machine", "hands",
        "faults",       NULL};
    static const char *const forms[] = {"uniform", NULL};
    uint64_t schema = 0;
    const char *form = NULL;
    int got = doc_uint(doc, doc->root, "schema", 1, 1, &schema, err);
    int result = topo_need(doc, doc->root, "schema", got, err);
    result |=
        topo_need(doc, doc->root, "form", doc_string(doc, doc->root, "form", &form, err), err);
    if (form && strcmp(form, forms[0]) != 0) {
        struct err inner = ERR_INIT;
        opts_unknown(&inner, "form", form, forms);
        doc_fault(doc, err, doc->root, "form", "%s", inner.text);
        err_release(&inner);
        return -1; /* nothing else of it can be understood */
    }
    return result | doc_keys(doc, doc->root, known, err);
}

int topo_parse(struct topo *topo, struct doc *doc, const struct accel_table *table, struct err *err)
{
    if (!json_is_object(doc->root))
        return err_add(err, ERR_USAGE, "%s:1: a topology must be an object", doc->path);
    const char *about = NULL;
    int result = check_form(doc, err);
    result |= doc_string(doc, doc->root, "about", &about, err) < 0;
    result |= read_hosts(doc, topo, err);
    int known = read_accel(doc, table, topo, err);
    if (known == 0) known = read_scale_up(doc, topo, err);
    int network = topo_read_network(doc, topo, err), host = topo_read_host(doc, topo, err);
    result |= known | network | host | topo_read_machine(doc, topo, err);
    result |= topo_read_hands(doc, topo, err);
    topo_fill_host(topo);
    result |= fault_read(doc, topo, err);
    topo->about = mem_strdup(about);
    return result ? -1 : 0;
}

/* ---- names and sizes ---- */

/* Position of the "xN" at the end of a name, NULL if there is none; *copies is N. */
static const char *copies_suffix(const char *name, uint64_t *copies)
{
    const char *at = name + strlen(name);
    while (at > name && isdigit((unsigned char)at[-1]))
        at--;
    if (at == name || *at == '\0' || at[-1] != 'x' || at - 1 == name) return NULL;
    struct err quiet = ERR_INIT;
    int bad = units_read_uint("", at, 1, most_gpus, copies, &quiet);
    err_release(&quiet);
    return bad ? NULL : at - 1;
}

static int unknown_topo(const char *name, struct err *err)
{
    size_t count = 0, kept = 0;
    char **names = ship_names("topologies", ".json", &count);
    const char **shown = mem_calloc(count + 1, sizeof *shown);
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], "accelerators") != 0) shown[kept++] = names[i];
    opts_unknown(err, "topology (no such file, and not shipped)", name, shown);
    free(shown);
    ship_names_free(names);
    return -1;
}

/* The file of `name`, and how many times it is meant. NULL with a sentence. Freed by the caller. */
static char *find_file(const char *name, uint64_t *copies, struct err *err)
{
    *copies = 1;
    char *path = *name ? ship_find("topologies", name, ".json") : NULL;
    if (path) return path;
    uint64_t n = 1;
    const char *suffix = copies_suffix(name, &n);
    if (suffix) {
        char *type = mem_printf("%.*s", (int)(suffix - name), name);
        path = ship_find("topologies", type, ".json");
        free(type);
    }
    if (path)
        *copies = n;
    else
        unknown_topo(name, err);
    return path;
}

static int resize_gpus(struct topo *topo, bool hosts_given, uint64_t gpus, struct err *err)
{
    uint64_t per = topo->per_host;
    if (!hosts_given && gpus <= per) {
        topo->hosts = 1;
        topo->per_host = gpus;
        return 0;
    }
    if (!hosts_given && gpus % per == 0) {
        topo->hosts = gpus / per;
        return 0;
    }
    if (!hosts_given)
        return err_add(err, ERR_USAGE,
                       "--gpus: %" PRIu64 " are not whole hosts of %" PRIu64
                       " (%s); nearest: %" PRIu64 " or %" PRIu64,
                       gpus, per, topo->name, gpus / per * per, (gpus / per + 1) * per);
    if (gpus % topo->hosts || gpus / topo->hosts > per)
        return err_add(err, ERR_USAGE,
                       "--gpus: %" PRIu64 " do not spread evenly over %" PRIu64
                       " hosts of at most %" PRIu64 " (%s); legal: multiples of %" PRIu64
                       " up to %" PRIu64,
                       gpus, topo->hosts, per, topo->name, topo->hosts, topo->hosts * per);
    topo->per_host = gpus / topo->hosts;
    return 0;
}

static int resize(struct topo *topo, uint64_t copies, uint64_t hosts, uint64_t gpus,
                  struct err *err)
{
    if (topo->hosts > most_gpus / copies) copies = most_gpus; /* too many in any case */
    /* the same number twice is fine */
    uint64_t named = topo->hosts * copies;
    if (copies > 1 && hosts && hosts != named)
        return err_add(err, ERR_USAGE,
                       "--nodes: %" PRIu64 " hosts, but the name %s asks for %" PRIu64
                       " times the type already; give one of the two",
                       hosts, topo->name, copies);
    if (copies > 1 && gpus && gpus != named * topo->per_host)
        return err_add(err, ERR_USAGE,
                       "--gpus: %" PRIu64 " accelerators, but the name %s asks for %" PRIu64
                       " times the type already; give one of the two",
                       gpus, topo->name, copies);
    topo->hosts = hosts ? hosts : named;
    if (gpus && copies == 1 && resize_gpus(topo, hosts != 0, gpus, err)) return -1;
    if (topo->hosts > most_gpus / topo->per_host)
        return err_add(err, ERR_USAGE,
                       "%s: %" PRIu64 " hosts of %" PRIu64 " are more than %" PRIu64
                       " accelerators, the most there can be",
                       topo->name, topo->hosts, topo->per_host, most_gpus);
    return 0;
}

int topo_read(struct topo *topo, const struct accel_table *table, const char *name, uint64_t hosts,
              uint64_t gpus, struct err *err)
{
    *topo = (struct topo){0};
    uint64_t copies = 1;
    char *path = find_file(name, &copies, err);
    if (!path) return -1;
    struct doc *doc = mem_calloc(1, sizeof *doc);
    topo->name = mem_strdup(name);
    topo->path = path;
    topo->doc = doc;
    int result = doc_read(doc, path, err);
    size_t length = strlen(path);
    if (result && (length < 5 || strcmp(path + length - 5, ".json") != 0))
        err_add(err, ERR_USAGE,
                "%s: commsim topo convert %s reads what is no JSON: a network file of ASTRA-sim "
                "becomes a topology, a table of nvidia-smi or the XML of NCCL the machine of one",
                name, path);
    if (result == 0) result = topo_parse(topo, doc, table, err);
    if (result == 0) result = resize(topo, copies, hosts, gpus, err);
    if (result == 0) result = topo_check_dims(topo, err);
    if (result) topo_release(topo);
    return result;
}

void topo_usual(struct topo *topo, const struct accel *accel, uint64_t gpus)
{
    uint64_t full = accel->usual_per_host, per = gpus < full ? gpus : full;
    while (gpus % per)
        per--;
    uint64_t domain = accel->usual_domain > full ? accel->usual_domain / full : 1;
    *topo = (struct topo){
        .name = mem_printf("%" PRIu64 " x %s", gpus, accel->name),
        .accel = *accel,
        .hosts = gpus / per,
        .per_host = per,
        .domain_hosts = domain,
        .scale_up = accel->scale_up,
        .line_GBps = accel->line_GBps,
        .ring_GBps = accel->ring_GBps,
        .fabric = FABRIC_UNSTATED,
        .nic_Gbps = accel->usual_nic_Gbps,
        .oversubscribed = 1,
        .full_host = full,
        .nics = full,
        .one_nic_Gbps = accel->usual_nic_Gbps,
        .layout = full > 1 ? TOPO_RAIL : TOPO_FAT_TREE,
        .leaf_hosts = TOPO_LEAF_HOSTS,
        .host = {.switches = UINT32_MAX, .peer_access = true},
    };
    topo_fill_host(topo);
    topo->accel.aliases = NULL;
    topo->accel.naliases = 0;
}

void topo_release(struct topo *topo)
{
    free(topo->accel.aliases);
    free(topo->name);
    free(topo->path);
    free(topo->about);
    fault_release(topo);
    free(topo->dims);
    free(topo->host.nic_at);
    free(topo->machine);
    if (topo->doc) doc_release(topo->doc);
    free(topo->doc);
    *topo = (struct topo){0};
}

/* ---- figures ---- */

uint64_t topo_gpus(const struct topo *topo)
{
    return topo->hosts * topo->per_host;
}

uint64_t topo_nic_at(const struct topo *topo, uint64_t i)
{
    const struct topo_host *host = &topo->host;
    uint64_t gpus = topo->full_host, nics = topo->nics, beside = i * gpus / nics;
    uint64_t groups = host->switches ? host->switches : host->sockets;
    if (host->nic_at) return host->nic_at[i];
    if (nics >= gpus || gpus % nics == 0 || groups < 2 || groups > gpus) return beside;
    uint64_t first = (i * groups / nics * gpus + groups - 1) / groups; /* of its switch */
    return first > beside ? first : beside;
}

uint64_t topo_domain(const struct topo *topo)
{
    uint64_t hosts = topo->domain_hosts < topo->hosts ? topo->domain_hosts : topo->hosts;
    return hosts * topo->per_host;
}

double topo_nic_Bps(const struct topo *topo)
{
    return topo->nic_Gbps * 1e9 / 8;
}

char *topo_describe(const struct topo *topo)
{
    char *inside = topo_domain(topo) > topo->per_host
                       ? mem_printf(" (domain of %" PRIu64 ")", topo_domain(topo))
                       : mem_strdup("");
    char *over = topo->oversubscribed > 1
                     ? mem_printf(", 1:%g oversubscribed", topo->oversubscribed)
                     : mem_strdup("");
    char *broken = topo->nfaults
                       ? mem_printf(", %zu fault%s", topo->nfaults, topo->nfaults > 1 ? "s" : "")
                       : mem_strdup("");
    char *outside =
        topo->hosts == 1 ? mem_strdup("")
        : !(topo->nic_Gbps > 0) && !topo->nic_stated
            ? mem_strdup(", no network")
            : mem_printf(", %s %g Gb/s per accelerator%s%s", topo_fabric_title(topo->fabric),
                         topo->nic_Gbps, topo->nic_stated ? "" : " (usual rate, not stated)", over);
    char *text =
        mem_printf("%" PRIu64 " host%s x %" PRIu64 " %s, %s %g GB/s%s%s%s", topo->hosts,
                   topo->hosts == 1 ? "" : "s", topo->per_host, topo->accel.name,
                   scale_up_titles[topo->scale_up], topo->line_GBps, inside, outside, broken);
    free(inside);
    free(broken);
    free(over);
    free(outside);
    return text;
}
