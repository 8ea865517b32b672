/* SPDX-License-Identifier: Apache-2.0
 * Tests of the transport `ofi`: two ranks that this one thread plays in turns, on each provider
 * that needs no hardware; messages in and out of order of size, credit, numbers that wrap; hellos
 * from strangers, data that no wire has; what stays in /dev/shm. Built twice: as it is, and with
 * writes of at most OFI_PIECE bytes, so that messages are several writes. */
#include <criterion/criterion.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec/ofi.h"
#include "exec/transport.h"

extern const struct transport ofi_transport;

static const char *const providers[] = {"shm", "tcp;ofi_rxm"};
enum { NPROVIDERS = 2, DEPTH = 3, SLOT = 10000, TURNS = 20000 };

/* A world of two ranks, both of them this thread's. */
struct pair {
    struct world *world;
    struct rank ranks[2];
};

static struct world *make_world(const char *provider, uint32_t nranks)
{
    struct err err = ERR_INIT;
    struct world_spec spec = {.nranks = nranks, .blob_bytes = 64, .extent_bytes = 1 << 20};
    spec.net = transport_net(&ofi_transport);
    snprintf(spec.net.provider, sizeof spec.net.provider, "%s", provider);
    struct world *world = world_create(&spec, &err);
    cr_assert(world, "%s", err.text);
    return world;
}

static void join(struct pair *pair, const char *provider)
{
    struct err err = ERR_INIT;
    pair->world = make_world(provider, 2);
    for (uint32_t r = 0; r < 2; r++) {
        cr_assert_eq(rank_init(&pair->ranks[r], pair->world, r, &err), 0);
        cr_assert_eq(ofi_transport.join(&pair->ranks[r], &err), 0, "%s", err.text);
    }
}

static void leave(struct pair *pair)
{
    for (uint32_t r = 0; r < 2; r++)
        ofi_transport.leave(&pair->ranks[r]);
    world_close(pair->world);
}

/* One wire from rank 0 to rank 1, as both have it. */
struct link_ends {
    void *state[2];
    struct wire *wire[2];
};

static void open_end(struct pair *pair, struct link_ends *ends, uint32_t me, uint32_t tag,
                     uint32_t depth, size_t slot_bytes)
{
    struct err err = ERR_INIT;
    struct lwire lwire = {.peer = 1 - me, .send = me == 0, .mode = WIRE_STAGED};
    struct wire_spec spec = {.rank = &pair->ranks[me],
                             .ngroup = 2,
                             .me = me,
                             .tag = tag,
                             .wires = &lwire,
                             .nwires = 1,
                             .depth = depth,
                             .slot_bytes = slot_bytes};
    cr_assert_eq(ofi_transport.open(&spec, &ends->wire[me], NULL, &ends->state[me], &err), 0, "%s",
                 err.text);
}

static void turn(struct link_ends *ends)
{
    for (int r = 0; r < 2; r++) {
        if (ends->state[r]) ofi_transport.poll(ends->state[r]);
    }
}

/* Turns until both ends have nothing to do. */
static void settle(struct link_ends *ends)
{
    for (int i = 0; i < 200; i++)
        turn(ends);
    for (int i = 0; i < TURNS; i++, turn(ends)) {
        if (ofi_transport.idle(ends->state[0]) && ofi_transport.idle(ends->state[1])) return;
    }
    cr_assert(false, "the ends do not come to rest");
}

static void close_ends(struct link_ends *ends)
{
    settle(ends);
    for (int r = 0; r < 2; r++)
        ofi_transport.close(ends->state[r]);
}

static uint8_t *wait_room(struct link_ends *ends, size_t bytes)
{
    for (int i = 0; i < TURNS; i++, turn(ends)) {
        uint8_t *room = ofi_transport.room(ends->wire[0], bytes);
        if (room) return room;
    }
    cr_assert(false, "no room comes");
    return NULL;
}

static const uint8_t *wait_message(struct link_ends *ends, size_t bytes)
{
    for (int i = 0; i < TURNS; i++, turn(ends)) {
        const uint8_t *message = ofi_transport.peek(ends->wire[1], bytes, NULL);
        if (message) return message;
    }
    cr_assert(false, "no message comes");
    return NULL;
}

static void send_one(struct link_ends *ends, uint32_t number, size_t bytes)
{
    uint8_t *room = wait_room(ends, bytes);
    for (size_t i = 0; i < bytes; i++)
        room[i] = (uint8_t)(number * 7 + i);
    ofi_transport.post(ends->wire[0], bytes, (struct pull_ref){0, 0});
}

static void take_one(struct link_ends *ends, uint32_t number, size_t bytes)
{
    const uint8_t *message = wait_message(ends, bytes);
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += message[i] != (uint8_t)(number * 7 + i);
    cr_assert_eq(wrong, 0, "%zu of %zu B of message %u are wrong", wrong, bytes, number);
    ofi_transport.release(ends->wire[1]);
}

static size_t length(uint32_t number)
{
    static const size_t lengths[] = {0, 1, 8, 999, 1000, 1001, 4096, SLOT, 5000};
    return lengths[number % (sizeof lengths / sizeof *lengths)];
}

