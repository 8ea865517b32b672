/* SPDX-License-Identifier: Apache-2.0
 * The only file that prints results. Text follows the look of nccl-tests (two-level heading that
 * starts with '#', columns two blanks apart); CSV quotes as RFC 4180 says, with plain newlines;
 * JSON is {meta, rows, summary, notes}. With each note and row of a JSON file the end of the
 * document is written too, and the next one overwrites it, so the file is valid from the start on.
 */
#include "base/out.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define GAP 2 /* blanks between columns of text */

/* A place where the table goes. */
struct sink {
    enum out_format format;
    FILE *file;
    const char *name; /* "stdout", or the path */
    bool begun;       /* headings are written */
    bool any;         /* rows of an earlier table are written */
    bool regular;     /* a file whose end can be overwritten */
    bool created;     /* it was not there before */
    int error;        /* errno of the first fault in writing, 0: none */
    off_t end;        /* where the next JSON row goes */
    struct stat stat; /* which file it is; st_nlink 0: no regular file */
};

struct out {
    struct out_column *columns; /* own copy */
    size_t ncolumns;
    struct sink *sinks;
    size_t nsinks, cap;
    size_t nrows;      /* of all tables */
    size_t table_rows; /* of the one that rows go to now */
    bool started;      /* what files held before is gone */
    bool refused;      /* a place cannot be had: nothing is written */
    bool summed;       /* see out_summary */
    bool imitates;     /* see out_imitate */
    json_t *meta, *summary, *notes;
    char **keys; /* by column: its name in CSV and JSON */
};

/* A text under construction; line_end gives it away. */
struct line {
    FILE *file;
    char *text;
    size_t length;
};

static FILE *line_begin(struct line *line)
{
    *line = (struct line){0};
    line->file = open_memstream(&line->text, &line->length);
    if (!line->file) {
        fprintf(stderr, "out of memory: a line of output\n");
        exit(1);
    }
    return line->file;
}

static char *line_end(struct line *line)
{
    fclose(line->file);
    return line->text;
}

/* Writes the text as one line without trailing blanks. Frees the text. */
static void put_line(FILE *file, char *text)
{
    size_t length = strlen(text);
    while (length && text[length - 1] == ' ')
        length--;
    fprintf(file, "%.*s\n", (int)length, text);
    free(text);
}

/* ---- keys ---- */

static void put_word(FILE *file, const char *word)
{
    for (const char *c = word; *c; c++) {
        if (c[0] == '/' && c[1] == 's')
            fputc('p', file); /* GB/s -> GBps */
        else if (*c == '%')
            fputs("pct", file);
        else
            fputc(isalnum((unsigned char)*c) ? *c : '_', file);
    }
}

/* group_key_unit, in letters, digits and underscores */
static char *key_of(const struct out_column *column)
{
    struct line line;
    FILE *file = line_begin(&line);
    const char *parts[] = {column->group, column->key, column->unit};
    const char *joint = "";
    for (size_t i = 0; i < 3; i++) {
        if (!parts[i]) continue;
        fputs(joint, file);
        put_word(file, parts[i]);
        joint = "_";
    }
    return line_end(&line);
}

/* ---- values ---- */

static bool known(const struct out_cell *cell)
{
    return cell->kind != OUT_UNKNOWN && (cell->kind != OUT_DOUBLE || isfinite(cell->v.d));
}

/* A double in at most `width` characters if fewer decimals, or else `powers` of ten, can do it. */
static void put_double(FILE *file, double value, int precision, int width, bool powers)
{
    int most = precision;
    while (precision > 0 && snprintf(NULL, 0, "%.*f", precision, value) > width)
        precision--;
    if (!powers || snprintf(NULL, 0, "%.*f", precision, value) <= width) {
        fprintf(file, "%.*f", precision, value);
        return;
    }
    while (most > 0 && snprintf(NULL, 0, "%.*e", most, value) > width)
        most--;
    fprintf(file, "%.*e", most, value);
}

