/* SPDX-License-Identifier: Apache-2.0
 * How libraries are modelled: NCCL's published sums to the digit, the closed forms' shape, what
 * must be refused, the constants' table, and texts of published tables as machines. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/coll_text.h"
#include "net/nccl.h"

static struct accel_table accels;
static struct net_const_table consts;

static void open_tables(void)
{
    struct err err = ERR_INIT;
    cr_assert(accel_read(&accels, NULL, &err) == 0, "%s", err.text);
    cr_assert(net_const_read(&consts, NULL, &err) == 0, "%s", err.text);
}

static void close_tables(void)
{
    accel_release(&accels);
    net_const_release(&consts);
}

TestSuite(library, .init = open_tables, .fini = close_tables);

static struct topo named(const char *name, uint64_t hosts, uint64_t gpus)
{
    struct topo topo;
    struct err err = ERR_INIT;
    cr_assert(topo_read(&topo, &accels, name, hosts, gpus, &err) == 0, "%s", err.text);
    return topo;
}

static struct lib_time timed(const struct topo *topo, const struct lib_args *args,
                             enum coll_id coll, uint64_t bytes)
{
    struct lib_time time;
    struct err err = ERR_INIT;
    cr_assert(lib_closed(topo, &consts.values, args, coll, bytes, &time, &err) == 0, "%s",
              err.text);
    return time;
}

static double busbw(const struct lib_time *time, uint64_t bytes, double factor)
{
    return factor * (double)bytes / time->time_us / 1e3;
}

/* ---- NCCL's own sums ---- */

static double nccl_us(const struct topo *topo, int algo, int proto, uint64_t bytes)
{
    struct site site;
    struct err err = ERR_INIT;
    struct nccl_choice choice;
    struct lib_args args = lib_usual();
    args.algo = algo;
    args.proto = proto;
    cr_assert(site_of(topo, &site, &err) == 0, "%s", err.text);
    cr_assert(nccl_choose(&site, &args, COLL_ALLREDUCE, bytes, &choice));
    cr_assert(choice.algo == algo && choice.proto == proto);
    return choice.time_us;
}

/* Latencies that follow from NCCL's published constants, us: rows LL, LL128, Simple. */
Test(library, nccl_latencies)
{
    static const struct {
        const char *name;
        uint64_t hosts, gpus;
        double ring[3], tree[3];
    } cases[] = {
        {"dgx-h100", 1, 2, {7.8, 17.8, 15.2}, {8.0, 16.5, 16.4}},
        {"dgx-h100", 1, 4, {10.2, 25.4, 28.8}, {10.4, 21.5, 32.4}},
        {"dgx-h100", 1, 8, {15.0, 40.6, 56.0}, {15.2, 31.5, 64.4}},
        {"dgx-h100", 2, 16, {40, 75, 132}, {25, 49, 92}},
        {"dgx-h100", 4, 32, {79, 144, 283}, {35, 66, 120}},
        {"dgx-h100", 16, 128, {312, 560, 1190}, {55, 100, 176}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct topo topo = named(cases[i].name, cases[i].hosts, cases[i].gpus);
        double tolerance = cases[i].hosts > 1 ? 1 : .06; /* as rounded where they are published */
        for (int p = 0; p < NNCCL_PROTOS; p++) {
            double ring = nccl_us(&topo, NCCL_RING, p, 1), tree = nccl_us(&topo, NCCL_TREE, p, 1);
            cr_assert(fabs(ring - cases[i].ring[p]) < tolerance, "ring %zu %d: %g", i, p, ring);
            cr_assert(fabs(tree - cases[i].tree[p]) < tolerance, "tree %zu %d: %g", i, p, tree);
        }
        topo_release(&topo);
    }
}

Test(library, nccl_choices)
{
    static const struct {
        const char *name;
        uint64_t hosts;
        enum coll_id coll;
        uint64_t bytes;
        int algo, proto;
    } cases[] = {
        {"dgx-a100", 1, COLL_ALLREDUCE, 8, NCCL_RING, NCCL_LL},
        {"dgx-a100", 1, COLL_ALLREDUCE, 1ull << 30, NCCL_RING, NCCL_SIMPLE},
        {"dgx-a100", 4, COLL_ALLREDUCE, 8, NCCL_TREE, NCCL_LL},
        {"dgx-h100", 1, COLL_ALLREDUCE, 8, NCCL_RING, NCCL_LL},
        {"dgx-h100", 1, COLL_ALLREDUCE, 1ull << 30, NCCL_NVLS, NCCL_SIMPLE},
        {"dgx-h100", 1, COLL_ALLGATHER, 1ull << 30, NCCL_RING, NCCL_SIMPLE},
        {"dgx-h100", 1, COLL_ALLTOALL, 1ull << 20, NCCL_P2P, NCCL_SIMPLE},
        {"pcie8-a100", 1, COLL_ALLREDUCE, 1ull << 30, NCCL_RING, NCCL_SIMPLE},
    };
    struct lib_args args = lib_usual();
    args.lib_class = LIB_NCCL_2_27;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct topo topo = named(cases[i].name, cases[i].hosts, 0);
        struct lib_time time = timed(&topo, &args, cases[i].coll, cases[i].bytes);
        cr_assert(time.nccl.algo == cases[i].algo && time.nccl.proto == cases[i].proto,
                  "%zu: %s %s", i, time.nccl.algo_name, time.nccl.proto_name);
        cr_assert(time.nccl.channels >= 1 && time.choice.channels >= 1);
        if (cases[i].bytes == 1ull << 30 || cases[i].bytes == 8) /* far from crossovers: agreed */
            cr_assert(time.choice.algo == cases[i].algo, "%zu: %s", i, time.choice.algo_name);
        topo_release(&topo);
    }
}

