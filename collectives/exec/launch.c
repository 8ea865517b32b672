/* SPDX-License-Identifier: Apache-2.0
 * Starts ranks and watches them. The launcher sleeps in a libuv loop; five times a second it looks
 * at the statuses in the shared memory, and it wakes for messages and ended children. The first
 * failure decides the sentence; then everybody is asked to end, and later made to.
 *
 *            failure            100 ms                2 s               1.5 s
 *   RUNNING ---------> GRACE ----------> ABORTED ----------> KILLED ----------> given up
 *                      survivors run     world_abort         SIGKILL
 *                      into their waits
 *
 * With a wrapper (mpiexec) there is one child, which starts the ranks. They are watched through
 * descriptors of their processes, so that the first to die is known, whatever the wrapper then does
 * to the others; and since they may be inside a library, where they do not see the abort, they are
 * killed as soon as the story has been told. What the wrapper itself prints is kept, and shown when
 * no rank is at fault. See control.h for how ranks and launcher speak, launch_hydra.c for a wrapper
 * over several hosts.
 *
 * On other hosts agents run this same code: what happens there goes up to the launcher, which holds
 * the statuses of all ranks, tells the story, and orders the end. See hosts.h. */
#include "exec/launch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "base/mem.h"
#include "exec/blame.h"
#include "exec/cgroup.h"
#include "exec/control.h"
#include "exec/launch_run.h"
#include "exec/transport.h"

enum {
    WATCH_MS = 200,     /* between two looks at the statuses */
    STILL_MS = 1000,    /* a waiting rank without a beat for so long has been stopped */
    PAUSE_MS = 2000,    /* a longer gap between looks: the launcher itself was stopped */
    GRACE_MS = 100,     /* survivors get so long to run into their waits, */
    FAR_GRACE_MS = 500, /* .. and for their hosts to say so */
    ABORT_MS = 2000,    /* and so long to end by themselves */
    KILL_MS = 1500,     /* and SIGKILL so long to work */
    ADOPTED_US = 1000,  /* between two looks for adopted children */
};
enum { WRAPPED_SHM = 16 << 20 }; /* of /dev/shm per rank: 5 MiB with MPICH 4.0.2 over UCX */

/* ---- a run --------------------------------------------------------------------------------- */

uint64_t run_now(struct run *run)
{
    uv_update_time(run->loop);
    return uv_now(run->loop);
}

static void close_handle(uv_handle_t *handle, void *ctx)
{
    (void)ctx;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

/* The signals that end a run from outside are blocked but for the time in which the loop has
 * handlers for them: so none is lost, and none kills the program before its output is complete. */
static const int signal_numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { NSIGNALS = sizeof signal_numbers / sizeof *signal_numbers };

static void mask_signals(int how, sigset_t *before)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < NSIGNALS; i++)
        sigaddset(&set, signal_numbers[i]);
    pthread_sigmask(how, &set, before);
}

/* Lets the loop end. */
static void run_close(struct run *run)
{
    mask_signals(SIG_BLOCK, NULL);
    uv_walk(run->loop, close_handle, NULL);
}

void run_kill_proc(struct proc *proc)
{
    if (proc->spawned && !proc->ended) uv_process_kill(&proc->process, SIGKILL);
}

static void fars_kill(struct run *run)
{
    for (uint32_t r = 0; run->fars && r < run->nranks; r++) {
        struct far *far = &run->fars[r];
        if (far->fd >= 0 && !far->ended) {
            syscall(SYS_pidfd_send_signal, far->fd, SIGKILL, NULL, 0);
        }
    }
}

static void run_kill(struct run *run)
{
    fars_kill(run);
    for (uint32_t i = 0; i < run->nprocs; i++)
        run_kill_proc(&run->procs[i]);
}

struct proc *run_proc_of(struct run *run, uint32_t rank)
{
    if (rank < run->first || rank - run->first >= run->nlocal) return NULL;
    return &run->procs[run->spec->threads || run->fars ? 0 : rank - run->first];
}

/* ---- failing -------------------------------------------------------------------------------- */

/* Writes the sentence about the first failure, from the statuses as they are now, and asks those
 * who are left to end. */