/* The cell as text shows it. Freed by the caller. */
static char *text_value(const struct out_cell *cell, const struct out_column *column, bool powers)
{
    struct line line;
    FILE *file = line_begin(&line);
    switch (known(cell) ? cell->kind : OUT_UNKNOWN) {
    case OUT_UNKNOWN:
        fputs("N/A", file);
        break;
    case OUT_TEXT:
        fputs(cell->v.text, file);
        break;
    case OUT_UINT:
        fprintf(file, "%llu", (unsigned long long)cell->v.u);
        break;
    case OUT_INT:
        fprintf(file, "%lld", (long long)cell->v.i);
        break;
    case OUT_DOUBLE:
        put_double(file, cell->v.d, column->precision, abs(column->width), powers);
        break;
    case OUT_BOOL:
        fputs(cell->v.b ? "yes" : "no", file);
        break;
    case OUT_DOUBLES:
        fprintf(file, "%zu", cell->v.doubles.count);
        break;
    }
    return line_end(&line);
}

/* The text in quotes if RFC 4180 asks for them. An empty text is "", which differs from unknown. */
static void put_csv_text(FILE *file, const char *text)
{
    if (*text && !strpbrk(text, ",\"\r\n")) {
        fputs(text, file);
        return;
    }
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"') fputc('"', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

static void put_csv_value(FILE *file, const struct out_cell *cell)
{
    switch (known(cell) ? cell->kind : OUT_UNKNOWN) {
    case OUT_UNKNOWN:
        break;
    case OUT_TEXT:
        put_csv_text(file, cell->v.text);
        break;
    case OUT_UINT:
        fprintf(file, "%llu", (unsigned long long)cell->v.u);
        break;
    case OUT_INT:
        fprintf(file, "%lld", (long long)cell->v.i);
        break;
    case OUT_DOUBLE:
        fprintf(file, "%.15g", cell->v.d);
        break;
    case OUT_BOOL:
        fputs(cell->v.b ? "true" : "false", file);
        break;
    case OUT_DOUBLES:
        for (size_t i = 0; i < cell->v.doubles.count; i++) {
            if (i) fputc(';', file);
            struct out_cell item = out_double(cell->v.doubles.values[i]);
            put_csv_value(file, &item);
        }
        break;
    }
}

static json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* Bytes that are no UTF-8 become '?': a command line may hold any. */
static json_t *json_text(const char *text)
{
    json_t *value = json_string(text);
    if (value) return value;
    char *ascii = mem_strdup(text);
    for (char *c = ascii; *c; c++)
        if (!isascii((unsigned char)*c)) *c = '?';
    value = json_string(ascii);
    free(ascii);
    return value;
}

static json_t *json_value(const struct out_cell *cell)
{
    json_t *list;
    switch (cell->kind) {
    case OUT_UNKNOWN:
        return json_null();
    case OUT_TEXT:
        return json_text(cell->v.text);
    case OUT_UINT:
        return cell->v.u <= INT64_MAX ? json_integer((json_int_t)cell->v.u)
                                      : json_real((double)cell->v.u);
    case OUT_INT:
        return json_integer(cell->v.i);
    case OUT_DOUBLE:
        return json_number(cell->v.d);
    case OUT_BOOL:
        return json_boolean(cell->v.b);
    case OUT_DOUBLES:
        list = json_array();
        for (size_t i = 0; i < cell->v.doubles.count; i++)
            json_array_append_new(list, json_number(cell->v.doubles.values[i]));
        return list;
    }
    return json_null();
}

static void put_json(FILE *file, const json_t *value)
{
    int status = json_dumpf(value, file, JSON_REAL_PRECISION(15));
    assert(status == 0 || ferror(file));
    (void)status;
}

/* ---- text ---- */

/* The line above the labels: the name of a group stands in the middle of its columns. */
static char *group_line(const struct out *out)
{
    size_t width = 1, at = 0;
    for (size_t i = 0; i < out->ncolumns; i++) {
        const char *group = out->columns[i].group;
        width += (size_t)abs(out->columns[i].width) + GAP + (group ? strlen(group) : 0);
    }
    char *line = mem_calloc(width + 1, 1);
    memset(line, ' ', width);
    line[0] = '#';
    for (size_t i = 0; i < out->ncolumns;) {
        const char *group = out->columns[i].group;
        size_t span = 0;
        do {
            if (out->columns[i].width) span += (size_t)abs(out->columns[i].width) + GAP;
            i++;
        } while (group && i < out->ncolumns && out->columns[i].group &&
                 strcmp(group, out->columns[i].group) == 0);
        size_t length = group ? strlen(group) : 0;
        size_t spare = span > GAP + length ? (span - GAP - length) / 2 : 0;
        if (group && span) memcpy(line + at + spare, group, length);
        at += span;
    }
    return line;
}

/* One heading line: the text of each column as `pick` gives it. */
static char *heading_line(const struct out *out, char *(*pick)(const struct out_column *))
{
    struct line line;
    FILE *file = line_begin(&line);
    int gap = 0;
    for (size_t i = 0; i < out->ncolumns; i++) {
        const struct out_column *column = &out->columns[i];
        if (!column->width) continue;
        char *text = pick(column);
        const char *mark = gap == 0 ? column->width < 0 ? "# " : "#" : "";
        int marked = (int)strlen(mark);
        int width = column->width < 0 ? column->width + marked : column->width - marked;
        fprintf(file, "%*s%s%*s", gap, "", mark, width, text);
        gap = GAP;
        free(text);
    }
    return line_end(&line);
}

static char *pick_label(const struct out_column *column)
{
    return mem_strdup(column->label ? column->label : column->key);
}

static char *pick_unit(const struct out_column *column)
{
    return column->unit ? mem_printf("(%s)", column->unit) : mem_strdup("");
}

/* Whether text has anything of the table. */
static bool shown(const struct out *out)
{
    for (size_t i = 0; i < out->ncolumns; i++) {
        if (out->columns[i].width) return true;
    }
    return false;
}

static void begin_text(const struct out *out, struct sink *sink)
{
    bool groups = false, units = false;
    if (out->imitates || !shown(out)) return;
    if (sink->any) fputc('\n', sink->file);
    for (size_t i = 0; i < out->ncolumns; i++) {
        groups |= out->columns[i].width && out->columns[i].group;
        units |= out->columns[i].width && out->columns[i].unit;
    }
    if (groups) put_line(sink->file, group_line(out));
    put_line(sink->file, heading_line(out, pick_label));
    if (units) put_line(sink->file, heading_line(out, pick_unit));
}

static void row_text(const struct out *out, struct sink *sink, const struct out_cell *cells)
{
    struct line line;
    if (!shown(out)) return;
    FILE *file = line_begin(&line);
    int gap = 0;
    for (size_t i = 0; i < out->ncolumns; i++) {
        if (!out->columns[i].width) continue;
        char *text = text_value(&cells[i], &out->columns[i], out->imitates);
        fprintf(file, "%*s%*s", gap, "", out->columns[i].width, text);
        gap = GAP;
        free(text);
    }
    put_line(sink->file, line_end(&line));
}

/* ---- CSV ---- */

static void begin_csv(const struct out *out, struct sink *sink)
{
    if (sink->any) fputc('\n', sink->file);
    for (size_t i = 0; i < out->ncolumns; i++)
        fprintf(sink->file, "%s%s", i ? "," : "", out->keys[i]);
    fputc('\n', sink->file);
}

static void row_csv(const struct out *out, struct sink *sink, const struct out_cell *cells)
{
    for (size_t i = 0; i < out->ncolumns; i++) {
        if (i) fputc(',', sink->file);
        put_csv_value(sink->file, &cells[i]);
    }
    fputc('\n', sink->file);
}

/* ---- JSON ---- */

static void begin_json(const struct out *out, struct sink *sink)
{
    if (sink->regular) fseeko(sink->file, 0, SEEK_SET);
    fputs("{\"meta\": ", sink->file);
    put_json(sink->file, out->meta);
    fputs(",\n\"rows\": [", sink->file);
    sink->end = ftello(sink->file);
}

/* Ends the document. In a file the end of an earlier, longer one is cut off. */
static void end_json(const struct out *out, struct sink *sink)
{
    fputs("\n],\n\"summary\": ", sink->file);
    put_json(sink->file, out->summary);
    fputs(",\n\"notes\": ", sink->file);
    put_json(sink->file, out->notes);
    fputs("}\n", sink->file);
    if (!sink->regular) return;
    fflush(sink->file);
    if (ftruncate(fileno(sink->file), ftello(sink->file)) && !sink->error) sink->error = errno;
}

/* Ends the list of rows and begins another. */
static void next_json(struct sink *sink, const char *name)
{
    if (sink->regular) fseeko(sink->file, sink->end, SEEK_SET);
    fprintf(sink->file, "\n],\n\"%s\": [", name);
    if (sink->regular) sink->end = ftello(sink->file);
}

/* The document of a file as far as it goes: with all facts before the first row, all notes. */
static void whole_json(const struct out *out, struct sink *sink)
{
    if (!sink->regular) return;
    if (sink->begun) {
        fseeko(sink->file, sink->end, SEEK_SET);
    } else {
        begin_json(out, sink);
    }
    end_json(out, sink);
}

static void row_json(const struct out *out, struct sink *sink, const struct out_cell *cells)
{
    json_t *row = json_object();
    for (size_t i = 0; i < out->ncolumns; i++)
        json_object_set_new(row, out->keys[i], json_value(&cells[i]));
    if (sink->regular) fseeko(sink->file, sink->end, SEEK_SET);
    fputs(out->table_rows ? ",\n" : "\n", sink->file);
    put_json(sink->file, row);
    json_decref(row);
    if (!sink->regular) return;
    sink->end = ftello(sink->file);
    end_json(out, sink);
}

/* ---- the table ---- */

static const struct {
    void (*begin)(const struct out *, struct sink *);
    void (*row)(const struct out *, struct sink *, const struct out_cell *);
    void (*end)(const struct out *, struct sink *); /* NULL: nothing to write */
} FORMATS[] = {
    [OUT_FORMAT_TEXT] = {begin_text, row_text, NULL},
    [OUT_FORMAT_CSV] = {begin_csv, row_csv, NULL},
    [OUT_FORMAT_JSON] = {begin_json, row_json, end_json},
};

static void set_columns(struct out *out, const struct out_column *columns, size_t ncolumns)
{
    for (size_t i = 0; i < out->ncolumns; i++)
        free(out->keys[i]);
    free(out->columns);
    free(out->keys);
    out->columns = mem_calloc(ncolumns, sizeof *columns);
    if (ncolumns) memcpy(out->columns, columns, ncolumns * sizeof *columns);
    out->ncolumns = ncolumns;
    out->keys = mem_calloc(ncolumns, sizeof *out->keys);
    for (size_t i = 0; i < ncolumns; i++)
        out->keys[i] = key_of(&columns[i]);
}

struct out *out_new(const struct out_column *columns, size_t ncolumns)
{
    struct out *out = mem_calloc(1, sizeof *out);
    out->meta = json_object();
    out->summary = json_object();
    out->notes = json_array();
    set_columns(out, columns, ncolumns);
    return out;
}

/* Which place already goes to the file, or NULL. */
static const struct sink *same_file(const struct out *out, const struct stat *st)
{
    for (size_t i = 0; i < out->nsinks; i++) {
        const struct stat *other = &out->sinks[i].stat;
        if (other->st_nlink && other->st_dev == st->st_dev && other->st_ino == st->st_ino) {
            return &out->sinks[i];
        }
    }
    return NULL;
}

/* Opens a file that must not exist yet unless `overwrite`; a device or pipe may. What it holds
 * stays until the table starts. */
static int open_place(const struct out *out, struct sink *sink, bool overwrite, struct err *err)
{
    const char *path = sink->name;
    struct stat st;
    sink->created = stat(path, &st) != 0;
    sink->regular = sink->created || S_ISREG(st.st_mode);
    const struct sink *other = !sink->created && sink->regular ? same_file(out, &st) : NULL;
    if (other) {
        return err_add(err, ERR_USAGE, "two outputs name one file: %s and %s; give each its own",
                       other->name, path);
    }
    int unless = sink->regular && !overwrite ? O_EXCL : 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | unless, 0666);
    sink->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (sink->file && (!sink->regular || fstat(fd, &sink->stat) == 0)) return 0;
    if (errno == EEXIST) {
        return err_add(err, ERR_USAGE,
                       "%s exists and is kept; name another file or give --overwrite", path);
    }
    return err_add(err, ERR_USAGE, "%s cannot be written: %s", path, strerror(errno));
}

