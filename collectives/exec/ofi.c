/* SPDX-License-Identifier: Apache-2.0
 * The transport `ofi`: remote writes with remote completion data through libfabric (verbs on
 * InfiniBand and RoCE, EFA, Slingshot, and its providers shm and tcp).
 *
 *     sender's memory             receiver's memory
 *     slot 0 .. depth - 1   --->  slot 0 .. depth - 1     fi_writedata: wire, message number
 *                           <---                          fi_writedata of 0 B: wire, released up to
 *
 * A receiver knows of a message by the completion data alone and never looks at the slot before:
 * no order of writes within memory is needed, and messages may complete in any order. Four bytes of
 * data are all that every provider has:
 *
 *     | number of the wire at the one who is told: 20 bits | message number mod 4096: 12 bits |
 *
 * A message longer than the provider's longest write is several writes, one after the other, and
 * has arrived when all of them have. Credit waits until the rank has nothing more urgent to send,
 * and then tells about all messages released by then. What the library cannot take now (-FI_EAGAIN)
 * stays in its wire, which stands in a queue until the next poll; nothing is allocated. The queue
 * of completions cannot overflow: what all open wires can have under way is counted when they open.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/engine.h"
#include "exec/ofi.h"

#ifndef OFI_PIECE
#define OFI_PIECE SIZE_MAX /* bytes of a write; tests make it small */
#endif

enum {
    LINE = 64,
    NUMBER_BITS = 12,
    NUMBERS = 1 << NUMBER_BITS,
    MOST_DEPTH = NUMBERS / 2,
    MOST_WIRES = 1 << (32 - NUMBER_BITS),
    BATCH = 16,        /* completions read at once */
    EARLY_MOST = 4096, /* wires of a peer that are not open here yet, in the mean */
    MOST_EMPTY = 64    /* polls in a row before others get the processor */
};

struct slot {
    struct ofi_op op; /* sender: its write */
    size_t bytes, done;
    size_t left; /* sender: writes not handed to the library yet */
    size_t come; /* receiver: writes that have arrived */
};

struct ofi_wire {
    struct wire wire;
    struct ofi_net *net;
    struct ofi_state *state;
    bool sends, known, queued;    /* known: the peer's hello has come */
    uint32_t world_peer, channel; /* .. its world rank */
    uint32_t number, theirs;      /* of this wire here and there */
    uint64_t addr, key;           /* where writes to the peer go */
    size_t piece;                 /* longest write */
    uint8_t *bytes;               /* the slots */
    struct slot *slots;
    size_t stride;
    uint32_t at;       /* slot of message `next` */
    uint64_t released; /* sender: messages known to be released; receiver: told to the sender */
    bool said;         /* the own hello has been handed to the library */
    struct ofi_op hello, credit;
    struct ofi_hello *words; /* of the own hello */
    struct ofi_wire *after;  /* in the queue */
};

struct ofi_state {
    struct ofi_net *net;
    uint32_t tag;
    size_t region, booked;
    struct ofi_wire *wires;
    struct slot *slots;
    uint32_t nwires;
};

/* ---- errors ---- */

/* Something with a peer did not go: it may be dead, and gets the blame then. */
static _Noreturn void fail(struct ofi_net *net, uint32_t peer, const char *what, const char *why)
{
    struct err err = ERR_INIT;
    err_add(&err, ERR_FAILED, "%s rank %u at %s failed: %s", what, peer,
            world_status(net->rank->world, peer)->card.address, why);
    rank_lost(net->rank, peer, &err);
}

static const char *const op_texts[] = {"a receive from", "a message to", "a write to",
                                       "a credit to"};

/* A completion with an error ends the rank. */
static _Noreturn void fail_completion(struct ofi_net *net, ssize_t said)
{
    struct fi_cq_err_entry entry = {.err = (int)-said};
    char text[256] = "", why[512];
    if (said == -FI_EAVAIL) fi_cq_readerr(net->cq, &entry, 0);
    const char *detail =
        fi_cq_strerror(net->cq, entry.prov_errno, entry.err_data, text, sizeof text);
    snprintf(why, sizeof why, "%s (%s)", net->lib->strerror(entry.err), detail ? detail : text);
    const struct ofi_op *op = entry.op_context;
    if (op && op->wire) fail(net, op->wire->world_peer, op_texts[op->kind], why);
    struct err err = ERR_INIT;
    err_add(&err, ERR_FAILED, "the completion queue of provider %s failed: %s", ofi_provider(net),
            why);
    rank_fail(net->rank, &err);
}

