/* ledger.h - what of an unfinished conversion is durable: `convert.ledger` in the target directory.
 *
 * A header (options, shards of the source) and one checksummed 64-byte entry per durable record. An
 * entry is appended and synced only after the record's bytes were; so an entry that is whole is
 * true. A torn tail is dropped, a damaged entry in the middle is skipped: either only means that its
 * record is converted again. docs/container.md has the layout.
 *
 * The file is also the lock: two conversions into one target refuse each other.
 *
 * Threads: one at a time. */
#ifndef MODEL_CONVERT_LEDGER_H
#define MODEL_CONVERT_LEDGER_H

#include "model/container/container.h"
#include "model/convert/source.h"

#define MD_LEDGER_NAME "convert.ledger"

typedef struct md_ledger md_ledger; /* opaque */

/* What decides a container's bytes; a resumed conversion must have the same. */
typedef struct {
    bool import; /* of a quantised model (moesaic import), not of a checkpoint */
    kn_format expert_format, dense_format;
    bool grid_fine;
    float latent_eps;
    uint32_t conversion_id;
    uint64_t config_hash; /* XXH3-64 of config.json's bytes */
    uint64_t records;
} md_ledger_options;

typedef struct {
    md_key key;
    uint64_t bytes;
    md_hash128 hash;
    double power; /* P_e^2 of experts (grid_q.h) */
} md_ledger_entry;

/* Opens the ledger of an interrupted conversion. *out is NULL when there is none: no file, or one
 * that was being created when the conversion died (no pack exists yet then).
 *   read_only  for --dry-run: no lock, nothing is changed
 *   Errors  RT_EIO; RT_EFORMAT a damaged header; RT_EBUSY another process holds the lock */
RT_MUST_CHECK rt_status md_ledger_open(const char *dir, bool read_only, md_ledger **out,
                                       rt_err *err);

/* Begins one, durably. Errors  RT_EIO, RT_ENOSPACE; RT_EBUSY when another process began first. */
RT_MUST_CHECK rt_status md_ledger_create(const char *dir, const md_ledger_options *options,
                                         const md_source *source, md_ledger **out, rt_err *err);

/* RT_EINVAL names what differs, what the target holds and what was asked. */
RT_MUST_CHECK rt_status md_ledger_check_options(const md_ledger_options *held,
                                                const md_ledger_options *asked, rt_err *err);

void md_ledger_close(md_ledger *ledger); /* releases the lock; the file stays. NULL allowed */

const md_ledger_options *md_ledger_get_options(const md_ledger *ledger);
const md_source_shard *md_ledger_shards(const md_ledger *ledger, uint32_t *count);
const md_ledger_entry *md_ledger_entries(const md_ledger *ledger, uint64_t *count);

/* Appends entries and syncs: they are durable on return. RT_EIO, RT_ENOSPACE. */
RT_MUST_CHECK rt_status md_ledger_append(md_ledger *ledger, const md_ledger_entry *entries,
                                         uint64_t count, rt_err *err);

/* Drops all entries, of this run and of those before: their records are converted again. RT_EIO. */
RT_MUST_CHECK rt_status md_ledger_forget(md_ledger *ledger, rt_err *err);

/* Deletes the file, releases the lock and closes, also on failure: the container is complete. RT_EIO. */
RT_MUST_CHECK rt_status md_ledger_remove(md_ledger *ledger, rt_err *err);

#endif