static int open_stdout(const struct out *out, struct sink *sink, struct err *err)
{
    for (size_t i = 0; i < out->nsinks; i++) {
        if (out->sinks[i].file == stdout) {
            return err_add(err, ERR_USAGE, "two outputs go to stdout; give one of them a file");
        }
    }
    sink->name = "stdout";
    sink->file = stdout;
    if (fstat(STDOUT_FILENO, &sink->stat) || !S_ISREG(sink->stat.st_mode)) {
        sink->stat = (struct stat){0};
    }
    return 0;
}

int out_add(struct out *out, enum out_format format, const char *path, bool overwrite,
            struct err *err)
{
    assert(!out->started);
    struct sink sink = {.format = format, .name = path};
    bool file = path && strcmp(path, "-") != 0;
    int bad = file ? open_place(out, &sink, overwrite, err) : open_stdout(out, &sink, err);
    if (bad) {
        out->refused = true;
        return -1;
    }
    MEM_GROW(out->sinks, out->nsinks, out->cap);
    out->sinks[out->nsinks++] = sink;
    return 0;
}

static bool is_stdout(const char *path)
{
    return path && strcmp(path, "-") == 0;
}

int out_add_asked(struct out *out, const char *json, const char *csv, bool overwrite,
                  struct err *err)
{
    bool taken = is_stdout(json) || is_stdout(csv);
    int bad = taken ? 0 : out_add(out, OUT_FORMAT_TEXT, NULL, false, err);
    if (json) bad |= out_add(out, OUT_FORMAT_JSON, json, overwrite, err);
    if (csv) bad |= out_add(out, OUT_FORMAT_CSV, csv, overwrite, err);
    return bad;
}

