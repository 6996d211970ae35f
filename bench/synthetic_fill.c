/* synthetic_fill.c - the bytes of every kind of record, tile by tile. */
#include "bench/synthetic.h"

#include "base/check.h"
#include "kernels/quant.h"
#include "kernels/rope.h"
#include "model/convert/grid_q.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK_BYTES = 4 << 20, /* aim of a block; a tile may be larger */
    SCALES = 16,           /* sizes a scale may have, three quarters to five quarters of the mean */
};

/* The size of a sublayer's output next to a residual stream of size 1. Two of them per layer: the
 * stream grows by sqrt(1 + 2 x 0.3^2) a layer, and later outputs with it. */
static const double RESIDUAL = 0.3, GROWTH = 1.08628;

/* rms of silu(g) * u for independent g, u of unit variance: the square root of E[silu(g)^2] = 0.3557. */
static const double GATED = 0.5964;

/* Standard deviations: two uniform numbers of 0..7 (4 bits) and of 0..127 (8 bits), and of -1..1. */
static const double STD_Q4 = 3.24037, STD_Q8 = 52.2542, STD_FLOAT = 0.408248;

static const double VALUE_SIZE =
    0.3; /* of attention's values: keeps o_proj's scales normal in f16 */
static const double LOGIT_SIZE = 2.0;  /* some hundred tokens are likely */
static const double ROUTER_SIZE = 1.0; /* of a router logit; synthetic_router.c draws the same */

synthetic_rng synthetic_rng_of(uint64_t seed, md_key key, uint64_t part)
{
    synthetic_rng rng = {seed};

    rng.state = synthetic_next(&rng) ^
                ((uint64_t)key.layer << 48 | (uint64_t)key.kind << 32 | (uint64_t)key.index);
    rng.state = synthetic_next(&rng) ^ part;
    rng.state = synthetic_next(&rng);
    return rng;
}

/* ---- sizes ---- */

static double inverse_root(double cols)
{
    return 1 / sqrt(cols);
}

/* rms of what the sublayers of a layer add to the stream. */
static double output_size(uint32_t layer)
{
    double size = RESIDUAL;

    for (uint32_t i = 0; i < layer; i++)
        size *= GROWTH;
    return size;
}

/* rms of one routed expert's answer: topk of them with weights of about routed_scale / topk make up
 * half the power of the layer's output, the shared expert the other half. */
static double expert_size(const md_config *c, md_key key)
{
    double half = output_size(key.layer) * (c->shared_experts > 0 ? sqrt(0.5) : 1);

    if (key.kind == MD_SHARED) return half;
    return half / ((double)c->routed_scale / sqrt(c->topk));
}

static double down_size(const md_config *c, md_key key, uint32_t inter)
{
    double size = key.kind == MD_DOWN ? output_size(key.layer) : expert_size(c, key);

    return size / GATED * inverse_root(inter);
}

/* Standard deviation of a matrix's weights. */
static double weight_size(const md_config *c, md_key key, uint32_t cols)
{
    double unit = inverse_root(cols);

    switch (key.kind) {
    case MD_EMBED:
        return 1;
    case MD_LM_HEAD:
        return LOGIT_SIZE * unit;
    case MD_UV:
        return VALUE_SIZE * unit;
    case MD_O:
        return output_size(key.layer) / VALUE_SIZE * unit;
    case MD_DOWN:
        return down_size(c, key, cols);
    case MD_ROUTER:
        return ROUTER_SIZE * unit;
    default:
        return unit;
    }
}

void synthetic_set_grid(synthetic_recipe *recipe)
{
    const md_config *c = &recipe->config;

    for (uint32_t layer = 0; layer < md_config_layers_total(c); layer++) {
        md_key routed = {(uint16_t)layer, MD_EXPERT, 0}, shared = {(uint16_t)layer, MD_SHARED, 0};
        uint32_t shared_inter = c->expert_inter * c->shared_experts;
        double routed_down = down_size(c, routed, c->expert_inter), shared_power = 0;

        if (!c->sparse[layer]) continue;
        /* (3/8)/H * sum_j |G_j|^2 |U_j|^2 |D_:j|^2 with rows of unit norm (grid_q.h). */
        if (shared_inter > 0) {
            double shared_down = down_size(c, shared, shared_inter);

            shared_power = 0.375 * shared_inter * shared_down * shared_down;
        }
        recipe->info.grid_q[layer] =
            md_grid_q(0.375 * c->expert_inter * routed_down * routed_down, shared_power,
                      c->routed_scale, c->topk, recipe->info.grid_fine);
    }
}

/* ---- tiles ---- */

