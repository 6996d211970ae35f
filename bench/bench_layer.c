/* bench_layer.c - what a MoE layer costs besides computing: grouping rows by node, frames out, replies
 * back, sums added.
 *
 * Dispatch, combine, frames, partial sums and links are the program's own; only the experts are left
 * out: a node checks a frame as an expert node does and answers with sums that were made before, of the
 * size that GLM-5.2 has on the standard grid. Alone, the one node is behind the inproc link; under
 * mpirun -n N the other N - 1 ranks are the nodes. Prints CSV after a header of '#' lines. */
#include "attention_node/combine.h"
#include "base/budget.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/team.h"
#include "transport/link_inproc.h"
#include "transport/link_mpi.h"
#include "transport/partial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* GLM-5.2 */
enum {
    HIDDEN = 6144,
    EXPERTS = 256,
    TOPK = 8,
    SLICES = 8,
    GROUP = 64,
    LAYERS = 78,
    FIRST_SPARSE = 3,
    MOE_LAYERS = LAYERS - FIRST_SPARSE,
};

enum { ROWS_MAX = 256, PASSES_MAX = 1000, POOL_BYTES = 1 << 28, WAIT_S = 30 };
static const uint32_t batches[] = {1, 4, 8, 32, 256};

enum { PLAN, SEND, WAIT, FINISH, PARTS };
static const char *const part_names[PARTS] = {"plan", "send", "wait", "finish"};

typedef struct {
    tr_link *link;
    int32_t *sums; /* owned [ROWS_MAX][HIDDEN] */
} node;

typedef struct {
    tr_link *link;         /* borrowed */
    pl_map *map;           /* owned */
    float *x;              /* owned [ROWS_MAX][HIDDEN] */
    void *x_quant;         /* owned */
    uint32_t *id;          /* owned [MOE_LAYERS][ROWS_MAX][TOPK] */
    float *weight;         /* owned [ROWS_MAX][TOPK] */
    float *out;            /* owned [HIDDEN] */
    an_dispatch *dispatch; /* owned */
    an_combine *combine;   /* owned */
    uint64_t request;
    uint64_t sent_bytes, received_bytes; /* of the pass under way */
} head;

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33);
}

static uint64_t now_ns(void)
{
    rt_clock clock = rt_clock_real();

    return rt_clock_now(&clock);
}

/* ---- an expert node that computes nothing ---- */

/* Sums of about 2^13 grid steps rms, as the grid is chosen for: nearly all fit 2 bytes. */
static rt_status node_create(node *n, tr_link *link, rt_err *err)
{
    uint64_t random = 7;

    n->link = link;
    n->sums = malloc(sizeof(*n->sums) * ROWS_MAX * HIDDEN);
    if (n->sums == NULL) return rt_fail(err, RT_ENOMEM, "sums of a node");
    for (size_t i = 0; i < (size_t)ROWS_MAX * HIDDEN; i++) {
        int32_t sum = 0;

        for (int k = 0; k < 12; k++) /* about Gaussian, variance 1 */
            sum += (int32_t)(next_random(&random) % 8192) - 4096;
        n->sums[i] = sum;
    }
    return RT_OK;
}

static rt_status node_answer(const node *n, uint32_t peer, const tr_buf *in)
{
    tr_dispatch_limits limits = {HIDDEN, GROUP, EXPERTS, SLICES, LAYERS};
    tr_dispatch_view view;
    tr_frame_header frame_head, answer;
    size_t bytes = sizeof(tr_frame_header);
    tr_buf *out;

    RT_TRY(tr_frame_check(in->data, in->length, &frame_head, NULL));
    RT_TRY(tr_dispatch_read(in->data, in->length, &limits, &view, NULL));
    RT_TRY(tr_link_acquire(n->link, bytes + view.head.rows * tr_partial_bytes_max(HIDDEN), &out));
    for (uint32_t r = 0; r < view.head.rows; r++)
        bytes += tr_partial_write(out->data + bytes, n->sums + (size_t)r * HIDDEN, HIDDEN);
    answer = tr_answer_head(&view.head, TR_REPLY);
    tr_frame_seal(out->data, bytes, &answer);
    out->length = bytes;
    return tr_link_send(n->link, peer, out);
}

