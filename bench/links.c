/* SPDX-License-Identifier: Apache-2.0
 * Counting connections: see links.h. */
#include "bench/links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "base/units.h"
#include "exec/transport.h"
#include "sched/table.h"

enum { FILES_SPARE = 64 }; /* that a rank needs for other things than connections, at most */

/* ---- peers of a rank ---- */

static int compare_ranks(const void *a, const void *b)
{
    uint32_t one = *(const uint32_t *)a, two = *(const uint32_t *)b;
    return (one > two) - (one < two);
}

/* The peers of rank `me` of a group over all schedules, ascending, each once; freed by the caller.
 */
static uint32_t *peers_of(const struct ready_set *set, uint32_t me, size_t *count)
{
    uint32_t *peers = NULL;
    size_t cap = 0;
    *count = 0;
    for (size_t i = 0; i < set->count * NPLACES; i++) {
        const struct linked *linked = set->items[i / NPLACES].linked[i % NPLACES];
        if (!linked) continue;
        const struct lprog *prog = &linked->progs[linked->sched->prog_of[me]];
        for (uint32_t w = 0; w < prog->nwires; w++) {
            MEM_GROW(peers, *count, cap);
            peers[(*count)++] = sched_peer(linked->sched, me, prog->wires[w].peer);
        }
    }
    if (*count == 0) return peers;
    qsort(peers, *count, sizeof *peers, compare_ranks);
    size_t kept = 1;
    for (size_t i = 1; i < *count; i++) {
        if (peers[i] != peers[kept - 1]) peers[kept++] = peers[i];
    }
    *count = kept;
    return peers;
}

/* ---- all ranks ---- */

/* The hosts by world rank; freed by the caller. */
static uint32_t *hosts_of(const struct plan *plan)
{
    uint32_t *host = mem_calloc(plan_world(plan), sizeof *host);
    const uint32_t *ranks = plan_host_ranks(plan);
    for (uint32_t h = 0, r = 0; h < plan->nhosts; h++) {
        for (uint32_t i = 0; i < ranks[h]; i++)
            host[r++] = h;
    }
    return host;
}

/* The second number of a file such as tcp_rmem: bytes of a buffer to begin with. */
static size_t kernel_bytes(const char *path)
{
    FILE *file = fopen(path, "re");
    size_t least = 0, usual = 0;
    if (file && fscanf(file, "%zu %zu", &least, &usual) != 2) usual = 0;
    if (file) fclose(file);
    return usual;
}

static void keep_most(uint64_t value, uint32_t number, uint64_t *most, uint32_t *at)
{
    if (value <= *most) return;
    *most = value;
    *at = number;
}

struct links links_count(const struct fitted *fitted)
{
    const struct plan *plan = fitted->plan;
    const struct transport *transport = transport_table()[plan->transport];
    const struct transport *net = transport->outer ? transport->outer : transport;
    struct links links = {0};
    if (!net->join || net->mpiexec) return links;
    links.each = !net->connections ? 1 : plan->connections ? plan->connections : net->connections;
    if (net->connection_bytes)
        links.bytes = net->connection_bytes + kernel_bytes("/proc/sys/net/ipv4/tcp_rmem") +
                      kernel_bytes("/proc/sys/net/ipv4/tcp_wmem");
    uint32_t nhosts = plan->nhosts ? plan->nhosts : 1, *host = hosts_of(plan);
    uint64_t *out = mem_calloc(nhosts, sizeof *out), *inside = mem_calloc(nhosts, sizeof *inside);
    for (uint32_t r = 0; r < plan_world(plan); r++) {
        size_t count;
        uint32_t base = r - r % plan->nranks;
        uint32_t *peers = peers_of(&fitted->ready, r - base, &count);
        uint64_t own = 0;
        for (size_t i = 0; i < count; i++) {
            bool away = host[base + peers[i]] != host[r];
            out[host[r]] += away ? links.each : 0;
            own += away || !transport->outer ? links.each : 0;
        }
        free(peers);
        inside[host[r]] += own;
        links.all += own;
        keep_most(own, r, &links.rank_most, &links.rank);
        if (!plan->threads) keep_most(own, host[r], &links.process_most, &links.process_host);
    }
    for (uint32_t h = 0; h < nhosts; h++) {
        keep_most(out[h], h, &links.host_most, &links.host);
        if (plan->threads) keep_most(inside[h], h, &links.process_most, &links.process_host);
    }
    links.all /= 2; /* each was seen from both ends */
    free(inside);
    free(out);
    free(host);
    return links;
}

int links_check(const struct links *links, const struct fitted *fitted, const struct hosts *hosts,
                struct err *err)
{
    const struct plan *plan = fitted->plan;
    const struct transport *transport = transport_table()[plan->transport];
    const struct transport *net = transport->outer ? transport->outer : transport;
    if (!links->each || !net->connections) return 0; /* not of files */
    struct rlimit files;
    uint64_t may = getrlimit(RLIMIT_NOFILE, &files) ? RLIM_INFINITY : files.rlim_cur;
    if (hosts && hosts_files(hosts, links->process_host))
        may = hosts_files(hosts, links->process_host);
    if (links->process_most + FILES_SPARE <= may) return 0;
    return err_add(
        err, ERR_USAGE,
        "%s on %u ranks needs %llu connections in one %s (%u per pair of ranks) and up to %d other "
        "files, but a process may have %llu open: raise that (ulimit -n %llu), or use %sa "
        "transport "
        "or algorithm with fewer connections (shm+tcp, ring, hierarchical)",
        coll_get(plan->coll)->name, plan_world(plan), (unsigned long long)links->process_most,
        plan->threads ? "process, whose threads the ranks of a host are" : "rank", links->each,
        FILES_SPARE, (unsigned long long)may, (unsigned long long)links->process_most + FILES_SPARE,
        links->each > 1 ? "--connections 1, " : "");
}

void links_note(const struct links *links, const struct hosts *hosts, struct out *out)
{
    if (!links->each) return;
    char text[UNITS_TEXT], memory[96] = "", outside[128] = "";
    if (links->bytes)
        snprintf(memory, sizeof memory, "; up to %s of buffers per rank",
                 units_size_near(text, links->bytes * links->rank_most));
    if (links->host_most > 0)
        snprintf(outside, sizeof outside, ", %llu over the interface of %.64s",
                 (unsigned long long)links->host_most,
                 hosts ? hosts_name(hosts, links->host) : "one host");
    out_note(out, "connections: up to %llu per rank (%u per pair)%s, %llu in all%s",
             (unsigned long long)links->rank_most, links->each, outside,
             (unsigned long long)links->all, memory);
    out_meta(out, "connections_per_rank", out_uint(links->rank_most));
    out_meta(out, "connections_per_host", out_uint(links->host_most));
    out_meta(out, "connections", out_uint(links->all));
}
