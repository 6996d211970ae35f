/* make_synthetic.c - writes a container with GLM-5.2's shapes and heat, without a checkpoint.
 *
 * For figures that need real dimensions on a machine that has no 400 GB model. See synthetic.h for what is
 * true about such a model and what is not. */
#include "bench/synthetic_write.h"

#include "base/budget.h"
#include "base/check.h"
#include "base/file.h"
#include "base/options.h"
#include "base/stop.h"
#include "model/text/tokenizer.h"
#include "placement/heat_usage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JSON_BYTES = 8192,
    TEXT_BYTES_MAX = 64 << 20,
    REAL_LAYERS = 78, /* of the usage file: GLM-5.2 */
    REAL_DENSE = 3,
    REAL_EXPERTS = 256,
    INDEX_EVERY = 4, /* one full indexer layer in four */
};

typedef struct {
    uint64_t layers, dense_layers, experts, topk, hidden, inter, expert_inter, heads, vocab,
        context;
    uint64_t first_layer, seed, threads;
    const char *expert_format, *dense_format, *usage, *tokenizer;
    bool small, mtp, dry_run, quiet;
    bool hidden_given, inter_given, expert_inter_given, heads_given, experts_given, topk_given,
        vocab_given;
} options;

#define ROW(field_) .kind = RT_OPT_UINT, .offset = offsetof(options, field_)
#define FLAG(field_) .kind = RT_OPT_FLAG, .offset = offsetof(options, field_)
#define GIVEN(field_) .given_offset = offsetof(options, field_##_given)

static const rt_opt table[] = {
    {.name = "layers", ROW(layers), .arg = "N", .min = 1, .max = 200, .doc = "MoE layers"},
    {.name = "dense-layers",
     ROW(dense_layers),
     .arg = "N",
     .max = 50,
     .doc = "layers with a dense MLP before them"},
    {.name = "experts-per-layer",
     ROW(experts),
     GIVEN(experts),
     .arg = "N",
     .min = 16,
     .max = MD_EXPERTS_MAX,
     .doc = "a multiple of 16"},
    {.name = "topk",
     ROW(topk),
     GIVEN(topk),
     .arg = "N",
     .min = 1,
     .max = MD_TOPK_MAX,
     .doc = "experts of a token"},
    {.name = "hidden",
     ROW(hidden),
     GIVEN(hidden),
     .arg = "N",
     .min = 64,
     .max = 65536,
     .doc = "width of a row"},
    {.name = "inter",
     ROW(inter),
     GIVEN(inter),
     .arg = "N",
     .min = 64,
     .max = 1 << 20,
     .doc = "width of a dense MLP"},
    {.name = "expert-inter",
     ROW(expert_inter),
     GIVEN(expert_inter),
     .arg = "N",
     .min = 64,
     .max = 1 << 20,
     .doc = "width of an expert"},
    {.name = "heads",
     ROW(heads),
     GIVEN(heads),
     .arg = "N",
     .min = 1,
     .max = 1024,
     .doc = "attention heads"},
    {.name = "vocab",
     ROW(vocab),
     GIVEN(vocab),
     .arg = "N",
     .min = 2048,
     .max = 1 << 22,
     .doc = "tokens of the vocabulary, a multiple of 16; GLM-5.2 has 154880"},
    {.name = "context",
     ROW(context),
     .arg = "N",
     .min = 64,
     .max = 1 << 24,
     .doc = "longest context, in tokens"},
    {.name = "mtp", FLAG(mtp), .doc = "with an MTP layer, whose experts have the dense format"},
    {.name = "experts",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(options, expert_format),
     .arg = "F",
     .choices = "q4|q8|bf16|f32",
     .doc = "format of the routed experts"},
    {.name = "dense",
     .kind = RT_OPT_CHOICE,
     .offset = offsetof(options, dense_format),
     .arg = "F",
     .choices = "q4|q8|bf16|f32",
     .doc = "format of the rest"},
    {.name = "first-layer",
     ROW(first_layer),
     .arg = "L",
     .min = REAL_DENSE,
     .max = REAL_LAYERS - 1,
     .doc = "layer of GLM-5.2 whose heat the first MoE layer has, the next one the next"},
    {.name = "usage",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(options, usage),
     .arg = "FILE",
     .doc = "the real heat, as usage text of 78 layers of 256 experts"},
    {.name = "tokenizer",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(options, tokenizer),
     .arg = "FILE",
     .doc = "a tokenizer.json with at most as many tokens as the vocabulary"},
    {.name = "small",
     FLAG(small),
     .doc =
         "a model of a few MB for tests: hidden 128, 64 experts of 128, top-4, 4 heads, vocabulary "
         "4096; other options win"},
    {.name = "seed", .key = 's', ROW(seed), .arg = "S", .doc = "seed of the weights"},
    {.name = "threads",
     .key = 't',
     ROW(threads),
     .arg = "T",
     .max = 1024,
     .doc = "0: all usable processors"},
    {.name = "dry-run", FLAG(dry_run), .doc = "say what it would take, write nothing"},
    {.name = "quiet", .key = 'q', FLAG(quiet), .doc = "no progress line"},
    {.name = NULL},
};