/* ---- handing over ---- */

static void enqueue(struct ofi_wire *w)
{
    struct ofi_net *net = w->net;
    if (w->queued) return;
    w->queued = true;
    w->after = NULL;
    if (net->last) {
        net->last->after = w;
    } else {
        net->first = w;
    }
    net->last = w;
}

/* What a call of the library said: true when it took the operation, false when it cannot now. */
static bool took(struct ofi_wire *w, struct ofi_op *op, ssize_t said)
{
    if (said == -FI_EAGAIN) return false;
    if (said) fail(w->net, w->world_peer, op_texts[op->kind], w->net->lib->strerror((int)-said));
    op->busy = true;
    return true;
}

static void *desc_of(const struct ofi_wire *w)
{
    return fi_mr_desc(w->net->regions[w->state->region].mr);
}

/* A write of `bytes` at the slot's `offset`, and its data. */
static bool write_slot(struct ofi_wire *w, struct ofi_op *op, size_t offset, size_t bytes,
                       uint64_t number)
{
    uint64_t data = (uint64_t)w->theirs << NUMBER_BITS | number % NUMBERS;
    size_t place = op->index * w->stride + offset;
    return took(w, op,
                fi_writedata(w->net->ep, w->bytes + place, bytes, desc_of(w), data,
                             w->net->peers[w->world_peer], w->addr + (w->sends ? place : 0), w->key,
                             &op->context));
}

/* The next piece of a slot, if it is its turn; false when the library cannot take it now. */
static bool push_slot(struct ofi_wire *w, struct slot *slot)
{
    if (slot->left == 0 || slot->op.busy) return true;
    size_t rest = slot->bytes - slot->done, bytes = rest < w->piece ? rest : w->piece;
    uint32_t ago = (w->at + w->wire.depth - slot->op.index - 1) % w->wire.depth + 1;
    if (!write_slot(w, &slot->op, slot->done, bytes, w->wire.next - ago)) return false;
    slot->done += bytes;
    slot->left--;
    return true;
}

static bool push_credit(struct ofi_wire *w)
{
    if (w->released == w->wire.next || w->credit.busy || !w->known) return true;
    if (!write_slot(w, &w->credit, 0, 0, w->wire.next)) return false;
    w->released = w->wire.next;
    return true;
}

static bool push_hello(struct ofi_wire *w)
{
    if (w->said) return true;
    w->said = took(w, &w->hello,
                   fi_send(w->net->ep, w->words, sizeof *w->words, desc_of(w),
                           w->net->peers[w->world_peer], &w->hello.context));
    return w->said;
}

/* All that the wire has to hand over; false when something is left. */
static bool push(struct ofi_wire *w)
{
    bool all = push_hello(w);
    if (!w->sends) return push_credit(w) && all;
    for (uint32_t i = 0; i < w->wire.depth; i++) {
        uint32_t at = w->at + i; /* the oldest first */
        all = push_slot(w, &w->slots[at < w->wire.depth ? at : at - w->wire.depth]) && all;
    }
    return all;
}

/* Each wire of the queue once; those that are not through stand in it again. */
static void push_queue(struct ofi_net *net)
{
    struct ofi_wire *w = net->first;
    net->first = net->last = NULL;
    while (w) {
        struct ofi_wire *after = w->after;
        w->queued = false;
        if (!push(w)) enqueue(w);
        w = after;
    }
}

/* ---- what has come ---- */

static size_t pieces(const struct ofi_wire *w, size_t bytes)
{
    return bytes > w->piece ? (bytes - 1) / w->piece + 1 : 1;
}

