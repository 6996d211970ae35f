/* moe.c - the driver of dispatch and combine. */
#include "attention_node/moe.h"

#include "attention_node/combine.h"
#include "attention_node/router.h"
#include "attention_node/shared_expert.h"
#include "base/check.h"
#include "base/stop.h"

#include <stdlib.h>

static const uint64_t FULL_POOL_WAIT_NS = 100000; /* between two looks whether there is room */

struct an_moe {
    tr_link *link;     /* borrowed */
    const pl_map *map; /* borrowed */
    rt_clock clock;
    rt_profile *profile; /* borrowed; NULL: none */
    uint64_t reply_timeout_ns;
    kn_format expert_format;
    an_dispatch *dispatch;  /* owned */
    an_combine *combine;    /* owned */
    an_engine_stats *stats; /* borrowed */
    bool *down;             /* [peers], owned */
    uint64_t request;       /* of the last layer sent */
    uint32_t layer;         /* under way, for messages */
    uint64_t silent_since;  /* when the last frame left, or the last reply came */
    uint64_t wait_from;     /* when the wait for the next reply began */
    rt_err *err;            /* of the run under way */
};

size_t an_moe_memory_bytes(const an_engine_spec *spec)
{
    uint32_t nodes = pl_map_nodes(spec->map);

    return an_dispatch_memory_bytes(nodes, spec->rows_max) +
           an_combine_memory_bytes(nodes, spec->rows_max,
                                   md_container_config(spec->container)->hidden);
}

rt_status an_moe_create(const an_engine_spec *spec, an_engine_stats *stats, an_moe **out,
                        rt_err *err)
{
    uint32_t nodes = pl_map_nodes(spec->map);
    rt_status status;
    an_moe *moe;

    if (nodes > spec->link->peer_count)
        return rt_fail(err, RT_EINVAL,
                       "placement map: expected at most %u nodes (peers of the %s "
                       "link), found %u",
                       spec->link->peer_count, spec->link->ops->name, nodes);
    moe = calloc(1, sizeof(*moe));
    if (moe == NULL) return rt_fail(err, RT_ENOMEM, "moe driver");
    moe->link = spec->link;
    moe->map = spec->map;
    moe->clock = spec->clock;
    moe->profile = spec->profile;
    moe->reply_timeout_ns = spec->reply_timeout_ns;
    moe->expert_format = md_container_get_info(spec->container)->expert_format;
    moe->stats = stats;
    /* Replies to an engine that was here before must not be taken for ours. */
    moe->request = rt_clock_now(&spec->clock) + 1;
    moe->down = calloc(spec->link->peer_count, sizeof(*moe->down));
    if (moe->down == NULL) {
        status = rt_fail(err, RT_ENOMEM, "moe driver");
        goto fail;
    }
    status = an_dispatch_create(nodes, spec->rows_max, &moe->dispatch, err);
    if (status != RT_OK) goto fail;
    status = an_combine_create(nodes, spec->rows_max, md_container_config(spec->container)->hidden,
                               &moe->combine, err);
    if (status != RT_OK) goto fail;
    *out = moe;
    return RT_OK;
fail:
    an_moe_free(moe);
    return status;
}

void an_moe_free(an_moe *moe)
{
    if (moe == NULL) return;
    an_dispatch_free(moe->dispatch);
    an_combine_free(moe->combine);
    free(moe->down);
    free(moe);
}

size_t an_moe_cost(const an_engine_spec *spec)
{
    const md_config *config = md_container_config(spec->container);
    uint32_t members = rt_team_size(spec->team);
    size_t routes = rt_arena_cost((size_t)spec->rows_max * config->topk * sizeof(uint32_t)) * 2;
    size_t router = an_router_cost(config, spec->rows_max), shared = 0;
    md_expert_layout layout;

    if (config->shared_experts > 0) {
        md_container_shared_layout(spec->container, &layout);
        shared = an_shared_cost(&layout, members);
    }
    return routes + (router > shared ? router : shared);
}

size_t an_moe_member_bytes(const an_engine_spec *spec)
{
    const md_config *config = md_container_config(spec->container);
    size_t router = an_router_member_bytes(config), shared = 0;
    md_expert_layout layout;

    if (config->shared_experts > 0) {
        md_container_shared_layout(spec->container, &layout);
        shared = an_shared_member_bytes(&layout);
    }
    return router > shared ? router : shared;
}

static rt_status lost(const an_moe *moe, uint32_t peer, const char *how)
{
    return rt_fail(moe->err, RT_EPEER, "layer %u: %s %s", moe->layer,
                   tr_link_peer_name(moe->link, peer), how);
}

