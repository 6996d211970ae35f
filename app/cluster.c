/* cluster.c - control messages over the mpi link. */
#include "app/cluster.h"

#include "base/check.h"
#include "base/log.h"
#include "base/stop.h"
#include "transport/frame.h"
#include "transport/link_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    POOL_BYTES = 1 << 30, /* bound of what is in flight, not an allocation */
    NAME_BYTES = 400,
    HELLO_WAIT_S = 120, /* ranks open their containers meanwhile; a slow disk may take its time */
    STATS_WAIT_S = 30,
    BYE_WAIT_S = 5,
    TICK_MS = 200,
    PROGRESS_AFTER_S = 2,
};

typedef struct {
    bool said_hello, ready, stopped;
    tr_hello hello;
} peer;

struct app_cluster {
    tr_link *link; /* owned */
    rt_clock clock;
    uint32_t rank, size;
    tr_hello mine;
    peer *peers;   /* owned [size] */
    bool lost;     /* a peer or the job went away: MPI_Finalize would hang */
    bool finished; /* STOP went round */
};

rt_status app_cluster_create(app_cluster **out, rt_err *err)
{
    app_cluster *cluster = calloc(1, sizeof(*cluster));
    rt_status status;

    if (cluster == NULL) return rt_fail(err, RT_ENOMEM, "cluster");
    cluster->clock = rt_clock_real();
    status = tr_mpi_create(POOL_BYTES, &cluster->link, &cluster->rank, err);
    if (status != RT_OK) goto fail;
    cluster->size = cluster->link->peer_count;
    cluster->peers = calloc(cluster->size, sizeof(*cluster->peers));
    if (cluster->peers == NULL) {
        status = rt_fail(err, RT_ENOMEM, "%u ranks", cluster->size);
        goto fail;
    }
    *out = cluster;
    return RT_OK;
fail:
    app_cluster_free(cluster);
    return status;
}

void app_cluster_free(app_cluster *cluster)
{
    if (cluster == NULL) return;
    if (cluster->link != NULL) {
        tr_mpi_finish(cluster->link, cluster->finished && !cluster->lost);
        tr_link_close(cluster->link);
    }
    free(cluster->peers);
    free(cluster);
}

uint32_t app_cluster_rank(const app_cluster *cluster)
{
    return cluster->rank;
}

uint32_t app_cluster_size(const app_cluster *cluster)
{
    return cluster->size;
}

tr_link *app_cluster_link(const app_cluster *cluster)
{
    return cluster->link;
}

const char *app_cluster_name(const app_cluster *cluster, uint32_t rank)
{
    RT_ASSERT(rank < cluster->size);
    return tr_link_peer_name(cluster->link, rank);
}

static uint64_t deadline_in(const app_cluster *cluster, uint32_t seconds)
{
    return rt_clock_now(&cluster->clock) + (uint64_t)seconds * 1000000000;
}

/* One control message from anyone, or a frame that is none (*other, owned by the caller).
 *   whom  the peer to be named if this never returns; NULL: at the end of a job
 *   Errors  RT_ETIMEOUT  nothing came within a tick;  RT_EPEER  `*from` left;  RT_ECANCELED */
static rt_status receive(app_cluster *cluster, const char *whom, tr_control *out, uint32_t *from,
                         tr_buf **other, rt_err *err)
{
    tr_event event;
    rt_status status;

    rt_stop_waiting_for(whom);
    status = tr_link_poll(cluster->link, (uint64_t)TICK_MS * 1000000, &event);
    rt_stop_waiting_for(NULL);

    *other = NULL;
    if (status == RT_ECANCELED) {
        cluster->lost = true;
        return status;
    }
    if (status != RT_OK) return status;
    *from = event.peer;
    if (event.type == TR_EVENT_PEER_DOWN) {
        cluster->lost = true;
        return rt_fail(err, RT_EPEER, "%s left the job", app_cluster_name(cluster, event.peer));
    }
    if (event.buf->length >= sizeof(tr_frame_header) &&
        ((const tr_frame_header *)(const void *)event.buf->data)->type != TR_CONTROL) {
        *other = event.buf;
        return RT_OK;
    }
    status = tr_control_decode(event.buf->data, event.buf->length, out, err);
    tr_buf_release(event.buf);
    if (status != RT_OK) rt_err_prefix(err, "%s: ", app_cluster_name(cluster, event.peer));
    return status;
}

