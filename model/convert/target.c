/* target.c - the packs of a conversion. */
#include "model/convert/target.h"

#include "base/check.h"
#include "base/file.h"
#include "model/expert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    md_pack_writer *writer; /* owned */
    md_pack_entry *entries; /* in target->entries; laid out */
    uint64_t count;
} target_pack;

struct md_target {
    const md_plan *plan;    /* borrowed */
    md_pack_entry *entries; /* owned: [units], those of a pack together */
    uint32_t *entry_of;     /* [units] */
    uint32_t *pack_of;      /* [units] */
    target_pack *packs;     /* owned */
    uint32_t pack_count;
};

/* Pack 0 is dense.bin; the experts of a layer have one each. */
static uint32_t slot_of(md_key key)
{
    return key.kind == MD_EXPERT ? 1u + key.layer : 0;
}

/* Groups the units by pack; units are in key order, so each pack's entries are too. */
static void assign_entries(md_target *target)
{
    uint32_t numbers[MD_LAYERS_MAX + 1];
    uint32_t next = 0;

    memset(numbers, 0xff, sizeof(numbers));
    for (uint32_t i = 0; i < target->plan->count; i++) {
        uint32_t slot = slot_of(target->plan->units[i].key);

        RT_ASSERT(slot <= MD_LAYERS_MAX);
        if (numbers[slot] == MD_SOURCE_NONE) numbers[slot] = target->pack_count++;
        target->pack_of[i] = numbers[slot];
        target->packs[numbers[slot]].count++;
    }
    for (uint32_t p = 0; p < target->pack_count; p++) {
        target->packs[p].entries = target->entries + next;
        next += (uint32_t)target->packs[p].count;
        target->packs[p].count = 0;
    }
    for (uint32_t i = 0; i < target->plan->count; i++) {
        const md_unit *unit = &target->plan->units[i];
        target_pack *pack = &target->packs[target->pack_of[i]];
        md_pack_entry *entry = &pack->entries[pack->count++];

        entry->key = unit->key;
        entry->bytes = unit->shape.bytes;
        target->entry_of[i] = (uint32_t)(entry - target->entries);
    }
}

static rt_status open_packs(md_target *target, const char *dir, bool create, rt_err *err)
{
    for (uint32_t p = 0; p < target->pack_count; p++) {
        target_pack *pack = &target->packs[p];
        char name[32];
        char *path = rt_path_join(dir, md_target_pack_name(target, p, name, sizeof(name)));
        rt_status status;

        if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", dir);
        md_pack_layout(pack->entries, pack->count);
        status = create ? md_pack_create(path, pack->entries, pack->count, &pack->writer, err)
                        : md_pack_look(path, pack->entries, pack->count, &pack->writer, err);
        if (status == RT_OK && create) status = md_pack_sync(pack->writer, err);
        free(path);
        RT_TRY(status);
    }
    return create ? rt_dir_sync(dir, err) : RT_OK;
}

static rt_status target_open(const char *dir, const md_plan *plan, bool create, md_target **out,
                             rt_err *err)
{
    md_target *target = calloc(1, sizeof(*target));
    rt_status status;

    if (target == NULL) return rt_fail(err, RT_ENOMEM, "target %s", dir);
    target->plan = plan;
    target->entries = calloc(plan->count + 1, sizeof(*target->entries));
    target->entry_of = calloc(plan->count + 1, sizeof(*target->entry_of));
    target->pack_of = calloc(plan->count + 1, sizeof(*target->pack_of));
    target->packs = calloc(MD_LAYERS_MAX + 1, sizeof(*target->packs));
    if (target->entries == NULL || target->entry_of == NULL || target->pack_of == NULL ||
        target->packs == NULL) {
        status = rt_fail(err, RT_ENOMEM, "target %s", dir);
        goto fail;
    }
    assign_entries(target);
    status = open_packs(target, dir, create, err);
    if (status != RT_OK) goto fail;
    *out = target;
    return RT_OK;
fail:
    md_target_close(target);
    return status;
}

