/* SPDX-License-Identifier: Apache-2.0
 * A row is read in four steps: figures, texts (a network "as above" is the one that the machine
 * states elsewhere), machine, bucket. */
#include "net/coll_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

struct reader {
    struct coll_rows *rows;
    const struct csv *csv;
    size_t at;
    struct coll_row *row;
    struct err *err;
};

static const char *cell(const struct reader *r, const char *column)
{
    return csv_cell(r->csv, r->at, column);
}

/* A number >= 0 of a column; NaN where the cell is empty. -1 with a sentence if it is none. */
static int read_number(struct reader *r, const char *column, double *value)
{
    const char *text = cell(r, column);
    char *end;
    *value = NAN;
    if (!*text) return 0;
    double read = strtod(text, &end);
    if (*end || !(read >= 0 && read <= 1e18)) {
        return err_add(r->err, ERR_USAGE, "%s:%zu: %s \"%s\" is not a number of 0 to 1e18",
                       r->csv->path, r->csv->line[r->at], column, text);
    }
    *value = read;
    return 0;
}

/* .. a whole number of 1 or more; 1 where the cell is empty. */
static int read_count(struct reader *r, const char *column, uint64_t *value)
{
    double read;
    if (read_number(r, column, &read)) return -1;
    *value = 1; /* for a topology to be drawn; reason_of refuses the row */
    if (isnan(read)) return 0;
    if (read != floor(read) || read < 1 || read > 1e6) {
        return err_add(r->err, ERR_USAGE, "%s:%zu: %s %g is not a whole number of 1 to 1000000",
                       r->csv->path, r->csv->line[r->at], column, read);
    }
    *value = (uint64_t)read;
    return 0;
}

/* ---- texts ---- */

static bool states_network(const char *text)
{
    return *text && !coll_text_has(text, "as above") && strncasecmp(text, "none", 4) != 0 &&
           strncasecmp(text, "n/a", 3) != 0;
}

/* The network text of a machine that says "as above": the first in the alphabet of those it states,
 * so that the order of rows does not matter. */
static const char *network_of(const struct reader *r, const char *machine)
{
    const char *best = NULL;
    for (size_t i = 0; i < r->csv->nrows; i++) {
        const char *text = csv_cell(r->csv, i, "inter_network");
        if (strcmp(csv_cell(r->csv, i, "machine"), machine) != 0 || !states_network(text)) continue;
        if (!best || strcmp(text, best) < 0) best = text;
    }
    return best ? best : "";
}

static struct coll_text read_text(const struct reader *r)
{
    struct coll_text t = {
        .machine = cell(r, "machine"),
        .gpu = cell(r, "gpu"),
        .intra = cell(r, "intra_link"),
        .inter = cell(r, "inter_network"),
        .library = cell(r, "nccl_version"),
        .algo = cell(r, "algo_proto"),
        .notes = cell(r, "notes"),
        .op = cell(r, "op"),
        .hosts = r->row->hosts,
        .per_host = r->row->per_host,
    };
    if (coll_text_has(t.inter, "as above")) t.inter = network_of(r, t.machine);
    return t;
}

/* ---- machines ---- */

static bool fits(const char *text, uint64_t value)
{
    return !*text || strtoull(text, NULL, 10) == value;
}

static size_t find_machine(const struct reader *r)
{
    const struct csv *m = &r->rows->machines;
    for (size_t i = 0; i < m->nrows; i++) {
        if (strcmp(csv_cell(m, i, "machine"), r->row->machine) == 0 &&
            fits(csv_cell(m, i, "nodes"), r->row->hosts) &&
            fits(csv_cell(m, i, "gpus"), r->row->per_host))
            return i;
    }
    return SIZE_MAX;
}

static int machine_fault(const struct reader *r, size_t i, const char *what, const char *text)
{
    const struct csv *m = &r->rows->machines;
    return err_add(r->err, ERR_USAGE, "%s:%zu: no %s is called \"%s\"", m->path, m->line[i], what,
                   text);
}