/* The wire with a number that came over the network, or the end of the run. */
static void take_data(struct ofi_net *net, uint64_t data)
{
    uint64_t wire = data >> NUMBER_BITS;
    struct ofi_wire *w = wire < net->nnumbers ? net->numbers[wire] : NULL;
    uint32_t depth = w ? w->wire.depth : 0;
    uint64_t base = !w ? 0 : w->sends ? w->released : w->wire.next;
    uint32_t ahead = (uint32_t)(data - base) % NUMBERS;
    if (w && w->sends && ahead <= w->wire.next - w->released) {
        w->released += ahead;
    } else if (w && !w->sends && ahead < depth) {
        w->slots[(w->at + ahead) % depth].come++;
    } else if (!w || !w->sends || ahead < MOST_DEPTH) { /* else: an older credit came late */
        struct err err = ERR_INIT;
        err_add(&err, ERR_FAILED,
                "provider %s delivered the data 0x%llx, which no wire of this rank can "
                "have now (%u wires; %s)",
                ofi_provider(net), (unsigned long long)data, (unsigned)net->nnumbers,
                w ? "a number out of its window" : "no such wire");
        rank_fail(net->rank, &err);
    }
}

static bool about(const struct ofi_wire *w, const struct ofi_hello *hello)
{
    return !w->known && hello->from == w->world_peer && hello->tag == w->state->tag &&
           hello->channel == w->channel && hello->sends == !w->sends;
}

/* The wire is complete: both ends know each other. */
static void meet(struct ofi_wire *w, const struct ofi_hello *hello)
{
    if (hello->depth != w->wire.depth || hello->slot_bytes != w->wire.slot_bytes) {
        struct err err = ERR_INIT;
        err_add(&err, ERR_FAILED,
                "rank %u has %u messages of %zu B on a wire %s rank %u, which has %llu of %llu B",
                w->net->rank->rank, w->wire.depth, w->wire.slot_bytes, w->sends ? "to" : "from",
                hello->from, (unsigned long long)hello->depth,
                (unsigned long long)hello->slot_bytes);
        rank_fail(w->net->rank, &err);
    }
    w->theirs = hello->number;
    w->addr = hello->slots;
    w->key = hello->key;
    w->piece = hello->piece < w->piece ? hello->piece : w->piece;
    w->known = true;
    enqueue(w);
}

/* Finds the open wire that a hello is about; false when there is none yet. */
static bool introduce(struct ofi_net *net, const struct ofi_hello *hello)
{
    for (size_t i = 0; i < net->nnumbers; i++) {
        if (net->numbers[i] && about(net->numbers[i], hello)) {
            meet(net->numbers[i], hello);
            return true;
        }
    }
    return false;
}

static void take_hello(struct ofi_net *net, const struct ofi_hello *hello, size_t bytes)
{
    uint32_t me = net->rank->rank;
    if (bytes != sizeof *hello ||
        memcmp(hello->token, world_token(net->rank->world), TOKEN_BYTES)) {
        fprintf(stderr,
                "rank %u: provider %s: a message of %zu B from nobody of this run is refused\n", me,
                ofi_provider(net), bytes);
        return;
    }
    bool sane = hello->from < net->rank->nranks && hello->to == me && hello->sends <= 1 &&
                hello->number < MOST_WIRES && hello->piece > 0;
    if (!sane) {
        struct err err = ERR_INIT;
        err_add(&err, ERR_FAILED,
                "provider %s brought words about a wire from rank %u of %u to rank %u (this is "
                "rank %u), number %u of at most %d, in pieces of %llu B: they make no sense",
                ofi_provider(net), hello->from, net->rank->nranks, hello->to, me, hello->number,
                MOST_WIRES, (unsigned long long)hello->piece);
        rank_fail(net->rank, &err);
    }
    if (introduce(net, hello)) return;
    if (net->nearly >= (size_t)EARLY_MOST * net->rank->nranks) {
        struct err err = ERR_INIT;
        err_add(&err, ERR_FAILED, "provider %s: rank %u opens more wires than a run has",
                ofi_provider(net), hello->from);
        rank_fail(net->rank, &err);
    }
    MEM_GROW(net->early, net->nearly, net->early_cap);
    net->early[net->nearly++] = *hello;
}

