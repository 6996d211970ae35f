/* topology.h - cores and memory nodes of this machine, from hwloc.
 *
 * Threads: any. */
#ifndef APP_TOPOLOGY_H
#define APP_TOPOLOGY_H

#include "base/status.h"

#include <stdint.h>

typedef struct {
    uint32_t packages, cores, threads; /* hardware threads; those this process may see */
    uint32_t numa_nodes;               /* with memory; at least 1 */
    uint64_t memory_bytes;             /* of all; 0: unknown */
    uint64_t smallest_node_bytes;
} app_topology;

/* RT_EUNSUPPORTED: hwloc cannot read this machine. */
RT_MUST_CHECK rt_status app_topology_read(app_topology *out, rt_err *err);

#endif
