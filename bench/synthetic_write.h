/* synthetic_write.h - a recipe's container on disk: packs, manifest, tokenizer, seal.
 *
 * Everything is written into DIR.part, which becomes DIR when it is complete, so DIR is either not there
 * or whole. DIR.part of an interrupted run is begun anew.
 *
 * Threads: the team's owner. */
#ifndef BENCH_SYNTHETIC_WRITE_H
#define BENCH_SYNTHETIC_WRITE_H

#include "base/team.h"
#include "bench/synthetic.h"

typedef struct {
    const char *dir; /* without a slash at its end */
    const synthetic_recipe *recipe;
    const char *config_json; /* what recipe->config was parsed from */
    const void *tokenizer;   /* compiled image */
    size_t tokenizer_bytes;
    rt_team *team;
    bool quiet; /* no progress line */
} synthetic_spec;

/* Bytes that the container takes on disk. RT_ENOMEM */
RT_MUST_CHECK rt_status synthetic_disk_bytes(const synthetic_recipe *recipe, uint64_t *out,
                                             rt_err *err);

/* true: dir is a whole container of this very recipe. false: nothing is there, and the disk has room.
 *   Errors  RT_EINVAL    something else is there (named)
 *           RT_ENOSPACE  the disk has less than it takes (both numbers)
 *           RT_EIO, RT_ENOMEM */
RT_MUST_CHECK rt_status synthetic_is_there(const synthetic_spec *spec, bool *out, rt_err *err);

/* Writes it; the biases are set. On an error DIR.part is left behind.
 *   Errors  RT_ECANCELED a stop was requested
 *           RT_ENOSPACE, RT_EIO, RT_ENOMEM */
RT_MUST_CHECK rt_status synthetic_write(const synthetic_spec *spec, rt_err *err);

#endif
