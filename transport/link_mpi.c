/* link_mpi.c - frames as MPI messages: matched probes in, nonblocking sends out, own waits between.
 *
 * A message is matched when it is probed and received by MPI_Imrecv, so that a large frame of one peer
 * neither blocks this thread nor holds up the frames of others, and a peer that dies in the middle of
 * one costs nothing but its buffer. Frames of one peer are given out in the order they were matched in.
 *
 * Receiving has a pool of its own: were it that of the sends, two nodes whose pools are full of sends
 * would wait for each other for good. When the pool is used up the next message stays with MPI. */
#include "transport/link_mpi.h"

#include "base/check.h"
#include "transport/mpi_internal.h"

#ifndef MOESAIC_HAVE_MPI

rt_status tr_mpi_create(size_t pool_bytes, tr_link **out, uint32_t *rank, rt_err *err)
{
    (void)pool_bytes;
    (void)out;
    (void)rank;
    return rt_fail(err, RT_EUNSUPPORTED,
                   "this binary was built without Open MPI: install libopenmpi-dev and "
                   "openmpi-bin and build again");
}

uint32_t tr_mpi_ranks_on_host(void)
{
    return tr_mpi_env_ranks_on_host();
}

void tr_mpi_finish(tr_link *link, bool clean)
{
    (void)link;
    (void)clean;
}

void tr_mpi_abort(int exit_code)
{
    (void)exit_code;
}

#else

#include "base/clock.h"
#include "base/log.h"
#include "base/stop.h"
#include "transport/frame.h"
#include "transport/idle.h"
#include "transport/pool.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIVES_MAX = 64 }; /* under way at a time; more stay with MPI */

static const uint64_t END_NS = 5000000000;   /* for all ranks to meet at the end */
static const uint64_t FLUSH_NS = 1000000000; /* for what was sent last, when leaving early */

typedef struct {
    MPI_Request request;
    tr_buf *buf; /* owned */
    uint32_t peer;
} receive;

typedef struct {
    bool down, reported;
} peer_state;

typedef struct {
    tr_link link; /* first */
    tr_mpi_job job;
    bool finished;
    tr_pool *send_pool, *receive_pool; /* owned */
    peer_state *peers;                 /* [size] owned */
    bool any_down;

    /* Sends MPI still reads from: request and buffer i belong together. */
    uint32_t send_count, send_room;
    MPI_Request *send_requests; /* [send_room] owned, as the rest */
    tr_buf **send_bufs;
    uint32_t *send_peers;
    int *done_index;
    MPI_Status *done_status;

    receive receives[RECEIVES_MAX]; /* oldest match first */
    uint32_t receive_count;
    bool held; /* a message is matched but had no buffer yet */
    MPI_Message held_message;
    MPI_Status held_status;
} mpi_link;

/* The ranks that share this host, once MPI has told; of the process, as MPI itself is. */
static uint32_t known_ranks_on_host;
/* A link that was left without MPI_Finalize: MPI may still read and write its buffers. */
static mpi_link *abandoned;

static void mark_down(mpi_link *self, uint32_t peer, const char *what, int code)
{
    char text[256];

    if (self->peers[peer].down) return;
    self->peers[peer].down = true;
    self->any_down = true;
    rt_log_error("transport", "%s is down: %s: %s", self->job.names[peer], what,
                 code == MPI_SUCCESS ? "a frame beyond the cap"
                                     : tr_mpi_error_text(code, text, sizeof(text)));
}

/* An error that names no peer: nothing can be trusted to arrive any more. */
static void mark_all_down(mpi_link *self, const char *what, int code)
{
    for (uint32_t peer = 0; peer < self->link.peer_count; peer++)
        if (peer != self->job.rank) mark_down(self, peer, what, code);
}

/* ---- sending ---- */

static rt_status mpi_acquire(tr_link *link, size_t bytes, tr_buf **out)
{
    return tr_pool_acquire(((mpi_link *)link)->send_pool, bytes, out);
}