static void run_tell(struct run *run)
{
    const struct proc *proc = run->guilty;
    struct blame blame = {.rank = run->culprit, .verb = run->verb, .name_waiting = true};
    if (proc) {
        blame.first = proc->first;
        blame.nranks = proc->nranks;
        blame.pid = proc->process.pid;
        blame.threads = run->spec->threads;
        blame.wrapper = run->fars ? run->spec->wrapper[0] : NULL;
        if (run->fars && run->culprit != NO_RANK) blame.pid = run->fars[run->culprit].pid;
    } else if (run->culprit != NO_RANK) {
        struct rank_status *status = world_status(run->spec->world, run->culprit);
        blame.pid = atomic_load_explicit(&status->pid, memory_order_relaxed);
    }
    if (run->nremotes && (run->culprit != NO_RANK || run->place > 0))
        blame.host = hosts_name(run->spec->hosts, run->place);
    char *verb = NULL;
    if (run->interrupted) { /* whatever else happened: most likely it was the same key */
        verb = mem_printf("interrupted by signal %d (%s)", run->interrupted,
                          strsignal(run->interrupted));
        blame = (struct blame){.rank = NO_RANK, .verb = verb};
    }
    if (run->spec->uplink) {
        far_send_statuses(run); /* the launcher tells the story */
    } else {
        run->sentence = blame_sentence(run->spec->world, &blame);
    }
    world_abort(run->spec->world);
    far_send_down(run, FRAME_ABORT, run->stalled ? run->culprit : NO_RANK, NULL, 0);
    free(verb);
}

static void on_alarm(uv_timer_t *timer)
{
    struct run *run = timer->data;
    switch (run->phase) {
    case RUNNING:
        break;
    case GRACE:
        run_tell(run);
        if (run->stalled && !run->fars && run->guilty) run_kill_proc(run->guilty);
        fars_kill(run);
        run->phase = ABORTED;
        uv_timer_start(timer, on_alarm, ABORT_MS, 0);
        break;
    case ABORTED:
        run_kill(run);
        run->phase = KILLED;
        uv_timer_start(timer, on_alarm, KILL_MS, 0);
        break;
    case KILLED: /* stuck in the kernel: not ours to wait for */
        run_close(run);
        break;
    }
}

/* The first failure: remembers whose, and starts the way out. Takes `verb`. */
void run_fail(struct run *run, uint32_t rank, struct proc *proc, char *verb)
{
    if (run->phase != RUNNING) {
        free(verb);
        return;
    }
    run->culprit = rank;
    run->guilty = proc;
    run->verb = verb;
    run->phase = GRACE;
    if (rank != NO_RANK) run->place = world_host(run->spec->world, rank);
    uint64_t grace_ms = run->nremotes ? FAR_GRACE_MS : run->obeys ? 0 : GRACE_MS;
    uv_timer_start(&run->alarm, on_alarm, grace_ms, 0);
    if (!run->spec->uplink || run->obeys) return;
    const char *what = verb ? verb : "was interrupted";
    far_send_statuses(run);
    far_send_up(run, FRAME_FAILED, rank, 0, what, strlen(what));
}

/* A better culprit than the one at hand, if the story has not been told: see who calls. An mpiexec
 * over several hosts is one even before a host. Takes `verb`. */
static void run_blame(struct run *run, uint32_t rank, struct proc *proc, char *verb)
{
    bool worse = run->culprit != NO_RANK || !proc->nranks;
    if (run->phase == GRACE && worse && !run->own.count) {
        free(run->verb);
        run->culprit = rank;
        run->guilty = proc;
        run->verb = verb;
    } else {
        run_fail(run, rank, proc, verb);
    }
}

/* A rank that waited for others when it was ended. */
static bool was_waiting(const struct run *run, uint32_t rank)
{
    struct rank_status *status = world_status(run->spec->world, rank);
    return atomic_load_explicit(&status->waiting, memory_order_acquire) != 0;
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct run *run = handle->data;
    if (run->interrupted) run_kill(run); /* asked twice */
    run->interrupted = number;
    run_fail(run, NO_RANK, NULL, NULL);
}

/* ---- messages ------------------------------------------------------------------------------- */

/* Adds a rank's own sentence, once for all ranks that say the same. */
void run_own_error(struct run *run, struct proc *proc, const struct record *record)
{
    const struct control *head = &record->head;
    if (run->spec->uplink) {
        far_send_up(run, FRAME_ERROR, head->rank, head->code, record->data, record->bytes);
        run_fail(run, head->rank, proc, mem_strdup("failed"));
        return;
    }
    char *line = mem_printf("rank %u: %.*s", head->rank, (int)record->bytes, record->data);
    const char *said = strchr(line, ':');
    bool known = false;
    for (const char *at = run->own.text; at && (at = strstr(at, said)); at++) {
        char end = at[strlen(said)];
        known = known || end == '\n' || end == '\0';
    }
    if (!known) err_add(&run->own, (enum err_code)head->code, "%s", line);
    free(line);
    run_fail(run, head->rank, proc, mem_strdup("failed"));
}