/* What data/machines.csv says of the machine in place of its texts. */
static int use_table(struct reader *r, size_t i)
{
    const struct csv *m = &r->rows->machines;
    struct coll_row *row = r->row;
    const char *name = csv_cell(m, i, "topology"), *process = csv_cell(m, i, "process");
    const char *class_name = csv_cell(m, i, "library");
    if (*name) {
        struct topo topo;
        uint64_t hosts = row->hosts, gpus = row->hosts * row->per_host;
        if (topo_read(&topo, &r->rows->accels, name, hosts, gpus, r->err)) return -1;
        coll_machine_release(&row->as);
        row->as.topo = topo;
        row->as.gpu_known = true;
        row->as.nics_stated = true;
    }
    unsigned launch = 0, lib_class = 0;
    while (*process && launch < NLAUNCHES && strcmp(launch_name(launch), process) != 0)
        launch++;
    if (launch == NLAUNCHES) return machine_fault(r, i, "process mode", process);
    if (*process) row->as.args.launch = (enum launch)launch;
    while (*class_name && lib_class < NLIB_CLASSES &&
           strcmp(lib_class_name(lib_class), class_name) != 0)
        lib_class++;
    if (lib_class == NLIB_CLASSES) return machine_fault(r, i, "library class", class_name);
    if (*class_name) row->as.args.lib_class = (enum lib_class)lib_class;
    row->from_table = true;
    return 0;
}

/* ---- buckets: text and size alone ---- */

static const char *bucket_of(const struct reader *r, const struct coll_text *t)
{
    const struct coll_row *row = r->row;
    const struct topo *topo = &row->as.topo;
    double domain = (double)topo_domain(topo), n = (double)topo_gpus(topo);
    double nodes = ceil(n / domain);
    bool mpi = row->as.args.library == LIBRARY_MPI;
    if (coll_text_has(t->notes, "size not given")) return "size-not-given";
    if (row->as.other_library) return "other-library";
    if (row->as.args.launch == LAUNCH_SYMMETRIC) return "symmetric-kernels";
    if (mpi || nodes < 2) return "";
    bool sends = row->coll == COLL_SENDRECV || row->coll == COLL_ALLTOALL;
    if (sends && nodes > 4) return "sends-over-4-nodes";
    if (row->coll == COLL_SENDRECV && domain > 1) return "sendrecv-path";
    if (!row->as.nics_stated && (!*t->inter || coll_text_has(t->inter, "not stated")))
        return "nics-not-stated";
    if (nodes >= 128 || n >= 1024) return "128-nodes-or-1024-gpus";
    if (topo->fabric == FABRIC_TCP) return "sockets";
    if (topo->fabric == FABRIC_SLINGSHOT && row->bytes >= 4096 && row->bytes < 16u << 20)
        return "slingshot-rendezvous";
    return "";
}

/* ---- rows ---- */

/* Bytes of the call as nccl-tests counts them: OSU's size is per pair or per rank. */
static uint64_t call_bytes(const struct reader *r, double size)
{
    bool pairs = r->row->coll == COLL_ALLTOALL || r->row->coll == COLL_ALLGATHER ||
                 r->row->coll == COLL_GATHER || r->row->coll == COLL_SCATTER;
    bool osu = strncasecmp(r->row->op, "osu_", 4) == 0;
    double bytes = size * (osu && pairs ? (double)topo_gpus(&r->row->as.topo) : 1);
    return (uint64_t)fmin(bytes, 1e19); /* below 2^64 */
}

/* The columns that are read, and why a row whose cell is empty has no prediction; NULL: it may be.
 */
static const struct {
    const char *name;
    bool needed; /* a file without it is refused */
    const char *reason;
} columns[] = {
    {"machine", true, "machine-missing"},
    {"op", true, "op-missing"},
    {"n_nodes", true, "nodes-missing"},
    {"gpus_per_node", true, "gpus-missing"},
    {"gpu", true, "gpu-missing"},
    {"size_bytes", true, "size-missing"},
    {"time_us", true, NULL},
    {"id", false, NULL},
    {"intra_link", false, NULL},
    {"inter_network", false, NULL},
    {"nccl_version", false, NULL},
    {"algo_proto", false, NULL},
    {"busbw_gbps", false, NULL},
    {"expected_or_buggy", false, NULL},
    {"notes", false, NULL},
};

enum { NCOLUMNS = sizeof columns / sizeof *columns };