/* Grows one array of the sends; what was there stays valid when memory is short. */
static bool grow_array(void *array, size_t item_bytes, uint32_t room)
{
    void *old, *grown;

    memcpy(&old, array, sizeof(old));
    grown = realloc(old, item_bytes * room);
    if (grown == NULL) return false;
    memcpy(array, &grown, sizeof(grown));
    return true;
}

static bool make_room(mpi_link *self)
{
    uint32_t room = self->send_room > 0 ? self->send_room * 2 : 64;

    if (self->send_count < self->send_room) return true;
    if (!grow_array(&self->send_requests, sizeof(*self->send_requests), room) ||
        !grow_array(&self->send_bufs, sizeof(*self->send_bufs), room) ||
        !grow_array(&self->send_peers, sizeof(*self->send_peers), room) ||
        !grow_array(&self->done_index, sizeof(*self->done_index), room) ||
        !grow_array(&self->done_status, sizeof(*self->done_status), room))
        return false;
    self->send_room = room;
    return true;
}

/* TOKEN:8 to the experts of another rank. */
static rt_status mpi_send(tr_link *link, uint32_t peer, tr_buf *buf)
{
    mpi_link *self = (mpi_link *)link;
    MPI_Request request;
    int code;

    RT_ASSERT(peer != self->job.rank && !self->finished);
    if (self->peers[peer].down || !make_room(self)) {
        tr_buf_release(buf);
        return self->peers[peer].down ? RT_EPEER : RT_ENOMEM;
    }
    code = MPI_Isend(buf->data, (int)buf->length, MPI_BYTE, (int)peer, TR_MPI_TAG, MPI_COMM_WORLD,
                     &request);
    if (code != MPI_SUCCESS) {
        mark_down(self, peer, "MPI_Isend", code);
        tr_buf_release(buf);
        return RT_EPEER;
    }
    self->send_requests[self->send_count] = request;
    self->send_bufs[self->send_count] = buf;
    self->send_peers[self->send_count] = peer;
    self->send_count++;
    return RT_OK;
}

/* Closes the gaps that completed sends have left (their request is null). */
static void compact_sends(mpi_link *self)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < self->send_count; i++) {
        if (self->send_requests[i] == MPI_REQUEST_NULL) continue;
        self->send_requests[kept] = self->send_requests[i];
        self->send_bufs[kept] = self->send_bufs[i];
        self->send_peers[kept] = self->send_peers[i];
        kept++;
    }
    self->send_count = kept;
}

static void progress_sends(mpi_link *self)
{
    int done = 0, code;

    if (self->send_count == 0) return;
    code = MPI_Testsome((int)self->send_count, self->send_requests, &done, self->done_index,
                        self->done_status);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
        mark_all_down(self, "MPI_Testsome", code);
        return;
    }
    if (done == MPI_UNDEFINED || done == 0) return;
    for (int i = 0; i < done; i++) {
        uint32_t index = (uint32_t)self->done_index[i];

        if (code == MPI_ERR_IN_STATUS && self->done_status[i].MPI_ERROR != MPI_SUCCESS) {
            mark_down(self, self->send_peers[index], "send", self->done_status[i].MPI_ERROR);
            self->send_requests[index] = MPI_REQUEST_NULL;
        }
        tr_buf_release(self->send_bufs[index]);
    }
    compact_sends(self);
}

/* ---- receiving ---- */

/* Starts to receive the matched message; false: no buffer now, it stays held. */
static bool start_receive(mpi_link *self)
{
    uint32_t peer = (uint32_t)self->held_status.MPI_SOURCE;
    receive *next = &self->receives[self->receive_count];
    int bytes = 0, code;

    code = MPI_Get_count(&self->held_status, MPI_BYTE, &bytes);
    if (code != MPI_SUCCESS || bytes < 0 || bytes > TR_FRAME_BYTES_MAX) {
        /* Never received: we are done with this peer. */
        mark_down(self, peer, "receive", code);
        self->held = false;
        return true;
    }
    if (tr_pool_acquire(self->receive_pool, (size_t)bytes, &next->buf) != RT_OK) return false;
    self->held = false;
    next->peer = peer;
    next->buf->length = (size_t)bytes;
    code = MPI_Imrecv(next->buf->data, bytes, MPI_BYTE, &self->held_message, &next->request);
    if (code != MPI_SUCCESS) {
        mark_down(self, peer, "MPI_Imrecv", code);
        tr_buf_release(next->buf);
        return true;
    }
    self->receive_count++;
    return true;
}

