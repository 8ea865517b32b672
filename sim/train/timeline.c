/* SPDX-License-Identifier: Apache-2.0
 * Pictures of a step: see timeline.h. Rows are found by sorting the tasks by rank and lane; tasks
 * without a lane are dealt into rows of their own so that none overlap. */
#include "train/timeline.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/plot.h"

/* ---- rows and spans ---- */

/* A span on its way to a row: sorted by `key`, then by time. */
struct item {
    uint32_t rank, task;
    uint32_t order, lane; /* within the rank: its compute lane, the other lanes, what has none */
    ps_t start_ps, end_ps;
};

static int by_row(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    if (x->start_ps != y->start_ps) return x->start_ps < y->start_ps ? -1 : 1;
    return x->task < y->task ? -1 : x->task > y->task;
}

/* What of a task is in the step. */
static bool in_step(const struct event_result *r, uint32_t task, struct item *item)
{
    const struct task *t = &r->tasks->list[task];
    struct task_span span = r->tasks->spans[task];
    ps_t from = r->from_ps, to = r->from_ps + r->step_ps;
    ps_t start = span.start_ps > from ? span.start_ps : from;
    ps_t end = span.end_ps < to ? span.end_ps : to;
    if (t->kind == TASK_JOIN || end <= start) return false;
    enum { COMPUTE, LANE, NO_LANE };
    bool compute = t->lane == r->tasks->compute_lane[t->rank];
    *item = (struct item){.rank = t->rank,
                          .task = task,
                          .order = compute                ? COMPUTE
                                   : t->lane != TASK_NONE ? LANE
                                                          : NO_LANE + t->part,
                          .lane = t->lane,
                          .start_ps = start - from,
                          .end_ps = end - from};
    return true;
}

static const struct event_label *label_of(const struct timeline *timeline, uint32_t task)
{
    return &timeline->result->labels[timeline->result->tasks->list[task].label];
}

static const char *lane_name(const struct timeline *timeline, const struct item *item)
{
    const struct tasks *tasks = timeline->result->tasks;
    const struct task *t = &tasks->list[item->task];
    if (t->lane == tasks->compute_lane[t->rank]) return "compute";
    return t->kind == TASK_HOST ? "host" : step_part_key((enum step_part)t->part);
}

/* "dp", or "dp 2" where the rank has a row of that name. */
static char *row_name(const struct timeline *timeline, const struct item *item)
{
    const char *name = lane_name(timeline, item);
    size_t same = 0, length = strlen(name);
    for (size_t i = timeline->nrows; i-- > 0 && timeline->rows[i].rank == item->rank;) {
        const char *other = timeline->rows[i].name;
        same += strncmp(other, name, length) == 0 && (other[length] == 0 || other[length] == ' ');
    }
    return same ? mem_printf("%s %zu", name, same + 1) : mem_strdup(name);
}

/* The stage that most ranks have to themselves; those of one stage are numbered. */
static char *rank_name(const struct timeline *timeline, const struct item *item)
{
    const struct timeline_row *last = timeline->nrows ? &timeline->rows[timeline->nrows - 1] : NULL;
    if (last && last->rank == item->rank) return mem_strdup(last->rank_name);
    uint32_t stage = label_of(timeline, item->task)->stage, same = 0;
    if (stage == UINT32_MAX) return mem_printf("rank %" PRIu32, item->rank);
    char *name = mem_printf("stage %" PRIu32, stage);
    size_t length = strlen(name);
    for (size_t i = 0; i < timeline->nrows; i++) {
        const struct timeline_row *row = &timeline->rows[i];
        bool first = i == 0 || row[-1].rank != row->rank;
        same += first && strncmp(row->rank_name, name, length) == 0 &&
                !isdigit((unsigned char)row->rank_name[length]);
    }
    if (!same) return name;
    char *longer = mem_printf("%s, rank %" PRIu32, name, same + 1);
    free(name);
    return longer;
}

static size_t add_row(struct timeline *timeline, size_t *cap, const struct item *item)
{
    char *name = row_name(timeline, item), *rank = rank_name(timeline, item);
    MEM_GROW(timeline->rows, timeline->nrows, *cap);
    timeline->rows[timeline->nrows] = (struct timeline_row){
        .rank = item->rank, .lane = item->lane, .rank_name = rank, .name = name};
    return timeline->nrows++;
}

/* The row of a task without a lane: the first of its rank and part, from `first` on, that is free
 * when it starts. `ends`: by row. */
