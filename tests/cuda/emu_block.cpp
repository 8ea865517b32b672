/* SPDX-License-Identifier: Apache-2.0
 * Settings of the emulation, and how it runs kernels: fibers, blocks, and the threads that run
 * blocks. See emu.h. */
#include "emu.h"

#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)0)
#endif
#ifdef CUEMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

__thread struct cuemu_thread *cuemu_thread;
__thread struct cuemu_block cuemu_block;
__thread struct cuemu_range cuemu_ranges[CUEMU_RANGES];

namespace emu
{

/* ---- settings and small things -------------------------------------------------------------- */

static int number(const char *name, int otherwise, int least)
{
    const char *text = getenv(name);
    if (!text || !*text) return otherwise;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < least || value > 1 << 20)
        die("%s=%s: must be a number from %d to %d", name, text, least, 1 << 20);
    return (int)value;
}

/* As the real runtime reads CUDA_VISIBLE_DEVICES: what follows an invalid entry is not seen. */
static std::vector<int> visible_devices(int devices)
{
    std::vector<int> visible;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; !text && i < devices; i++)
        visible.push_back(i);
    while (text && *text) {
        char *end;
        long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= devices) break;
        visible.push_back((int)device);
        if (*end != ',') break;
        text = end + 1;
    }
    return visible;
}

static settings read_settings()
{
    settings s;
    s.devices = number("CUEMU_DEVICES", 4, 0);
    s.visible = visible_devices(s.devices);
    s.sms = number("CUEMU_SMS", 16, 1);
    s.island = number("CUEMU_P2P_GROUP", 1 << 20, 1);
    s.memory_MB = number("CUEMU_MEMORY_MB", 4096, 1);
    s.timeout_s = number("CUEMU_TIMEOUT_S", 120, 1);
    s.threads = (unsigned)number("CUEMU_THREADS", 32, 1);
    s.seed = (unsigned)number("CUEMU_SEED", 0, 0);
    s.jitter_us = (unsigned)number("CUEMU_JITTER", 0, 0);
    return s;
}

const settings &setting()
{
    static const settings *const s = new settings(read_settings());
    return *s;
}

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "cuemu: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

double now_s()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void sleep_us(unsigned us)
{
    timespec time = {us / 1000000, us % 1000000 * 1000l};
    nanosleep(&time, nullptr);
}

void patience::wait(const char *what)
{
    const unsigned YIELDS = 32, STEP_US = 10, MOST_US = 300;
    if (turns++ == 0) since_s = now_s();
    if (turns <= YIELDS) {
        sched_yield();
        return;
    }
    unsigned us = (turns - YIELDS) * STEP_US;
    sleep_us(us < MOST_US ? us : MOST_US);
    if (now_s() - since_s > setting().timeout_s)
        die("nothing has moved for %d s (CUEMU_TIMEOUT_S): %s", setting().timeout_s, what);
}

void happens_before(const void *what)
{
#ifdef CUEMU_TSAN
    __tsan_release(const_cast<void *>(what));
#endif
    (void)what;
}

void happens_after(const void *what)
{
#ifdef CUEMU_TSAN
    __tsan_acquire(const_cast<void *>(what));
#endif
    (void)what;
}

/* Random numbers of this host thread; the n-th thread that asks gets the n-th sequence. */
static unsigned random_below(unsigned bound)
{
    static std::atomic<unsigned> sequences;
    static __thread uint64_t state;
    if (!state) state = (setting().seed * 1000003ull + ++sequences) * 0x9e3779b97f4a7c15ull | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 32) * bound >> 32);
}

/* ---- fibers --------------------------------------------------------------------------------- */

enum { STACK_BYTES = 128 << 10, GUARD_BYTES = 4096 };

struct block;

struct fiber {
    enum { READY, AT_BARRIER, DONE } state = DONE;
    struct cuemu_thread self = {};
    block *owner = nullptr;
    void *stack_pointer = nullptr;
    char *stack = nullptr;
    bool spun = false;
    const char *file = nullptr; /* of the barrier where it stands */
    int line = 0;
    void *shadow = nullptr; /* of the address sanitizer */
    void *tsan = nullptr;
    std::vector<const uint64_t *> seen; /* lines, see cuemu_saw */
    explicit fiber(block *owner_);
    ~fiber();
};

