/* record_check.h - the hash of every record that a container holds, read from its disk.
 *
 * Threads: md_records_check from one; it runs the team. */
#ifndef MODEL_CONVERT_RECORD_CHECK_H
#define MODEL_CONVERT_RECORD_CHECK_H

#include "base/progress.h"
#include "base/team.h"
#include "model/container/container.h"

typedef enum {
    MD_RECORD_OK,
    MD_RECORD_ABSENT,     /* this copy does not hold it */
    MD_RECORD_DAMAGED,    /* other bytes than the manifest says */
    MD_RECORD_UNREADABLE, /* the disk gave an error */
    MD_RECORD_UNCHECKED,  /* a stop was requested before its turn */
} md_record_state;

/* "damaged", "not readable"; for people. */
const char *md_record_state_name(md_record_state state);

/* Hashes a record by parts: an embedding need not fit in memory. RT_EIO, RT_ENOMEM. */
RT_MUST_CHECK rt_status md_record_hash(const md_record *record, md_hash128 *out, rt_err *err);

/* Fills states [md_container_record_count] in record order. progress may be NULL. */
void md_records_check(const md_container *container, rt_team *team, rt_progress *progress,
                      md_record_state *states);

/* Bytes of the records that are held. */
uint64_t md_records_held_bytes(const md_container *container);

#endif