static size_t free_row(const struct timeline *timeline, size_t first, const ps_t *ends,
                       const struct item *item)
{
    size_t row = first;
    while (row < timeline->nrows && ends[row] > item->start_ps) {
        row++;
    }
    return row;
}

static void deal(struct timeline *timeline, const struct item *items, size_t count)
{
    size_t cap = 0, first = 0, ends_cap = 0;
    ps_t *ends = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct item *item = &items[i];
        bool other = i == 0 || item->rank != items[i - 1].rank ||
                     item->order != items[i - 1].order || item->lane != items[i - 1].lane;
        if (other) first = timeline->nrows;
        size_t row = free_row(timeline, first, ends, item);
        if (row == timeline->nrows) {
            add_row(timeline, &cap, item);
            MEM_GROW(ends, row, ends_cap);
        }
        ends[row] = item->end_ps;
        timeline->spans[i] =
            (struct timeline_span){(uint32_t)row, item->task, item->start_ps, item->end_ps};
    }
    free(ends);
}

static int by_place(const void *a, const void *b)
{
    const struct timeline_span *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->start_ps < y->start_ps ? -1 : x->start_ps > y->start_ps;
}

struct timeline *timeline_new(const struct event_result *result)
{
    assert(result->tasks);
    struct timeline *timeline = mem_calloc(1, sizeof *timeline);
    const struct tasks *tasks = result->tasks;
    struct item *items = mem_calloc(tasks->ntasks, sizeof *items);
    size_t count = 0;
    for (uint32_t i = 0; i < tasks->ntasks; i++) {
        count += in_step(result, i, &items[count]);
    }
    qsort(items, count, sizeof *items, by_row);
    timeline->result = result;
    timeline->spans = mem_calloc(count, sizeof *timeline->spans);
    timeline->nspans = count;
    deal(timeline, items, count);
    free(items);
    qsort(timeline->spans, count, sizeof *timeline->spans, by_place);
    for (size_t i = count; i-- > 0;) {
        struct timeline_row *row = &timeline->rows[timeline->spans[i].row];
        row->first = i;
        row->count++;
    }
    return timeline;
}

void timeline_free(struct timeline *timeline)
{
    if (!timeline) return;
    for (size_t i = 0; i < timeline->nrows; i++) {
        free(timeline->rows[i].name);
        free(timeline->rows[i].rank_name);
    }
    free(timeline->rows);
    free(timeline->spans);
    free(timeline);
}

/* ---- characters ---- */

static bool on_compute(const struct timeline *timeline, uint32_t task)
{
    const struct tasks *tasks = timeline->result->tasks;
    return tasks->list[task].lane == tasks->compute_lane[tasks->list[task].rank];
}

/* The letter that stands for a task: F, B, W of a pass on a compute lane, # of two passes at once,
 * else the first of its name, small. */
static char letter_of(const struct timeline *timeline, uint32_t task)
{
    static const char passes[NPASSES] = {
        [PASS_F] = 'F', [PASS_B] = 'B', [PASS_W] = 'W', [PASS_BW] = 'B'};
    const struct event_label *label = label_of(timeline, task);
    if (strchr(label->name, '&')) return '#';
    if (on_compute(timeline, task) && label->pass < NPASSES) return passes[label->pass];
    return (char)tolower((unsigned char)*label->name);
}

/* Writes a span's letter, number and dashes into columns `from` to `to`. */
static void mark(char *line, uint32_t from, uint32_t to, char letter, uint32_t micro)
{
    char number[16] = "";
    if (micro != UINT32_MAX) snprintf(number, sizeof number, "%" PRIu32, micro);
    size_t digits = strlen(number), room = to - from;
    memset(line + from, '-', room);
    line[from] = letter;
    if (digits < room) memcpy(line + from + 1, number, digits);
}

static void draw_row(const struct timeline *timeline, const struct timeline_row *row, char *line,
                     uint32_t columns)
{
    double column_ps = (double)timeline->result->step_ps / columns;
    memset(line, '.', columns);
    for (size_t i = row->first; i < row->first + row->count; i++) {
        const struct timeline_span *s = &timeline->spans[i];
        double start = (double)s->start_ps / column_ps, end = (double)s->end_ps / column_ps;
        uint32_t from = (uint32_t)(start + 0.5), to = (uint32_t)(end + 0.5);
        to = to < columns ? to : columns;
        if (from < to) {
            mark(line, from, to, letter_of(timeline, s->task), label_of(timeline, s->task)->micro);
        } else {
            uint32_t at = (uint32_t)start < columns ? (uint32_t)start : columns - 1;
            if (line[at] == '.') line[at] = ':';
        }
    }
}

