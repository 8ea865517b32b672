/* SPDX-License-Identifier: Apache-2.0
 * The XML of an MSCCL file, element by element, with expat: it streams, so that nothing is held but
 * what the steps say. Unknown elements and attributes are passed over; the first fault ends it. */
#include <errno.h>
#include <expat.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/msccl_file.h"

enum { PIECE = 1 << 16, SHOWN = 40, MOST_CHUNKS = 1 << 30 };

static const struct file_info infos[FILE_KIND_COUNT] = {
    /*                              type   sends  recvs  src    dst    writes dst */
    [FILE_SEND] = {"s", true, false, true, false, false},
    [FILE_RECV] = {"r", false, true, false, false, true},
    [FILE_RECV_COPY_SEND] = {"rcs", true, true, false, false, true},
    [FILE_RECV_REDUCE_COPY] = {"rrc", false, true, true, false, true},
    [FILE_RECV_REDUCE_SEND] = {"rrs", true, true, true, false, false},
    [FILE_RECV_REDUCE_COPY_SEND] = {"rrcs", true, true, true, false, true},
    [FILE_COPY] = {"cpy", false, false, true, false, true},
    [FILE_REDUCE] = {"re", false, false, true, true, true},
    [FILE_NOP] = {"nop", false, false, false, false, false},
};

const struct file_info *file_info(enum file_kind kind)
{
    return &infos[kind];
}

int file_fault(const struct file *file, uint32_t line, struct err *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *sentence = mem_vprintf(format, args);
    va_end(args);
    err_add(err, ERR_USAGE, "%s:%u: %s", file->path, line, sentence);
    free(sentence);
    return -1;
}

uint32_t file_rank(const struct file *file, uint32_t step)
{
    return file->gpus[file->blocks[file->steps[step].block].gpu].id;
}

uint32_t file_tb(const struct file *file, uint32_t step)
{
    return file->blocks[file->steps[step].block].id;
}

uint32_t file_s(const struct file *file, uint32_t step)
{
    return step - file->blocks[file->steps[step].block].first;
}

/* ---- attributes ---- */

struct parse {
    struct file *file;
    XML_Parser parser;
    struct err *err;
    unsigned depth;   /* open elements */
    unsigned unknown; /* depth of the outermost unknown element; 0: in none */
    bool bad;
};

