/* SPDX-License-Identifier: Apache-2.0
 * Reads faults and does to a topology what they do. See fault.h. */
#include "net/fault.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"

const struct opts_row fault_rows[] = {
    {"fault", 0, OPTS_MORE, offsetof(struct fault_args, faults), NULL, "FAULT",
     "something is broken; may be repeated: host0/nic3=0.5 (a link at half its rate; host* means "
     "every host, nic* every NIC, gpu0 all scale-up links of a GPU), host0/nic3=0 (a NIC is "
     "missing), no-peer-access, nics=1 (so many NICs of each "
     "host are used), tcp (the network falls back to TCP)",
     NULL, 0, 0, false, NULL},
    {0},
};

static const char forms[] =
    "a fault is LINK=FRACTION (host0/nic3=0.5), NIC=0, no-peer-access, nics=N or tcp; of a "
    "training step also gpu3=0.8 (an accelerator's speed) and link:host0/gpu2=0.5 (its links)";

static void no_peers(struct topo *topo)
{
    topo->host.peer_access = false;
    if (topo->scale_up == SCALE_UP_MEMORY || topo->scale_up == SCALE_UP_PCIE_HOST) return;
    topo->scale_up = SCALE_UP_PCIE_HOST;
    topo->line_GBps = topo->host.pcie_GBps;
    topo->ring_GBps = topo_usual_through_host(topo->line_GBps);
    topo->domain_hosts = 1;
}

static int limit_nics(struct topo *topo, uint64_t nics, const char *where, struct err *err)
{
    if (nics < 1 || nics > topo->nics)
        return err_add(err, ERR_USAGE,
                       "%s: %" PRIu64 " NICs of each host are to be used; a host has %" PRIu64
                       ": 1..%" PRIu64,
                       where, nics, topo->nics, topo->nics);
    topo->nic_Gbps = (double)nics * topo->one_nic_Gbps / (double)topo->full_host;
    topo->nics_used = nics;
    return 0;
}

static const double least_fraction = 1e-6; /* a link of less carries nothing in any time there is */

/* A link has one fault: two figures for it would have to be put together somehow. */
static int check_twice(const struct topo *topo, const struct fault *fault, struct err *err)
{
    for (size_t i = 0; i < topo->nfaults && fault->link; i++) {
        const struct fault *other = &topo->faults[i];
        if (!other->link || strcmp(other->link, fault->link) != 0) continue;
        return err_add(err, ERR_USAGE, "%s: %s has a fault already, %g of its rate by %s; here %g",
                       fault->where, fault->link, other->fraction, other->where, fault->fraction);
    }
    return 0;
}

/* Takes the strings of `fault`. */
static int add(struct topo *topo, struct fault fault, struct err *err)
{
    int bad = check_twice(topo, &fault, err);
    switch (fault.kind) {
    case FAULT_NO_PEERS:
        no_peers(topo);
        break;
    case FAULT_NICS:
        bad = limit_nics(topo, fault.nics, fault.where, err);
        break;
    case FAULT_TCP:
        topo->fabric = FABRIC_TCP;
        break;
    case FAULT_FRACTION:
        if (fault.fraction < least_fraction)
            bad = err_add(err, ERR_USAGE,
                          "%s: a fraction of %g; it must be in %g..1, or 0 (a NIC that is missing)",
                          fault.where, fault.fraction, least_fraction);
        break;
    case FAULT_MISSING:
        break;
    }
    topo->faults = mem_realloc(topo->faults, topo->nfaults + 1, sizeof fault);
    topo->faults[topo->nfaults++] = fault;
    return bad;
}

void fault_release(struct topo *topo)
{
    for (size_t i = 0; i < topo->nfaults; i++) {
        free(topo->faults[i].link);
        free(topo->faults[i].where);
    }
    free(topo->faults);
    topo->faults = NULL;
    topo->nfaults = 0;
}

int64_t fault_host(const struct fault *fault)
{
    const char *link = fault->link;
    if (!link || strncmp(link, "host", 4) != 0 || link[4] == '*') return -1;
    return (int64_t)strtoull(link + 4, NULL, 10);
}

