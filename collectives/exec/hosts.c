/* SPDX-License-Identifier: Apache-2.0
 * The launcher's side of other hosts: the list, the agents' start and coming, and their end. See
 * hosts.h. */
#include "exec/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/agent.h"
#include "exec/sock.h"

enum { HELLO_S = 5, LOOK_MS = 50, PATIENCE_MS = 5000, LEAVE_MS = 3000, MOST_RANKS = 1 << 20 };

struct agent {
    const char *name;
    struct courier courier;
    pid_t pid; /* of its shell, or of itself; 0: none is left */
    struct agent_hello hello;
};

struct hosts {
    uint32_t count;
    struct agent *agents; /* 0: this process */
    uint32_t *ranks;
    uint8_t token[TOKEN_BYTES];
    char **warnings;
    size_t nwarnings, warnings_cap;
    struct copy *copies; /* started by somebody else, by rank; NULL: there are none */
    uint32_t ncopies;
};

struct copy {
    struct agent agent;
    uint64_t first; /* rank of its host */
};

/* ---- the list ---- */

/* Where the count of "name:4" begins, or the end; an address with many colons needs brackets. */
static const char *find_count(const char *entry, const char *end)
{
    const char *colon = NULL;
    if (*entry == '[') {
        const char *close = memchr(entry, ']', (size_t)(end - entry));
        return close && close + 1 < end && close[1] == ':' ? close + 1 : end;
    }
    for (const char *at = entry; at < end; at++) {
        if (*at == ':' && colon) return end; /* an address */
        if (*at == ':') colon = at;
    }
    return colon ? colon : end;
}

static int read_entry(const char *text, const char *end, struct host_entry *entry, struct err *err)
{
    const char *count = find_count(text, end);
    *entry = (struct host_entry){.ranks = 1, .counted = count < end};
    int length = (int)(count - text);
    bool bracketed = length > 1 && text[0] == '[' && text[length - 1] == ']';
    if (bracketed) {
        text++;
        length -= 2;
    }
    if (length == 0 || text[0] == '-')
        return err_add(err, ERR_USAGE,
                       "--hosts: %s'%.*s' names no host; entries are NAME or NAME:RANKS, with a "
                       "comma between two",
                       end == text ? "the empty entry " : "", (int)(end - text), text);
    if (entry->counted) {
        char *stop;
        unsigned long ranks = strtoul(count + 1, &stop, 10);
        if (stop != end || count[1] < '0' || count[1] > '9' || ranks == 0 || ranks > MOST_RANKS)
            return err_add(err, ERR_USAGE,
                           "--hosts: '%.*s' has no number of ranks from 1 to %d behind the colon",
                           (int)(end - text), text, MOST_RANKS);
        entry->ranks = (uint32_t)ranks;
    }
    entry->name = mem_printf("%.*s", length, text);
    return 0;
}

int host_list_read(const char *text, struct host_list *list, struct err *err)
{
    *list = (struct host_list){0};
    size_t cap = 0;
    int bad = 0;
    for (const char *at = text, *end;; at = end + 1) {
        end = at + strcspn(at, ",");
        size_t count = list->count;
        MEM_GROW(list->entries, count, cap);
        if (read_entry(at, end, &list->entries[count], err)) {
            bad = -1;
        } else {
            list->ranks += list->entries[count].ranks;
            list->count++;
        }
        if (!*end) break;
    }
    if (!bad && list->ranks > MOST_RANKS)
        bad = err_add(err, ERR_USAGE, "--hosts: %u ranks in all, at most %d can run", list->ranks,
                      MOST_RANKS);
    return bad;
}

void host_list_release(struct host_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        free(list->entries[i].name);
    free(list->entries);
    *list = (struct host_list){0};
}

/* ---- starting agents ---- */

/* One word for the remote shell. */
static char *quoted(const char *word)
{
    size_t length = 2;
    for (const char *c = word; *c; c++)
        length += *c == '\'' ? 4 : 1;
    char *out = mem_calloc(length + 1, 1), *at = out;
    *at++ = '\'';
    for (const char *c = word; *c; c++) {
        if (*c == '\'') {
            memcpy(at, "'\\''", 4);
            at += 4;
        } else {
            *at++ = *c;
        }
    }
    *at = '\'';
    return out;
}

