/* engine.h - runs the units of a plan over a team, and makes what is done durable in groups.
 *
 * Members take units from one queue in the plan's order of work. A finished unit is pending until a
 * group commit: the packs it went to are synced, then its ledger entry is appended and synced. The
 * member that finds a commit due does it while the others go on. With `consume`, a committed record
 * is read back from the disk, and a shard is deleted when every record that needs it has been; after
 * any failure nothing is deleted any more.
 *
 * Threads: md_engine_run from one. */
#ifndef MODEL_CONVERT_ENGINE_H
#define MODEL_CONVERT_ENGINE_H

#include "base/progress.h"
#include "base/team.h"
#include "model/convert/ledger.h"
#include "model/convert/target.h"
#include "model/convert/unit.h"

/* A commit is due at whichever comes first; they bound what an interruption costs. */
enum {
    MD_COMMIT_BYTES = 1 << 30,
    MD_COMMIT_RECORDS = 256,
    MD_COMMIT_SECONDS = 5,
};

typedef struct {
    md_plan *plan;
    const md_config *config;
    const md_container_info *info;
    md_source *source;
    md_target *target; /* NULL: nothing is written, the hashes are all that is wanted */
    md_ledger *ledger; /* NULL with target NULL */
    rt_team *team;
    rt_progress *progress;   /* may be NULL */
    uint64_t memory_bytes;   /* of all units in flight */
    uint32_t commit_records; /* 0: MD_COMMIT_RECORDS */
    bool consume;
} md_engine_spec;

typedef struct {
    uint64_t records_done;
    uint64_t shards_deleted;
} md_engine_result;

/* Bytes of scratch that the largest unit of a plan needs. */
uint64_t md_engine_unit_bytes(const md_plan *plan, const md_config *config);

/* Converts all units that are not done; without a target fills hash and power and leaves done.
 * What was finished is durable also when it fails.
 *   Errors  RT_ENOMEM    memory_bytes is below what one unit needs (both named)
 *           RT_ECANCELED a stop was requested
 *           those of the source, the target and the ledger; the record is named */
RT_MUST_CHECK rt_status md_engine_run(const md_engine_spec *spec, md_engine_result *out,
                                      rt_err *err);

#endif
