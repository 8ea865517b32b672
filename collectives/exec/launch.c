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
 * Each child has one SOCK_SEQPACKET pair to the launcher: a record is a message, so threads can
 * share it, and no socket has a name. */
#include "exec/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/mem.h"
#include "exec/blame.h"
#include "exec/control.h"

enum {
    WATCH_MS = 200,  /* between two looks at the statuses */
    STILL_MS = 1000, /* a waiting rank without a beat for so long has been stopped */
    PAUSE_MS = 2000, /* a longer gap between looks: the launcher itself was stopped */
    GRACE_MS = 100,  /* survivors get so long to run into their waits */
    ABORT_MS = 2000, /* and so long to end by themselves */
    KILL_MS = 1500,  /* and SIGKILL so long to work */
};

/* ---- a run --------------------------------------------------------------------------------- */

struct proc {
    struct run *run;
    uv_process_t process;
    uv_poll_t poll;
    int fd;         /* our end of its control socket */
    uint32_t first; /* its ranks */
    uint32_t nranks;
    bool spawned, ended;
};

/* What the launcher remembers of a rank. */
struct seen {
    uint64_t tick, beat;
    uint64_t beat_ms; /* when the beat last moved */
    uint32_t done;
};

enum phase { RUNNING, GRACE, ABORTED, KILLED };

struct run {
    const struct launch_spec *spec;
    uv_loop_t *loop;
    uv_timer_t watch, alarm;
    uv_signal_t signals[3];
    struct proc *procs;
    uint32_t nprocs, nalive, nranks;
    struct seen *seen;
    uint64_t moved_ms;  /* when any rank last made progress */
    uint64_t looked_ms; /* when the watch last looked */
    enum phase phase;
    bool stalled;        /* the guilty process is alive, but will not notice an abort */
    int interrupted;     /* signal that ended the run from outside, or 0 */
    struct err own;      /* what ranks reported themselves */
    uint32_t culprit;    /* rank at fault; NO_RANK: a whole process, or nobody */
    struct proc *guilty; /* its process, or NULL */
    char *verb;          /* what happened to it */
    char *sentence;      /* the whole story, once told */
};

static uint64_t run_now(struct run *run)
{
    uv_update_time(run->loop);
    return uv_now(run->loop);
}