/* tr_link_poll in the phase it belongs to. A link of this thread alone never waits: what its poll
 * takes beyond what the experts count for themselves is frames. */
static rt_status poll_link(an_moe *moe, uint32_t awaited, uint64_t timeout_ns, tr_event *event)
{
    rt_phase before = rt_profile_enter(moe->profile, moe->link->ops->same_thread ? RT_PHASE_DISPATCH
                                                                                 : RT_PHASE_REMOTE);
    rt_status status;

    rt_stop_waiting_for(tr_link_peer_name(moe->link, awaited));
    status = tr_link_poll(moe->link, timeout_ns, event);
    rt_stop_waiting_for(NULL);
    rt_profile_enter(moe->profile, before);
    return status;
}

/* Takes what the link gave: a frame, or that a peer is down. */
static rt_status take_event(an_moe *moe, const tr_event *event)
{
    an_reply reply = AN_REPLY_DROPPED;
    rt_phase before;
    rt_status status;
    uint64_t now;

    if (event->type == TR_EVENT_PEER_DOWN) {
        RT_ASSERT(event->peer < moe->link->peer_count);
        moe->down[event->peer] = true;
        return an_combine_owes(moe->combine, event->peer) ? lost(moe, event->peer, "went down")
                                                          : RT_OK;
    }
    before = rt_profile_enter(moe->profile, RT_PHASE_COMBINE);
    status = an_combine_frame(moe->combine, event->peer, event->buf->data, event->buf->length,
                              &reply, moe->err);
    rt_profile_enter(moe->profile, before);
    if (status != RT_OK)
        rt_err_prefix(moe->err, "layer %u: %s: ", moe->layer,
                      tr_link_peer_name(moe->link, event->peer));
    moe->stats->received_bytes += event->buf->length;
    tr_buf_release(event->buf);
    if (status != RT_OK || reply == AN_REPLY_DROPPED) return status;

    now = rt_clock_now(&moe->clock);
    moe->silent_since = now;
    if (an_combine_owed(moe->combine) == 0 && event->peer < AN_NODE_STATS_MAX)
        moe->stats->node_wait_ns[event->peer] += now - moe->wait_from;
    moe->wait_from = now;
    return RT_OK;
}

/* The link gave neither an event nor silence: most often a stop was requested. */
static rt_status broken(const an_moe *moe, rt_status status, uint32_t awaited)
{
    const char *peer = tr_link_peer_name(moe->link, awaited);

    /* A process alone waits for nobody. */
    if (status == RT_ECANCELED && moe->link->peer_count == 1)
        return rt_fail(moe->err, status, "stopped by signal %d in layer %u", rt_stop_signal(),
                       moe->layer);
    if (status == RT_ECANCELED)
        return rt_fail(moe->err, status, "stopped by signal %d in layer %u while waiting for %s",
                       rt_stop_signal(), moe->layer, peer);
    return rt_fail(moe->err, status, "layer %u: waiting for %s: %s", moe->layer, peer,
                   rt_status_name(status));
}

/* Waits for one event, at most longest_ns, until the silence is too long. */
static rt_status wait_event(an_moe *moe, uint32_t awaited, uint64_t longest_ns)
{
    uint64_t now = rt_clock_now(&moe->clock);
    uint64_t deadline = moe->silent_since + moe->reply_timeout_ns;
    bool late = now >= deadline; /* then look once more, and only then give up */
    uint64_t left_ns = late ? 0 : deadline - now;
    tr_event event;
    rt_status status;

    status = poll_link(moe, awaited, left_ns < longest_ns ? left_ns : longest_ns, &event);
    if (status == RT_OK) return take_event(moe, &event);
    if (status == RT_ETIMEOUT) {
        if (!late) return RT_OK;
        return rt_fail(moe->err, RT_EPEER, "layer %u: %s was silent for %llu ms", moe->layer,
                       tr_link_peer_name(moe->link, awaited),
                       (unsigned long long)((now - moe->silent_since) / 1000000));
    }
    return broken(moe, status, awaited);
}

/* A node that still owes a reply. */
static uint32_t first_owing(const an_moe *moe)
{
    uint32_t node = 0;

    while (node + 1 < pl_map_nodes(moe->map) && !an_combine_owes(moe->combine, node))
        node++;
    return node;
}

/* Takes whatever has come, without waiting. */
static rt_status take_all(an_moe *moe)
{
    while (an_combine_owed(moe->combine) > 0) {
        uint32_t awaited = first_owing(moe);
        tr_event event;
        rt_status status;

        status = poll_link(moe, awaited, 0, &event);
        if (status == RT_ETIMEOUT) return RT_OK;
        if (status != RT_OK) return broken(moe, status, awaited);
        RT_TRY(take_event(moe, &event));
    }
    return RT_OK;
}

