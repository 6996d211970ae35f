/* model_look.h - what a path given as MODEL is, at a glance: nothing, a config.json, a checkpoint, half a
 * conversion, a container. Shared by plan, doctor and status, so that they agree.
 *
 * Reads no weights. A damaged file is a state of the model here, not an error of looking.
 *
 * Threads: one owner. */
#ifndef APP_MODEL_LOOK_H
#define APP_MODEL_LOOK_H

#include "model/container/container.h"
#include "model/convert/ledger.h"

typedef enum {
    APP_MODEL_ABSENT,  /* no such file or directory, or it cannot be looked into */
    APP_MODEL_NOTHING, /* a directory with nothing of a model in it */
    APP_MODEL_BROKEN,  /* a config.json, checkpoint or container that is damaged or not supported */
    APP_MODEL_CONFIG,  /* a config.json and no weights: nothing is downloaded yet */
    APP_MODEL_CHECKPOINT, /* weights in the release's layout, all or some; or foreign ones */
    APP_MODEL_UNFINISHED, /* a conversion that was begun */
    APP_MODEL_CONTAINER,
} app_model_state;

typedef struct {
    app_model_state state;
    char *path;       /* owned; as given */
    char *dir;        /* owned; where the model is, or would be */
    bool is_file;     /* path names a file: a config.json, or a mistake */
    rt_err reason;    /* ABSENT, NOTHING, BROKEN: what was expected and found */
    char denied[256]; /* what this user may not read, when that is why; "" */

    /* CONTAINER: the opened one. CONFIG, CHECKPOINT: a blueprint of what convert would make. */
    md_container *container;           /* owned; else NULL */
    uint64_t records_held, held_bytes; /* CONTAINER */
    /* Of the records that are not held, those that a process alone needs. */
    uint64_t dense_lacking, experts_lacking;
    bool lacks_tokenizer;                /* CONTAINER: rank 0 needs it */
    uint64_t records, bytes, disk_bytes; /* of the whole; disk_bytes with headers and padding */

    /* CONFIG, CHECKPOINT. */
    bool foreign;             /* weights of the colibri engine, for import */
    char import_problem[504]; /* foreign: why import would refuse them as they are; "" */
    char quant_method[24];    /* of config.json; "" when it names none */
    uint64_t source_bytes, source_tensors; /* of a whole checkpoint, computed */
    uint32_t shards, shards_missing;       /* those that the index names; without one, those here */
    uint64_t shard_bytes, shard_bytes_index; /* here; what the index says, 0 without one */
    char first_missing[128];                 /* of the shards, else a file that convert needs */

    /* UNFINISHED. */
    md_ledger_options conversion;
    uint64_t records_done, done_bytes;
    bool running;        /* a process holds the ledger's lock */
    bool ledger_damaged; /* BROKEN: nothing tells what was done */
    bool is_part;        /* BROKEN: packs without moesaic.json and without a ledger */
    bool from_other;     /* an import with a second directory */
    char first_shard[128];
} app_model;

/* formats: of the blueprint.  Errors  RT_ENOMEM alone; *out is to be freed in any case. */
RT_MUST_CHECK rt_status app_model_look(const char *path, kn_format expert_format,
                                       kn_format dense_format, app_model *out, rt_err *err);
void app_model_free(app_model *model); /* a zeroed one is allowed */

/* "container", "unfinished conversion": for people and JSON. */
const char *app_model_state_name(app_model_state state);

/* A checkpoint of which every file is here, and in a form that convert (or import) reads. */
bool app_model_is_convertible(const app_model *model);

/* A container that a process alone can run. What it may lack is the MTP layer's experts: nothing reads
 * them yet. */
bool app_model_is_runnable(const app_model *model);

/* Calls `tell` with the name of each pack that lacks records, once, and how many it lacks. RT_ENOMEM. */
RT_MUST_CHECK rt_status app_model_each_missing(const app_model *model,
                                               void (*tell)(void *context, const char *pack,
                                                            uint64_t records),
                                               void *context);

#endif