rt_status md_target_create(const char *dir, const md_plan *plan, md_target **out, rt_err *err)
{
    return target_open(dir, plan, true, out, err);
}

rt_status md_target_look(const char *dir, const md_plan *plan, md_target **out, rt_err *err)
{
    return target_open(dir, plan, false, out, err);
}

void md_target_close(md_target *target)
{
    if (target == NULL) return;
    for (uint32_t p = 0; target->packs != NULL && p < target->pack_count; p++)
        md_pack_writer_free(target->packs[p].writer);
    free(target->packs);
    free(target->pack_of);
    free(target->entry_of);
    free(target->entries);
    free(target);
}

uint32_t md_target_pack_count(const md_target *target)
{
    return target->pack_count;
}

bool md_target_pack_exists(const md_target *target, uint32_t pack)
{
    RT_ASSERT(pack < target->pack_count);
    return target->packs[pack].writer != NULL;
}

const char *md_target_pack_name(const md_target *target, uint32_t pack, char *text,
                                size_t text_bytes)
{
    RT_ASSERT(pack < target->pack_count);
    return md_pack_name(target->packs[pack].entries[0].key, text, text_bytes);
}

uint32_t md_target_pack_of(const md_target *target, uint32_t unit)
{
    RT_ASSERT(unit < target->plan->count);
    return target->pack_of[unit];
}

rt_status md_target_write(md_target *target, uint32_t unit, uint64_t offset, const void *data,
                          size_t bytes, rt_err *err)
{
    RT_ASSERT(unit < target->plan->count);
    return md_pack_write(target->packs[target->pack_of[unit]].writer,
                         &target->entries[target->entry_of[unit]], offset, data, bytes, err);
}

rt_status md_target_sync(md_target *target, uint32_t pack, rt_err *err)
{
    RT_ASSERT(pack < target->pack_count);
    return md_pack_sync(target->packs[pack].writer, err);
}

rt_status md_target_verify(md_target *target, uint32_t unit, rt_err *err)
{
    const md_unit *wanted = &target->plan->units[unit];
    uint32_t p = md_target_pack_of(target, unit);
    md_hash128 found = {0};
    char name[64], pack[32];
    rt_status status;

    md_key_format(wanted->key, name, sizeof(name));
    md_target_pack_name(target, p, pack, sizeof(pack));
    if (target->packs[p].writer == NULL)
        return rt_fail(err, RT_EIO, "%s: %s is missing", name, pack);
    status = md_pack_hash(target->packs[p].writer, &target->entries[target->entry_of[unit]], &found,
                          err);
    if (status != RT_OK) {
        rt_err_prefix(err, "%s: ", name);
        return status;
    }
    if (found.low != wanted->hash.low || found.high != wanted->hash.high)
        return rt_fail(err, RT_EFORMAT,
                       "%s in %s: read back from the disk, its bytes are not those that were "
                       "written (hash %016" PRIx64 "%016" PRIx64 ", found %016" PRIx64 "%016" PRIx64
                       "): check the disk; run again to convert it again",
                       name, pack, wanted->hash.high, wanted->hash.low, found.high, found.low);
    return RT_OK;
}

rt_status md_target_finish(md_target *target, rt_err *err)
{
    for (uint32_t i = 0; i < target->plan->count; i++) {
        RT_ASSERT(target->plan->units[i].done);
        target->entries[target->entry_of[i]].hash = target->plan->units[i].hash;
    }
    for (uint32_t p = 0; p < target->pack_count; p++)
        RT_TRY(md_pack_finish(target->packs[p].writer, err));
    return RT_OK;
}

uint64_t md_target_file_bytes(const md_plan *plan, bool all)
{
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < plan->count; i++) {
        if (plan->units[i].done && !all) continue;
        bytes +=
            (plan->units[i].shape.bytes + MD_RECORD_ALIGN - 1) / MD_RECORD_ALIGN * MD_RECORD_ALIGN;
    }
    return bytes + plan->count * sizeof(md_pack_entry) + (uint64_t)MD_LAYERS_MAX * MD_RECORD_ALIGN;
}