/* ---- closed forms ---- */

/* Published plateaus (busbw, GB/s) of sweeps that the constants have seen among others. */
Test(library, plateaus)
{
    static const struct {
        const char *name;
        uint64_t hosts;
        enum coll_id coll;
        double factor, low, high;
    } cases[] = {
        {"dgx-a100", 1, COLL_ALLREDUCE, 1.75, 222, 240},
        {"dgx-h100", 1, COLL_ALLREDUCE, 1.75, 460, 490},
        {"dgx-h100", 1, COLL_ALLGATHER, .875, 335, 372},
        {"dgx-b200", 1, COLL_ALLREDUCE, 1.75, 780, 870},
        {"hgx-mi300x", 1, COLL_ALLREDUCE, 1.75, 300, 325},
        {"dgx-a100", 2, COLL_ALLGATHER, .9375, 175, 195},
        {"alps-gh200", 16, COLL_ALLREDUCE, 2 * 63. / 64, 86, 100},
    };
    const uint64_t bytes = 8ull << 30;
    struct lib_args args = lib_usual();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct topo topo = named(cases[i].name, cases[i].hosts, 0);
        struct lib_time time = timed(&topo, &args, cases[i].coll, bytes);
        double got = busbw(&time, bytes, cases[i].factor);
        cr_assert(got > cases[i].low && got < cases[i].high, "%zu: %g GB/s", i, got);
        cr_assert(time.ceiling_GBps >= got * .999 && *time.limit);
        topo_release(&topo);
    }
}

