/* SPDX-License-Identifier: Apache-2.0
 * Over several hosts: see across.h. */
#include "bench/across.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/transport.h"

/* The table of ranks by host, as it was understood. Freed by the caller. */
static char *slot_table(const struct host_list *list)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    for (uint32_t h = 0; to && h < list->count; h++)
        fprintf(to, "%s%s %u%s", h ? ", " : "", list->entries[h].name, list->entries[h].ranks,
                list->entries[h].counted ? "" : " (no number was given)");
    if (to) fclose(to);
    return text;
}

/* Gives the hosts --ranks ranks, in the order of the list. */
static int deal(struct host_list *list, uint64_t nranks, struct err *err)
{
    if (nranks > list->ranks) {
        char *table = slot_table(list);
        err_add(err, ERR_USAGE,
                "--ranks %llu: --hosts has room for %u (%s); write NAME:RANKS for more",
                (unsigned long long)nranks, list->ranks, table);
        free(table);
        return -1;
    }
    for (uint64_t left = nranks; list->ranks > nranks;) {
        uint32_t count = 0;
        list->ranks = 0;
        for (uint32_t h = 0; h < list->count; h++) {
            struct host_entry *entry = &list->entries[h];
            if (entry->ranks > left) entry->ranks = (uint32_t)left;
            left -= entry->ranks;
            list->ranks += entry->ranks;
            count += entry->ranks > 0;
        }
        for (uint32_t h = count; h < list->count; h++)
            free(list->entries[h].name);
        list->count = count;
    }
    return 0;
}

/* What needs one memory, or one clock, for all ranks. */
static void refuse_company(const struct request *request, struct err *err)
{
    const struct {
        bool asked;
        const char *what, *why;
    } none[] = {
        {request->trace, "--trace", "the hosts' clocks differ"},
        {request->skew_s > 0, "--skew", "the hosts' clocks differ"},
        {request->repeat_check, "--repeat-check", "it compares the ranks' memory"},
        {request->vs != 0, "--vs", "the library's ranks are started on one host"},
        {request->groups, "--groups", "the groups' ranks are counted on one host"},
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        if (!none[i].asked) continue;
        err_add(err, ERR_USAGE, "%s with --hosts: %s; run it on one host", none[i].what,
                none[i].why);
    }
}

/* A transport that leads to other hosts. */
static void choose_transport(struct request *request, const struct opts *opts, struct err *err)
{
    struct err none = ERR_INIT;
    if (!opts_is_set(opts, "transport")) request->transport = "shm+tcp";
    const struct transport *transport = transport_find(request->transport, &none);
    err_release(&none); /* an unknown one is found again */
    if (!transport || transport->join) return;
    err_add(err, ERR_USAGE,
            "--transport %s reaches ranks on one host, --hosts names several; use tcp or shm+tcp",
            request->transport);
}

/* Hierarchical algorithms get the hosts as node groups. Freed by the caller. */
static char *node_groups(const struct host_list *list)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    for (uint32_t h = 0; to && h < list->count; h++)
        fprintf(to, "%s%u", h ? "+" : "", list->entries[h].ranks);
    if (to) fclose(to);
    return text;
}

/* What follows from the list. */
static void complete(struct across *across, struct request *request, const struct opts *opts,
                     struct err *err)
{
    request->nranks = across->list.ranks;
    if (across->list.count == 1) return;
    refuse_company(request, err);
    choose_transport(request, opts, err);
    request->host_groups = node_groups(&across->list);
    across->grouped = !request->nodes && !request->groups;
    if (across->grouped) request->nodes = request->host_groups;
}

int across_read(struct across *across, struct request *request, struct opts *opts, struct err *err)
{
    *across = (struct across){.hosts = NULL};
    if (!request->hosts) {
        if (request->rsh)
            return err_add(err, ERR_USAGE, "--rsh starts ranks on other hosts: give --hosts too");
        return 0;
    }
    if (host_list_read(request->hosts, &across->list, err)) return -1;
    unsigned before = err->count;
    if (opts_is_set(opts, "ranks") && deal(&across->list, request->nranks, err)) return -1;
    complete(across, request, opts, err);
    return err->count > before ? -1 : 0;
}

