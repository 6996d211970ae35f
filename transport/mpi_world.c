/* mpi_world.c - was this process started by an MPI launcher, and as which rank.
 *
 * MPI_Init outside a launcher may hang or start daemons, so it must be known before. The rules err
 * towards "not launched", since a wrong yes hangs `moesaic run` in a plain shell:
 *
 *   OMPI_COMM_WORLD_RANK, _SIZE   mpirun and mpiexec of Open MPI
 *   PMI_RANK, PMI_SIZE            Hydra (MPICH, Intel), srun --mpi=pmi2
 *   PMIX_RANK and PMIX_NAMESPACE  srun --mpi=pmix; the size is SLURM_STEP_NUM_TASKS, as PMIx names none
 *
 * SLURM_PROCID alone says nothing: every batch script and every plain srun has it, without any MPI
 * behind it. */
#include "transport/link_mpi.h"

#include "base/log.h"
#include "base/options.h"
#include "transport/mpi_internal.h"

#include <errno.h>
#include <stdlib.h>

bool tr_mpi_built_in(void)
{
#ifdef MOESAIC_HAVE_MPI
    return true;
#else
    return false;
#endif
}

/* A decimal number without sign or space. */
static bool number(const char *name, uint32_t *out)
{
    const char *text = rt_env_get(name);
    unsigned long long value;
    char *end;

    if (text == NULL || text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value > INT32_MAX) return false;
    *out = (uint32_t)value;
    return true;
}

static bool pair(const char *rank_name, const char *size_name, tr_mpi_world *out)
{
    tr_mpi_world world = {.launched = true};

    if (rt_env_get(rank_name) == NULL || rt_env_get(size_name) == NULL) return false;
    if (!number(rank_name, &world.rank) || !number(size_name, &world.size) || world.size == 0 ||
        world.rank >= world.size) {
        rt_log_warn("transport", "%s and %s: expected a rank below a size, found %s and %s",
                    rank_name, size_name, rt_env_get(rank_name), rt_env_get(size_name));
        return false;
    }
    *out = world;
    return true;
}

tr_mpi_world tr_mpi_world_get(void)
{
    tr_mpi_world world = {.launched = false, .rank = 0, .size = 1};

    if (pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &world)) return world;
    if (pair("PMI_RANK", "PMI_SIZE", &world)) return world;
    if (rt_env_get("PMIX_RANK") == NULL || rt_env_get("PMIX_NAMESPACE") == NULL) return world;
    if (rt_env_get("SLURM_STEP_NUM_TASKS") != NULL) {
        (void)pair("PMIX_RANK", "SLURM_STEP_NUM_TASKS", &world);
    } else if (number("PMIX_RANK", &world.rank)) {
        /* A launcher that does not say how many: enough that nobody takes himself for the only one. */
        world.launched = true;
        world.size = world.rank < 1 ? 2 : world.rank + 1;
    }
    return world;
}

uint32_t tr_mpi_env_ranks_on_host(void)
{
    uint32_t ranks;

    if (number("OMPI_COMM_WORLD_LOCAL_SIZE", &ranks) && ranks > 0) return ranks;
    if (number("MPI_LOCALNRANKS", &ranks) && ranks > 0) return ranks;
    return 1;
}