static void on_far_end(uv_poll_t *poll, int status, int events);

/* A rank that the wrapper started gets what children inherit, and is watched from here on. */
static void on_hello(struct proc *proc, const struct record *hello)
{
    struct run *run = proc->run;
    uint32_t rank = hello->head.rank;
    bool own = rank >= run->first && rank - run->first < run->nlocal;
    if (!own || run->fars[rank].pid) {
        run_fail(run, NO_RANK, proc,
                 mem_printf("started a %s rank %u; there are %u ranks in all, here %u to %u",
                            own ? "second" : "foreign", rank, run->nranks, run->first,
                            run->first + run->nlocal - 1));
        return;
    }
    struct far *far = &run->fars[rank];
    far->pid = hello->pid;
    far->fd = (int)syscall(SYS_pidfd_open, far->pid, 0);
    int rc = far->fd < 0 ? -errno : uv_poll_init(run->loop, &far->poll, far->fd);
    if (!rc) rc = uv_poll_start(&far->poll, UV_READABLE, on_far_end);
    if (rc) {
        run_fail(run, rank, proc, mem_printf("cannot be watched: %s", uv_strerror(rc)));
        return;
    }
    far->poll.data = far;
    run->nalive++;
    int fds[HELLO_COUNT] = {world_fd(run->spec->world), STDOUT_FILENO, STDERR_FILENO};
    if (control_give(proc->fd, hello, fds)) {
        run_fail(run, rank, proc, mem_printf("cannot be reached: %s", strerror(errno)));
    }
    if (run->phase >= ABORTED) fars_kill(run);
}

static void take_meeting(struct run *run, const struct record *record)
{
    char *where = mem_printf("%.*s", (int)record->bytes, record->data);
    world_set_meeting(run->spec->world, where);
    far_send_down(run, FRAME_MEETING, NO_RANK, where, strlen(where));
    free(where);
}

void run_message(struct run *run, uint32_t rank, const void *data, size_t bytes)
{
    if (run->spec->uplink) {
        far_send_up(run, FRAME_MESSAGE, rank, 0, data, bytes);
    } else if (run->spec->on_message) {
        run->spec->on_message(run->spec->ctx, rank, data, bytes);
    }
}

/* Takes in everything that waits on a child's socket. */
static void proc_drain(struct proc *proc)
{
    struct run *run = proc->run;
    struct record record;
    int got;
    while ((got = control_recv(proc->fd, &record)) > 0) {
        run->moved_ms = run_now(run);
        if (record.head.kind == CONTROL_ERROR) {
            run_own_error(run, proc, &record);
        } else if (record.head.kind == CONTROL_HELLO) {
            if (run->fars) on_hello(proc, &record);
        } else if (record.head.kind == CONTROL_MEETING) {
            take_meeting(run, &record);
        } else {
            run_message(run, record.head.rank, record.data, record.bytes);
        }
    }
    if (got < 0) uv_poll_stop(&proc->poll); /* it has closed its end */
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    proc_drain(poll->data);
}

/* ---- ends of children ----------------------------------------------------------------------- */

bool run_rank_done(struct run *run, uint32_t rank)
{
    struct rank_status *status = world_status(run->spec->world, rank);
    return atomic_load_explicit(&status->done, memory_order_acquire) != 0;
}

/* True when every rank of the process has returned from rank_main. */
static bool proc_done(const struct proc *proc)
{
    for (uint32_t r = proc->first; r < proc->first + proc->nranks; r++) {
        if (!run_rank_done(proc->run, r)) return false;
    }
    return true;
}

/* One less is running. */
void run_less(struct run *run)
{
    if (--run->nalive) return;
    if (run->phase == GRACE) run_tell(run);
    if (run->spec->uplink) far_send_statuses(run);
    run_close(run);
}