static rt_status cancelled(const char *what, const char *whom, rt_err *err)
{
    return rt_fail(err, RT_ECANCELED, "stopped by signal %d while waiting for %s%s",
                   rt_stop_signal(), whom, what);
}

/* Waits for a control message until the deadline; frames that are none belong to an earlier step and
 * are dropped. `whom` and `what` are for the error: "rank 2", " to say hello". */
static rt_status await(app_cluster *cluster, uint64_t deadline, const char *whom, const char *what,
                       tr_control *out, uint32_t *from, rt_err *err)
{
    for (;;) {
        tr_buf *other;
        rt_status status = receive(cluster, whom, out, from, &other, err);

        if (status == RT_OK && other != NULL) {
            tr_buf_release(other);
            continue;
        }
        if (status == RT_ECANCELED) return cancelled(what, whom, err);
        if (status != RT_ETIMEOUT) return status;
        if (deadline != 0 && rt_clock_now(&cluster->clock) >= deadline)
            return rt_fail(err, RT_ETIMEOUT, "gave up waiting for %s%s", whom, what);
    }
}

/* Texts of several lines (a table of memory) travel as one: "a; b; c", blanks drawn together, cut at the
 * end of `line`. */
static void one_line(const char *text, char *line, size_t line_bytes)
{
    size_t used = 0;

    while (*text != '\0' && used + 2 < line_bytes) {
        if (*text == '\n') line[used++] = ';';
        line[used++] = *text == '\n' ? ' ' : *text;
        text += *text == '\n' || *text == ' ' ? strspn(text, "\n ") : 1;
    }
    line[used] = '\0';
}

static void make_hello(const md_container *container, tr_role role, tr_hello *out)
{
    *out = (tr_hello){.protocol_min = TR_PROTOCOL_MIN,
                      .protocol_max = TR_PROTOCOL_MAX,
                      .numerics_id = MD_NUMERICS_ID,
                      .role = role,
                      .pid = (uint32_t)getpid()};
    memcpy(out->model_id, md_container_get_info(container)->model_id, sizeof(out->model_id));
    if (gethostname(out->host, sizeof(out->host) - 1) != 0 || out->host[0] == '\0')
        snprintf(out->host, sizeof(out->host), "unknown");
}

/* ---- Head ---- */

/* The first peer in a state, for messages. */
static const char *first_missing(const app_cluster *cluster, size_t flag_offset, char *text,
                                 size_t text_bytes)
{
    uint32_t missing = 0, first = 0;

    for (uint32_t r = cluster->size - 1; r > 0; r--) {
        if (*(const bool *)((const char *)&cluster->peers[r] + flag_offset)) continue;
        missing++;
        first = r;
    }
    if (missing > 1)
        snprintf(text, text_bytes, "%s and %u more", app_cluster_name(cluster, first), missing - 1);
    else
        snprintf(text, text_bytes, "%s", app_cluster_name(cluster, first));
    return text;
}

static rt_status reported(const app_cluster *cluster, uint32_t from, const tr_reject *reject,
                          rt_err *err)
{
    return rt_fail(err, reject->status, "%s: %s", app_cluster_name(cluster, from), reject->text);
}

