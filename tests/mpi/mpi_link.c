/* mpi_link.c - ranks of a real mpirun on loopback, in one of several roles of a test.
 *
 *   mpi_link contract     the contract tests on rank 0, servers on the others
 *   mpi_link stop         SIGTERM while every rank waits: polls end at once, all finish in order
 *   mpi_link missing      one rank leaves without the end: the others' end is bounded
 *   mpi_link loss         the last rank kills itself: Open MPI ends the job, the others leave by themselves
 *   mpi_link oversized    a message beyond the cap takes its sender down and nobody else
 *   mpi_link abort        rank 0 ends the job with a code of its own
 *
 * A rank exits 0 when it saw what it should; mpirun's own code is checked where the job dies. */
#include "transport/link_mpi.h"

#include "base/log.h"
#include "base/stop.h"
#include "tests/support/link_contract.h"
#include "transport/frame.h"
#include "transport/mpi_internal.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POOL = 4 << 20, RANKS_MAX = 64 };

static const uint64_t SECOND_NS = 1000000000;

static tr_link *my_link;
static uint32_t rank;

/* One line on stderr, and the job ends: an unexpected state of one rank must not hang the others. */
static void require(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "rank %u: expected %s\n", rank, what);
    tr_mpi_abort(99);
    _exit(99);
}

static void send_byte(uint32_t peer, uint8_t byte)
{
    tr_buf *buf;

    require(tr_link_acquire(my_link, 64, &buf) == RT_OK, "a buffer");
    buf->data[0] = byte;
    buf->length = 1;
    require(tr_link_send(my_link, peer, buf) == RT_OK, "a send that is taken");
}

static void expect_byte(uint32_t peer, uint8_t byte)
{
    tr_event event;

    require(tr_link_poll(my_link, 30 * SECOND_NS, &event) == RT_OK, "a frame in time");
    require(event.type == TR_EVENT_FRAME && event.peer == peer, "a frame of that peer");
    require(event.buf->length == 1 && event.buf->data[0] == byte, "the byte that was sent");
    tr_buf_release(event.buf);
}

/* No rank goes on before all have come here. By way of rank 0: were each to greet each, one that has met
 * all others could send its next frame to one that still waits for a third. */
static void meet(uint8_t byte)
{
    uint32_t others = my_link->peer_count - 1;
    bool came[RANKS_MAX] = {false};

    if (rank != 0) {
        send_byte(0, byte);
        expect_byte(0, byte);
        return;
    }
    for (uint32_t i = 0; i < others; i++) {
        tr_event event;

        require(tr_link_poll(my_link, 30 * SECOND_NS, &event) == RT_OK, "a rank to meet");
        require(event.type == TR_EVENT_FRAME && !came[event.peer], "one greeting a rank");
        require(event.buf->length == 1 && event.buf->data[0] == byte, "the greeting");
        came[event.peer] = true;
        tr_buf_release(event.buf);
    }
    for (uint32_t peer = 1; peer <= others; peer++)
        send_byte(peer, byte);
}

static int run_contract(void)
{
    static uint32_t peers[RANKS_MAX];
    link_contract contract = {.link = my_link, .peers = peers, .pool_bytes = POOL};
    int failed = 0;

    if (rank == 0) {
        for (uint32_t peer = 1; peer < my_link->peer_count; peer++)
            peers[contract.peer_count++] = peer;
        failed = link_contract_run("contract over mpi", &contract);
        require(strstr(tr_link_peer_name(my_link, 1), "rank 1 (host ") != NULL, "rank, host");
        require(strstr(tr_link_peer_name(my_link, 1), "pid ") != NULL, "and pid in a name");
        link_contract_quit(&contract);
    } else {
        link_server *server = link_server_create(my_link);

        while (link_server_step(server, 50000000)) {
        }
        link_server_free(server);
    }
    require(tr_mpi_ranks_on_host() == my_link->peer_count, "all ranks on this host");
    tr_mpi_finish(my_link, failed == 0);
    return failed;
}

static int run_stop(void)
{
    tr_event event;

    meet(1);
    /* What has come already is given out before the stop is. */
    if (rank == 0) send_byte(1, 7);
    if (rank == 1) expect_byte(0, 7);
    raise(SIGTERM);
    require(tr_link_poll(my_link, 600 * SECOND_NS, &event) == RT_ECANCELED, "a canceled poll");
    require(tr_link_poll(my_link, 0, &event) == RT_ECANCELED, "a canceled look");
    tr_mpi_finish(my_link, true);
    return 0;
}

