/* fuzz_container.c - the files of a container as an attacker may write them.
 *
 * The first byte chooses what the rest is: moesaic.json; a manifest or a pack as it is; entries of a
 * manifest or a pack under a header whose checksums are right, so that the checks behind it are
 * reached (for a pack the second byte is the file's size in blocks of 4 KiB). */
#include "base/check.h"
#include "model/container/description.h"
#include "model/container/file_header.h"
#include "model/container/manifest.h"
#include "model/container/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char config_json[] =
    "{\"model_type\":\"glm_moe_dsa\",\"hidden_size\":64,\"index_head_dim\":16,\"index_n_heads\":8,"
    "\"index_topk\":8,\"indexer_types\":[\"full\",\"shared\",\"full\"],\"intermediate_size\":96,"
    "\"kv_lora_rank\":32,\"max_position_embeddings\":4096,"
    "\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\"],\"moe_intermediate_size\":32,"
    "\"n_routed_experts\":8,\"n_shared_experts\":1,\"norm_topk_prob\":true,"
    "\"num_attention_heads\":4,\"num_experts_per_tok\":2,\"num_hidden_layers\":3,"
    "\"num_nextn_predict_layers\":1,\"q_lora_rank\":32,\"qk_nope_head_dim\":16,"
    "\"qk_rope_head_dim\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1e6,"
    "\"routed_scaling_factor\":2.5,\"v_head_dim\":24,\"vocab_size\":384}";

/* What parses must print and parse again as the same thing. */
static void describe(const uint8_t *data, size_t size)
{
    md_image_stamp stamp, stamp_again;
    md_container_info info, again;
    md_config config;
    char *text, *text_again;
    rt_err err;

    RT_ASSERT(md_config_parse(config_json, sizeof(config_json) - 1, &config, &err) == RT_OK);
    if (md_description_parse((const char *)data, size, &config, &info, &stamp, &err) != RT_OK)
        return;
    text = md_description_print(&config, &info, &stamp);
    RT_ASSERT(text != NULL);
    RT_ASSERT(md_description_parse(text, strlen(text), &config, &again, &stamp_again, &err) ==
              RT_OK);
    text_again = md_description_print(&config, &again, &stamp_again);
    RT_ASSERT(text_again != NULL && strcmp(text, text_again) == 0);
    free(text_again);
    free(text);
}

/* A file in memory, opened by its path in /proc. */
static int make_file(const void *data, size_t bytes, uint64_t file_bytes, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    RT_ASSERT(fd >= 0);
    RT_ASSERT(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    RT_ASSERT(ftruncate(fd, (off_t)file_bytes) == 0);
    (void)snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void open_manifest(const char *path)
{
    md_manifest_entry *entries = NULL;
    uint64_t count = 0;
    rt_err err;

    if (md_manifest_read(path, &entries, &count, &err) != RT_OK) return;
    for (uint64_t i = 1; i < count; i++)
        RT_ASSERT(md_key_compare(entries[i - 1].key, entries[i].key) < 0);
    free(entries);
}

static void open_pack(const char *path, uint64_t file_bytes)
{
    md_pack *pack = NULL;
    rt_err err;

    if (md_pack_open(path, &pack, &err) != RT_OK) return;
    for (uint64_t i = 0; i < md_pack_count(pack); i++) {
        const md_pack_entry *entry = &md_pack_entries(pack)[i];
        md_record record = {.key = entry->key,
                            .bytes = entry->bytes,
                            .offset = entry->offset,
                            .hash = entry->hash,
                            .fd = md_pack_fd(pack),
                            .pack = path};
        void *bytes;

        RT_ASSERT(entry->offset <= file_bytes && entry->bytes <= file_bytes - entry->offset);
        bytes = malloc(entry->bytes);
        RT_ASSERT(bytes != NULL);
        if (md_record_read(&record, bytes, &err) == RT_OK)
            RT_ASSERT(md_hash_bytes(bytes, entry->bytes).low == entry->hash.low);
        free(bytes);
    }
    md_pack_close(pack);
}

/* entries under a header that is right for them. */
static void open_repaired(bool is_pack, const uint8_t *entries, size_t bytes, uint64_t file_bytes)
{
    uint32_t entry_bytes = is_pack ? sizeof(md_pack_entry) : sizeof(md_manifest_entry);
    uint64_t count = bytes / entry_bytes;
    size_t body_bytes = (size_t)count * entry_bytes;
    unsigned char *image = malloc(sizeof(md_file_header) + body_bytes);
    md_file_header header;
    char path[64];
    int fd;

    RT_ASSERT(image != NULL);
    if (!is_pack) file_bytes = sizeof(header) + body_bytes;
    md_file_header_init(&header, is_pack ? MD_PACK_MAGIC : MD_MANIFEST_MAGIC, entry_bytes, count,
                        file_bytes, entries);
    memcpy(image, &header, sizeof(header));
    memcpy(image + sizeof(header), entries, body_bytes);
    fd = make_file(image, sizeof(header) + body_bytes, file_bytes, path);
    if (is_pack)
        open_pack(path, file_bytes);
    else
        open_manifest(path);
    (void)close(fd);
    free(image);
}

static void open_raw(bool is_pack, const uint8_t *data, size_t size)
{
    char path[64];
    int fd = make_file(data, size, size, path);

    if (is_pack)
        open_pack(path, size);
    else
        open_manifest(path);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    switch (data[0] % 5) {
    case 0:
        describe(data + 1, size - 1);
        break;
    case 1:
        open_raw(false, data + 1, size - 1);
        break;
    case 2:
        open_raw(true, data + 1, size - 1);
        break;
    case 3:
        open_repaired(false, data + 1, size - 1, 0);
        break;
    default:
        open_repaired(true, data + 2, size - 2, (uint64_t)data[1] * MD_RECORD_ALIGN);
        break;
    }
    return 0;
}
