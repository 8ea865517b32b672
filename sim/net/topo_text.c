/* SPDX-License-Identifier: Apache-2.0
 * Topologies of form "uniform" as text, picture and file: see topo_text.h. */
#include "net/topo_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/fault.h"

/* ---- text ---- */

static void show_host(const struct topo *topo, FILE *to)
{
    const struct topo_host *host = &topo->host;
    if (topo->machine) {
        fprintf(to, "# host: as %s describes it\n", topo->machine);
        return;
    }
    fprintf(to, "# host: %u socket%s, ", host->sockets, host->sockets == 1 ? "" : "s");
    if (host->switches)
        fprintf(to, "%u PCIe switch%s with %g GB/s up, ", host->switches,
                host->switches == 1 ? "" : "es", host->uplink_GBps);
    else
        fputs("devices at root ports, ", to);
    fprintf(to, "%g GB/s a device; ", host->pcie_GBps);
    if (host->sockets > 1) fprintf(to, "between sockets %g GB/s, ", host->socket_GBps);
    fprintf(to, "memory of a socket %g GB/s; %s\n", host->memory_GBps,
            host->peer_access ? "peer access" : "no peer access");
}

/* "4 x 4 x 2" */
static void show_dims(const struct topo *topo, FILE *to)
{
    for (uint32_t i = 0; i < topo->ndims; i++)
        fprintf(to, "%s%" PRIu32, i ? " x " : " of ", topo->dims[i]);
}

static void show_network(const struct topo *topo, FILE *to)
{
    fprintf(to, "# network: %s, %" PRIu64 " NIC%s of %g Gb/s a host (%g GB/s an accelerator%s), %s",
            topo_fabric_title(topo->fabric), topo->nics, topo->nics == 1 ? "" : "s",
            topo->one_nic_Gbps, topo_nic_Bps(topo) / 1e9,
            topo->nic_stated ? "" : ", the usual rate, not stated", topo_layout_name(topo->layout));
    switch (topo->layout) {
    case TOPO_TORUS:
        show_dims(topo, to);
        break;
    case TOPO_DRAGONFLY:
        fprintf(to, ", groups of %" PRIu64 " hosts", topo->leaf_hosts);
        break;
    case TOPO_FAT_TREE:
    case TOPO_RAIL:
        fprintf(to, ", leaves of %" PRIu64 " hosts", topo->leaf_hosts);
        break;
    default:
        break;
    }
    fprintf(to, ", 1:%g\n", topo->oversubscribed);
    if (topo->burst_Gbps > 0)
        fprintf(to, "# a NIC bursts at %g Gb/s for %g GB\n", topo->burst_Gbps, topo->burst_GB);
}

/* How many accelerators each scope holds, from the nearest on. */
static void show_scopes(const struct topo *topo, FILE *to)
{
    bool leaves = topo->layout == TOPO_RAIL || topo->layout == TOPO_FAT_TREE;
    bool groups = leaves || topo->layout == TOPO_DRAGONFLY;
    uint64_t hosts = topo->leaf_hosts < topo->hosts ? topo->leaf_hosts : topo->hosts;
    fprintf(to, "# scopes: host %" PRIu64 ", domain %" PRIu64, topo->per_host, topo_domain(topo));
    if (groups)
        fprintf(to, ", %s %" PRIu64,
                topo->layout == TOPO_RAIL ? "rail group"
                : leaves                  ? "leaf"
                                          : "group",
                hosts * topo->per_host);
    fprintf(to, ", all %" PRIu64 " accelerators\n", topo_gpus(topo));
}

/* "host0/nic3 at 0.5 of its rate"; freed by the caller. */
static char *fault_text(const struct fault *fault)
{
    switch (fault->kind) {
    case FAULT_FRACTION:
        return mem_printf("%s at %g of its rate", fault->link, fault->fraction);
    case FAULT_MISSING:
        return mem_printf("%s is missing", fault->link);
    case FAULT_NO_PEERS:
        return mem_strdup("no peer access");
    case FAULT_NICS:
        return mem_printf("%" PRIu64 " NICs of each host are used", fault->nics);
    case FAULT_TCP:
        break;
    }
    return mem_strdup("the network falls back to TCP");
}

static void show_faults(const struct topo *topo, FILE *to)
{
    for (size_t i = 0; i < topo->nfaults; i++) {
        char *text = fault_text(&topo->faults[i]);
        fprintf(to, "# fault: %s\n", text);
        free(text);
    }
}

