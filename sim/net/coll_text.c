/* SPDX-License-Identifier: Apache-2.0
 * Words are looked for in order, the first that fits counts; numbers are read with the words around
 * them. Rates by name (HDR, NDR, ..) and of unstated links are the vendors' figures. */
#include "net/coll_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

static const char *const fault_names[NCOLL_FAULTS] = {"", "no-peer-access", "one-nic", "far-nic",
                                                      "tcp"};

const char *coll_fault_name(enum coll_fault fault)
{
    return fault_names[fault];
}

bool coll_text_has(const char *text, const char *words)
{
    while (*words) {
        size_t n = strcspn(words, "|");
        for (const char *at = text; n && *at; at++) {
            if (strncasecmp(at, words, n) == 0) return true;
        }
        words += n;
        words += *words == '|';
    }
    return false;
}

/* ---- rates of NICs ---- */

static const struct {
    const char *word;
    double Gbps;
} speeds[] = {{"XDR", 800},       {"NDR200", 200},    {"NDR", 400},     {"HDR100", 100},
              {"HDR", 200},       {"EDR", 100},       {"FDR", 56},      {"QDR", 32},
              {"Slingshot", 200}, {"Omni-Path", 100}, {"OmniPath", 100}};

/* The rate in Gb/s behind a number: "400Gb/s", "400 Gbps", "400G", "3.2 Tb/s", "50 GB/s"; else 0.
 */
static double unit_of(const char *at)
{
    while (*at == ' ')
        at++;
    if (at[0] != 'G' && at[0] != 'T') return 0;
    double scale = at[0] == 'T' ? 1000 : 1;
    if (at[1] == 'B') return 8 * scale;
    if (at[1] == 'b' || at[1] == 'i' || at[1] == '/') return scale;
    return isalpha((unsigned char)at[1]) ? 0 : scale;
}

static bool inside_word(const char *text, const char *at)
{
    return at > text && (isalnum((unsigned char)at[-1]) || at[-1] == '.' || at[-1] == '-');
}

/* The first rate of the text in Gb/s and where it stands; of "400-500 Gb/s" the lower. */
static double first_rate(const char *text, const char **where)
{
    for (const char *at = text; *at; at++) {
        if (!isdigit((unsigned char)*at) || inside_word(text, at)) continue;
        char *end;
        double rate = strtod(at, &end);
        const char *unit = end;
        if (*unit == '-' && isdigit((unsigned char)unit[1])) {
            char *behind;
            strtod(unit + 1, &behind);
            unit = behind;
        }
        double scale = unit_of(unit);
        if (scale > 0) {
            *where = at;
            return rate * scale;
        }
        at = end - 1;
    }
    return 0;
}

/* The rate of a named speed, and where its name stands. */
static double named_rate(const char *text, const char **where)
{
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
        const char *at = strcasestr(text, speeds[i].word);
        if (!at) continue;
        *where = at;
        return speeds[i].Gbps;
    }
    return 0;
}

/* A number of its own ("8 NIC x", "8x", "2 rails") in the part of the text, between commas and
 * brackets, that ends at `end`; 0 if there is none. */
static unsigned long count_before(const char *text, const char *end)
{
    const char *start = end;
    while (start > text && !strchr(",;()", start[-1]))
        start--;
    unsigned long count = 0;
    for (const char *at = start; at < end; at++) {
        if (!isdigit((unsigned char)*at) || inside_word(text, at)) continue;
        char *behind;
        unsigned long n = strtoul(at, &behind, 10);
        if (behind < end && (*behind == ' ' || *behind == 'x' || (unsigned char)*behind == 0xc3))
            count = n;
        at = behind - 1;
    }
    if (count) return count;
    char *part = mem_printf("%.*s", (int)(end - start), start);
    if (coll_text_has(part, "dual|two ")) count = 2;
    if (coll_text_has(part, "quad|four ")) count = 4;
    free(part);
    return count;
}

