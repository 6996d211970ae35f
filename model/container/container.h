/* container.h - an opened model directory: moesaic.json, manifest, packs, tokenizer.
 *
 * A directory without moesaic.json is an unfinished conversion and is refused as such. A node may
 * hold partial packs: a record that is in the manifest but in no pack here is "not held". Everything
 * read from the files is checked before use; nothing in them is trusted as an index or a size.
 *
 * Threads: open/close from one; md_container_find and reads from any. */
#ifndef MODEL_CONTAINER_CONTAINER_H
#define MODEL_CONTAINER_CONTAINER_H

#include "model/container/record.h"
#include "model/expert.h"

enum {
    MD_CONTAINER_VERSION = 1,
    MD_CONVERSION_ID = 1, /* raised when the same source would convert to other bytes */
    MD_NUMERICS_ID = 1,   /* raised when any reference bit of execution changes */
};

/* What moesaic.json says beside the shapes of config.json. */
typedef struct {
    kn_format expert_format, dense_format, embed_format;
    uint32_t slice_width;
    float latent_eps; /* of q_a_layernorm and kv_a_layernorm */
    bool grid_fine;
    int8_t grid_q[MD_LAYERS_MAX]; /* per layer, of MoE layers (MTP included); 0 elsewhere */
    uint32_t conversion_id;
    char template_id[40]; /* md5 of the chat template, or "" */
    uint8_t model_id[32]; /* SHA-256, computed at open from manifest, config and fields */
} md_container_info;

/* What a conversion to these formats will say: embedding format, slice width, ids; the latent eps is
 * that of config. The rest is zero. */
void md_container_info_init(md_container_info *out, const md_config *config,
                            kn_format expert_format, kn_format dense_format);

typedef struct md_container md_container; /* opaque */

/* Errors  RT_EFORMAT  unfinished, damaged, or of another version (named: expected and found)
 *         RT_EIO      a file cannot be opened or read
 *         RT_EUNSUPPORTED  a newer format or feature */
RT_MUST_CHECK rt_status md_container_open(const char *dir, md_container **out, rt_err *err);
void md_container_close(md_container *container);

/* A container that is not made yet: every record of config and info with its size, none held. So
 * that planning asks the same functions as loading. dir is what messages call it. RT_ENOMEM. */
RT_MUST_CHECK rt_status md_container_blueprint(const char *dir, const md_config *config,
                                               const md_container_info *info, md_container **out,
                                               rt_err *err);

const char *md_container_dir(const md_container *container);
const md_config *md_container_config(const md_container *container);
const md_generation *md_container_generation(const md_container *container);
const md_container_info *md_container_get_info(const md_container *container);

/* 64 hex digits and a 0. */
void md_model_id_format(const uint8_t id[32], char text[65]);

/* Format and layout of the experts of a layer (MTP layers have the dense format). */
void md_container_expert_layout(const md_container *container, uint32_t layer,
                                md_expert_layout *out);
void md_container_shared_layout(const md_container *container, md_expert_layout *out);

typedef struct {
    md_key key;
    uint64_t bytes;  /* of the record, without padding to 4 KiB */
    uint64_t offset; /* in the pack, 4 KiB aligned */
    md_hash128 hash;
    int fd;           /* buffered descriptor of the pack, -1 when not held; borrowed */
    int fd_direct;    /* O_DIRECT descriptor, -1 where the filesystem refuses it; borrowed */
    const char *pack; /* path, for errors; borrowed */
} md_record;

/* false when the manifest has no such key; record->fd is -1 when this copy does not hold it. */
bool md_container_find(const md_container *container, md_key key, md_record *out);
/* All manifest entries in key order; index < md_container_record_count. */
uint64_t md_container_record_count(const md_container *container);
void md_container_record_at(const md_container *container, uint64_t index, md_record *out);

/* Reads a whole record (buffered) into data [record->bytes] and checks its hash.
 *   Errors  RT_EIO      read failed or the record is not held
 *           RT_EFORMAT  the bytes do not match the hash */
RT_MUST_CHECK rt_status md_record_read(const md_record *record, void *data, rt_err *err);
md_hash128 md_hash_bytes(const void *data, size_t bytes);

/* The compiled tokenizer image, in memory; borrowed from the container. */
const void *md_container_tokenizer(const md_container *container, size_t *bytes);

#endif