/* Whether the fault names a NIC's link to the network. */
static bool names_nic(const struct fault *fault)
{
    const char *slash = fault->link ? strchr(fault->link, '/') : NULL;
    return slash && strncmp(slash, "/nic", 4) == 0 && !strstr(slash, " pcie");
}

/* Whether a fault of `host` (up to its slash) is also one of the host of `link`. */
static bool same_host(const char *host, const char *link)
{
    size_t length = (size_t)(strchr(host, '/') - host);
    return strncmp(host, "host*/", 6) == 0 || strncmp(host, link, length + 1) == 0;
}

/* Whether the fault is one of NIC `nic` ("nic*": of each). */
static bool hits(const struct fault *fault, uint64_t nic)
{
    const char *number = strchr(fault->link, '/') + strlen("/nic");
    return *number == '*' || strtoull(number, NULL, 10) == nic;
}

/* NICs of the first `nics` that are missing in the host of `link`. */
static uint64_t missing_at(const struct topo *topo, const char *link, uint64_t nics)
{
    uint64_t missing = 0;
    for (uint64_t nic = 0; nic < nics; nic++) {
        bool gone = false;
        for (size_t i = 0; i < topo->nfaults && !gone; i++) {
            const struct fault *fault = &topo->faults[i];
            gone = fault->kind == FAULT_MISSING && names_nic(fault) &&
                   same_host(fault->link, link) && hits(fault, nic);
        }
        missing += gone;
    }
    return missing;
}

double fault_nic_share(const struct topo *topo)
{
    uint64_t nics = topo->nics_used ? topo->nics_used : topo->nics, missing = 0;
    double slowest = 1;
    for (size_t i = 0; i < topo->nfaults; i++) {
        const struct fault *fault = &topo->faults[i];
        if (!names_nic(fault)) continue;
        bool used = false;
        for (uint64_t nic = 0; nic < nics && !used; nic++)
            used = hits(fault, nic);
        if (used && fault->kind == FAULT_FRACTION && fault->fraction < slowest)
            slowest = fault->fraction;
        uint64_t here = missing_at(topo, fault->link, nics);
        missing = here > missing ? here : missing;
    }
    return missing < nics ? slowest * (double)(nics - missing) / (double)nics : nics ? 0 : 1;
}

/* Names the faults that leave a host of a cluster without a NIC. */
static int check_left(const struct topo *topo, struct err *err)
{
    if (!topo->nfaults || topo_gpus(topo) <= topo_domain(topo) || fault_nic_share(topo) > 0)
        return 0;
    char *which = mem_strdup("");
    for (size_t i = 0; i < topo->nfaults; i++) {
        const struct fault *fault = &topo->faults[i];
        bool missing = fault->kind == FAULT_MISSING && names_nic(fault);
        if (!missing && fault->kind != FAULT_NICS) continue;
        char *longer = mem_printf("%s%s%s", which, *which ? ", " : "", fault->where);
        free(which);
        which = longer;
    }
    int bad = err_add(err, ERR_USAGE, "%s: no NIC is left to reach the other hosts by, after %s",
                      topo->name ? topo->name : "the topology", which);
    free(which);
    return bad;
}

/* ---- from a command line ---- */

static int parse_link(struct topo *topo, const char *text, const char *equals, char *where,
                      struct err *err)
{
    double fraction = 0;
    int bad = units_read_double(where, equals + 1, &fraction, err);
    if (bad == 0 && !(fraction >= 0 && fraction <= 1))
        bad = err_add(err, ERR_USAGE,
                      "%s: a fraction of %g; it must be in 0..1 (0: a NIC that is missing)", where,
                      fraction);
    if (bad) {
        free(where);
        return -1;
    }
    return add(topo,
               (struct fault){.kind = fraction > 0 ? FAULT_FRACTION : FAULT_MISSING,
                              .link = mem_printf("%.*s", (int)(equals - text), text),
                              .fraction = fraction,
                              .where = where},
               err);
}