static void match_messages(mpi_link *self)
{
    while (self->receive_count < RECEIVES_MAX) {
        if (!self->held) {
            int found = 0;
            int code = MPI_Improbe(MPI_ANY_SOURCE, TR_MPI_TAG, MPI_COMM_WORLD, &found,
                                   &self->held_message, &self->held_status);

            if (code != MPI_SUCCESS) {
                mark_all_down(self, "MPI_Improbe", code);
                return;
            }
            if (found == 0) return;
            self->held = true;
        }
        if (!start_receive(self)) return;
    }
}

static bool has_earlier(const mpi_link *self, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++)
        if (self->receives[i].peer == self->receives[index].peer) return true;
    return false;
}

/* Takes a receive out of the list. */
static receive remove_receive(mpi_link *self, uint32_t index)
{
    receive taken = self->receives[index];

    self->receive_count--;
    memmove(&self->receives[index], &self->receives[index + 1],
            (self->receive_count - index) * sizeof(taken));
    return taken;
}

/* The oldest complete frame that no earlier one of its peer is ahead of. */
static bool take_frame(mpi_link *self, tr_event *out)
{
    for (uint32_t i = 0; i < self->receive_count;) {
        receive taken;
        int done = 0, code;

        if (has_earlier(self, i)) {
            i++;
            continue;
        }
        code = MPI_Test(&self->receives[i].request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && done == 0) {
            i++;
            continue;
        }
        taken = remove_receive(self, i);
        if (code != MPI_SUCCESS) mark_down(self, taken.peer, "receive", code);
        if (self->peers[taken.peer].down) {
            tr_buf_release(taken.buf);
            continue;
        }
        *out = (tr_event){.type = TR_EVENT_FRAME, .peer = taken.peer, .buf = taken.buf};
        return true;
    }
    return false;
}

static bool take_down(mpi_link *self, tr_event *out)
{
    if (!self->any_down) return false;
    for (uint32_t peer = 0; peer < self->link.peer_count; peer++) {
        if (!self->peers[peer].down || self->peers[peer].reported) continue;
        self->peers[peer].reported = true;
        *out = (tr_event){.type = TR_EVENT_PEER_DOWN, .peer = peer};
        return true;
    }
    return false;
}

static rt_status mpi_poll(tr_link *link, uint64_t timeout_ns, tr_event *out)
{
    mpi_link *self = (mpi_link *)link;
    rt_clock clock = rt_clock_real();
    uint64_t start = 0;
    tr_idle idle = {0};

    RT_ASSERT(!self->finished);
    for (;;) {
        uint64_t waited = 0;

        bool have;

        rt_stop_blocking(true); /* after a loss MPI may not come back from these */
        progress_sends(self);
        match_messages(self);
        have = take_frame(self, out) || take_down(self, out);
        rt_stop_blocking(false);
        if (have) return RT_OK;
        if (rt_stop_requested()) return RT_ECANCELED;
        if (timeout_ns == 0) return RT_ETIMEOUT;
        if (start == 0)
            start = rt_clock_now(&clock);
        else
            waited = rt_clock_now(&clock) - start;
        if (waited >= timeout_ns) return RT_ETIMEOUT;
        tr_idle_wait(&idle, timeout_ns - waited);
    }
}

static const char *mpi_peer_name(const tr_link *link, uint32_t peer)
{
    return ((const mpi_link *)link)->job.names[peer];
}

/* ---- start and end ---- */

