/* convert.h - a checkpoint in the release's layout, or a model of the colibri engine, becomes a
 * container.
 *
 * Streaming and resumable: a unit of work is one record (its source tensors are read, quantised and
 * written to the record's final place); a checksummed ledger marks records that are durable. Memory
 * is a few tensors per thread, whatever the shard size. The same source and options give the same
 * bytes with any number of threads and after any interruption. Resumed, it reads back what the ledger
 * names, and converts again what is gone or damaged.
 *
 * Threads: md_convert from one; it runs the team. */
#ifndef MODEL_CONVERT_CONVERT_H
#define MODEL_CONVERT_CONVERT_H

#include "base/team.h"
#include "model/container/container.h"
#include "model/convert/import.h"

typedef struct {
    const char *source, *target; /* directories */
    kn_format expert_format,
        dense_format;         /* verify_only: 0 takes the container's; import: unused */
    bool import;              /* source holds integers of the colibri engine, which are kept */
    const char *indexer_from; /* import: where indexer and MTP layer come from when source lacks
                                 them; NULL: nowhere */
    bool grid_fine;
    bool grid_any;           /* verify_only: the container's grid, whichever it is */
    float latent_eps;        /* 0: rms_norm_eps of config.json; verify_only: the container's */
    bool consume;            /* delete a source shard once all its records are durable and re-read;
                              not of an import */
    bool dry_run;            /* plan, check names, shapes and disk; write nothing */
    bool verify_only;        /* re-read an existing container's records and compare with a fresh
                              quantisation */
    bool quiet;              /* no progress line */
    uint64_t memory_bytes;   /* bound for all buffers; 0: 2 GiB */
    uint32_t commit_records; /* records made durable together at most; 0: 256. Fewer lose less work
                                to an interruption and wait for the disk more often */
} md_convert_spec;

typedef struct {
    uint64_t source_bytes, target_bytes; /* planned */
    uint64_t records_total, records_done, records_resumed;
    uint64_t records_lost;    /* of those an interruption left: gone or damaged, converted again */
    uint64_t shards, tensors; /* of the source that are there */
    uint64_t tensors_unused;  /* of them no part of this model */
    uint64_t shards_deleted;
    uint64_t shards_deletable, deletable_bytes; /* with consume: what it deletes, planned */
    uint64_t shards_kept,
        kept_bytes;         /* with consume: model*.safetensors that are still in source */
    uint64_t needed_bytes;  /* of disk at the worst moment, beyond what is taken now */
    uint64_t reserve_bytes; /* of needed_bytes: what is not known to the byte */
    uint64_t free_bytes;    /* on the target's filesystem before the run */
    uint64_t records_at_once;
    uint64_t buffer_bytes; /* of all units in flight, at most memory_bytes */
    uint64_t memory_bytes; /* the bound */
    double seconds;
    kn_format expert_format, dense_format; /* of the container */
    md_import_summary imported;            /* of an import */
    uint8_t model_id[32];
    uint64_t mismatches; /* verify_only */
    uint64_t
        records_absent; /* verify_only: not held by this copy, compared by the manifest alone */
} md_convert_result;

/* Errors  RT_EFORMAT       the source is damaged or lacks a tensor (named; MTP and indexer
 *                          included)
 *         RT_EUNSUPPORTED  another model_type, fused expert names, a dtype we do not read; what
 *                          md_import_look refuses
 *         RT_ENOSPACE      needed and free are named; checked before anything is written, and again
 *                          when a write fails
 *         RT_EINVAL        the target holds another conversion (which option differs is named), or
 *                          files that are no conversion's; source and target are the same
 *                          directory; the source is a container
 *         RT_EBUSY         another conversion into the target is running
 *         RT_ENOMEM        memory_bytes is less than one record needs (both named)
 *         RT_ECANCELED     a stop was requested; the ledger is durable, run again to resume */
RT_MUST_CHECK rt_status md_convert(const md_convert_spec *spec, rt_team *team,
                                   md_convert_result *result, rt_err *err);

#endif