/* What a status as of waitpid says. */
static char *end_verb(int status)
{
    if (WIFSIGNALED(status)) {
        return mem_printf("was killed by signal %d (%s)", WTERMSIG(status),
                          strsignal(WTERMSIG(status)));
    }
    return mem_printf("exited with status %d%s", WEXITSTATUS(status),
                      WEXITSTATUS(status) ? "" : " before its work was done");
}

/* How a process that is not our child has ended, as a status of waitpid: from the last field of
 * /proc/PID/stat while its parent has not asked, then from the kernel's memory of it (Linux 6.15).
 * False: nobody knows. */
static bool far_status(const struct far *far, int *status)
{
    struct {
        uint64_t mask, rest[6];
        uint32_t last;
        int32_t exit_code;
    } info = {.mask = 8 /* PIDFD_INFO_EXIT */};
    char *path = mem_printf("/proc/%d/stat", (int)far->pid), *text = file_text(path);
    const char *at = text ? strrchr(text, ')') : NULL; /* behind it: state, then numbers */
    bool known = at && at[1] == ' ' && strchr("ZX", at[2]);
    if (known) *status = atoi(strrchr(text, ' '));
    free(text);
    free(path);
    _Static_assert(sizeof info == 64, "struct pidfd_info of include/uapi/linux/pidfd.h, version 0");
    if (!known && ioctl(far->fd, _IOWR(0xFF, 11, char[64]), &info) == 0 && (info.mask & 8)) {
        *status = info.exit_code;
        known = true;
    }
    return known;
}

/* How surely a rank ended by itself. A wrapper ends the others when one has ended, with SIGKILL or
 * SIGTERM, and their ends may be seen first: who ended otherwise is to blame before those, and who
 * did not wait for others before who did. */
static int far_guilt(const struct run *run, uint32_t rank, bool known, int status)
{
    bool made_to = !known || (WIFSIGNALED(status) &&
                              (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM));
    return (made_to ? 0 : 2) + (was_waiting(run, rank) ? 0 : 1);
}

static void on_far_end(uv_poll_t *poll, int status, int events)
{
    struct far *far = poll->data;
    struct run *run = far->run;
    uint32_t rank = (uint32_t)(far - run->fars);
    (void)status, (void)events;
    proc_drain(&run->procs[0]); /* what it said before it ended comes first */
    uv_poll_stop(poll);
    far->ended = true;
    if (!run_rank_done(run, rank)) {
        int how = 0;
        bool known = far_status(far, &how);
        char *verb = known ? end_verb(how) : mem_strdup("died");
        int guilt = far_guilt(run, rank, known, how);
        bool first = run->phase == RUNNING, better = !first && guilt > run->guilt;
        if (first || better) run->guilt = guilt;
        (better ? run_blame : run_fail)(run, rank, &run->procs[0], verb);
    }
    run_less(run);
}

/* What happened to a child; where an agent tells its launcher, with the wrapper's own words. */
static char *child_verb(const struct run *run, int64_t status, int number)
{
    char *verb = end_verb(number ? number : (int)status << 8);
    if (!run->fars || !run->spec->uplink) return verb;
    char said[256] = "";
    ssize_t got = number ? 0 : pread(run->chatter, said, sizeof said - 1, 0);
    said[got > 0 ? got : 0] = '\0';
    said[strcspn(said, "\r\n")] = '\0';
    char *longer = mem_printf("lost %s, which %s%s%s%s", run->spec->wrapper[0], verb,
                              *said ? " and says \"" : "", said, *said ? "\"" : "");
    free(verb);
    return longer;
}

static void on_exit_child(uv_process_t *process, int64_t status, int number)
{
    struct proc *proc = process->data;
    struct run *run = proc->run;
    proc_drain(proc); /* what it said before it ended comes first */
    proc->ended = true;
    uint32_t rank = proc->nranks == 1 && !run->fars ? proc->first : NO_RANK;
    if (number && run->fars) { /* it took its ranks with it, whose ends may be seen first */
        run->quiet = run->nremotes > 0;
        run_blame(run, NO_RANK, proc, child_verb(run, status, number));
    } else if (number || status != 0 || !proc_done(proc) || (!proc->nranks && !run->commands)) {
        run_fail(run, rank, proc, child_verb(run, status, number));
    }
    run_less(run);
}

/* ---- stalls --------------------------------------------------------------------------------- */

