/* SPDX-License-Identifier: Apache-2.0
 * Runs Criterion tests under the thread sanitizer, where Criterion's own runner cannot map its
 * arena ("Could not initialize inheritable arena"). Each test of the program is forked and judged
 * by its exit status and signal, as Criterion does; the functions that its macros call are defined
 * here and take the place of the library's. Tests and their sources stay as they are. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum verdict { PASSED = 0, FAILED = 1, SKIPPED = 77 };

/* The test that runs in this process. */
static const struct criterion_test_extra_data *current;
static void *parameter;
static enum verdict verdict;
static jmp_buf escape;

/* Tests and suites register themselves in these sections; a program may have no suite. */
extern struct criterion_test *__start_cr_tst[], *__stop_cr_tst[];
extern struct criterion_suite *__start_cr_sts[] __attribute__((weak));
extern struct criterion_suite *__stop_cr_sts[] __attribute__((weak));

/* ---- what the macros of Criterion call ---- */

void criterion_internal_test_setup(void)
{
    if (current->init) current->init();
}

void criterion_internal_test_main(void (*fn)(void))
{
    if (setjmp(escape)) return;
    if (current->kind_ == CR_TEST_PARAMETERIZED)
        ((void (*)(void *))fn)(parameter);
    else
        fn();
}

void criterion_internal_test_teardown(void)
{
    if (current->fini) current->fini();
}

void criterion_send_assert(struct criterion_assert_stats *assertion)
{
    if (assertion->passed) return;
    verdict = FAILED;
    fprintf(stderr, "%s:%u: assertion failed: %s\n", assertion->file, assertion->line,
            assertion->message);
}

void cri_asserts_passed_incr(void)
{
}

void criterion_continue_test(void)
{
}

void criterion_abort_test(void)
{
    verdict = FAILED;
    longjmp(escape, 1);
}

void criterion_skip_test(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    verdict = SKIPPED;
    longjmp(escape, 1);
}

/* ---- the runner ---- */

/* What the test says, else what its suite says. */
static struct criterion_test_extra_data settings_of(const struct criterion_test *test)
{
    struct criterion_test_extra_data settings = *test->data;
    for (struct criterion_suite **suite = __start_cr_sts; suite < __stop_cr_sts; suite++) {
        const struct criterion_test_extra_data *common = (*suite)->data;
        if (strcmp((*suite)->name, test->category) != 0 || !common) continue;
        if (!settings.init) settings.init = common->init;
        if (!settings.fini) settings.fini = common->fini;
        if (!settings.signal) settings.signal = common->signal;
        if (!settings.exit_code) settings.exit_code = common->exit_code;
        settings.disabled |= common->disabled;
    }
    return settings;
}

static enum verdict run(const struct criterion_test *test)
{
    struct criterion_test_extra_data settings = settings_of(test);
    if (settings.disabled) return SKIPPED;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        current = &settings;
        test->test();
        exit((int)verdict);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return FAILED;
    if (settings.signal)
        return WIFSIGNALED(status) && WTERMSIG(status) == settings.signal ? PASSED : FAILED;
    if (!WIFEXITED(status)) {
        fprintf(stderr, "%s/%s: ended by signal %d\n", test->category, test->name,
                WTERMSIG(status));
        return FAILED;
    }
    if (settings.exit_code) return WEXITSTATUS(status) == settings.exit_code ? PASSED : FAILED;
    return WEXITSTATUS(status) == SKIPPED ? SKIPPED : WEXITSTATUS(status) == 0 ? PASSED : FAILED;
}

int main(void)
{
    unsigned tested = 0, failed = 0;
    for (struct criterion_test **test = __start_cr_tst; test < __stop_cr_tst; test++) {
        struct criterion_test_params params = {.length = 1};
        if (*test && (*test)->data->kind_ == CR_TEST_PARAMETERIZED)
            params = (*test)->data->param_();
        for (size_t i = 0; *test && i < params.length; i++) {
            if (params.params) parameter = (char *)params.params + i * params.size;
            enum verdict result = run(*test);
            tested += result != SKIPPED;
            failed += result == FAILED;
            if (result == FAILED)
                fprintf(stderr, "[FAIL] %s/%s #%zu\n", (*test)->category, (*test)->name, i);
        }
        if (params.cleanup) params.cleanup(&params);
    }
    fprintf(stderr, "[====] Synthesis: Tested: %u | Passing: %u | Failing: %u\n", tested,
            tested - failed, failed);
    return failed ? 1 : 0;
}
