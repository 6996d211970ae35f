/* session.c - puts the roles of one process together, in the order in which they need each other. */
#include "app/session.h"

#include "app/cluster.h"
#include "app/heat_file.h"
#include "app/sizing.h"
#include "base/cgroup.h"
#include "base/check.h"
#include "base/log.h"
#include "base/stop.h"
#include "expert_node/node.h"
#include "kernels/select.h"
#include "transport/link_inproc.h"
#include "transport/link_mpi.h"
#include "transport/link_union.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

enum {
    SHARE_UNIT = 10000,   /* rank shares are tenths of a thousandth */
    POOL_ROWS_FACTOR = 4, /* frames of a step in flight: out, back, and one of each waiting */
    POOL_LEAST_BYTES = 64 << 20,
    TEAM_SPIN_US = 20,
    UNBOOKED_LEAST_BYTES = 12 << 20, /* 9 were seen with two threads */
};

struct app_session {
    app_model_options options;
    app_cluster *cluster;    /* owned; NULL: a process alone */
    md_container *container; /* owned */
    rt_team *team;           /* owned */
    rt_budget budget;
    bool profiled;
    rt_profile profile;
    pl_map *map; /* owned */
    uint32_t rank, size;
    uint32_t rows_max, context;
    tr_welcome welcome; /* of the head from the start; of a node once it is loading */

    /* Expert node of this process, if it has a share. */
    en_store *store;                    /* owned */
    en_executor *executor;              /* owned */
    en_node *node;                      /* owned */
    tr_link *inproc_head, *inproc_node; /* owned; head only */

    /* Attention node: rank 0. */
    tr_link *nodes;      /* owned: the union; NULL when inproc_head is all there is */
    md_weights *weights; /* owned */
    an_engine *engine;   /* owned */
};

/* Names every rank's role, from the command line that all ranks share. */
static void shares_of(const app_session *s, uint32_t *share)
{
    double here = s->size == 1 ? 1 : s->options.experts_here;
    uint32_t others = s->size - 1;

    /* share 0 : others = here : (1 - here) / others, scaled so that none exceeds what WELCOME takes and
     * that a rank with a small part keeps at least 1. */
    double unit = here * others > 1 ? SHARE_UNIT / (here * others) : SHARE_UNIT;
    double other = (1 - here) * unit;

    share[0] = (uint32_t)(here * unit * (others == 0 ? 1 : others) + 0.5);
    for (uint32_t r = 1; r < s->size; r++)
        share[r] = other < 1 ? 1 : (uint32_t)(other + 0.5);
}

static rt_status build_map(app_session *s, rt_err *err)
{
    const tr_welcome *welcome = &s->welcome;
    const md_config *config = md_container_config(s->container);
    md_expert_layout layout;
    pl_map_spec spec;

    for (uint32_t l = 0; l < config->layers; l++) {
        if (!config->sparse[l]) continue;
        md_container_expert_layout(s->container, l, &layout);
        spec = (pl_map_spec){.layers = config->layers,
                             .sparse = config->sparse,
                             .experts = config->experts,
                             .slices = layout.slices,
                             .nodes = welcome->nodes,
                             .share = welcome->share,
                             .mode = welcome->sliced ? PL_SLICED : PL_WHOLE,
                             .epoch = welcome->epoch};
        return pl_map_create(&spec, &s->map, err);
    }
    return rt_fail(err, RT_EUNSUPPORTED, "%s: the model has no MoE layer",
                   md_container_dir(s->container));
}

static rt_status create_team(app_session *s, rt_err *err)
{
    uint32_t cpus = rt_cpus_usable();
    uint32_t on_host = s->cluster == NULL ? 1 : tr_mpi_ranks_on_host();
    uint32_t threads = app_threads(&s->options, on_host);
    /* Spinning pays only while every runnable thread of the host has a core of its own. */
    rt_team_spec spec = {.threads = threads,
                         .spin_us = (uint64_t)threads * on_host <= cpus ? TEAM_SPIN_US : 0};

    return rt_team_create(&spec, &s->team, err);
}