/* A fault of the line that is being read; nothing is read after it. */
static int fault(struct parse *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fault(struct parse *p, const char *format, ...)
{
    if (p->bad) return -1;
    va_list args;
    va_start(args, format);
    char *sentence = mem_vprintf(format, args);
    va_end(args);
    p->bad = true;
    file_fault(p->file, (uint32_t)XML_GetCurrentLineNumber(p->parser), p->err, "%s", sentence);
    free(sentence);
    XML_StopParser(p->parser, XML_FALSE);
    return -1;
}

/* A value of the file as sentences may show it: short and on one line. */
static const char *shown(char text[SHOWN + 4], const char *value)
{
    size_t n = strnlen(value, SHOWN);
    for (size_t i = 0; i < n; i++) {
        text[i] = (unsigned char)value[i] < ' ' ? '?' : value[i];
    }
    snprintf(text + n, 4, "%s", value[n] ? ".." : "");
    return text;
}

static const char *find(const char **attrs, const char *name)
{
    for (; *attrs; attrs += 2) {
        if (strcmp(attrs[0], name) == 0) return attrs[1];
    }
    return NULL;
}

static const char *need(struct parse *p, const char **attrs, const char *element, const char *name)
{
    const char *value = find(attrs, name);
    if (!value) fault(p, "<%s> lacks the attribute \"%s\"", element, name);
    return value;
}

struct range {
    int64_t min, max;
    bool may_lack; /* then the value stays */
};

/* A whole number in a range. -1 with a sentence. */
static int number(struct parse *p, const char **attrs, const char *element, const char *name,
                  struct range range, int64_t *value)
{
    const char *text = find(attrs, name);
    if (!text && range.may_lack) return 0;
    if (!text) return fault(p, "<%s> lacks the attribute \"%s\"", element, name);
    char *end, show[SHOWN + 4];
    errno = 0;
    long long read = strtoll(text, &end, 10);
    if (end == text || *end || errno || read < range.min || read > range.max) {
        return fault(p, "<%s %s=\"%s\">: it is a whole number from %" PRId64 " to %" PRId64,
                     element, name, shown(show, text), range.min, range.max);
    }
    *value = read;
    return 0;
}

static uint32_t or_none(int64_t value)
{
    return value < 0 ? FILE_NONE : (uint32_t)value;
}

/* ---- elements ---- */

static int read_coll(struct parse *p, const char **attrs)
{
    const char *name = need(p, attrs, "algo", "coll");
    if (!name) return -1;
    char show[SHOWN + 4];
    struct err why = ERR_INIT;
    p->file->coll = coll_find(shown(show, name), &why);
    if (!p->file->coll) fault(p, "%s", why.text);
    err_release(&why);
    return p->file->coll ? 0 : -1;
}

static int read_algo(struct parse *p, const char **attrs)
{
    struct file *file = p->file;
    if (file->line) return fault(p, "a second <algo>; a file holds one");
    file->line = (uint32_t)XML_GetCurrentLineNumber(p->parser);
    char show[SHOWN + 4];
    const char *name = find(attrs, "name");
    snprintf(file->name, sizeof file->name, "%.31s", name ? shown(show, name) : "file");
    int64_t nranks = 0, loop = 0, root = 0, in_place = 0, out_of_place = -1, listed = 0;
    if (read_coll(p, attrs) ||
        number(p, attrs, "algo", "ngpus", (struct range){1, 1 << 30, false}, &nranks) ||
        number(p, attrs, "algo", "nchunksperloop", (struct range){1, MOST_CHUNKS, false}, &loop) ||
        number(p, attrs, "algo", "root", (struct range){0, nranks - 1, true}, &root) ||
        number(p, attrs, "algo", "inplace", (struct range){0, 1, true}, &in_place) ||
        number(p, attrs, "algo", "outofplace", (struct range){0, 1, true}, &out_of_place) ||
        number(p, attrs, "algo", "list", (struct range){0, 1, true}, &listed)) {
        return -1;
    }
    file->nranks = (uint32_t)nranks;
    file->loop = (uint32_t)loop;
    file->root = (uint32_t)root;
    file->listed = listed;
    file->places[1] = in_place && coll_in_place(file->coll);
    file->places[0] = out_of_place < 0 ? !in_place : out_of_place;
    uint32_t widest = coll_blocks(file->coll, BUF_SCRATCH, file->nranks);
    if (file->loop % widest) {
        return fault(p,
                     "<algo nchunksperloop=\"%u\">: %s over %u ranks has %u blocks, which must "
                     "divide it",
                     file->loop, file->coll->name, file->nranks, widest);
    }
    if (root && !file->coll->rooted) {
        return fault(p, "<algo root=\"%u\">: %s has no root", file->root, file->coll->name);
    }
    if (!file->places[0] && !file->places[1]) {
        return fault(p,
                     in_place ? "<algo inplace=\"1\">: %s has no placement in place"
                              : "<algo> of %s is neither for in place nor for out of place",
                     file->coll->name);
    }
    return 0;
}

static int read_gpu(struct parse *p, const char **attrs)
{
    struct file *file = p->file;
    const struct range chunks = {0, MOST_CHUNKS, false};
    int64_t id = 0, scratch = 0;
    if (number(p, attrs, "gpu", "id", (struct range){0, (int64_t)file->nranks - 1, false}, &id) ||
        number(p, attrs, "gpu", "s_chunks", chunks, &scratch)) {
        return -1;
    }
    MEM_GROW(file->gpus, file->ngpus, file->gpus_cap);
    file->gpus[file->ngpus++] =
        (struct file_gpu){.line = (uint32_t)XML_GetCurrentLineNumber(p->parser),
                          .id = (uint32_t)id,
                          .s_chunks = (uint32_t)scratch,
                          .first = (uint32_t)file->nblocks};
    return 0;
}

static int read_block(struct parse *p, const char **attrs)
{
    struct file *file = p->file;
    struct file_gpu *gpu = &file->gpus[file->ngpus - 1];
    const struct range peer = {-1, (int64_t)file->nranks - 1, false};
    int64_t id = 0, send = -1, recv = -1, channel = 0, lane = gpu->count;
    if (number(p, attrs, "tb", "id", (struct range){0, INT32_MAX, false}, &id) ||
        number(p, attrs, "tb", "send", peer, &send) ||
        number(p, attrs, "tb", "recv", peer, &recv) ||
        number(p, attrs, "tb", "chan", (struct range){-1, UINT16_MAX, false}, &channel) ||
        (file->listed &&
         number(p, attrs, "tb", "lane", (struct range){0, UINT16_MAX - 1, false}, &lane))) {
        return -1;
    }
    if (send == gpu->id || recv == gpu->id) {
        return fault(p, "<tb id=\"%" PRId64 "\"> of gpu %u has the gpu itself as its peer", id,
                     gpu->id);
    }
    if (gpu->count >= UINT16_MAX) {
        return fault(p, "gpu %u has more than %d blocks", gpu->id, UINT16_MAX);
    }
    MEM_GROW(file->blocks, file->nblocks, file->blocks_cap);
    file->blocks[file->nblocks++] =
        (struct file_block){.line = (uint32_t)XML_GetCurrentLineNumber(p->parser),
                            .id = (uint32_t)id,
                            .gpu = (uint32_t)file->ngpus - 1,
                            .send = or_none(send),
                            .recv = or_none(recv),
                            .channel = (uint16_t)(channel < 0 ? 0 : channel),
                            .lane = (uint16_t)lane,
                            .first = (uint32_t)file->nsteps};
    gpu->count++;
    return 0;
}

static int read_kind(struct parse *p, const char **attrs, uint8_t *kind)
{
    const char *type = need(p, attrs, "step", "type");
    if (!type) return -1;
    for (unsigned k = 0; k < FILE_KIND_COUNT; k++) {
        if (strcmp(type, infos[k].type) == 0) {
            *kind = (uint8_t)k;
            return 0;
        }
    }
    char show[SHOWN + 4];
    return fault(p, "<step type=\"%s\">: valid are s, r, rcs, rrc, rrs, rrcs, cpy, re, nop",
                 shown(show, type));
}

/* A local chunk: buffer and offset, which must lie in that buffer. */
static int read_ref(struct parse *p, const char **attrs, const char *buf_name, const char *off_name,
                    uint32_t cnt, uint8_t *buf, uint32_t *chunk)
{
    static const char letters[] = "ios";
    const struct file *file = p->file;
    const struct file_gpu *gpu = &file->gpus[file->ngpus - 1];
    const char *text = need(p, attrs, "step", buf_name);
    if (!text) return -1;
    const char *letter = strlen(text) == 1 ? strchr(letters, *text) : NULL;
    if (!letter) {
        char show[SHOWN + 4];
        return fault(p, "<step %s=\"%s\">: valid are i, o and s", buf_name, shown(show, text));
    }
    *buf = (uint8_t)(letter - letters);
    uint32_t widest = coll_blocks(file->coll, BUF_SCRATCH, file->nranks);
    uint64_t size = *buf == BUF_SCRATCH ? gpu->s_chunks
                                        : (uint64_t)coll_blocks(file->coll, *buf, file->nranks) *
                                              (file->loop / widest);
    int64_t off = 0;
    if (number(p, attrs, "step", off_name, (struct range){-1, MOST_CHUNKS, false}, &off)) return -1;
    if (off < 0 || (uint64_t)off + cnt > size) {
        return fault(
            p, "<step>: %u chunk(s) of %c from %" PRId64 " on; gpu %u has %" PRIu64 " of them", cnt,
            *letter, off, gpu->id, size);
    }
    *chunk = (uint32_t)off;
    return 0;
}

static int check_peers(struct parse *p, const struct file_block *block, uint8_t kind)
{
    const struct file_info *info = &infos[kind];
    if ((info->sends && block->send == FILE_NONE) || (info->receives && block->recv == FILE_NONE)) {
        return fault(p, "<step type=\"%s\">: block %u has no peer to %s", info->type, block->id,
                     info->sends && block->send == FILE_NONE ? "send to" : "receive from");
    }
    return 0;
}

static int read_step(struct parse *p, const char **attrs)
{
    struct file *file = p->file;
    struct file_block *block = &file->blocks[file->nblocks - 1];
    struct file_step step = {.line = (uint32_t)XML_GetCurrentLineNumber(p->parser),
                             .block = (uint32_t)file->nblocks - 1,
                             .dep = FILE_NONE,
                             .from = FILE_NONE,
                             .to = FILE_NONE};
    if (read_kind(p, attrs, &step.kind) || check_peers(p, block, step.kind)) return -1;
    const struct file_info *info = &infos[step.kind];
    bool nop = step.kind == FILE_NOP;
    const struct range any = {-1, INT32_MAX, true};
    int64_t s = 0, cnt = 1, depid = -1, deps = -1, at = -1;
    if (number(p, attrs, "step", "s", (struct range){0, INT32_MAX, false}, &s) ||
        (!nop && number(p, attrs, "step", "cnt", (struct range){1, MOST_CHUNKS, false}, &cnt)) ||
        number(p, attrs, "step", "depid", any, &depid) ||
        number(p, attrs, "step", "deps", any, &deps) || number(p, attrs, "step", "at", any, &at)) {
        return -1;
    }
    if (s != block->count) {
        return fault(p, "<step s=\"%" PRId64 "\">: the next one of block %u is %u", s, block->id,
                     block->count);
    }
    step.cnt = (uint32_t)cnt;
    bool dst = info->reads_dst || info->writes_dst;
    if ((info->reads_src &&
         read_ref(p, attrs, "srcbuf", "srcoff", step.cnt, &step.src_buf, &step.src)) ||
        (dst && read_ref(p, attrs, "dstbuf", "dstoff", step.cnt, &step.dst_buf, &step.dst))) {
        return -1;
    }
    if (file->listed && at < 0 && !nop) return fault(p, "<step> of a list lacks its place, \"at\"");
    if ((depid < 0) != (deps < 0)) {
        return fault(p, "<step depid=\"%" PRId64 "\" deps=\"%" PRId64 "\">: both or none", depid,
                     deps);
    }
    step.depid = or_none(depid);
    step.deps = or_none(deps);
    step.at = file->listed ? or_none(at) : FILE_NONE;
    if (file->nsteps >= INT32_MAX) return fault(p, "more than 2^31 steps");
    MEM_GROW(file->steps, file->nsteps, file->steps_cap);
    file->steps[file->nsteps++] = step;
    file->values += step.cnt;
    block->count++;
    return 0;
}

/* The elements that count, and how deep each stands. */
static const struct {
    const char *name;
    unsigned depth;
    int (*read)(struct parse *p, const char **attrs);
} elements[] = {
    {"algo", 0, read_algo}, {"gpu", 1, read_gpu}, {"tb", 2, read_block}, {"step", 3, read_step}};

static void on_start(void *ctx, const char *name, const char **attrs)
{
    struct parse *p = ctx;
    unsigned depth = p->depth++;
    if (p->bad || p->unknown) return;
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        if (strcmp(name, elements[i].name) != 0) continue;
        if (depth != elements[i].depth) {
            fault(p, "<%s> stands at the wrong place; it is algo, gpu, tb, step from outside in",
                  name);
        } else {
            elements[i].read(p, attrs);
        }
        return;
    }
    char show[SHOWN + 4];
    if (depth == 0) fault(p, "<%s> is no schedule; an MSCCL file is an <algo>", shown(show, name));
    p->unknown = depth + 1;
}

