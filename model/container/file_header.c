/* file_header.c - header and body checksums of packs and manifests. */
#include "model/container/file_header.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

enum { FILE_VERSION = 1 };

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "container files are little-endian and read in place");

static uint64_t header_hash(const md_file_header *header)
{
    return XXH3_64bits(header, offsetof(md_file_header, header_hash));
}

void md_file_header_init(md_file_header *out, const char magic[8], uint32_t entry_bytes,
                         uint64_t count, uint64_t file_bytes, const void *body)
{
    *out = (md_file_header){
        .version = FILE_VERSION,
        .entry_bytes = entry_bytes,
        .count = count,
        .file_bytes = file_bytes,
        .body_hash = XXH3_64bits(body, count * entry_bytes),
    };
    memcpy(out->magic, magic, sizeof(out->magic));
    md_file_header_seal(out);
}

void md_file_header_seal(md_file_header *header)
{
    header->header_hash = header_hash(header);
}

static bool all_zero(const md_file_header *header)
{
    static const md_file_header zero;

    return memcmp(header, &zero, sizeof(zero)) == 0;
}

rt_status md_file_header_check(const md_file_header *header, const char magic[8],
                               uint32_t entry_bytes, uint64_t file_bytes, const char *path,
                               rt_err *err)
{
    if (all_zero(header))
        return rt_fail(err, RT_EFORMAT, "%s: expected a finished file, found an empty header",
                       path);
    if (memcmp(header->magic, magic, sizeof(header->magic)) != 0)
        return rt_fail(err, RT_EFORMAT, "%s: expected magic \"%.7s\", found other bytes", path,
                       magic);
    if (header->header_hash != header_hash(header))
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected header checksum %016" PRIx64 ", found %016" PRIx64, path,
                       header->header_hash, header_hash(header));
    if (header->version > FILE_VERSION)
        return rt_fail(err, RT_EUNSUPPORTED,
                       "%s: expected file version %d, found the newer %" PRIu32, path, FILE_VERSION,
                       header->version);
    if (header->version != FILE_VERSION || header->reserved[0] != 0 || header->reserved[1] != 0)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected file version %d with no reserved bits, found %" PRIu32, path,
                       FILE_VERSION, header->version);
    if (header->entry_bytes != entry_bytes)
        return rt_fail(err, RT_EFORMAT, "%s: expected entries of %" PRIu32 " bytes, found %" PRIu32,
                       path, entry_bytes, header->entry_bytes);
    if (header->count > MD_ENTRIES_MAX)
        return rt_fail(err, RT_EFORMAT, "%s: expected at most %d entries, found %" PRIu64, path,
                       MD_ENTRIES_MAX, header->count);
    if (header->file_bytes != file_bytes)
        return rt_fail(err, RT_EFORMAT, "%s: expected %" PRIu64 " bytes, found %" PRIu64, path,
                       header->file_bytes, file_bytes);
    if (MD_HEADER_BYTES + header->count * entry_bytes > file_bytes)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected room for %" PRIu64 " entries, found %" PRIu64 " bytes", path,
                       header->count, file_bytes);
    return RT_OK;
}

rt_status md_file_body_check(const md_file_header *header, const void *body, const char *path,
                             rt_err *err)
{
    uint64_t found = XXH3_64bits(body, header->count * header->entry_bytes);

    if (header->body_hash != found)
        return rt_fail(err, RT_EFORMAT,
                       "%s: expected index checksum %016" PRIx64 ", found %016" PRIx64, path,
                       header->body_hash, found);
    return RT_OK;
}
