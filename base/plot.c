/* SPDX-License-Identifier: Apache-2.0
 * Writes one gnuplot script: the data stand in it, so that a script is a whole picture. gnuplot
 * reads it from a pipe. */
#include "base/plot.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
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
    static const char *const colours[] = {"4c72b0", "8fb3e0", "c2d4ee", "8c8c8c", "c9c9c9",
                                          "c44e52", "f2a1a4", "dd8452", "f5c396", "937860",
                                          "da8bc3", "ccb974", "55a868", "64b5cd"};
    enum { NCOLOURS = sizeof colours / sizeof *colours };
    for (int i = 0; i < NCOLOURS; i++) {
        fprintf(to, "set linetype %d lc rgb \"#%s\"\n", i + 1, colours[i]);
    }
    fprintf(to, "set linetype cycle %d\n", NCOLOURS);
}

static void put_script(FILE *to, const struct plot_bars *p, const char *terminal, const char *path)
{
    size_t width = 400 + 110 * p->nbars;
    if (terminal) {
        fprintf(to, "set terminal %s size %zu,600 noenhanced\nset output ", terminal, width);
        put_text(to, path);
        fputc('\n', to);
    }
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

static const struct {
    const char *suffix, *terminal;
} kinds[] = {{".png", "pngcairo"}, {".svg", "svg"}, {".gp", NULL}};

static int draw(const struct plot_bars *bars, const char *terminal, const char *path,
                struct err *err)
{
    fflush(NULL);
    FILE *pipe = popen("exec gnuplot -", "w");
    if (!pipe) {
        return err_add(err, ERR_FAILED, "gnuplot cannot be started: %s", strerror(errno));
    }
    put_script(pipe, bars, terminal, path);
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

int plot_bars(const struct plot_bars *bars, const char *path, struct err *err)
{
    size_t kind = 0, length = strlen(path), nkinds = sizeof kinds / sizeof *kinds;
    for (; kind < nkinds; kind++) {
        size_t tail = strlen(kinds[kind].suffix);
        if (length > tail && strcmp(path + length - tail, kinds[kind].suffix) == 0) {
            break;
        }
    }
    if (kind == nkinds) {
        return err_add(err, ERR_USAGE,
                       "%s: a picture ends in .png or .svg, a gnuplot script in .gp", path);
    }
    FILE *file = fopen(path, "w"); /* tried here, for gnuplot would draw to stdout instead */
    if (!file) {
        return err_add(err, ERR_FAILED, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (!kinds[kind].terminal) {
        put_script(file, bars, NULL, path);
    }
    if (fclose(file)) {
        return err_add(err, ERR_FAILED, "%s: cannot be written: %s", path, strerror(errno));
    }
    return kinds[kind].terminal ? draw(bars, kinds[kind].terminal, path, err) : 0;
}