static void free_link(mpi_link *self)
{
    for (uint32_t i = 0; i < self->send_count; i++)
        tr_buf_release(self->send_bufs[i]);
    for (uint32_t i = 0; i < self->receive_count; i++)
        tr_buf_release(self->receives[i].buf);
    free(self->send_requests);
    free(self->send_bufs);
    free(self->send_peers);
    free(self->done_index);
    free(self->done_status);
    tr_pool_close(self->send_pool);
    tr_pool_close(self->receive_pool);
    free(self->peers);
    tr_mpi_job_free(&self->job);
    free(self);
}

/* Gives what was sent last a bounded chance to leave, such as the reason of a stop. */
static void flush_sends(mpi_link *self, uint64_t timeout_ns)
{
    rt_clock clock = rt_clock_real();
    uint64_t start = rt_clock_now(&clock);
    tr_idle idle = {0};

    while (self->send_count > 0) {
        uint64_t waited = rt_clock_now(&clock) - start;

        progress_sends(self);
        if (self->send_count == 0 || waited >= timeout_ns) return;
        tr_idle_wait(&idle, timeout_ns - waited);
    }
}

static void mpi_close(tr_link *link)
{
    mpi_link *self = (mpi_link *)link;

    if (!self->finished) tr_mpi_finish(link, false);
    if (self == abandoned) return; /* MPI may still touch its memory; the process is about to end */
    free_link(self);
}

static const tr_link_ops mpi_ops = {
    .name = "mpi",
    .same_thread = false,
    .acquire = mpi_acquire,
    .send = mpi_send,
    .poll = mpi_poll,
    .peer_name = mpi_peer_name,
    .close = mpi_close,
};

rt_status tr_mpi_create(size_t pool_bytes, tr_link **out, uint32_t *rank, rt_err *err)
{
    mpi_link *self;
    rt_status status;
    int initialized = 0;

    if (!tr_mpi_world_get().launched)
        return rt_fail(err, RT_EINVAL,
                       "mpi link: expected to be started by mpirun or srun --mpi, found no "
                       "launcher's environment");
    MPI_Initialized(&initialized);
    RT_ASSERT(initialized == 0); /* MPI starts once in a process */
    self = calloc(1, sizeof(*self));
    if (self == NULL) return rt_fail(err, RT_ENOMEM, "mpi link");
    status = tr_mpi_job_begin(&self->job, err);
    if (status != RT_OK) goto fail;
    self->link.ops = &mpi_ops;
    self->link.peer_count = self->job.size;
    known_ranks_on_host = self->job.ranks_on_host;
    self->peers = calloc(self->job.size, sizeof(*self->peers));
    self->send_pool = tr_pool_create(pool_bytes);
    self->receive_pool = tr_pool_create(pool_bytes);
    if (self->peers == NULL || self->send_pool == NULL || self->receive_pool == NULL ||
        !make_room(self)) {
        status = rt_fail(err, RT_ENOMEM, "mpi link of %u ranks", self->job.size);
        goto fail;
    }
    *rank = self->job.rank;
    *out = &self->link;
    return RT_OK;
fail:
    free_link(self);
    return status;
}

uint32_t tr_mpi_ranks_on_host(void)
{
    return known_ranks_on_host > 0 ? known_ranks_on_host : tr_mpi_env_ranks_on_host();
}

void tr_mpi_finish(tr_link *link, bool clean)
{
    mpi_link *self = (mpi_link *)link;

    RT_ASSERT(link->ops == &mpi_ops);
    if (self->finished) return;
    flush_sends(self, clean ? END_NS : FLUSH_NS);
    self->finished = true;
    if (clean && !self->any_down && self->send_count == 0 && tr_mpi_job_end(END_NS)) return;
    if (clean)
        rt_log_warn("transport", "left without MPI_Finalize: %s",
                    self->any_down ? "a peer is down" : "not every rank came to the end");
    abandoned = self;
}

void tr_mpi_abort(int exit_code)
{
    int initialized = 0, finalized = 0;

    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (initialized != 0 && finalized == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
}

#endif
