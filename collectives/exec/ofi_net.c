/* SPDX-License-Identifier: Apache-2.0
 * What a rank makes once for the transport `ofi`: it chooses a provider, opens an endpoint with one
 * completion queue, says in its card where it is, and hands out registered memory. See ofi.h. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/ofi.h"
#include "exec/sock.h"

enum {
    LEAST_ENTRIES = 16384, /* of the completion queue, */
    RANK_ENTRIES = 256,    /* .. and per rank, if that is more */
    LEAST_REGION = 1 << 20,
    SHM_REGION = 16 << 20,  /* of /dev/shm, per rank, */
    SHM_BYTES = 24 << 20,   /* a rank's memory with that provider, */
    OTHER_BYTES = 96 << 20, /* .. and with tcp (88 MB by libfabric 1.17) */
    SHM_SPARE = 16 << 20    /* .. and what libfabric wants to see beside the last one */
};

static const char shm_directory[] = "/dev/shm", shm_provider[] = "shm";

/* What a card holds; `met` is for the provider shm alone, whose cards lie in common memory. */
struct card {
    _Atomic uint32_t met; /* ranks that have mapped this one's region */
    uint32_t address_bytes;
    char provider[NET_NAME];
    uint8_t address[RANK_CARD - NET_NAME - 8];
};
_Static_assert(sizeof(struct card) == RANK_CARD, "a card is full");

static struct card *card_of(const struct ofi_net *net, uint32_t rank)
{
    return (struct card *)(void *)world_status(net->rank->world, rank)->card.data;
}

const char *ofi_provider(const struct ofi_net *net)
{
    return net->info->fabric_attr->prov_name;
}

static int failed(const struct ofi_net *net, const char *what, ssize_t error, struct err *err)
{
    return err_add(err, ERR_FAILED, "provider %s of libfabric: %s: %s",
                   net->info ? ofi_provider(net) : "(none)", what, net->lib->strerror((int)-error));
}

/* Ranks that have chosen a provider already; *first of them. They choose one after the other. */
static uint32_t chosen(const struct ofi_net *net, const struct card **first)
{
    uint32_t count = 0;
    for (uint32_t r = net->rank->nranks; r-- > 0;) {
        const struct card *card = card_of(net, r);
        if (!card->provider[0]) continue;
        *first = card;
        count++;
    }
    return count;
}

/* Libfabric's files grow as they are used, and a full /dev/shm is a SIGBUS then: so that it is
 * looked at before, for all ranks that are still to come, and all of it taken at once behind. */
static int shm_check(const struct ofi_net *net, struct err *err)
{
    struct statvfs have;
    const struct card *first;
    uint32_t nranks = net->rank->nranks, taken = chosen(net, &first);
    if (statvfs(shm_directory, &have)) {
        return err_add(err, ERR_FAILED, "provider shm needs %s: %s", shm_directory,
                       strerror(errno));
    }
    size_t left = have.f_bavail * have.f_frsize;
    size_t need = (size_t)(nranks - taken) * SHM_REGION + SHM_SPARE;
    if (left >= need) return 0;
    return err_add(err, ERR_USAGE,
                   "provider shm needs %zu B of %s (%u ranks x %d B and %d B to spare), but %zu B "
                   "are free: give it more (containers: --shm-size or --ipc=host), or use another "
                   "provider",
                   need, shm_directory, nranks - taken, SHM_REGION, SHM_SPARE, left);
}

/* Whether a rank may choose shm by itself: as the first one did. */
static bool shm_fits(const struct ofi_net *net)
{
    const struct card *first;
    if (chosen(net, &first)) return strcmp(first->provider, shm_provider) == 0;
    struct err none = ERR_INIT;
    bool fits = shm_check(net, &none) == 0;
    err_release(&none);
    return fits;
}

/* ---- which provider ---- */

