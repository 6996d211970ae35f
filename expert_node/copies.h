/* copies.h - the copies of a model that a node may read experts from: its own container and mirrors.
 *
 * A mirror is a folder with moesaic.json, config and manifest of the same model and as many packs as it
 * likes: on another disk it adds that disk's rate, and it stands in for records that this copy cannot
 * read.
 *
 * Threads: one owner; the containers from any. */
#ifndef EXPERT_NODE_COPIES_H
#define EXPERT_NODE_COPIES_H

#include "expert_node/tier_disk.h"

typedef struct {
    const md_container *all[EN_COPIES_MAX];
    md_container *owned[EN_COPIES_MAX]; /* the mirrors */
    uint32_t count;
} en_copies;

/* `dirs` names the mirrors, separated by ':'; NULL or "": none. The container comes first, borrowed. With mirrors
 * the process's soft limit of open files is raised to the hard one.
 *   Errors  RT_EINVAL  a mirror is of another model (both ids are named), more than
 *                      EN_COPIES_MAX - 1 mirrors;  those of md_container_open;  RT_ENOMEM */
RT_MUST_CHECK rt_status en_copies_open(en_copies *out, const md_container *container,
                                       const char *dirs, rt_err *err);
void en_copies_close(en_copies *copies);

#endif
