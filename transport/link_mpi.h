/* link_mpi.h - frames over Open MPI, point to point, under an mpirun launch.
 *
 * FUNNELED: the main thread owns the link. Nonblocking calls only, never a collective on the token
 * path: failure is decided by our own deadlines. Sets mpi_yield_when_idle and sleeps when idle, since
 * MPI has no event-driven wait and spinning ranks starve each other (docs/performance.md).
 * MPI_Init only under a launcher: `moesaic run` alone must not need MPI at run time.
 *
 * A binary built without MPI has these functions too: world() then reports what the launcher's
 * environment says, and create() gives RT_EUNSUPPORTED. */
#ifndef TRANSPORT_LINK_MPI_H
#define TRANSPORT_LINK_MPI_H

#include "transport/link.h"

#include <stdbool.h>

typedef struct {
    bool launched; /* started by mpirun, srun or the like */
    uint32_t rank, size;
} tr_mpi_world;

bool tr_mpi_built_in(void);

/* What the launcher's environment says; initialises nothing. */
tr_mpi_world tr_mpi_world_get(void);

/* MPI_Init_thread and one link whose peers are all ranks (peer index = rank; sending to oneself is
 * asserted).  RT_EUNSUPPORTED: built without MPI (names the package to install).  RT_EPEER: MPI
 * refused to start. */
RT_MUST_CHECK rt_status tr_mpi_create(size_t pool_bytes, tr_link **out, uint32_t *rank,
                                      rt_err *err);

/* How many ranks share this host, this one included (before or after create). */
uint32_t tr_mpi_ranks_on_host(void);

/* Ends the MPI job in order: MPI_Finalize when every peer said goodbye, else leaves at once without it
 * (it would hang after a loss). tr_link_close calls this with clean false if it was not called. */
void tr_mpi_finish(tr_link *link, bool clean);

/* Ends the whole job with this exit code: MPI_Abort. For rank 0 when it fails before the others know. */
void tr_mpi_abort(int exit_code);

#endif
