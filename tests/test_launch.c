/* SPDX-License-Identifier: Apache-2.0
 * Tests of the launcher, as a user meets it: rankprog is run in a session of its own, and what it
 * prints, how it ends, how long it takes and what it leaves behind are looked at. This process
 * adopts orphans, so a child that outlives its launcher cannot hide. */
#include <criterion/criterion.h>

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum { OUTPUT_BYTES = 16384, TIMEOUT_S = 2, SLACK_S = 20 };

struct outcome {
    int status; /* as of waitpid */
    double seconds;
    char out[OUTPUT_BYTES]; /* stdout and stderr */
};

struct started {
    pid_t pid;
    int out;
    double start;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const int keys[3] = {SIGINT, SIGTERM, SIGHUP};
static rlim_t most_files; /* limit of descriptors for what start() starts; 0: as it is */

/* Starts rankprog CASE RANKS MODE TIMEOUT_S with a planted fault (NULL: none). */
static struct started start(const char *name, unsigned nranks, const char *mode, const char *fault)
{
    int pipes[2];
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
    cr_assert_eq(pipe(pipes), 0);
    char *ranks = mem_printf("%u", nranks), *timeout = mem_printf("%d", TIMEOUT_S);
    struct started run = {.out = pipes[0], .start = now_s()};
    run.pid = fork();
    if (run.pid == 0) {
        setsid();
        dup2(pipes[1], 1);
        dup2(pipes[1], 2);
        close(pipes[0]);
        close(pipes[1]);
        if (fault) setenv("COLLBENCH_FAULT", fault, 1);
        for (int i = 0; i < 3; i++)
            signal(keys[i], SIG_DFL); /* in the background they may be ignored */
        struct rlimit limit = {.rlim_cur = most_files, .rlim_max = most_files};
        if (most_files && setrlimit(RLIMIT_NOFILE, &limit)) _exit(126);
        /* An aborted process ends from inside a wait, with threads not joined: no leak. */
        setenv("TSAN_OPTIONS", "halt_on_error=1:report_thread_leaks=0", 1);
        execl(RANKPROG, "rankprog", name, ranks, mode, timeout, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    free(ranks);
    free(timeout);
    return run;
}

/* Waits until the launcher has started processes; a little later these are at work. */
static void await_ranks(const struct started *run)
{
    char *path = mem_printf("/proc/%d/task/%d/children", run->pid, run->pid), first = '\0';
    while (!first) {
        FILE *children = fopen(path, "r");
        cr_assert(children, "the launcher has ended");
        if (fread(&first, 1, 1, children) < 1) first = '\0';
        fclose(children);
        usleep(1000);
    }
    free(path);
    usleep(400000);
}

/* Waits for the end of the launcher, and insists that nothing is left: no process in its session,
 * no orphan, no zombie. `late_s`: orphans may take so long to end. */
static void finish(struct started run, double late_s, struct outcome *outcome)
{
    size_t used = 0;
    for (ssize_t got; used < OUTPUT_BYTES - 1 &&
                      (got = read(run.out, outcome->out + used, OUTPUT_BYTES - 1 - used)) > 0;) {
        used += (size_t)got;
    }
    outcome->out[used] = '\0';
    close(run.out);
    cr_assert_eq(waitpid(run.pid, &outcome->status, 0), run.pid);
    outcome->seconds = now_s() - run.start;
    pid_t rest;
    for (double end = now_s() + late_s; (rest = waitpid(-1, NULL, WNOHANG)) >= 0;) {
        cr_assert(late_s > 0 && now_s() < end, "a child is left after: %s", outcome->out);
        usleep(10000);
    }
    cr_assert_eq(errno, ECHILD);
    cr_assert(kill(-run.pid, 0) == -1 && errno == ESRCH, "the session lives on");
}

static void launch(const char *name, unsigned nranks, const char *mode, const char *fault,
                   struct outcome *outcome)
{
    finish(start(name, nranks, mode, fault), 0, outcome);
}

static void assert_exit(const struct outcome *outcome, int code)
{
    cr_assert(WIFEXITED(outcome->status) && WEXITSTATUS(outcome->status) == code,
              "status %#x, expected exit %d: %s", outcome->status, code, outcome->out);
    cr_assert_null(strstr(outcome->out, "not asked to end"), "%s", outcome->out);
}

static void assert_says(const struct outcome *outcome, const char *text)
{
    cr_assert(strstr(outcome->out, text), "\"%s\" is not in: %s", text, outcome->out);
}

static const char *const modes[2] = {"process", "thread"};
static bool is_thread(const char *mode)
{
    return mode[0] == 't';
}

/* ---- runs that go well ---------------------------------------------------------------------- */

static void run_well(const char *name)
{
    static const unsigned nranks[] = {1, 2, 3, 8};
    for (size_t i = 0; i < 8; i++) {
        struct outcome outcome;
        launch(name, nranks[i / 2], modes[i % 2], NULL, &outcome);
        assert_exit(&outcome, 0);
        cr_assert_str_eq(outcome.out, "");
    }
}

Test(launch, barriers_are_barriers)
{
    run_well("meet");
}

Test(launch, messages_arrive_in_order)
{
    run_well("messages");
}

Test(launch, extents_are_shared_and_nameless)
{
    run_well("extents");
}

/* ---- errors of ranks ------------------------------------------------------------------------ */

Test(launch, a_ranks_own_error_comes_first)
{
    for (int m = 0; m < 2; m++) {
        struct outcome outcome;
        launch("error", 3, modes[m], NULL, &outcome);
        assert_exit(&outcome, 1);
        const char *own = "rankprog: rank 1: the coffee is cold\n";
        cr_assert_eq(strncmp(outcome.out, own, strlen(own)), 0, "%s", outcome.out);
        assert_says(&outcome, "failed during allreduce ring, 1048576 B");
        assert_says(&outcome, "rank 0 waited for it in a barrier (peer 1)");
        cr_assert_lt(outcome.seconds, SLACK_S);
    }
}

Test(launch, a_refusal_is_one_sentence)
{
    for (int m = 0; m < 2; m++) {
        struct outcome outcome;
        launch("refuse", 3, modes[m], NULL, &outcome);
        assert_exit(&outcome, 2);
        assert_says(&outcome, "too much coffee\n");
        cr_assert_eq(strchr(outcome.out, '\n')[1], '\0', "%s", outcome.out);
    }
}

Test(launch, a_process_may_not_vanish)
{
    for (int m = 0; m < 2; m++) {
        struct outcome outcome;
        launch("vanish", 3, modes[m], NULL, &outcome);
        assert_exit(&outcome, 1);
        assert_says(&outcome, "exited with status 0 before its work was done");
    }
}

Test(launch, an_unknown_fault_is_refused)
{
    struct outcome outcome;
    launch("meet", 2, "process", "trip:0:1", &outcome);
    assert_exit(&outcome, 2);
    assert_says(&outcome, "kill|stop|stall|exit");
}

/* Whatever runs out of descriptors, and however many ranks were started by then: a sentence, and
 * nobody is left. With enough of them the run succeeds. */
Test(launch, too_few_descriptors_are_a_sentence)
{
    int failed = 0, late = 0, status = 1;
    for (rlim_t files = 10; status && files < 60; files++) {
        most_files = files;
        struct outcome outcome;
        launch("meet", 4, "process", NULL, &outcome);
        cr_assert(WIFEXITED(outcome.status), "%d: %#x %s", (int)files, outcome.status, outcome.out);
        status = WEXITSTATUS(outcome.status);
        if (!status) break;
        failed++;
        late += strstr(outcome.out, " of rank 2") || strstr(outcome.out, " of rank 3");
        cr_assert_eq(status, 1, "%s", outcome.out);
        assert_says(&outcome, "rankprog: cannot ");
    }
    cr_assert_eq(status, 0);
    cr_assert_gt(failed, 2);
    cr_assert_gt(late, 0, "no failure after some ranks had been started");
}

/* ---- ranks that die, stop or stall ---------------------------------------------------------- */

struct fault {
    const char *fault;
    const char *process, *thread; /* what must be said */
    int after_s;                  /* noticed only after the timeout? */
};

static const struct fault faults[] = {
    {"kill:1:50", "was killed by signal 9 (Killed)", "was killed by signal 9 (Killed)", 0},
    {"exit:1:50", "exited with status 3", "exited with status 3", 0},
    {"stop:1:50", "made no progress for 2 s (it is stopped)", "(it is stopped)", TIMEOUT_S},
    {"stall:1:50", "made no progress for 2 s (it sleeps", "made no progress for 2 s (it sleeps",
     TIMEOUT_S},
};

Test(launch, a_fault_is_named_in_time)
{
    for (size_t i = 0; i < 2 * sizeof faults / sizeof *faults; i++) {
        const struct fault *fault = &faults[i / 2];
        const char *mode = modes[i % 2];
        struct outcome outcome;
        launch("work", 3, mode, fault->fault, &outcome);
        assert_exit(&outcome, 1);
        assert_says(&outcome, is_thread(mode) ? fault->thread : fault->process);
        assert_says(&outcome, "during allreduce ring, 1048576 B");
        cr_assert_geq(outcome.seconds, fault->after_s);
        cr_assert_lt(outcome.seconds, TIMEOUT_S + SLACK_S, "%s", outcome.out);
        if (is_thread(mode)) continue; /* there the process is at fault, and all ranks with it */
        cr_assert_eq(strncmp(outcome.out, "rankprog: rank 1 (pid ", 22), 0, "%s", outcome.out);
        assert_says(&outcome, "; rank 2 waited for it at step 3 (recv, peer 1, pass 7)\n");
        cr_assert_null(strstr(outcome.out, "rank 0"), "%s", outcome.out);
    }
}

/* A survivor that computes on and never looks for the abort is made to end. */
Test(launch, a_deaf_survivor_is_killed)
{
    for (int m = 0; m < 2; m++) {
        struct outcome outcome;
        launch("deaf", 3, modes[m], NULL, &outcome);
        assert_exit(&outcome, 1);
        assert_says(&outcome, "rankprog: rank 1: never mind\n");
        cr_assert_lt(outcome.seconds, TIMEOUT_S + SLACK_S);
    }
}

/* Eight ranks: the chain of waits is long, and most do not wait for the culprit itself. */
Test(launch, the_culprit_is_found_along_the_chain)
{
    struct outcome outcome;
    launch("work", 8, "process", "stop:5:20", &outcome);
    assert_exit(&outcome, 1);
    cr_assert_eq(strncmp(outcome.out, "rankprog: rank 5 (pid ", 22), 0, "%s", outcome.out);
    assert_says(&outcome, "; rank 6 waited for it at step 3");
    cr_assert_lt(outcome.seconds, TIMEOUT_S + SLACK_S);
}

Test(launch, who_left_early_is_named)
{
    for (int m = 0; m < 2; m++) {
        struct outcome outcome;
        launch("leave", 3, modes[m], NULL, &outcome);
        assert_exit(&outcome, 1);
        cr_assert_eq(strncmp(outcome.out, "rankprog: rank 0 (", 18), 0, "%s", outcome.out);
        assert_says(&outcome, "had returned");
        cr_assert_lt(outcome.seconds, TIMEOUT_S + SLACK_S);
    }
}

Test(launch, who_stalls_is_blamed_before_who_is_done)
{
    struct outcome outcome;
    launch("mixed", 4, "process", NULL, &outcome);
    assert_exit(&outcome, 1);
    cr_assert_eq(strncmp(outcome.out, "rankprog: rank 2 (pid ", 22), 0, "%s", outcome.out);
    assert_says(&outcome, "rank 3 waited for it");
}

Test(launch, who_is_stopped_in_a_wait_is_named)
{
    struct outcome outcome;
    launch("halt", 3, "process", NULL, &outcome);
    assert_exit(&outcome, 1);
    cr_assert_eq(strncmp(outcome.out, "rankprog: rank 1 (pid ", 22), 0, "%s", outcome.out);
    assert_says(&outcome, "(it is stopped)");
    assert_says(&outcome, "rank 2 waited for it");
    cr_assert_lt(outcome.seconds, TIMEOUT_S + SLACK_S);
}

Test(launch, who_is_stopped_before_it_begins_is_named)
{
    for (int m = 0; m < 2; m++) {
        struct outcome outcome;
        launch("unborn", 3, modes[m], NULL, &outcome);
        assert_exit(&outcome, 1);
        assert_says(&outcome, "made no progress for 2 s (it is stopped)");
        cr_assert_lt(outcome.seconds, TIMEOUT_S + SLACK_S);
    }
}

Test(launch, a_circle_of_waits_is_told)
{
    struct outcome outcome;
    launch("circle", 3, "process", NULL, &outcome);
    assert_exit(&outcome, 1);
    assert_says(&outcome, "all wait for each other");
    assert_says(&outcome, "rank 2 waited at step 2 (send, peer 0, pass 0)");
    cr_assert_lt(outcome.seconds, TIMEOUT_S + SLACK_S);
}

/* ---- signals to the launcher ---------------------------------------------------------------- */

Test(launch, an_interrupted_run_ends_its_ranks)
{
    for (size_t i = 0; i < 6; i++) {
        struct outcome outcome;
        struct started run = start("work", 3, modes[i % 2], NULL);
        await_ranks(&run);
        cr_assert_eq(kill(run.pid, keys[i / 2]), 0);
        finish(run, 0, &outcome);
        assert_exit(&outcome, 1);
        assert_says(&outcome, "rankprog: interrupted by signal");
        cr_assert_lt(outcome.seconds, SLACK_S);
    }
}

/* As the terminal does it: the key reaches the launcher and all ranks at once. */
Test(launch, an_interrupted_group_is_no_fault_of_a_rank)
{
    struct outcome outcome;
    struct started run = start("work", 3, "process", NULL);
    await_ranks(&run);
    cr_assert_eq(kill(-run.pid, SIGINT), 0);
    finish(run, 0, &outcome);
    assert_exit(&outcome, 1);
    assert_says(&outcome, "rankprog: interrupted by signal 2 (Interrupt)");
}

Test(launch, a_killed_launcher_takes_its_ranks_along)
{
    for (int m = 0; m < 2; m++) {
        struct outcome outcome;
        struct started run = start("work", 3, modes[m], NULL);
        await_ranks(&run);
        cr_assert_eq(kill(run.pid, SIGKILL), 0);
        finish(run, 10, &outcome); /* case_work would go on for 20 s */
        cr_assert(WIFSIGNALED(outcome.status));
    }
}
