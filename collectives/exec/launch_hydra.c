/* SPDX-License-Identifier: Apache-2.0
 * Ranks under one mpiexec over several hosts. It is Hydra's, told to leave the start of its proxies
 * to somebody else ("-launcher manual"): it prints a command for each host, in their order,
 *
 *     HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --control-port 10.0.0.1:37337 ... --proxy-id 0
 *     HYDRA_LAUNCH_END
 *
 * and each host's launcher starts its own: this one here, agents on the others (job_pack). A proxy
 * starts the ranks of its host, which find that host's launcher as ranks of any wrapper do, since a
 * proxy hands on its environment; so the one of mpiexec, which covers it, must not have those
 * variables. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/blame.h"
#include "exec/launch_run.h"

enum { LOOK_MS = 5 }; /* between two looks at what mpiexec has printed */

static const char command_sign[] = "HYDRA_LAUNCH: ", end_sign[] = "HYDRA_LAUNCH_END\n";

/* ---- the command line of mpiexec ---- */

/* The address under which the other hosts reach this one, for they have; freed by the caller. */
static char *own_address(const struct run *run, struct err *err)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    char text[NI_MAXHOST];
    int fd = hosts_courier(run->spec->hosts, 1)->fd;
    if (!getsockname(fd, (struct sockaddr *)&own, &bytes) &&
        !getnameinfo((struct sockaddr *)&own, bytes, text, sizeof text, NULL, 0, NI_NUMERICHOST))
        return mem_strdup(text);
    err_add(err, ERR_FAILED, "this host's address cannot be found out");
    return NULL;
}

/* Hydra tells hosts apart by their names, and takes what follows a colon for a number; it looks no
 * name up. So a second host of one name, and an address with colons, get another one. */
static char *label_of(const struct hosts *hosts, uint32_t host)
{
    const char *name = hosts_name(hosts, host);
    bool good = !strchr(name, ':');
    for (uint32_t h = 0; h < host && good; h++)
        good = strcmp(hosts_name(hosts, h), name) != 0;
    return good ? mem_strdup(name) : mem_printf("host%u", host);
}

/* "a:2,b:4"; freed by the caller. */
static char *host_table(const struct hosts *hosts)
{
    char *text = mem_strdup("");
    for (uint32_t h = 0; h < hosts_count(hosts); h++) {
        char *label = label_of(hosts, h);
        char *longer = mem_printf("%s%s%s:%u", text, h ? "," : "", label, hosts_ranks(hosts)[h]);
        free(label);
        free(text);
        text = longer;
    }
    return text;
}

/* ---- the commands it prints ---- */

/* The words of a line that ends at `end`, NULL-terminated. */
static char **split(const char *line, const char *end)
{
    char **words = NULL;
    size_t count = 0, cap = 0;
    for (line += strspn(line, " "); line < end; line += strspn(line, " ")) {
        size_t length = strcspn(line, " \n");
        MEM_GROW(words, count, cap);
        words[count++] = mem_printf("%.*s", (int)length, line);
        line += length;
    }
    MEM_GROW(words, count, cap);
    words[count] = NULL;
    return words;
}

/* Takes the commands of all hosts from what was printed. */
static int read_commands(struct run *run, const char *text, struct err *err)
{
    uint32_t nhosts = run->nremotes + 1, count = 0;
    run->commands = mem_calloc(nhosts, sizeof *run->commands);
    for (const char *at = text; (at = strstr(at, command_sign)); count++) {
        at += sizeof command_sign - 1;
        if (count < nhosts) run->commands[count] = split(at, at + strcspn(at, "\n"));
    }
    if (count == nhosts) return 0;
    err_add(err, ERR_FAILED, "%s says how to start ranks on %u hosts, there are %u",
            run->spec->wrapper[0], count, nhosts);
    return -1;
}

/* What mpiexec has printed so far; freed by the caller. */
static char *printed(const struct run *run)
{
    struct stat file;
    size_t bytes = fstat(run->chatter, &file) == 0 ? (size_t)file.st_size : 0;
    char *text = mem_calloc(bytes + 1, 1);
    ssize_t got = pread(run->chatter, text, bytes, 0);
    text[got > 0 ? got : 0] = '\0';
    return text;
}

static void on_look(uv_timer_t *timer)
{
    struct run *run = timer->data;
    struct err err = ERR_INIT;
    char *text = printed(run);
    const char *end = strstr(text, end_sign);
    if (end) {
        uv_timer_stop(timer);
        run->chatter_from = end + sizeof end_sign - 1 - text;
    }
    bool starts = end && run->phase == RUNNING;
    if (starts && (read_commands(run, text, &err) ||
                   wrapper_start(&run->procs[0], run->commands[0], &err) || far_start(run, &err)))
        run_fail(run, NO_RANK, NULL, mem_strdup(err.text));
    free(text);
    err_release(&err);
}

/* ---- all of it ---- */

int hydra_start(struct run *run, struct err *err)
{
    char *address = own_address(run, err), *table = host_table(run->spec->hosts);
    int rc = -1;
    if (address) {
        char *const more[] = {mem_strdup("-localhost"), address, mem_strdup("-hosts"), table, NULL};
        rc = wrapper_spawn(&run->procs[1], more, err);
        free(more[0]);
        free(more[2]);
    }
    free(address);
    free(table);
    if (rc) return -1;
    uv_timer_init(run->loop, &run->look);
    run->look.data = run;
    uv_timer_start(&run->look, on_look, LOOK_MS, LOOK_MS);
    return 0;
}

void hydra_release(struct run *run)
{
    for (uint32_t h = 0; run->commands && h <= run->nremotes; h++) {
        for (char **word = run->commands[h]; word && *word; word++)
            free(*word);
        free(run->commands[h]);
    }
    free(run->commands);
}