static const char *reason_of(const struct reader *r, double size, bool known)
{
    const struct coll_row *row = r->row;
    const struct topo *topo = &row->as.topo;
    for (size_t i = 0; i < NCOLUMNS; i++) {
        if (columns[i].reason && !*cell(r, columns[i].name)) return columns[i].reason;
    }
    if (!known) return "op-unknown";
    if (!row->as.gpu_known) return "gpu-unknown";
    if (row->hosts * row->per_host < 2) return "one-rank";
    if (!(size > 0)) return "size-0";
    if (topo_gpus(topo) <= topo_domain(topo) || topo->nic_Gbps > 0) return NULL;
    return row->as.no_network ? "no-network" : "nic-rate-0";
}

/* Whether the row's bus bandwidth is another than its time and size give, by more than 5 % and the
 * rounding of a figure printed with two digits behind the point. Never part of a prediction. */
static bool contradicts(const struct coll_row *row, double busbw_GBps)
{
    if (row->reason || !(busbw_GBps > 0) || !(row->measured_us > 0)) return false;
    uint64_t ranks = row->hosts * row->per_host;
    if (ranks > UINT32_MAX) return false;
    double rate = (double)row->bytes / row->measured_us / 1e3 *
                  coll_get(row->coll)->busbw_factor((uint32_t)ranks);
    return fabs(busbw_GBps - rate) > .05 * rate + .006;
}

static int read_row(struct reader *r)
{
    struct coll_row *row = r->row;
    double size, time, busbw;
    *row = (struct coll_row){.file = r->csv->path, .line = r->csv->line[r->at], .bucket = ""};
    row->id = cell(r, "id");
    row->machine = cell(r, "machine");
    row->op = cell(r, "op");
    if (read_count(r, "n_nodes", &row->hosts) | read_count(r, "gpus_per_node", &row->per_host) |
        read_number(r, "size_bytes", &size) | read_number(r, "time_us", &time) |
        read_number(r, "busbw_gbps", &busbw))
        return -1;
    row->measured_us = time > 0 ? time : 0;
    const char *state = row->state_word = cell(r, "expected_or_buggy");
    row->state = strcmp(state, "buggy") == 0                 ? STATE_BUGGY
                 : !*state || strcmp(state, "expected") == 0 ? STATE_HEALTHY
                                                             : STATE_UNCLEAR;
    struct err quiet = ERR_INIT;
    const struct coll *coll = coll_find(row->op, &quiet);
    err_release(&quiet);
    row->coll = coll ? coll->id : COLL_ALLREDUCE;
    struct coll_text text = read_text(r);
    coll_machine_of(&text, &r->rows->accels, &row->as);
    size_t known = find_machine(r);
    if (known != SIZE_MAX && use_table(r, known)) return -1;
    coll_fault_apply(&row->as);
    row->reason = reason_of(r, size, coll != NULL);
    if (!(size > 0)) return 0;
    row->bytes = call_bytes(r, size);
    row->band = size < 65536 ? BAND_SMALL : size <= 16777216 ? BAND_MIDDLE : BAND_LARGE;
    row->bucket = bucket_of(r, &text);
    row->contradicts = contradicts(row, busbw);
    return 0;
}

static int check_columns(const struct csv *csv, struct err *err)
{
    int bad = 0;
    for (size_t i = 0; i < NCOLUMNS; i++) {
        const char *name = columns[i].name;
        size_t first = csv_column(csv, name);
        if (first == SIZE_MAX && columns[i].needed)
            bad = err_add(err, ERR_USAGE, "%s:1: there is no column %s", csv->path, name);
        if (first == SIZE_MAX) continue;
        for (size_t k = first + 1; k < csv->ncolumns; k++) {
            if (strcmp(csv->header[k], name) == 0)
                bad = err_add(err, ERR_USAGE,
                              "%s:1: columns %zu and %zu are both called %s; one may be", csv->path,
                              first + 1, k + 1, name);
        }
    }
    return bad;
}

/* ---- repeats ---- */

/* All that was read of a row, and which one it is. */
struct whole_row {
    char *text;
    size_t row;
};

static int by_content(const void *a, const void *b)
{
    const struct whole_row *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : (x->row > y->row) - (x->row < y->row);
}

