/* record_check.c - reading records back in parallel. */
#include "model/convert/record_check.h"

#include "base/file.h"
#include "base/stop.h"

#include <stdlib.h>
#include <xxhash.h>

enum { PART_BYTES = 1 << 20 };

typedef struct {
    const md_container *container;
    rt_progress *progress;
    md_record_state *states;
} check;

const char *md_record_state_name(md_record_state state)
{
    switch (state) {
    case MD_RECORD_OK:
        return "ok";
    case MD_RECORD_ABSENT:
        return "not held";
    case MD_RECORD_DAMAGED:
        return "damaged";
    case MD_RECORD_UNREADABLE:
        return "not readable";
    case MD_RECORD_UNCHECKED:
        return "not checked";
    }
    return "?";
}

static rt_status hash_parts(const md_record *record, XXH3_state_t *state, char *part, rt_err *err)
{
    for (uint64_t at = 0; at < record->bytes; at += PART_BYTES) {
        uint64_t left = record->bytes - at;
        size_t bytes = left < PART_BYTES ? (size_t)left : PART_BYTES;

        RT_TRY(rt_pread_full(record->fd, part, bytes, record->offset + at, record->pack, err));
        (void)XXH3_128bits_update(state, part, bytes);
    }
    return RT_OK;
}

rt_status md_record_hash(const md_record *record, md_hash128 *out, rt_err *err)
{
    XXH3_state_t *state = XXH3_createState();
    char *part = malloc(PART_BYTES);
    rt_status status;

    if (state == NULL || part == NULL) {
        status = rt_fail(err, RT_ENOMEM, "%s", record->pack);
        goto done;
    }
    (void)XXH3_128bits_reset(state);
    status = hash_parts(record, state, part, err);
    if (status == RT_OK) {
        XXH128_hash_t hash = XXH3_128bits_digest(state);

        *out = (md_hash128){hash.low64, hash.high64};
    }
done:
    free(part);
    (void)XXH3_freeState(state);
    return status;
}

static void check_record(void *context, size_t chunk, uint32_t member)
{
    check *work = context;
    md_hash128 found = {0};
    md_record record;

    (void)member;
    md_container_record_at(work->container, chunk, &record);
    if (record.fd < 0)
        work->states[chunk] = MD_RECORD_ABSENT;
    else if (rt_stop_requested())
        work->states[chunk] = MD_RECORD_UNCHECKED;
    else if (md_record_hash(&record, &found, NULL) != RT_OK)
        work->states[chunk] = MD_RECORD_UNREADABLE;
    else if (found.low != record.hash.low || found.high != record.hash.high)
        work->states[chunk] = MD_RECORD_DAMAGED;
    else
        work->states[chunk] = MD_RECORD_OK;
    if (record.fd >= 0) rt_progress_add(work->progress, record.bytes);
}

void md_records_check(const md_container *container, rt_team *team, rt_progress *progress,
                      md_record_state *states)
{
    check work = {container, progress, states};

    rt_team_run(team, check_record, &work, md_container_record_count(container));
}

uint64_t md_records_held_bytes(const md_container *container)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;

        md_container_record_at(container, i, &record);
        if (record.fd >= 0) bytes += record.bytes;
    }
    return bytes;
}