/* The blocks that a host thread runs, one after the other: its fibers are kept. */
struct block {
    std::vector<std::unique_ptr<fiber>> fibers;
    std::vector<unsigned> order;
    fiber *current = nullptr;
    const std::function<void()> *body = nullptr;
    int device = -1;
    unsigned threads = 0, done = 0, waiting = 0, spun = 0;
    int votes = 0, result = 0;
    patience idle;
    void *stack_pointer = nullptr; /* of the host thread, while a fiber runs */
    const void *stack = nullptr;
    size_t stack_bytes = 0;
    void *shadow = nullptr, *tsan = nullptr;
};
static thread_local block this_block;

extern "C" void cuemu_switch(void **save, void *to);
#if defined(__x86_64__)
asm(".text\n.globl cuemu_switch\n.hidden cuemu_switch\ncuemu_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

/* A stack from which cuemu_switch "returns" to `entry`: six registers, then the address. At entry
 * the stack is 8 off a multiple of 16, as after a call. */
static void *prepared_stack(char *top, void (*entry)())
{
    void **stack = reinterpret_cast<void **>(top - 64);
    stack[-1] = nullptr;
    stack[-2] = reinterpret_cast<void *>(entry);
    for (int i = 3; i <= 8; i++)
        stack[-i] = nullptr;
    return stack - 8;
}
#elif defined(__aarch64__)
asm(".text\n.globl cuemu_switch\n.hidden cuemu_switch\ncuemu_switch:\n"
    " stp x19,x20,[sp,#-160]!\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n"
    " stp x25,x26,[sp,#48]\n stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n"
    " stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n stp d12,d13,[sp,#128]\n"
    " stp d14,d15,[sp,#144]\n mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
    " ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n"
    " ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n"
    " ldp d10,d11,[sp,#112]\n ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n"
    " ldp x19,x20,[sp],#160\n ret\n");

static void *prepared_stack(char *top, void (*entry)())
{
    void **stack = reinterpret_cast<void **>(top - 64 - 160);
    memset(stack, 0, 160);
    stack[11] = reinterpret_cast<void *>(entry);
    return stack;
}
#else
#error "the emulation switches fibers on x86-64 and aarch64 only"
#endif

/* From the fiber that runs to the host thread's own stack. */
static void leave(fiber *f)
{
    block *b = f->owner;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&f->shadow, b->stack, b->stack_bytes);
#endif
#ifdef CUEMU_TSAN
    __tsan_switch_to_fiber(b->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    cuemu_switch(&f->stack_pointer, b->stack_pointer);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(f->shadow, &b->stack, &b->stack_bytes);
#endif
}

/* The life of a fiber: one thread of a block after the other. */
static void fiber_main()
{
    block *b = &this_block;
    fiber *f = b->current;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &b->stack, &b->stack_bytes);
#endif
    for (;;) {
        happens_after(&b->body);
        (*b->body)();
        for (const uint64_t *line : f->seen) {
            happens_after(line);
            happens_after(line + 1);
        }
        f->seen.clear();
        happens_before(&b->done);
        f->state = fiber::DONE;
        b->done++;
        leave(f);
    }
}

static void enter(block *b, fiber *f)
{
    b->current = f;
    cuemu_thread = &f->self;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&b->shadow, f->stack, STACK_BYTES);
#endif
#ifdef CUEMU_TSAN
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    cuemu_switch(&b->stack_pointer, f->stack_pointer);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(b->shadow, nullptr, nullptr);
#endif
    b->current = nullptr;
    cuemu_thread = nullptr;
}

fiber::fiber(block *owner_) : owner(owner_)
{
    void *memory = mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE))
        die("no memory for the stack of another thread (CUEMU_THREADS limits them)");
    stack = static_cast<char *>(memory) + GUARD_BYTES;
    stack_pointer = prepared_stack(stack + STACK_BYTES, fiber_main);
#ifdef CUEMU_TSAN
    tsan = __tsan_create_fiber(0);
#endif
}

fiber::~fiber()
{
#ifdef CUEMU_TSAN
    __tsan_destroy_fiber(tsan);
#endif
    ASAN_UNPOISON_MEMORY_REGION(stack, STACK_BYTES); /* marks of frames that it never left */
    munmap(stack - GUARD_BYTES, STACK_BYTES + GUARD_BYTES);
}

