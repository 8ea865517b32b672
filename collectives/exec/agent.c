/* SPDX-License-Identifier: Apache-2.0
 * The agent of a host: comes to the launcher, then starts its host's ranks as often as the launcher
 * asks for, with a launcher of its own whose news go up to it. See hosts.h. */
#include "exec/agent.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/blame.h"
#include "exec/cgroup.h"
#include "exec/hosts.h"
#include "exec/sock.h"

enum { CONNECT_S = 10, HELLO_S = 5, PATIENCE_MS = 5000, TOKEN_S = 30 };

/* Number of a file or directory on its device; of a device, if `device`. 0: it is not there. */
static uint64_t number_of(const char *path, bool device)
{
    struct stat at;
    if (stat(path, &at)) return 0;
    return device ? at.st_dev : at.st_ino;
}

void agent_describe(struct agent_hello *hello)
{
    *hello = (struct agent_hello){.version = ""};
    snprintf(hello->version, sizeof hello->version, "%s (%zu.%zu.%ld)", COLLBENCH_VERSION,
             sizeof(struct rank_status), sizeof(void *), sysconf(_SC_PAGESIZE));
    gethostname(hello->name, sizeof hello->name - 1);
    char *boot = file_text("/proc/sys/kernel/random/boot_id");
    snprintf(hello->boot, sizeof hello->boot, "%s", boot ? boot : hello->name);
    free(boot);
    hello->ipc = number_of("/proc/self/ns/ipc", false);
    hello->net = number_of("/proc/self/ns/net", false);
    hello->shm = number_of("/dev/shm", true);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) hello->files = files.rlim_cur;
}

/* ---- a rank's news ---- */

void status_news_of(struct world *world, uint32_t rank, struct status_news *news)
{
    const struct rank_status *status = world_status(world, rank);
    *news = (struct status_news){
        .tick = atomic_load_explicit(&status->tick, memory_order_relaxed),
        .beat = atomic_load_explicit(&status->beat, memory_order_relaxed),
        .waiting = atomic_load_explicit(&status->waiting, memory_order_acquire),
        .wait_step = atomic_load_explicit(&status->wait_step, memory_order_relaxed),
        .wait_kind = atomic_load_explicit(&status->wait_kind, memory_order_relaxed),
        .wait_peer = atomic_load_explicit(&status->wait_peer, memory_order_relaxed),
        .wait_pass = atomic_load_explicit(&status->wait_pass, memory_order_relaxed),
        .pid = atomic_load_explicit(&status->pid, memory_order_relaxed),
        .done = atomic_load_explicit(&status->done, memory_order_acquire),
    };
    news->letter = blame_letter(world, rank);
    memcpy(news->what, status->what, sizeof news->what);
}

void status_news_take(struct world *world, uint32_t rank, const struct status_news *news)
{
    struct rank_status *status = world_status(world, rank);
    atomic_store_explicit(&status->tick, news->tick, memory_order_relaxed);
    atomic_store_explicit(&status->beat, news->beat, memory_order_relaxed);
    atomic_store_explicit(&status->wait_step, news->wait_step, memory_order_relaxed);
    atomic_store_explicit(&status->wait_kind, news->wait_kind, memory_order_relaxed);
    atomic_store_explicit(&status->wait_peer, news->wait_peer, memory_order_relaxed);
    atomic_store_explicit(&status->wait_pass, news->wait_pass, memory_order_relaxed);
    atomic_store_explicit(&status->waiting, news->waiting, memory_order_release);
    atomic_store_explicit(&status->pid, news->pid, memory_order_relaxed);
    atomic_store_explicit(&status->done, news->done, memory_order_release);
    status->letter = news->letter;
    memcpy(status->what, news->what, sizeof status->what);
    status->what[sizeof status->what - 1] = '\0';
}

/* ---- a job ---- */

static void pack_words(struct pack *pack, char *const *words)
{
    uint64_t count = 0;
    while (words && words[count])
        count++;
    pack_u64(pack, count);
    for (uint64_t i = 0; i < count; i++)
        pack_text(pack, words[i]);
}