int across_copies(struct across *across, const struct foreign *foreign, struct request *request,
                  struct opts *opts, char **argv, struct err *err)
{
    *across = (struct across){.hosts = NULL};
    unsigned before = err->count;
    if (request->hosts || request->rsh)
        err_add(err, ERR_USAGE, "--hosts and --rsh: %s has started the copies already",
                foreign->name);
    if (opts_is_set(opts, "ranks") && request->nranks != foreign->size)
        err_add(err, ERR_USAGE,
                "--ranks %llu: %s has started %u copies, one per rank; leave --ranks out",
                (unsigned long long)request->nranks, foreign->name, foreign->size);
    launch_block_signals(); /* as in across_open */
    across->hosts = foreign_gather(foreign, argv, across_patience_s(request), err);
    if (!across->hosts) return -1;
    struct host_list *list = &across->list;
    list->count = hosts_count(across->hosts);
    list->ranks = request->copies = foreign->size;
    list->entries = mem_calloc(list->count, sizeof *list->entries);
    for (uint32_t h = 0; h < list->count; h++)
        list->entries[h] = (struct host_entry){mem_strdup(hosts_name(across->hosts, h)),
                                               hosts_ranks(across->hosts)[h], true};
    if (err->count == before) complete(across, request, opts, err);
    return err->count > before ? -1 : 0;
}

int across_open(struct across *across, const struct request *request, struct err *err)
{
    if (across->list.count < 2 || across->hosts) return 0;
    struct hosts_spec spec = {
        .list = &across->list,
        .rsh = request->rsh,
        .iface = request->iface ? request->iface : "",
        .timeout_s = across_patience_s(request),
    };
    launch_block_signals(); /* hosts_open looks for them, launch_run takes them */
    across->hosts = hosts_open(&spec, err);
    return across->hosts ? 0 : -1;
}

void across_close(struct across *across, int status)
{
    hosts_close(across->hosts, status);
    host_list_release(&across->list);
}

double across_patience_s(const struct request *request)
{
    return request->timeout_s > 0 ? request->timeout_s : HOSTS_COME_S;
}

uint32_t across_machine_ranks(const struct across *across, uint32_t nranks)
{
    uint32_t before;
    return across->hosts ? hosts_machine_ranks(across->hosts, 0, &before) : nranks;
}

/* ---- in the header ---- */

void across_note(const struct across *across, struct out *out)
{
    if (!across->hosts) return;
    char *table = slot_table(&across->list);
    char *const *warnings;
    bool counted = true;
    for (uint32_t h = 0; h < across->list.count; h++)
        counted = counted && across->list.entries[h].counted;
    out_note(out, "hosts and ranks: %s%s%s", table,
             across->grouped ? "; they are the node groups of hierarchical algorithms" : "",
             counted ? "" : "; NAME:RANKS gives a host more than one");
    out_meta(out, "hosts", out_text(table));
    free(table);
    size_t count = hosts_warnings(across->hosts, &warnings);
    for (size_t i = 0; i < count; i++)
        out_note(out, "WARNING: %s", warnings[i]);
}

/* "ranks 0-1 eth0 (private), rank 2 eth1 (private)". Freed by the caller. */
static char *interfaces(struct world *world)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    uint32_t nranks = world_nranks(world);
    for (uint32_t r = 0, end; to && r < nranks; r = end) {
        const char *kind = world_status(world, r)->card.kind;
        for (end = r + 1; end < nranks && !strcmp(world_status(world, end)->card.kind, kind);)
            end++;
        if (!*kind) continue;
        if (ftell(to) > 0) fputs(", ", to);
        if (end == r + 1) fprintf(to, "rank %u %s", r, kind);
        if (end > r + 1) fprintf(to, "ranks %u-%u %s", r, end - 1, kind);
    }
    if (to) fclose(to);
    return text;
}

void across_note_addresses(struct world *world, struct out *out)
{
    char *kinds = interfaces(world);
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    for (uint32_t r = 0; to && r < world_nranks(world); r++) {
        const struct rank_card *card = &world_status(world, r)->card;
        if (card->address[0]) fprintf(to, "%s%u %s", ftell(to) > 0 ? ", " : "", r, card->address);
    }
    if (to) fclose(to);
    if (text && *text) {
        out_note(out, "addresses by rank: %s", text);
        out_meta(out, "addresses", out_text(text));
    }
    if (kinds && *kinds) {
        out_note(out, "interfaces: %s", kinds);
        out_meta(out, "interfaces", out_text(kinds));
    }
    free(kinds);
    free(text);
}
