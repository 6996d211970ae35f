/* mpi_job.c - the ends of an MPI job: how it starts, and that leaving it takes bounded time.
 *
 * MPI_Finalize waits for every rank and hangs for good once one is lost. So the ranks first meet in a
 * barrier of our own that is given up after a time, and only who has met all others finalizes. */
#ifdef MOESAIC_HAVE_MPI

#include "transport/mpi_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/idle.h"
#include "transport/text.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { HOST_BYTES = 64 };

typedef struct {
    char host[HOST_BYTES];
    uint32_t pid;
} rank_card;

const char *tr_mpi_error_text(int code, char *out, uint32_t out_bytes)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    if (length == 0)
        snprintf(out, out_bytes, "mpi error %d", code);
    else
        tr_text_clean(text, (size_t)length, out, out_bytes);
    return out;
}

/* Read by Open MPI at MPI_Init; what the user set (mpirun --mca) is left alone. */
static const struct {
    const char *name, *value;
} defaults[] = {
    /* For the blocking calls of start and end; our own waits sleep (idle.h). */
    {"OMPI_MCA_mpi_yield_when_idle", "1"},
    /* A decode frame (7 KB for hidden 6144) must leave when it is sent. Above the shared memory
     * transport's 4 KB it would only be announced, and go when the sender polls next: after the shared
     * expert instead of before. Left to wait with three nodes on two busy cores, best of six: 23-35 us,
     * with 4 KB 47. */
    {"OMPI_MCA_btl_vader_eager_limit", "32768"},
    {"OMPI_MCA_btl_vader_max_send_size", "65536"},
};

static void set_defaults(void)
{
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
        setenv(defaults[i].name, defaults[i].value, 0);
    /* Sleeps of 20 us would otherwise last 70: the kernel's slack is 50 us by default. */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

static uint32_t count_ranks_on_host(void)
{
    MPI_Comm host;
    int size = 0;

    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) !=
        MPI_SUCCESS)
        return tr_mpi_env_ranks_on_host();
    MPI_Comm_size(host, &size);
    MPI_Comm_free(&host);
    return size > 0 ? (uint32_t)size : 1;
}

static rt_status exchange_names(tr_mpi_job *job, rt_err *err)
{
    rank_card mine = {0}, *cards = calloc(job->size, sizeof(*cards));
    char text[256];
    int code;

    job->names = calloc(job->size, sizeof(*job->names));
    if (cards == NULL || job->names == NULL) {
        free(cards);
        return rt_fail(err, RT_ENOMEM, "names of %u ranks", job->size);
    }
    if (gethostname(mine.host, sizeof(mine.host) - 1) != 0) strcpy(mine.host, "unknown");
    mine.pid = (uint32_t)getpid();
    code =
        MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, cards, sizeof(mine), MPI_BYTE, MPI_COMM_WORLD);
    for (uint32_t rank = 0; code == MPI_SUCCESS && rank < job->size; rank++) {
        char host[HOST_BYTES];

        tr_text_clean(cards[rank].host, strnlen(cards[rank].host, HOST_BYTES), host, sizeof(host));
        snprintf(job->names[rank], TR_MPI_NAME_BYTES, "rank %u (host %s, pid %u)", rank, host,
                 cards[rank].pid);
    }
    free(cards);
    if (code != MPI_SUCCESS)
        return rt_fail(err, RT_EPEER, "MPI_Allgather: %s",
                       tr_mpi_error_text(code, text, sizeof(text)));
    return RT_OK;
}

rt_status tr_mpi_job_begin(tr_mpi_job *job, rt_err *err)
{
    int code, provided = 0, rank = 0, size = 0;
    char text[256];
    rt_status status;

    memset(job, 0, sizeof(*job));
    set_defaults();
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS)
        return rt_fail(err, RT_EPEER, "MPI_Init_thread: %s",
                       tr_mpi_error_text(code, text, sizeof(text)));
    if (provided < MPI_THREAD_FUNNELED)
        return rt_fail(err, RT_EPEER, "MPI_Init_thread: expected thread level %d, found %d",
                       MPI_THREAD_FUNNELED, provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    job->rank = (uint32_t)rank;
    job->size = (uint32_t)size;
    job->ranks_on_host = count_ranks_on_host();
    status = exchange_names(job, err);
    if (status != RT_OK) tr_mpi_job_free(job);
    return status;
}

void tr_mpi_job_free(tr_mpi_job *job)
{
    free(job->names);
    job->names = NULL;
}

bool tr_mpi_job_end(uint64_t timeout_ns)
{
    rt_clock clock = rt_clock_real();
    uint64_t start = rt_clock_now(&clock);
    MPI_Request barrier = MPI_REQUEST_NULL;
    tr_idle idle = {0};
    int met = 0;

    if (MPI_Ibarrier(MPI_COMM_WORLD, &barrier) != MPI_SUCCESS) return false;
    for (;;) {
        uint64_t waited = rt_clock_now(&clock) - start;

        if (MPI_Test(&barrier, &met, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
        if (met != 0) break;
        if (waited >= timeout_ns) return false;
        tr_idle_wait(&idle, timeout_ns - waited);
    }
    MPI_Finalize();
    return true;
}

#else

typedef int moesaic_mpi_absent; /* ISO C wants a declaration in every file */

#endif
