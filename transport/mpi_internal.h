/* mpi_internal.h - what the files of the mpi link share: the job (start, names, end) and the ranks.
 *
 * Threads: the main thread. */
#ifndef TRANSPORT_MPI_INTERNAL_H
#define TRANSPORT_MPI_INTERNAL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { TR_MPI_TAG = 0x4d53, TR_MPI_NAME_BYTES = 128 };

/* What OMPI_COMM_WORLD_LOCAL_SIZE or MPI_LOCALNRANKS says; 1 when neither is set. */
uint32_t tr_mpi_env_ranks_on_host(void);

typedef struct {
    uint32_t rank, size, ranks_on_host;
    char (*names)[TR_MPI_NAME_BYTES]; /* [size] "rank 2 (host a, pid 17)"; owned */
} tr_mpi_job;

/* MPI_Init_thread and the exchange of names: collective, all ranks call it. RT_EPEER, RT_ENOMEM. */
RT_MUST_CHECK rt_status tr_mpi_job_begin(tr_mpi_job *job, rt_err *err);
void tr_mpi_job_free(tr_mpi_job *job);

/* Waits until every rank has come here, at most timeout_ns, then MPI_Finalize. False: not all came, and
 * MPI was left as it is. */
bool tr_mpi_job_end(uint64_t timeout_ns);

/* The text of an MPI error code into out. */
const char *tr_mpi_error_text(int code, char *out, uint32_t out_bytes);

#endif