/* ---- blocks --------------------------------------------------------------------------------- */

static std::atomic<uint64_t> all_read, all_written;

static void shuffle(std::vector<unsigned> &order)
{
    for (unsigned i = (unsigned)order.size(); setting().seed && i > 1; i--)
        std::swap(order[i - 1], order[random_below(i)]);
}

/* All threads stand at a barrier, or some do and none can go on. */
static void release_barrier(block *b)
{
    const fiber *first = nullptr;
    for (unsigned i = 0; i < b->threads; i++) {
        fiber *f = b->fibers[i].get();
        if (!first) first = f;
        if (f->state == fiber::DONE || first->state == fiber::DONE)
            die("block %u: %u of %u threads have ended while others wait in __syncthreads",
                cuemu_block.index.x, b->done, b->threads);
        if (f->line != first->line || strcmp(f->file, first->file))
            die("block %u: thread %u waits in __syncthreads at %s:%d, thread 0 at %s:%d",
                cuemu_block.index.x, i, f->file, f->line, first->file, first->line);
    }
    for (unsigned i = 0; i < b->threads; i++)
        b->fibers[i]->state = fiber::READY;
    b->waiting = 0;
    b->result = b->votes;
    b->votes = 0;
}

/* Every thread that can runs until its next barrier or turn of waiting. */
static void pass(block *b)
{
    unsigned ran = 0;
    b->spun = 0;
    for (unsigned i : b->order) {
        fiber *f = b->fibers[i].get();
        if (f->state != fiber::READY) continue;
        enter(b, f);
        ran++;
    }
    if (b->waiting && b->waiting + b->done == b->threads) {
        release_barrier(b);
    } else if (b->spun == ran) {
        char what[64];
        snprintf(what, sizeof what, "all threads of block %u wait", cuemu_block.index.x);
        b->idle.wait(what);
        return;
    }
    b->idle = patience();
    shuffle(b->order);
}

static void prepare(block *b, const launch &launch)
{
    unsigned n = launch.block.x * launch.block.y * launch.block.z;
    while (b->fibers.size() < n)
        b->fibers.emplace_back(new fiber(b));
    b->body = &launch.body;
    b->device = launch.device;
    b->threads = n;
    b->done = b->waiting = 0;
    b->votes = b->result = 0;
    b->idle = patience();
    b->order.resize(n);
    for (unsigned i = 0; i < n; i++) {
        b->order[i] = i;
        b->fibers[i]->state = fiber::READY;
        b->fibers[i]->self.index = {i % launch.block.x, i / launch.block.x % launch.block.y,
                                    i / (launch.block.x * launch.block.y)};
    }
    shuffle(b->order);
}

int running_device()
{
    return this_block.device;
}

static void run_block(const launch &launch, uint64_t index)
{
    block *b = &this_block;
    const uint3 &grid = launch.grid;
    cuemu_block = {{(unsigned)(index % grid.x), (unsigned)(index / grid.x % grid.y),
                    (unsigned)(index / grid.x / grid.y)},
                   grid,
                   launch.block};
    memset(cuemu_ranges, 0, sizeof cuemu_ranges);
    launch.touch();
    prepare(b, launch);
#ifdef CUEMU_TSAN
    b->tsan = __tsan_get_current_fiber();
#endif
    happens_before(&b->body);
    while (b->done < b->threads)
        pass(b);
    happens_after(&b->done);
    for (unsigned i = 0; i < b->threads; i++) {
        struct cuemu_thread &self = b->fibers[i]->self;
        all_read += self.read;
        all_written += self.written;
        self = {};
    }
}

/* ---- the host threads that run blocks ------------------------------------------------------- */

/* The blocks of a device that run at once; the others wait their turn, as on a GPU: blocks that
 * wait for a block which finds no room never end. No locks here or in a job's count of blocks: to
 * the thread sanitizer, locks would put blocks in order. */
struct room {
    std::atomic<int> blocks{setting().sms * BLOCKS_PER_SM};
    void take()
    {
        patience idle;
        while (blocks.fetch_sub(1) <= 0) {
            blocks.fetch_add(1);
            idle.wait("a block waits for room on its device");
        }
    }
    void give()
    {
        blocks.fetch_add(1);
    }
};