/* Fast ones first, by the beginning of their names. */
static const char *const preferences[] = {"shm", "cxi",   "efa", "psm3", "psm2",
                                          "opx", "verbs", "tcp", "net"};

/* The own address of an info as text, for IP; else "". */
static void own_ip(const struct fi_info *info, char *text, socklen_t room)
{
    *text = '\0';
    if (!info->src_addr) return;
    if (info->addr_format == FI_SOCKADDR_IN) {
        const struct sockaddr_in *in = info->src_addr;
        inet_ntop(AF_INET, &in->sin_addr, text, room);
    } else if (info->addr_format == FI_SOCKADDR_IN6) {
        const struct sockaddr_in6 *in6 = info->src_addr;
        inet_ntop(AF_INET6, &in6->sin6_addr, text, room);
    }
}

/* Where the rank may have its endpoint. */
struct place_wanted {
    const char *iface;      /* as asked for, "": anywhere */
    char address[NET_NAME]; /* the own address that follows; "": it is no interface for IP */
    bool shm;               /* memory can be that of the provider shm */
};

/* Providers over IP have one domain per address; others are asked for by the name of their device
 * ("mlx5_0", "cxi0"). */
static bool is_at(const struct fi_info *info, const struct place_wanted *place)
{
    char ip[INET6_ADDRSTRLEN];
    own_ip(info, ip, sizeof ip);
    if (*ip && *place->address) return strcmp(ip, place->address) == 0;
    return !*place->iface || strcmp(info->domain_attr->name, place->iface) == 0;
}

static bool serves(const struct fi_info *info, const struct place_wanted *place)
{
    const uint64_t needed = FI_MSG | FI_RMA;
    return info->ep_attr->type == FI_EP_RDM && (info->caps & needed) == needed &&
           info->domain_attr->cq_data_size >= 4 && is_at(info, place) &&
           (place->shm || strcmp(info->fabric_attr->prov_name, shm_provider) != 0);
}

/* The best of the list; NULL: none serves. `any`: the first, since the list is of the one provider
 * that was asked for. */
static const struct fi_info *best(const struct fi_info *list, bool any,
                                  const struct place_wanted *place)
{
    for (size_t p = 0; p < sizeof preferences / sizeof *preferences; p++) {
        const char *name = any ? "" : preferences[p];
        for (const struct fi_info *info = list; info; info = info->next) {
            if (strncmp(info->fabric_attr->prov_name, name, strlen(name)) == 0 &&
                serves(info, place)) {
                return info;
            }
        }
    }
    return NULL;
}

/* "shm (shm), tcp;ofi_rxm (eth0, lo)"; freed by the caller. */
static char *names_in(const struct fi_info *list)
{
    char *text = mem_strdup("");
    for (const struct fi_info *info = list; info; info = info->next) {
        char *one = mem_printf("%s (%s)", info->fabric_attr->prov_name, info->domain_attr->name);
        if (!strstr(text, one)) {
            char *longer = mem_printf("%s%s%s", text, *text ? ", " : "", one);
            free(text);
            text = longer;
        }
        free(one);
    }
    return text;
}

/* What there is of `provider` ("": of all) that can do `more`, too. */
static struct fi_info *look(const struct ofi_net *net, const char *provider, uint64_t more)
{
    struct fi_info *hints = net->lib->dupinfo(NULL), *list = NULL;
    if (!hints) return NULL;
    hints->caps = FI_RMA | FI_MSG | more;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN; /* a rank has all of it for itself */
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    if (more & FI_HMEM) hints->domain_attr->mr_mode |= FI_MR_HMEM;
    if (*provider) hints->fabric_attr->prov_name = mem_strdup(provider);
    if (net->lib->getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &list)) list = NULL;
    net->lib->freeinfo(hints);
    return list;
}

/* Whether the provider shm may be chosen, or was asked for. */
static bool can_be_shm(const struct ofi_net *net)
{
    const struct net_spec *spec = world_net(net->rank->world);
    return world_nhosts(net->rank->world) == 1 &&
           (!*spec->provider || strcmp(spec->provider, shm_provider) == 0);
}