/* Times grow with the size, are finite for all sizes, and their parts are not negative. */
Test(library, sizes)
{
    static const char *const names[] = {"dgx-a100", "dgx-h100", "gb200-nvl72", "hgx-mi300x",
                                        "pcie8",    "dgx2x8",   "alps-gh200x4"};
    static const enum coll_id colls[] = {COLL_ALLREDUCE, COLL_ALLGATHER, COLL_REDUCE_SCATTER,
                                         COLL_ALLTOALL,  COLL_BROADCAST, COLL_REDUCE,
                                         COLL_GATHER,    COLL_SCATTER,   COLL_SENDRECV};
    for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
        struct topo topo = named(names[t], 0, 0);
        for (size_t k = 0; k < sizeof colls / sizeof *colls; k++) {
            for (int library = LIBRARY_NCCL; library < NLIBRARIES; library++) {
                struct lib_args args = lib_usual();
                args.library = (enum library)library;
                double last = 0;
                for (int bit = -1; bit < 60; bit += 3) {
                    uint64_t bytes = bit < 0 ? 0 : (1ull << bit) + 1;
                    struct lib_time time = timed(&topo, &args, colls[k], bytes);
                    cr_assert(isfinite(time.time_us) && time.time_us > 0);
                    cr_assert(time.time_us >= last * (1 - 1e-12), "%s %zu 2^%d: %g < %g", names[t],
                              k, bit, time.time_us, last);
                    cr_assert(time.base_us >= 0 && time.latency_us >= 0 && time.wire_us >= 0);
                    last = time.time_us;
                }
            }
        }
        topo_release(&topo);
    }
}

Test(library, the_user_knows_better)
{
    struct topo topo = named("dgx-a100", 4, 0);
    struct lib_args args = lib_usual();
    double usual = timed(&topo, &args, COLL_ALLREDUCE, 8).time_us;
    args.alpha_us = 100;
    double far = timed(&topo, &args, COLL_ALLREDUCE, 8).time_us;
    cr_assert(far > usual + 300 && far < usual + 450, "%g %g", usual, far); /* 4 hops of a tree */
    args.alpha_us = 0;
    args.launch_us = 1000;
    struct lib_time time = timed(&topo, &args, COLL_ALLREDUCE, 8);
    cr_assert(time.time_us >= 1000 && time.time_us < 1001 && fabs(time.launch_us - 1000) < 1e-9);
    double through = 0;
    struct err err = ERR_INIT;
    double device = time.base_us + time.latency_us + time.wire_us;
    cr_assert(lib_call_us(&topo, &consts.values, &args, COLL_ALLREDUCE, device, &through, &err) ==
              0);
    cr_assert(fabs(through - time.time_us) < 1e-9);
    topo_release(&topo);
}

Test(library, refusals)
{
    struct topo topo = named("dgx-a100", 2, 0);
    struct lib_time time;
    struct lib_args args = lib_usual();
    struct err err = ERR_INIT;
    args.algo = NCCL_TREE;
    cr_assert(lib_closed(&topo, &consts.values, &args, COLL_ALLGATHER, 8, &time, &err) == -1);
    cr_assert(err.code == ERR_USAGE && strstr(err.text, "Tree"), "%s", err.text);
    err_release(&err);
    args = lib_usual();
    topo.nic_Gbps = 0;
    cr_assert(lib_closed(&topo, &consts.values, &args, COLL_ALLREDUCE, 8, &time, &err) == -1);
    cr_assert(err.code == ERR_USAGE && strstr(err.text, "0 Gb/s"), "%s", err.text);
    err_release(&err);
    topo_release(&topo);
}

/* ---- the table of constants ---- */

/* A copy of the shipped table with `from` replaced by `to` (in its first line that has it). */
static char *spoiled(const char *from, const char *to)
{
    char *path = mem_strdup("/tmp/network-XXXXXX");
    int fd = mkstemp(path);
    struct err err = ERR_INIT;
    cr_assert(fd >= 0);
    close(fd);
    cr_assert(net_const_write(&consts, &consts.values, path, &err) == 0);
    FILE *file = fopen(path, "r");
    char *text = mem_calloc(1, 1 << 16);
    size_t n = fread(text, 1, (1 << 16) - 1, file);
    fclose(file);
    char *at = strstr(text, from);
    cr_assert(n && at, "no %s", from);
    file = fopen(path, "w");
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
    free(text);
    return path;
}