static void close_handle(uv_handle_t *handle, void *ctx)
{
    (void)ctx;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

/* Lets the loop end. */
static void run_close(struct run *run)
{
    uv_walk(run->loop, close_handle, NULL);
}

static void proc_kill(struct proc *proc)
{
    if (proc->spawned && !proc->ended) uv_process_kill(&proc->process, SIGKILL);
}

static void run_kill(struct run *run)
{
    for (uint32_t i = 0; i < run->nprocs; i++)
        proc_kill(&run->procs[i]);
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
    }
    char *verb = NULL;
    if (run->interrupted) { /* whatever else happened: most likely it was the same key */
        verb = mem_printf("interrupted by signal %d (%s)", run->interrupted,
                          strsignal(run->interrupted));
        blame = (struct blame){.rank = NO_RANK, .verb = verb};
    }
    run->sentence = blame_sentence(run->spec->world, &blame);
    world_abort(run->spec->world);
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
        if (run->stalled) proc_kill(run->guilty);
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
static void run_fail(struct run *run, uint32_t rank, struct proc *proc, char *verb)
{
    if (run->phase != RUNNING) {
        free(verb);
        return;
    }
    run->culprit = rank;
    run->guilty = proc;
    run->verb = verb;
    run->phase = GRACE;
    uv_timer_start(&run->alarm, on_alarm, GRACE_MS, 0);
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
static void own_error(struct run *run, struct proc *proc, const struct control *head,
                      const char *text, size_t bytes)
{
    char *line = mem_printf("rank %u: %.*s", head->rank, (int)bytes, text);
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

/* Takes in everything that waits on a child's socket. */
static void proc_drain(struct proc *proc)
{
    struct run *run = proc->run;
    char record[sizeof(struct control) + MESSAGE_BYTES];
    for (;;) {
        ssize_t got = recv(proc->fd, record, sizeof record, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < (ssize_t)sizeof(struct control)) {
            if (got == 0) uv_poll_stop(&proc->poll); /* it has closed its end */
            return;
        }
        struct control head;
        memcpy(&head, record, sizeof head);
        size_t bytes = (size_t)got - sizeof head;
        run->moved_ms = run_now(run);
        if (head.kind == CONTROL_ERROR) {
            own_error(run, proc, &head, record + sizeof head, bytes);
        } else if (run->spec->on_message) {
            run->spec->on_message(run->spec->ctx, head.rank, record + sizeof head, bytes);
        }
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    proc_drain(poll->data);
}

/* ---- ends of children ----------------------------------------------------------------------- */

/* True when every rank of the process has returned from rank_main. */
static bool proc_done(const struct proc *proc)
{
    for (uint32_t r = proc->first; r < proc->first + proc->nranks; r++) {
        struct rank_status *status = world_status(proc->run->spec->world, r);
        if (!atomic_load_explicit(&status->done, memory_order_acquire)) return false;
    }
    return true;
}

static void on_exit_child(uv_process_t *process, int64_t status, int number)
{
    struct proc *proc = process->data;
    struct run *run = proc->run;
    proc_drain(proc); /* what it said before it ended comes first */
    proc->ended = true;
    run->nalive--;
    uint32_t rank = proc->nranks == 1 ? proc->first : NO_RANK;
    if (number) {
        run_fail(run, rank, proc,
                 mem_printf("was killed by signal %d (%s)", number, strsignal(number)));
    } else if (status != 0 || !proc_done(proc)) {
        run_fail(run, rank, proc,
                 mem_printf("exited with status %d%s", (int)status,
                            status ? "" : " before its work was done"));
    }
    if (run->nalive) return;
    if (run->phase == GRACE) run_tell(run);
    run_close(run);
}

/* ---- stalls --------------------------------------------------------------------------------- */

static void run_stalled(struct run *run)
{
    double timeout_ms = run->spec->timeout_s * 1000;
    double still_ms = timeout_ms / 2 < STILL_MS ? timeout_ms / 2 : STILL_MS;
    bool *beats = mem_calloc(run->nranks, sizeof *beats);
    for (uint32_t r = 0; r < run->nranks; r++) {
        beats[r] = (double)(run->looked_ms - run->seen[r].beat_ms) < still_ms;
    }
    char *verb;
    uint32_t culprit = blame_stalled(run->spec->world, beats, run->spec->timeout_s, &verb);
    struct proc *proc = culprit == NO_RANK   ? NULL
                        : run->spec->threads ? &run->procs[0]
                                             : &run->procs[culprit];
    run->stalled = proc != NULL;
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
    double timeout_ms = run->spec->timeout_s * 1000;
    if (run->phase == RUNNING && timeout_ms > 0 && (double)(now - run->moved_ms) >= timeout_ms) {
        run_stalled(run);
    }
}

/* ---- starting ------------------------------------------------------------------------------- */

/* The environment with the child's own variables in front; freed with free_env. */
static char **child_env(struct run *run, const struct proc *proc)
{
    size_t count = 0, used = 0;
    while (environ[count])
        count++;
    char **env = mem_calloc(count + 3, sizeof *env);
    env[used++] =
        run->spec->threads ? mem_strdup(RANK_ENV "=all") : mem_printf(RANK_ENV "=%u", proc->first);
    env[used++] = mem_printf(PARENT_ENV "=%d", (int)getpid());
    for (size_t i = 0; i < count; i++) {
        bool ours = !strncmp(environ[i], RANK_ENV "=", sizeof RANK_ENV) ||
                    !strncmp(environ[i], PARENT_ENV "=", sizeof PARENT_ENV);
        if (!ours) env[used++] = mem_strdup(environ[i]);
    }
    return env;
}

static void free_env(char **env)
{
    for (size_t i = 0; env[i]; i++)
        free(env[i]);
    free(env);
}

static uv_stdio_container_t pass_fd(int fd)
{
    bool open = fcntl(fd, F_GETFD) >= 0;
    return (uv_stdio_container_t){.flags = open ? UV_INHERIT_FD : UV_IGNORE, .data.fd = fd};
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
    uv_stdio_container_t stdio[CONTROL_FD + 1] = {
        {.flags = UV_IGNORE},
        pass_fd(STDOUT_FILENO),
        pass_fd(STDERR_FILENO),
        [WORLD_FD] = pass_fd(world_fd(run->spec->world)),
        [CONTROL_FD] = pass_fd(pair[1]),
    };
    char **env = child_env(run, proc);
    uv_process_options_t options = {
        .file = "/proc/self/exe",
        .args = run->spec->argv,
        .env = env,
        .stdio = stdio,
        .stdio_count = CONTROL_FD + 1,
        .exit_cb = on_exit_child,
    };
    int rc = uv_spawn(run->loop, &proc->process, &options);
    proc->process.data = proc;
    free_env(env);
    close(pair[1]);
    if (rc) {
        return err_add(err, ERR_FAILED, "cannot start the process of rank %u: %s", proc->first,
                       uv_strerror(rc));
    }
    proc->spawned = true;
    run->nalive++;
    proc->poll.data = proc;
    rc = uv_poll_init(run->loop, &proc->poll, proc->fd);
    if (!rc) rc = uv_poll_start(&proc->poll, UV_READABLE, on_readable);
    if (rc) {
        return err_add(err, ERR_FAILED, "cannot listen to rank %u: %s", proc->first,
                       uv_strerror(rc));
    }
    return 0;
}

static void run_open(struct run *run, const struct launch_spec *spec, uv_loop_t *loop)
{
    static const int numbers[3] = {SIGINT, SIGTERM, SIGHUP};
    *run = (struct run){
        .spec = spec, .loop = loop, .nranks = world_nranks(spec->world), .culprit = NO_RANK};
    run->nprocs = spec->threads ? 1 : run->nranks;
    run->procs = mem_calloc(run->nprocs, sizeof *run->procs);
    run->seen = mem_calloc(run->nranks, sizeof *run->seen);
    uv_timer_init(run->loop, &run->alarm);
    uv_timer_init(run->loop, &run->watch);
    run->watch.data = run->alarm.data = run;
    run->looked_ms = run->moved_ms = run_now(run);
    for (uint32_t r = 0; r < run->nranks; r++)
        run->seen[r].beat_ms = run->looked_ms;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action;
        uv_signal_init(run->loop, &run->signals[i]);
        run->signals[i].data = run;
        bool ignored = sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN;
        if (!ignored) uv_signal_start(&run->signals[i], on_signal, numbers[i]); /* as under nohup */
    }
    uv_timer_start(&run->watch, on_watch, WATCH_MS, WATCH_MS);
    for (uint32_t i = 0; i < run->nprocs; i++) {
        run->procs[i] = (struct proc){.run = run, .fd = -1, .first = i, .nranks = 1};
        if (spec->threads) run->procs[i].nranks = run->nranks;
    }
}

/* Gathers the sentences and frees everything. */
static int run_finish(struct run *run, struct err *err)
{
    bool failed = run->phase != RUNNING;
    if (run->interrupted && run->spec->interrupted) *run->spec->interrupted = run->interrupted;
    /* A refusal says it all; other failures are placed: what was under way, and who waited. */
    bool refused = run->own.code == ERR_USAGE;
    err_move(err, &run->own);
    if (failed && run->sentence && !refused) err_add(err, ERR_FAILED, "%s", run->sentence);
    for (uint32_t i = 0; i < run->nprocs; i++) {
        struct proc *proc = &run->procs[i];
        if (proc->spawned && !proc->ended) {
            err_add(err, ERR_FAILED, "rank %u (pid %d) did not end even after SIGKILL", proc->first,
                    proc->process.pid);
        }
        if (proc->fd >= 0) close(proc->fd);
    }
    uv_loop_close(run->loop);
    free(run->verb);
    free(run->sentence);
    free(run->seen);
    free(run->procs);
    return failed ? -1 : 0;
}

int launch_run(const struct launch_spec *spec, struct err *err)
{
    struct run run;
    struct err start = ERR_INIT;
    uv_loop_t loop;
    int rc = uv_loop_init(&loop);
    if (rc) {
        world_abort(spec->world);
        return err_add(err, ERR_FAILED, "cannot start an event loop: %s", uv_strerror(rc));
    }
    run_open(&run, spec, &loop);
    for (uint32_t i = 0; i < run.nprocs && !start.count; i++) {
        if (proc_start(&run.procs[i], &start)) {
            run_fail(&run, NO_RANK, NULL, mem_strdup(start.text));
        }
    }
    err_release(&start);
    if (!run.nalive) { /* not even one could be started */
        run_tell(&run);
        run_close(&run);
    }
    uv_run(run.loop, UV_RUN_DEFAULT);
    return run_finish(&run, err);
}