/* The words that start an agent; the strings are freed by words_free. */
static char **agent_words(const struct hosts_spec *spec, const char *name, const char *where,
                          bool here)
{
    char *prog = realpath("/proc/self/exe", NULL);
    size_t count = 0, cap = 0;
    char **words = NULL;
    if (here) {
        const char *own[] = {prog ? prog : "collbench", "agent", where};
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
            MEM_GROW(words, count, cap);
            words[count++] = mem_strdup(own[i]);
        }
    } else {
        const char *shell = spec->rsh ? spec->rsh : "ssh -oBatchMode=yes -x";
        char *copy = mem_strdup(shell), *rest = copy, *word;
        while ((word = strsep(&rest, " "))) {
            if (!*word) continue;
            MEM_GROW(words, count, cap);
            words[count++] = mem_strdup(word);
        }
        free(copy);
        char *path = quoted(prog ? prog : "collbench"), *arg = quoted(where);
        char *last[] = {mem_strdup(name), mem_printf("exec %s agent %s", path, arg)};
        for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
            MEM_GROW(words, count, cap);
            words[count++] = last[i];
        }
        free(path);
        free(arg);
    }
    MEM_GROW(words, count, cap);
    words[count] = NULL;
    free(prog);
    return words;
}

static void words_free(char **words)
{
    for (char **word = words; *word; word++)
        free(*word);
    free(words);
}

/* The token, as the first line of the agent's standard input. */
static void give_token(int fd, const uint8_t *token)
{
    char line[2 * TOKEN_BYTES + 2];
    for (int i = 0; i < TOKEN_BYTES; i++)
        snprintf(line + 2 * i, 3, "%02x", token[i]);
    line[sizeof line - 2] = '\n';
    ssize_t written = write(fd, line, sizeof line - 1); /* a pipe takes it whole, or nobody reads */
    (void)written;
}

static int start_agent(struct hosts *hosts, uint32_t host, const struct hosts_spec *spec,
                       const char *where, bool here, struct err *err)
{
    struct agent *agent = &hosts->agents[host];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return err_add(err, ERR_FAILED, "cannot open a pipe: %s", strerror(errno));
    char **words = agent_words(spec, agent->name, where, here);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t how;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    int error = posix_spawnp(&agent->pid, words[0], &actions, &how, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&how);
    if (error) {
        agent->pid = 0;
        err_add(err, ERR_FAILED, "host %s: cannot run %s: %s", agent->name, words[0],
                strerror(error));
    } else {
        give_token(ends[1], hosts->token);
    }
    words_free(words);
    close(ends[0]);
    close(ends[1]);
    return error ? -1 : 0;
}

/* ---- their coming ---- */

static void warn(struct hosts *hosts, char *sentence)
{
    MEM_GROW(hosts->warnings, hosts->nwarnings, hosts->warnings_cap);
    hosts->warnings[hosts->nwarnings++] = sentence;
}

/* Takes the agent's word about its host; refuses another build, of which only the version is
 * known. */
static int check_hello(struct agent *agent, const struct courier_frame *frame, struct err *err)
{
    struct agent_hello own, theirs = {.version = ""};
    size_t bytes = frame->head.bytes < sizeof theirs ? frame->head.bytes : sizeof theirs;
    agent_describe(&own);
    memcpy(&theirs, frame->data, bytes);
    theirs.version[sizeof theirs.version - 1] = '\0';
    theirs.name[sizeof theirs.name - 1] = '\0';
    theirs.boot[sizeof theirs.boot - 1] = '\0';
    bool same = strcmp(theirs.version, own.version) == 0;
    agent->hello = theirs;
    if (same && frame->head.bytes == sizeof theirs) return 0;
    return err_add(err, ERR_USAGE,
                   "host %s runs collbench %s, this one %s%s: install the same build on all hosts",
                   agent->name ? agent->name : theirs.name, theirs.version, own.version,
                   same ? ", of another build" : "");
}

/* Reads what an agent or a copy says behind its hello. */
static int take_hello(struct agent *agent, int fd, struct err *err)
{
    struct courier_frame frame;
    int got;
    struct pollfd more = {.fd = fd, .events = POLLIN};
    courier_init(&agent->courier, fd);
    while ((got = courier_recv(&agent->courier, &frame)) == 0) {
        if (poll(&more, 1, HELLO_S * 1000) <= 0) break;
    }
    if (got != 1 || frame.head.kind != FRAME_HELLO)
        return err_add(err, ERR_USAGE,
                       "host %s does not say which version of collbench it runs: install the same "
                       "build on all hosts",
                       agent->name ? agent->name : "of a copy");
    return check_hello(agent, &frame, err);
}