static void complete(struct ofi_net *net, const struct fi_cq_data_entry *entry)
{
    if (entry->flags & FI_REMOTE_CQ_DATA && !(entry->flags & FI_WRITE)) {
        take_data(net, (uint32_t)entry->data);
        return;
    }
    struct ofi_op *op = entry->op_context;
    op->busy = false;
    if (op->kind == OFI_RECEIVE) {
        struct ofi_hello *at = (struct ofi_hello *)(void *)net->regions[net->inbox].base;
        take_hello(net, at + op->index, entry->len);
        ofi_receive(net, op->index);
    } else if (op->kind == OFI_CREDIT ||
               (op->kind == OFI_DATA && op->wire->slots[op->index].left)) {
        enqueue(op->wire);
    }
}

static void drive(struct ofi_net *net)
{
    struct fi_cq_data_entry entries[BATCH];
    ssize_t count;
    if (net->first) push_queue(net);
    do {
        count = fi_cq_read(net->cq, entries, BATCH);
        if (count > 0) {
            net->waiter = (struct waiter){0};
            net->empty = 0;
        }
        for (ssize_t i = 0; i < count; i++)
            complete(net, &entries[i]);
    } while (count == BATCH);
    if (count < 0 && count != -FI_EAGAIN) fail_completion(net, count);
}

/* ---- the transport ---- */

static void *ofi_room(struct wire *wire, size_t bytes)
{
    struct ofi_wire *w = (struct ofi_wire *)wire;
    struct slot *slot = &w->slots[w->at];
    (void)bytes;
    bool has = w->known && wire->next - w->released < wire->depth && !slot->op.busy;
    return has && slot->left == 0 ? w->bytes + w->at * w->stride : NULL;
}

static void step_on(struct ofi_wire *w)
{
    w->wire.next++;
    w->at = w->at + 1 == w->wire.depth ? 0 : w->at + 1;
}

static void ofi_post(struct wire *wire, size_t bytes, struct pull_ref ref)
{
    struct ofi_wire *w = (struct ofi_wire *)wire;
    struct slot *slot = &w->slots[w->at];
    (void)ref;
    slot->bytes = bytes;
    slot->done = 0;
    slot->left = pieces(w, bytes);
    step_on(w);
    if (w->queued || !push_slot(w, slot)) enqueue(w);
}

static const void *ofi_peek(struct wire *wire, size_t bytes, struct pull_ref *ref)
{
    struct ofi_wire *w = (struct ofi_wire *)wire;
    (void)ref;
    bool here = w->known && w->slots[w->at].come == pieces(w, bytes);
    return here ? w->bytes + w->at * w->stride : NULL;
}

static void ofi_release(struct wire *wire)
{
    struct ofi_wire *w = (struct ofi_wire *)wire;
    w->slots[w->at].come = 0;
    step_on(w);
    enqueue(w);
}

static bool ofi_released(struct wire *wire, uint64_t number)
{
    return ((struct ofi_wire *)wire)->released > number;
}

/* Where a poll is a system call, whoever finds nothing for long must not keep the processor from
 * the rank that it waits for: the host does not know that it is crowded if other hosts share it. */
static void ofi_poll(void *opened)
{
    struct ofi_net *net = ((struct ofi_state *)opened)->net;
    net->empty++;
    drive(net);
    if (net->sleeps && net->empty > MOST_EMPTY) sched_yield();
}

static void ofi_wait(void *opened, uint32_t us)
{
    struct ofi_net *net = ((struct ofi_state *)opened)->net;
    struct fi_cq_data_entry entries[BATCH];
    if (net->first) push_queue(net);
    if (net->first || !net->sleeps) {
        waiter_pause(&net->waiter, net->rank);
        return;
    }
    ssize_t count = fi_cq_sread(net->cq, entries, BATCH, NULL, (int)((us + 999) / 1000));
    for (ssize_t i = 0; i < count; i++)
        complete(net, &entries[i]);
    if (count < 0 && count != -FI_EAGAIN && count != -EINTR) fail_completion(net, count);
}

/* What was handed to the library has left this end, and the peer has been told what it waits for.
 */