void job_pack(struct pack *pack, const struct launch_spec *spec, uint32_t host,
              char *const *command)
{
    struct world *world = spec->world;
    uint32_t nhosts = world_nhosts(world), before;
    uint32_t machine = hosts_machine_ranks(spec->hosts, host, &before);
    struct world_spec memory = world_spec_of(world);
    pack_u64(pack, memory.nranks);
    pack_u64(pack, memory.blob_bytes);
    pack_u64(pack, memory.extent_bytes);
    pack_u64(pack, memory.resident_bytes);
    pack_block(pack, &memory.net, sizeof memory.net);
    pack_u64(pack, host);
    pack_block(pack, hosts_ranks(spec->hosts), nhosts * sizeof(uint32_t));
    pack_u64(pack, machine);
    pack_u64(pack, before);
    pack_u64(pack, spec->bind);
    pack_u64(pack, spec->threads);
    pack_block(pack, world_blob(world), spec->blob_used);
    pack_words(pack, spec->argv);
    pack_words(pack, command);
    pack_text(pack, command ? spec->rank_variable : "");
}

/* A job as it came; the blob and the numbers point into the frame. */
struct job {
    struct world_spec memory;
    uint32_t before;
    enum bind bind;
    bool threads;
    const void *blob;
    size_t blob_bytes;
    char **argv, **command; /* NULL-terminated */
    char *rank_variable;
};

static void words_free(char **words)
{
    for (char **word = words; word && *word; word++)
        free(*word);
    free(words);
}

static void job_release(struct job *job)
{
    words_free(job->argv);
    words_free(job->command);
    free(job->rank_variable);
    free((void *)(uintptr_t)job->memory.host_ranks);
}

/* A list of words, NULL-terminated; NULL: it is cut off, and unpack->bad is set. */
static char **unpack_words(struct unpack *unpack)
{
    uint64_t count = unpack_u64(unpack);
    if (unpack->bad || count > (uint64_t)(unpack->end - unpack->at)) {
        unpack->bad = true;
        return NULL;
    }
    char **words = mem_calloc(count + 1, sizeof *words);
    for (uint64_t i = 0; i < count && !unpack->bad; i++)
        words[i] = unpack_text(unpack);
    return words;
}

static bool job_good(const struct job *job, size_t net_bytes, size_t table_bytes)
{
    const struct world_spec *memory = &job->memory;
    if (net_bytes != sizeof memory->net || table_bytes % sizeof(uint32_t)) return false;
    uint64_t ranks = 0;
    for (uint32_t h = 0; h < memory->nhosts; h++)
        ranks += memory->host_ranks[h];
    if (job->threads && *job->command) return false;
    if (memory->machine_ranks > memory->nranks) return false;
    return ranks == memory->nranks && memory->host < memory->nhosts && memory->host > 0 &&
           job->blob_bytes <= memory->blob_bytes && job->bind <= BIND_NONE &&
           job->before + (uint64_t)memory->host_ranks[memory->host] <= memory->machine_ranks;
}

static int job_read(const struct courier_frame *frame, struct job *job)
{
    struct unpack unpack = {.at = frame->data, .end = frame->data + frame->head.bytes};
    struct world_spec *memory = &job->memory;
    size_t net_bytes, table_bytes;
    *job = (struct job){.before = 0};
    memory->nranks = (uint32_t)unpack_u64(&unpack);
    memory->blob_bytes = unpack_u64(&unpack);
    memory->extent_bytes = unpack_u64(&unpack);
    memory->resident_bytes = unpack_u64(&unpack);
    const void *net = unpack_block(&unpack, &net_bytes);
    memory->host = (uint32_t)unpack_u64(&unpack);
    const void *table = unpack_block(&unpack, &table_bytes);
    memory->machine_ranks = (uint32_t)unpack_u64(&unpack);
    job->before = (uint32_t)unpack_u64(&unpack);
    job->bind = (enum bind)unpack_u64(&unpack);
    job->threads = unpack_u64(&unpack) != 0;
    job->blob = unpack_block(&unpack, &job->blob_bytes);
    if (unpack.bad) return -1;
    uint32_t *ranks = mem_calloc(table_bytes + 1, 1);
    memcpy(ranks, table, table_bytes);
    memory->host_ranks = ranks;
    memory->nhosts = (uint32_t)(table_bytes / sizeof *ranks);
    if (net_bytes == sizeof memory->net) memcpy(&memory->net, net, net_bytes);
    job->argv = unpack_words(&unpack);
    job->command = unpack_words(&unpack);
    job->rank_variable = unpack_text(&unpack);
    if (!unpack.bad && job_good(job, net_bytes, table_bytes)) return 0;
    job_release(job);
    return -1;
}