/* All room is used before the other end looks; numbers go beyond what the data can say. */
Test(ofi, messages_wrap)
{
    for (int p = 0; p < NPROVIDERS; p++) {
        struct pair pair;
        struct link_ends ends = {.state = {NULL, NULL}};
        join(&pair, providers[p]);
        open_end(&pair, &ends, 0, 5, DEPTH, SLOT);
        open_end(&pair, &ends, 1, 5, DEPTH, SLOT);
        uint32_t sent = 0;
        for (uint32_t took = 0; took < 9000; took += DEPTH) {
            for (uint32_t i = 0; i < DEPTH; i++, sent++)
                send_one(&ends, sent, length(sent));
            cr_assert_null(ofi_transport.room(ends.wire[0], 1));
            cr_assert_not(ofi_transport.released(ends.wire[0], sent - DEPTH));
            for (uint32_t i = 0; i < DEPTH; i++)
                take_one(&ends, took + i, length(took + i));
        }
        cr_assert_null(ofi_transport.peek(ends.wire[1], 0, NULL));
        close_ends(&ends);
        leave(&pair);
    }
}

/* One end opens, and the other much later, when the hello lies there already; handles in turn take
 * the same memory. */
Test(ofi, opened_at_different_times)
{
    for (int p = 0; p < NPROVIDERS; p++) {
        struct pair pair;
        join(&pair, providers[p]);
        struct link_ends other = {.state = {NULL, NULL}}; /* keeps both ranks driven */
        open_end(&pair, &other, 0, 1, 1, 8);
        open_end(&pair, &other, 1, 1, 1, 8);
        for (uint32_t tag = 2; tag < 6; tag++) {
            struct link_ends ends = {.state = {NULL, NULL}};
            uint32_t first = tag % 2;
            open_end(&pair, &ends, first, tag, DEPTH, SLOT);
            settle(&other);
            for (int i = 0; i < 100; i++)
                turn(&ends);
            if (first == 0) cr_assert_null(ofi_transport.room(ends.wire[0], 1));
            open_end(&pair, &ends, 1 - first, tag, DEPTH, SLOT);
            send_one(&ends, tag, SLOT);
            take_one(&ends, tag, SLOT);
            close_ends(&ends);
        }
        struct ofi_net *net = pair.ranks[0].net;
        cr_assert_eq(net->nregions, 3, "receives, one handle, and another one at a time");
        cr_assert_eq(net->nearly, 0);
        close_ends(&other);
        cr_assert_eq(net->booked, 0);
        leave(&pair);
    }
}

/* What a process wrote to stderr and how it ended. */
struct ended {
    int status;
    char text[4096];
};

static struct ended in_child(void (*run)(const char *provider), const char *provider)
{
    struct ended ended = {0, ""};
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        run(provider);
        _exit(0);
    }
    close(ends[1]);
    size_t at = 0;
    for (ssize_t got; (got = read(ends[0], ended.text + at, sizeof ended.text - 1 - at)) > 0;)
        at += (size_t)got;
    close(ends[0]);
    waitpid(pid, &ended.status, 0);
    return ended;
}

/* Rank 0 sends rank 1 a frame as it likes. */
static void send_frame(struct pair *pair, const void *frame, size_t bytes)
{
    struct ofi_net *net = pair->ranks[0].net;
    size_t region;
    struct err err = ERR_INIT;
    cr_assert_eq(ofi_region_take(net, bytes, &region, &err), 0);
    memcpy(net->regions[region].base, frame, bytes);
    static struct ofi_op op = {.kind = OFI_HELLO};
    while (fi_send(net->ep, net->regions[region].base, bytes, fi_mr_desc(net->regions[region].mr),
                   net->peers[1], &op.context) == -FI_EAGAIN) {
    }
}

static void greet(const char *provider, const struct ofi_hello *hello, size_t bytes)
{
    struct pair pair;
    struct link_ends ends = {.state = {NULL, NULL}};
    join(&pair, provider);
    open_end(&pair, &ends, 0, 5, DEPTH, SLOT);
    open_end(&pair, &ends, 1, 5, DEPTH, SLOT);
    settle(&ends);
    struct ofi_hello said = *hello;
    if (said.token[0]) memcpy(said.token, world_token(pair.world), TOKEN_BYTES);
    send_frame(&pair, &said, bytes);
    for (int i = 0; i < 1000; i++)
        turn(&ends);
    send_one(&ends, 0, SLOT); /* the run goes on */
    take_one(&ends, 0, SLOT);
    close_ends(&ends);
    leave(&pair);
}

static void greet_stranger(const char *provider)
{
    greet(provider, &(struct ofi_hello){.from = 0, .to = 1, .piece = 1}, sizeof(struct ofi_hello));
}

static void greet_short(const char *provider)
{
    greet(provider, &(struct ofi_hello){.token = {1}, .to = 1, .piece = 1}, 40);
}

static void greet_rank_7(const char *provider)
{
    greet(provider, &(struct ofi_hello){.token = {1}, .from = 7, .to = 1, .piece = 1},
          sizeof(struct ofi_hello));
}

