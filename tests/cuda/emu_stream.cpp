/* SPDX-License-Identifier: Apache-2.0
 * The emulation's streams: queues of operations, each with a thread of the host; events, stream
 * memory operations, and graphs, which are operations kept instead of queued. See emu.h. */
#include "emu_stream.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "cudaTypedefs.h"

using operation = std::function<void()>;

/* What streams have recorded between BeginCapture and EndCapture, in the order of the calls: an
 * order that keeps all dependences. */
struct recording {
    std::vector<operation> operations;
    std::vector<CUstream_st *> streams; /* the first began it, the others joined through events */
};

struct CUstream_st {
    const int device; /* of the machine */
    std::mutex mutex;
    std::condition_variable more, idle;
    std::deque<operation> queue;
    bool busy = false, stop = false, ended = false;
    std::shared_ptr<recording> capture; /* of the threads that call, not of the stream's */

    explicit CUstream_st(int device_);
    ~CUstream_st();
    void push(operation what);
    bool done();
    void synchronize();
    void serve();
};

struct event_state {
    std::mutex mutex;
    std::condition_variable reached;
    uint64_t recorded = 0, done = 0; /* number of the last record */
    double time_s = 0;
    std::weak_ptr<recording> capture; /* last recorded there */

    /* The last owner frees it; owners say when they are through, for the thread sanitizer. */
    void leave() const
    {
        emu::happens_before(&recorded);
    }
    ~event_state()
    {
        emu::happens_after(&recorded);
    }
};

struct CUevent_st {
    bool timed;
    std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

struct CUgraph_st {
    std::vector<operation> operations;
};

struct CUgraphExec_st {
    std::shared_ptr<const std::vector<operation>> operations;
};

using namespace emu;

/* ---- streams -------------------------------------------------------------------------------- */

static std::mutex registry_mutex;
static std::set<CUstream_st *> &registry = *new std::set<CUstream_st *>;
static std::map<int, CUstream_st *> &defaults = *new std::map<int, CUstream_st *>;

CUstream_st::CUstream_st(int device_) : device(device_)
{
    std::thread([this] { serve(); }).detach();
    std::lock_guard<std::mutex> lock(registry_mutex);
    registry.insert(this);
}

CUstream_st::~CUstream_st()
{
    {
        std::lock_guard<std::mutex> lock(registry_mutex);
        registry.erase(this);
    }
    std::unique_lock<std::mutex> lock(mutex);
    stop = true;
    more.notify_one();
    idle.wait(lock, [&] { return ended; });
}

void CUstream_st::serve()
{
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        if (queue.empty()) idle.notify_all();
        more.wait(lock, [&] { return stop || !queue.empty(); });
        if (queue.empty()) break;
        operation what = std::move(queue.front());
        queue.pop_front();
        busy = true;
        lock.unlock();
        cuemu_jitter();
        what();
        what = nullptr;
        lock.lock();
        busy = false;
    }
    ended = true;
    idle.notify_all();
}

void CUstream_st::push(operation what)
{
    if (capture) {
        capture->operations.push_back(std::move(what));
        return;
    }
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(what));
    more.notify_one();
}

bool CUstream_st::done()
{
    std::lock_guard<std::mutex> lock(mutex);
    return queue.empty() && !busy;
}

void CUstream_st::synchronize()
{
    std::unique_lock<std::mutex> lock(mutex);
    idle.wait(lock, [&] { return queue.empty() && !busy; });
}

/* The stream itself, or the current device's default stream. Only after usable(). */
static CUstream_st *stream_of(cudaStream_t stream)
{
    if (stream) return stream;
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    CUstream_st *&s = defaults[current_device()];
    if (!s) s = new CUstream_st(current_device());
    return s;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    if (flags > cudaStreamNonBlocking) return failed(cudaErrorInvalidValue);
    *stream = new CUstream_st(current_device());
    return cudaSuccess;
}

/* Waits for what is queued; the real one does not, but lets it end. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (!stream) return failed(cudaErrorInvalidResourceHandle);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    if (stream_of(stream)->capture) return failed(cudaErrorStreamCaptureUnsupported);
    stream_of(stream)->synchronize();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    if (stream_of(stream)->capture) return failed(cudaErrorStreamCaptureUnsupported);
    return stream_of(stream)->done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    std::lock_guard<std::mutex> lock(registry_mutex);
    for (CUstream_st *stream : registry)
        if (stream->device == current_device()) stream->synchronize();
    return cudaSuccess;
}

/* ---- operations ----------------------------------------------------------------------------- */

cudaError_t cuemu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                         std::function<void()> body, void (*touch)())
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!blocks || !threads || threads > MOST_THREADS) return failed(cudaErrorInvalidConfiguration);
    if (shared > MOST_SHARED) return failed(cudaErrorInvalidValue);
    CUstream_st *s = stream_of(stream);
    if (s->device != current_device()) return failed(cudaErrorInvalidResourceHandle);
    if (threads > setting().threads) block = dim3(setting().threads);
    launch what = {
        std::move(body), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, s->device, touch};
    s->push([what] { run(what); });
    return cudaSuccess;
}