static void node_drive(void *context)
{
    const node *n = context;
    tr_event event;

    while (tr_link_poll(n->link, 0, &event) == RT_OK) {
        if (event.type != TR_EVENT_FRAME) continue;
        RT_ASSERT(node_answer(n, event.peer, event.buf) == RT_OK);
        tr_buf_release(event.buf);
    }
}

/* Until a frame that is no dispatch says so. */
static rt_status node_serve(const node *n)
{
    for (;;) {
        tr_event event;
        tr_frame_header frame_head;

        RT_TRY(tr_link_poll(n->link, (uint64_t)WAIT_S * 1000000000ULL, &event));
        if (event.type != TR_EVENT_FRAME) return RT_EPEER;
        memcpy(&frame_head, event.buf->data, sizeof(frame_head));
        if (frame_head.type != TR_DISPATCH) {
            tr_buf_release(event.buf);
            return RT_OK;
        }
        rt_status status = node_answer(n, event.peer, event.buf);

        tr_buf_release(event.buf);
        if (status != RT_OK) return status;
    }
}

/* ---- the attention node's side ---- */

static rt_status head_map(head *h, uint32_t first, uint32_t nodes, rt_err *err)
{
    uint32_t share[PL_NODES_MAX] = {0};
    bool sparse[LAYERS];
    pl_map_spec spec = {.layers = LAYERS,
                        .sparse = sparse,
                        .experts = EXPERTS,
                        .slices = SLICES,
                        .nodes = nodes,
                        .share = share,
                        .mode = PL_WHOLE,
                        .epoch = 1};

    for (uint32_t l = 0; l < LAYERS; l++)
        sparse[l] = l >= FIRST_SPARSE;
    for (uint32_t n = first; n < nodes; n++)
        share[n] = 1;
    return pl_map_create(&spec, &h->map, err);
}

/* TOPK different experts, ascending, for every row of every layer. */
static void head_routes(head *h)
{
    uint64_t random = 11;

    for (size_t row = 0; row < (size_t)MOE_LAYERS * ROWS_MAX; row++) {
        bool taken[EXPERTS] = {false};
        uint32_t *id = h->id + row * TOPK, count = 0;

        for (uint32_t k = 0; k < TOPK; k++) {
            uint32_t e = next_random(&random) % EXPERTS;

            while (taken[e])
                e = (e + 1) % EXPERTS;
            taken[e] = true;
        }
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (taken[e]) id[count++] = e;
    }
    for (size_t i = 0; i < (size_t)ROWS_MAX * TOPK; i++)
        h->weight[i] = 2.5F / TOPK;
    for (size_t i = 0; i < (size_t)ROWS_MAX * HIDDEN; i++)
        h->x[i] = (float)next_random(&random) * 0x1p-30F - 1.0F;
}

/* first: the lowest node that has experts. */
static rt_status head_create(head *h, tr_link *link, uint32_t first, uint32_t nodes, rt_err *err)
{
    *h = (head){.link = link, .request = 1};
    h->x = malloc(sizeof(*h->x) * ROWS_MAX * HIDDEN);
    h->x_quant = aligned_alloc(64, kn_rows_quant_bytes(ROWS_MAX, HIDDEN, GROUP));
    h->id = malloc(sizeof(*h->id) * MOE_LAYERS * ROWS_MAX * TOPK);
    h->weight = malloc(sizeof(*h->weight) * ROWS_MAX * TOPK);
    h->out = malloc(sizeof(*h->out) * HIDDEN);
    if (h->x == NULL || h->x_quant == NULL || h->id == NULL || h->weight == NULL || h->out == NULL)
        return rt_fail(err, RT_ENOMEM, "rows");
    RT_TRY(head_map(h, first, nodes, err));
    RT_TRY(an_dispatch_create(nodes, ROWS_MAX, &h->dispatch, err));
    RT_TRY(an_combine_create(nodes, ROWS_MAX, HIDDEN, &h->combine, err));
    head_routes(h);
    return RT_OK;
}