static bool ofi_idle(void *opened)
{
    const struct ofi_state *state = opened;
    for (uint32_t i = 0; i < state->nwires; i++) {
        const struct ofi_wire *w = &state->wires[i];
        if (w->queued || w->hello.busy || w->credit.busy) return false;
        for (uint32_t s = 0; w->sends && s < w->wire.depth; s++) {
            if (w->slots[s].left > 0 || w->slots[s].op.busy) return false;
        }
    }
    return true;
}

/* ---- opening and closing ---- */

static size_t slots_bytes(const struct ofi_wire *w)
{
    return w->wire.depth * w->stride;
}

/* Completions that a wire can have in the queue at once: its writes or the peer's, credits, and
 * both hellos. */
static size_t completions(const struct ofi_wire *w)
{
    return w->wire.depth * (pieces(w, w->wire.slot_bytes) + 1) + 4;
}

static void init_wire(struct ofi_state *state, const struct wire_spec *spec, uint32_t i)
{
    const struct lwire *lwire = &spec->wires[i];
    struct ofi_net *net = state->net;
    struct ofi_wire *w = &state->wires[i];
    size_t most = net->info->ep_attr->max_msg_size;
    *w = (struct ofi_wire){
        .wire = {.peer = lwire->peer,
                 .depth = spec->depth,
                 .mode = WIRE_STAGED,
                 .slot_bytes = spec->slot_bytes},
        .net = net,
        .state = state,
        .sends = lwire->send,
        .world_peer = spec->group ? spec->group[lwire->peer] : lwire->peer,
        .channel = lwire->channel,
        .piece = most < OFI_PIECE ? most : OFI_PIECE,
        .slots = state->slots + (size_t)i * spec->depth,
        .stride = (spec->slot_bytes + LINE - 1) / LINE * LINE,
        .hello = {.kind = OFI_HELLO, .wire = w},
        .credit = {.kind = OFI_CREDIT, .wire = w},
    };
    for (uint32_t s = 0; s < spec->depth; s++)
        w->slots[s].op = (struct ofi_op){.kind = OFI_DATA, .index = s, .wire = w};
}

/* Gives it the lowest free number. */
static int number_wire(struct ofi_wire *w, size_t *from, struct err *err)
{
    struct ofi_net *net = w->net;
    while (*from < net->nnumbers && net->numbers[*from])
        ++*from;
    if (*from == net->nnumbers) {
        if (net->nnumbers == MOST_WIRES) {
            return err_add(err, ERR_FAILED,
                           "rank %u has %d wires open already, the most there "
                           "can be",
                           net->rank->rank, MOST_WIRES);
        }
        MEM_GROW(net->numbers, net->nnumbers, net->numbers_cap);
        net->nnumbers++;
    }
    net->numbers[*from] = w;
    w->number = (uint32_t)*from;
    return 0;
}

static void say_hello(struct ofi_wire *w)
{
    struct ofi_net *net = w->net;
    const struct ofi_region *region = &net->regions[w->state->region];
    bool virtual = net->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    *w->words = (struct ofi_hello){
        .from = net->rank->rank,
        .to = w->world_peer,
        .tag = w->state->tag,
        .channel = w->channel,
        .sends = w->sends,
        .number = w->number,
        .depth = w->wire.depth,
        .slot_bytes = w->wire.slot_bytes,
        .piece = w->piece,
        .slots = virtual ? (uint64_t)(uintptr_t)w->bytes : (uint64_t)(w->bytes - region->base),
        .key = fi_mr_key(region->mr),
    };
    memcpy(w->words->token, world_token(net->rank->world), TOKEN_BYTES);
    enqueue(w);
}

/* Hellos that came before the handle was opened here. */
static void recall(struct ofi_net *net)
{
    size_t kept = 0;
    for (size_t i = 0; i < net->nearly; i++) {
        if (!introduce(net, &net->early[i])) net->early[kept++] = net->early[i];
    }
    net->nearly = kept;
}