Test(ofi, strangers_are_refused)
{
    for (int p = 0; p < NPROVIDERS; p++) {
        struct ended ended = in_child(greet_stranger, providers[p]);
        cr_expect(strstr(ended.text, "from nobody of this run is refused"), "%s", ended.text);
        cr_expect(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0);
        ended = in_child(greet_short, providers[p]);
        cr_expect(strstr(ended.text, "a message of 40 B from nobody"), "%s", ended.text);
        cr_expect(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0);
        ended = in_child(greet_rank_7, providers[p]);
        cr_expect(strstr(ended.text, "rank 7"), "%s", ended.text);
        cr_expect(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1);
    }
}

/* Rank 0 writes nothing to where the wire lies, with data of its own making. */
static void write_data(const char *provider, uint64_t data)
{
    struct pair pair;
    struct link_ends ends = {.state = {NULL, NULL}};
    join(&pair, provider);
    open_end(&pair, &ends, 0, 5, DEPTH, SLOT);
    open_end(&pair, &ends, 1, 5, DEPTH, SLOT);
    settle(&ends);
    struct ofi_net *net = pair.ranks[0].net, *there = pair.ranks[1].net;
    const struct ofi_region *region = &net->regions[1], *target = &there->regions[1];
    static struct ofi_op op = {.kind = OFI_HELLO};
    uint64_t addr =
        net->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)target->base : 0;
    while (fi_writedata(net->ep, region->base, 0, fi_mr_desc(region->mr), data, net->peers[1], addr,
                        fi_mr_key(target->mr), &op.context) == -FI_EAGAIN) {
    }
    for (int i = 0; i < 1000; i++)
        turn(&ends);
}

static void write_to_no_wire(const char *provider)
{
    write_data(provider, 77u << 12);
}

static void write_beyond_window(const char *provider)
{
    write_data(provider, DEPTH);
}

Test(ofi, data_of_no_wire_ends_the_run)
{
    for (int p = 0; p < NPROVIDERS; p++) {
        struct ended ended = in_child(write_to_no_wire, providers[p]);
        cr_expect(strstr(ended.text, "no such wire"), "%s", ended.text);
        cr_expect(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1);
        ended = in_child(write_beyond_window, providers[p]);
        cr_expect(strstr(ended.text, "out of its window"), "%s", ended.text);
        cr_expect(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1);
    }
}

Test(ofi, what_is_not_there_is_named)
{
    struct err err = ERR_INIT;
    struct rank rk;
    struct world *world = make_world("nonesuch", 1);
    cr_assert_eq(rank_init(&rk, world, 0, &err), 0);
    cr_expect_eq(ofi_transport.join(&rk, &err), -1);
    cr_expect_eq(err.code, ERR_USAGE);
    cr_expect(strstr(err.text, "no provider nonesuch") && strstr(err.text, "shm"), "%s", err.text);
    ofi_transport.leave(&rk);
    err_release(&err);
    world_close(world);
}

Test(ofi, signals_stay_as_they_were)
{
    struct pair pair;
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_IGN);
    signal(SIGBUS, SIG_DFL);
    join(&pair, "shm");
    cr_expect_eq(signal(SIGTERM, SIG_DFL), SIG_DFL);
    cr_expect_eq(signal(SIGINT, SIG_IGN), SIG_IGN);
    cr_expect_eq(signal(SIGBUS, SIG_DFL), SIG_DFL);
    cr_expect(strncmp(world_status(pair.world, 1)->card.address, "shm collbench-", 14) == 0);
    leave(&pair);
}

static uint32_t files_left(void)
{
    uint32_t count = 0;
    DIR *files = opendir("/dev/shm");
    for (struct dirent *file; files && (file = readdir(files));)
        count += strncmp(file->d_name, "collbench-", 10) == 0;
    if (files) closedir(files);
    return count;
}

/* Killed before the ranks have found each other, names are left, and swept; later none is left. */
Test(ofi, killed_ranks_leave_nothing)
{
    for (int met = 0; met < 2; met++) {
        uint32_t before = files_left();
        struct world *world = make_world("shm", 2), *other = make_world("shm", 2);
        pid_t pid = fork();
        if (pid == 0) {
            struct pair pair = {.world = world};
            struct err err = ERR_INIT;
            for (uint32_t r = 0; r < 2; r++) {
                if (rank_init(&pair.ranks[r], world, r, &err) ||
                    ofi_transport.join(&pair.ranks[r], &err))
                    _exit(1);
            }
            for (uint32_t r = 0; met && r < 2; r++) {
                if (ofi_find_peers(pair.ranks[r].net, &err)) _exit(1);
            }
            raise(SIGKILL);
        }
        int status;
        waitpid(pid, &status, 0);
        cr_assert(WIFSIGNALED(status), "%d", status);
        cr_expect_eq(files_left(), before + (met ? 0 : 2));
        ofi_sweep(other);
        cr_expect_eq(files_left(), before + (met ? 0 : 2), "swept what is another run's");
        ofi_sweep(world);
        cr_expect_eq(files_left(), before);
        world_close(world);
        world_close(other);
    }
}