/* Says that the launch is over here, and what went wrong beyond the ranks' own news. */
static void conclude(struct courier *up, struct err *err)
{
    struct courier_head head = {.kind = FRAME_ERROR, .rank = UINT32_MAX, .code = err->code};
    if (err->count) {
        head.bytes = strlen(err->text);
        courier_send(up, &head, err->text, PATIENCE_MS);
    }
    head = (struct courier_head){.kind = FRAME_DONE};
    courier_send(up, &head, NULL, PATIENCE_MS);
    err_release(err);
}

/* One launch. -1: the launcher is lost. */
static int run_job(struct courier *up, const struct courier_frame *frame, const uint8_t *token)
{
    struct err err = ERR_INIT;
    struct job job;
    if (job_read(frame, &job)) {
        err_add(&err, ERR_FAILED, "a job that makes no sense");
        conclude(up, &err);
        return -1;
    }
    job.memory.token = token;
    struct world *world = world_create(&job.memory, &err);
    if (world) {
        memcpy(world_blob(world), job.blob, job.blob_bytes);
        struct place *place = place_plan(job.bind, job.memory.machine_ranks);
        struct launch_spec spec = {
            .prog = "collbench",
            .argv = job.argv,
            .world = world,
            .place = place,
            .place_first = job.before,
            .threads = job.threads,
            .wrapper = *job.command ? job.command : NULL,
            .rank_variable = job.rank_variable,
            .uplink = up,
        };
        launch_run(&spec, &err);
        place_free(place);
    }
    world_close(world);
    job_release(&job);
    conclude(up, &err);
    return 0;
}

/* ---- all of it ---- */

static int read_token(uint8_t token[TOKEN_BYTES])
{
    char line[2 * TOKEN_BYTES + 1] = "";
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    size_t got = 0;
    while (got < sizeof line && poll(&in, 1, TOKEN_S * 1000) > 0) {
        ssize_t more = read(STDIN_FILENO, line + got, sizeof line - got);
        if (more <= 0) break;
        got += (size_t)more;
    }
    for (int i = 0; i < TOKEN_BYTES; i++) {
        unsigned byte;
        if (got < sizeof line || sscanf(line + 2 * i, "%2x", &byte) != 1) return -1;
        token[i] = (uint8_t)byte;
    }
    return 0;
}

int agent_serve(struct courier *up, const uint8_t *token)
{
    struct pollfd more = {.fd = up->fd, .events = POLLIN};
    for (;;) {
        struct courier_frame frame;
        int got = courier_recv(up, &frame);
        if (got < 0) return -1;
        if (got == 0) {
            poll(&more, 1, -1);
        } else if (frame.head.kind == FRAME_END) {
            return (int)(frame.head.code & 0xff);
        } else if (frame.head.kind == FRAME_JOB && run_job(up, &frame, token)) {
            return -1;
        } /* an abort, or a meeting, of a launch that is over */
    }
}

static int come(const char *call, uint8_t *token, struct courier *up, struct err *err)
{
    char *where;
    uint64_t host = strtoul(call, &where, 10);
    if (*where++ != '@' || host == 0)
        return err_add(err, ERR_USAGE, "agents are started by --hosts, not by hand");
    if (read_token(token))
        return err_add(err, ERR_USAGE,
                       "no token on standard input: agents are started by --hosts, "
                       "not by hand");
    int fd = sock_connect(where, "", CONNECT_S, err);
    if (fd < 0) return -1;
    courier_init(up, fd);
    struct sock_hello hello = {.purpose = SOCK_AGENT, .number = host};
    if (sock_hello_send(fd, token, &hello, HELLO_S, err)) return -1;
    struct agent_hello own;
    agent_describe(&own);
    struct courier_head head = {.kind = FRAME_HELLO, .bytes = sizeof own};
    if (courier_send(up, &head, &own, PATIENCE_MS))
        return err_add(err, ERR_FAILED, "the launcher at %s does not listen: %s", where,
                       strerror(errno));
    return 0;
}

int agent_main(const char *call)
{
    struct err err = ERR_INIT;
    uint8_t token[TOKEN_BYTES];
    struct courier up = {.fd = -1};
    launch_block_signals();
    int status = come(call, token, &up, &err) ? -1 : agent_serve(&up, token);
    if (status < 0 && !err.count) err_add(&err, ERR_FAILED, "the launcher is gone");
    courier_release(&up);
    if (status < 0) status = (int)err.code;
    err_print(&err, "collbench agent");
    err_release(&err);
    return status;
}
