/* SPDX-License-Identifier: Apache-2.0
 * Reads faults of accelerators: see slow.h. */
#include "train/slow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"

/* A number or "*" behind a word. False: something else. */
static bool read_place(const char **text, const char *word, bool *all, uint64_t *number)
{
    size_t length = strlen(word);
    if (strncmp(*text, word, length) != 0) return false;
    *text += length;
    *all = **text == '*';
    size_t digits = *all ? 1 : strspn(*text, "0123456789");
    if (digits == 0 || digits > 18) return false;
    *number = *all ? 0 : strtoull(*text, NULL, 10);
    *text += digits;
    return true;
}

/* A fault of an accelerator, taken apart. */
struct place {
    bool host_given, all_hosts, all_gpus;
    uint64_t host, gpu;
    const char *value; /* behind "=" */
};

static bool read_gpu(const char *text, struct place *place)
{
    *place = (struct place){0};
    if (read_place(&text, "host", &place->all_hosts, &place->host)) {
        place->host_given = true;
        if (*text++ != '/') return false;
    }
    if (!read_place(&text, "gpu", &place->all_gpus, &place->gpu) || *text != '=') return false;
    place->value = text + 1;
    return true;
}

static void add_text(struct opts_list *list, char *text)
{
    list->items = mem_realloc(list->items, list->count + 1, sizeof *list->items);
    list->items[list->count++] = text;
}

void slow_sort(struct slow_faults *faults, const struct opts_list *texts)
{
    *faults = (struct slow_faults){0};
    for (size_t i = 0; i < texts->count; i++) {
        struct place place;
        char *text = texts->items[i];
        bool link = strncmp(text, "link:", 5) == 0;
        bool gpu = !link && read_gpu(text, &place);
        add_text(gpu ? &faults->gpus : &faults->links, link ? text + 5 : text);
    }
}

void slow_release(struct slow_faults *faults)
{
    free(faults->links.items);
    free(faults->gpus.items);
    *faults = (struct slow_faults){0};
}

/* ---- on a cluster ---- */

/* What is wrong with a place; 0, or -1 with the sentence. */
static int check_place(const char *text, const struct place *p, const struct topo *topo,
                       struct err *err)
{
    uint64_t gpus = topo_gpus(topo);
    if (p->host_given && p->host >= topo->hosts)
        return err_add(err, ERR_USAGE,
                       "--fault %s: there is no host %" PRIu64 "; hosts are 0..%" PRIu64, text,
                       p->host, topo->hosts - 1);
    if (p->host_given && p->gpu >= topo->per_host)
        return err_add(err, ERR_USAGE,
                       "--fault %s: a host has no accelerator %" PRIu64 "; they are 0..%" PRIu64,
                       text, p->gpu, topo->per_host - 1);
    if (!p->host_given && p->gpu >= gpus)
        return err_add(err, ERR_USAGE,
                       "--fault %s: there is no accelerator %" PRIu64 "; they are 0..%" PRIu64,
                       text, p->gpu, gpus - 1);
    return 0;
}

static const double least_speed = .01;

static int read_speed(const char *text, const char *value, double *speed, struct err *err)
{
    char *where = mem_printf("--fault %s", text);
    int bad = units_read_double(where, value, speed, err);
    if (!bad && !(*speed >= least_speed && *speed <= 1))
        bad = err_add(err, ERR_USAGE,
                      "%s: a speed of %g; an accelerator runs at %g..1 of its own; nearest: %g",
                      where, *speed, least_speed, *speed > 1 ? 1 : least_speed);
    free(where);
    return bad;
}

static int read_one(const char *text, const struct topo *topo, double *speeds, struct err *err)
{
    struct place p;
    double speed = 1;
    read_gpu(text, &p);
    if (check_place(text, &p, topo, err) | read_speed(text, p.value, &speed, err)) return -1;
    uint64_t gpus = topo_gpus(topo);
    for (uint64_t i = 0; i < gpus; i++) {
        uint64_t host = i / topo->per_host, gpu = p.host_given ? i % topo->per_host : i;
        bool named =
            (p.all_gpus || gpu == p.gpu) && (!p.host_given || p.all_hosts || host == p.host);
        if (!named) continue;
        if (speeds[i] > 0)
            return err_add(err, ERR_USAGE,
                           "--fault %s: accelerator %" PRIu64 " has a speed already, %g; here %g",
                           text, i, speeds[i], speed);
        speeds[i] = speed;
    }
    return 0;
}

int slow_read(const struct opts_list *gpus, const struct topo *topo, struct event_slow **slow,
              size_t *nslow, struct err *err)
{
    *slow = NULL;
    *nslow = 0;
    if (gpus->count == 0) return 0;
    uint64_t n = topo_gpus(topo);
    double *speeds = mem_calloc(n, sizeof *speeds);
    int bad = 0;
    for (size_t i = 0; i < gpus->count; i++) {
        bad |= read_one(gpus->items[i], topo, speeds, err);
    }
    size_t cap = 0;
    for (uint64_t i = 0; i < n && !bad; i++) {
        if (speeds[i] <= 0 || speeds[i] >= 1) continue;
        MEM_GROW(*slow, *nslow, cap);
        (*slow)[(*nslow)++] = (struct event_slow){.gpu = (uint32_t)i, .speed = speeds[i]};
    }
    free(speeds);
    return bad;
}
