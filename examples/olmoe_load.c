/* olmoe_load.c - how the weights get where a token finds them: dense ones in memory, experts in a pack.
 *
 * A checkpoint stores an expert as three tensors, maybe in two files, in rows that kernels cannot use
 * as they are. The pack stores it as one record of the very bytes that the kernels read: a miss is
 * one read and no work. It is written once, by the first run.
 *
 * Why the pack and not the project's whole container (moesaic.json, manifest, store): that one
 * describes GLM models and refuses others. The pack below it only knows numbers and bytes. */
#include "examples/olmoe_load.h"

#include "base/check.h"
#include "base/file.h"
#include "kernels/rope.h"
#include "model/container/container.h"
#include "model/convert/source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The checkpoint ---- */

enum { BLOCK_ROWS = 256, GLOBAL = -1, NAME_BYTES = 96 };

/* The checkpoint while it is read. Without an arena the functions below only add up what they would
 * take: they run twice, and so the sum cannot disagree with what is taken. */
typedef struct {
    md_source *source; /* owned */
    rt_arena *arena;   /* borrowed */
    size_t arena_bytes;
    float *block; /* BLOCK_ROWS rows of the widest matrix; owned */
    void *raw;    /* the same rows as they are stored; owned */
} loader;

static void *take(loader *l, size_t count)
{
    size_t bytes = count * sizeof(float); /* uint32_t is as long */

    l->arena_bytes += rt_arena_cost(bytes);
    return l->arena == NULL ? NULL : rt_arena_take(l->arena, bytes);
}

static const char *tensor_name(char *text, int layer, const char *part)
{
    if (layer == GLOBAL)
        (void)snprintf(text, NAME_BYTES, "%s.weight", part);
    else
        (void)snprintf(text, NAME_BYTES, "model.layers.%d.%s.weight", layer, part);
    return text;
}

/* Reads a matrix and interleaves its rows as the kernels want them (kernels/qmat.h). */
static rt_status load_matrix(loader *l, const kn_qmat *w, const char *name, rt_err *err)
{
    size_t tile_bytes = kn_qmat_tile_bytes(w->format, w->cols, w->group);
    char *tiles = (char *)(uintptr_t)w->data; /* const for all who come later */
    md_source_matrix found;

    RT_TRY(md_source_resolve(l->source, name, w->rows, w->cols, &found, err));
    for (uint32_t row = 0; row < w->rows; row += BLOCK_ROWS) {
        uint32_t rows = w->rows - row < BLOCK_ROWS ? w->rows - row : BLOCK_ROWS;

        RT_TRY(md_source_read_rows(l->source, &found, row, rows, l->block, l->raw, err));
        kn_qmat_pack(w->format, w->cols, w->group, l->block, w->cols, rows,
                     tiles + row / KN_TILE_ROWS * tile_bytes);
    }
    return RT_OK;
}

static rt_status matrix(loader *l, kn_qmat *w, uint32_t rows, uint32_t cols, int layer,
                        const char *part, rt_err *err)
{
    char name[NAME_BYTES];
    size_t bytes = kn_qmat_bytes(KN_F32, rows, cols, 64);

    *w = (kn_qmat){KN_F32, rows, cols, 64, take(l, bytes / sizeof(float))};
    return w->data == NULL ? RT_OK : load_matrix(l, w, tensor_name(name, layer, part), err);
}

static rt_status vector(loader *l, float **v, uint32_t count, int layer, const char *part,
                        rt_err *err)
{
    char name[NAME_BYTES];
    md_source_matrix found;

    *v = take(l, count);
    if (*v == NULL) return RT_OK;
    RT_TRY(md_source_resolve(l->source, tensor_name(name, layer, part), 1, count, &found, err));
    return md_source_read_rows(l->source, &found, 0, 1, *v, l->raw, err);
}