/* Hands what was written to the system. errno was 0 before the writing. */
static void sink_flush(struct sink *sink)
{
    if ((fflush(sink->file) != 0 || ferror(sink->file)) && !sink->error) {
        sink->error = errno ? errno : EIO;
    }
}

/* Before anything is written: empties the files that are overwritten. False: refused. */
static bool start(struct out *out)
{
    errno = 0;
    if (out->refused || out->started) return !out->refused;
    out->started = true;
    for (size_t i = 0; i < out->nsinks; i++) {
        struct sink *sink = &out->sinks[i];
        if (sink->regular && ftruncate(fileno(sink->file), 0)) sink->error = errno;
        if (sink->format == OUT_FORMAT_JSON) whole_json(out, sink);
    }
    return true;
}

void out_imitate(struct out *out)
{
    assert(!out->nrows);
    out->imitates = true;
}

void out_line(struct out *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *line = mem_vprintf(format, args);
    va_end(args);
    bool writes = start(out);
    for (size_t i = 0; writes && i < out->nsinks; i++) {
        struct sink *sink = &out->sinks[i];
        if (sink->format == OUT_FORMAT_TEXT) fprintf(sink->file, "%s\n", line);
        sink_flush(sink);
    }
    free(line);
}

void out_meta(struct out *out, const char *key, struct out_cell value)
{
    json_t *object = out->nrows || out->summed ? out->summary : out->meta;
    json_object_set_new(object, key, json_value(&value));
}