/* A number before a word for a NIC, anywhere: "4 rails", "8 NICs"; 0 if there is none. */
static unsigned long count_of_words(const char *text)
{
    static const char *const words[] = {"NIC",  "port", "rail", "HCA",      "QSFP",
                                        "card", "adap", "CX",   "ConnectX", NULL};
    for (const char *at = text; *at; at++) {
        if (!isdigit((unsigned char)*at) || inside_word(text, at)) continue;
        char *behind;
        unsigned long n = strtoul(at, &behind, 10);
        while (*behind == ' ' || *behind == 'x')
            behind++;
        for (size_t i = 0; words[i]; i++) {
            if (strncasecmp(behind, words[i], strlen(words[i])) == 0) return n;
        }
        at = behind > at ? behind - 1 : at;
    }
    return 0;
}

double coll_text_host_Gbps(const char *text, uint64_t per_host, bool one_per_host, bool *stated)
{
    const char *where = text;
    double rate = first_rate(text, &where);
    if (!(rate > 0)) rate = named_rate(text, &where);
    *stated = true;
    unsigned long count = rate > 0 ? count_before(text, where) : 0;
    if (!count) count = count_of_words(text);
    double all = (double)count * rate;
    if (coll_text_has(text, "per GPU|/GPU|per accelerator"))
        return (count ? all : rate) * (double)per_host;
    if (count) return all;
    if (coll_text_has(text, "per node|per host|/node|total|aggregate") || rate >= 1000) return rate;
    *stated = false;
    return one_per_host || (rate > 0 && rate < 100) ? rate : rate * (double)per_host;
}

/* Whether a text states a rate of 0 ("8 NICs x 0 Gb/s") or that there are no NICs ("0 NICs"). */
static bool states_none(const char *text)
{
    bool first = true; /* of its part, between commas and brackets */
    for (const char *at = text; *at; at++) {
        if (strchr(",;()", *at)) first = true;
        if (!isdigit((unsigned char)*at) || inside_word(text, at)) continue;
        char *end;
        if (first && at[0] == '0' && at[1] == 'x') return true; /* no hexadecimal figure */
        double value = strtod(at, &end);
        if (!(value > 0) && unit_of(end) > 0) return true;
        while (*end == ' ')
            end++;
        if (!(value > 0) && first && (*end == 'x' || strncasecmp(end, "NIC", 3) == 0)) return true;
        first = false;
        at = end > at ? end - 1 : at;
    }
    return false;
}

enum fabric coll_text_fabric(const char *text)
{
    static const struct {
        const char *words;
        enum fabric fabric;
    } kinds[] = {{"TCP|socket|IPoIB", FABRIC_TCP},
                 {"EFA", FABRIC_EFA},
                 {"Slingshot|CXI|Cassini", FABRIC_SLINGSHOT},
                 {"Omni-Path|OmniPath|OPA", FABRIC_OMNIPATH},
                 {"RoCE|gIB|RDMA over", FABRIC_ROCE},
                 {"IB |IB,|InfiniBand|NDR|HDR|EDR|XDR|FDR", FABRIC_IB}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (coll_text_has(text, kinds[i].words)) return kinds[i].fabric;
    }
    if (!coll_text_has(text, "Ethernet|GbE")) return FABRIC_IB;
    const char *where;
    double rate = first_rate(text, &where);
    return rate > 0 && rate < 100 ? FABRIC_TCP : FABRIC_ROCE;
}

/* ---- accelerators and what joins them ---- */

/* Types by how their names start, where the table has no such part: class, links, rate per
 * direction.
 */
