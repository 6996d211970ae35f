/* disk_space.h - whether a conversion will fit its disk, before anything is written.
 *
 * Threads: pure but for statvfs. */
#ifndef MODEL_CONVERT_DISK_SPACE_H
#define MODEL_CONVERT_DISK_SPACE_H

#include "model/convert/plan.h"

enum { MD_DISK_RESERVE_BYTES = 64 << 20 }; /* tokenizer image, manifest, config, ledger */

typedef struct {
    uint64_t
        needed_bytes; /* with MD_DISK_RESERVE_BYTES, at the worst moment of the conversion, beyond what is taken now */
    uint64_t free_bytes; /* on the target's filesystem, for this user */
} md_disk_space;

/* The most that is written before enough shards are given up again, in the plan's order of work.
 * Without `consume` simply all that is still to be written. Shards count only when they lie on the
 * target's filesystem. RT_ENOMEM. */
RT_MUST_CHECK rt_status md_disk_peak(const md_plan *plan, const md_source *source, bool consume,
                                     uint64_t *out, rt_err *err);

/* The shards that `consume` would delete: those of which a record needs a tensor. RT_ENOMEM. */
RT_MUST_CHECK rt_status md_disk_deletable(const md_plan *plan, const md_source *source,
                                          uint64_t *shards, uint64_t *bytes, rt_err *err);

/* Bytes free for this user on dir's filesystem; dir need not exist yet: its nearest existing parent is
 * asked. RT_EIO. */
RT_MUST_CHECK rt_status md_disk_free(const char *dir, uint64_t *out, rt_err *err);

/* dir need not exist yet: its nearest existing parent is asked. RT_EIO. */
RT_MUST_CHECK rt_status md_disk_space_measure(const char *source_dir, const char *target_dir,
                                              const md_plan *plan, const md_source *source,
                                              bool consume, md_disk_space *out, rt_err *err);

#endif