void topo_text_show(const struct topo *topo, const struct graph *host, FILE *to)
{
    char *text = topo_describe(topo);
    fprintf(to, "# %s\n", text);
    if (topo->about) fprintf(to, "# %s\n", topo->about);
    free(text);
    show_host(topo, to);
    show_network(topo, to);
    show_scopes(topo, to);
    show_faults(topo, to);
    graph_matrix(host, to);
}

/* ---- a picture ---- */

/* Where the NICs of a host lead to, and what is behind that. %u is the NIC. */
static const struct {
    const char *near, *far;
    bool per_nic; /* a switch for each NIC of the host */
} fabrics[NTOPO_LAYOUTS] = {
    [TOPO_SWITCH] = {"switch", NULL, false},
    [TOPO_FAT_TREE] = {"leaf", "spine", false},
    [TOPO_RAIL] = {"leaf of rail %u", "spine", true},
    [TOPO_TORUS] = {"torus", NULL, false},
    [TOPO_DRAGONFLY] = {"switches of the group", "links between groups", false},
};

static const char switch_look[] = "shape=hexagon, style=filled, fillcolor=\"#9fc5e8\"";
static const char hosts_look[] = "shape=box3d, style=filled, fillcolor=\"#eeeeee\"";

/* A node for `count` hosts beside the one that is drawn, and a line to it; nothing for none. */
static void dot_hosts(const char *name, uint64_t count, const char *what, const char *at, FILE *to)
{
    if (count == 0) return;
    fprintf(to, "  \"%s\" [label=\"%" PRIu64 " more host%s\\n%s\", %s];\n", name, count,
            count == 1 ? "" : "s", what, hosts_look);
    fprintf(to, "  \"%s\" -- \"%s\";\n", name, at);
}

/* The switch that NIC number `nic` is cabled to, with its other hosts. */
static char *dot_near(const struct topo *topo, uint32_t nic, uint64_t near_hosts, FILE *to)
{
    char *name = fabrics[topo->layout].per_nic ? mem_printf("leaf of rail %u", nic)
                                               : mem_strdup(fabrics[topo->layout].near);
    char *others = mem_printf("hosts at %s", name);
    if (fabrics[topo->layout].per_nic || nic == 0) {
        fprintf(to, "  \"%s\" [%s];\n", name, switch_look);
        dot_hosts(fabrics[topo->layout].per_nic ? "hosts at these leaves" : others, near_hosts - 1,
                  "as this one", name, to);
    }
    free(others);
    return name;
}

/* Whether a fault is of a link of the node of that name, in any host: "host0/nic3", "gpu2 nvlink"
 * behind a host's name. */
static bool is_of(const struct fault *fault, const char *name)
{
    const char *slash = fault->link ? strchr(fault->link, '/') : NULL;
    size_t length = strlen(name);
    return slash && strncmp(slash + 1, name, length) == 0 &&
           (slash[1 + length] == '\0' || slash[1 + length] == ' ');
}

static const char broken_look[] = "color=red, fontcolor=red, style=dashed";

/* How the cable of a NIC is drawn. */
static const char *cable_look(const struct topo *topo, const char *nic, uint64_t number)
{
    bool broken = number >= topo->nics_used && topo->nics_used > 0;
    for (size_t i = 0; i < topo->nfaults; i++)
        broken |= is_of(&topo->faults[i], nic);
    return broken ? broken_look : "color=\"#4f81bd\"";
}

/* A note for each fault, tied to the node that it is of; the host that is drawn stands for all. */
static void dot_faults(const struct topo *topo, const struct graph *host, FILE *to)
{
    for (size_t i = 0; i < topo->nfaults; i++) {
        char *text = fault_text(&topo->faults[i]);
        fprintf(to, "  \"fault %zu\" [shape=note, style=solid, color=red, fontcolor=red, label=\"",
                i + 1);
        for (const char *at = text; *at; at++)
            fprintf(to, "%s%c", *at == '"' || *at == '\\' ? "\\" : "", *at);
        fputs("\"];\n", to);
        for (size_t k = 0; k < host->nnodes; k++) {
            if (!is_of(&topo->faults[i], host->nodes[k].name)) continue;
            fprintf(to, "  \"%s\" [color=red, penwidth=3];\n  \"fault %zu\" -- \"%s\" [%s];\n",
                    host->nodes[k].name, i + 1, host->nodes[k].name, broken_look);
        }
        free(text);
    }
}

