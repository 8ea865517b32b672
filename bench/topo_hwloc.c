/* SPDX-License-Identifier: Apache-2.0
 * hwloc's tree as a graph: see topo_hwloc.h. Devices are told by the class of their PCI function;
 * what hangs between them and the processors is added on the way up, once. */
#include "bench/topo_hwloc.h"

#include <hwloc.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct topo_view {
    hwloc_topology_t topology;
};

/* Where hwloc cannot read what these name it fails (XML without libxml2) or falls back to this
 * system without a word. */
static int check_source(const struct topo_view *view, bool failed, struct err *err)
{
    static const char *const variables[] = {"HWLOC_FSROOT", "HWLOC_SYNTHETIC", "HWLOC_XMLFILE"};
    bool own = failed || (topo_view_own(view) && !getenv("HWLOC_THISSYSTEM"));
    for (size_t i = 0; own && i < sizeof variables / sizeof *variables; i++) {
        const char *set = getenv(variables[i]);
        if (set)
            return err_add(err, ERR_USAGE, "hwloc cannot read the machine of %s=%s", variables[i],
                           set);
    }
    return failed ? err_add(err, ERR_FAILED, "hwloc cannot read the machine") : 0;
}

struct topo_view *topo_view_new(struct err *err)
{
    struct topo_view *view = mem_calloc(1, sizeof *view);
    if (hwloc_topology_init(&view->topology)) {
        free(view);
        err_add(err, ERR_FAILED, "hwloc cannot start");
        return NULL;
    }
    hwloc_topology_set_io_types_filter(view->topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    hwloc_topology_set_flags(view->topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED |
                                                 HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
    bool failed = hwloc_topology_load(view->topology) != 0;
    if (check_source(view, failed, err) == 0) return view;
    topo_view_free(view);
    return NULL;
}

void topo_view_free(struct topo_view *view)
{
    if (view) hwloc_topology_destroy(view->topology);
    free(view);
}

bool topo_view_own(const struct topo_view *view)
{
    return hwloc_topology_is_thissystem(view->topology);
}

/* ---- what a device is ------------------------------------------------------------------------ */

/* Numbers of PCI, registered by the PCI-SIG. */
enum {
    CLASS_ETHERNET = 0x0200,
    CLASS_INFINIBAND = 0x0207,
    CLASS_FABRIC = 0x0208,
    CLASS_NETWORK = 0x0280,
    CLASS_VGA = 0x0300,
    CLASS_3D = 0x0302,
    CLASS_DISPLAY = 0x0380,
    CLASS_SERIAL_INFINIBAND = 0x0c06,
    CLASS_ACCELERATOR = 0x1200,
    VENDOR_AMD = 0x1002,
    VENDOR_NVIDIA = 0x10de,
};

/* Every server has a display adapter in its management controller: what can draw on a screen counts
 * only where its vendor builds GPUs to compute with. NGRAPH_KINDS: neither GPU nor NIC. */
static enum graph_kind kind_of(hwloc_obj_t object)
{
    if (object->type != HWLOC_OBJ_PCI_DEVICE) return NGRAPH_KINDS;
    const struct hwloc_pcidev_attr_s *pci = &object->attr->pcidev;
    switch (pci->class_id) {
    case CLASS_VGA:
        return pci->vendor_id == VENDOR_NVIDIA || pci->vendor_id == VENDOR_AMD ? GRAPH_ACCEL
                                                                               : NGRAPH_KINDS;
    case CLASS_3D:
    case CLASS_DISPLAY:
    case CLASS_ACCELERATOR:
        return GRAPH_ACCEL;
    case CLASS_ETHERNET:
    case CLASS_INFINIBAND:
    case CLASS_FABRIC:
    case CLASS_NETWORK:
    case CLASS_SERIAL_INFINIBAND:
        return GRAPH_NIC;
    default:
        return NGRAPH_KINDS;
    }
}

/* As Linux writes it; freed by the caller. */
static char *address_of(hwloc_obj_t object)
{
    const struct hwloc_pcidev_attr_s *pci = &object->attr->pcidev;
    return mem_printf("%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->dev, pci->func);
}

/* The name of the system's device of that type on this function, or NULL. */
static const char *system_name(hwloc_obj_t object, hwloc_obj_osdev_type_t type)
{
    hwloc_obj_t child = object->io_first_child;
    while (child && (child->type != HWLOC_OBJ_OS_DEVICE || child->attr->osdev.type != type))
        child = child->next_sibling;
    return child ? child->name : NULL;
}

/* ---- the rate of a NIC ----------------------------------------------------------------------- */

/* The first line of a file below `root`, into `line`; false: none. */
static bool first_line(const char *root, const char *path, char *line, int bytes)
{
    char *whole = mem_printf("%s%s", root, path);
    FILE *file = fopen(whole, "r");
    bool good = file && fgets(line, bytes, file);
    if (file) fclose(file);
    free(whole);
    return good;
}

/* Active ports of an InfiniBand device: "4: ACTIVE", "400 Gb/sec (4X NDR)". */
static double rdma_Gbps(const char *root, const char *name)
{
    double sum = 0;
    char state[64], rate[64];
    bool there = true;
    for (unsigned port = 1; there; port++) {
        char *state_path = mem_printf("/sys/class/infiniband/%s/ports/%u/state", name, port);
        char *rate_path = mem_printf("/sys/class/infiniband/%s/ports/%u/rate", name, port);
        there = first_line(root, state_path, state, sizeof state);
        if (there && strstr(state, "ACTIVE") && first_line(root, rate_path, rate, sizeof rate))
            sum += strtod(rate, NULL);
        free(state_path);
        free(rate_path);
    }
    return sum;
}

/* Mb/s; -1 without a link. */
static double net_Gbps(const char *root, const char *name)
{
    char line[64] = "";
    char *path = mem_printf("/sys/class/net/%s/speed", name);
    double Mbps = first_line(root, path, line, sizeof line) ? strtod(line, NULL) : 0;
    free(path);
    return Mbps > 0 ? Mbps / 1e3 : 0;
}

/* ---- from hwloc's tree to the graph ---------------------------------------------------------- */

struct making {
    const struct topo_view *view;
    const struct nvml *nvml;
    struct graph *graph;
    const char *root; /* of the system's files; NULL: there are none of this machine */
    uint32_t nbridges, nswitches;
};

/* An object's node is kept with it, plus one. */
static uint32_t node_of(hwloc_obj_t object)
{
    return (uint32_t)((uintptr_t)object->userdata - 1);
}

static uint32_t keep_node(hwloc_obj_t object, uint32_t node)
{
    object->userdata = (void *)((uintptr_t)node + 1);
    return node;
}

static hwloc_obj_t first_numa(hwloc_obj_t object)
{
    hwloc_obj_t node = object->memory_first_child;
    while (node && node->type != HWLOC_OBJ_NUMANODE) /* behind a cache of its own */
        node = node->memory_first_child;
    return node;
}

/* Memory hangs beside the processors it is near to. Of several kinds at one place the first is the
 * processors' own; the others (of GPUs, on other buses) have no node. */
static void add_numa_nodes(struct making *making)
{
    struct graph *graph = making->graph;
    hwloc_topology_t topology = making->view->topology;
    uint32_t without = 0;
    for (hwloc_obj_t numa = NULL;
         (numa = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, numa));) {
        hwloc_obj_t place = numa->parent;
        while (place->type == HWLOC_OBJ_MEMCACHE)
            place = place->parent;
        if (first_numa(place) != numa || hwloc_bitmap_iszero(numa->cpuset)) {
            without++;
            continue;
        }
        uint32_t node = graph_add(graph, GRAPH_NUMA, NULL, numa->os_index, GRAPH_NONE);
        char *cpus = NULL;
        if (hwloc_bitmap_list_asprintf(&cpus, numa->cpuset) < 0) abort(); /* out of memory */
        graph->nodes[node].cpus = cpus;
        keep_node(numa, node);
        for (uint32_t other = 0; other < node; other++)
            graph_link(graph, GRAPH_SOCKET, other, node, 1);
    }
    if (without > 0)
        graph_warn(graph, "%" PRIu32 " NUMA nodes without processors of their own are left out",
                   without);
}

/* The NUMA node beside a place of the processors' part of the tree, or the only one below it;
 * GRAPH_NONE: several, none. */
static uint32_t numa_near(const struct making *making, hwloc_obj_t place)
{
    hwloc_obj_t above = place, numa = NULL;
    while (above && !first_numa(above))
        above = above->parent;
    if (above) {
        numa = first_numa(above);
    } else if (hwloc_bitmap_weight(place->nodeset) == 1) {
        numa = hwloc_get_numanode_obj_by_os_index(making->view->topology,
                                                  (unsigned)hwloc_bitmap_first(place->nodeset));
    }
    return numa && numa->userdata ? node_of(numa) : GRAPH_NONE;
}

/* Whether there is a GPU or NIC at or below an object of the bus. */
static bool leads_to_devices(hwloc_obj_t object)
{
    bool found = kind_of(object) != NGRAPH_KINDS;
    for (hwloc_obj_t at = object->io_first_child; at && !found; at = at->next_sibling)
        found = leads_to_devices(at);
    return found;
}

static uint32_t parent_of(struct making *making, hwloc_obj_t object);

static uint32_t add_host_bridge(struct making *making, hwloc_obj_t object)
{
    struct graph *graph = making->graph;
    const struct hwloc_bridge_attr_s *bridge = &object->attr->bridge;
    uint32_t numa = numa_near(making, object->parent);
    uint32_t node = graph_add(graph, GRAPH_BRIDGE, NULL, making->nbridges++, numa);
    graph->nodes[node].address = mem_printf("%04x:%02x", bridge->downstream.pci.domain,
                                            bridge->downstream.pci.secondary_bus);
    if (numa == GRAPH_NONE)
        graph_warn(graph, "the NUMA node of the host bridge at %s is unknown",
                   graph->nodes[node].address);
    return keep_node(object, node);
}

static uint32_t add_switch(struct making *making, hwloc_obj_t object)
{
    uint32_t above = parent_of(making, object->parent);
    uint32_t node = graph_add(making->graph, GRAPH_PCIE, NULL, making->nswitches++, above);
    making->graph->nodes[node].address = address_of(object);
    making->graph->nodes[node].up_GBps = object->attr->bridge.upstream.pci.linkspeed;
    return keep_node(object, node);
}

/* The node for an object above a device, added with all above it if it is not there yet. */
static uint32_t parent_of(struct making *making, hwloc_obj_t object)
{
    if (object->userdata) return node_of(object);
    if (object->type != HWLOC_OBJ_BRIDGE) return numa_near(making, object);
    if (object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
        return add_host_bridge(making, object);
    unsigned ways = 0;
    for (hwloc_obj_t at = object->io_first_child; at; at = at->next_sibling)
        ways += leads_to_devices(at);
    return ways > 1 ? add_switch(making, object) : parent_of(making, object->parent);
}

/* ---- devices --------------------------------------------------------------------------------- */

struct found {
    hwloc_obj_t object; /* NULL: NVML alone knows it */
    enum graph_kind kind;
    char *address;
    size_t rank; /* NVML's number, or behind all of those */
};

static int by_kind_rank_address(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return strcmp(x->address, y->address);
}

static size_t nvml_number(const struct nvml *nvml, const char *address)
{
    size_t count = nvml ? nvml->ngpus : 0, i = 0;
    while (i < count && (!nvml->gpus[i].address || strcmp(nvml->gpus[i].address, address) != 0))
        i++;
    return i;
}

/* All devices in the order of the graph; freed by the caller, with their addresses. */
static struct found *find_devices(const struct making *making, size_t *count)
{
    struct found *devices = NULL;
    size_t cap = 0, ngpus = making->nvml ? making->nvml->ngpus : 0;
    bool *seen = mem_calloc(ngpus, sizeof *seen);
    *count = 0;
    for (hwloc_obj_t at = NULL; (at = hwloc_get_next_pcidev(making->view->topology, at));) {
        enum graph_kind kind = kind_of(at);
        if (kind == NGRAPH_KINDS) continue;
        MEM_GROW(devices, *count, cap);
        struct found *device = &devices[(*count)++];
        *device = (struct found){.object = at, .kind = kind, .address = address_of(at)};
        device->rank = nvml_number(making->nvml, device->address);
        if (device->rank < ngpus) seen[device->rank] = true;
    }
    for (size_t i = 0; i < ngpus; i++) {
        const char *address = making->nvml->gpus[i].address;
        if (seen[i]) continue;
        MEM_GROW(devices, *count, cap);
        devices[(*count)++] =
            (struct found){NULL, GRAPH_ACCEL, mem_strdup(address ? address : ""), i};
    }
    if (*count) qsort(devices, *count, sizeof *devices, by_kind_rank_address);
    free(seen);
    return devices;
}

static const char *nic_name(hwloc_obj_t object)
{
    const char *rdma = system_name(object, HWLOC_OBJ_OSDEV_OPENFABRICS);
    return rdma ? rdma : system_name(object, HWLOC_OBJ_OSDEV_NETWORK);
}

static double nic_Gbps(const struct making *making, hwloc_obj_t object)
{
    const char *rdma = system_name(object, HWLOC_OBJ_OSDEV_OPENFABRICS);
    const char *net = system_name(object, HWLOC_OBJ_OSDEV_NETWORK);
    double Gbps = making->root && rdma ? rdma_Gbps(making->root, rdma) : 0;
    return Gbps > 0 || !making->root || !net ? Gbps : net_Gbps(making->root, net);
}

static char *model_of(hwloc_obj_t object)
{
    const struct hwloc_pcidev_attr_s *pci = &object->attr->pcidev;
    return object->name ? mem_strdup(object->name)
                        : mem_printf("PCI %04x:%04x", pci->vendor_id, pci->device_id);
}

static void add_device(struct making *making, const struct found *device, uint32_t number)
{
    struct graph *graph = making->graph;
    hwloc_obj_t object = device->object;
    bool nic = device->kind == GRAPH_NIC;
    bool known = making->nvml && !nic && device->rank < making->nvml->ngpus;
    const struct nvml_gpu *gpu = known ? &making->nvml->gpus[device->rank] : NULL;
    uint32_t parent = object ? parent_of(making, object->parent) : GRAPH_NONE;
    uint32_t at = graph_add(graph, device->kind, nic ? nic_name(object) : NULL, number, parent);
    struct graph_node *node = &graph->nodes[at];
    if (*device->address) node->address = mem_strdup(device->address);
    node->type = gpu ? mem_strdup(gpu->name) : model_of(object);
    node->up_GBps = gpu && gpu->pcie_GBps > 0 ? gpu->pcie_GBps
                    : object                  ? object->attr->pcidev.linkspeed
                                              : 0;
    if (nic) node->rate_Gbps = nic_Gbps(making, object);
    if (!object) {
        graph_warn(graph, "NVML knows %s at %s, which hwloc does not see: its place is unknown",
                   node->name, node->address ? node->address : "no address");
    } else if (parent == GRAPH_NONE) {
        graph_warn(graph, "the NUMA node of %s at %s is unknown", node->name, node->address);
    }
}

void topo_view_graph(const struct topo_view *view, const struct nvml *nvml, struct graph *graph)
{
    const char *elsewhere = getenv("HWLOC_FSROOT");
    struct making making = {.view = view, .nvml = nvml, .graph = graph};
    making.root = elsewhere ? elsewhere : topo_view_own(view) ? "" : NULL;
    add_numa_nodes(&making);
    size_t count, ngpus = 0;
    struct found *devices = find_devices(&making, &count);
    for (size_t i = 0; i < count; i++) {
        bool nic = devices[i].kind == GRAPH_NIC;
        add_device(&making, &devices[i], (uint32_t)(nic ? i - ngpus : i));
        ngpus += !nic;
        free(devices[i].address);
    }
    free(devices);
}

/* ---- where to measure ------------------------------------------------------------------------ */

/* Adds the first processor of `mask` in each object of that type to `set`, until it has `most`. */
static void first_of_each(hwloc_topology_t topology, hwloc_obj_type_t type,
                          hwloc_const_bitmap_t mask, uint32_t most, hwloc_bitmap_t set)
{
    hwloc_bitmap_zero(set);
    for (hwloc_obj_t at = NULL; (at = hwloc_get_next_obj_by_type(topology, type, at));) {
        int cpu = -1;
        while ((cpu = hwloc_bitmap_next(at->cpuset, cpu)) >= 0) {
            if (!hwloc_bitmap_isset(mask, (unsigned)cpu)) continue;
            if (hwloc_bitmap_weight(set) < (int)most) hwloc_bitmap_set(set, (unsigned)cpu);
            break;
        }
    }
}

uint32_t topo_view_spread(const struct topo_view *view, uint32_t most, char **list)
{
    hwloc_topology_t topology = view->topology;
    hwloc_bitmap_t mask = hwloc_bitmap_alloc(), set = hwloc_bitmap_alloc();
    int count = 0;
    *list = NULL;
    if (!mask || !set) abort(); /* out of memory */
    bool good = topo_view_own(view) && hwloc_get_cpubind(topology, mask, 0) == 0;
    if (good) {
        first_of_each(topology, HWLOC_OBJ_NUMANODE, mask, most, set);
        if (hwloc_bitmap_weight(set) < 2) first_of_each(topology, HWLOC_OBJ_CORE, mask, most, set);
        good = !hwloc_bitmap_iszero(set) && hwloc_set_cpubind(topology, set, 0) == 0;
    }
    if (good) count = hwloc_bitmap_weight(set);
    if (good && hwloc_bitmap_list_asprintf(list, set) < 0) abort();
    hwloc_bitmap_free(mask);
    hwloc_bitmap_free(set);
    return (uint32_t)count;
}