static void fill_scales(synthetic_rng *rng, const uint16_t table[SCALES], uint8_t *out)
{
    uint64_t choice = synthetic_next(rng);

    for (uint32_t row = 0; row < KN_TILE_ROWS; row++)
        memcpy(out + row * 2, &table[choice >> (row * 4) & 15], 2);
}

static void put_u64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof(value));
}

/* 16 nibbles a step: a + b + 1 with a, b in 0..7, which is the weight a + b - 7 plus 8. */
static void fill_q4(synthetic_rng *rng, uint8_t *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t a = synthetic_next(rng) & 0x7777777777777777u;
        uint64_t b = synthetic_next(rng) & 0x7777777777777777u;

        put_u64(out + i, a + b + 0x1111111111111111u);
    }
}

/* 8 bytes a step: a + b - 127 with a, b in 0..127; +1 and the sign bit's flip subtract 127. */
static void fill_q8(synthetic_rng *rng, uint8_t *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t a = synthetic_next(rng) & 0x7f7f7f7f7f7f7f7fu;
        uint64_t b = synthetic_next(rng) & 0x7f7f7f7f7f7f7f7fu;

        put_u64(out + i, (a + b + 0x0101010101010101u) ^ 0x8080808080808080u);
    }
}

/* Two numbers of -1..1 a step, as the difference of two uniform ones. */
static void draw_floats(synthetic_rng *rng, float size, float out[2])
{
    uint64_t r = synthetic_next(rng);

    for (int i = 0; i < 2; i++, r >>= 32)
        out[i] = (float)((int32_t)(r & 0xffff) - (int32_t)(r >> 16 & 0xffff)) * 0x1p-16f * size;
}

static void fill_floats(synthetic_rng *rng, kn_format format, double std, uint8_t *out,
                        size_t count)
{
    float size = (float)(std / STD_FLOAT);

    RT_ASSERT(count % 2 == 0);
    for (size_t i = 0; i < count; i += 2) {
        float pair[2];

        draw_floats(rng, size, pair);
        if (format == KN_F32) {
            memcpy(out + i * 4, pair, 8);
        } else {
            uint16_t halves[2] = {kn_bf16_from_f32(pair[0]), kn_bf16_from_f32(pair[1])};

            memcpy(out + i * 2, halves, 4);
        }
    }
}

/* One tile of 16 rows; what the layout pads stays zero. */
static void fill_tile(synthetic_rng rng, kn_format format, uint32_t cols, uint32_t group,
                      double std, uint8_t *out)
{
    size_t tile_bytes = kn_qmat_tile_bytes(format, cols, group);
    size_t group_bytes = (size_t)group * KN_TILE_ROWS / (format == KN_Q4 ? 2 : 1);
    size_t used = 0;
    uint16_t table[SCALES];

    if (!kn_format_is_int(format)) {
        fill_floats(&rng, format, std, out, (size_t)cols * KN_TILE_ROWS);
        return;
    }
    RT_ASSERT(!kn_format_has_f32_scales(format));
    for (int i = 0; i < SCALES; i++)
        table[i] = kn_f16_from_f32(
            (float)(std / (format == KN_Q4 ? STD_Q4 : STD_Q8) * (0.75 + 0.5 * i / (SCALES - 1))));
    for (uint32_t k = 0; k < cols; k += group) {
        fill_scales(&rng, table, out + used);
        used += 32;
        if (format == KN_Q4)
            fill_q4(&rng, out + used, group_bytes);
        else
            fill_q8(&rng, out + used, group_bytes);
        used += group_bytes;
    }
    memset(out + used, 0, tile_bytes - used);
}

static void fill_tiles(const synthetic_recipe *recipe, md_key key, uint64_t first_part,
                       const kn_qmat *shape, double std, uint8_t *out)
{
    size_t tile_bytes = kn_qmat_tile_bytes(shape->format, shape->cols, shape->group);

    RT_ASSERT(shape->rows % KN_TILE_ROWS == 0 && shape->cols % shape->group == 0);
    for (uint32_t tile = 0; tile < shape->rows / KN_TILE_ROWS; tile++)
        fill_tile(synthetic_rng_of(recipe->seed, key, first_part + tile), shape->format,
                  shape->cols, shape->group, std, out + tile * tile_bytes);
}

/* ---- records ---- */

static void fill_vector(const synthetic_recipe *recipe, md_key key, const md_shape *shape,
                        float *values)
{
    const md_config *c = &recipe->config;

    if (key.kind == MD_ROPE_INV_FREQ) {
        kn_rope_inv_freq(c->rope_theta, c->rope_dim, values);
        return;
    }
    if (key.kind == MD_ROUTER_BIAS) {
        memcpy(values, recipe->bias + (size_t)key.layer * c->experts, c->experts * sizeof(*values));
        return;
    }
    for (size_t i = 0; i < (size_t)shape->rows * shape->cols; i++)
        values[i] = i < shape->cols ? 1.0f : 0.0f; /* a norm's weights; its biases in row 1 */
}