static const rt_opt_spec spec = {
    .verb = "make_synthetic",
    .is_program = true,
    .args_doc = "DIR",
    .doc =
        "Writes a container of random weights with the shapes of GLM-5.2 to DIR, experts chosen as "
        "often as the real model chooses them.\v"
        "The same options give the same model id on every machine. If DIR is that model already, "
        "nothing is done. Default: 1 dense and 3 MoE layers of 256 q4 experts, 17 GB.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

#define USAGE_DEFAULT MOESAIC_SOURCE "/data/glm52_heat.usage"
#define TOKENIZER_DEFAULT MOESAIC_SOURCE "/tests/fixtures/tiny-fp8/tokenizer.json"

static void apply_small(options *o)
{
    if (!o->small) return;
    if (!o->hidden_given) o->hidden = 128;
    if (!o->inter_given) o->inter = 256;
    if (!o->expert_inter_given) o->expert_inter = 128;
    if (!o->heads_given) o->heads = 4;
    if (!o->experts_given) o->experts = 64;
    if (!o->topk_given) o->topk = 4;
    if (!o->vocab_given) o->vocab = 4096;
}

static rt_status check_multiple(const char *name, uint64_t value, uint64_t of, rt_err *err)
{
    if (value % of == 0) return RT_OK;
    return rt_fail(err, RT_EINVAL, "--%s: expected a multiple of %" PRIu64 ", found %" PRIu64, name,
                   of, value);
}

static rt_status check_options(const options *o, rt_err *err)
{
    RT_TRY(check_multiple("experts-per-layer", o->experts, 16, err));
    RT_TRY(check_multiple("hidden", o->hidden, 64, err));
    RT_TRY(check_multiple("inter", o->inter, 64, err));
    RT_TRY(check_multiple("expert-inter", o->expert_inter, 64, err));
    RT_TRY(check_multiple("vocab", o->vocab, 16, err));
    if (o->seed > INT64_MAX) /* config.json has it, and integers of JSON are read as signed */
        return rt_fail(err, RT_EINVAL, "--seed: expected at most %" PRId64 ", found %" PRIu64,
                       INT64_MAX, o->seed);
    if (o->topk * 2 > o->experts)
        return rt_fail(err, RT_EINVAL,
                       "--topk: expected at most half of the %" PRIu64 " experts, found %" PRIu64,
                       o->experts, o->topk);
    return RT_OK;
}

/* ---- the tokenizer ---- */

typedef struct {
    uint8_t *image;
    size_t bytes;
    uint32_t eos[3];
} text_part;

static rt_status find_eos(const md_tokenizer *tokenizer, const char *name, uint32_t *eos,
                          rt_err *err)
{
    static const char *const text[] = {"<|endoftext|>", "<|user|>", "<|observation|>"};

    for (int i = 0; i < 3; i++)
        if (!md_tokenizer_find(tokenizer, (md_text){text[i], strlen(text[i])}, &eos[i]))
            return rt_fail(err, RT_EFORMAT, "%s: expected a token %s", name, text[i]);
    return RT_OK;
}

static rt_status load_tokenizer(const options *o, text_part *out, rt_err *err)
{
    md_tokenizer *tokenizer = NULL;
    char *json = NULL;
    size_t bytes = 0;
    rt_status status = rt_file_read(o->tokenizer, TEXT_BYTES_MAX, &json, &bytes, err);

    if (status == RT_OK) status = md_tokenizer_compile(json, bytes, &out->image, &out->bytes, err);
    if (status == RT_OK) status = md_tokenizer_open(out->image, out->bytes, &tokenizer, err);
    if (status == RT_OK && md_tokenizer_vocab(tokenizer) > o->vocab)
        status =
            rt_fail(err, RT_EINVAL, "%s: expected at most %" PRIu64 " tokens (--vocab), found %u",
                    o->tokenizer, o->vocab, md_tokenizer_vocab(tokenizer));
    if (status == RT_OK) status = find_eos(tokenizer, o->tokenizer, out->eos, err);
    md_tokenizer_close(tokenizer);
    free(json);
    return status;
}

/* ---- the recipe ---- */

/* The text of config.json. What else decides the bytes is in it too, so that two models of different
 * recipes never have one model id. */
static rt_status print_config(const options *o, const uint32_t eos[3], char json[JSON_BYTES],
                              rt_err *err)
{
    char pattern[MD_LAYERS_MAX + 1] = "";
    uint32_t layers = (uint32_t)(o->dense_layers + o->layers);
    bool s = o->small;
    int bytes;

    for (uint32_t i = 0; i < layers; i++)
        pattern[i] = i % INDEX_EVERY == 0 ? 'F' : 'S';
    bytes = snprintf(
        json, JSON_BYTES,
        "{\"architectures\": [\"GlmMoeDsaForCausalLM\"], \"model_type\": \"glm_moe_dsa\",\n"
        "\"moesaic_synthetic\": {\"recipe\": %d, \"seed\": %" PRIu64 ", \"first_layer\": %" PRIu64
        "},\n"
        "\"hidden_size\": %" PRIu64 ", \"num_hidden_layers\": %u, \"vocab_size\": %" PRIu64 ",\n"
        "\"max_position_embeddings\": %" PRIu64 ", \"num_attention_heads\": %" PRIu64 ",\n"
        "\"num_key_value_heads\": %" PRIu64 ", \"q_lora_rank\": %d, \"kv_lora_rank\": %d,\n"
        "\"qk_nope_head_dim\": %d, \"qk_rope_head_dim\": %d, \"v_head_dim\": %d,\n"
        "\"index_n_heads\": %d, \"index_head_dim\": %d, \"index_topk\": %d,\n"
        "\"index_topk_pattern\": \"%s\", \"intermediate_size\": %" PRIu64 ",\n"
        "\"moe_intermediate_size\": %" PRIu64 ", \"n_routed_experts\": %" PRIu64 ",\n"
        "\"num_experts_per_tok\": %" PRIu64 ", \"n_shared_experts\": 1,\n"
        "\"num_nextn_predict_layers\": %d, \"first_k_dense_replace\": %" PRIu64 ",\n"
        "\"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"rms_norm_eps\": 1e-05,\n"
        "\"rope_parameters\": {\"rope_theta\": 8000000, \"rope_type\": \"default\"},\n"
        "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"hidden_act\": \"silu\",\n"
        "\"tie_word_embeddings\": false, \"eos_token_id\": [%u, %u, %u]}\n",
        SYNTHETIC_RECIPE, o->seed, o->first_layer, o->hidden, layers, o->vocab, o->context,
        o->heads, o->heads, s ? 96 : 2048, s ? 64 : 512, s ? 32 : 192, s ? 16 : 64, s ? 32 : 256,
        s ? 16 : 32, s ? 32 : 128, s ? 64 : 2048, pattern, o->inter, o->expert_inter, o->experts,
        o->topk, o->mtp ? 1 : 0, o->dense_layers, eos[0], eos[1], eos[2]);
    if (bytes < 0 || bytes >= JSON_BYTES) return rt_fail(err, RT_EINVAL, "config.json is too long");
    return RT_OK;
}

static rt_status load_heat(const char *path, pl_heat **out, rt_err *err)
{
    bool sparse[REAL_LAYERS];
    pl_heat_spec heat_spec = {.layers = REAL_LAYERS, .sparse = sparse, .experts = REAL_EXPERTS};
    pl_heat_usage usage;
    pl_heat *heat = NULL;
    char *text = NULL;
    size_t bytes = 0;
    rt_status status;

    for (int i = 0; i < REAL_LAYERS; i++)
        sparse[i] = i >= REAL_DENSE;
    status = rt_file_read(path, TEXT_BYTES_MAX, &text, &bytes, err);
    if (status == RT_OK) status = pl_heat_create(&heat_spec, &heat, err);
    if (status == RT_OK)
        status = pl_heat_usage_read(text, bytes, REAL_LAYERS, path, heat, &usage, err);
    free(text);
    if (status == RT_OK)
        *out = heat;
    else
        pl_heat_free(heat);
    return status;
}

typedef struct {
    synthetic_recipe *recipe;
    const pl_heat *heat;
    uint32_t first_layer;
    const uint32_t *moe_layer; /* [chunks] */
    rt_status *status;         /* [chunks] */
} bias_job;

static void solve_layer(void *context, size_t chunk, uint32_t member)
{
    bias_job *job = context;
    const md_config *c = &job->recipe->config;
    uint32_t layer = job->moe_layer[chunk];
    uint32_t real =
        REAL_DENSE + (job->first_layer - REAL_DENSE + (uint32_t)chunk) % (REAL_LAYERS - REAL_DENSE);
    md_key key = {(uint16_t)layer, MD_ROUTER_BIAS, 0};
    double share[MD_EXPERTS_MAX];

    (void)member;
    synthetic_shares(job->heat, real, c->experts, c->topk, share);
    job->status[chunk] = synthetic_bias_solve(share, c->experts, c->topk,
                                              synthetic_rng_of(job->recipe->seed, key, 0).state,
                                              job->recipe->bias + (size_t)layer * c->experts, NULL);
}

static rt_status solve_biases(const options *o, const pl_heat *heat, synthetic_recipe *recipe,
                              rt_team *team, rt_err *err)
{
    const md_config *c = &recipe->config;
    uint32_t total = md_config_layers_total(c), count = 0;
    uint32_t moe_layer[MD_LAYERS_MAX];
    rt_status status[MD_LAYERS_MAX] = {RT_OK};
    bias_job job = {.recipe = recipe,
                    .first_layer = (uint32_t)o->first_layer,
                    .moe_layer = moe_layer,
                    .status = status};

    recipe->bias = calloc((size_t)total * c->experts, sizeof(*recipe->bias));
    if (recipe->bias == NULL) return rt_fail(err, RT_ENOMEM, "router biases");
    for (uint32_t layer = 0; layer < total; layer++)
        if (c->sparse[layer]) moe_layer[count++] = layer;
    job.heat = heat;
    rt_team_run(team, solve_layer, &job, count);
    for (uint32_t i = 0; i < count; i++)
        if (status[i] != RT_OK)
            return rt_fail(err, status[i], "router bias of layer %u", moe_layer[i]);
    return RT_OK;
}

static rt_status make_recipe(const options *o, const char *json, synthetic_recipe *recipe,
                             rt_err *err)
{
    kn_format expert_format, dense_format;
    bool known = kn_format_parse(o->expert_format, &expert_format) &&
                 kn_format_parse(o->dense_format, &dense_format);

    RT_ASSERT(known); /* the option table names the choices */
    RT_TRY(md_config_parse(json, strlen(json), &recipe->config, err));
    recipe->seed = o->seed;
    recipe->info = (md_container_info){.expert_format = expert_format,
                                       .dense_format = dense_format,
                                       .embed_format = dense_format == KN_F32 ? KN_F32 : KN_BF16,
                                       .slice_width = md_slice_width(&recipe->config),
                                       .latent_eps = 1e-5f,
                                       .conversion_id = MD_CONVERSION_ID};
    synthetic_set_grid(recipe);
    return RT_OK;
}

/* ---- what it does ---- */

static rt_status say_size(const synthetic_recipe *recipe, const char *dir, const char *what,
                          rt_err *err)
{
    uint64_t bytes;
    char text[32];

    RT_TRY(synthetic_disk_bytes(recipe, &bytes, err));
    fprintf(stderr, "make_synthetic: %s %s: %u layers, %u experts each in MoE layers, %s\n", what,
            dir, recipe->config.layers, recipe->config.experts,
            rt_bytes_format(bytes, text, sizeof(text)));
    return RT_OK;
}

static rt_status write_model(const options *o, const pl_heat *heat, synthetic_spec *write,
                             synthetic_recipe *recipe, rt_err *err)
{
    bool there = false;

    RT_TRY(synthetic_is_there(write, &there, err));
    if (there) {
        fprintf(stderr, "make_synthetic: %s is this model already\n", write->dir);
        return RT_OK;
    }
    RT_TRY(say_size(recipe, write->dir, "writing", err));
    RT_TRY(solve_biases(o, heat, recipe, write->team, err));
    return synthetic_write(write, err);
}

/* Without the slashes at its end: DIR.part is made of it. */
static void trim(char *dir)
{
    for (size_t length = strlen(dir); length > 1 && dir[length - 1] == '/'; length--)
        dir[length - 1] = '\0';
}

static rt_status make(const options *o, const char *dir, rt_err *err)
{
    rt_team_spec team_spec = {.threads = o->threads > 0 ? (uint32_t)o->threads : rt_cpus_usable()};
    synthetic_recipe *recipe;
    text_part text = {0};
    char json[JSON_BYTES];
    rt_team *team = NULL;
    pl_heat *heat = NULL;
    rt_status status;

    if (dir[0] == '\0')
        return rt_fail(err, RT_EINVAL, "DIR: expected the name of a directory, found \"\"");
    recipe = calloc(1, sizeof(*recipe));
    if (recipe == NULL) return rt_fail(err, RT_ENOMEM, "recipe");
    status = check_options(o, err);
    if (status == RT_OK) status = load_heat(o->usage, &heat, err);
    if (status == RT_OK) status = load_tokenizer(o, &text, err);
    if (status == RT_OK) status = print_config(o, text.eos, json, err);
    if (status == RT_OK) status = make_recipe(o, json, recipe, err);
    if (status == RT_OK) status = rt_team_create(&team_spec, &team, err);
    if (status == RT_OK && o->dry_run) {
        status = say_size(recipe, dir, "would write", err);
    } else if (status == RT_OK) {
        synthetic_spec write = {.dir = dir,
                                .recipe = recipe,
                                .config_json = json,
                                .tokenizer = text.image,
                                .tokenizer_bytes = text.bytes,
                                .team = team,
                                .quiet = o->quiet};

        status = write_model(o, heat, &write, recipe, err);
    }
    rt_team_free(team);
    pl_heat_free(heat);
    free(text.image);
    free(recipe->bias);
    free(recipe);
    return status;
}

int main(int argc, char **argv)
{
    options o = {.layers = 3,
                 .dense_layers = 1,
                 .experts = 256,
                 .topk = 8,
                 .hidden = 6144,
                 .inter = 12288,
                 .expert_inter = 2048,
                 .heads = 64,
                 .vocab = 32768,
                 .context = 1048576,
                 .first_layer = REAL_DENSE,
                 .seed = 1,
                 .expert_format = "q4",
                 .dense_format = "q8",
                 .usage = USAGE_DEFAULT,
                 .tokenizer = TOKENIZER_DEFAULT};
    const char *positional[1];
    uint32_t positional_count;
    rt_err err = {0};
    rt_status status;
    char *dir;

    rt_stop_install();
    rt_float_env_set();
    switch (rt_options_parse(&spec, argc, argv, &o, positional, &positional_count)) {
    case RT_PARSE_HELP:
        return 0;
    case RT_PARSE_USAGE:
        return 2;
    case RT_PARSE_OK:
        break;
    }
    apply_small(&o);
    dir = strdup(positional[0]);
    if (dir == NULL) return 1;
    trim(dir);
    status = make(&o, dir, &err);
    free(dir);
    if (status == RT_OK) return 0;
    fprintf(stderr, "make_synthetic: %s\n", err.text);
    return 1;
}