static const struct {
    const char *words, *class_name;
    enum scale_up scale_up;
    double line_GBps, nic_Gbps;
    uint64_t full;
} kinds[] = {
    {"CPU|Xeon|EPYC", "CPU", SCALE_UP_MEMORY, 115, 100, 0},
    {"GB10|Spark|RTX|T4|L4|L40|A2|A10|A16|A30|A40", "", SCALE_UP_PCIE, 31.5, 100, 0},
    {"GB200|B200|B100|GB300|B300", "B200", SCALE_UP_NVSWITCH, 900, 400, 8},
    {"GH200", "H100", SCALE_UP_NVLINK_MESH, 450, 200, 4},
    {"H100|H200|H20", "H100", SCALE_UP_NVSWITCH, 450, 400, 8},
    {"H800", "H100", SCALE_UP_NVSWITCH, 200, 400, 8},
    {"A100", "A100", SCALE_UP_NVSWITCH, 300, 200, 8},
    {"A800", "A100", SCALE_UP_NVSWITCH, 200, 200, 8},
    {"V100", "V100", SCALE_UP_NVLINK_CUBE, 150, 100, 8},
    {"P100", "V100", SCALE_UP_NVLINK_CUBE, 80, 100, 8},
    {"MI300A", "MI300", SCALE_UP_XGMI, 384, 200, 4},
    {"MI350|MI355", "MI355", SCALE_UP_XGMI, 535.5, 400, 8},
    {"MI300|MI308|MI325", "MI300", SCALE_UP_XGMI, 448, 400, 8},
    {"MI100|MI210|MI250", "MI250X", SCALE_UP_XGMI, 175, 100, 8},
};

enum { NKINDS = sizeof kinds / sizeof *kinds };

/* The name without the words that vendors put before it: "NVIDIA Tesla V100" is a V100. */
static const char *model_name(const char *gpu)
{
    static const char *const before[] = {"NVIDIA", "AMD",      "Intel", "Tesla", "GeForce",
                                         "Quadro", "Instinct", "DGX",   "HGX"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        size_t n = strlen(before[i]);
        if (strncasecmp(gpu, before[i], n) != 0 || !strchr(" -_", gpu[n]) || !gpu[n]) continue;
        gpu += n + 1;
        i = SIZE_MAX; /* from the first again */
    }
    return gpu;
}

/* Whether a name starts with one of the words; another digit behind a digit is another name. */
static bool starts_with(const char *name, const char *words)
{
    while (*words) {
        size_t n = strcspn(words, "|");
        bool longer =
            isdigit((unsigned char)words[n - 1]) && isdigit((unsigned char)name[strnlen(name, n)]);
        if (strncasecmp(name, words, n) == 0 && !longer) return true;
        words += n;
        words += *words == '|';
    }
    return false;
}

/* PCIe's rate by the generation that the texts name, or the part's. */
static double pcie_GBps(const struct coll_text *t)
{
    static const double rates[] = {15.75, 31.5, 63, 121};
    const char *at = strcasestr(t->intra, "Gen");
    if (!at) at = strcasestr(t->gpu, "Gen");
    if (at) {
        at += 3;
        while (*at == ' ')
            at++;
    }
    if (!at) at = strcasestr(t->intra, "PCIe") ? strcasestr(t->intra, "PCIe") + 4 : "";
    if (*at >= '3' && *at <= '6') return rates[*at - '3'];
    if (coll_text_has(t->gpu, "T4|V100|P100|RTX 20|RTX20")) return 15.75;
    if (coll_text_has(t->gpu, "H100|H200|5090|RTX 50|RTX50|PRO 6000|B40")) return 63;
    return 31.5;
}

/* "12x25GB/s": links times rate; "150GB/s/dir per pair": times the pairs; "450 GB/s/dir"; 0. */
static double stated_line(const char *text, uint64_t full)
{
    for (const char *at = text; *at; at++) {
        if (!isdigit((unsigned char)*at) || inside_word(text, at)) continue;
        char *end;
        double first = strtod(at, &end);
        const char *next = end;
        while (*next == ' ')
            next++;
        if (*next == 'x') {
            double second = strtod(next + 1, &end);
            while (*end == ' ')
                end++;
            if (second > 0 && strncmp(end, "GB/s", 4) == 0) return first * second;
        } else if (strncmp(next, "GB/s", 4) == 0) {
            if (coll_text_has(next, "per pair|/pair"))
                return full > 1 ? first * (double)(full - 1) : 0;
            if (strncmp(next + 4, "/dir", 4) == 0) return first;
        }
        at = end > at ? end - 1 : at;
    }
    return 0;
}

