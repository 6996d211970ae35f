/* file_header.h - the 64 bytes that packs and manifests begin with, checked as one thing.
 *
 * docs/container.md is normative. The header's own checksum makes "not finished" (zeros), "not our
 * file" and "damaged" three different errors; the body's checksum covers the index or entries.
 *
 * Threads: pure. */
#ifndef MODEL_CONTAINER_FILE_HEADER_H
#define MODEL_CONTAINER_FILE_HEADER_H

#include "base/status.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MD_HEADER_BYTES = 64,
    MD_ENTRIES_MAX = 1 << 21, /* 256 layers of 4,096 experts and their dense records fit */
};

#define MD_PACK_MAGIC "MOEPACK\n"
#define MD_MANIFEST_MAGIC "MOEMANI\n"

typedef struct {
    char magic[8];
    uint32_t version;     /* 1 */
    uint32_t entry_bytes; /* of one entry of the body */
    uint64_t count;       /* entries; the body follows the header at once */
    uint64_t file_bytes;  /* of the whole file */
    uint64_t body_hash;   /* XXH3-64 of the body */
    uint64_t reserved[2]; /* 0 */
    uint64_t header_hash; /* XXH3-64 of the 56 bytes before it */
} md_file_header;

static_assert(sizeof(md_file_header) == MD_HEADER_BYTES, "a header is 64 bytes on disk");
static_assert(offsetof(md_file_header, header_hash) == 56, "the header's hash comes last");

/* Fills a header over a body of count entries. */
void md_file_header_init(md_file_header *out, const char magic[8], uint32_t entry_bytes,
                         uint64_t count, uint64_t file_bytes, const void *body);

/* Sets header_hash to that of the fields as they are. */
void md_file_header_seal(md_file_header *header);

/* Checks everything but the body: magic, version, sizes, hash, count <= MD_ENTRIES_MAX, and that
 * the body lies in the file. file_bytes  what the filesystem says Errors  RT_EFORMAT       naming
 * path, expected and found RT_EUNSUPPORTED  a newer version */
RT_MUST_CHECK rt_status md_file_header_check(const md_file_header *header, const char magic[8],
                                             uint32_t entry_bytes, uint64_t file_bytes,
                                             const char *path, rt_err *err);
RT_MUST_CHECK rt_status md_file_body_check(const md_file_header *header, const void *body,
                                           const char *path, rt_err *err);

#endif