/* A signal that comes in the middle of the wait ends it: the alarm stands for mpirun's SIGTERM. */
static void forward_term(int number)
{
    (void)number;
    raise(SIGTERM);
}

static int run_stop_waiting(void)
{
    tr_event event;

    meet(1);
    signal(SIGALRM, forward_term);
    alarm(1);
    require(tr_link_poll(my_link, 600 * SECOND_NS, &event) == RT_ECANCELED, "a canceled wait");
    tr_mpi_finish(my_link, true);
    return 0;
}

static int run_missing(void)
{
    int finalized = 0;

    meet(1);
    /* Under --enable-recovery a rank may go without taking the job along. */
    if (rank == my_link->peer_count - 1) _exit(0);
    tr_mpi_finish(my_link, true);
    MPI_Finalized(&finalized);
    require(finalized == 0, "an end without MPI_Finalize");
    tr_link_close(my_link);
    _exit(0);
}

static int run_loss(void)
{
    tr_event event;
    rt_status status;

    meet(1);
    if (rank == my_link->peer_count - 1) raise(SIGKILL);
    do {
        status = tr_link_poll(my_link, 60 * SECOND_NS, &event);
    } while (status == RT_OK && event.type == TR_EVENT_PEER_DOWN);
    fprintf(stderr, "rank %u: %s\n", rank, rt_status_name(status));
    tr_mpi_finish(my_link, false);
    tr_link_close(my_link);
    _exit(status == RT_ECANCELED ? 1 : 98);
}

/* The last rank announces more than the cap, past the link. Only the announcement is ever sent. */
static int run_oversized(void)
{
    size_t bytes = (size_t)TR_FRAME_BYTES_MAX + 1;
    uint32_t last = my_link->peer_count - 1;
    tr_event event;

    meet(1);
    if (rank == last) {
        MPI_Request request;
        void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        require(data != MAP_FAILED, "an address range");
        expect_byte(0, 3);
        require(MPI_Isend(data, (int)bytes, MPI_BYTE, 0, TR_MPI_TAG, MPI_COMM_WORLD, &request) ==
                    MPI_SUCCESS,
                "a message under way");
        expect_byte(0, 9); /* rank 0 is through with it; progress until then */
        _exit(0);
    }
    if (rank == 0) {
        tr_buf *buf;

        send_byte(last, 3);
        require(tr_link_poll(my_link, 30 * SECOND_NS, &event) == RT_OK, "an event");
        require(event.type == TR_EVENT_PEER_DOWN && event.peer == last, "the sender to be down");
        require(tr_link_acquire(my_link, 64, &buf) == RT_OK, "a buffer");
        buf->length = 1;
        require(tr_link_send(my_link, last, buf) == RT_EPEER, "no send to a peer that is down");
        send_byte(1, 4);
        expect_byte(1, 5);
        /* The link is done with it, so it is told past the link. */
        require(MPI_Send(&(uint8_t){9}, 1, MPI_BYTE, (int)last, TR_MPI_TAG, MPI_COMM_WORLD) ==
                    MPI_SUCCESS,
                "the word to the sender");
        fprintf(stderr, "rank 0: went on without its peer\n");
    } else if (rank == 1) {
        expect_byte(0, 4);
        send_byte(0, 5);
    }
    tr_mpi_finish(my_link, false);
    tr_link_close(my_link);
    _exit(0);
}

static int run_abort(void)
{
    tr_event event;

    meet(1);
    if (rank == 0) tr_mpi_abort(7);
    (void)!tr_link_poll(my_link, 60 * SECOND_NS, &event);
    _exit(0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } roles[] = {
        {"contract", run_contract}, {"stop", run_stop}, {"stop-waiting", run_stop_waiting},
        {"missing", run_missing},   {"loss", run_loss}, {"oversized", run_oversized},
        {"abort", run_abort},
    };
    rt_err err = {0};

    rt_stop_install();
    if (argc != 2) return 2;
    if (tr_mpi_create(POOL, &my_link, &rank, &err) != RT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 3;
    }
    rt_log_set_rank((int)rank);
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (strcmp(argv[1], roles[i].name) == 0) {
            int code = roles[i].run();

            tr_link_close(my_link);
            return code;
        }
    require(false, "a role that exists");
    return 2;
}
