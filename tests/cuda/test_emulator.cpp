/* SPDX-License-Identifier: Apache-2.0
 * Tests of the emulation itself, and of the plug-ins' tables. Each test runs in a process of its
 * own, with its own settings; some must die, with the sentence that says why.
 *
 *     test_emulator EMULATED_PLUGIN [REAL_PLUGIN [NAME]] */
#include "test_emulator.h"

#include <csignal>
#include <cstring>
#include <ctime>
#include <string>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

const char *emulated_plugin, *real_plugin;

void fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    exit(1);
}

void ok(const char *file, int line, const char *what, int error)
{
    if (!error) return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cudaGetErrorName((cudaError_t)error));
    exit(1);
}

const struct gpu *opened(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(__FILE__, __LINE__, dlerror());
    auto plugin = reinterpret_cast<const struct gpu *(*)(void)>(dlsym(library, "gpu_plugin"));
    CHECK(plugin);
    return plugin();
}

#ifdef __SANITIZE_THREAD__
/* Each process would sleep for a second at its end. */
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options()
{
    return "atexit_sleep_ms=0";
}
#endif

static void run_child(const test &test, FILE *output)
{
    dup2(fileno(output), STDERR_FILENO);
    for (const char *setting : test.settings)
        putenv(const_cast<char *>(setting));
    test.run();
    exit(0);
}

static double seconds()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Whether the test did what it must. */
static bool run_test(const test &test)
{
    FILE *output = tmpfile();
    CHECK(output);
    double start_s = seconds();
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) run_child(test, output);
    int status = 0;
    waitpid(child, &status, 0);
    std::string said(1 << 20, '\0');
    rewind(output);
    said.resize(fread(&said[0], 1, said.size(), output));
    fclose(output);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) said += "SEGV";
    double took_s = seconds() - start_s;
    bool good = test.dies ? status != 0 && said.find(test.dies) != std::string::npos : status == 0;
    printf("%s  %5.2f s  %s\n", good ? "ok  " : "FAIL", took_s, test.name);
    if (!good) printf("status %d\n%s\n", status, said.c_str());
    fflush(stdout);
    return good;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_emulator EMULATED_PLUGIN [REAL_PLUGIN [NAME]]\n");
        return 2;
    }
    emulated_plugin = argv[1];
    real_plugin = argc > 2 && *argv[2] ? argv[2] : nullptr;
    unsigned failures = 0, run = 0;
    for (const std::vector<test> *tests : {&block_tests, &runtime_tests}) {
        for (const test &test : *tests) {
            if (argc > 3 && strcmp(argv[3], test.name)) continue;
            failures += !run_test(test);
            run++;
        }
    }
    printf("%u tests, %u failed\n", run, failures);
    return failures || !run ? 1 : 0;
}