/* Links of a bridge: "bridge pair (12 links)", of 25 GB/s each; unstated: the part's. */
static double bridge_GBps(const struct coll_text *t)
{
    const char *at = strcasestr(t->intra, " link");
    while (at && at > t->intra && isdigit((unsigned char)at[-1]))
        at--;
    unsigned long links = at ? strtoul(at, NULL, 10) : 0;
    if (links) return 25 * (double)links;
    return coll_text_has(t->gpu, "A100|H100|H200|A800|A30") ? 300 : 56.25;
}

static void take_kind(struct topo *topo, size_t i, double *usual_Gbps)
{
    topo->accel.class_name = kinds[i].class_name;
    topo->scale_up = kinds[i].scale_up;
    topo->line_GBps = kinds[i].line_GBps;
    topo->full_host = kinds[i].full;
    *usual_Gbps = kinds[i].nic_Gbps;
}

static void take_accel(struct topo *topo, const struct accel *accel, double *usual_Gbps)
{
    topo->accel = *accel;
    topo->accel.aliases = NULL;
    topo->accel.naliases = 0;
    topo->scale_up = accel->scale_up;
    topo->line_GBps = accel->line_GBps;
    topo->full_host = accel->usual_per_host;
    *usual_Gbps = accel->usual_nic_Gbps;
}

/* The accelerator and the links inside a host; no figures where the accelerator is not known. */
static void read_inside(const struct coll_text *t, const struct accel_table *accels,
                        struct coll_machine *m, double *usual_Gbps)
{
    struct topo *topo = &m->topo;
    const char *name = model_name(t->gpu);
    const struct accel *accel = accel_match(accels, name, 0);
    size_t k = 0;
    while (k < NKINDS && !starts_with(name, kinds[k].words))
        k++;
    topo->accel = (struct accel){.name = t->gpu, .class_name = ""};
    m->gpu_known = accel || k < NKINDS;
    if (!m->gpu_known) return;
    if (k < NKINDS) take_kind(topo, k, usual_Gbps);
    if (accel) take_accel(topo, accel, usual_Gbps);
    const char *intra = t->intra;
    bool nvlink = coll_text_has(intra, "NVLink|NVSwitch|NVL72|NVL36|xGMI");
    bool slow = coll_text_has(intra, "SHM|P2P disabled|no P2P|via host|host memory|PCI") ||
                coll_text_has(t->gpu, "PCI");
    if (topo->scale_up == SCALE_UP_MEMORY) return;
    if (topo->scale_up == SCALE_UP_PCIE || (slow && !nvlink)) {
        bool host = coll_text_has(intra, "SHM|P2P disabled|no P2P|via host|host memory|SYS");
        topo->scale_up = host ? SCALE_UP_PCIE_HOST : SCALE_UP_PCIE;
        topo->line_GBps = pcie_GBps(t);
    }
    if (coll_text_has(intra, "bridge")) {
        bool pair = t->per_host <= 2; /* a ring over more goes through PCIe */
        topo->scale_up = pair ? SCALE_UP_NVLINK_PAIRS : SCALE_UP_PCIE;
        topo->line_GBps = pair ? bridge_GBps(t) : pcie_GBps(t);
        return;
    }
    if (coll_text_has(intra, "mesh|fully connected|links/pair|link/pair|4-GPU board|all-to-all")) {
        if (topo->scale_up != SCALE_UP_XGMI) {
            topo->scale_up = SCALE_UP_NVLINK_MESH;
            topo->full_host = 4;
        }
    } else if (coll_text_has(intra, "NVSwitch")) {
        topo->scale_up = SCALE_UP_NVSWITCH;
    }
    double line = stated_line(intra, topo->full_host);
    bool pcie = topo->scale_up == SCALE_UP_PCIE || topo->scale_up == SCALE_UP_PCIE_HOST;
    if (line > 0 && !pcie) topo->line_GBps = line;
}

