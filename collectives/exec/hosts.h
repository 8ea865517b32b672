/* SPDX-License-Identifier: Apache-2.0
 * The other hosts of a run: each has an agent, this program again, that starts the ranks there and
 * speaks with the launcher over one connection.
 *
 *     launcher --- job, meeting, abort, end ---------> agent ---> its ranks
 *              <-- messages, errors, ends, statuses --
 *
 * The launcher starts agents over a remote shell, or by itself where a name is this machine. An
 * agent gets the run's token on its standard input, never on a command line. */
#pragma once

#include "exec/courier.h"
#include "exec/launch.h"

/* One entry of --hosts. */
struct host_entry {
    char *name;
    uint32_t ranks;
    bool counted; /* "name:4", not "name" */
};

struct host_list {
    struct host_entry *entries;
    uint32_t count;
    uint32_t ranks; /* of all */
};

/* Reads "a:4,b,[::1]:2"; a name without a count has one rank. A sentence for every entry that is
 * none; host_list_release frees. */
int host_list_read(const char *text, struct host_list *list, struct err *err);
void host_list_release(struct host_list *list);

struct hosts_spec {
    const struct host_list *list; /* the first entry is this machine */
    const char *rsh;   /* words of the remote shell; NULL: ssh, or none for this machine */
    const char *iface; /* as net_spec's */
    double timeout_s;  /* for an agent to come */
};

struct hosts;

/* Starts the agents and waits until all have come. Refuses versions other than its own. NULL with
 * the sentence, and nothing left running. */
struct hosts *hosts_open(const struct hosts_spec *spec, struct err *err);

/* Sends the agents home, with the exit status of the run, and waits for those that were started
 * from here. Accepts NULL. */
void hosts_close(struct hosts *hosts, int status);

/* For copies that somebody else has started (foreign.h): hosts of `size` ranks that are not known
 * yet; then each copy as it comes (1, or -1 with the sentence), its rank, the first rank of its
 * host (UINT64_MAX: it does not know) and the hash of the command line that it must have; then,
 * when all have come, which hosts there are. */
struct hosts *hosts_of_copies(uint32_t size, const uint8_t *token);
int hosts_add_copy(struct hosts *hosts, int fd, uint32_t rank, uint64_t first, uint64_t words,
                   struct err *err);
int hosts_settle(struct hosts *hosts, struct err *err);

uint32_t hosts_count(const struct hosts *hosts); /* with this one */
const uint32_t *hosts_ranks(const struct hosts *hosts);
const uint8_t *hosts_token(const struct hosts *hosts);
const char *hosts_name(const struct hosts *hosts, uint32_t host);

/* The connection to an agent, 1 <= host < count. */
struct courier *hosts_courier(struct hosts *hosts, uint32_t host);

/* Hosts that are one machine (network namespaces, containers, one name twice) share its cores:
 * ranks of the run on the machine of `host`, and how many of them are of hosts before it. */
uint32_t hosts_machine_ranks(const struct hosts *hosts, uint32_t host, uint32_t *before);

/* Files that a process of that host may have open; 0: not known. */
uint64_t hosts_files(const struct hosts *hosts, uint32_t host);

/* Sentences the user has to see: hosts of one name, ..; freed with the hosts. */
size_t hosts_warnings(const struct hosts *hosts, char *const **sentences);

/* Kinds of frames; courier_head.rank is the rank meant. */
enum host_frame {
    FRAME_HELLO,   /* agent: struct agent_hello */
    FRAME_JOB,     /* launcher: a launch; see job_pack */
    FRAME_MEETING, /* launcher: where host 0 listens */
    FRAME_ABORT,   /* launcher: end the ranks */
    FRAME_END,     /* launcher: no more launches */
    FRAME_MESSAGE, /* agent: of a rank, for on_message */
    FRAME_ERROR,   /* agent: a rank's own sentence; code: enum err_code */
    FRAME_FAILED,  /* agent: what happened to a rank, or to all of them (NO_RANK); a verb */
    FRAME_STATUS,  /* agent: struct status_news of each of its ranks */
    FRAME_DONE,    /* agent: none of its ranks is left */
};

/* What an agent knows of a rank. */
struct status_news {
    uint64_t tick, beat, wait_pass;
    uint32_t waiting, wait_step, wait_kind, done;
    int32_t wait_peer, pid;
    char letter; /* of the thread's state in /proc */
    char what[128];
};
void status_news_of(struct world *world, uint32_t rank, struct status_news *news);
void status_news_take(struct world *world, uint32_t rank, const struct status_news *news);

/* A launch as an agent gets it. `command`: the words of what starts its ranks, in place of
 * spec->wrapper; NULL: the agent does. */
void job_pack(struct pack *pack, const struct launch_spec *spec, uint32_t host,
              char *const *command);

/* The command `collbench agent HOST@WHERE`: comes to the launcher at WHERE as host number HOST, and
 * runs what it asks for until it says that this was all. The exit status. */
int agent_main(const char *call);