void out_summary(struct out *out)
{
    out->summed = true;
}

void out_note(struct out *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *note = mem_vprintf(format, args);
    va_end(args);
    json_array_append_new(out->notes, json_text(note));
    bool writes = start(out);
    for (size_t i = 0; writes && i < out->nsinks; i++) {
        struct sink *sink = &out->sinks[i];
        if (sink->format == OUT_FORMAT_TEXT) put_line(sink->file, mem_printf("# %s", note));
        if (sink->format == OUT_FORMAT_JSON) whole_json(out, sink);
        sink_flush(sink);
    }
    free(note);
}

static void begin(const struct out *out, struct sink *sink)
{
    if (sink->begun) return;
    FORMATS[sink->format].begin(out, sink);
    sink->begun = true;
}

void out_row(struct out *out, const struct out_cell *cells)
{
    for (size_t i = 0; i < out->ncolumns; i++)
        assert(cells[i].kind == OUT_UNKNOWN || cells[i].kind == out->columns[i].kind);
    bool writes = start(out);
    for (size_t i = 0; writes && i < out->nsinks; i++) {
        struct sink *sink = &out->sinks[i];
        begin(out, sink);
        FORMATS[sink->format].row(out, sink, cells);
        sink_flush(sink);
    }
    out->nrows++;
    out->table_rows++;
}