/* What the control group leaves this process, less what no line of a budget has: stacks, libraries, page
 * tables. */
static uint64_t group_limit(uint32_t on_host)
{
    uint64_t left = rt_cgroup_limits_read("").memory_bytes / on_host, unbooked = left / 20;

    if (unbooked < UNBOOKED_LEAST_BYTES) unbooked = UNBOOKED_LEAST_BYTES;
    return left > unbooked ? left - unbooked : 0;
}

/* --ram may be more than the machine has, which can swap; beyond the control group's limit the kernel
 * kills. */
static void init_budget(app_session *s)
{
    uint32_t on_host = s->cluster == NULL ? 1 : tr_mpi_ranks_on_host();
    uint64_t limit = app_ram_limit(&s->options, on_host), group = group_limit(on_host);
    char asked[32], left[32];

    if (s->options.ram_bytes > group)
        rt_log_warn("memory", "--ram %s: this process's control group leaves %s, which is used",
                    rt_bytes_format(limit, asked, sizeof(asked)),
                    rt_bytes_format(group, left, sizeof(left)));
    s->budget = (rt_budget){.limit_bytes = limit < group ? limit : group};
}

/* For people who ask where the memory goes, and for the test that `plan` says the same. */
static void log_budget(const app_session *s)
{
    for (uint32_t i = 0; i < s->budget.line_count; i++)
        rt_log_info("memory", "%s bytes %llu", s->budget.lines[i].name,
                    (unsigned long long)s->budget.lines[i].bytes);
    rt_log_info("memory", "limit bytes %llu", (unsigned long long)s->budget.limit_bytes);
}

/* Bytes that link buffers of `rows` rows may take. */
static size_t pool_bytes(const app_session *s)
{
    uint64_t row = 8ull * md_container_config(s->container)->hidden + 4096;
    uint64_t bytes = row * s->rows_max * POOL_ROWS_FACTOR * (s->size < 8 ? s->size : 8);

    return bytes < POOL_LEAST_BYTES ? POOL_LEAST_BYTES : (size_t)bytes;
}

/* What is known about the model's experts: it decides what is loaded first, and nothing else. */
static pl_heat *known_heat(const app_session *s)
{
    pl_heat *heat = NULL;
    char *path = NULL;
    rt_err err = {0};
    bool found;

    if (app_heat_path(s->container, s->options.heat, &path, &err) == RT_OK && path != NULL &&
        app_heat_load(path, s->container, &heat, &found, &err) != RT_OK)
        rt_log_info("heat", "not used: %s", err.text);
    free(path);
    return heat;
}

/* The memory of this process as planned, before any of it is taken. */
static rt_status plan_memory(app_session *s, rt_err *err)
{
    app_sizing sizing = {.container = s->container,
                         .options = &s->options,
                         .map = s->map,
                         .team = s->team,
                         .limit_bytes = s->budget.limit_bytes,
                         .node = s->rank,
                         .attends = s->rank == 0,
                         .experts = s->welcome.share[s->rank] > 0,
                         .rows_max = s->welcome.rows_max};
    app_sizes sizes;

    RT_TRY(app_sizes_choose(&sizing, &sizes, err));
    s->context = sizes.context;
    return app_sizes_check(&sizes, &s->options, err);
}