Test(library, constants)
{
    static const struct {
        const char *from, *to, *word;
    } faults[] = {{"floor_power,", "flor_power,", "no constant \"flor_power\""},
                  {"link_eff,NVLink3", "link_eff,NVLink4", "link_eff NVLink3 has 0 rows"},
                  {"sendrecv_net,,", "sendrecv_net,,-", "must be above 0"},
                  {"nvls_net,,", "nvls_net,,x", "value"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char *path = spoiled(faults[i].from, faults[i].to);
        struct net_const_table table;
        struct err err = ERR_INIT;
        cr_assert(net_const_read(&table, path, &err) == -1);
        cr_assert(err.code == ERR_USAGE && strstr(err.text, faults[i].word), "%s", err.text);
        cr_assert(strstr(err.text, path));
        err_release(&err);
        unlink(path);
        free(path);
    }
    for (size_t i = 0; i < consts.list.nrows; i++) {
        cr_assert(*consts.list.rows[i].source, "%s has no source", consts.list.rows[i].name);
    }
}

/* ---- texts ---- */

Test(library, networks)
{
    static const struct {
        const char *text;
        uint64_t per_host;
        double host_Gbps;
        bool stated;
        enum fabric fabric;
    } cases[] = {
        {"IB HDR, 8 NIC x 200Gb/s per DGX A100", 8, 1600, true, FABRIC_IB},
        {"Slingshot-11 dragonfly, 4 NIC x 200Gb/s", 4, 800, true, FABRIC_SLINGSHOT},
        {"not stated; rates imply 1 x ~400Gb/s NIC per GPU", 4, 1600, true, FABRIC_IB},
        {"IB, 4 ports x 200Gb/s", 4, 800, true, FABRIC_IB},
        {"EFA v2, 32 NIC x 100Gb/s", 8, 3200, true, FABRIC_EFA},
        {"GPUDirect-TCPX, 4 NIC x 200Gb/s", 8, 800, true, FABRIC_TCP},
        {"RoCE (gIB), 8 NIC x 400Gb/s", 8, 3200, true, FABRIC_ROCE},
        {"RoCE, 1 NIC x 400Gb/s per GPU", 1, 400, true, FABRIC_ROCE},
        {"RoCE, 4 NIC x 400-500Gb/s per node", 4, 1600, true, FABRIC_ROCE},
        {"IB NDR, CX-7 x400Gb/s", 8, 3200, false, FABRIC_IB},
        {"RoCE, 1 QSFP 200Gb/s seen as 2 x ~100Gb/s PCIe x4 functions", 1, 200, true, FABRIC_ROCE},
        {"8x400Gb/s NDR", 8, 3200, true, FABRIC_IB},
        {"InfiniBand, 2x HDR", 4, 400, true, FABRIC_IB},
        {"400 Gb/s per GPU (ConnectX-7)", 8, 3200, true, FABRIC_IB},
        {"EFA, 3.2 Tb/s", 8, 3200, true, FABRIC_EFA},
        {"dual 100GbE RoCE v2", 4, 200, true, FABRIC_ROCE},
        {"EDR InfiniBand", 4, 400, false, FABRIC_IB},
        {"10GbE", 4, 10, false, FABRIC_TCP},
        {"100 Gb Ethernet", 1, 100, false, FABRIC_ROCE},
        {"Omni-Path, 1 x 100 Gb/s", 2, 100, true, FABRIC_OMNIPATH},
        {"4 rails NDR200", 4, 800, true, FABRIC_IB},
        {"none", 8, 0, false, FABRIC_IB},
        {"", 8, 0, false, FABRIC_IB},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool stated = false;
        double got = coll_text_host_Gbps(cases[i].text, cases[i].per_host, false, &stated);
        cr_assert(fabs(got - cases[i].host_Gbps) < 1e-9, "\"%s\": %g", cases[i].text, got);
        cr_assert(stated == cases[i].stated, "\"%s\": stated %d", cases[i].text, stated);
        cr_assert(coll_text_fabric(cases[i].text) == cases[i].fabric, "\"%s\"", cases[i].text);
    }
}

Test(library, machines)
{
    static const struct {
        const char *gpu, *intra;
        uint64_t hosts, per_host;
        enum scale_up scale_up;
        double line_GBps;
        enum link_gen gen;
    } cases[] = {
        {"A100-SXM4-40GB", "NVLink3 12x25GB/s/dir via NVSwitch2", 1, 8, SCALE_UP_NVSWITCH, 300,
         LINK_NVLINK3},
        {"A100-SXM4-80GB", "NVLink3 4-GPU direct mesh (4 links/pair)", 1, 4, SCALE_UP_NVLINK_MESH,
         300, LINK_NVLINK3},
        {"A100-PCIE-40GB", "PCIe Gen4", 1, 8, SCALE_UP_PCIE, 31.5, LINK_PCIE},
        {"V100-PCIE-32GB", "", 1, 4, SCALE_UP_PCIE, 15.75, LINK_PCIE},
        {"V100-SXM2-16GB", "NVLink2", 1, 4, SCALE_UP_NVLINK_CUBE, 150, LINK_NVLINK2},
        {"H100-SXM5 (4-GPU board, no NVSwitch multicast)", "NVLink4 4-GPU board", 1, 4,
         SCALE_UP_NVLINK_MESH, 450, LINK_NVLINK4},
        {"H100-PCIe", "NVLink4 bridge pair (12 links)", 1, 2, SCALE_UP_NVLINK_PAIRS, 300,
         LINK_NVLINK4},
        {"H100 NVL", "NVLink4 bridges between pairs", 1, 8, SCALE_UP_PCIE, 63, LINK_PCIE},
        {"GH200-120GB", "NVLink4 4-GPU direct mesh, 6 links/pair (150GB/s/dir per pair)", 1, 4,
         SCALE_UP_NVLINK_MESH, 450, LINK_NVLINK4},
        {"B200", "NVLink5 18x50GB/s/dir via NVSwitch4", 1, 8, SCALE_UP_NVSWITCH, 900, LINK_NVLINK5},
        {"MI300X", "xGMI fully connected, 64GB/s/dir per pair", 1, 8, SCALE_UP_XGMI, 448,
         LINK_XGMI},
        {"RTX 5090", "SHM via EPYC Genoa, PCIe Gen5 x16", 1, 4, SCALE_UP_PCIE_HOST, 63, LINK_PCIE},
        {"T4", "PCIe Gen3, GPU0 and GPU1 on different sockets (SYS)", 1, 2, SCALE_UP_PCIE_HOST,
         15.75, LINK_PCIE},
        {"L40S", "PCIe Gen4 x16", 1, 8, SCALE_UP_PCIE, 31.5, LINK_PCIE},
        {"CPU (36 ranks/node)", "shared memory", 1, 36, SCALE_UP_MEMORY, 0, LINK_MEMORY},
        {"B100", "NVLink5", 1, 8, SCALE_UP_NVSWITCH, 900, LINK_NVLINK5},
        {"MI250X", "xGMI", 1, 8, SCALE_UP_XGMI, 175, LINK_XGMI},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct coll_text text = {.machine = "m",
                                 .gpu = cases[i].gpu,
                                 .intra = cases[i].intra,
                                 .inter = "none",
                                 .library = "",
                                 .algo = "",
                                 .notes = "",
                                 .op = "all_reduce",
                                 .hosts = cases[i].hosts,
                                 .per_host = cases[i].per_host};
        struct coll_machine m;
        coll_machine_of(&text, &accels, &m);
        cr_assert(m.topo.scale_up == cases[i].scale_up, "%s: %s", cases[i].gpu,
                  scale_up_name(m.topo.scale_up));
        if (cases[i].line_GBps > 0)
            cr_assert(fabs(m.topo.line_GBps - cases[i].line_GBps) < 1e-9, "%s: %g", cases[i].gpu,
                      m.topo.line_GBps);
        cr_assert(link_gen_of(&m.topo) == cases[i].gen, "%s", cases[i].gpu);
        coll_machine_release(&m);
    }
}