static int lay_out(struct ofi_state *state, const struct wire_spec *spec, struct err *err)
{
    struct ofi_net *net = state->net;
    size_t bytes = 0;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        init_wire(state, spec, i);
        state->booked += completions(&state->wires[i]);
        bytes += slots_bytes(&state->wires[i]) + sizeof(struct ofi_hello);
    }
    if (spec->depth > MOST_DEPTH || state->booked > net->cq_entries - net->booked) {
        return err_add(
            err, ERR_USAGE,
            "rank %u: %u wires of %u messages (at most %d) need %zu completions at once, "
            "%zu of %zu are free; take fewer channels or handles, or messages of room",
            net->rank->rank, spec->nwires, spec->depth, MOST_DEPTH, state->booked,
            net->cq_entries - net->booked, net->cq_entries);
    }
    if (ofi_region_take(net, bytes, &state->region, err)) return -1;
    uint8_t *at = net->regions[state->region].base;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        state->wires[i].bytes = at;
        at += slots_bytes(&state->wires[i]);
    }
    for (uint32_t i = 0; i < spec->nwires; i++)
        state->wires[i].words = (struct ofi_hello *)(void *)at + i;
    net->booked += state->booked;
    return 0;
}

static void free_state(struct ofi_state *state)
{
    free(state->wires);
    free(state->slots);
    free(state);
}

static int ofi_open(const struct wire_spec *spec, struct wire **wires, struct wire_buffers *peers,
                    void **opened, struct err *err)
{
    struct ofi_net *net = spec->rank->net;
    struct ofi_state *state = mem_calloc(1, sizeof *state);
    size_t from = 0;
    (void)peers;
    state->net = net;
    state->tag = spec->tag;
    state->nwires = spec->nwires;
    state->wires = mem_calloc(spec->nwires, sizeof *state->wires);
    state->slots = mem_calloc((size_t)spec->nwires * spec->depth, sizeof *state->slots);
    int bad = ofi_find_peers(net, err) || lay_out(state, spec, err);
    for (uint32_t i = 0; !bad && i < spec->nwires; i++)
        bad = number_wire(&state->wires[i], &from, err);
    if (bad) { /* the run ends */
        free_state(state);
        return -1;
    }
    for (uint32_t i = 0; i < spec->nwires; i++) {
        say_hello(&state->wires[i]);
        wires[i] = &state->wires[i].wire;
    }
    recall(net);
    drive(net);
    *opened = state;
    return 0;
}

/* Nothing is under way in either direction, nor will be. */
static bool is_quiet(struct ofi_state *state)
{
    for (uint32_t i = 0; i < state->nwires; i++) {
        const struct ofi_wire *w = &state->wires[i];
        if (!w->known || !w->said || w->released != w->wire.next) return false;
    }
    return ofi_idle(state);
}

static void ofi_close(void *opened)
{
    struct ofi_state *state = opened;
    struct ofi_net *net = state->net;
    for (struct waiter waiter = {0}; !is_quiet(state); waiter_pause(&waiter, net->rank))
        drive(net);
    for (uint32_t i = 0; i < state->nwires; i++)
        net->numbers[state->wires[i].number] = NULL;
    net->regions[state->region].taken = false;
    net->booked -= state->booked;
    free_state(state);
}

static const char *ofi_absent(void)
{
    const char *why;
    return ofi_lib(&why) ? NULL : why;
}

const struct transport ofi_transport = {
    .name = "ofi",
    .modes = 1u << WIRE_STAGED,
    .engine = &host_engine,
    .suits = {[WIRE_STAGED] = {128 << 10, 4}},
    .slot_budget = 32 << 20,
    .granule = LAYOUT_GRANULE,
    .message_align = 1,
    .alloc = rank_alloc,
    .absent = ofi_absent,
    .join = ofi_join,
    .leave = ofi_leave,
    .rank_bytes = ofi_rank_bytes,
    .sweep = ofi_sweep,
    .drop = ofi_drop,
    .gpu_says = ofi_gpu_says,
    .open = ofi_open,
    .close = ofi_close,
    .room = ofi_room,
    .post = ofi_post,
    .peek = ofi_peek,
    .release = ofi_release,
    .released = ofi_released,
    .poll = ofi_poll,
    .wait = ofi_wait,
    .idle = ofi_idle,
};