/* Loads this process's share of the experts; what the budget has left is theirs. */
static rt_status open_experts(app_session *s, tr_link *link, rt_err *err)
{
    const tr_welcome *welcome = &s->welcome;
    uint32_t members = rt_team_size(s->team);
    uint64_t work = en_executor_bytes(s->container, welcome->rows_max, members);
    en_store_spec store = {.container = s->container,
                           .map = s->map,
                           .node = s->rank,
                           .mirrors = s->options.mirrors,
                           .buffered = s->options.buffered,
                           .scrub = s->options.scrub};
    pl_heat *heat;
    rt_status status;
    en_executor_spec executor = {.container = s->container,
                                 .team = s->team,
                                 .profile = app_session_profile(s),
                                 .rows_max = welcome->rows_max,
                                 .float_activations = welcome->float_activations};
    en_node_spec node = {.link = link,
                         .profile = app_session_profile(s),
                         .container = s->container,
                         .experts_limit = md_container_config(s->container)->experts};
    en_store_stats stats;

    RT_TRY(rt_budget_book(&s->budget, "expert scratch", work, err));
    store.ram_bytes = rt_budget_left(&s->budget);
    store.quiet = s->rank != 0;
    heat = known_heat(s);
    store.heat = heat;
    status = en_store_open(&store, &s->store, err);
    pl_heat_free(heat);
    if (status != RT_OK) return status;
    stats = en_store_get_stats(s->store);
    RT_TRY(rt_budget_book(&s->budget, "experts", stats.ram_bytes, err));
    rt_log_info("session", "experts %llu in ram %llu", (unsigned long long)stats.records,
                (unsigned long long)stats.records_in_ram);
    executor.store = s->store;
    RT_TRY(en_executor_create(&executor, &s->executor, err));
    node.executor = s->executor;
    return en_node_create(&node, &s->node, err);
}

static rt_status join_links(app_session *s, rt_err *err)
{
    tr_union_peer *peers;
    rt_status status;

    RT_TRY(tr_inproc_create(pool_bytes(s), &s->inproc_head, &s->inproc_node, err));
    if (s->cluster == NULL) return RT_OK;
    peers = calloc(s->size, sizeof(*peers));
    if (peers == NULL) return rt_fail(err, RT_ENOMEM, "%u peers", s->size);
    peers[0] = (tr_union_peer){s->inproc_head, 0};
    for (uint32_t r = 1; r < s->size; r++)
        peers[r] = (tr_union_peer){app_cluster_link(s->cluster), r};
    status = tr_union_create(peers, s->size, &s->nodes, err);
    free(peers);
    return status;
}

static an_look_ahead look_ahead_of(const app_model_options *options)
{
    if (options->look_ahead[0] == 'a') return AN_LOOK_AHEAD_AUTO;
    return options->look_ahead[1] == 'n' ? AN_LOOK_AHEAD_ON : AN_LOOK_AHEAD_OFF;
}

static rt_status create_engine(app_session *s, rt_err *err)
{
    an_engine_spec spec = {.container = s->container,
                           .weights = s->weights,
                           .link = s->nodes != NULL ? s->nodes : s->inproc_head,
                           .map = s->map,
                           .team = s->team,
                           .clock = rt_clock_real(),
                           .profile = app_session_profile(s),
                           .rows_max = s->rows_max,
                           .context_max = s->context,
                           .sequences_max = 1,
                           .kv_bf16 = s->options.kv[0] == 'b',
                           .float_activations = s->options.float_activations,
                           .look_ahead = look_ahead_of(&s->options),
                           .reply_timeout_ns = (uint64_t)(s->options.reply_timeout_s * 1e9)};

    return an_engine_create(&spec, &s->budget, &s->engine, err);
}

/* Rank 0, or a process alone. */
static rt_status open_head(app_session *s, rt_err *err)
{
    s->welcome = (tr_welcome){.epoch = 1,
                              .sliced = s->options.slices,
                              .nodes = s->size,
                              .float_activations = s->options.float_activations,
                              .rows_max = s->rows_max};
    if (s->size > TR_NODES_MAX)
        return rt_fail(err, RT_EINVAL, "%u ranks: at most %d", s->size, TR_NODES_MAX);
    if (s->size > 1 && s->options.experts_here >= 1)
        return rt_fail(err, RT_EINVAL,
                       "--experts-here 1 leaves the other %u ranks no experts; run without mpirun",
                       s->size - 1);
    shares_of(s, s->welcome.share);
    if (s->cluster != NULL) RT_TRY(app_cluster_gather(s->cluster, s->container, err));
    RT_TRY(build_map(s, err));
    return plan_memory(s, err);
}