rt_status app_cluster_gather(app_cluster *cluster, const md_container *container, rt_err *err)
{
    uint64_t deadline = deadline_in(cluster, HELLO_WAIT_S);

    make_hello(container, TR_ROLE_ATTENTION, &cluster->mine);
    for (uint32_t missing = cluster->size - 1; missing > 0;) {
        char whom[NAME_BYTES + 32];
        tr_control message;
        uint32_t from;
        rt_status status;

        first_missing(cluster, offsetof(peer, said_hello), whom, sizeof(whom));
        RT_TRY(await(cluster, deadline, whom, " to say hello", &message, &from, err));
        if (message.type == TR_CONTROL_REJECT) return reported(cluster, from, &message.reject, err);
        if (message.type != TR_CONTROL_HELLO || cluster->peers[from].said_hello)
            return rt_fail(err, RT_EPROTO, "%s: expected hello, found %s",
                           app_cluster_name(cluster, from), tr_control_name(message.type));
        cluster->peers[from].said_hello = true;
        cluster->peers[from].hello = message.hello;
        missing--;
        status = tr_hello_check(&cluster->mine, &message.hello, err);
        if (status != RT_OK) {
            rt_err_prefix(err, "%s is refused: ", app_cluster_name(cluster, from));
            return status;
        }
    }
    return RT_OK;
}

rt_status app_cluster_welcome(app_cluster *cluster, const tr_welcome *welcome, rt_err *err)
{
    for (uint32_t r = 1; r < cluster->size; r++) {
        tr_control message = {.type = TR_CONTROL_WELCOME, .welcome = *welcome};
        rt_status status;

        message.welcome.node_index = r;
        message.welcome.protocol = tr_hello_protocol(&cluster->mine, &cluster->peers[r].hello);
        cluster->peers[r].ready = welcome->share[r] == 0;
        status = tr_control_send(cluster->link, r, &message);
        if (status != RT_OK)
            return rt_fail(err, status, "welcome to %s could not be sent",
                           app_cluster_name(cluster, r));
    }
    return RT_OK;
}

/* Loading has no deadline: a share of hundreds of GB takes what the disk needs. */
rt_status app_cluster_wait_ready(app_cluster *cluster, rt_err *err)
{
    uint64_t begin = rt_clock_now(&cluster->clock);
    uint64_t said_s = 0;

    for (;;) {
        uint32_t missing = 0;
        char whom[NAME_BYTES + 32];
        tr_control message;
        uint64_t elapsed_s;
        uint32_t from;
        tr_buf *other;
        rt_status status;

        for (uint32_t r = 1; r < cluster->size; r++)
            if (!cluster->peers[r].ready) missing++;
        if (missing == 0) return RT_OK;
        first_missing(cluster, offsetof(peer, ready), whom, sizeof(whom));
        elapsed_s = (rt_clock_now(&cluster->clock) - begin) / 1000000000;
        if (elapsed_s >= PROGRESS_AFTER_S && elapsed_s >= said_s + (said_s == 0 ? 0 : 10)) {
            fprintf(stderr, "moesaic: %u of %u nodes are loading their share (%s), %llu s\n",
                    missing, cluster->size - 1, whom, (unsigned long long)elapsed_s);
            said_s = elapsed_s;
        }
        status = receive(cluster, whom, &message, &from, &other, err);
        if (status == RT_ETIMEOUT) continue;
        if (status == RT_ECANCELED) return cancelled(" to load its experts", whom, err);
        if (status != RT_OK) return status;
        if (other != NULL) {
            tr_buf_release(other);
            continue;
        }
        if (message.type == TR_CONTROL_REJECT) return reported(cluster, from, &message.reject, err);
        if (message.type != TR_CONTROL_READY) continue;
        cluster->peers[from].ready = true;
        rt_log_info("cluster", "%s ready records %llu in ram %llu", app_cluster_name(cluster, from),
                    (unsigned long long)message.ready.records,
                    (unsigned long long)message.ready.records_in_ram);
    }
}

rt_status app_cluster_stats(app_cluster *cluster, app_node_stats *out, rt_err *err)
{
    const tr_control request = {.type = TR_CONTROL_STATS_REQUEST};
    uint64_t deadline = deadline_in(cluster, STATS_WAIT_S);
    app_node_stats sum = {0};

    for (uint32_t r = 1; r < cluster->size; r++) {
        tr_control message;
        uint32_t from;

        RT_TRY(tr_control_send(cluster->link, r, &request));
        do
            RT_TRY(await(cluster, deadline, app_cluster_name(cluster, r), " to send its counters",
                         &message, &from, err));
        while (from != r || message.type != TR_CONTROL_STATS_REPLY);
        sum.hits += message.stats_reply.hits;
        sum.reads += message.stats_reply.reads;
        sum.read_bytes += message.stats_reply.read_bytes;
        sum.wait_ns += message.stats_reply.wait_ns;
        sum.compute_ns += message.stats_reply.compute_ns;
        sum.hits_pinned += message.stats_reply.hits_pinned;
        sum.ahead_reads += message.stats_reply.ahead_reads;
        sum.ahead_useful += message.stats_reply.ahead_useful;
    }
    *out = sum;
    return RT_OK;
}