static void run_stalled(struct run *run)
{
    double timeout_ms = run->spec->timeout_s * 1000;
    double still_ms = timeout_ms / 2 < STILL_MS ? timeout_ms / 2 : STILL_MS;
    /* An agent tells of its ranks all the time: who does not is stopped himself. */
    double patience_ms = timeout_ms / 2 > STILL_MS ? timeout_ms / 2 : STILL_MS;
    struct remote *silent = far_silent(run, run->looked_ms - (uint64_t)patience_ms);
    if (silent) {
        run->place = silent->host;
        run_fail(run, NO_RANK, NULL,
                 mem_printf("has said nothing for %.3g s",
                            (double)(run->looked_ms - silent->heard_ms) / 1000));
        return;
    }
    bool *beats = mem_calloc(run->nranks, sizeof *beats);
    for (uint32_t r = 0; r < run->nranks; r++) {
        beats[r] = (double)(run->looked_ms - run->seen[r].beat_ms) < still_ms;
    }
    char *verb;
    uint32_t culprit = blame_stalled(run->spec->world, beats, run->spec->timeout_s, &verb);
    struct proc *proc = culprit != NO_RANK ? run_proc_of(run, culprit) : NULL;
    if (run->fars && proc && !run->fars[culprit].pid) {
        free(verb);
        verb = mem_printf("did not start rank %u within %g s", culprit, run->spec->timeout_s);
        culprit = NO_RANK;
    }
    run->stalled = culprit != NO_RANK;
    run_fail(run, culprit, proc, verb);
    free(beats);
}

static void on_watch(uv_timer_t *timer)
{
    struct run *run = timer->data;
    uint64_t now = run_now(run);
    bool paused = now - run->looked_ms > PAUSE_MS;
    run->looked_ms = now;
    if (paused) run->moved_ms = now; /* nobody ran meanwhile, or we cannot know */
    for (uint32_t r = 0; r < run->nranks; r++) {
        struct rank_status *status = world_status(run->spec->world, r);
        struct seen *seen = &run->seen[r], old = *seen;
        seen->tick = atomic_load_explicit(&status->tick, memory_order_relaxed);
        seen->beat = atomic_load_explicit(&status->beat, memory_order_relaxed);
        seen->done = atomic_load_explicit(&status->done, memory_order_relaxed);
        if (seen->beat != old.beat || paused) seen->beat_ms = now;
        if (seen->tick != old.tick || seen->done != old.done) run->moved_ms = now;
    }
    if (run->spec->uplink) {
        far_send_statuses(run);
        return; /* the launcher watches */
    }
    double timeout_ms = run->spec->timeout_s * 1000;
    if (run->phase == RUNNING && timeout_ms > 0 && (double)(now - run->moved_ms) >= timeout_ms) {
        run_stalled(run);
    }
}

/* ---- starting ------------------------------------------------------------------------------- */

static bool same_name(const char *a, const char *b)
{
    size_t length = strcspn(a, "=");
    return strncmp(a, b, length) == 0 && b[length] == '=';
}

/* A list of words that grows. */
struct words {
    char **list; /* NULL-terminated */
    size_t count, cap;
};

/* Adds a word. Takes it. */
static void words_add(struct words *words, char *word)
{
    MEM_GROW(words->list, words->count, words->cap);
    words->list[words->count++] = word;
    MEM_GROW(words->list, words->count, words->cap);
    words->list[words->count] = NULL;
}

static void words_release(struct words *words)
{
    for (size_t i = 0; i < words->count; i++)
        free(words->list[i]);
    free(words->list);
}

/* The environment with the child's own variables in front, then the caller's. `name` is that of the
 * launcher's socket, or NULL. */
static struct words child_env(struct run *run, const struct proc *proc, const char *name)
{
    const struct launch_spec *spec = run->spec;
    struct words env = {0};
    words_add(&env, !proc->nranks   ? mem_strdup(RANK_ENV "=$")
                    : run->fars     ? mem_printf(RANK_ENV "=$%s", spec->rank_variable)
                    : spec->threads ? mem_strdup(RANK_ENV "=all")
                                    : mem_printf(RANK_ENV "=%u", proc->first));
    words_add(&env, mem_printf(PARENT_ENV "=%d", (int)getpid()));
    if (name) words_add(&env, mem_printf(SOCKET_ENV "=%s", name));
    for (char *const *more = spec->env; more && *more; more++)
        words_add(&env, mem_strdup(*more));
    size_t own = env.count;
    for (char **old = environ; *old; old++) {
        bool known = false;
        for (size_t i = 0; i < own; i++)
            known = known || same_name(env.list[i], *old);
        if (!known) words_add(&env, mem_strdup(*old));
    }
    return env;
}

