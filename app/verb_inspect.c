/* verb_inspect.c - what a container holds: shapes, formats, sizes, model id; with --deep every hash. */
#include "app/output.h"
#include "app/parse.h"
#include "app/verbs.h"
#include "base/budget.h"
#include "base/options.h"
#include "base/team.h"
#include "model/container/manifest.h"
#include "model/convert/record_check.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    bool deep, json;
    uint64_t threads;
} inspect_options;

enum { THREADS_MAX = 1024, NAMED_MAX = 100 /* damaged records that get a line each */ };

static const rt_opt table[] = {
    {.name = "deep",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(inspect_options, deep),
     .doc = "read every record that is held and check its hash"},
    {.name = "threads",
     .kind = RT_OPT_UINT,
     .offset = offsetof(inspect_options, threads),
     .arg = "N",
     .min = 0,
     .max = THREADS_MAX,
     .doc = "for --deep; 0: the usable cores"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(inspect_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_inspect = {
    .verb = "inspect",
    .args_doc = "MODEL",
    .doc = "Prints what a container holds.\v"
           "With --deep exits 1 when a record is damaged or cannot be read, and names it.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

typedef enum {
    PART_EXPERTS,
    PART_SHARED,
    PART_MTP_EXPERTS,
    PART_ATTENTION,
    PART_MLP,
    PART_OTHER,
    PART_COUNT
} part;

static const char *const part_names[PART_COUNT] = {
    [PART_EXPERTS] = "routed experts",  [PART_SHARED] = "shared experts",
    [PART_MTP_EXPERTS] = "mtp experts", [PART_ATTENTION] = "attention",
    [PART_MLP] = "dense mlp, router",   [PART_OTHER] = "embedding, head, norms"};

typedef struct {
    uint64_t bytes[PART_COUNT], records[PART_COUNT];
    uint64_t total_bytes, total_records;
    uint64_t held_bytes, held_records;
} tally;

static part part_of(const md_config *config, md_key key)
{
    if (key.kind == MD_EXPERT) return key.layer < config->layers ? PART_EXPERTS : PART_MTP_EXPERTS;
    if (key.kind == MD_SHARED) return PART_SHARED;
    if ((key.kind >= MD_Q_A && key.kind <= MD_O) ||
        (key.kind >= MD_INDEX_Q && key.kind <= MD_INDEX_WEIGHT))
        return PART_ATTENTION;
    if (key.kind >= MD_GATE && key.kind <= MD_ROUTER_BIAS) return PART_MLP;
    return PART_OTHER;
}

static tally count_records(const md_container *container)
{
    const md_config *config = md_container_config(container);
    tally sum = {0};

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;
        part p;

        md_container_record_at(container, i, &record);
        p = part_of(config, record.key);
        sum.bytes[p] += record.bytes;
        sum.records[p]++;
        sum.total_bytes += record.bytes;
        sum.total_records++;
        if (record.fd < 0) continue;
        sum.held_bytes += record.bytes;
        sum.held_records++;
    }
    return sum;
}

/* Calls visit once per pack file of the model, with the records held of those it should hold. */
typedef void (*pack_visit)(void *context, const char *name, uint64_t held, uint64_t total,
                           uint64_t bytes);

static void visit_packs(const md_container *container, pack_visit visit, void *context)
{
    uint64_t count = md_container_record_count(container);
    bool dense_seen = false;

    for (uint64_t begin = 0; begin < count; begin++) {
        char name[32], other[32];
        uint64_t held = 0, total = 0, bytes = 0;
        md_record first, record;

        md_container_record_at(container, begin, &first);
        if (first.key.kind != MD_EXPERT && dense_seen) continue;
        if (first.key.kind == MD_EXPERT && first.key.index != 0) continue;
        dense_seen = dense_seen || first.key.kind != MD_EXPERT;
        md_pack_name(first.key, name, sizeof(name));
        for (uint64_t i = begin; i < count; i++) {
            md_container_record_at(container, i, &record);
            if (strcmp(md_pack_name(record.key, other, sizeof(other)), name) != 0) continue;
            total++;
            held += record.fd >= 0;
            if (record.fd >= 0) bytes += record.bytes;
        }
        visit(context, name, held, total, bytes);
    }
}

/* ---- text ---- */

static void print_shapes(const md_config *c)
{
    uint32_t sparse = 0, full = 0;

    for (uint32_t i = 0; i < c->layers; i++) {
        sparse += c->sparse[i];
        full += c->index_full[i];
    }
    printf("model      %s, %u layers (%u MoE) and %u MTP, hidden %u, vocabulary %u, context %u\n",
           c->model_type, c->layers, sparse, c->mtp_layers, c->hidden, c->vocab, c->context_max);
    printf("experts    %u routed, top %u, %u shared, width %u; dense MLP width %u\n", c->experts,
           c->topk, c->shared_experts, c->expert_inter, c->inter);
    printf("attention  %u heads of %u+%u, values %u, latent %u, query rank %u\n", c->heads,
           c->nope_dim, c->rope_dim, c->v_dim, c->kv_rank, c->q_rank);
    printf("indexer    %u heads of %u, top %u positions, on %u of %u layers\n", c->index_heads,
           c->index_dim, c->index_topk, full, c->layers);
}

static void print_formats(const md_container *container)
{
    const md_container_info *info = md_container_get_info(container);
    md_expert_layout layout;
    uint32_t layer = 0;

    printf("formats    experts %s, dense %s, embedding %s\n", kn_format_name(info->expert_format),
           kn_format_name(info->dense_format), kn_format_name(info->embed_format));
    while (layer < MD_LAYERS_MAX - 1 && !md_container_config(container)->sparse[layer])
        layer++;
    if (md_container_config(container)->sparse[layer]) {
        md_container_expert_layout(container, layer, &layout);
        printf("slices     %u of width %u, %zu bytes each; groups %u and %u\n", layout.slices,
               layout.slice_width, layout.slice_bytes, layout.hidden_group, layout.inter_group);
    }
    printf("numerics   grid %s, latent eps %g, conversion id %u\n",
           info->grid_fine ? "fine" : "std", (double)info->latent_eps, info->conversion_id);
}

static void print_pack(void *context, const char *name, uint64_t held, uint64_t total,
                       uint64_t bytes)
{
    char text[32];

    (void)context;
    if (held == total) return;
    printf("pack       %s: %llu of %llu records held, %s\n", name, (unsigned long long)held,
           (unsigned long long)total, rt_bytes_format(bytes, text, sizeof(text)));
}

static void print_text(const md_container *container, const tally *sum)
{
    char id[65], bytes[32];

    md_model_id_format(md_container_get_info(container)->model_id, id);
    printf("model id   %s\n", id);
    print_shapes(md_container_config(container));
    print_formats(container);
    for (int p = 0; p < PART_COUNT; p++)
        if (sum->records[p] > 0)
            printf("part       %-24s %7llu records %12s\n", part_names[p],
                   (unsigned long long)sum->records[p],
                   rt_bytes_format(sum->bytes[p], bytes, sizeof(bytes)));
    printf("total      %-24s %7llu records %12s\n", "", (unsigned long long)sum->total_records,
           rt_bytes_format(sum->total_bytes, bytes, sizeof(bytes)));
    if (sum->held_records == sum->total_records) {
        printf("held       all packs\n");
        return;
    }
    printf("held       %llu records, %s\n", (unsigned long long)sum->held_records,
           rt_bytes_format(sum->held_bytes, bytes, sizeof(bytes)));
    visit_packs(container, print_pack, NULL);
}

/* ---- json ---- */

static void add_pack(void *context, const char *name, uint64_t held, uint64_t total, uint64_t bytes)
{
    json_t *list = context;

    (void)json_array_append_new(
        list, json_pack("{s:s, s:I, s:I, s:I}", "file", name, "records_held", (json_int_t)held,
                        "records", (json_int_t)total, "bytes_held", (json_int_t)bytes));
}

static json_t *describe(const md_container *container, const tally *sum)
{
    const md_container_info *info = md_container_get_info(container);
    const md_config *c = md_container_config(container);
    json_t *parts = json_object(), *packs = json_array(), *grid = json_array();
    char id[65];

    md_model_id_format(info->model_id, id);
    for (int p = 0; p < PART_COUNT; p++)
        if (sum->records[p] > 0)
            (void)json_object_set_new(parts, part_names[p],
                                      json_pack("{s:I, s:I}", "records",
                                                (json_int_t)sum->records[p], "bytes",
                                                (json_int_t)sum->bytes[p]));
    for (uint32_t i = 0; i < md_config_layers_total(c); i++)
        (void)json_array_append_new(grid, json_integer(info->grid_q[i]));
    visit_packs(container, add_pack, packs);
    return json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:i, s:s, s:f, s:i, s:o, s:I, "
        "s:I, s:I, s:I, s:o, s:o}",
        "model_id", id, "model_type", c->model_type, "layers", (int)c->layers, "mtp_layers",
        (int)c->mtp_layers, "hidden", (int)c->hidden, "vocab", (int)c->vocab, "experts",
        (int)c->experts, "topk", (int)c->topk, "experts_format",
        kn_format_name(info->expert_format), "dense_format", kn_format_name(info->dense_format),
        "embed_format", kn_format_name(info->embed_format), "slice_width", (int)info->slice_width,
        "grid", info->grid_fine ? "fine" : "std", "latent_eps", (double)info->latent_eps,
        "conversion_id", (int)info->conversion_id, "grid_q", grid, "records",
        (json_int_t)sum->total_records, "bytes", (json_int_t)sum->total_bytes, "records_held",
        (json_int_t)sum->held_records, "bytes_held", (json_int_t)sum->held_bytes, "parts", parts,
        "packs", packs);
}

/* ---- deep ---- */

/* A damaged record is read once more for its hash: other bytes than the first time, or the right ones,
 * are a failing disk or memory, and worth knowing. */
static void name_damage(const md_record *record, md_record_state state)
{
    md_hash128 found = {0};
    rt_err err = {0};
    char name[64];

    md_key_format(record->key, name, sizeof(name));
    fprintf(stderr, "moesaic inspect: %s in %s is %s: ", name, record->pack,
            md_record_state_name(state));
    if (md_record_hash(record, &found, &err) != RT_OK)
        fprintf(stderr, "%s\n", err.text);
    else if (found.low == record->hash.low && found.high == record->hash.high)
        fprintf(stderr, "read again it is right; check the disk and the memory\n");
    else
        fprintf(stderr,
                "expected hash %016" PRIx64 "%016" PRIx64 ", found %016" PRIx64 "%016" PRIx64 "\n",
                record->hash.high, record->hash.low, found.high, found.low);
}

/* Names what is wrong on stderr; damaged [] gets it as well when it is not NULL. */
static uint64_t report_damage(const md_container *container, const md_record_state *states,
                              json_t *damaged, uint64_t *unchecked)
{
    uint64_t bad = 0;

    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        char name[64];
        md_record record;

        *unchecked += states[i] == MD_RECORD_UNCHECKED;
        if (states[i] != MD_RECORD_DAMAGED && states[i] != MD_RECORD_UNREADABLE) continue;
        md_container_record_at(container, i, &record);
        md_key_format(record.key, name, sizeof(name));
        if (bad < NAMED_MAX) name_damage(&record, states[i]);
        if (damaged != NULL) (void)json_array_append_new(damaged, json_string(name));
        bad++;
    }
    if (bad > NAMED_MAX)
        fprintf(stderr, "moesaic inspect: and %llu records more\n",
                (unsigned long long)(bad - NAMED_MAX));
    if (bad > 0)
        fprintf(stderr, "moesaic inspect: copy these packs again from a container that is whole, "
                        "or convert again into another TARGET\n");
    return bad;
}

static int deep_check(const md_container *container, const inspect_options *options,
                      json_t *damaged)
{
    rt_team_spec team_spec = {.threads = options->threads > 0 ? (uint32_t)options->threads
                                                              : rt_cpus_usable()};
    md_record_state *states = calloc(md_container_record_count(container) + 1, sizeof(*states));
    uint64_t bad, unchecked = 0;
    rt_progress *progress;
    rt_team *team = NULL;
    rt_err err = {0};

    if (states == NULL || rt_team_create(&team_spec, &team, &err) != RT_OK) {
        fprintf(stderr, "moesaic inspect: %s\n", states == NULL ? "out of memory" : err.text);
        free(states);
        return APP_EXIT_FAILED;
    }
    progress = rt_progress_begin("inspect", md_records_held_bytes(container), false);
    md_records_check(container, team, progress, states);
    rt_progress_end(progress);
    rt_team_free(team);
    bad = report_damage(container, states, damaged, &unchecked);
    free(states);
    if (unchecked > 0)
        fprintf(stderr, "moesaic inspect: stopped, %llu records were not checked\n",
                (unsigned long long)unchecked);
    else if (bad == 0)
        fprintf(stderr, "every record that is held has its bytes\n");
    return bad == 0 && unchecked == 0 ? APP_EXIT_OK : APP_EXIT_FAILED;
}

static int inspect(const md_container *container, const inspect_options *options)
{
    tally sum = count_records(container);
    json_t *damaged = options->json && options->deep ? json_array() : NULL;
    int code = APP_EXIT_OK;

    if (!options->json) {
        print_text(container, &sum);
        code = app_stdout_finish("inspect", APP_EXIT_OK); /* before a long check */
        if (code != APP_EXIT_OK) return code;
    }
    if (options->deep) code = deep_check(container, options, damaged);
    if (options->json) {
        json_t *root = describe(container, &sum);

        if (damaged != NULL && root != NULL) (void)json_object_set_new(root, "damaged", damaged);
        if (!app_json_print("inspect", root)) code = APP_EXIT_FAILED;
    }
    return code;
}

int app_verb_inspect(int argc, char **argv)
{
    inspect_options options = {0};
    md_container *container = NULL;
    const char *positional[1];
    rt_err err = {0};
    int code;

    if (!app_parse(&app_spec_inspect, argc, argv, &options, positional, NULL, &code)) return code;
    if (md_container_open(positional[0], &container, &err) != RT_OK)
        return app_failed("inspect", options.json, err.text);
    code = inspect(container, &options);
    md_container_close(container);
    return code;
}