/* One agent that has come, if one has. 1: it is there, 0: nobody, -1. */
static int take_agent(struct hosts *hosts, struct door *door, struct err *err)
{
    struct sock_hello hello;
    int fd = door_answer(door, hosts->token, &hello);
    if (fd < 0) return 0;
    uint64_t host = hello.number;
    if (hello.purpose != SOCK_AGENT || host == 0 || host >= hosts->count ||
        hosts->agents[host].courier.fd >= 0) {
        close(fd);
        return 0;
    }
    struct agent *agent = &hosts->agents[host];
    return take_hello(agent, fd, err) ? -1 : 1;
}

/* Whether the process that was to start an agent has ended, before that has come. */
static int check_starters(struct hosts *hosts, const struct hosts_spec *spec, struct err *err)
{
    int bad = 0;
    for (uint32_t h = 1; h < hosts->count; h++) {
        struct agent *agent = &hosts->agents[h];
        int status;
        if (agent->courier.fd >= 0 || !agent->pid) continue;
        if (waitpid(agent->pid, &status, WNOHANG) != agent->pid) continue;
        agent->pid = 0;
        bad =
            err_add(err, ERR_FAILED,
                    "host %s: what was to start its ranks (%s) %s %d before they came (can you log "
                    "in there without a password, and is this program there under the same path?)",
                    agent->name, spec->rsh ? spec->rsh : "ssh, or this program itself",
                    WIFSIGNALED(status) ? "was killed by signal" : "ended with status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    return bad;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int await_agents(struct hosts *hosts, struct door *door, const struct hosts_spec *spec,
                        const char *where, struct err *err)
{
    double end_s = now_s() + spec->timeout_s;
    uint32_t missing = hosts->count - 1;
    while (missing > 0) {
        struct pollfd more = {.fd = door->listener, .events = POLLIN};
        poll(&more, 1, LOOK_MS);
        int got = take_agent(hosts, door, err);
        if (got < 0 || check_starters(hosts, spec, err)) return -1;
        if (launch_signal_pending()) return err_add(err, ERR_FAILED, "interrupted");
        missing -= (uint32_t)got;
        if (missing == 0 || now_s() < end_s) continue;
        for (uint32_t h = 1; h < hosts->count; h++) {
            if (hosts->agents[h].courier.fd >= 0) continue;
            err_add(err, ERR_FAILED,
                    "host %s did not come to %s within %g s: is that address reachable from there "
                    "(--iface chooses another one), and its port open?",
                    hosts->agents[h].name, where, spec->timeout_s);
        }
        return -1;
    }
    return 0;
}

/* One machine, but without /dev/shm or keys of shared memory in common: containers. */
static bool is_contained(const struct agent_hello *one, const struct agent_hello *two)
{
    return strcmp(one->boot, two->boot) == 0 && (one->ipc != two->ipc || one->shm != two->shm);
}

/* Names that say nothing, machines that are several hosts. */
static void compare_hosts(struct hosts *hosts)
{
    bool told = false;
    for (uint32_t a = 0; a < hosts->count; a++) {
        for (uint32_t b = a + 1; b < hosts->count; b++) {
            const struct agent_hello *one = &hosts->agents[a].hello, *two = &hosts->agents[b].hello;
            if (is_contained(one, two) && !told) {
                told = true; /* of one pair: there can be many */
                warn(hosts,
                     mem_printf("hosts %s and %s are the same machine, in different %s (%llu, "
                                "%llu): shm is unavailable between them, messages go over the "
                                "network",
                                hosts->agents[a].name, hosts->agents[b].name,
                                one->ipc != two->ipc ? "IPC namespaces" : "file systems /dev/shm",
                                (unsigned long long)(one->ipc != two->ipc ? one->ipc : one->shm),
                                (unsigned long long)(one->ipc != two->ipc ? two->ipc : two->shm)));
            }
            if (strcmp(one->name, two->name) || !strcmp(one->boot, two->boot)) continue;
            warn(hosts, mem_printf("hosts %s and %s are two machines of one host name, %s: "
                                   "libraries that tell hosts apart by name will take them for one",
                                   hosts->agents[a].name, hosts->agents[b].name, one->name));
        }
    }
}

/* ---- all of it ---- */

/* Addresses of the own loopback need no remote shell. */
static bool is_here(const char *name)
{
    return strcmp(name, "localhost") == 0 || strncmp(name, "127.", 4) == 0 ||
           strcmp(name, "::1") == 0;
}

/* Whether a name is one of this machine's: an address to which a socket can be bound. */
static bool is_own(const char *name)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    bool own = false;
    if (getaddrinfo(name, NULL, &hints, &found)) return false;
    for (const struct addrinfo *at = found; at && !own; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        own = fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0;
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
    return own;
}

static bool all_here(const struct host_list *list)
{
    bool here = true;
    for (uint32_t h = 0; h < list->count; h++)
        here = here && is_here(list->entries[h].name);
    return here;
}

static int hosts_start(struct hosts *hosts, const struct hosts_spec *spec, struct err *err)
{
    const struct host_list *list = spec->list;
    bool here = !spec->rsh && all_here(list);
    const char *first = list->entries[0].name;
    if (!is_own(first) && strcmp(first, hosts->agents[0].hello.name) != 0)
        return err_add(err, ERR_USAGE,
                       "--hosts: the first host, %s, is not this one (%s): start the run there, or "
                       "put this one first",
                       first, hosts->agents[0].hello.name);
    char address[NET_NAME], where[NET_NAME];
    if (sock_address(spec->iface, here, address, err)) return -1;
    int listener = sock_listen(address, 0, where, err);
    if (listener < 0) return -1;
    int bad = 0;
    for (uint32_t h = 1; h < hosts->count && !bad; h++) {
        char *call = mem_printf("%u@%s", h, where);
        bad = start_agent(hosts, h, spec, call, !spec->rsh && is_here(list->entries[h].name), err);
        free(call);
    }
    struct door door;
    door_open(&door, listener, HELLO_S * 1000);
    if (!bad) bad = await_agents(hosts, &door, spec, where, err);
    door_close(&door);
    return bad;
}

struct hosts *hosts_open(const struct hosts_spec *spec, struct err *err)
{
    const struct host_list *list = spec->list;
    struct hosts *hosts = mem_calloc(1, sizeof *hosts);
    hosts->count = list->count;
    hosts->agents = mem_calloc(list->count, sizeof *hosts->agents);
    hosts->ranks = mem_calloc(list->count, sizeof *hosts->ranks);
    for (uint32_t h = 0; h < list->count; h++) {
        hosts->agents[h].name = list->entries[h].name;
        hosts->ranks[h] = list->entries[h].ranks;
        courier_init(&hosts->agents[h].courier, -1);
    }
    agent_describe(&hosts->agents[0].hello);
    int bad = 0;
    if (getrandom(hosts->token, TOKEN_BYTES, 0) != TOKEN_BYTES)
        bad = err_add(err, ERR_FAILED, "cannot draw a random token: %s", strerror(errno));
    if (!bad) bad = hosts_start(hosts, spec, err);
    if (bad) {
        hosts_close(hosts, (int)err->code);
        return NULL;
    }
    compare_hosts(hosts);
    return hosts;
}

/* Waits for the agents' processes; who does not end is killed with all it has started here. */
static void hosts_reap(struct hosts *hosts)
{
    double end_s = now_s() + LEAVE_MS / 1e3;
    for (uint32_t h = 1; h < hosts->count; h++) {
        struct agent *agent = &hosts->agents[h];
        while (agent->pid && waitpid(agent->pid, NULL, WNOHANG) == 0) {
            if (now_s() >= end_s) {
                kill(-agent->pid, SIGKILL);
                waitpid(agent->pid, NULL, 0);
                break;
            }
            poll(NULL, 0, 1);
        }
        agent->pid = 0;
    }
}

static void send_home(struct courier *courier, int status)
{
    struct courier_head end = {.kind = FRAME_END, .code = (uint32_t)status};
    if (courier->fd >= 0) courier_send(courier, &end, NULL, PATIENCE_MS);
    courier_release(courier);
}

void hosts_close(struct hosts *hosts, int status)
{
    if (!hosts) return;
    for (uint32_t h = 1; h < hosts->count; h++)
        send_home(&hosts->agents[h].courier, status);
    for (uint32_t r = 1; r < hosts->ncopies; r++)
        send_home(&hosts->copies[r].agent.courier, status);
    hosts_reap(hosts);
    free(hosts->copies);
    for (size_t i = 0; i < hosts->nwarnings; i++)
        free(hosts->warnings[i]);
    free(hosts->warnings);
    free(hosts->agents);
    free(hosts->ranks);
    free(hosts);
}

/* ---- copies that somebody else has started ---- */

struct hosts *hosts_of_copies(uint32_t size, const uint8_t *token)
{
    struct hosts *hosts = mem_calloc(1, sizeof *hosts);
    hosts->ncopies = size;
    hosts->copies = mem_calloc(size, sizeof *hosts->copies);
    for (uint32_t r = 0; r < size; r++) {
        courier_init(&hosts->copies[r].agent.courier, -1);
    }
    memcpy(hosts->token, token, TOKEN_BYTES);
    return hosts;
}

int hosts_add_copy(struct hosts *hosts, int fd, uint32_t rank, uint64_t first, uint64_t words,
                   struct err *err)
{
    struct copy *copy = &hosts->copies[rank];
    if (copy->agent.courier.fd >= 0) {
        close(fd);
        return err_add(err, ERR_USAGE, "two copies say that they are rank %u", rank);
    }
    if (take_hello(&copy->agent, fd, err)) return -1;
    copy->first = first;
    if (copy->agent.hello.words == words) return 1;
    return err_add(err, ERR_USAGE,
                   "rank %u on %s was started with another command line than rank 0: give all "
                   "copies the same one",
                   rank, copy->agent.hello.name);
}

/* Whether a copy is where the one before it is. Its launcher may say so (the same first rank of
 * the host) where it is not: it counts by the name of the host, or in a container. */
static bool is_beside(const struct copy *copy, const struct copy *before)
{
    const struct agent_hello *one = &copy->agent.hello, *two = &before->agent.hello;
    bool known = copy->first != UINT64_MAX;
    return strcmp(one->boot, two->boot) == 0 && one->ipc == two->ipc && one->net == two->net &&
           one->shm == two->shm &&
           (known ? copy->first == before->first : strcmp(one->name, two->name) == 0);
}

/* The agents of the hosts get the connections of their first copies. */
int hosts_settle(struct hosts *hosts, struct err *err)
{
    uint32_t size = hosts->ncopies;
    agent_describe(&hosts->copies[0].agent.hello);
    hosts->agents = mem_calloc(size, sizeof *hosts->agents);
    hosts->ranks = mem_calloc(size, sizeof *hosts->ranks);
    for (uint32_t r = 0; r < size; r++) {
        struct copy *copy = &hosts->copies[r];
        bool known = copy->first != UINT64_MAX;
        if (r == 0 || !is_beside(copy, copy - 1)) {
            hosts->agents[hosts->count++] = copy->agent;
            courier_init(&copy->agent.courier, -1);
        }
        if (known && r > 0 && copy->first != r && copy->first != copy[-1].first) {
            return err_add(
                err, ERR_USAGE,
                "ranks %u and %u are on hosts whose first ranks are %llu and %llu: ranks "
                "of a host must be neighbours",
                r - 1, r, (unsigned long long)copy[-1].first, (unsigned long long)copy->first);
        }
        hosts->ranks[hosts->count - 1]++;
    }
    for (uint32_t h = 0; h < hosts->count; h++)
        hosts->agents[h].name = hosts->agents[h].hello.name;
    compare_hosts(hosts);
    return 0;
}

/* ---- what is known of them ---- */

uint32_t hosts_count(const struct hosts *hosts)
{
    return hosts->count;
}

const uint32_t *hosts_ranks(const struct hosts *hosts)
{
    return hosts->ranks;
}

const uint8_t *hosts_token(const struct hosts *hosts)
{
    return hosts->token;
}

const char *hosts_name(const struct hosts *hosts, uint32_t host)
{
    return hosts->agents[host].name;
}

struct courier *hosts_courier(struct hosts *hosts, uint32_t host)
{
    return &hosts->agents[host].courier;
}

uint32_t hosts_machine_ranks(const struct hosts *hosts, uint32_t host, uint32_t *before)
{
    uint32_t ranks = 0;
    *before = 0;
    for (uint32_t h = 0; h < hosts->count; h++) {
        if (strcmp(hosts->agents[h].hello.boot, hosts->agents[host].hello.boot)) continue;
        if (h < host) *before += hosts->ranks[h];
        ranks += hosts->ranks[h];
    }
    return ranks;
}

uint64_t hosts_files(const struct hosts *hosts, uint32_t host)
{
    return hosts->agents[host].hello.files;
}

size_t hosts_warnings(const struct hosts *hosts, char *const **sentences)
{
    *sentences = hosts->warnings;
    return hosts->nwarnings;
}