/* An an_pump. Counted as waiting: with experts in this process, it is they who compute here. */
static rt_status pump(void *context)
{
    an_moe *moe = context;
    uint64_t start = rt_clock_now(&moe->clock);
    rt_status status;

    moe->wait_from = start;
    status = take_all(moe);
    moe->stats->wait_ns += rt_clock_now(&moe->clock) - start;
    return status;
}

static uint32_t deadline_us(const an_moe *moe)
{
    uint64_t us = moe->reply_timeout_ns / 1000;

    if (us == 0) us = 1; /* 0 would mean none */
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

static rt_status send_node(an_moe *moe, uint32_t node)
{
    size_t bytes = an_dispatch_frame_bytes(moe->dispatch, node);
    rt_status status;
    tr_buf *buf;

    if (moe->down[node]) return lost(moe, node, "is down");
    /* A full pool empties as sends complete, which polling brings about but does not report. */
    while ((status = tr_link_acquire(moe->link, bytes, &buf)) == RT_EBUSY)
        RT_TRY(wait_event(moe, an_combine_first_owing(moe->combine), FULL_POOL_WAIT_NS));
    if (status != RT_OK)
        return rt_fail(moe->err, status, "layer %u: buffer of %zu bytes for %s", moe->layer, bytes,
                       tr_link_peer_name(moe->link, node));
    an_dispatch_write(moe->dispatch, node, 0, deadline_us(moe), buf->data);
    buf->length = bytes;
    moe->silent_since = rt_clock_now(&moe->clock);
    status = tr_link_send(moe->link, node, buf);
    if (status == RT_EPEER) return lost(moe, node, "is down");
    if (status != RT_OK)
        return rt_fail(moe->err, status, "layer %u: send to %s", moe->layer,
                       tr_link_peer_name(moe->link, node));
    moe->stats->sent_bytes += bytes;
    return RT_OK;
}

static rt_status send_all(an_moe *moe)
{
    for (uint32_t node = 0; node < an_dispatch_nodes(moe->dispatch); node++) {
        uint32_t rows;

        (void)an_dispatch_rows(moe->dispatch, node, &rows);
        if (rows > 0) RT_TRY(send_node(moe, node));
    }
    return RT_OK;
}

static rt_status await_replies(an_moe *moe)
{
    uint64_t start = rt_clock_now(&moe->clock);

    moe->wait_from = start;
    moe->silent_since = start; /* nobody is silent while we were not listening */
    while (an_combine_owed(moe->combine) > 0)
        RT_TRY(wait_event(moe, an_combine_first_owing(moe->combine), UINT64_MAX));
    moe->stats->wait_ns += rt_clock_now(&moe->clock) - start;
    return RT_OK;
}

typedef struct {
    const an_combine *combine;
    float *out;
    uint32_t hidden;
    _Atomic uint32_t bad;
} finish_job;

static void finish_chunk(void *context, size_t row, uint32_t member)
{
    finish_job *job = context;

    (void)member;
    if (!an_combine_finish(job->combine, (uint32_t)row, job->out + row * job->hidden))
        an_note_lowest(&job->bad, (uint32_t)row);
}

static rt_status finish(const an_moe *moe, const an_pass *pass, float *out, uint32_t *bad_row)
{
    finish_job job = {.combine = moe->combine, .out = out, .hidden = pass->config->hidden};

    atomic_init(&job.bad, pass->rows);
    rt_team_run(pass->team, finish_chunk, &job, pass->rows);
    *bad_row = atomic_load(&job.bad);
    return *bad_row < pass->rows ? RT_ENUMERIC : RT_OK;
}

/* From the routes to the sums. */
static rt_status exchange(an_moe *moe, const an_pass *pass, uint32_t layer, const kn_rows *x)
{
    uint64_t start, waited;

    moe->silent_since = rt_clock_now(&moe->clock);
    rt_profile_enter(moe->profile, RT_PHASE_COMBINE);
    an_combine_begin(moe->combine, moe->dispatch);
    rt_profile_enter(moe->profile, RT_PHASE_DISPATCH);
    moe->stats->layers++;
    RT_TRY(send_all(moe));
    start = rt_clock_now(&moe->clock);
    waited = moe->stats->wait_ns;
    rt_profile_enter(moe->profile, RT_PHASE_SHARED);
    RT_TRY(an_shared_run(pass, layer, x, moe->combine, pump, moe));
    rt_profile_enter(moe->profile, RT_PHASE_DISPATCH);
    moe->stats->shared_ns += rt_clock_now(&moe->clock) - start - (moe->stats->wait_ns - waited);
    return await_replies(moe);
}

bool an_moe_wants_int8(const an_moe *moe, const an_pass *pass, uint32_t layer)
{
    const md_layer_weights *weights = &pass->weights->layers[layer];

    return an_wants_int8(pass, moe->expert_format) ||
           (weights->shared != NULL && an_wants_int8(pass, weights->shared_layout.format));
}

/* Of the model's routing, what placement/heat.h remembers. */
static void count_routes(const an_pass *pass, uint32_t layer, const uint32_t *id)
{
    uint64_t *counts = pass->route_counts + (size_t)layer * pass->config->experts;

    for (size_t i = 0; i < (size_t)pass->rows * pass->config->topk; i++)
        counts[id[i]]++;
}

rt_status an_moe_run(an_moe *moe, const an_pass *pass, uint32_t layer, const kn_rows *x, float *out,
                     uint32_t *bad_row, rt_err *err)
{
    const md_config *config = pass->config;
    size_t mark = rt_arena_mark(pass->arena);
    size_t routes = (size_t)pass->rows * config->topk * sizeof(uint32_t);
    uint32_t *id = rt_arena_take(pass->arena, routes);
    float *weight = rt_arena_take(pass->arena, routes);
    an_dispatch_layer plan = {
        .request = ++moe->request,
        .layer = layer,
        .q = pass->weights->layers[layer].grid_q,
        .x = x,
        .int8 = an_wants_int8(pass, moe->expert_format),
        .topk = config->topk,
        .id = id,
        .weight = weight,
        .map = moe->map,
    };
    rt_phase before = rt_profile_enter(moe->profile, RT_PHASE_ROUTER);
    rt_status status;

    *bad_row = pass->rows;
    moe->layer = layer;
    moe->err = err;
    status = an_router_run(pass, layer, x, id, weight, bad_row);
    if (status == RT_OK) {
        count_routes(pass, layer, id);
        rt_profile_enter(moe->profile, RT_PHASE_DISPATCH);
        an_dispatch_plan(moe->dispatch, &plan);
        status = exchange(moe, pass, layer, x);
        rt_profile_enter(moe->profile, RT_PHASE_COMBINE);
        if (status == RT_OK) status = finish(moe, pass, out, bad_row);
    }
    rt_profile_enter(moe->profile, before);
    an_combine_abandon(moe->combine);
    moe->err = NULL;
    rt_arena_return(pass->arena, mark);
    return status;
}

/* Those of the ids that a node holds, each once. */
static uint32_t foreseen_of(const an_moe *moe, uint32_t layer, uint32_t node, const uint32_t *id,
                            uint32_t count, uint16_t *out)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < count && found < TR_HINT_MAX; i++) {
        uint32_t same = 0;
        if (pl_map_mask(moe->map, layer, id[i], node) == 0) continue;
        while (same < found && out[same] != id[i])
            same++;
        if (same == found) out[found++] = (uint16_t)id[i];
    }
    return found;
}