static void on_end(void *ctx, const char *name)
{
    struct parse *p = ctx;
    (void)name;
    if (p->unknown == p->depth) p->unknown = 0;
    p->depth--;
}

static void on_doctype(void *ctx, const char *name, const char *system, const char *public_id,
                       int internal)
{
    (void)name, (void)system, (void)public_id, (void)internal;
    fault(ctx, "a DOCTYPE; schedules have none, and entities are not expanded");
}

/* ---- the text ---- */

static int feed(struct parse *p, const char *text, size_t bytes, bool last)
{
    for (size_t at = 0; !p->bad && (at < bytes || last);) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        bool end = last && at + n == bytes;
        p->file->bytes += n;
        if (XML_Parse(p->parser, text + at, (int)n, end) == XML_STATUS_ERROR && !p->bad) {
            return fault(p, "no XML: %s", XML_ErrorString(XML_GetErrorCode(p->parser)));
        }
        at += n;
        if (end) break;
    }
    return p->bad ? -1 : 0;
}

static int feed_file(struct parse *p, struct err *err)
{
    const char *path = p->file->path;
    FILE *from = fopen(path, "rb");
    if (!from) return err_add(err, ERR_USAGE, "%s: %s", path, strerror(errno));
    char *buffer = mem_calloc(PIECE, 1);
    int bad = 0;
    for (size_t n = 1; !bad && n > 0;) {
        n = fread(buffer, 1, PIECE, from);
        if (ferror(from)) {
            bad = err_add(err, ERR_USAGE, "%s: %s", path, strerror(errno));
        } else {
            bad = feed(p, buffer, n, n == 0);
        }
    }
    free(buffer);
    fclose(from);
    return bad;
}

int file_parse(struct file *file, const char *path, const char *text, size_t bytes, struct err *err)
{
    *file = (struct file){.path = path};
    struct parse p = {.file = file, .err = err, .parser = XML_ParserCreate(NULL)};
    XML_SetUserData(p.parser, &p);
    XML_SetElementHandler(p.parser, on_start, on_end);
    XML_SetStartDoctypeDeclHandler(p.parser, on_doctype);
    int bad = text ? feed(&p, text, bytes, true) : feed_file(&p, err);
    XML_ParserFree(p.parser);
    return bad;
}

void file_release(struct file *file)
{
    free(file->gpus);
    free(file->blocks);
    free(file->steps);
    free(file->gpu_of);
    free(file->order);
    free(file->pos);
}