static int choose(struct ofi_net *net, struct err *err)
{
    const struct net_spec *spec = world_net(net->rank->world);
    bool one_host = world_nhosts(net->rank->world) == 1;
    bool asked = strcmp(spec->provider, shm_provider) == 0;
    struct place_wanted place = {.iface = spec->iface,
                                 .shm = asked ? one_host : can_be_shm(net) && shm_fits(net)};
    struct err none = ERR_INIT; /* it may be the name of another device */
    if (sock_address(spec->iface, one_host, place.address, &none)) *place.address = '\0';
    err_release(&none);
    struct fi_info *list = look(net, spec->provider, 0);
    const struct fi_info *info = best(list, *spec->provider, &place);
    if (info) {
        net->info = net->lib->dupinfo(info);
    } else if (!one_host || !asked || !shm_check(net, err)) {
        struct fi_info *all = look(net, "", 0);
        char *names = names_in(all);
        uint32_t version = net->lib->version();
        err_add(err, ERR_USAGE,
                "libfabric %u.%u has no provider%s%s%s%s that can write into the memory "
                "of ranks of %s host%s; there are: %s",
                FI_MAJOR(version), FI_MINOR(version), *spec->provider ? " " : "", spec->provider,
                *spec->iface ? " at " : "", spec->iface, one_host ? "this" : "other",
                one_host ? "" : "s", *names ? names : "none");
        free(names);
        if (all) net->lib->freeinfo(all);
    }
    if (list) net->lib->freeinfo(list);
    return info ? 0 : -1;
}

void ofi_gpu_says(struct rank *rk, char *text, size_t size)
{
    struct ofi_net *net = rk->net;
    struct fi_info *able = look(net, ofi_provider(net), FI_HMEM);
    snprintf(text, size, "libfabric's provider %s %s memory of GPUs (FI_HMEM)", ofi_provider(net),
             able ? "takes" : "does not take");
    if (able) net->lib->freeinfo(able);
}

/* ---- the provider shm ---- */

static bool is_shm(const struct ofi_net *net)
{
    return strcmp(ofi_provider(net), shm_provider) == 0;
}

/* What the names of a run's files in /dev/shm begin with: known to its launcher, and to nobody who
 * reads it the token (FNV-1a of it). */
static void shm_prefix(const struct world *world, char *text, size_t room)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (uint32_t i = 0; i < TOKEN_BYTES; i++)
        hash = (hash ^ world_token(world)[i]) * UINT64_C(1099511628211);
    snprintf(text, room, "collbench-%016llx-", (unsigned long long)hash);
}

static void shm_name(struct ofi_net *net)
{
    char prefix[64];
    shm_prefix(net->rank->world, prefix, sizeof prefix);
    free(net->info->src_addr);
    net->info->src_addr = mem_printf("fi_shm://%s%u", prefix, net->rank->rank);
    net->info->src_addrlen = strlen(net->info->src_addr) + 1;
}

/* One rank after the other: else all could find the same free memory. Threads of one process are
 * kept apart by ofi_signals_keep. */
static void shm_lock(const struct ofi_net *net, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    while (fcntl(world_fd(net->rank->world), F_SETLKW, &lock) && errno == EINTR)
        continue;
}

static int shm_take(const char *name, struct err *err)
{
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    struct stat file;
    int error = fd < 0 || fstat(fd, &file) ? errno : posix_fallocate(fd, 0, file.st_size);
    if (fd >= 0) close(fd);
    if (!error) return 0;
    return err_add(err, ERR_FAILED, "provider shm cannot have its memory in %s: %s", shm_directory,
                   strerror(error));
}

/* Once all ranks have mapped a region nobody needs its name any more: then nothing is left behind
 * however a rank ends. */
