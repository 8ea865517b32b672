/* SPDX-License-Identifier: Apache-2.0
 * All-to-all in ceil(log2 n) rounds for short blocks (Bruck, Ho, Kipnis, Upfal and Weathersby,
 * "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE
 * TPDS 8, 1997). A block with i ranks to go travels the powers of two in i, lowest first; in round
 * k all blocks with bit k in their i go 2^k ranks further, as one message.
 *
 *     n = 6      i = 5  4  3  2  1        what a rank sends in each round; its block i is meant for
 *     round 0        5     3     1        rank + i, and what has arrived as i came from rank - i
 *     round 1              3  2
 *     round 2        5  4
 *
 * Blocks wait in scratch where their last round left them, in descending i: those that have arrived
 * for good then lie as the output wants them. The last round is received in the output itself.
 * A rank sends ceil(log2 n) messages and sum over i < n of popcount(i) blocks, about n/2 log2 n;
 * each is copied once, into its message, and once more at the end unless it came last. */
#include "algo/builders.h"

/* Numbers below x that have bit `bit` (a power of two). At most half of x. */
static uint32_t with_bit(uint32_t x, uint32_t bit)
{
    uint32_t rest = x & (2 * bit - 1);
    return (x & ~(2 * bit - 1)) / 2 + (rest > bit ? rest - bit : 0);
}

/* Half a plane for what round 0, 1, .. receives, number round + 1; number 0 for the message to be
 * sent. The plane turns with the rank, as the buffers do. */
static struct ref half_plane(const struct prog *prog, uint32_t n, uint32_t number, uint32_t at)
{
    uint32_t block = wrap((int64_t)prog->rank + number % 2 * (n / 2) + at, n);
    return ref_scratch(number / 2, block * prog->sched->nparts);
}

/* Where block i is before the round of `bit`: its first piece. */
static struct ref whereabouts(const struct prog *prog, uint32_t n, uint32_t i, uint32_t bit)
{
    uint32_t number = 0, last = 0;
    for (uint32_t k = 0, b = 1; b < bit; k++, b <<= 1) {
        last = i & b ? b : last;
        number = i & b ? k + 1 : number;
    }
    if (last == 0) {
        return ref_in(wrap((int64_t)prog->rank + i, n) * prog->sched->nparts);
    }
    return half_plane(prog, n, number, with_bit(n, last) - with_bit(i + 1, last));
}

static struct ref plus(struct ref ref, uint32_t chunks)
{
    return (struct ref){ref.buf, ref.chunk + chunks};
}

/* With one piece per block the blocks are packed into one message; else each goes by itself. */
static void send_round(struct prog *prog, const struct algo_args *args, uint32_t bit)
{
    uint32_t n = args->nranks, w = pieces(args), to = wrap((int64_t)prog->rank + bit, n), at = 0;
    for (uint32_t i = n; i-- > bit;) {
        for (uint32_t sub = 0; (i & bit) && sub < w; sub++) {
            struct ref src = plus(whereabouts(prog, n, i, bit), sub);
            use_sub(prog, args, sub);
            if (w == 1) {
                sched_copy(prog, half_plane(prog, n, 0, at++), src);
            } else {
                sched_send_ref(prog, to, src);
            }
        }
    }
    if (w == 1) {
        sched_send_ref(prog, to, half_plane(prog, n, 0, 0));
        sched_span(prog, at);
    }
}

/* Steps on `count` consecutive blocks: received from `peer` if it is a rank, else copied from src.
 * One step with one piece per block, else one each. */
static void fill(struct prog *prog, const struct algo_args *args, uint32_t peer, struct ref dst,
                 struct ref src, uint32_t count)
{
    uint32_t w = pieces(args), chunks = args->nranks * w;
    for (uint32_t k = 0; k < (w == 1 ? 1 : count * w); k++) {
        use_sub(prog, args, k % w);
        struct ref to = {dst.buf, (dst.chunk + k) % chunks};
        if (peer < args->nranks) {
            sched_recv_ref(prog, peer, to);
        } else {
            sched_copy(prog, to, (struct ref){src.buf, (src.chunk + k) % chunks});
        }
        sched_span(prog, w == 1 ? count : 1);
    }
}

void bruck_alltoall(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), number = 1, bit = 1;
    struct ref none = {0, 0};
    fill(prog, args, n, ref_out(rank * w), ref_in(rank * w), 1);
    for (; bit < n; bit <<= 1, number++) {
        bool last = 2 * bit >= n; /* all of it has arrived: i = n-1 .. bit are of rank+1, .. */
        struct ref dst =
            last ? ref_out(wrap((int64_t)rank + 1, n) * w) : half_plane(prog, n, number, 0);
        send_round(prog, args, bit);
        fill(prog, args, wrap((int64_t)rank - bit, n), dst, none, with_bit(n, bit));
    }
    number = 1;
    for (bit = 1; 2 * bit < n; bit <<= 1, number++) { /* i = 2 bit - 1 .. bit */
        struct ref dst = ref_out(wrap((int64_t)rank - 2 * bit + 1, n) * w);
        struct ref src = half_plane(prog, n, number, with_bit(n, bit) - bit);
        fill(prog, args, n, dst, src, bit);
    }
}
