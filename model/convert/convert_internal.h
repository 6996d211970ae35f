/* convert_internal.h - one conversion's state, shared by convert.c, finish.c and verify.c. */
#ifndef MODEL_CONVERT_CONVERT_INTERNAL_H
#define MODEL_CONVERT_CONVERT_INTERNAL_H

#include "model/convert/convert.h"
#include "model/convert/disk_space.h"
#include "model/convert/engine.h"

/* The files of a checkpoint beside its shards, read and checked. */
typedef struct {
    char *config_json; /* owned */
    size_t config_bytes;
    md_config config;
    uint64_t config_hash;
    char *generation_json; /* owned; NULL when there is none */
    size_t generation_bytes;
    uint8_t *tokenizer; /* owned: the compiled image */
    size_t tokenizer_bytes;
    char template_id[40]; /* MD5 of chat_template.jinja, "" when there is none */
} md_source_files;

/*   Errors  RT_EIO (config.json or tokenizer.json missing), RT_EFORMAT, RT_EUNSUPPORTED of their
 *           parsers */
RT_MUST_CHECK rt_status md_source_files_read(const char *dir, md_source_files *out, rt_err *err);
void md_source_files_free(md_source_files *files);
/* XXH3-64 of dir/config.json. */
RT_MUST_CHECK rt_status md_config_file_hash(const char *dir, uint64_t *out, rt_err *err);

typedef struct {
    const md_convert_spec *spec; /* borrowed */
    md_source_files files;
    md_import import; /* of an import */
    md_container_info info;
    md_plan plan;
    md_ledger_options options;
    md_ledger *ledger;
    md_source *source;
    md_target *target;
    md_disk_space disk;
    uint64_t resumed; /* records found whole in the target */
    uint64_t lost;    /* that its ledger names, but which are not: converted again */
} md_conversion;

RT_MUST_CHECK rt_status md_conversion_init(md_conversion *c, const md_convert_spec *spec,
                                           rt_err *err);
void md_conversion_fini(md_conversion *c);
RT_MUST_CHECK rt_status md_conversion_plan(md_conversion *c, rt_err *err);
/* Marks as done what the ledger names and the disk has, read back and compared by hash (resume.c).
 *   Errors  RT_EFORMAT a ledger of another model; RT_EIO, RT_ENOMEM; RT_ECANCELED */
RT_MUST_CHECK rt_status md_conversion_resume(md_conversion *c, rt_team *team, rt_err *err);
/* RT_EFORMAT: records that are not done need shards that are gone; both are named. */
RT_MUST_CHECK rt_status md_conversion_check_gone(const md_conversion *c, rt_err *err);
RT_MUST_CHECK rt_status md_conversion_open_source(md_conversion *c, rt_err *err);
RT_MUST_CHECK rt_status md_conversion_run_engine(md_conversion *c, rt_team *team, const char *what,
                                                 md_engine_result *out, rt_err *err);
/* Its bound of all buffers. */
uint64_t md_conversion_memory(const md_conversion *c);
/* RT_EINVAL when the container was made with other options. */
RT_MUST_CHECK rt_status md_conversion_check_complete(const md_conversion *c,
                                                     const md_container *container, rt_err *err);

/* q of every MoE layer from the powers of its experts; 0 elsewhere. RT_ENOMEM. */
RT_MUST_CHECK rt_status md_conversion_grid(const md_conversion *c, int8_t grid_q[MD_LAYERS_MAX],
                                           rt_err *err);
/* Manifest, config, tokenizer, and last moesaic.json. */
RT_MUST_CHECK rt_status md_finish_files(md_conversion *c, rt_err *err);

/* --verify-only. */
RT_MUST_CHECK rt_status md_conversion_verify(md_conversion *c, rt_team *team,
                                             md_convert_result *result, rt_err *err);

#endif