static void shm_meet(struct ofi_net *net)
{
    for (uint32_t r = 0; r < net->rank->nranks; r++) {
        struct card *card = card_of(net, r);
        if (atomic_fetch_add(&card->met, 1) + 1 == net->rank->nranks) {
            shm_unlink(strstr((const char *)card->address, "://") + 3);
        }
    }
}

void ofi_sweep(const struct world *world)
{
    char prefix[64], path[sizeof shm_directory + 1 + NAME_MAX];
    shm_prefix(world, prefix, sizeof prefix);
    DIR *files = opendir(shm_directory);
    for (struct dirent *file; files && (file = readdir(files));) {
        if (strncmp(file->d_name, prefix, strlen(prefix)) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", shm_directory, file->d_name);
        unlink(path);
    }
    if (files) closedir(files);
}

/* ---- registered memory ---- */

static int reg(struct ofi_net *net, struct ofi_region *region, struct err *err)
{
    const uint64_t access = FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE;
    int bad = fi_mr_reg(net->domain, region->base, region->bytes, access, 0, net->nregions + 1, 0,
                        &region->mr, NULL);
    if (!bad && net->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        bad = fi_mr_bind(region->mr, &net->ep->fid, 0);
        if (!bad) bad = fi_mr_enable(region->mr);
    }
    return bad ? failed(net, "cannot register memory", bad, err) : 0;
}

/* A size that many handles come to: at most a quarter more than asked for. */
static size_t rounded(size_t bytes)
{
    size_t step = LEAST_REGION;
    bytes = bytes ? bytes : 1;
    while (step < bytes / 4)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

int ofi_region_take(struct ofi_net *net, size_t bytes, size_t *taken, struct err *err)
{
    size_t found = net->nregions;
    for (size_t i = 0; i < net->nregions; i++) {
        const struct ofi_region *region = &net->regions[i];
        bool better = found == net->nregions || region->bytes < net->regions[found].bytes;
        if (!region->taken && region->bytes >= bytes && better) found = i;
    }
    if (found == net->nregions) {
        struct ofi_region region = {.bytes = rounded(bytes)};
        region.base = mmap(NULL, region.bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region.base == MAP_FAILED) {
            return err_add(err, ERR_FAILED, "rank %u cannot have %zu B for slots: %s",
                           net->rank->rank, region.bytes, strerror(errno));
        }
        if (reg(net, &region, err)) {
            munmap(region.base, region.bytes);
            return -1;
        }
        MEM_GROW(net->regions, net->nregions, net->regions_cap);
        net->regions[net->nregions++] = region;
    }
    struct ofi_region *region = &net->regions[found];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (rank_prefault(net->rank, region->base, (bytes + page - 1) / page * page, err) ||
        device_pin(net->rank, region->base, region->bytes, net->rank->rank, err)) {
        return -1;
    }
    region->taken = true;
    *taken = found;
    return 0;
}

/* ---- the endpoint ---- */

/* A queue that can be waited for, where there is one. */
static int open_queue(struct ofi_net *net)
{
    net->cq_entries = LEAST_ENTRIES;
    while (net->cq_entries / RANK_ENTRIES < net->rank->nranks)
        net->cq_entries *= 2;
    struct fi_cq_attr attr = {
        .format = FI_CQ_FORMAT_DATA, .size = net->cq_entries, .wait_obj = FI_WAIT_FD};
    net->sleeps = fi_cq_open(net->domain, &attr, &net->cq, NULL) == 0;
    attr.wait_obj = FI_WAIT_NONE;
    return net->sleeps ? 0 : fi_cq_open(net->domain, &attr, &net->cq, NULL);
}

static int open_endpoint(struct ofi_net *net, struct err *err)
{
    struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = net->rank->nranks};
    int bad;
    if ((bad = net->lib->fabric(net->info->fabric_attr, &net->fabric, NULL)) ||
        (bad = fi_domain(net->fabric, net->info, &net->domain, NULL)))
        return failed(net, "cannot open its network", bad, err);
    if ((bad = open_queue(net))) return failed(net, "cannot open a completion queue", bad, err);
    if ((bad = fi_av_open(net->domain, &av, &net->av, NULL)) ||
        (bad = fi_endpoint(net->domain, net->info, &net->ep, NULL)) ||
        (bad = fi_ep_bind(net->ep, &net->av->fid, 0)) ||
        (bad = fi_ep_bind(net->ep, &net->cq->fid, FI_TRANSMIT | FI_RECV)) ||
        (bad = fi_enable(net->ep)))
        return failed(net, "cannot open an endpoint", bad, err);
    return 0;
}

/* The address for people, without the name of its format. */
static void say_address(const struct ofi_net *net, const struct card *own)
{
    struct rank_card *card = &net->rank->status->card;
    char text[RANK_CARD] = "";
    size_t room = sizeof text;
    fi_av_straddr(net->av, own->address, text, &room);
    const char *colon = strstr(text, "://");
    snprintf(card->address, sizeof card->address, "%.15s %.47s", own->provider,
             colon ? colon + 3 : text);
}

static int fill_card(struct ofi_net *net, struct err *err)
{
    struct card *card = card_of(net, net->rank->rank);
    size_t bytes = sizeof card->address;
    int bad = fi_getname(&net->ep->fid, card->address, &bytes);
    if (bad) return failed(net, "cannot tell its address", bad, err);
    card->address_bytes = (uint32_t)bytes;
    atomic_store(&card->met, 0);
    snprintf(card->provider, sizeof card->provider, "%s", ofi_provider(net));
    net->rank->status->card.bytes = sizeof *card;
    say_address(net, card);
    return 0;
}

static int open_all(struct ofi_net *net, struct err *err)
{
    bool locked = can_be_shm(net);
    if (locked) shm_lock(net, F_WRLCK);
    int bad = choose(net, err);
    bool shm = !bad && is_shm(net);
    if (shm) shm_name(net);
    bad = bad || (shm && shm_check(net, err)) || open_endpoint(net, err) || fill_card(net, err);
    const struct card *card = card_of(net, net->rank->rank);
    if (shm && !bad) bad = shm_take(strstr((const char *)card->address, "://") + 3, err);
    if (locked) shm_lock(net, F_UNLCK);
    return bad ? -1 : 0;
}

static int open_inbox(struct ofi_net *net, struct err *err)
{
    if (ofi_region_take(net, OFI_RECEIVES * sizeof(struct ofi_hello), &net->inbox, err)) return -1;
    net->receives = mem_calloc(OFI_RECEIVES, sizeof *net->receives);
    for (uint32_t i = 0; i < OFI_RECEIVES; i++) {
        net->receives[i] = (struct ofi_op){.kind = OFI_RECEIVE, .index = i};
        ofi_receive(net, i);
    }
    return 0;
}

void ofi_receive(struct ofi_net *net, uint32_t index)
{
    struct ofi_region *region = &net->regions[net->inbox];
    struct ofi_hello *at = (struct ofi_hello *)(void *)region->base + index;
    ssize_t bad = fi_recv(net->ep, at, sizeof *at, fi_mr_desc(region->mr), FI_ADDR_UNSPEC,
                          &net->receives[index].context);
    if (bad) { /* the library has room for more receives than there are */
        struct err err = ERR_INIT;
        failed(net, "cannot post a receive", bad, &err);
        rank_fail(net->rank, &err);
    }
}

int ofi_join(struct rank *rk, struct err *err)
{
    const char *why;
    const struct ofi_lib *lib = ofi_lib(&why);
    if (!lib) return err_add(err, ERR_USAGE, "%s", why);
    struct ofi_net *net = mem_calloc(1, sizeof *net);
    net->rank = rk;
    net->lib = lib;
    rk->net = net;
    struct ofi_signals *kept = ofi_signals_keep();
    int bad = open_all(net, err);
    ofi_signals_restore(kept);
    return bad ? -1 : open_inbox(net, err);
}

/* Whether the socket leads to `address`, or from it. */
static bool socket_at(int fd, const void *address, socklen_t bytes)
{
    struct sockaddr_storage own, peer;
    socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) ||
        getsockname(fd, (struct sockaddr *)&own, &own_bytes))
        return false;
    return (own_bytes == bytes && memcmp(&own, address, bytes) == 0) ||
           (peer_bytes == bytes && memcmp(&peer, address, bytes) == 0);
}