/* Hosts that share one NVLink domain. */
static void read_domain(const struct coll_text *t, struct topo *topo)
{
    topo->domain_hosts = 1;
    const char *at = strcasestr(t->intra, "NVL72");
    if (!at) at = strcasestr(t->intra, "NVL36");
    if (!at) at = strcasestr(t->intra, "MNNVL");
    if (!at || coll_text_has(t->notes, "MNNVL off")) return;
    uint64_t size = strncasecmp(at, "NVL36", 5) == 0 ? 36 : 72;
    uint64_t hosts = size / topo->per_host ? size / topo->per_host : 1;
    const char *over = strcasestr(t->intra, "over ");
    unsigned long domains = over ? strtoul(over + 5, NULL, 10) : 0;
    if (domains) hosts = topo->hosts / domains ? topo->hosts / domains : 1;
    topo->domain_hosts = hosts < topo->hosts ? hosts : topo->hosts;
}

static void read_outside(const struct coll_text *t, struct coll_machine *m, double usual_Gbps)
{
    struct topo *topo = &m->topo;
    bool pcie = topo->scale_up == SCALE_UP_PCIE || topo->scale_up == SCALE_UP_PCIE_HOST ||
                topo->scale_up == SCALE_UP_MEMORY;
    topo->fabric = coll_text_fabric(t->inter);
    topo->oversubscribed = 1;
    double host = coll_text_host_Gbps(t->inter, topo->per_host, pcie, &m->nics_stated);
    bool none = strncasecmp(t->inter, "none", 4) == 0 || strncasecmp(t->inter, "n/a", 3) == 0;
    m->no_network = none;
    bool zero = !none && states_none(t->inter);
    if (zero) {
        host = 0;
        m->nics_stated = true;
    }
    topo->nic_stated = host > 0 || zero;
    if (!topo->nic_stated && !none) {
        host = usual_Gbps * (pcie ? 1 : (double)topo->per_host);
        m->nics_stated = false;
    }
    topo->nic_Gbps = topo->one_nic_Gbps = host / (double)topo->per_host;
    topo->nics = topo->per_host;
}

/* ---- the library ---- */

static enum lib_class read_class(const char *text)
{
    if (coll_text_has(text, "RCCL")) return LIB_RCCL;
    if (coll_text_has(text, "MPI|OSU|UCX")) return LIB_MPI;
    for (const char *at = text; *at; at++) {
        if (at[0] != '2' || at[1] != '.' || inside_word(text, at)) continue;
        unsigned long minor = strtoul(at + 2, NULL, 10);
        return minor <= 18 ? LIB_NCCL_2_18 : minor <= 26 ? LIB_NCCL_2_19 : LIB_NCCL_2_27;
    }
    return NLIB_CLASSES;
}

static enum launch read_launch(const struct coll_text *t)
{
    if (coll_text_has(t->library, "symm") || coll_text_has(t->algo, "symm"))
        return LAUNCH_SYMMETRIC;
    if (coll_text_has(t->notes, "graph") || coll_text_has(t->library, "graph")) return LAUNCH_GRAPH;
    if (coll_text_has(t->notes, "torch|all_reduce_bench") || coll_text_has(t->library, "torch"))
        return LAUNCH_TORCH;
    if (coll_text_has(t->notes, "single process") && !coll_text_has(t->notes, "one process per"))
        return LAUNCH_SINGLE;
    return LAUNCH_PROCESS;
}

