/* SPDX-License-Identifier: Apache-2.0
 * Writes one gnuplot script: the data stand in it, so that a script is a whole picture. gnuplot
 * reads it from a pipe. */
#include "base/plot.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* A text as gnuplot reads it between double quotes: no quote, backslash or line end of its own. */
static void put_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        fputc(strchr("\"\\\n\r`", *text) ? '\'' : *text, to);
    }
    fputc('"', to);
}

static bool part_is_drawn(const struct plot_bars *p, size_t part)
{
    for (size_t bar = 0; bar < p->nbars; bar++) {
        if (p->values[bar * p->nparts + part] > 0) {
            return true;
        }
    }
    return false;
}

static void put_data(FILE *to, const struct plot_bars *p)
{
    fputs("$data << END_OF_DATA\n\"\"", to);
    for (size_t part = 0; part < p->nparts; part++) {
        fputc(' ', to);
        put_text(to, p->parts[part]);
    }
    for (size_t bar = 0; bar < p->nbars; bar++) {
        fputc('\n', to);
        put_text(to, p->bars[bar]);
        for (size_t part = 0; part < p->nparts; part++) {
            double value = p->values[bar * p->nparts + part];
            fprintf(to, " %.9g", isfinite(value) ? value : 0);
        }
    }
    fputs("\nEND_OF_DATA\n", to);
}

/* Colours that stay apart beside each other; more parts than these begin again. */
static void put_colours(FILE *to)
{
    static const char *const colours[] = {
        "4c72b0", "8fb3e0", "c2d4ee", "8c8c8c", "c9c9c9", "c44e52", "f2a1a4", "dd8452", "f5c396",
        "937860", "da8bc3", "ccb974", "55a868", "64b5cd", "8172b3", "b47cc7", "78b26b", "e377c2"};
    enum { NCOLOURS = sizeof colours / sizeof *colours };
    for (int i = 0; i < NCOLOURS; i++) {
        fprintf(to, "set linetype %d lc rgb \"#%s\"\n", i + 1, colours[i]);
    }
    fprintf(to, "set linetype cycle %d\n", NCOLOURS);
}

static void put_bars(FILE *to, const void *picture)
{
    const struct plot_bars *p = picture;
    fputs("set title ", to);
    put_text(to, p->title);
    fputs("\nset ylabel ", to);
    put_text(to, p->y_label);
    fputs("\nset style data histograms\nset style histogram rowstacked\nset style fill solid 0.8\n"
          "set boxwidth 0.7\nset key outside right top invert\nset xtics rotate by -25\n"
          "set yrange [0:*]\nset grid y\n",
          to);
    put_colours(to);
    put_data(to, p);
    const char *before = "plot ";
    for (size_t part = 0; part < p->nparts; part++) {
        if (part_is_drawn(p, part)) {
            fprintf(to, "%s$data using %zu:xtic(1) linetype %zu title columnheader(%zu)", before,
                    part + 2, part + 1, part + 2);
            before = ", ";
        }
    }
    fputs(*before == 'p' ? "plot 0 notitle\n" : "\n", to);
}

/* ---- lines ---- */

enum {
    PANEL_WIDTH = 560,
    HEIGHT = 520,
    SIDE = 105,
    CHARACTER = 9,
    LABELS = 8
}; /* pixels; labels */

/* Colours that colour-blind readers tell apart (Okabe and Ito, "Color universal design", 2008),
 * with a shape of points each; more lines than these begin again with dashes. */
static const struct {
    const char *colour;
    int points;
} styles[] = {{"0072b2", 7},  {"d55e00", 5}, {"009e73", 9}, {"cc79a7", 11},
              {"e69f00", 13}, {"56b4e9", 6}, {"7f3c8d", 4}, {"000000", 8}};

enum { NSTYLES = sizeof styles / sizeof *styles };

/* "8", "1Ki", "512Mi" for a power of two. */
static void put_size(FILE *to, int power)
{
    static const char *const units[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    fprintf(to, "\"%d%s\" 2**%d", 1 << power % 10, units[power / 10], power);
}

/* Every power of two has a tick, and at most LABELS of them have a label. */
static void put_size_axis(FILE *to, const struct plot_lines *p)
{
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < p->nlines; i++) {
        const struct plot_line *line = &p->panels[0].lines[i];
        for (size_t k = 0; k < line->count; k++) {
            least = fmin(least, line->x[k]);
            most = fmax(most, line->x[k]);
        }
    }
    int first = most > 0 ? (int)floor(log2(least)) : 0, last = most > 0 ? (int)ceil(log2(most)) : 1;
    int step = (last - first + LABELS) / LABELS;
    fprintf(to, "set logscale x 2\nset xrange [2**%g:2**%g]\nset xtics (", first - 0.3, last + 0.3);
    for (int power = first; power <= last; power++) {
        fputs(power > first ? ", " : "", to);
        if ((power - first) % step == 0) {
            put_size(to, power);
        } else {
            fprintf(to, "\"\" 2**%d 1", power);
        }
    }
    fputs(")\n", to);
}