int fault_parse(struct topo *topo, const char *text, struct err *err)
{
    char *where = mem_printf("--fault \"%s\"", text);
    const char *equals = strrchr(text, '=');
    if (strcmp(text, "tcp") == 0)
        return add(topo, (struct fault){.kind = FAULT_TCP, .where = where}, err);
    if (strcmp(text, "no-peer-access") == 0)
        return add(topo, (struct fault){.kind = FAULT_NO_PEERS, .where = where}, err);
    if (strncmp(text, "nics=", 5) == 0) {
        uint64_t nics = 0;
        if (units_read_uint(where, text + 5, 1, topo->nics, &nics, err) == 0)
            return add(topo, (struct fault){.kind = FAULT_NICS, .nics = nics, .where = where}, err);
        free(where);
        return -1;
    }
    if (equals && equals > text) return parse_link(topo, text, equals, where, err);
    err_add(err, ERR_USAGE, "%s: %s", where, forms);
    free(where);
    return -1;
}

int fault_parse_all(struct topo *topo, const struct opts_list *texts, struct err *err)
{
    int bad = 0;
    for (size_t i = 0; i < texts->count; i++)
        bad |= fault_parse(topo, texts->items[i], err);
    if (!bad) bad = check_left(topo, err);
    return bad ? -1 : 0;
}

/* ---- from a file ---- */

/* What one object of the list says. 0, or -1 with its faults. */
static int read_one(struct doc *doc, const json_t *object, struct fault *fault, struct err *err)
{
    static const char *const known[] = {"link",      "fraction", "missing", "peer_access",
                                        "nics_used", "fallback", NULL};
    const char *link = NULL, *missing = NULL, *fallback = NULL;
    bool peers = true;
    unsigned before = err->count;
    doc_keys(doc, object, known, err);
    int ways = doc_string(doc, object, "link", &link, err) == 1;
    int part = doc_double(doc, object, "fraction", 0, 1, &fault->fraction, err) == 1;
    int gone = doc_string(doc, object, "missing", &missing, err) == 1;
    int peer = doc_bool(doc, object, "peer_access", &peers, err) == 1;
    int nics = doc_uint(doc, object, "nics_used", 1, UINT32_MAX, &fault->nics, err) == 1;
    int fall = doc_string(doc, object, "fallback", &fallback, err) == 1;
    if (err->count > before) return -1;
    if (ways + gone + peer + nics + fall != 1 || ways != part)
        return doc_fault(doc, err, object, NULL,
                         "a fault is one of {\"link\", \"fraction\"}, {\"missing\"}, "
                         "{\"peer_access\": false}, {\"nics_used\"}, {\"fallback\": \"tcp\"}");
    if (peer && peers)
        return doc_fault(doc, err, object, "peer_access",
                         "\"peer_access\": true is no fault; false is");
    if (fall && strcmp(fallback, "tcp") != 0)
        return doc_fault(doc, err, object, "fallback",
                         "\"fallback\" is \"%s\"; the only one is \"tcp\"", fallback);
    fault->kind = ways   ? (fault->fraction > 0 ? FAULT_FRACTION : FAULT_MISSING)
                  : gone ? FAULT_MISSING
                  : peer ? FAULT_NO_PEERS
                  : nics ? FAULT_NICS
                         : FAULT_TCP;
    if (ways || gone) fault->link = mem_strdup(ways ? link : missing);
    return 0;
}

int fault_read(struct doc *doc, struct topo *topo, struct err *err)
{
    json_t *list = NULL, *object;
    size_t i;
    int got = doc_child(doc, doc->root, "faults", JSON_ARRAY, &list, err), bad = got < 0;
    json_array_foreach(list, i, object)
    {
        struct fault fault = {0};
        if (!json_is_object(object)) {
            bad = doc_fault_item(doc, err, list, i, "a fault must be an object");
        } else if (read_one(doc, object, &fault, err)) {
            bad = -1;
        } else {
            fault.where = mem_printf("%s:%u", doc->path, doc_line(doc, list, NULL, i));
            bad |= add(topo, fault, err);
        }
    }
    return bad ? -1 : 0;
}