/* The head's last words: STOP when the work is done, REJECT with the reason otherwise (a rank may still
 * be waiting for its welcome). Each rank answers with STOP before it finalises. */
void app_cluster_stop(app_cluster *cluster, rt_status status, const char *reason)
{
    uint64_t deadline = deadline_in(cluster, BYE_WAIT_S);
    tr_control message = {.type = TR_CONTROL_STOP, .stop = {.clean = status == RT_OK}};
    uint32_t missing = 0;

    RT_ASSERT(cluster->rank == 0);
    one_line(reason == NULL || reason[0] == '\0' ? "done" : reason, message.stop.reason,
             sizeof(message.stop.reason));
    for (uint32_t r = 1; r < cluster->size; r++) {
        if (tr_control_send(cluster->link, r, &message) == RT_OK)
            missing++;
        else
            cluster->lost = true;
    }
    while (missing > 0 && !cluster->lost && rt_clock_now(&cluster->clock) < deadline) {
        tr_control answer;
        uint32_t from;
        tr_buf *other;
        rt_status got = receive(cluster, NULL, &answer, &from, &other, NULL);

        if (got != RT_OK) continue; /* lost is set, or nothing came yet */
        if (other != NULL)
            tr_buf_release(other);
        else if (answer.type == TR_CONTROL_STOP)
            missing--;
    }
    cluster->finished = missing == 0;
}

/* ---- Node ---- */

rt_status app_cluster_hello(app_cluster *cluster, const md_container *container, rt_err *err)
{
    tr_control message = {.type = TR_CONTROL_HELLO};
    rt_status status;

    make_hello(container, TR_ROLE_EXPERT, &message.hello);
    status = tr_control_send(cluster->link, 0, &message);
    if (status != RT_OK) return rt_fail(err, status, "hello to rank 0 could not be sent");
    return RT_OK;
}

rt_status app_cluster_join(app_cluster *cluster, tr_welcome *out, rt_err *err)
{
    tr_control message;
    uint32_t from;

    do
        RT_TRY(await(cluster, 0, app_cluster_name(cluster, 0), " to say welcome", &message, &from,
                     err));
    while (from != 0);
    if (message.type == TR_CONTROL_STOP) {
        tr_control bye = {.type = TR_CONTROL_STOP, .stop = {.clean = true}};

        cluster->finished = tr_control_send(cluster->link, 0, &bye) == RT_OK;
        rt_log_debug("cluster", "rank 0 ended the job: %s", message.stop.reason);
        if (err != NULL) err->text[0] = '\0';
        return RT_ECANCELED;
    }
    if (message.type != TR_CONTROL_WELCOME)
        return rt_fail(err, RT_EPROTO, "rank 0: expected welcome, found %s",
                       tr_control_name(message.type));
    if (message.welcome.nodes != cluster->size || message.welcome.node_index != cluster->rank)
        return rt_fail(err, RT_EPROTO, "rank 0 calls this node %u of %u, it is rank %u of %u",
                       message.welcome.node_index, message.welcome.nodes, cluster->rank,
                       cluster->size);
    if (message.welcome.protocol < TR_PROTOCOL_MIN || message.welcome.protocol > TR_PROTOCOL_MAX)
        return rt_fail(err, RT_EUNSUPPORTED, "rank 0 chose protocol %u, expected %d to %d",
                       message.welcome.protocol, TR_PROTOCOL_MIN, TR_PROTOCOL_MAX);
    *out = message.welcome;
    return RT_OK;
}

