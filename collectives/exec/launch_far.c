/* SPDX-License-Identifier: Apache-2.0
 * A run over several hosts: the launcher's connections to the agents of the others, and an agent's
 * connection to its launcher. See hosts.h for what is said over them, launch.c for the run. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/blame.h"
#include "exec/launch_run.h"

/* ---- sending ---- */

void far_send_up(struct run *run, enum host_frame kind, uint32_t rank, uint32_t code,
                 const void *data, size_t bytes)
{
    struct courier_head head = {.kind = kind, .rank = rank, .code = code, .bytes = bytes};
    courier_send(run->spec->uplink, &head, data, FAR_PATIENCE_MS); /* if it is lost, see on_up */
}

void far_send_statuses(struct run *run)
{
    struct status_news *news = mem_calloc(run->nlocal, sizeof *news);
    for (uint32_t i = 0; i < run->nlocal; i++)
        status_news_of(run->spec->world, run->first + i, &news[i]);
    far_send_up(run, FRAME_STATUS, run->first, 0, news, run->nlocal * sizeof *news);
    free(news);
}

void far_send_down(struct run *run, enum host_frame kind, uint32_t rank, const void *data,
                   size_t bytes)
{
    struct courier_head head = {.kind = kind, .rank = rank, .bytes = bytes};
    for (uint32_t i = 0; i < run->nremotes; i++) {
        struct remote *remote = &run->remotes[i];
        if (!remote->ended) courier_send(remote->courier, &head, data, FAR_PATIENCE_MS);
    }
}

/* ---- what comes from other hosts ---- */

static void remote_message(struct remote *remote, const struct courier_frame *frame)
{
    run_message(remote->run, frame->head.rank, frame->data, frame->head.bytes);
}

static void remote_error(struct remote *remote, const struct courier_frame *frame)
{
    struct run *run = remote->run;
    struct record record = {.head = {CONTROL_ERROR, frame->head.rank, frame->head.code},
                            .bytes = frame->head.bytes < MESSAGE_BYTES ? frame->head.bytes
                                                                       : MESSAGE_BYTES};
    memcpy(record.data, frame->data, record.bytes);
    if (frame->head.rank != NO_RANK) {
        run_own_error(run, NULL, &record);
        return;
    }
    err_add(&run->own, (enum err_code)frame->head.code, "host %s: %.*s",
            hosts_name(run->spec->hosts, remote->host), (int)record.bytes, record.data);
    run_fail(run, NO_RANK, NULL, mem_strdup("failed"));
}

static void remote_failed(struct remote *remote, const struct courier_frame *frame)
{
    struct run *run = remote->run;
    if (run->phase == RUNNING) run->place = remote->host;
    run_fail(run, frame->head.rank, NULL,
             mem_printf("%.*s", (int)frame->head.bytes, (const char *)frame->data));
}

static void remote_status(struct remote *remote, const struct courier_frame *frame)
{
    struct world *world = remote->run->spec->world;
    uint32_t first = world_first(world, remote->host),
             count = world_host_ranks(world, remote->host);
    struct status_news news;
    for (uint32_t i = 0; i < count && (i + 1) * sizeof news <= frame->head.bytes; i++) {
        memcpy(&news, frame->data + i * sizeof news, sizeof news);
        status_news_take(world, first + i, &news);
    }
}

static void remote_end(struct remote *remote)
{
    if (remote->ended) return;
    remote->ended = true;
    uv_poll_stop(&remote->poll);
    run_less(remote->run);
}

static void remote_done(struct remote *remote, const struct courier_frame *frame)
{
    struct run *run = remote->run;
    struct world *world = run->spec->world;
    (void)frame;
    for (uint32_t i = 0; i < world_host_ranks(world, remote->host); i++) {
        if (run->phase != RUNNING || run_rank_done(run, world_first(world, remote->host) + i))
            continue;
        run->place = remote->host;
        run_fail(run, NO_RANK, NULL, mem_strdup("ended before its work was done"));
    }
    remote_end(remote);
}