static rt_status load_head(app_session *s, rt_err *err)
{
    if (s->cluster != NULL) RT_TRY(app_cluster_welcome(s->cluster, &s->welcome, err));
    RT_TRY(join_links(s, err));
    RT_TRY(md_weights_load(s->container, false, &s->budget, &s->weights, err));
    rt_log_info("session", "dense weights loaded");
    RT_TRY(create_engine(s, err));
    if (s->welcome.share[0] > 0) {
        RT_TRY(open_experts(s, s->inproc_node, err));
        tr_inproc_set_driver(s->inproc_node, en_node_drive, s->node);
        /* With everything in RAM there is nothing to read early. */
        if (s->cluster == NULL && en_store_holds_all(s->store))
            an_engine_set_look_ahead(s->engine, AN_LOOK_AHEAD_OFF);
    }
    if (s->cluster != NULL) RT_TRY(app_cluster_wait_ready(s->cluster, err));
    return RT_OK;
}

static rt_status load_node(app_session *s, rt_err *err)
{
    en_store_stats stats;
    tr_ready ready;

    RT_TRY(app_cluster_join(s->cluster, &s->welcome, err));
    RT_TRY(build_map(s, err));
    RT_TRY(plan_memory(s, err));
    RT_TRY(open_experts(s, app_cluster_link(s->cluster), err));
    stats = en_store_get_stats(s->store);
    ready = (tr_ready){.records = stats.records,
                       .records_in_ram = stats.records_in_ram,
                       .ram_bytes = stats.ram_bytes};
    return app_cluster_ready(s->cluster, &ready, err);
}

static rt_status open_parts(app_session *s, const char *model_dir, rt_err *err)
{
    char id[65];
    rt_log_level level;

    RT_TRY(rt_log_level_parse(s->options.log_level, &level, err));
    rt_log_set_level(level);
    RT_TRY(kn_select(s->options.kernels, err));
    RT_TRY(md_container_open(model_dir, &s->container, err));
    RT_TRY(create_team(s, err));
    init_budget(s);
    md_model_id_format(md_container_get_info(s->container)->model_id, id);
    rt_log_info("session", "opened %s model %.16s threads %u kernels %s", model_dir, id,
                rt_team_size(s->team), kn_variant_name(kn_selected()));
    return s->rank == 0 ? open_head(s, err) : app_cluster_hello(s->cluster, s->container, err);
}

rt_status app_session_open(const app_session_spec *spec, app_session **out, rt_err *err)
{
    tr_mpi_world world = tr_mpi_world_get();
    app_session *s = calloc(1, sizeof(*s));
    rt_status status;

    if (s == NULL) return rt_fail(err, RT_ENOMEM, "session");
    s->options = spec->options;
    s->profiled = spec->profile;
    if (s->profiled) {
        rt_clock clock = rt_clock_real();

        rt_profile_start(&s->profile, &clock);
    }
    s->size = 1;
    s->rows_max = (uint32_t)spec->options.chunk;
    if (world.launched && world.size > 1) {
        /* The launcher's daemon is our parent: if it dies, nobody else would end this rank. */
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        status = app_cluster_create(&s->cluster, err);
        if (status != RT_OK) goto fail;
        s->rank = app_cluster_rank(s->cluster);
        s->size = app_cluster_size(s->cluster);
        rt_log_set_rank((int)s->rank);
    }
    status = open_parts(s, spec->model_dir, err);
    if (status != RT_OK) goto fail;
    *out = s;
    return RT_OK;
fail:
    app_session_close(s, status, err == NULL ? "" : err->text);
    return status;
}