void out_table(struct out *out, const char *name, const struct out_column *columns, size_t ncolumns)
{
    bool writes = start(out);
    for (size_t i = 0; writes && i < out->nsinks; i++) {
        struct sink *sink = &out->sinks[i];
        if (sink->format == OUT_FORMAT_JSON) {
            begin(out, sink);
            next_json(sink, name);
            if (sink->regular) end_json(out, sink);
            sink_flush(sink);
        } else {
            sink->any |= sink->begun;
            sink->begun = false;
        }
    }
    out->table_rows = 0;
    set_columns(out, columns, ncolumns);
}

bool out_reader_gone(const struct out *out)
{
    for (size_t i = 0; i < out->nsinks; i++) {
        if (out->sinks[i].file == stdout && out->sinks[i].error == EPIPE) return true;
    }
    return false;
}

/* Ends the content of one place. A text without rows stays without headings. */
static void sink_end(const struct out *out, struct sink *sink)
{
    errno = 0;
    if (sink->format == OUT_FORMAT_JSON || (sink->format == OUT_FORMAT_CSV && !sink->any))
        begin(out, sink);
    if (sink->regular && sink->format == OUT_FORMAT_JSON) fseeko(sink->file, sink->end, SEEK_SET);
    if (FORMATS[sink->format].end) FORMATS[sink->format].end(out, sink);
    sink_flush(sink);
}

static int sink_close(struct sink *sink, struct err *err)
{
    bool is_stdout = sink->file == stdout;
    if (!is_stdout && fclose(sink->file) != 0 && !sink->error) sink->error = errno;
    if (!sink->error || (is_stdout && sink->error == EPIPE)) return 0;
    return err_add(err, ERR_FAILED, "%s could not be written in full: %s", sink->name,
                   strerror(sink->error));
}

int out_close(struct out *out, struct err *err)
{
    if (!out) return 0;
    int status = 0;
    out->refused |= err->code == ERR_USAGE && !out->nrows;
    bool writes = start(out);
    for (size_t i = 0; i < out->nsinks; i++) {
        struct sink *sink = &out->sinks[i];
        if (writes) sink_end(out, sink);
        if (!writes && sink->created) unlink(sink->name);
        status |= sink_close(sink, err);
    }
    for (size_t i = 0; i < out->ncolumns; i++)
        free(out->keys[i]);
    json_decref(out->meta);
    json_decref(out->summary);
    json_decref(out->notes);
    free(out->columns);
    free(out->keys);
    free(out->sinks);
    free(out);
    return status;
}