/* A slice of an expert: gate, up, down, zeros. */
static size_t fill_slice(const synthetic_recipe *recipe, md_key key, uint32_t index, uint8_t *data)
{
    const md_config *c = &recipe->config;
    uint64_t part = (uint64_t)index << 32;
    md_expert_layout layout;
    md_slice slice;
    size_t bytes, end;

    md_record_expert_layout(c, &recipe->info, key, &layout);
    bytes = md_slice_size(&layout, index);
    slice = md_slice_view(&layout, index, data);
    fill_tiles(recipe, key, part, &slice.gate, inverse_root(c->hidden),
               data + ((const uint8_t *)slice.gate.data - data));
    fill_tiles(recipe, key, part | 1u << 28, &slice.up, inverse_root(c->hidden),
               data + ((const uint8_t *)slice.up.data - data));
    fill_tiles(recipe, key, part | 2u << 28, &slice.down, down_size(c, key, layout.inter),
               data + ((const uint8_t *)slice.down.data - data));
    end = (size_t)((const uint8_t *)slice.down.data - data) +
          kn_qmat_bytes(slice.down.format, slice.down.rows, slice.down.cols, slice.down.group);
    memset(data + end, 0, bytes - end);
    return bytes;
}

/* How a record is cut: all matrices of a record are one run of tiles, rows of the embedding count as
 * tiles too. */
typedef struct {
    md_shape shape;
    md_expert_layout layout; /* of experts */
    size_t unit_bytes;       /* of a tile, row or slice; the whole of a vector */
    uint64_t units, units_per_block;
} cut;

static cut cut_of(const synthetic_recipe *recipe, md_key key)
{
    cut c = {.units = 1, .units_per_block = 1};
    bool known = md_record_shape(&recipe->config, &recipe->info, key, &c.shape);

    RT_ASSERT(known);
    switch (c.shape.form) {
    case MD_FORM_EXPERT:
        md_record_expert_layout(&recipe->config, &recipe->info, key, &c.layout);
        c.unit_bytes = c.layout.slice_bytes;
        c.units = c.layout.slices;
        return c;
    case MD_FORM_VECTOR:
        c.unit_bytes = c.shape.bytes;
        return c;
    case MD_FORM_ROWS:
        c.unit_bytes = c.shape.bytes / c.shape.rows;
        c.units = c.shape.rows;
        break;
    case MD_FORM_MATRIX:
    case MD_FORM_HEADS:
        RT_ASSERT(c.shape.rows % KN_TILE_ROWS == 0);
        c.unit_bytes = kn_qmat_tile_bytes(c.shape.format, c.shape.cols, c.shape.group);
        c.units = (uint64_t)c.shape.count * c.shape.rows / KN_TILE_ROWS;
        break;
    }
    c.units_per_block = c.unit_bytes < BLOCK_BYTES ? BLOCK_BYTES / c.unit_bytes : 1;
    return c;
}

uint64_t synthetic_block_bytes(const synthetic_recipe *recipe, md_key key)
{
    cut c = cut_of(recipe, key);

    return c.unit_bytes * (c.units < c.units_per_block ? c.units : c.units_per_block);
}

uint64_t synthetic_block_count(const synthetic_recipe *recipe, md_key key)
{
    cut c = cut_of(recipe, key);

    return (c.units + c.units_per_block - 1) / c.units_per_block;
}

size_t synthetic_fill(const synthetic_recipe *recipe, md_key key, uint64_t block, void *data)
{
    cut c = cut_of(recipe, key);
    uint64_t first = block * c.units_per_block, count = c.units_per_block;
    double std = weight_size(&recipe->config, key, c.shape.cols);
    uint8_t *out = data;

    RT_ASSERT(first < c.units);
    if (count > c.units - first) count = c.units - first;
    if (c.shape.form == MD_FORM_EXPERT) return fill_slice(recipe, key, (uint32_t)block, data);
    if (c.shape.form == MD_FORM_VECTOR) {
        fill_vector(recipe, key, &c.shape, data);
        return c.unit_bytes;
    }
    for (uint64_t unit = first; unit < first + count; unit++, out += c.unit_bytes) {
        synthetic_rng rng = synthetic_rng_of(recipe->seed, key, unit);

        if (c.shape.form == MD_FORM_ROWS)
            fill_floats(&rng, c.shape.format, std, out, c.shape.cols);
        else
            fill_tile(rng, c.shape.format, c.shape.cols, c.shape.group, std, out);
    }
    return (size_t)count * c.unit_bytes;
}