/* The library does not show its sockets, so that they are looked for among all of this process. It
 * connects again when nothing was under way, so that this is never done: the rank cuts at each of
 * its operations, until one fails. */
bool ofi_drop(struct rank *rk)
{
    struct ofi_net *net = rk->net;
    uint32_t format = net->info->addr_format;
    if (format != FI_SOCKADDR_IN && format != FI_SOCKADDR_IN6) {
        struct err err = ERR_INIT;
        err_add(&err, ERR_USAGE, "provider %s has no connection that can be cut",
                ofi_provider(net));
        rank_fail(rk, &err);
    }
    DIR *files = opendir("/proc/self/fd");
    for (struct dirent *file; files && (file = readdir(files));) {
        int fd = atoi(file->d_name);
        for (uint32_t r = 0; r < rk->nranks; r++) {
            const struct card *card = card_of(net, r);
            if (socket_at(fd, card->address, card->address_bytes)) shutdown(fd, SHUT_RDWR);
        }
    }
    if (files) closedir(files);
    return false;
}

static void close_fid(struct fid *fid)
{
    if (fid) fi_close(fid);
}

size_t ofi_rank_bytes(const struct net_spec *net)
{
    return strcmp(net->provider, shm_provider) == 0 ? SHM_BYTES : OTHER_BYTES;
}