/* The words that the letters stand for, each once: "F forward, B backward, r reduce". Freed by the
 * caller. */
static char *legend(const struct timeline *timeline)
{
    static const struct {
        char letter;
        const char *word;
    } fixed[] = {{'F', "forward"},
                 {'B', "backward"},
                 {'W', "gradient of weights"},
                 {'#', "forward and backward at once"}};
    char *text = mem_strdup("");
    for (int letter = 1; letter < 128; letter++) {
        char *words = NULL;
        for (size_t i = 0; i < timeline->nspans; i++) {
            uint32_t task = timeline->spans[i].task;
            if (letter_of(timeline, task) != letter) continue;
            const char *name = label_of(timeline, task)->name;
            int length = (int)strcspn(name, " 0123456789");
            for (size_t k = 0; k < sizeof fixed / sizeof *fixed; k++) {
                if (fixed[k].letter != letter) continue;
                name = fixed[k].word;
                length = (int)strlen(name);
            }
            char *word = mem_printf("%.*s", length, name);
            if (!words || !strstr(words, word)) {
                char *longer = mem_printf("%s%s%s", words ? words : "", words ? "/" : "", word);
                free(words);
                words = longer;
            }
            free(word);
        }
        if (!words) continue;
        char *longer = mem_printf("%s%s%c %s", text, *text ? ", " : "", letter, words);
        free(text);
        free(words);
        text = longer;
    }
    return text;
}

void timeline_draw(struct out *out, const struct timeline *timeline, uint32_t width)
{
    int names = 0;
    for (size_t i = 0; i < timeline->nrows; i++) {
        const struct timeline_row *row = &timeline->rows[i];
        int length = (int)(strlen(row->rank_name) + 1 + strlen(row->name));
        names = length > names ? length : names;
    }
    uint32_t taken = (uint32_t)names + 3, columns = width > taken + 20 ? width - taken : 20;
    char *line = mem_calloc((size_t)columns + 1, 1), *letters = legend(timeline);
    out_note(
        out,
        "timeline of a step, a column is %.4g ms: %s; then the micro-batch; - goes on, . idle, : "
        "busy for less than half a column",
        1e-9 * (double)timeline->result->step_ps / columns, letters);
    for (size_t i = 0; i < timeline->nrows; i++) {
        const struct timeline_row *row = &timeline->rows[i];
        char *name = mem_printf("%s %s", row->rank_name, row->name);
        draw_row(timeline, row, line, columns);
        out_note(out, "%-*s %s", names, name, line);
        free(name);
    }
    free(letters);
    free(line);
}

/* ---- the trace ---- */

/* "F 3", "reduce bucket 1" */
static char *task_name(const struct timeline *timeline, uint32_t task)
{
    const struct event_label *label = label_of(timeline, task);
    bool pass = label->pass < NPASSES && label->micro != UINT32_MAX;
    return pass ? mem_printf("%s %" PRIu32, label->name, label->micro) : mem_strdup(label->name);
}

static void put_us(FILE *to, const char *key, ps_t time_ps)
{
    fprintf(to, ",\"%s\":%" PRIu64 ".%06" PRIu64, key, time_ps / 1000000, time_ps % 1000000);
}

static void put_span(FILE *to, const struct timeline *timeline, const struct timeline_row *row,
                     size_t tid, const struct timeline_span *s)
{
    const struct task *t = &timeline->result->tasks->list[s->task];
    const struct event_label *label = label_of(timeline, s->task);
    char *name = task_name(timeline, s->task);
    const char *part = step_part_key((enum step_part)t->part);
    fprintf(to, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%" PRIu32 ",\"tid\":%zu",
            name, part, row->rank, tid);
    put_us(to, "ts", s->start_ps);
    put_us(to, "dur", s->end_ps - s->start_ps);
    fprintf(to, ",\"args\":{\"part\":\"%s\"", part);
    const struct {
        const char *key;
        uint32_t number;
    } numbers[] = {{"stage", label->stage}, {"chunk", label->chunk}, {"micro_batch", label->micro}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].number != UINT32_MAX)
            fprintf(to, ",\"%s\":%" PRIu32, numbers[i].key, numbers[i].number);
    }
    fputs("}}", to);
    free(name);
}

static void put_meta(FILE *to, const char *what, uint32_t pid, size_t tid, const char *name)
{
    fprintf(to,
            ",\n{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%" PRIu32
            ",\"tid\":%zu,\"args\":{\"name\":\"%s\"}}",
            what, pid, tid, name);
}