static void head_free(head *h)
{
    an_combine_free(h->combine);
    an_dispatch_free(h->dispatch);
    pl_map_free(h->map);
    free(h->out);
    free(h->weight);
    free(h->id);
    free(h->x_quant);
    free(h->x);
}

static rt_status head_send(head *h)
{
    for (uint32_t n = 0; n < an_dispatch_nodes(h->dispatch); n++) {
        uint32_t rows;
        size_t bytes;
        tr_buf *buf;

        (void)an_dispatch_rows(h->dispatch, n, &rows);
        if (rows == 0) continue;
        bytes = an_dispatch_frame_bytes(h->dispatch, n);
        RT_TRY(tr_link_acquire(h->link, bytes, &buf));
        an_dispatch_write(h->dispatch, n, 0, 0, buf->data);
        buf->length = bytes;
        h->sent_bytes += bytes;
        RT_TRY(tr_link_send(h->link, n, buf));
    }
    return RT_OK;
}

static rt_status head_wait(head *h)
{
    while (an_combine_owed(h->combine) > 0) {
        an_reply reply;
        tr_event event;
        rt_status status;

        RT_TRY(tr_link_poll(h->link, (uint64_t)WAIT_S * 1000000000ULL, &event));
        if (event.type != TR_EVENT_FRAME) return RT_EPEER;
        status = an_combine_frame(h->combine, event.peer, event.buf->data, event.buf->length,
                                  &reply, NULL);
        h->received_bytes += event.buf->length;
        tr_buf_release(event.buf);
        if (status != RT_OK) return status;
    }
    return RT_OK;
}

/* One layer; adds the time of its parts to ns. */
static rt_status head_layer(head *h, const kn_rows *x, uint32_t layer, uint64_t *ns)
{
    an_dispatch_layer plan = {
        .request = ++h->request,
        .layer = layer,
        .q = 10,
        .x = x,
        .int8 = true,
        .topk = TOPK,
        .id = h->id + (size_t)(layer - FIRST_SPARSE) * ROWS_MAX * TOPK,
        .weight = h->weight,
        .map = h->map,
    };
    uint64_t at[PARTS + 1];

    at[PLAN] = now_ns();
    an_dispatch_plan(h->dispatch, &plan);
    an_combine_begin(h->combine, h->dispatch);
    at[SEND] = now_ns();
    RT_TRY(head_send(h));
    at[WAIT] = now_ns();
    RT_TRY(head_wait(h));
    at[FINISH] = now_ns();
    for (uint32_t r = 0; r < x->rows; r++)
        if (!an_combine_finish(h->combine, r, h->out)) return RT_ENUMERIC;
    at[PARTS] = now_ns();
    an_combine_abandon(h->combine);
    for (int p = 0; p < PARTS; p++)
        ns[p] += at[p + 1] - at[p];
    return RT_OK;
}

static int compare_ns(const void *a, const void *b)
{
    uint64_t x = ((const uint64_t *)a)[PARTS], y = ((const uint64_t *)b)[PARTS];

    return x < y ? -1 : x > y;
}

/* The median pass of all MoE layers, and the fastest. */
static rt_status head_report(head *h, uint32_t nodes, uint32_t rows, uint32_t passes)
{
    static uint64_t ns[PASSES_MAX][PARTS + 1];
    kn_rows x = kn_rows_quantise(h->x, HIDDEN, rows, HIDDEN, GROUP, h->x_quant);
    const double per_layer = 1e-3 / MOE_LAYERS;

    memset(ns, 0, sizeof(ns));
    for (uint32_t pass = 0; pass < passes; pass++) {
        h->sent_bytes = h->received_bytes = 0;
        for (uint32_t l = FIRST_SPARSE; l < LAYERS; l++)
            RT_TRY(head_layer(h, &x, l, ns[pass]));
        for (int p = 0; p < PARTS; p++)
            ns[pass][PARTS] += ns[pass][p];
    }
    qsort(ns, passes, sizeof(ns[0]), compare_ns);
    printf("%s,%u,%u,%.1f,%.1f", h->link->ops->name, nodes, rows,
           (double)ns[passes / 2][PARTS] * per_layer, (double)ns[0][PARTS] * per_layer);
    for (int p = 0; p < PARTS; p++)
        printf(",%.1f", (double)ns[passes / 2][p] * per_layer);
    printf(",%.1f,%.1f\n", (double)h->sent_bytes * 1e-3 / MOE_LAYERS,
           (double)h->received_bytes * 1e-3 / MOE_LAYERS);
    return fflush(stdout) == 0 ? RT_OK : RT_EIO;
}

