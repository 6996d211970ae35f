/* cgroup.h - what the container or service this process runs in may use: processors and memory.
 *
 * A process in a container sees the whole machine in /proc/meminfo and in its affinity mask; the
 * quota that throttles or kills it stands in the cgroup tree alone. v1 and v2 hierarchies are read,
 * each level from the process's own group up to the root of the mount, since any may limit.
 *
 * Threads: any. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdint.h>

typedef struct {
    double cpus;           /* quota in processors; 0: none */
    uint64_t memory_bytes; /* still available under the tightest limit; UINT64_MAX: none */
} rt_cgroup_limits;

/* Reads ROOT/proc/self/cgroup and mountinfo and the groups they name. root "" is the machine; tests
 * give a made-up tree. What cannot be read does not limit. */
rt_cgroup_limits rt_cgroup_limits_read(const char *root);

#endif