static void put_number(FILE *to, double value)
{
    if (isfinite(value)) {
        fprintf(to, " %.9g", value);
    } else {
        fputs(" NaN", to);
    }
}

static void put_line_data(FILE *to, const struct plot_line *line, size_t panel, size_t number)
{
    fprintf(to, "$panel%zu_line%zu << END_OF_DATA\n", panel, number);
    for (size_t k = 0; k < line->count; k++) {
        put_number(to, line->x[k]);
        put_number(to, line->y[k]);
        put_number(to, line->low ? line->low[k] : NAN);
        put_number(to, line->high ? line->high[k] : NAN);
        fputc('\n', to);
    }
    fputs("END_OF_DATA\n", to);
}

/* How many lines of its sort (measured, bound) come before line i. */
static size_t number_of(const struct plot_line *lines, size_t i)
{
    size_t number = 0;
    for (size_t k = 0; k < i; k++) {
        number += lines[k].bound == lines[i].bound;
    }
    return number;
}

/* "with ..." of line i. */
static void put_style(FILE *to, const struct plot_line *lines, size_t i)
{
    size_t number = number_of(lines, i);
    if (lines[i].bound) {
        fprintf(to, "with lines lc rgb \"#808080\" lw 2 dt %zu", 2 + number % 3);
    } else {
        fprintf(to, "with linespoints lc rgb \"#%s\" lw 2 pt %d ps 0.9 dt %zu",
                styles[number % NSTYLES].colour, styles[number % NSTYLES].points,
                number / NSTYLES + 1);
    }
}

/* The axis holds what was measured; a bound far from it leaves the picture. */
static void put_range(FILE *to, const struct plot_panel *panel, size_t nlines)
{
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < nlines; i++) {
        const struct plot_line *line = &panel->lines[i];
        for (size_t k = 0; k < line->count && !line->bound; k++) {
            double low = line->low ? fmin(line->low[k], line->y[k]) : line->y[k];
            double high = line->high ? fmax(line->high[k], line->y[k]) : line->y[k];
            if (low > 0 && low < least) least = low;
            if (isfinite(high) && high > most) most = high;
        }
    }
    fprintf(to, "\n%s\nset yrange ", panel->log_y ? "set logscale y 10" : "unset logscale y");
    if (!(most > 0 && least <= most)) {
        fputs("[*:*]\n", to);
    } else if (panel->log_y) {
        fprintf(to, "[%.9g:%.9g]\n", least / 3, most * 3);
    } else {
        fprintf(to, "[0:%.9g]\n", most * 1.25);
    }
}

static void put_panel(FILE *to, const struct plot_panel *panel, size_t at, size_t nlines)
{
    for (size_t i = 0; i < nlines; i++) {
        put_line_data(to, &panel->lines[i], at, i);
    }
    fputs("set ylabel ", to);
    put_text(to, panel->y_label);
    fputs("\nset format y ", to);
    put_text(to, panel->y_format);
    put_range(to, panel, nlines);
    const char *before = "plot ";
    for (size_t i = 0; i < nlines; i++) { /* bands lie below all lines */
        if (!panel->lines[i].low) {
            continue;
        }
        fprintf(to,
                "%s$panel%zu_line%zu using 1:3:4 with filledcurves fc rgb \"#%s\" fs transparent "
                "solid 0.25 noborder notitle",
                before, at, i, styles[number_of(panel->lines, i) % NSTYLES].colour);
        before = ", \\\n     ";
    }
    for (size_t i = 0; i < nlines; i++) {
        fprintf(to, "%s$panel%zu_line%zu using 1:2 ", before, at, i);
        put_style(to, panel->lines, i);
        fputs(" notitle", to);
        before = ", \\\n     ";
    }
    fputc('\n', to);
}

/* The key is a panel of its own without axes, so that the others keep their size. */
static void put_key(FILE *to, const struct plot_lines *p)
{
    fputs("unset border\nunset tics\nunset grid\nunset xlabel\nunset ylabel\nunset logscale\n"
          "set key left center Left reverse samplen 2.5 spacing 1.25\n"
          "set xrange [0:1]\nset yrange [0:1]\n",
          to);
    const char *before = "plot ";
    for (size_t i = 0; i < p->nlines; i++) {
        fprintf(to, "%sNaN ", before);
        put_style(to, p->panels[0].lines, i);
        fputs(" title ", to);
        put_text(to, p->panels[0].lines[i].name);
        before = ", \\\n     ";
    }
    fputs("\nunset multiplot\n", to);
}