static void send_hint(an_moe *moe, uint32_t layer, uint32_t node, const uint16_t *experts,
                      uint32_t count)
{
    tr_buf *buf;

    if (count == 0 || moe->down[node]) return;
    if (tr_link_acquire(moe->link, tr_hint_bytes(count), &buf) != RT_OK) return;
    tr_hint_write(buf->data, pl_map_epoch(moe->map), layer, experts, count);
    buf->length = tr_hint_bytes(count);
    /* A node that is gone is found by the next dispatch, which can say so. */
    if (tr_link_send(moe->link, node, buf) == RT_OK) moe->stats->sent_bytes += tr_hint_bytes(count);
}

void an_moe_foresee(an_moe *moe, const an_pass *pass, uint32_t layer, const kn_rows *x)
{
    an_pass unseen = *pass; /* a probe is for what the model chose, not for guesses */
    size_t mark = rt_arena_mark(pass->arena);
    size_t routes = (size_t)pass->rows * pass->config->topk * sizeof(uint32_t);
    uint32_t *id = rt_arena_take(pass->arena, routes);
    float *weight = rt_arena_take(pass->arena, routes);
    rt_phase before = rt_profile_enter(moe->profile, RT_PHASE_ROUTER);
    uint16_t experts[TR_HINT_MAX];
    uint32_t bad;

    unseen.probe = NULL;
    if (an_router_run(&unseen, layer, x, id, weight, &bad) == RT_OK)
        for (uint32_t node = 0; node < pl_map_nodes(moe->map); node++)
            send_hint(moe, layer, node, experts,
                      foreseen_of(moe, layer, node, id, pass->rows * pass->config->topk, experts));
    rt_profile_enter(moe->profile, before);
    rt_arena_return(pass->arena, mark);
}