static rt_status load_layer(loader *l, const ex_shape *s, int index, ex_layer *out, rt_err *err)
{
    uint32_t n = s->hidden;

    RT_TRY(vector(l, &out->input_norm, n, index, "input_layernorm", err));
    RT_TRY(vector(l, &out->post_norm, n, index, "post_attention_layernorm", err));
    RT_TRY(vector(l, &out->q_norm, n, index, "self_attn.q_norm", err));
    RT_TRY(vector(l, &out->k_norm, n, index, "self_attn.k_norm", err));
    RT_TRY(matrix(l, &out->q, n, n, index, "self_attn.q_proj", err));
    RT_TRY(matrix(l, &out->k, n, n, index, "self_attn.k_proj", err));
    RT_TRY(matrix(l, &out->v, n, n, index, "self_attn.v_proj", err));
    RT_TRY(matrix(l, &out->o, n, n, index, "self_attn.o_proj", err));
    RT_TRY(matrix(l, &out->router, s->experts, n, index, "mlp.gate", err));
    out->keys = take(l, (size_t)s->positions * n);
    out->values = take(l, (size_t)s->positions * n);
    return RT_OK;
}

static rt_status load_dense(loader *l, ex_engine *e, rt_err *err)
{
    const ex_shape *s = &e->shape;
    float **of_hidden[] = {&e->x, &e->normed, &e->query, &e->attended, &e->part, &e->mixed};

    for (uint32_t i = 0; i < s->layers; i++)
        RT_TRY(load_layer(l, s, (int)i, &e->layers[i], err));
    RT_TRY(matrix(l, &e->embed, s->vocab, s->hidden, GLOBAL, "model.embed_tokens", err));
    RT_TRY(vector(l, &e->last_norm, s->hidden, GLOBAL, "model.norm", err));
    RT_TRY(matrix(l, &e->head, s->vocab, s->hidden, GLOBAL, "lm_head", err));
    for (size_t i = 0; i < sizeof(of_hidden) / sizeof(of_hidden[0]); i++)
        *of_hidden[i] = take(l, s->hidden);
    e->inv_freq = take(l, s->head_dim / 2);
    e->gate = take(l, s->inter);
    e->up = take(l, s->inter);
    e->share = take(l, s->experts);
    e->score = take(l, s->positions);
    e->logits = take(l, s->vocab);
    e->chosen = take(l, s->topk);
    e->spare = take(l, s->experts);
    e->seen = take(l, s->positions);
    return RT_OK;
}

/* ---- The pack of experts ---- */

/* One record beside the experts says whose they are, so that a pack of another checkpoint of the
 * same shape is noticed: it would fit, and talk nonsense. */
enum { STAMP_KIND = 0x7fff }; /* no kind of the container's: model/container/record.h */

typedef struct {
    uint64_t format;
    uint64_t checkpoint; /* from the fingerprints of its files */
} pack_stamp;

static pack_stamp stamp_of(const md_source *source, kn_format format)
{
    pack_stamp stamp = {(uint64_t)format, 0};

    for (uint32_t i = 0; i < md_source_shard_count(source); i++)
        stamp.checkpoint = stamp.checkpoint * 31 + md_source_shard_at(source, i)->fingerprint;
    return stamp;
}

/* What the pack must hold: experts by layer and number, then the stamp. malloc'd. */
static md_pack_entry *expected_entries(const ex_engine *e, const pack_stamp *stamp, uint64_t *count)
{
    uint64_t experts = (uint64_t)e->shape.layers * e->shape.experts;
    md_pack_entry *entries = calloc(experts + 1, sizeof(*entries));

    if (entries == NULL) return NULL;
    for (uint64_t i = 0; i < experts; i++) {
        entries[i].key =
            (md_key){(uint16_t)(i / e->shape.experts), MD_EXPERT, (uint32_t)(i % e->shape.experts)};
        entries[i].bytes = e->layout.record_bytes;
    }
    entries[experts].key = (md_key){MD_NO_LAYER, STAMP_KIND, 0};
    entries[experts].bytes = sizeof(*stamp);
    entries[experts].hash = md_hash_bytes(stamp, sizeof(*stamp));
    *count = experts + 1;
    (void)md_pack_layout(entries, *count);
    return entries;
}