/* Pixels that the key needs. */
static size_t key_width(const struct plot_lines *p)
{
    size_t longest = 0;
    for (size_t i = 0; i < p->nlines; i++) {
        size_t length = strlen(p->panels[0].lines[i].name);
        longest = length > longest ? length : longest;
    }
    return SIDE + CHARACTER * longest;
}

static void put_lines(FILE *to, const void *picture)
{
    const struct plot_lines *p = picture;
    double width = (double)(p->npanels * PANEL_WIDTH + key_width(p));
    fputs("set encoding utf8\nset micro\nset multiplot\nset grid lt 1 lw 1 lc rgb \"#e0e0e0\"\n"
          "set tics out nomirror\nset bmargin at screen 0.14\nset tmargin at screen 0.9\n"
          "set xlabel ",
          to);
    put_text(to, p->x_label);
    fputs("\nset label 1 ", to);
    put_text(to, p->title);
    fprintf(to, " at screen %g,0.955 left\n", SIDE / width);
    put_size_axis(to, p);
    for (size_t i = 0; i < p->npanels; i++) {
        double left = (double)(i * PANEL_WIDTH + SIDE);
        fprintf(to, "set lmargin at screen %g\nset rmargin at screen %g\n", left / width,
                (left + PANEL_WIDTH - SIDE - 10) / width);
        put_panel(to, &p->panels[i], i, p->nlines);
        fputs("unset label 1\n", to);
    }
    fprintf(to, "set lmargin at screen %g\nset rmargin at screen 1\n",
            (double)(p->npanels * PANEL_WIDTH) / width);
    put_key(to, p);
}

/* ---- boxes over time ---- */

enum { ROW_HEIGHT = 22, GANTT_WIDTH = 1400, GANTT_FRAME = 120 }; /* pixels */

/* Pixels that the names at the left and in the key take. */
static size_t names_width(const struct plot_gantt *p)
{
    size_t rows = 0, kinds = 0;
    for (size_t i = 0; i < p->nrows; i++) {
        size_t length = strlen(p->rows[i]);
        rows = length > rows ? length : rows;
    }
    for (size_t i = 0; i < p->nkinds; i++) {
        size_t length = strlen(p->kinds[i]);
        kinds = length > kinds ? length : kinds;
    }
    return CHARACTER * (rows + kinds) + SIDE;
}

/* The boxes of a kind; gives their number. */
static size_t put_boxes(FILE *to, const struct plot_gantt *p, size_t kind)
{
    size_t count = 0;
    for (size_t i = 0; i < p->nboxes; i++) {
        const struct plot_box *box = &p->boxes[i];
        if (box->kind != kind) continue;
        if (count++ == 0) fprintf(to, "$kind%zu << END_OF_DATA\n", kind);
        double y = (double)box->row;
        fprintf(to, "%.9g %g %.9g %.9g %g %g\n", box->start, y, box->start, box->end, y - 0.4,
                y + 0.4);
    }
    if (count) fputs("END_OF_DATA\n", to);
    return count;
}

/* Texts of boxes that are wide enough for them. */
static size_t put_box_texts(FILE *to, const struct plot_gantt *p)
{
    size_t count = 0;
    for (size_t i = 0; i < p->nboxes; i++) {
        const struct plot_box *box = &p->boxes[i];
        double pixels = (box->end - box->start) / p->end * GANTT_WIDTH;
        if (!box->text || pixels < (double)(CHARACTER * (strlen(box->text) + 1))) continue;
        if (count++ == 0) fputs("$texts << END_OF_DATA\n", to);
        fprintf(to, "%.9g %zu ", (box->start + box->end) / 2, box->row);
        put_text(to, box->text);
        fputc('\n', to);
    }
    if (count) fputs("END_OF_DATA\n", to);
    return count;
}

