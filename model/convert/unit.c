/* unit.c - one record's bytes from its tensors. The bytes depend on the source and the formats
 * alone: blocks are cut at tile borders, and no tile depends on another. */
#include "model/convert/unit.h"

#include "base/check.h"
#include "kernels/quant.h"
#include "kernels/rope.h"
#include "model/convert/grid_q.h"

#include <string.h>
#include <xxhash.h>

/* Sizes of the buffers of a unit; 0 where it has none. */
typedef struct {
    uint32_t block_rows;
    size_t raw_bytes, block_bytes, turned_bytes, packed_bytes;
    size_t norm_bytes, power_bytes;   /* experts: f32 [hidden], three f64 [inter] */
    size_t codes_bytes, scales_bytes; /* of a block, where a tensor has integers to be kept */
} sizes;

typedef struct {
    const md_unit *unit;
    const md_config *config;
    const md_source *source;
    const md_unit_sink *sink;
    XXH3_state_t *hash;
    uint64_t offset; /* bytes handed on */
    sizes size;
    void *raw;
    float *block;
    float *turned; /* a head's block, transposed */
    int8_t *codes;
    float *scales;
    void *packed;
    float *norm;
    double *gate_norm, *up_norm, *down_norm;
    md_expert_layout layout;
} work;

/* ---- memory ---- */