static rt_status write_expert(loader *l, const ex_engine *e, md_pack_writer *writer,
                              md_pack_entry *entry, rt_err *err)
{
    void *record = e->slots[0].data; /* nothing is cached yet: borrow a slot */
    md_slice ffn = md_slice_view(&e->layout, 0, record);
    const kn_qmat *matrices[] = {&ffn.gate, &ffn.up, &ffn.down};
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};

    for (size_t i = 0; i < 3; i++) {
        char part[32], name[NAME_BYTES];

        (void)snprintf(part, sizeof(part), "mlp.experts.%" PRIu32 ".%s", entry->key.index,
                       parts[i]);
        RT_TRY(load_matrix(l, matrices[i], tensor_name(name, entry->key.layer, part), err));
    }
    entry->hash = md_hash_bytes(record, entry->bytes);
    return md_pack_write(writer, entry, 0, record, entry->bytes, err);
}

/* Two first runs at once would write into one file: the second is told so. Once we hold the lock the
 * name may be gone, the pack being finished and renamed: then it is not ours to write. */
static rt_status lock_partial(const char *path, int *out, rt_err *err)
{
    struct stat mine, named;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

    if (fd < 0) return rt_fail(err, RT_EIO, "create %s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &mine) == 0 && stat(path, &named) == 0 &&
        mine.st_ino == named.st_ino &&
        ftruncate(fd, 0) == 0) { /* an interrupted run's is begun anew */
        *out = fd;
        return RT_OK;
    }
    close(fd);
    return rt_fail(err, RT_EBUSY, "%s: another run is writing the experts: wait for it", path);
}

/* Written beside its place and renamed when it is whole and durable: an interrupted first run leaves
 * no half a pack to be found by the next. */
static rt_status write_pack(loader *l, const ex_engine *e, const char *path,
                            const pack_stamp *stamp, md_pack_entry *entries, uint64_t count,
                            rt_err *err)
{
    md_pack_writer *writer = NULL;
    char *partial = malloc(strlen(path) + sizeof(".partial"));
    int lock = -1;
    rt_status status;

    if (partial == NULL) return rt_fail(err, RT_ENOMEM, "path");
    (void)sprintf(partial, "%s.partial", path);
    status = lock_partial(partial, &lock, err);
    if (status == RT_OK) {
        fprintf(stderr, "olmoe: first run, writing %" PRIu64 " experts to %s\n", count - 1, path);
        status = md_pack_create(partial, entries, count, &writer, err);
    }
    for (uint64_t i = 0; status == RT_OK && i < count - 1; i++)
        status = write_expert(l, e, writer, &entries[i], err);
    if (status == RT_OK)
        status = md_pack_write(writer, &entries[count - 1], 0, stamp, sizeof(*stamp), err);
    if (status == RT_OK) status = md_pack_finish(writer, err);
    if (status == RT_OK && rename(partial, path) != 0)
        status = rt_fail(err, RT_EIO, "rename %s: %s", partial, strerror(errno));
    if (status != RT_OK && lock >= 0) (void)unlink(partial);
    md_pack_writer_free(writer);
    if (lock >= 0) close(lock);
    free(partial);
    return status;
}

/* md_pack_open has proved the index sound; here it must also be the index that we would write. */
static rt_status check_pack(const md_pack *pack, const md_pack_entry *expected, uint64_t count,
                            rt_err *err)
{
    const md_pack_entry *found = md_pack_entries(pack), *stamp = &expected[count - 1];
    bool same = md_pack_count(pack) == count;

    for (uint64_t i = 0; same && i < count; i++)
        same = md_key_compare(found[i].key, expected[i].key) == 0 &&
               found[i].bytes == expected[i].bytes;
    if (!same || found[count - 1].hash.low != stamp->hash.low ||
        found[count - 1].hash.high != stamp->hash.high)
        return rt_fail(err, RT_EINVAL,
                       "%s: made from another checkpoint or with another --experts format: remove "
                       "it, or name another file by --pack",
                       md_pack_path(pack));
    return RT_OK;
}

static rt_status open_pack(loader *l, ex_engine *e, const ex_spec *spec, rt_err *err)
{
    pack_stamp stamp = stamp_of(l->source, e->layout.format);
    uint64_t count = 0;
    md_pack_entry *entries = expected_entries(e, &stamp, &count);
    char name[64], *path;
    rt_status status = RT_OK;

    (void)snprintf(name, sizeof(name), "olmoe-experts-%s.pack", spec->format);
    path = spec->pack != NULL ? strdup(spec->pack) : rt_path_join(spec->dir, name);
    if (entries == NULL || path == NULL)
        status = rt_fail(err, RT_ENOMEM, "index of the pack");
    else if (access(path, F_OK) != 0)
        status = write_pack(l, e, path, &stamp, entries, count, err);
    if (status == RT_OK) status = md_pack_open(path, &e->pack, err);
    if (status == RT_OK) status = check_pack(e->pack, entries, count, err);
    free(entries);
    free(path);
    return status;
}