static void put_gantt(FILE *to, const void *picture)
{
    const struct plot_gantt *p = picture;
    fputs("set encoding utf8\nset title ", to);
    put_text(to, p->title);
    fputs("\nset xlabel ", to);
    put_text(to, p->x_label);
    fprintf(to, "\nset xrange [0:%.9g]\nset yrange [%g:-0.6] noextend\nset ytics nomirror (",
            p->end > 0 ? p->end : 1, (double)p->nrows - 0.4);
    for (size_t i = 0; i < p->nrows; i++) {
        fputs(i ? ", " : "", to);
        put_text(to, p->rows[i]);
        fprintf(to, " %zu", i);
    }
    fputs(")\nset grid x\nset key outside right top\nset style fill solid 0.8 noborder\n", to);
    put_colours(to);
    const char *before = "plot ";
    char *plots = NULL;
    size_t length = 0;
    FILE *later = open_memstream(&plots, &length); /* data come before the plot */
    for (size_t kind = 0; later && kind < p->nkinds; kind++) {
        if (!put_boxes(to, p, kind)) continue;
        fprintf(later, "%s$kind%zu using 1:2:3:4:5:6 with boxxyerror linetype %zu title ", before,
                kind, kind + 1);
        put_text(later, p->kinds[kind]);
        before = ", \\\n     ";
    }
    if (later && put_box_texts(to, p)) {
        fprintf(later, "%s$texts using 1:2:3 with labels notitle", before);
        before = ", ";
    }
    if (later) fclose(later);
    fprintf(to, "%s\n", plots && *plots ? plots : "plot 0 notitle");
    free(plots);
}

/* ---- files ---- */

/* A picture of either sort. */
struct picture {
    void (*put)(FILE *to, const void *picture); /* the script without its terminal */
    const void *picture;
    size_t width, height; /* pixels */
    const char *font;     /* "" or an option of the terminal */
};

static const struct {
    const char *suffix, *terminal;
} kinds[] = {{".png", "pngcairo"}, {".svg", "svg"}, {".gp", NULL}};

static void put_terminal(FILE *to, const struct picture *p, const char *terminal, const char *path)
{
    fprintf(to, "set terminal %s size %zu,%zu noenhanced%s\nset output ", terminal, p->width,
            p->height, p->font);
    put_text(to, path);
    fputc('\n', to);
}

static int draw(const struct picture *picture, const char *terminal, const char *path,
                struct err *err)
{
    fflush(NULL);
    FILE *pipe = popen("exec gnuplot -", "w");
    if (!pipe) {
        return err_add(err, ERR_FAILED, "gnuplot cannot be started: %s", strerror(errno));
    }
    put_terminal(pipe, picture, terminal, path);
    picture->put(pipe, picture->picture);
    int status = pclose(pipe);
    if (status) {
        remove(path);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        return err_add(err, ERR_FAILED,
                       "%s: gnuplot is not installed; a name that ends in .gp gets the script",
                       path);
    }
    return status ? err_add(err, ERR_FAILED, "%s: gnuplot did not draw it", path) : 0;
}

/* The kind of file that the name asks for; -1 with a sentence. */
static int kind_of(const char *path, struct err *err)
{
    size_t length = strlen(path);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        size_t tail = strlen(kinds[kind].suffix);
        if (length > tail && strcmp(path + length - tail, kinds[kind].suffix) == 0)
            return (int)kind;
    }
    return err_add(err, ERR_USAGE, "%s: a picture ends in .png or .svg, a gnuplot script in .gp",
                   path);
}

static int write_picture(const struct picture *picture, const char *path, struct err *err)
{
    int kind = kind_of(path, err);
    if (kind < 0) return -1;
    FILE *file = fopen(path, "w"); /* tried here, for gnuplot would draw to stdout instead */
    if (!file) {
        return err_add(err, ERR_FAILED, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (!kinds[kind].terminal) {
        picture->put(file, picture->picture);
    }
    if (fclose(file)) {
        return err_add(err, ERR_FAILED, "%s: cannot be written: %s", path, strerror(errno));
    }
    return kinds[kind].terminal ? draw(picture, kinds[kind].terminal, path, err) : 0;
}

int plot_bars(const struct plot_bars *bars, const char *path, struct err *err)
{
    struct picture picture = {put_bars, bars, 400 + 110 * bars->nbars, 600, ""};
    return write_picture(&picture, path, err);
}

int plot_lines(const struct plot_lines *lines, const char *path, struct err *err)
{
    struct picture picture = {put_lines, lines, lines->npanels * PANEL_WIDTH + key_width(lines),
                              HEIGHT, " font \"Sans,12\""};
    return write_picture(&picture, path, err);
}

int plot_gantt(const struct plot_gantt *gantt, const char *path, struct err *err)
{
    struct picture picture = {put_gantt, gantt, GANTT_WIDTH + names_width(gantt),
                              GANTT_FRAME + ROW_HEIGHT * gantt->nrows, " font \"Sans,11\""};
    return write_picture(&picture, path, err);
}

int plot_check(const char *path, struct err *err)
{
    return kind_of(path, err) < 0 ? -1 : 0;
}