rt_status app_cluster_ready(app_cluster *cluster, const tr_ready *ready, rt_err *err)
{
    const tr_control message = {.type = TR_CONTROL_READY, .ready = *ready};
    rt_status status = tr_control_send(cluster->link, 0, &message);

    if (status != RT_OK) return rt_fail(err, status, "ready to rank 0 could not be sent");
    return RT_OK;
}

void app_cluster_refuse(app_cluster *cluster, rt_status status, const char *text)
{
    tr_control message = {.type = TR_CONTROL_REJECT, .reject = {.status = status}};
    uint64_t deadline = deadline_in(cluster, BYE_WAIT_S);

    if (cluster->finished || cluster->lost) return;
    one_line(text, message.reject.text, sizeof(message.reject.text));
    if (tr_control_send(cluster->link, 0, &message) != RT_OK) {
        cluster->lost = true;
        return;
    }
    /* The head answers by ending the job; only then is finalising safe. */
    while (!cluster->finished && !cluster->lost && rt_clock_now(&cluster->clock) < deadline) {
        tr_control answer;
        uint32_t from;
        tr_buf *other;

        if (receive(cluster, NULL, &answer, &from, &other, NULL) != RT_OK) continue;
        if (other != NULL) {
            tr_buf_release(other);
        } else if (from == 0 && answer.type == TR_CONTROL_STOP) {
            message = (tr_control){.type = TR_CONTROL_STOP, .stop = {.clean = true}};
            cluster->finished = tr_control_send(cluster->link, 0, &message) == RT_OK;
        }
    }
}

static rt_status answer_stats(app_cluster *cluster, app_stats_fn stats, void *context, rt_err *err)
{
    tr_control reply = {.type = TR_CONTROL_STATS_REPLY};
    app_node_stats mine;
    rt_status status;

    stats(context, &mine);
    reply.stats_reply = (tr_stats){.hits = mine.hits,
                                   .reads = mine.reads,
                                   .read_bytes = mine.read_bytes,
                                   .wait_ns = mine.wait_ns,
                                   .compute_ns = mine.compute_ns,
                                   .hits_pinned = mine.hits_pinned,
                                   .ahead_reads = mine.ahead_reads,
                                   .ahead_useful = mine.ahead_useful};
    status = tr_control_send(cluster->link, 0, &reply);
    if (status != RT_OK) return rt_fail(err, status, "counters could not be sent to rank 0");
    return RT_OK;
}

static rt_status answer_stop(app_cluster *cluster, const tr_stop *stop, rt_err *err)
{
    const tr_control bye = {.type = TR_CONTROL_STOP, .stop = {.clean = true, .reason = "bye"}};

    cluster->finished = tr_control_send(cluster->link, 0, &bye) == RT_OK;
    if (stop->clean) return RT_OK;
    return rt_fail(err, RT_ECANCELED, "%s ended the job: %s", app_cluster_name(cluster, 0),
                   stop->reason);
}

rt_status app_cluster_serve(app_cluster *cluster, app_frame_fn frame, app_stats_fn stats,
                            void *context, rt_err *err)
{
    for (;;) {
        tr_control message;
        uint32_t from = 0;
        tr_buf *other;
        rt_status status =
            receive(cluster, app_cluster_name(cluster, 0), &message, &from, &other, err);

        if (status == RT_ETIMEOUT) continue;
        if (status == RT_ECANCELED)
            return cancelled(" to send work", app_cluster_name(cluster, 0), err);
        if (status == RT_EPROTO) { /* a damaged message must not end the node */
            rt_log_warn("cluster", "%s", err == NULL ? "malformed message" : err->text);
            continue;
        }
        if (status != RT_OK) return status;
        if (other != NULL)
            status = frame(context, from, other);
        else if (message.type == TR_CONTROL_STOP && from == 0)
            return answer_stop(cluster, &message.stop, err);
        else if (message.type == TR_CONTROL_STATS_REQUEST && from == 0)
            status = answer_stats(cluster, stats, context, err);
        if (status != RT_OK) {
            cluster->lost = true;
            return rt_fail(err, status, "%s does not take answers any more",
                           app_cluster_name(cluster, from));
        }
    }
}
