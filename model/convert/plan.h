/* plan.h - what a conversion has to do: one unit per record, with the source tensors it is made of.
 *
 * The list of records is md_manifest_expected's, so conversion, opening and loading agree. Units
 * are worked in the order of the last shard that they need, so that shards can be given up early.
 *
 * Threads: pure, apart from marking the source's tensors as used. */
#ifndef MODEL_CONVERT_PLAN_H
#define MODEL_CONVERT_PLAN_H

#include "model/container/manifest.h"
#include "model/container/shape.h"
#include "model/convert/source.h"

/* Where a unit's tensors stand in md_unit.source. */
enum {
    MD_UNIT_GATE = 0, /* experts: gate, up, down and the norm that their rows are weighed by */
    MD_UNIT_UP = 1,
    MD_UNIT_DOWN = 2,
    MD_UNIT_NORM = 3,
    MD_UNIT_SOURCES_MAX = 4,
};

typedef struct {
    md_key key;
    md_shape shape; /* of the record */
    md_source_matrix source[MD_UNIT_SOURCES_MAX];
    uint32_t source_count; /* 0: computed (rope frequencies), or its shards are gone */
    uint32_t last_shard;   /* the highest-numbered shard it needs; 0 for none */
    bool done;             /* durable in the target */
    bool verified;         /* read back from the disk since */
    md_hash128 hash;       /* when done */
    double power;          /* experts: P_e^2 of grid_q.h, when done */
} md_unit;

typedef struct {
    md_unit *units; /* [count] in key order, as the manifest */
    uint64_t count;
    uint32_t *order; /* [count] unit numbers in the order of work */
    uint64_t target_bytes;
} md_plan;

/* The units of a model, without sources. RT_ENOMEM. */
RT_MUST_CHECK rt_status md_plan_create(const md_config *config, const md_container_info *info,
                                       md_plan *out, rt_err *err);
void md_plan_free(md_plan *plan); /* an empty plan is allowed */

/* The unit of a key, NULL when the model has no such record. */
md_unit *md_plan_find(const md_plan *plan, md_key key);

/* Finds the tensors of every unit that is not done and sorts the order of work. Names that only
 * done units need are counted as known. Accepted copies of embedding and head in MTP layers are
 * ignored. Errors  as md_source_resolve */
RT_MUST_CHECK rt_status md_plan_resolve(md_plan *plan, const md_config *config, md_source *source,
                                        rt_err *err);

/* Calls visit for each tensor that the units are made of, by name, done or not. */
typedef void (*md_plan_name_visit)(void *context, const md_unit *unit, const char *name);
void md_plan_visit_names(const md_plan *plan, const md_config *config, md_plan_name_visit visit,
                         void *context);

/* Calls visit for each tensor of units that are not done which lies in a shard that is gone. */
typedef void (*md_plan_gone_visit)(void *context, const md_unit *unit, uint32_t shard);
void md_plan_visit_gone(const md_plan *plan, const md_config *config, const md_source *source,
                        md_plan_gone_visit visit, void *context);

/* Calls visit for each tensor of a unit (weights and scales). */
typedef void (*md_plan_visit)(void *context, uint32_t tensor);
void md_plan_visit_tensors(const md_unit *unit, md_plan_visit visit, void *context);

#endif