static void read_library(const struct coll_text *t, struct coll_machine *m)
{
    struct lib_args *a = &m->args;
    *a = lib_usual();
    a->lib_class = read_class(t->library);
    a->launch = read_launch(t);
    m->other_library = coll_text_has(t->library, "MSCCL|not NCCL|oneCCL|gloo|HCCL|NVSHMEM|UCC");
    bool osu = strncasecmp(t->op, "osu_", 4) == 0;
    if (osu || m->topo.scale_up == SCALE_UP_MEMORY || a->lib_class == LIB_MPI) {
        a->library = LIBRARY_MPI;
        a->lib_class = LIB_MPI;
    }
    if (a->lib_class == NLIB_CLASSES) a->lib_class = lib_class_of(&m->topo);
    a->sharp = coll_text_has(t->algo, "SHARP|CollNet");
    bool ring = strncasecmp(t->algo, "Ring", 4) == 0 && !coll_text_has(t->algo, "NVLS/");
    if (ring || coll_text_has(t->algo, "NVLS off")) a->algo = NCCL_RING;
    bool reduce = coll_text_has(t->op, "all_reduce|allreduce");
    if (a->sharp && reduce && topo_gpus(&m->topo) > topo_domain(&m->topo)) a->algo = NCCL_COLLNET;
}

/* ---- faults ---- */

static enum coll_fault read_fault(const struct coll_text *t)
{
    if (coll_text_has(t->intra, "P2P disabled")) return COLL_FAULT_NO_PEER;
    if (coll_text_has(t->library, "TCP")) return COLL_FAULT_TCP;
    if (coll_text_has(t->notes, "wrong HCA|wrong ports|one HCA|wrong NIC"))
        return COLL_FAULT_ONE_NIC;
    if (coll_text_has(t->notes, "not co-located|hides PCIe switch|pass-through|ACS|ATS") ||
        coll_text_has(t->gpu, "(VM)"))
        return COLL_FAULT_FAR_NIC;
    return COLL_FAULT_NONE;
}

void coll_fault_apply(struct coll_machine *m)
{
    struct topo *topo = &m->topo;
    double host = topo->nic_Gbps * (double)topo->per_host;
    switch (m->fault) {
    case COLL_FAULT_NO_PEER:
        topo->scale_up = SCALE_UP_PCIE_HOST;
        if (topo->line_GBps > 63) topo->line_GBps = topo->line_GBps > 300 ? 63 : 31.5;
        topo->ring_GBps = topo_usual_through_host(topo->line_GBps);
        break;
    case COLL_FAULT_ONE_NIC:
        topo->nic_Gbps = (host < 400 ? host : 400) / (double)topo->per_host;
        break;
    case COLL_FAULT_FAR_NIC: /* peer traffic through the root complex: half the rate or worse */
        topo->nic_Gbps /= 2;
        break;
    case COLL_FAULT_TCP:
        topo->fabric = FABRIC_TCP;
        break;
    default:
        break;
    }
}

void coll_machine_of(const struct coll_text *t, const struct accel_table *accels,
                     struct coll_machine *m)
{
    *m = (struct coll_machine){.topo = {.hosts = t->hosts, .per_host = t->per_host}};
    struct topo *topo = &m->topo;
    double usual_Gbps = 0;
    read_inside(t, accels, m, &usual_Gbps);
    if (topo->full_host < topo->per_host) topo->full_host = topo->per_host;
    topo->ring_GBps = topo->line_GBps;
    read_domain(t, topo);
    read_outside(t, m, usual_Gbps);
    if (coll_text_has(t->intra, "NIC loop")) { /* ranks of a host meet at its NICs too */
        topo->hosts *= topo->per_host;
        topo->per_host = topo->full_host = topo->domain_hosts = 1;
    }
    topo->name = mem_printf("%s %llux%llu", t->machine, (unsigned long long)t->hosts,
                            (unsigned long long)t->per_host);
    read_library(t, m);
    m->fault = read_fault(t);
}

char *coll_machine_describe(const struct coll_machine *m)
{
    if (m->gpu_known) return topo_describe(&m->topo);
    return mem_printf("%" PRIu64 " host%s x %" PRIu64 " %s, an accelerator that is not known",
                      m->topo.hosts, m->topo.hosts == 1 ? "" : "s", m->topo.per_host,
                      *m->topo.accel.name ? m->topo.accel.name : "(no name)");
}

void coll_machine_release(struct coll_machine *m)
{
    free(m->topo.name);
    m->topo.name = NULL;
}