struct job {
    const launch *what;
    room *where;
    uint64_t nblocks;
    std::atomic<uint64_t> next{0};
    std::mutex mutex;
    std::condition_variable over;
    uint64_t helpers = 0; /* host threads at work beside the stream's */

    void work()
    {
        for (uint64_t index; (index = next++) < nblocks;) {
            where->take();
            run_block(*what, index);
            where->give();
        }
    }
};

/* Host threads that wait for jobs; there are as many as were ever needed at once. */
struct pool {
    std::mutex mutex;
    std::condition_variable more;
    std::deque<job *> jobs;
    size_t idle = 0; /* waiting, or started for a job in the queue */
    std::map<int, room> rooms;

    void serve()
    {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            more.wait(lock, [&] { return !jobs.empty(); });
            job *j = jobs.front();
            jobs.pop_front();
            idle--;
            lock.unlock();
            j->work();
            lock.lock(); /* idle before the job is over: the next launch finds this thread */
            idle++;
            std::lock_guard<std::mutex> job_lock(j->mutex);
            if (--j->helpers == 0) j->over.notify_one();
        }
    }
    void help(job *j, uint64_t helpers)
    {
        j->helpers = helpers;
        std::lock_guard<std::mutex> lock(mutex);
        for (uint64_t i = 0; i < helpers; i++)
            jobs.push_back(j);
        for (; idle < jobs.size(); idle++)
            std::thread([this] { serve(); }).detach();
        more.notify_all();
    }
};

static pool &the_pool = *new pool; /* its threads outlive the statics of the program */

void run(const launch &launch)
{
    pool &p = the_pool;
    job j;
    j.what = &launch;
    j.nblocks = (uint64_t)launch.grid.x * launch.grid.y * launch.grid.z;
    {
        std::lock_guard<std::mutex> lock(p.mutex);
        j.where = &p.rooms[launch.device];
    }
    uint64_t at_once = (uint64_t)setting().sms * BLOCKS_PER_SM;
    /* Under the thread sanitizer the stream's thread runs none: it ends, the C library frees its
     * thread_locals in whatever thread comes next, and nothing orders that after their use. */
#ifdef CUEMU_TSAN
    bool helps = false;
#else
    bool helps = true;
#endif
    p.help(&j, (j.nblocks < at_once ? j.nblocks : at_once) - helps);
    if (helps) j.work();
    std::unique_lock<std::mutex> lock(j.mutex);
    j.over.wait(lock, [&] { return j.helpers == 0; });
}

} // namespace emu

using namespace emu;

/* ---- what device code calls ----------------------------------------------------------------- */

void cuemu_jitter(void)
{
    unsigned most_us = setting().jitter_us;
    if (most_us && random_below(4) == 0) sleep_us(random_below(most_us + 1));
}

int cuemu_barrier(const char *file, int line, int vote)
{
    block *b = &this_block;
    fiber *f = b->current;
    if (!f) die("__syncthreads at %s:%d outside of a kernel", file, line);
    if (setting().jitter_us && random_below(8) == 0) cuemu_jitter();
    f->state = fiber::AT_BARRIER;
    f->file = file;
    f->line = line;
    b->waiting++;
    b->votes |= vote != 0;
    happens_before(&b->votes);
    leave(f);
    happens_after(&b->votes);
    return b->result;
}

void cuemu_spin(void)
{
    block *b = &this_block;
    if (!b->current) die("a wait of device code outside of a kernel");
    cuemu_jitter();
    b->spun++;
    leave(b->current);
}

/* A line is relaxed within a kernel: what its writer did before is not ordered by it. What follows
 * the kernel on the stream may write the line's place again, as the kernel has seen it written. */
void cuemu_saw(const uint64_t *line)
{
#ifdef CUEMU_TSAN
    std::vector<const uint64_t *> &seen = this_block.current->seen;
    if (seen.empty() || seen.back() != line) seen.push_back(line);
#endif
    (void)line;
}

void cuemu_moved(uint64_t *read, uint64_t *written)
{
    *read = all_read.exchange(0);
    *written = all_written.exchange(0);
}