/* The wrapper's command line: its words, `more` of them, this program's file, the arguments. */
static struct words wrapper_words(const struct launch_spec *spec, char *const *more)
{
    struct words words = {0};
    for (char *const *word = spec->wrapper; *word; word++)
        words_add(&words, mem_strdup(*word));
    for (; more && *more; more++)
        words_add(&words, mem_strdup(*more));
    char *prog = realpath("/proc/self/exe", NULL);
    words_add(&words, prog ? prog : mem_strdup(spec->argv[0]));
    for (char **arg = spec->argv + 1; *arg; arg++)
        words_add(&words, mem_strdup(*arg));
    return words;
}

static uv_stdio_container_t pass_fd(int fd)
{
    bool open = fcntl(fd, F_GETFD) >= 0;
    return (uv_stdio_container_t){.flags = open ? UV_INHERIT_FD : UV_IGNORE, .data.fd = fd};
}

/* Where its ranks are found until each says so itself: see rank_init. */
static void proc_stands_in(const struct proc *proc)
{
    for (uint32_t r = proc->first; !proc->run->fars && r - proc->first < proc->nranks; r++) {
        int32_t none = 0;
        atomic_compare_exchange_strong_explicit(&world_status(proc->run->spec->world, r)->pid,
                                                &none, proc->process.pid, memory_order_relaxed,
                                                memory_order_relaxed);
    }
}

/* Starts this program once more with `argv`; its descriptors from 1 on are `fds`. */
static int proc_spawn(struct proc *proc, char **argv, const char *name, const int fds[], int nfds,
                      struct err *err)
{
    struct words env = child_env(proc->run, proc, name);
    uv_stdio_container_t stdio[CONTROL_FD + 1] = {{.flags = UV_IGNORE}};
    for (int fd = 1; fd <= nfds; fd++)
        stdio[fd] = pass_fd(fds[fd - 1]);
    uv_process_options_t options = {
        .file = "/proc/self/exe",
        .args = argv,
        .env = env.list,
        .stdio = stdio,
        .stdio_count = nfds + 1,
        .exit_cb = on_exit_child,
    };
    int rc = uv_spawn(proc->run->loop, &proc->process, &options);
    proc->process.data = proc;
    words_release(&env);
    if (rc) {
        return err_add(err, ERR_FAILED, "cannot start the process of rank %u: %s", proc->first,
                       uv_strerror(rc));
    }
    proc->spawned = true;
    proc->run->nalive++;
    proc_stands_in(proc);
    return 0;
}

static int proc_listen(struct proc *proc, struct err *err)
{
    proc->poll.data = proc;
    int rc = uv_poll_init(proc->run->loop, &proc->poll, proc->fd);
    if (!rc) rc = uv_poll_start(&proc->poll, UV_READABLE, on_readable);
    if (!rc) return 0;
    return err_add(err, ERR_FAILED, "cannot listen to rank %u: %s", proc->first, uv_strerror(rc));
}

static int proc_start(struct proc *proc, struct err *err)
{
    struct run *run = proc->run;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        return err_add(err, ERR_FAILED, "cannot open the control socket of rank %u: %s",
                       proc->first, strerror(errno));
    }
    proc->fd = pair[0];
    int fds[CONTROL_FD] = {STDOUT_FILENO, STDERR_FILENO, world_fd(run->spec->world), pair[1]};
    int rc = proc_spawn(proc, run->spec->argv, NULL, fds, CONTROL_FD, err);
    close(pair[1]);
    return rc ? -1 : proc_listen(proc, err);
}

int wrapper_start(struct proc *proc, char **command, struct err *err)
{
    struct run *run = proc->run;
    char *name = NULL;
    proc->fd = control_listen(&name);
    if (proc->fd < 0) {
        return err_add(err, ERR_FAILED, "cannot open the control socket of the ranks: %s",
                       strerror(errno));
    }
    int fds[] = {run->chatter, run->chatter};
    int rc = proc_spawn(proc, command, name, fds, 2, err);
    free(name);
    return rc ? -1 : proc_listen(proc, err);
}

int wrapper_spawn(struct proc *proc, char *const *more, struct err *err)
{
    struct run *run = proc->run;
    struct words words = wrapper_words(run->spec, more);
    int fds[] = {run->chatter, run->chatter};
    int rc = proc->nranks ? wrapper_start(proc, words.list, err)
                          : proc_spawn(proc, words.list, NULL, fds, 2, err);
    words_release(&words);
    return rc;
}