/* ---- Opening and closing ---- */

static rt_status make_slots(ex_engine *e, const ex_spec *spec, rt_err *err)
{
    const ex_shape *s = &e->shape;
    kn_format format = KN_F32;
    uint32_t wanted = spec->slots_per_layer < s->experts ? spec->slots_per_layer : s->experts;
    size_t count = (size_t)s->layers * wanted;

    if (!kn_format_parse(spec->format, &format))
        return rt_fail(err, RT_EINVAL, "expected f32, bf16, q8 or q4, found \"%s\"", spec->format);
    /* The project cuts experts into slices, to share one among computers. Here one slice is all. */
    md_expert_layout_init(&e->layout, format, s->hidden, s->inter, kn_round_up(s->inter, 64));
    e->slots_per_layer = wanted;
    e->slots = calloc(count, sizeof(*e->slots));
    if (e->slots == NULL) return rt_fail(err, RT_ENOMEM, "%zu slots", count);
    RT_TRY(rt_slab_alloc(count * e->layout.record_bytes, &e->slot_memory, err));
    for (size_t i = 0; i < count; i++)
        e->slots[i].data = (char *)e->slot_memory.data + i * e->layout.record_bytes;
    return RT_OK;
}

static rt_status open_loader(loader *l, const ex_engine *e, const ex_spec *spec, rt_err *err)
{
    uint32_t widest = e->shape.hidden > e->shape.inter ? e->shape.hidden : e->shape.inter;

    RT_TRY(md_source_open(spec->dir, NULL, 0, &l->source, err));
    l->block = malloc((size_t)BLOCK_ROWS * widest * sizeof(float));
    l->raw = malloc(md_source_raw_bytes(BLOCK_ROWS, widest));
    if (l->block == NULL || l->raw == NULL) return rt_fail(err, RT_ENOMEM, "reading buffers");
    return RT_OK;
}

static rt_status load(loader *l, ex_engine *e, const ex_spec *spec, rt_err *err)
{
    rt_team_spec team = {.threads = spec->threads, .spin_us = 0};

    RT_TRY(open_loader(l, e, spec, err));
    RT_TRY(load_dense(l, e, err)); /* adds up */
    RT_TRY(rt_arena_create(l->arena_bytes, &e->arena, err));
    l->arena = e->arena;
    RT_TRY(load_dense(l, e, err)); /* takes and reads */
    kn_rope_inv_freq(e->shape.rope_theta, e->shape.head_dim, e->inv_freq);
    for (uint32_t i = 0; i < e->shape.positions; i++)
        e->seen[i] = i;
    RT_TRY(make_slots(e, spec, err));
    RT_TRY(open_pack(l, e, spec, err));
    return rt_team_create(&team, &e->team, err);
}

rt_status ex_engine_open(const ex_spec *spec, const ex_shape *shape, ex_engine **out, rt_err *err)
{
    loader l = {0};
    ex_engine *e = calloc(1, sizeof(*e));
    rt_status status;

    RT_ASSERT(spec->slots_per_layer > 0 && shape->positions > 0);
    if (e == NULL) return rt_fail(err, RT_ENOMEM, "engine");
    e->shape = *shape;
    e->layers = calloc(shape->layers, sizeof(*e->layers));
    status = e->layers != NULL ? load(&l, e, spec, err) : rt_fail(err, RT_ENOMEM, "layers");
    md_source_close(l.source);
    free(l.block);
    free(l.raw);
    if (status != RT_OK)
        ex_engine_close(e);
    else
        *out = e;
    return status;
}

void ex_engine_close(ex_engine *e)
{
    if (e == NULL) return;
    rt_team_free(e->team);
    rt_arena_free(e->arena);
    md_pack_close(e->pack);
    rt_slab_free(&e->slot_memory);
    free(e->slots);
    free(e->layers);
    free(e);
}
