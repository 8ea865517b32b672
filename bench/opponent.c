/* SPDX-License-Identifier: Apache-2.0
 * The launcher's side of a contest with a library: see opponent.h. */
#include "bench/opponent.h"

#include "exec/transport.h"
#include "kernels/gpu.h"

static int find_nccl(struct nccl_setup *setup, const struct request *request,
                     const struct plan *plan, struct err *err)
{
    int devices;
    const char *why;
    const struct gpu *gpu = gpu_devices(&devices, &why);
    if (!gpu) return err_add(err, ERR_USAGE, "--vs nccl: %s", why);
    struct gpu_info info = {0};
    if (gpu_check(gpu, gpu->info(0, &info), err, "asking GPU 0")) return -1;
    struct nccl_wish wish = {.algo = request->nccl_algo,
                             .proto = request->nccl_proto,
                             .nranks = plan_world(plan),
                             .ndevices = (uint32_t)devices,
                             .hostid_trick = plan->nccl_hostid,
                             .major = info.major};
    if (nccl_find(setup, &wish, err)) return -1;
    if (!gpu->emulated || setup->stub) return 0;
    return err_add(
        err, ERR_USAGE,
        "%s needs real GPUs, these are emulated; COLLBENCH_NCCL names the stub of the tests",
        setup->library);
}

int opponent_find(struct opponent_setup *setup, const struct request *request,
                  const struct plan *plan, struct err *err)
{
    *setup = (struct opponent_setup){0};
    bool mpi = plan->contest == CONTEST_MPI || transport_table()[plan->transport]->mpiexec;
    if (plan->contest == CONTEST_NCCL) return find_nccl(&setup->nccl, request, plan, err);
    if (!mpi) return 0;
    bool spread = request->host_groups != NULL; /* several hosts */
    return (spread ? mpi_find_spread : mpi_find)(&setup->mpi, request->mpiexec, plan_world(plan),
                                                 err);
}

void opponent_setup_release(struct opponent_setup *setup)
{
    mpi_setup_release(&setup->mpi);
    nccl_setup_release(&setup->nccl);
}

void opponent_launch(const struct opponent_setup *setup, struct launch_spec *spec)
{
    spec->wrapper = setup->mpi.words;
    spec->rank_variable = setup->mpi.rank_variable;
    spec->env = setup->mpi.env ? setup->mpi.env : setup->nccl.env;
}

static const char *lacks(const struct opponent_setup *setup, const struct plan *plan, uint32_t d,
                         uint32_t o, bool in_place)
{
    if (plan->contest == CONTEST_NCCL) {
        struct nccl_args args = {.coll = plan->coll,
                                 .dtype = plan->dtypes[d],
                                 .op = plan->ops[o],
                                 .in_place = in_place,
                                 .nranks = plan->nranks};
        return nccl_lacks(setup->nccl.version, setup->nccl.major, &args);
    }
    struct mpi_args args = {
        .coll = plan->coll, .dtype = plan->dtypes[d], .op = plan->ops[o], .in_place = in_place};
    return mpi_lacks(NULL, &args);
}

static void note_lacks(const struct opponent_setup *setup, const struct plan *plan,
                       const struct outputs *outputs)
{
    static const char *const places[NPLACES] = {"out of place", "in place"};
    for (uint32_t i = 0; i < plan->ndtypes * plan->nops * NPLACES; i++) {
        uint32_t place = i % NPLACES, o = i / NPLACES % plan->nops, d = i / NPLACES / plan->nops;
        const char *why = lacks(setup, plan, d, o, place == IN_PLACE);
        if (!plan->place[place] || !why) continue;
        outputs_note(outputs, "not compared: %s %s, %s: %s", dtype_name(plan->dtypes[d]),
                     redop_name(plan->ops[o]), places[place], why);
    }
}

static void note_nccl(const struct nccl_setup *nccl, const struct outputs *outputs)
{
    const struct {
        const char *key, *text;
    } facts[] = {
        {"nccl_library", nccl->library}, {"nccl_algo", nccl->algo}, {"nccl_proto", nccl->proto},
        {"nccl_ctas", nccl->ctas},       {"nccl_nvls", nccl->nvls}, {"nccl_notes", nccl->notes},
    };
    outputs_note(outputs, "%s: algorithm %s; protocol %s; CTAs %s; NVLS %s%s%s", nccl->library,
                 nccl->algo, nccl->proto, nccl->ctas, nccl->nvls, *nccl->notes ? "; " : "",
                 nccl->notes);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        out_meta(outputs->record, facts[i].key, out_text(facts[i].text));
    out_meta(outputs->record, "nccl_stub", out_bool(nccl->stub));
    if (nccl->stub)
        outputs_note(outputs, "WARNING: the library is a stub for tests: its times mean nothing");
}

void opponent_note(const struct opponent_setup *setup, const struct plan *plan,
                   const struct outputs *outputs)
{
    if (setup->mpi.text) outputs_note(outputs, "%s", setup->mpi.text);
    if (!plan_library(plan)) return;
    if (plan->contest == CONTEST_NCCL) note_nccl(&setup->nccl, outputs);
    note_lacks(setup, plan, outputs);
}
