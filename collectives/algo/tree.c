/* SPDX-License-Identifier: Apache-2.0
 * Trees. All-reduce over two binary trees, each with half of the data: a rank that is a leaf in
 * one is an inner node in the other, so that all links work (Sanders, Speck and Traeff, "Two-tree
 * algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009).
 *
 *              0                  In-order tree of n = 8: rank r > 0 stands at the height of its
 *               \                 lowest set bit; rank 0 is above the highest.
 *                4                The second tree is its mirror image (n even), rank r taking the
 *              /   \              place of n-1-r, or itself shifted by one (n odd).
 *            2       6
 *           / \     / \           up:   receive and add from each child, send to the parent
 *          1   3   5   7          down: receive from the parent, send to each child
 *
 * Up and down are lanes of their own: the next pass goes up while this one comes down. */
#include "algo/builders.h"

enum { NOBODY = UINT32_MAX };

struct node {
    uint32_t parent, child[2]; /* NOBODY: none */
};

static uint32_t tree_parent(uint32_t v, uint32_t n)
{
    if (v == 0) {
        return NOBODY;
    }
    uint32_t bit = v & -v, up = (v - bit) | bit << 1;
    return up < n ? up : v - bit;
}

/* Children stand at v -+ a power of two below v's own bit; to the right the nearest that exists. */
static struct node tree_node(uint32_t v, uint32_t n)
{
    struct node node = {tree_parent(v, n), {NOBODY, NOBODY}};
    uint32_t bit = v & -v, found = 0;
    if (v == 0) {
        for (bit = 1; bit < n; bit <<= 1) {
        }
    }
    for (uint32_t h = bit >> 1; h > 0; h >>= 1) {
        if (v > 0 && h == bit >> 1) {
            node.child[found++] = v - h;
        }
        if (v + h < n && tree_parent(v + h, n) == v) {
            node.child[found++] = v + h;
            break;
        }
    }
    return node;
}

/* Rank of position v in tree `t`, and the other way round: each is its own inverse up to sign. */
static uint32_t rank_at(uint32_t v, uint32_t t, uint32_t n)
{
    if (v == NOBODY || t % 2 == 0) {
        return v;
    }
    return n % 2 == 0 ? n - 1 - v : wrap(v + 1, n);
}

static uint32_t position_of(uint32_t rank, uint32_t t, uint32_t n)
{
    if (t % 2 == 0) {
        return rank;
    }
    return n % 2 == 0 ? n - 1 - rank : wrap((int64_t)rank - 1, n);
}

static void tree_up(struct prog *prog, const struct node *node, uint32_t c)
{
    for (uint32_t i = 0; i < 2 && node->child[i] != NOBODY; i++) {
        sched_recv_reduce(prog, node->child[i], c);
    }
    if (node->parent != NOBODY) {
        sched_send(prog, node->parent, c);
    } else {
        sched_final(prog);
    }
}

static void tree_down(struct prog *prog, const struct node *node, uint32_t c)
{
    if (node->parent != NOBODY) {
        sched_recv(prog, node->parent, c);
    }
    for (uint32_t i = 0; i < 2 && node->child[i] != NOBODY; i++) {
        sched_send(prog, node->child[i], c);
    }
}

void tree_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t down = 0; down < 2; down++) {
        for (uint32_t c = 0; c < pieces(args); c++) {
            uint32_t t = c / args->parts;
            struct node node = tree_node(position_of(rank, t, n), n);
            node.parent = rank_at(node.parent, t, n);
            node.child[0] = rank_at(node.child[0], t, n);
            node.child[1] = rank_at(node.child[1], t, n);
            sched_lane(prog, (uint16_t)(2 * t + down), (uint16_t)t);
            (down ? tree_down : tree_up)(prog, &node, c);
        }
    }
}

/* Where virtual rank v > 0 stands in tree t of a broadcast, and back: the root (v = 0) is above
 * both trees of the other n-1, the second again a mirror image (n-1 even) or shifted by one. */
static uint32_t below_root(uint32_t v, uint32_t t, uint32_t n, bool back)
{
    if (v == NOBODY || v == 0 || t % 2 == 0) {
        return v;
    }
    if (n % 2 == 1) {
        return n - v;
    }
    return back ? (v == 1 ? n - 1 : v - 1) : v % (n - 1) + 1;
}

/* Broadcast down both trees, half of the data in each: the root sends each half once, to the top of
 * one tree; a rank passes one half on to two at most and the other to nobody: S per rank at most,
 * (n-1) S in all; about 2 log2 n deep, pieces pipelined. */
void double_tree_broadcast(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, v = wrap((int64_t)rank - args->root, n);
    for (uint32_t c = 0; c < pieces(args); c++) {
        uint32_t t = c / args->parts;
        struct node node = tree_node(below_root(v, t, n, false), n);
        uint32_t *peers[] = {&node.parent, &node.child[0], &node.child[1]};
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t peer = below_root(*peers[i], t, n, true);
            *peers[i] = peer == NOBODY ? peer : wrap((int64_t)args->root + peer, n);
        }
        sched_lane(prog, (uint16_t)t, (uint16_t)t);
        tree_down(prog, &node, c);
        if (v == 0) {
            sched_copy(prog, ref_out(c), ref_in(c));
        }
    }
}

/* Binomial broadcast: in round k every rank that has the data sends it 2^k further; the farthest
 * first, so that the deepest subtree starts earliest (see Thakur, Rabenseifner and Gropp,
 * "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005).
 *
 *     0 -> 4      v = rank - root; v's parent is v without its lowest set bit
 *     0 -> 2, 4 -> 6
 *     0 -> 1, 2 -> 3, 4 -> 5, 6 -> 7 */
void binomial_broadcast(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, v = wrap((int64_t)rank - args->root, n);
    uint32_t top = binomial_bit(v, n);
    for (uint32_t c = 0; c < pieces(args); c++) {
        sched_lane(prog, (uint16_t)(c / args->parts), (uint16_t)(c / args->parts));
        if (v > 0) {
            sched_recv(prog, wrap((int64_t)args->root + v - top, n), c);
        }
        for (uint32_t bit = top >> 1; bit > 0; bit >>= 1) {
            if (v + bit < n) {
                sched_send(prog, wrap((int64_t)args->root + v + bit, n), c);
            }
        }
        if (v == 0) {
            sched_copy(prog, ref_out(c), ref_in(c));
        }
    }
}

/* The same tree upwards: add what the children send, nearest first, and send the sum to the parent.
 * S per rank but the root, one message each, log2 n rounds. */
void binomial_reduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, v = wrap((int64_t)rank - args->root, n);
    uint32_t top = binomial_bit(v, n);
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t c = 0; c < pieces(args); c++) {
        struct ref sum = ref_in(c);
        sched_lane(prog, (uint16_t)(c / args->parts), (uint16_t)(c / args->parts));
        for (uint32_t bit = 1; bit < top && v + bit < n; bit <<= 1) {
            bool last = v == 0 && 2 * bit >= n;
            struct ref dst = last ? ref_out(c) : ref_scratch(0, c);
            sched_recv_reduce_ref(prog, wrap(rank + bit, n), dst, sum);
            sum = dst;
        }
        if (v == 0) {
            sched_final(prog);
        } else {
            sched_send_ref(prog, wrap((int64_t)rank - top, n), sum);
        }
    }
}