/* Starts the ranks of this host; over several hosts those of the others, too. Orphans of a wrapper
 * are adopted: see run_adopted. */
static int run_start(struct run *run, struct err *err)
{
    const struct launch_spec *spec = run->spec;
    if (run->fars) {
        run->chatter = memfd_create("collbench-wrapper", MFD_CLOEXEC);
        if (run->chatter < 0)
            return err_add(err, ERR_FAILED, "cannot make a file in memory: %s", strerror(errno));
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        if (run->nremotes) return hydra_start(run, err);
        return spec->uplink ? wrapper_start(&run->procs[0], (char **)(uintptr_t)spec->wrapper, err)
                            : wrapper_spawn(&run->procs[0], NULL, err);
    }
    for (uint32_t i = 0; i < run->nprocs; i++) {
        if (proc_start(&run->procs[i], err)) return -1;
    }
    return far_start(run, err);
}

static void run_open(struct run *run, const struct launch_spec *spec, uv_loop_t *loop)
{
    *run = (struct run){
        .spec = spec, .loop = loop, .nranks = world_nranks(spec->world), .culprit = NO_RANK};
    bool one = spec->threads || spec->wrapper;
    uint32_t host = world_own_host(spec->world);
    run->first = world_first(spec->world, host);
    run->nlocal = world_host_ranks(spec->world, host);
    far_open(run);
    run->nprocs = !one ? run->nlocal : spec->wrapper && run->nremotes ? 2 : 1;
    run->chatter = -1;
    if (spec->wrapper) run->fars = mem_calloc(run->nranks, sizeof *run->fars);
    for (uint32_t r = 0; spec->wrapper && r < run->nranks; r++)
        run->fars[r] = (struct far){.run = run, .fd = -1};
    run->procs = mem_calloc(run->nprocs, sizeof *run->procs);
    run->seen = mem_calloc(run->nranks, sizeof *run->seen);
    uv_timer_init(run->loop, &run->alarm);
    uv_timer_init(run->loop, &run->watch);
    run->watch.data = run->alarm.data = run;
    run->looked_ms = run->moved_ms = run_now(run);
    for (uint32_t r = 0; r < run->nranks; r++)
        run->seen[r].beat_ms = run->looked_ms;
    for (size_t i = 0; i < NSIGNALS; i++) {
        struct sigaction action;
        uv_signal_init(run->loop, &run->signals[i]);
        run->signals[i].data = run;
        bool ignored =
            sigaction(signal_numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN;
        if (!ignored)
            uv_signal_start(&run->signals[i], on_signal, signal_numbers[i]); /* as under nohup */
    }
    uv_timer_start(&run->watch, on_watch, WATCH_MS, WATCH_MS);
    for (uint32_t i = 0; i < run->nprocs; i++) {
        run->procs[i] = (struct proc){.run = run, .fd = -1, .first = run->first + i, .nranks = 1};
        if (one) run->procs[i].nranks = i == 0 ? run->nlocal : 0;
    }
}

/* The wrapper has helpers, which end soon after it and were then adopted: waits for them. Over
 * several hosts there are none but ranks, which have ended; the agents run on, and may be children
 * of this process. */
static void run_adopted(struct run *run)
{
    uint64_t end = run_now(run) + KILL_MS;
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0 ||
           (pid == 0 && !run->nremotes && run_now(run) < end)) {
        if (pid == 0) usleep(ADOPTED_US);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

/* Shows what the wrapper printed, unless another story has been told. */
static void show_chatter(struct run *run)
{
    bool told = run->own.count || run->interrupted || run->culprit != NO_RANK || run->quiet ||
                run->place > 0 || run->spec->uplink;
    char part[4096];
    off_t at = run->chatter_from;
    ssize_t got;
    while (!told && (got = pread(run->chatter, part, sizeof part, at)) > 0) {
        fwrite(part, 1, (size_t)got, stderr);
        at += got;
    }
    close(run->chatter);
}

/* MPI libraries keep what ranks of a host share in /dev/shm: when it is too small they say less. */
static void hint_shm(const struct run *run, struct err *err)
{
    struct statvfs have;
    if (run->interrupted || statvfs("/dev/shm", &have)) return;
    size_t need = (size_t)run->nranks * WRAPPED_SHM, left = have.f_bavail * have.f_frsize;
    if (left >= need) return;
    err_add(err, ERR_FAILED,
            "/dev/shm has %zu B free, and MPI libraries may need up to %d B of it per rank, %zu B "
            "in all: give it more (containers: --shm-size or --ipc=host)",
            left, WRAPPED_SHM, need);
}

/* Gathers the sentences and frees everything. */
static int run_finish(struct run *run, struct err *err)
{
    bool failed = run->phase != RUNNING;
    if (run->interrupted && run->spec->interrupted) *run->spec->interrupted = run->interrupted;
    if (run->chatter >= 0) show_chatter(run);
    if (run->fars) run_adopted(run);
    if (run->spec->uplink) err_release(&run->own); /* it has been sent up */
    /* A refusal says it all; other failures are placed: what was under way, and who waited. */
    bool refused = run->own.code == ERR_USAGE;
    err_move(err, &run->own);
    if (failed && run->sentence && !refused) err_add(err, ERR_FAILED, "%s", run->sentence);
    if (failed && run->fars && !refused) hint_shm(run, err);
    for (uint32_t i = 0; i < run->nprocs; i++) {
        struct proc *proc = &run->procs[i];
        if (proc->spawned && !proc->ended) {
            err_add(err, ERR_FAILED, "rank %u (pid %d) did not end even after SIGKILL", proc->first,
                    proc->process.pid);
        }
        if (proc->fd >= 0) close(proc->fd);
    }
    for (uint32_t r = 0; run->fars && r < run->nranks; r++) {
        if (run->fars[r].fd >= 0) close(run->fars[r].fd);
    }
    far_close(run, err);
    hydra_release(run);
    uv_loop_close(run->loop);
    free(run->fars);
    free(run->verb);
    free(run->sentence);
    free(run->seen);
    free(run->procs);
    return failed ? -1 : 0;
}

/* Tells every rank its processors. A list too long to be told leaves the rank unbound. */
static void tell_places(const struct launch_spec *spec)
{
    uint32_t host = world_own_host(spec->world), first = world_first(spec->world, host);
    uint32_t nranks = world_host_ranks(spec->world, host);
    struct place *own = spec->place ? NULL : place_plan(BIND_CORE, nranks);
    const struct place *place = spec->place ? spec->place : own;
    for (uint32_t i = 0; i < nranks && place_bound(place) != BIND_NONE; i++) {
        char *cpus = world_status(spec->world, first + i)->cpus;
        int length = snprintf(cpus, STATUS_CPUS, "%s", place_cpus(place, spec->place_first + i));
        if (length >= STATUS_CPUS) cpus[0] = '\0';
    }
    place_free(own);
}

void launch_block_signals(void)
{
    mask_signals(SIG_BLOCK, NULL);
}

int launch_signal_pending(void)
{
    sigset_t pending;
    struct sigaction action;
    sigpending(&pending);
    for (size_t i = 0; i < NSIGNALS; i++) {
        bool ignored = sigaction(signal_numbers[i], NULL, &action) == 0 &&
                       action.sa_handler == SIG_IGN; /* as under nohup */
        if (!ignored && sigismember(&pending, signal_numbers[i]) == 1) return signal_numbers[i];
    }
    return 0;
}

int launch_run(const struct launch_spec *spec, struct err *err)
{
    struct run run;
    struct err start = ERR_INIT;
    uv_loop_t loop;
    assert(!spec->wrapper || !spec->threads);
    int rc = uv_loop_init(&loop);
    if (rc) {
        world_abort(spec->world);
        return err_add(err, ERR_FAILED, "cannot start an event loop: %s", uv_strerror(rc));
    }
    tell_places(spec);
    sigset_t before;
    mask_signals(SIG_BLOCK, &before);
    run_open(&run, spec, &loop);
    mask_signals(SIG_UNBLOCK, NULL);
    if (run_start(&run, &start)) run_fail(&run, NO_RANK, NULL, mem_strdup(start.text));
    if (spec->uplink && far_listen_up(&run, &start))
        run_fail(&run, NO_RANK, NULL, mem_strdup(start.text));
    err_release(&start);
    if (!run.nalive) { /* not even one could be started */
        run_tell(&run);
        run_close(&run);
    }
    uv_run(run.loop, UV_RUN_DEFAULT);
    rc = run_finish(&run, err);
    transport_sweep(spec->world);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