static void on_remote(uv_poll_t *poll, int status, int events)
{
    static void (*const take[])(struct remote *, const struct courier_frame *) = {
        [FRAME_MESSAGE] = remote_message, [FRAME_ERROR] = remote_error,
        [FRAME_FAILED] = remote_failed,   [FRAME_STATUS] = remote_status,
        [FRAME_DONE] = remote_done,
    };
    struct remote *remote = poll->data;
    struct run *run = remote->run;
    struct courier_frame frame;
    int got = 0;
    (void)status, (void)events;
    while (!remote->ended && (got = courier_recv(remote->courier, &frame)) > 0) {
        remote->heard_ms = run_now(run);
        const struct courier_head *head = &frame.head;
        bool known = head->kind < sizeof take / sizeof *take && take[head->kind];
        bool own =
            head->rank == NO_RANK || head->kind == FRAME_DONE ||
            (head->rank < run->nranks && world_host(run->spec->world, head->rank) == remote->host);
        if (known && own) take[head->kind](remote, &frame);
        if (head->kind == FRAME_MESSAGE || head->kind == FRAME_STATUS) continue;
        run->moved_ms = run_now(run);
    }
    if (got >= 0) return;
    if (run->phase == RUNNING) run->place = remote->host;
    run_fail(run, NO_RANK, NULL,
             mem_printf("is lost: its connection says \"%s\"", strerror(errno)));
    remote_end(remote);
}

struct remote *far_silent(struct run *run, uint64_t since_ms)
{
    for (uint32_t i = 0; i < run->nremotes; i++) {
        struct remote *remote = &run->remotes[i];
        if (!remote->ended && remote->heard_ms < since_ms) return remote;
    }
    return NULL;
}

/* ---- what an agent's launcher wants ---- */

static void on_up(uv_poll_t *poll, int status, int events)
{
    struct run *run = poll->data;
    struct courier_frame frame;
    int got;
    (void)status, (void)events;
    while ((got = courier_recv(run->spec->uplink, &frame)) > 0) {
        if (frame.head.kind == FRAME_MEETING) {
            char *where = mem_printf("%.*s", (int)frame.head.bytes, (const char *)frame.data);
            world_set_meeting(run->spec->world, where);
            free(where);
        } else if (frame.head.kind == FRAME_ABORT) {
            struct proc *proc = run_proc_of(run, frame.head.rank);
            run->obeys = true;
            run_fail(run, NO_RANK, NULL, mem_strdup("was told to end"));
            if (proc) run_kill_proc(proc); /* it would not notice */
        }
    }
    if (got == 0) return;
    uv_poll_stop(poll);
    run->obeys = true; /* nobody is there to be told anything */
    run_fail(run, NO_RANK, NULL, mem_strdup("lost its launcher"));
}

int far_start(struct run *run, struct err *err)
{
    struct hosts *hosts = run->spec->hosts;
    for (uint32_t i = 0; i < run->nremotes; i++) {
        struct remote *remote = &run->remotes[i];
        struct pack pack = {0};
        job_pack(&pack, run->spec, remote->host,
                 run->commands ? run->commands[remote->host] : NULL);
        struct courier_head head = {.kind = FRAME_JOB, .bytes = pack.used};
        int rc = courier_send(remote->courier, &head, pack.data, FAR_PATIENCE_MS) ? -errno : 0;
        pack_release(&pack);
        if (!rc) rc = uv_poll_init(run->loop, &remote->poll, remote->courier->fd);
        remote->poll.data = remote;
        if (!rc) rc = uv_poll_start(&remote->poll, UV_READABLE, on_remote);
        if (rc)
            return err_add(err, ERR_FAILED, "host %s cannot be reached: %s",
                           hosts_name(hosts, remote->host), uv_strerror(rc));
        remote->ended = false;
        remote->heard_ms = run_now(run);
        run->nalive++;
    }
    return 0;
}

int far_listen_up(struct run *run, struct err *err)
{
    int rc = uv_poll_init(run->loop, &run->up, run->spec->uplink->fd);
    run->up.data = run;
    if (!rc) rc = uv_poll_start(&run->up, UV_READABLE, on_up);
    if (rc) return err_add(err, ERR_FAILED, "cannot listen to the launcher: %s", uv_strerror(rc));
    on_up(&run->up, 0, UV_READABLE); /* frames that came behind the job */
    return 0;
}

/* ---- life ---- */

void far_open(struct run *run)
{
    run->nremotes = run->spec->hosts ? hosts_count(run->spec->hosts) - 1 : 0;
    run->remotes = mem_calloc(run->nremotes + 1, sizeof *run->remotes);
    for (uint32_t i = 0; i < run->nremotes; i++) {
        run->remotes[i] = (struct remote){.run = run,
                                          .courier = hosts_courier(run->spec->hosts, i + 1),
                                          .host = i + 1,
                                          .ended = true};
    }
}

void far_close(struct run *run, struct err *err)
{
    for (uint32_t i = 0; i < run->nremotes; i++) {
        if (run->remotes[i].ended) continue;
        err_add(err, ERR_FAILED, "host %s did not end its ranks",
                hosts_name(run->spec->hosts, run->remotes[i].host));
    }
    free(run->remotes);
}