static void dot_fabric(const struct topo *topo, const struct graph *host, FILE *to)
{
    bool leaves = fabrics[topo->layout].far && topo->leaf_hosts < topo->hosts;
    uint64_t near_hosts = leaves ? topo->leaf_hosts : topo->hosts;
    double rails = fabrics[topo->layout].per_nic ? (double)topo->nics : 1;
    double up_Gbps =
        (double)near_hosts * (double)topo->nics * topo->one_nic_Gbps / rails / topo->oversubscribed;
    uint32_t nic = 0;
    for (size_t i = 0; i < host->nnodes; i++) {
        if (host->nodes[i].kind != GRAPH_NIC) continue;
        char *near = dot_near(topo, nic, near_hosts, to);
        fprintf(to, "  \"%s\" -- \"%s\" [%s, penwidth=2, label=\"%g Gb/s\"];\n",
                host->nodes[i].name, near, cable_look(topo, host->nodes[i].name, nic),
                topo->one_nic_Gbps);
        if (leaves && (fabrics[topo->layout].per_nic || nic == 0))
            fprintf(to, "  \"%s\" -- \"%s\" [penwidth=3, label=\"%g Gb/s\"];\n", near,
                    fabrics[topo->layout].far, up_Gbps);
        free(near);
        nic++;
    }
    if (!leaves || nic == 0) return;
    fprintf(to, "  \"%s\" [%s];\n", fabrics[topo->layout].far, switch_look);
    dot_hosts("other hosts", topo->hosts - near_hosts,
              topo->layout == TOPO_DRAGONFLY ? "in other groups" : "under other leaves",
              fabrics[topo->layout].far, to);
}

/* The other hosts of the scale-up domain, at its switches. */
static void dot_domain(const struct topo *topo, const struct graph *host, FILE *to)
{
    uint64_t hosts = topo_domain(topo) / topo->per_host;
    for (size_t i = 0; i < host->nnodes && hosts > 1; i++)
        if (host->nodes[i].kind == GRAPH_NVSWITCH)
            dot_hosts("domain", hosts - 1, "of the scale-up domain", host->nodes[i].name, to);
}

void topo_text_dot(const struct topo *topo, const struct graph *host, FILE *to)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    graph_dot(host, memory);
    fclose(memory);
    bytes = (size_t)(strrchr(text, '}') - text); /* the fabric goes before it */
    fwrite(text, 1, bytes, to);
    free(text);
    dot_domain(topo, host, to);
    dot_fabric(topo, host, to);
    dot_faults(topo, host, to);
    char *title = topo_describe(topo);
    fprintf(to, "  label=\"%s\"; labelloc=t; fontname=Helvetica;\n}\n", title);
    free(title);
}

/* ---- a file ---- */

static void put(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

static json_t *network_json(const struct topo *topo, const char *source)
{
    json_t *network = json_object();
    put(network, "kind", json_string(topo_fabric_name(topo->fabric)));
    put(network, "nics_per_host", json_integer((json_int_t)topo->nics));
    put(network, "nic_Gbps", json_real(topo->one_nic_Gbps));
    put(network, "oversubscribed", json_real(topo->oversubscribed));
    put(network, "layout", json_string(topo_layout_name(topo->layout)));
    if (topo->layout == TOPO_TORUS && topo->dims) {
        json_t *dims = json_array();
        for (uint32_t i = 0; i < topo->ndims; i++)
            json_array_append_new(dims, json_integer(topo->dims[i]));
        put(network, "dims", dims);
    }
    if (topo->network_latency_ns > 0)
        put(network, "latency_ns", json_real(topo->network_latency_ns));
    put(network, "source", json_string(source));
    return network;
}

void topo_text_write(const struct topo *topo, const char *source, FILE *to)
{
    json_t *root = json_object(), *up = json_object();
    put(root, "schema", json_integer(1));
    put(root, "form", json_string("uniform"));
    if (topo->about) put(root, "about", json_string(topo->about));
    put(root, "accelerator", json_string(topo->accel.name));
    put(root, "hosts", json_integer((json_int_t)topo->hosts));
    put(root, "accelerators_per_host", json_integer((json_int_t)topo->per_host));
    put(root, "domain_hosts", json_integer((json_int_t)topo->domain_hosts));
    put(up, "kind", json_string(scale_up_name(topo->scale_up)));
    put(up, "line_GBps", json_real(topo->line_GBps));
    put(up, "ring_GBps", json_real(topo->ring_GBps));
    if (topo->scale_up_latency_ns > 0) put(up, "latency_ns", json_real(topo->scale_up_latency_ns));
    put(up, "source", json_string(source));
    put(root, "scale_up", up);
    if (topo->nic_stated) put(root, "network", network_json(topo, source));
    json_dumpf(root, to, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fputc('\n', to);
    json_decref(root);
}