rt_status app_session_load(app_session *s, rt_err *err)
{
    RT_TRY(s->rank == 0 ? load_head(s, err) : load_node(s, err));
    log_budget(s);
    rt_log_info("session", "ready");
    return RT_OK;
}

static rt_status serve_frame(void *context, uint32_t peer, tr_buf *buf)
{
    return en_node_frame(((app_session *)context)->node, peer, buf);
}

static void add_own_stats(const app_session *s, app_node_stats *out)
{
    en_store_stats store;
    en_execute_stats execute;

    if (s->store == NULL) return;
    store = en_store_get_stats(s->store);
    execute = en_executor_get_stats(s->executor);
    out->hits += store.hits;
    out->reads += store.reads;
    out->read_bytes += store.read_bytes;
    out->wait_ns += store.wait_ns;
    out->compute_ns += execute.compute_ns;
    out->hits_pinned += store.hits_pinned;
    out->ahead_reads += store.ahead_reads;
    out->ahead_useful += store.ahead_useful;
}

static void serve_stats(void *context, app_node_stats *out)
{
    *out = (app_node_stats){0};
    add_own_stats(context, out);
}

rt_status app_session_serve(app_session *session, rt_err *err)
{
    RT_ASSERT(session->rank != 0);
    return app_cluster_serve(session->cluster, serve_frame, serve_stats, session, err);
}

bool app_session_is_head(const app_session *session)
{
    return session->rank == 0;
}

void app_session_close(app_session *s, rt_status status, const char *reason)
{
    if (s == NULL) return;
    rt_log_info("session", "closing: %s", status == RT_OK ? "done" : rt_status_name(status));
    if (s->cluster != NULL && s->rank == 0) app_cluster_stop(s->cluster, status, reason);
    if (s->cluster != NULL && s->rank != 0 && status != RT_OK && status != RT_ECANCELED)
        app_cluster_refuse(s->cluster, status, reason);
    an_engine_free(s->engine);
    md_weights_free(s->weights);
    en_node_free(s->node);
    en_executor_free(s->executor);
    en_store_close(s->store);
    tr_link_close(s->nodes);
    tr_link_close(s->inproc_head);
    tr_link_close(s->inproc_node);
    pl_map_free(s->map);
    rt_team_free(s->team);
    md_container_close(s->container);
    app_cluster_free(s->cluster);
    free(s);
}

an_engine *app_session_engine(app_session *session)
{
    return session->engine;
}

const md_container *app_session_container(const app_session *session)
{
    return session->container;
}

uint32_t app_session_context(const app_session *session)
{
    return session->context;
}

uint32_t app_session_chunk(const app_session *session)
{
    return session->rows_max;
}

uint32_t app_session_nodes(const app_session *session)
{
    return session->size;
}

rt_team *app_session_team(const app_session *session)
{
    return session->team;
}

rt_profile *app_session_profile(app_session *session)
{
    return session->profiled ? &session->profile : NULL;
}

rt_status app_session_expert_stats(app_session *session, app_expert_stats *out, rt_err *err)
{
    app_node_stats sum = {0};
    uint64_t remote_compute_ns, remote_wait_ns;

    if (session->cluster != NULL) RT_TRY(app_cluster_stats(session->cluster, &sum, err));
    remote_compute_ns = sum.compute_ns;
    remote_wait_ns = sum.wait_ns;
    add_own_stats(session, &sum);
    *out = (app_expert_stats){.hits = sum.hits,
                              .reads = sum.reads,
                              .read_bytes = sum.read_bytes,
                              .hits_pinned = sum.hits_pinned,
                              .ahead_reads = sum.ahead_reads,
                              .ahead_useful = sum.ahead_useful,
                              .remote_compute_ns = remote_compute_ns,
                              .remote_wait_ns = remote_wait_ns};
    return RT_OK;
}

const char *app_session_node_name(const app_session *session, uint32_t node)
{
    if (node == 0 || session->cluster == NULL) return "this process";
    return app_cluster_name(session->cluster, node);
}
