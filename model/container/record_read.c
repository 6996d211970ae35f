/* record_read.c - a record's bytes, read whole and proved by their hash. */
#include "model/container/container.h"

#include "base/file.h"

#include <inttypes.h>
#include <xxhash.h>

md_hash128 md_hash_bytes(const void *data, size_t bytes)
{
    XXH128_hash_t hash = XXH3_128bits(data, bytes);

    return (md_hash128){hash.low64, hash.high64};
}

rt_status md_record_read(const md_record *record, void *data, rt_err *err)
{
    md_hash128 found;
    char key[64];
    rt_status status;

    md_key_format(record->key, key, sizeof(key));
    if (record->fd < 0)
        return rt_fail(err, RT_EIO, "%s: not held by this copy (expected in %s)", key,
                       record->pack);
    status = rt_pread_full(record->fd, data, record->bytes, record->offset, record->pack, err);
    if (status != RT_OK) {
        rt_err_prefix(err, "%s: ", key);
        return status;
    }
    found = md_hash_bytes(data, record->bytes);
    if (found.low != record->hash.low || found.high != record->hash.high)
        return rt_fail(
            err, RT_EFORMAT,
            "%s: %s: expected hash %016" PRIx64 "%016" PRIx64 ", found %016" PRIx64 "%016" PRIx64,
            record->pack, key, record->hash.high, record->hash.low, found.high, found.low);
    return RT_OK;
}