static void put_trace(FILE *to, const struct timeline *timeline, const char *what)
{
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"commsim " COMMSIM_VERSION
          "\",\"source\":\"simulated\",\"what\":\"",
          to);
    for (const char *c = what; *c; c++) {
        if (*c != '"' && *c != '\\' && (unsigned char)*c >= ' ') fputc(*c, to);
    }
    fprintf(to,
            "\"},\"traceEvents\":[\n{\"name\":\"step\",\"ph\":\"M\",\"pid\":0,\"args\":{\"step_ps\""
            ":%" PRIu64 "}}",
            timeline->result->step_ps);
    size_t tid = 0;
    for (size_t i = 0; i < timeline->nrows; i++) {
        const struct timeline_row *row = &timeline->rows[i];
        bool first = i == 0 || row[-1].rank != row->rank;
        tid = first ? 0 : tid + 1;
        if (first) put_meta(to, "process_name", row->rank, 0, row->rank_name);
        put_meta(to, "thread_name", row->rank, tid, row->name);
        for (size_t k = row->first; k < row->first + row->count; k++) {
            put_span(to, timeline, row, tid, &timeline->spans[k]);
        }
    }
    fputs("\n]}\n", to);
}

/* Refuses a file that is there. */
static int check_free(const char *option, const char *path, bool overwrite, struct err *err)
{
    if (overwrite || access(path, F_OK)) return 0;
    return err_add(err, ERR_USAGE,
                   "%s: %s exists and is kept; name another file or give --overwrite", option,
                   path);
}

int timeline_trace(const struct timeline *timeline, const char *what, const char *path,
                   bool overwrite, struct err *err)
{
    if (check_free("--trace", path, overwrite, err)) return -1;
    FILE *to = fopen(path, overwrite ? "w" : "wx");
    if (!to) return err_add(err, ERR_USAGE, "--trace: cannot write %s: %s", path, strerror(errno));
    put_trace(to, timeline, what);
    int bad = ferror(to);
    bad |= fclose(to);
    return bad ? err_add(err, ERR_FAILED, "--trace: %s could not be written in full", path) : 0;
}

/* ---- the drawing ---- */

int timeline_plot(const struct timeline *timeline, const char *what, const char *path,
                  bool overwrite, struct err *err)
{
    static const char *const passes[NPASSES] = {
        [PASS_F] = "forward", [PASS_B] = "backward", [PASS_W] = "weights", [PASS_BW] = "backward"};
    if (plot_check(path, err) || check_free("--timeline", path, overwrite, err)) return -1;
    const char *kinds[NPASSES + NPARTS];
    memcpy(kinds, passes, sizeof passes);
    for (int i = 0; i < NPARTS; i++) {
        kinds[NPASSES + i] = step_part_key((enum step_part)i);
    }
    char **rows = mem_calloc(timeline->nrows, sizeof *rows);
    for (size_t i = 0; i < timeline->nrows; i++) {
        rows[i] = mem_printf("%s %s", timeline->rows[i].rank_name, timeline->rows[i].name);
    }
    struct plot_box *boxes = mem_calloc(timeline->nspans, sizeof *boxes);
    char(*texts)[12] = mem_calloc(timeline->nspans, sizeof *texts);
    for (size_t i = 0; i < timeline->nspans; i++) {
        const struct timeline_span *s = &timeline->spans[i];
        const struct event_label *label = label_of(timeline, s->task);
        size_t pass = label->pass == PASS_BW ? PASS_B : label->pass;
        bool compute = on_compute(timeline, s->task) && label->pass < NPASSES;
        if (label->micro != UINT32_MAX) snprintf(texts[i], sizeof *texts, "%" PRIu32, label->micro);
        boxes[i] = (struct plot_box){
            .row = s->row,
            .kind = compute ? pass : NPASSES + (size_t)timeline->result->tasks->list[s->task].part,
            .start = 1e-9 * (double)s->start_ps,
            .end = 1e-9 * (double)s->end_ps,
            .text = *texts[i] ? texts[i] : NULL};
    }
    struct plot_gantt gantt = {.title = what,
                               .x_label = "time, ms",
                               .nrows = timeline->nrows,
                               .nkinds = NPASSES + NPARTS,
                               .nboxes = timeline->nspans,
                               .rows = (const char *const *)rows,
                               .kinds = kinds,
                               .boxes = boxes,
                               .end = 1e-9 * (double)timeline->result->step_ps};
    int bad = plot_gantt(&gantt, path, err);
    for (size_t i = 0; i < timeline->nrows; i++) {
        free(rows[i]);
    }
    free(rows);
    free(boxes);
    free(texts);
    return bad;
}