static uint32_t rows_of_block(uint32_t rows, uint32_t cols)
{
    uint32_t fit = (uint32_t)(MD_UNIT_BLOCK_BYTES / sizeof(float) / cols);

    fit = fit / KN_TILE_ROWS * KN_TILE_ROWS;
    if (fit < KN_TILE_ROWS) fit = KN_TILE_ROWS;
    return fit < rows ? fit : rows;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Integers are kept where the record has scales to put theirs into. */
static bool keeps_codes(kn_format format, const md_source_matrix *matrix)
{
    return matrix->bits > 0 && kn_format_has_f32_scales(format);
}

static void add_codes(kn_format format, const md_source_matrix *matrix, uint32_t rows, sizes *out)
{
    if (!keeps_codes(format, matrix)) return;
    out->codes_bytes = max_size(out->codes_bytes, (size_t)rows * matrix->cols);
    out->scales_bytes = max_size(out->scales_bytes,
                                 (size_t)rows * md_source_scales_per_row(matrix) * sizeof(float));
}

static void expert_sizes(const md_unit *unit, sizes *out)
{
    const md_shape *shape = &unit->shape;
    uint32_t inter = shape->rows, hidden = shape->cols;
    uint32_t rows = rows_of_block(inter, hidden), down_rows = rows_of_block(hidden, inter);

    out->raw_bytes =
        max_size(md_source_raw_bytes(rows, hidden), md_source_raw_bytes(down_rows, inter));
    out->block_bytes = max_size((size_t)rows * hidden, (size_t)down_rows * inter) * sizeof(float);
    out->packed_bytes = (size_t)shape->bytes;
    out->norm_bytes = hidden * sizeof(float);
    out->power_bytes = inter * sizeof(double);
    for (uint32_t i = 0; i < unit->source_count && i <= MD_UNIT_DOWN; i++)
        add_codes(shape->format, &unit->source[i], i == MD_UNIT_DOWN ? down_rows : rows, out);
}

static sizes unit_sizes(const md_unit *unit, const md_config *config)
{
    const md_shape *shape = &unit->shape;
    uint32_t cols = shape->cols, rows = rows_of_block(shape->rows, cols);
    sizes out = {0};

    switch (shape->form) {
    case MD_FORM_EXPERT:
        expert_sizes(unit, &out);
        return out;
    case MD_FORM_HEADS:
        rows = unit->key.kind == MD_UK_T ? shape->cols : shape->rows; /* rows of one head */
        cols = config->kv_rank;
        out.turned_bytes = (size_t)rows * cols * sizeof(float);
        out.packed_bytes = (size_t)(shape->bytes / shape->count);
        break;
    case MD_FORM_MATRIX:
        out.packed_bytes = kn_qmat_bytes(shape->format, rows, cols, shape->group);
        break;
    case MD_FORM_ROWS:
        out.packed_bytes = (size_t)rows * cols * sizeof(float);
        break;
    case MD_FORM_VECTOR:
        rows = 1;
        break;
    }
    out.block_rows = rows;
    out.raw_bytes = md_source_raw_bytes(rows, cols);
    out.block_bytes = (size_t)rows * cols * sizeof(float);
    if (unit->source_count > 0) add_codes(shape->format, &unit->source[0], rows, &out);
    return out;
}

size_t md_unit_memory(const md_unit *unit, const md_config *config)
{
    sizes size = unit_sizes(unit, config);

    return rt_arena_cost(size.raw_bytes) + rt_arena_cost(size.block_bytes) +
           rt_arena_cost(size.turned_bytes) + rt_arena_cost(size.packed_bytes) +
           rt_arena_cost(size.norm_bytes) + 3 * rt_arena_cost(size.power_bytes) +
           rt_arena_cost(size.codes_bytes) + rt_arena_cost(size.scales_bytes);
}

static void take_buffers(work *w, rt_arena *arena)
{
    w->raw = rt_arena_take(arena, w->size.raw_bytes);
    w->block = rt_arena_take(arena, w->size.block_bytes);
    w->turned = rt_arena_take(arena, w->size.turned_bytes);
    w->packed = rt_arena_take(arena, w->size.packed_bytes);
    w->norm = rt_arena_take(arena, w->size.norm_bytes);
    w->gate_norm = rt_arena_take(arena, w->size.power_bytes);
    w->up_norm = rt_arena_take(arena, w->size.power_bytes);
    w->down_norm = rt_arena_take(arena, w->size.power_bytes);
    w->codes = rt_arena_take(arena, w->size.codes_bytes);
    w->scales = rt_arena_take(arena, w->size.scales_bytes);
}

/* ---- one block of a matrix ---- */

/* Where a block of rows goes; src_col is the tensor's column that column 0 of the tiles is. */
typedef struct {
    kn_format format;
    uint32_t cols, group, src_col;
} block_target;

/* Reads rows for pack_block: into w->codes and w->scales where these are kept, else into w->block.
 * values: in any case into w->block. */
static rt_status read_block(work *w, const md_source_matrix *matrix, kn_format format, uint32_t row,
                            uint32_t count, bool values, rt_err *err)
{
    if (!keeps_codes(format, matrix))
        return md_source_read_rows(w->source, matrix, row, count, w->block, w->raw, err);
    RT_TRY(md_source_read_codes(w->source, matrix, row, count, w->codes, w->scales, w->raw, err));
    if (values) md_source_multiply(matrix, count, w->codes, w->scales, w->block);
    return RT_OK;
}

/* Quantises w->block, or takes over the integers as they are. */
static void pack_block(work *w, const md_source_matrix *matrix, const block_target *to,
                       uint32_t count, void *tiles)
{
    if (keeps_codes(to->format, matrix))
        kn_qmat_pack_quantised(to->format, to->cols, to->group, w->codes + to->src_col,
                               matrix->cols, w->scales, md_source_scales_per_row(matrix),
                               to->src_col, matrix->scale_group, count, tiles);
    else
        kn_qmat_pack(to->format, to->cols, to->group, w->block + to->src_col, matrix->cols, count,
                     tiles);
}

/* ---- streamed records ---- */

static rt_status emit(work *w, const void *data, size_t bytes, rt_err *err)
{
    (void)XXH3_128bits_update(w->hash, data, bytes);
    RT_TRY(w->sink->write(w->sink->context, w->offset, data, bytes, err));
    w->offset += bytes;
    return RT_OK;
}

static rt_status convert_vector(work *w, rt_err *err)
{
    const md_shape *shape = &w->unit->shape;

    if (w->unit->key.kind == MD_ROPE_INV_FREQ) {
        kn_rope_inv_freq(w->config->rope_theta, w->config->rope_dim, w->block);
        return emit(w, w->block, shape->cols * sizeof(float), err);
    }
    RT_ASSERT(w->unit->source_count == shape->rows);
    for (uint32_t i = 0; i < w->unit->source_count; i++) {
        RT_TRY(md_source_read_rows(w->source, &w->unit->source[i], 0, 1, w->block, w->raw, err));
        RT_TRY(emit(w, w->block, shape->cols * sizeof(float), err));
    }
    return RT_OK;
}

/* Row-major rows or tiles of one matrix, block by block. */
static rt_status convert_blocks(work *w, rt_err *err)
{
    const md_shape *shape = &w->unit->shape;
    const md_source_matrix *matrix = &w->unit->source[0];
    const block_target to = {shape->format, shape->cols, shape->group, 0};

    for (uint32_t row = 0; row < shape->rows;) {
        uint32_t left = shape->rows - row;
        uint32_t count = left < w->size.block_rows ? left : w->size.block_rows;
        size_t values = (size_t)count * shape->cols;

        RT_TRY(read_block(w, matrix, shape->format, row, count, false, err));
        if (shape->form == MD_FORM_MATRIX) {
            pack_block(w, matrix, &to, count, w->packed);
            RT_TRY(emit(w, w->packed,
                        kn_qmat_bytes(shape->format, count, shape->cols, shape->group), err));
        } else if (shape->format == KN_F32) {
            RT_TRY(emit(w, w->block, values * sizeof(float), err));
        } else {
            for (size_t i = 0; i < values; i++)
                ((uint16_t *)w->packed)[i] = kn_bf16_from_f32(w->block[i]);
            RT_TRY(emit(w, w->packed, values * sizeof(uint16_t), err));
        }
        row += count;
    }
    return RT_OK;
}

/* kv_b is per head [nope + v][kv_rank]: the key half is stored transposed, so that both halves are
 * quantised along the axis that they are contracted over. */
static rt_status convert_heads(work *w, rt_err *err)
{
    const md_shape *shape = &w->unit->shape;
    const md_config *c = w->config;
    bool keys = w->unit->key.kind == MD_UK_T;
    uint32_t rows = keys ? c->nope_dim : c->v_dim, rank = c->kv_rank;
    const md_source_matrix *matrix = &w->unit->source[0];
    const block_target to = {shape->format, shape->cols, shape->group, 0};

    RT_ASSERT(!keys || !keeps_codes(shape->format, matrix)); /* their scales lie the other way */

    for (uint32_t head = 0; head < shape->count; head++) {
        uint32_t first = head * (c->nope_dim + c->v_dim) + (keys ? 0 : c->nope_dim);

        RT_TRY(read_block(w, matrix, shape->format, first, rows, false, err));
        if (keys) {
            for (uint32_t k = 0; k < rank; k++)
                for (uint32_t d = 0; d < rows; d++)
                    w->turned[(size_t)k * rows + d] = w->block[(size_t)d * rank + k];
            kn_qmat_pack(shape->format, shape->cols, shape->group, w->turned, shape->cols,
                         shape->rows, w->packed);
        } else {
            pack_block(w, matrix, &to, rows, w->packed);
        }
        RT_TRY(emit(w, w->packed, w->size.packed_bytes, err));
    }
    return RT_OK;
}

/* ---- experts ---- */

/* Where a slice's matrix lies in the record being assembled. */
static unsigned char *place(work *w, uint32_t slice, uint32_t part)
{
    unsigned char *begin = (unsigned char *)w->packed + md_slice_offset(&w->layout, slice);
    md_slice view = md_slice_view(&w->layout, slice, begin);
    const void *data = part == MD_UNIT_GATE ? view.gate.data
                       : part == MD_UNIT_UP ? view.up.data
                                            : view.down.data;

    return begin + ((const unsigned char *)data - begin);
}

/* The rows of gate or up of one slice, and their norms. */
static rt_status pack_slice_rows(work *w, uint32_t slice, uint32_t part, double *norms, rt_err *err)
{
    const md_expert_layout *l = &w->layout;
    uint32_t begin = md_slice_begin(l, slice), neurons = md_slice_neurons(l, slice);
    uint32_t step = rows_of_block(l->inter, l->hidden);
    size_t tile = kn_qmat_tile_bytes(l->format, l->hidden, l->hidden_group);
    unsigned char *out = place(w, slice, part);
    const md_source_matrix *matrix = &w->unit->source[part];
    const block_target to = {l->format, l->hidden, l->hidden_group, 0};

    for (uint32_t row = 0; row < neurons;) {
        uint32_t count = neurons - row < step ? neurons - row : step;

        RT_TRY(read_block(w, matrix, l->format, begin + row, count, true, err));
        md_grid_row_norms(w->block, count, l->hidden, w->norm, norms + begin + row);
        pack_block(w, matrix, &to, count, out + row / KN_TILE_ROWS * tile);
        row += count;
    }
    return RT_OK;
}

/* Every row of down has a part in every slice. */
static rt_status pack_down(work *w, rt_err *err)
{
    const md_expert_layout *l = &w->layout;
    uint32_t step = rows_of_block(l->hidden, l->inter);
    const md_source_matrix *matrix = &w->unit->source[MD_UNIT_DOWN];

    for (uint32_t row = 0; row < l->hidden;) {
        uint32_t count = l->hidden - row < step ? l->hidden - row : step;

        RT_TRY(read_block(w, matrix, l->format, row, count, true, err));
        md_grid_column_norms(w->block, count, l->inter, w->down_norm);
        for (uint32_t slice = 0; slice < l->slices; slice++) {
            uint32_t neurons = md_slice_neurons(l, slice);
            size_t tile = kn_qmat_tile_bytes(l->format, neurons, l->inter_group);
            block_target to = {l->format, neurons, l->inter_group, md_slice_begin(l, slice)};

            pack_block(w, matrix, &to, count,
                       place(w, slice, MD_UNIT_DOWN) + row / KN_TILE_ROWS * tile);
        }
        row += count;
    }
    return RT_OK;
}

static rt_status convert_expert(work *w, double *power, rt_err *err)
{
    const md_expert_layout *l = &w->layout;

    RT_TRY(
        md_source_read_rows(w->source, &w->unit->source[MD_UNIT_NORM], 0, 1, w->norm, w->raw, err));
    memset(w->packed, 0, w->size.packed_bytes); /* the padding between slices */
    memset(w->down_norm, 0, w->size.power_bytes);
    for (uint32_t slice = 0; slice < l->slices; slice++) {
        RT_TRY(pack_slice_rows(w, slice, MD_UNIT_GATE, w->gate_norm, err));
        RT_TRY(pack_slice_rows(w, slice, MD_UNIT_UP, w->up_norm, err));
    }
    RT_TRY(pack_down(w, err));
    *power = md_grid_expert_power(w->gate_norm, w->up_norm, w->down_norm, l->inter, l->hidden);
    return emit(w, w->packed, w->size.packed_bytes, err);
}

rt_status md_unit_convert(const md_unit *unit, const md_config *config,
                          const md_container_info *info, const md_source *source, rt_arena *arena,
                          const md_unit_sink *sink, md_unit_result *out, rt_err *err)
{
    work w = {.unit = unit, .config = config, .source = source, .sink = sink};
    size_t mark = rt_arena_mark(arena);
    double power = 0;
    rt_status status = RT_OK;

    w.hash = XXH3_createState();
    if (w.hash == NULL) return rt_fail(err, RT_ENOMEM, "hash state");
    (void)XXH3_128bits_reset(w.hash);
    w.size = unit_sizes(unit, config);
    take_buffers(&w, arena);
    switch (unit->shape.form) {
    case MD_FORM_VECTOR:
        status = convert_vector(&w, err);
        break;
    case MD_FORM_ROWS:
    case MD_FORM_MATRIX:
        status = convert_blocks(&w, err);
        break;
    case MD_FORM_HEADS:
        status = convert_heads(&w, err);
        break;
    case MD_FORM_EXPERT:
        md_record_expert_layout(config, info, unit->key, &w.layout);
        status = convert_expert(&w, &power, err);
        break;
    }
    if (status == RT_OK) {
        XXH128_hash_t hash = XXH3_128bits_digest(w.hash);

        RT_ASSERT(w.offset == unit->shape.bytes);
        *out = (md_unit_result){.hash = {hash.low64, hash.high64}, .power = power};
    }
    (void)XXH3_freeState(w.hash);
    rt_arena_return(arena, mark);
    return status;
}