static char *content_of(const struct csv *csv, size_t at)
{
    char *text = mem_strdup("");
    for (size_t i = 0; i < NCOLUMNS; i++) {
        char *longer = mem_printf("%s%s\n", text, csv_cell(csv, at, columns[i].name));
        free(text);
        text = longer;
    }
    return text;
}

/* A row that says in all columns what one before it says counts once: a file given twice. */
static void mark_repeats(struct coll_rows *rows)
{
    struct whole_row *all = mem_calloc(rows->nrows + 1, sizeof *all);
    size_t n = 0;
    for (size_t t = 0; t < rows->ntables; t++) {
        for (size_t i = 0; i < rows->tables[t].nrows; i++, n++)
            all[n] = (struct whole_row){content_of(&rows->tables[t], i), n};
    }
    qsort(all, n, sizeof *all, by_content);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(all[i].text, all[i - 1].text) == 0) rows->rows[all[i].row].reason = "repeat";
    }
    for (size_t i = 0; i < n; i++)
        free(all[i].text);
    free(all);
}

static int read_table(struct coll_rows *rows, const char *path, struct err *err)
{
    rows->tables = mem_realloc(rows->tables, rows->ntables + 1, sizeof *rows->tables);
    struct csv *csv = &rows->tables[rows->ntables];
    if (csv_read(csv, path, err)) return -1;
    rows->ntables++;
    if (check_columns(csv, err)) return -1;
    rows->rows = mem_realloc(rows->rows, rows->nrows + csv->nrows, sizeof *rows->rows);
    int bad = 0;
    for (size_t i = 0; i < csv->nrows; i++) {
        struct reader r = {.rows = rows, .csv = csv, .at = i, .err = err};
        r.row = &rows->rows[rows->nrows++];
        if (read_row(&r)) bad = -1;
    }
    return bad;
}

int coll_rows_read(struct coll_rows *rows, char *const *paths, size_t npaths, struct err *err)
{
    *rows = (struct coll_rows){0};
    int bad = accel_read(&rows->accels, NULL, err);
    char *table = csv_shipped("machines.csv");
    if (!table) bad = err_add(err, ERR_FAILED, "the shipped table data/machines.csv is not found");
    if (table && csv_read(&rows->machines, table, err)) bad = -1;
    free(table);
    for (size_t i = 0; i < npaths && !bad; i++) {
        if (read_table(rows, paths[i], err)) bad = -1;
    }
    if (!bad) mark_repeats(rows);
    if (!bad && !rows->nrows) bad = err_add(err, ERR_USAGE, "%s: there is no row", paths[0]);
    if (bad) coll_rows_release(rows);
    return bad;
}

void coll_rows_release(struct coll_rows *rows)
{
    for (size_t i = 0; i < rows->nrows; i++) {
        topo_release(&rows->rows[i].as.topo);
    }
    for (size_t i = 0; i < rows->ntables; i++) {
        csv_release(&rows->tables[i]);
    }
    free(rows->rows);
    free(rows->tables);
    csv_release(&rows->machines);
    accel_release(&rows->accels);
    *rows = (struct coll_rows){0};
}

bool coll_row_counts(const struct coll_row *row)
{
    return !row->reason && !*row->bucket && row->state == STATE_HEALTHY && row->measured_us > 0;
}

const char *coll_row_class(const struct coll_row *row)
{
    const struct topo *topo = &row->as.topo;
    if (row->as.args.library == LIBRARY_MPI) return "MPI";
    if (topo_gpus(topo) > topo_domain(topo)) return topo_fabric_title(topo->fabric);
    switch (topo->scale_up) {
    case SCALE_UP_NVSWITCH:
        return "1 node, NVSwitch";
    case SCALE_UP_PCIE:
    case SCALE_UP_PCIE_HOST:
        return "1 node, PCIe";
    case SCALE_UP_XGMI:
    case SCALE_UP_NVLINK_MESH:
        return "1 node, mesh";
    default:
        return "1 node, NVLink";
    }
}

const char *coll_band_name(enum coll_band band)
{
    static const char *const names[NBANDS] = {"< 64 KiB", "64 KiB - 16 MiB", "> 16 MiB"};
    return names[band];
}
