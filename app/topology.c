/* topology.c - asks hwloc once. */
#include "app/topology.h"

#include <hwloc.h>

static uint32_t count_of(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(topology, type);

    return count > 0 ? (uint32_t)count : 0;
}

rt_status app_topology_read(app_topology *out, rt_err *err)
{
    app_topology found = {0};
    hwloc_topology_t topology;
    hwloc_obj_t node = NULL;

    if (hwloc_topology_init(&topology) != 0)
        return rt_fail(err, RT_EUNSUPPORTED, "hwloc: the topology could not be set up");
    if (hwloc_topology_load(topology) != 0) {
        hwloc_topology_destroy(topology);
        return rt_fail(err, RT_EUNSUPPORTED, "hwloc: this machine's topology could not be read");
    }
    found.packages = count_of(topology, HWLOC_OBJ_PACKAGE);
    found.cores = count_of(topology, HWLOC_OBJ_CORE);
    found.threads = count_of(topology, HWLOC_OBJ_PU);
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        uint64_t bytes = node->attr->numanode.local_memory;

        found.memory_bytes += bytes;
        if (found.numa_nodes++ == 0 || bytes < found.smallest_node_bytes)
            found.smallest_node_bytes = bytes;
    }
    if (found.numa_nodes == 0) found.numa_nodes = 1;
    hwloc_topology_destroy(topology);
    *out = found;
    return RT_OK;
}