static rt_status head_run(head *h, uint32_t nodes, uint32_t passes, rt_err *err)
{
    printf("# cpus usable %u, processes on this host %u\n", rt_cpus_usable(),
           tr_mpi_ranks_on_host());
    printf("# hidden %d, %d experts, top %d, int8 rows; mean of %d layers, of the median and the "
           "fastest of %u passes\n",
           HIDDEN, EXPERTS, TOPK, MOE_LAYERS, passes);
    printf("link,nodes,rows,us_per_layer,fastest_us");
    for (int p = 0; p < PARTS; p++)
        printf(",%s_us", part_names[p]);
    printf(",sent_kb,received_kb\n");
    for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
        rt_status status = head_report(h, nodes, batches[b], passes);

        if (status != RT_OK)
            return rt_fail(err, status, "%u rows: %s", batches[b], rt_status_name(status));
    }
    return RT_OK;
}

/* ---- composition ---- */

static rt_status run_alone(uint32_t passes, rt_err *err)
{
    tr_link *a = NULL, *b = NULL;
    node n = {0};
    head h = {0};
    rt_status status = tr_inproc_create(POOL_BYTES, &a, &b, err);

    if (status == RT_OK) status = node_create(&n, b, err);
    if (status == RT_OK) status = head_create(&h, a, 0, 1, err);
    if (status == RT_OK) {
        tr_inproc_set_driver(b, node_drive, &n);
        status = head_run(&h, 1, passes, err);
    }
    head_free(&h);
    free(n.sums);
    tr_link_close(a);
    tr_link_close(b);
    return status;
}

static rt_status stop_nodes(tr_link *link)
{
    for (uint32_t peer = 1; peer < link->peer_count; peer++) {
        tr_frame_header stop = {.type = TR_CONTROL};
        tr_buf *buf;

        RT_TRY(tr_link_acquire(link, sizeof(stop), &buf));
        tr_frame_seal(buf->data, sizeof(stop), &stop);
        buf->length = sizeof(stop);
        RT_TRY(tr_link_send(link, peer, buf));
    }
    return RT_OK;
}

static rt_status run_ranks(uint32_t passes, rt_err *err)
{
    tr_link *link = NULL;
    uint32_t rank = 0;
    node n = {0};
    head h = {0};
    rt_status status = tr_mpi_create(POOL_BYTES, &link, &rank, err);

    if (status != RT_OK) return status;
    if (rank == 0) {
        status = head_create(&h, link, 1, link->peer_count, err);
        if (status == RT_OK) status = head_run(&h, link->peer_count - 1, passes, err);
        if (status == RT_OK) status = stop_nodes(link);
    } else {
        status = node_create(&n, link, err);
        if (status == RT_OK) status = node_serve(&n);
    }
    head_free(&h);
    free(n.sums);
    tr_mpi_finish(link, status == RT_OK);
    tr_link_close(link);
    return status;
}

int main(int argc, char **argv)
{
    long passes = argc > 1 ? strtol(argv[1], NULL, 10) : 20;
    tr_mpi_world world = tr_mpi_world_get();
    rt_err err = {0};
    rt_status status;

    if (argc > 2 || passes < 1 || passes > PASSES_MAX) {
        fprintf(stderr, "usage: [mpirun -n N] bench_layer [PASSES]\n"
                        "  PASSES  over all layers, 1 to 1000 (default 20)\n");
        return 2;
    }
    rt_float_env_set();
    status = world.launched && world.size > 1 ? run_ranks((uint32_t)passes, &err)
                                              : run_alone((uint32_t)passes, &err);
    if (status != RT_OK) fprintf(stderr, "bench_layer: %s %s\n", rt_status_name(status), err.text);
    return status == RT_OK ? 0 : 1;
}