void ofi_leave(struct rank *rk)
{
    struct ofi_net *net = rk->net;
    if (!net) return;
    struct ofi_signals *kept = ofi_signals_keep();
    if (net->ep) close_fid(&net->ep->fid);
    for (size_t i = 0; i < net->nregions; i++) {
        close_fid(&net->regions[i].mr->fid);
        munmap(net->regions[i].base, net->regions[i].bytes);
    }
    if (net->cq) close_fid(&net->cq->fid);
    if (net->av) close_fid(&net->av->fid);
    if (net->domain) close_fid(&net->domain->fid);
    if (net->fabric) close_fid(&net->fabric->fid);
    if (net->info) net->lib->freeinfo(net->info);
    ofi_signals_restore(kept);
    free(net->regions);
    free(net->receives);
    free(net->peers);
    free(net->numbers);
    free(net->early);
    free(net);
    rk->net = NULL;
}

int ofi_find_peers(struct ofi_net *net, struct err *err)
{
    if (net->peers) return 0;
    net->peers = mem_calloc(net->rank->nranks, sizeof *net->peers);
    for (uint32_t r = 0; r < net->rank->nranks; r++) {
        struct card *card = card_of(net, r);
        if (strcmp(card->provider, ofi_provider(net)) != 0) {
            return err_add(err, ERR_USAGE,
                           "rank %u has provider %s, rank %u has %.*s; name one that all have with "
                           "--provider",
                           net->rank->rank, ofi_provider(net), r, NET_NAME, card->provider);
        }
        if (fi_av_insert(net->av, card->address, 1, &net->peers[r], 0, NULL) != 1) {
            return err_add(err, ERR_FAILED, "provider %s cannot reach rank %u at %s (of %u ranks)",
                           ofi_provider(net), r, world_status(net->rank->world, r)->card.address,
                           net->rank->nranks);
        }
    }
    if (is_shm(net)) shm_meet(net);
    return 0;
}