cudaError_t cuemu_occupancy(int *blocks, int threads, size_t shared)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    if (threads < 1) return failed(cudaErrorInvalidValue);
    bool fits = threads <= MOST_THREADS && shared <= MOST_SHARED;
    *blocks = fits ? BLOCKS_PER_SM : 0;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t error = usable();
    if (error == cudaSuccess && bytes) error = check_copy(dst, src, bytes, kind);
    if (error != cudaSuccess) return failed(error);
    if (bytes) stream_of(stream)->push([=] { memcpy(dst, src, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t error = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
    return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = usable();
    if (error == cudaSuccess && bytes) error = check_set(dst, bytes);
    if (error != cudaSuccess) return failed(error);
    if (bytes) stream_of(stream)->push([=] { memset(dst, byte, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *dst, int byte, size_t bytes)
{
    cudaError_t error = cudaMemsetAsync(dst, byte, bytes, nullptr);
    return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

/* The driver's calls: their numbers of errors are the runtime's. */
static CUresult stream_wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                  unsigned flags)
{
    const uint64_t *word = reinterpret_cast<const uint64_t *>(address);
    if (flags != CU_STREAM_WAIT_VALUE_GEQ || !is_word(word)) return CUDA_ERROR_INVALID_VALUE;
    stream_of(stream)->push([=] {
        patience idle;
        while ((int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0)
            idle.wait("a stream waits for a word");
        happens_after(word);
    });
    return CUDA_SUCCESS;
}

static CUresult stream_write_value(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                   unsigned flags)
{
    uint64_t *word = reinterpret_cast<uint64_t *>(address);
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || !is_word(word)) return CUDA_ERROR_INVALID_VALUE;
    stream_of(stream)->push([=] {
        happens_before(word);
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
        cuemu_jitter();
    });
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *status)
{
    void *found = nullptr;
    if (!strcmp(symbol, "cuStreamWaitValue64"))
        found = reinterpret_cast<void *>(stream_wait_value);
    else if (!strcmp(symbol, "cuStreamWriteValue64"))
        found = reinterpret_cast<void *>(stream_write_value);
    bool known = found && version >= 11070;
    if (status)
        *status = known   ? cudaDriverEntryPointSuccess
                  : found ? cudaDriverEntryPointVersionNotSufficent
                          : cudaDriverEntryPointSymbolNotFound;
    *function = known ? found : nullptr;
    return failed(known ? cudaSuccess : cudaErrorSymbolNotFound);
}

/* ---- events --------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    *event = new CUevent_st;
    (*event)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!event) return failed(cudaErrorInvalidResourceHandle);
    event->state->leave();
    delete event; /* records under way hold its state */
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    std::shared_ptr<event_state> state = event->state;
    CUstream_st *s = stream_of(stream);
    std::unique_lock<std::mutex> lock(state->mutex);
    state->capture = s->capture;
    if (s->capture) return cudaSuccess; /* only an order, which the recording has anyway */
    uint64_t number = ++state->recorded;
    lock.unlock();
    s->push([state, number] {
        std::unique_lock<std::mutex> here(state->mutex);
        state->done = number;
        state->time_s = now_s();
        state->reached.notify_all();
        here.unlock();
        state->leave();
    });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::mutex> lock(event->state->mutex);
    return event->state->done >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}

static void wait_for(const std::shared_ptr<event_state> &state, uint64_t number)
{
    std::unique_lock<std::mutex> lock(state->mutex);
    state->reached.wait(lock, [&] { return state->done >= number; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::unique_lock<std::mutex> lock(event->state->mutex);
    uint64_t number = event->state->recorded;
    lock.unlock();
    wait_for(event->state, number);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    CUstream_st *s = stream_of(stream);
    std::shared_ptr<event_state> state = event->state;
    std::unique_lock<std::mutex> lock(state->mutex);
    std::shared_ptr<recording> capture = state->capture.lock();
    if (capture && !s->capture) {
        s->capture = capture;
        capture->streams.push_back(s);
    }
    if (capture != s->capture) return failed(cudaErrorStreamCaptureUnsupported);
    if (capture) return cudaSuccess;
    uint64_t number = state->recorded;
    lock.unlock();
    s->push([state, number] {
        wait_for(state, number);
        state->leave();
    });
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->timed || !to->timed) return failed(cudaErrorInvalidResourceHandle);
    if (!from->state->recorded || !to->state->recorded)
        return failed(cudaErrorInvalidResourceHandle);
    if (cudaEventQuery(from) || cudaEventQuery(to)) return cudaErrorNotReady;
    *ms = (float)((to->state->time_s - from->state->time_s) * 1e3);
    return cudaSuccess;
}

/* ---- graphs --------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    if (!stream) return failed(cudaErrorStreamCaptureUnsupported);
    if (stream->capture) return failed(cudaErrorIllegalState);
    stream->capture = std::make_shared<recording>();
    stream->capture->streams.push_back(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (!stream || !stream->capture) return failed(cudaErrorIllegalState);
    std::shared_ptr<recording> capture = stream->capture;
    if (capture->streams[0] != stream) return failed(cudaErrorStreamCaptureInvalidated);
    for (CUstream_st *joined : capture->streams)
        joined->capture = nullptr;
    *graph = new CUgraph_st{std::move(capture->operations)};
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    auto operations = std::make_shared<const std::vector<operation>>(graph->operations);
    *exec = new CUgraphExec_st{operations};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    auto operations = exec->operations;
    stream_of(stream)->push([operations] {
        for (const operation &what : *operations)
            what();
    });
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec; /* launches under way hold its operations */
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
