/* SPDX-License-Identifier: Apache-2.0
 * Reads the limits of control groups. /proc/self/cgroup names this process's group per hierarchy,
 * /proc/self/mountinfo says where the hierarchy (or the part of it that can be seen here) is
 * mounted; every directory from the group up to the mount may hold a limit. See cgroups(7) and
 * the kernel's cgroup-v2.rst. */
#include "exec/cgroup.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

char *file_text(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) return NULL;
    size_t used = 0, cap = 4096;
    char *text = mem_realloc(NULL, cap, 1);
    for (size_t got; (got = fread(text + used, 1, cap - used - 1, file)) > 0;) {
        used += got;
        if (cap - used == 1) text = mem_realloc(text, cap *= 2, 1);
    }
    bool bad = ferror(file) != 0;
    fclose(file);
    if (bad) {
        free(text);
        return NULL;
    }
    text[used] = '\0';
    return text;
}

uint64_t text_field(const char *text, const char *key, uint64_t missing)
{
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, key, length)) {
            uint64_t value;
            if (line[length] == ' ' && sscanf(line + length, "%" SCNu64, &value) == 1) return value;
        }
    }
    return missing;
}

/* Whether a comma-separated list holds the word. */
static bool list_has(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        bool starts = at == list || at[-1] == ',';
        if (starts && (at[length] == ',' || at[length] == '\0')) return true;
    }
    return false;
}

/* Undoes the octal escapes (\040 for a space) of mountinfo, in place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        unsigned code;
        if (*from == '\\' && sscanf(from + 1, "%3o", &code) == 1) {
            *to = (char)code;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* One mounted hierarchy. Strings point into the caller's text. */
struct mount {
    char *root;  /* the part of the hierarchy that is mounted */
    char *point; /* where */
};

/* Reads one line of mountinfo: "36 35 98:0 ROOT POINT options.. - TYPE SOURCE SUPER". True when it
 * mounts the hierarchy of `controller` (v1), or the unified one (`controller` NULL). */
static bool mount_parse(char *line, const char *controller, struct mount *mount)
{
    char *tail = strstr(line, " - ");
    if (!tail) return false;
    *tail = '\0';
    char *field[5], *save = NULL;
    for (int i = 0; i < 5; i++) {
        field[i] = strtok_r(i ? NULL : line, " ", &save);
        if (!field[i]) return false;
    }
    char *type = strtok_r(tail + 3, " ", &save);
    char *source = type ? strtok_r(NULL, " ", &save) : NULL;
    char *super = source ? strtok_r(NULL, " ", &save) : NULL;
    if (!super || strcmp(type, controller ? "cgroup" : "cgroup2") != 0) return false;
    if (controller && !list_has(super, controller)) return false;
    unescape(field[3]);
    unescape(field[4]);
    *mount = (struct mount){field[3], field[4]};
    return true;
}

/* The rest of `path` below `top`; NULL when it does not lie there. */
static const char *below(const char *path, const char *top)
{
    size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
    if (strncmp(path, top, length) != 0 || (path[length] && path[length] != '/')) return NULL;
    return strstr(path, "/..") ? NULL : path + length;
}

typedef void visit_fn(void *ctx, const char *dir, bool v2);

/* Visits the group `path` of a hierarchy and every group above it, as far as they are mounted.
 * A path that the mount does not show is looked for at the mount itself: that is what a namespace
 * makes of the own group. */
static void visit_up(const char *root, const char *path, const char *controller, visit_fn *visit,
                     void *ctx)
{
    char *name = mem_printf("%s/proc/self/mountinfo", root);
    char *text = file_text(name), *save = NULL;
    char *dir = NULL;
    size_t top = 0;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save)) {
        struct mount mount;
        if (!mount_parse(line, controller, &mount)) continue;
        const char *rest = below(path, mount.root);
        if (dir && !rest) continue; /* one that shows the path is better */
        free(dir);
        top = strlen(root) + strlen(mount.point);
        dir = mem_printf("%s%s%s", root, mount.point, rest ? rest : "");
        if (rest) break;
    }
    while (dir) {
        visit(ctx, dir, !controller);
        char *slash = strrchr(dir, '/');
        if (!slash || slash < dir + top) break;
        *slash = '\0';
    }
    free(dir);
    free(text);
    free(name);
}

/* Visits every group that can limit `controller` for this process. */
static void visit_groups(const char *root, const char *controller, visit_fn *visit, void *ctx)
{
    char *name = mem_printf("%s/proc/self/cgroup", root);
    char *text = file_text(name), *save = NULL;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':'); /* ID:CONTROLLERS:PATH */
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        list++;
        if (!*list)
            visit_up(root, path, NULL, visit, ctx);
        else if (list_has(list, controller))
            visit_up(root, path, controller, visit, ctx);
    }
    free(text);
    free(name);
}

/* DIR/NAME as text, or NULL. */
static char *group_text(const char *dir, const char *name)
{
    char *path = mem_printf("%s/%s", dir, name);
    char *text = file_text(path);
    free(path);
    return text;
}

/* DIR/NAME as a number; `missing` when it is absent or a word ("max"). */
static uint64_t group_number(const char *dir, const char *name, uint64_t missing)
{
    char *text = group_text(dir, name);
    uint64_t value;
    if (!text || sscanf(text, "%" SCNu64, &value) != 1) value = missing;
    free(text);
    return value;
}

static void visit_memory(void *ctx, const char *dir, bool v2)
{
    static const struct {
        const char *limit, *throttle, *usage, *cache;
    } names[2] = {
        {"memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_inactive_file"},
        {"memory.max", "memory.high", "memory.current", "inactive_file"},
    };
    uint64_t limit = group_number(dir, names[v2].limit, UINT64_MAX);
    if (names[v2].throttle) {
        uint64_t high = group_number(dir, names[v2].throttle, UINT64_MAX);
        if (high < limit) limit = high;
    }
    if (limit == UINT64_MAX) return;
    uint64_t usage = group_number(dir, names[v2].usage, 0);
    char *stat = group_text(dir, "memory.stat");
    uint64_t cache = stat ? text_field(stat, names[v2].cache, 0) : 0;
    free(stat);
    uint64_t hard = usage > cache ? usage - cache : 0;
    uint64_t left = limit > hard ? limit - hard : 0;
    uint64_t *least = ctx;
    if (left < *least) *least = left;
}

size_t cgroup_memory_free(const char *root)
{
    uint64_t least = SIZE_MAX;
    visit_groups(root, "memory", visit_memory, &least);
    return (size_t)least;
}

static void visit_cpu(void *ctx, const char *dir, bool v2)
{
    uint64_t quota = 0, period = 0;
    if (v2) {
        char *text = group_text(dir, "cpu.max"); /* "QUOTA PERIOD" or "max PERIOD" */
        if (text && sscanf(text, "%" SCNu64 " %" SCNu64, &quota, &period) != 2) period = 0;
        free(text);
    } else { /* no quota is written as -1 */
        quota = group_number(dir, "cpu.cfs_quota_us", UINT64_MAX);
        period = group_number(dir, "cpu.cfs_period_us", 0);
    }
    if (!period) return;
    uint64_t cpus = quota / period;
    uint32_t *least = ctx;
    if (cpus < *least) *least = cpus ? (uint32_t)cpus : 1;
}

uint32_t cgroup_cpus(const char *root)
{
    uint32_t least = UINT32_MAX;
    visit_groups(root, "cpu", visit_cpu, &least);
    return least;
}
