/* model_advice.c - a sentence for each state of a model. */
#include "app/model_advice.h"

#include "app/output.h"
#include "app/verbs.h"
#include "base/file.h"
#include "model/container/description.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char what_to_give[] =
    "give the directory of a container (made by moesaic convert) or of a checkpoint, or a "
    "config.json";

static void advise_denied(const app_model *model, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "let this user (uid %u) read %.300s, or run as one who may",
             (unsigned)geteuid(), model->denied);
}

static void advise_foreign(const app_model *model, char *text, size_t text_bytes)
{
    if (model->import_problem[0] != '\0')
        snprintf(text, text_bytes, "import (moesaic import %s TARGET) would say: %s", model->path,
                 model->import_problem);
    else if (model->first_missing[0] != '\0')
        snprintf(text, text_bytes, "%s is missing: put it there", model->first_missing);
    else
        snprintf(text, text_bytes, "import it: moesaic import %s TARGET", model->path);
}

static void advise_checkpoint(const app_model *model, char *text, size_t text_bytes)
{
    if (model->foreign)
        advise_foreign(model, text, text_bytes);
    else if (model->quant_method[0] != '\0' && strcmp(model->quant_method, "fp8") != 0)
        snprintf(text, text_bytes,
                 "download the FP8 or the BF16 release: weights quantised by \"%s\" are not read",
                 model->quant_method);
    else if (model->shards_missing > 0)
        snprintf(text, text_bytes, "finish the download: %u of %u weight files %s missing (%s)",
                 model->shards_missing, model->shards, model->shards_missing == 1 ? "is" : "are",
                 model->first_missing);
    else if (model->first_missing[0] != '\0')
        snprintf(text, text_bytes, "finish the download: %s is missing", model->first_missing);
    else if (model->denied[0] != '\0')
        advise_denied(model, text, text_bytes);
    else if (!app_model_is_convertible(model))
        snprintf(text, text_bytes,
                 "finish the download: the weight files have %llu bytes, their index says %llu",
                 (unsigned long long)model->shard_bytes,
                 (unsigned long long)model->shard_bytes_index);
    else
        snprintf(text, text_bytes, "convert it: moesaic convert %s TARGET", model->path);
}

static void advise_conversion(const app_model *model, char *text, size_t text_bytes)
{
    const md_ledger_options *asked = &model->conversion;
    char eps[40] = "";

    if (model->running) {
        snprintf(text, text_bytes, "wait: a conversion into %s is running", model->path);
        return;
    }
    if (model->records == 0) {
        snprintf(text, text_bytes, "run convert again: moesaic convert SOURCE %s", model->path);
        return;
    }
    if (asked->latent_eps != 1e-5f) /* what every release has */
        snprintf(eps, sizeof(eps), " --latent-eps %.9g", (double)asked->latent_eps);
    if (asked->import) {
        snprintf(text, text_bytes,
                 "run import again with the same source: moesaic import SOURCE %s%s%s%s",
                 model->path, model->from_other ? " --indexer-from HF_DIR" : "",
                 asked->grid_fine ? " --grid fine" : "", eps);
        return;
    }
    snprintf(text, text_bytes,
             "run convert again with the same source: moesaic convert SOURCE %s --experts %s "
             "--dense %s%s%s",
             model->path, kn_format_name(asked->expert_format), kn_format_name(asked->dense_format),
             asked->grid_fine ? " --grid fine" : "", eps);
}

static void advise_broken(const app_model *model, char *text, size_t text_bytes)
{
    char *description = rt_path_join(model->dir, MD_DESCRIPTION_NAME);
    bool described = description != NULL && access(description, F_OK) == 0;

    free(description);
    if (model->denied[0] != '\0')
        advise_denied(model, text, text_bytes);
    else if (model->ledger_damaged)
        snprintf(text, text_bytes, "delete %s and convert again into it: what was done is lost",
                 model->path);
    else if (model->is_file && described)
        snprintf(text, text_bytes, "give the container's directory, %s", model->dir);
    else if (model->is_file)
        snprintf(text, text_bytes, "%s", what_to_give);
    else if (described)
        snprintf(text, text_bytes,
                 "copy the damaged file again from where the container is whole, or convert the "
                 "checkpoint again into another directory");
    else if (model->is_part)
        snprintf(text, text_bytes,
                 "copy %s and what else is missing from where the container is whole, or convert "
                 "the checkpoint again into another directory",
                 MD_DESCRIPTION_NAME);
    else
        snprintf(text, text_bytes,
                 "download config.json again if it is damaged; only GLM-5 and its successors "
                 "(model_type glm_moe_dsa) run here");
}

static void advise_container(const app_model *model, char *text, size_t text_bytes)
{
    bool experts = model->experts_lacking > 0, rest = model->dense_lacking > 0;

    if (app_model_is_runnable(model))
        snprintf(text, text_bytes, "run it: moesaic run %s --prompt ...", model->path);
    else if (!experts)
        snprintf(text, text_bytes,
                 "copy %s from where the container is whole; as it is, this copy serves the expert "
                 "ranks of an mpirun job alone",
                 rest && model->lacks_tokenizer ? "dense.bin and " MD_TOKENIZER_NAME
                 : rest                         ? "dense.bin"
                                                : MD_TOKENIZER_NAME);
    else
        snprintf(text, text_bytes,
                 "copy the missing files from where the container is whole (moesaic status %s "
                 "names them): every process reads them all, but for dense.bin, " MD_TOKENIZER_NAME
                 " and the MTP layer's pack",
                 model->path);
}

const char *app_model_next(const app_model *model, char *text, size_t text_bytes)
{
    switch (model->state) {
    case APP_MODEL_ABSENT:
        if (model->denied[0] != '\0')
            advise_denied(model, text, text_bytes);
        else
            snprintf(text, text_bytes, "%s (moesaic downloads nothing itself)", what_to_give);
        break;
    case APP_MODEL_NOTHING:
        snprintf(text, text_bytes, "%s", what_to_give);
        break;
    case APP_MODEL_BROKEN:
        advise_broken(model, text, text_bytes);
        break;
    case APP_MODEL_CONFIG:
        snprintf(text, text_bytes,
                 "see what it needs (moesaic plan %s), then download the weights beside it",
                 model->path);
        break;
    case APP_MODEL_CHECKPOINT:
        advise_checkpoint(model, text, text_bytes);
        break;
    case APP_MODEL_UNFINISHED:
        advise_conversion(model, text, text_bytes);
        break;
    case APP_MODEL_CONTAINER:
        advise_container(model, text, text_bytes);
        break;
    }
    return text;
}

static const char *problem_of(const app_model *model, char *text, size_t text_bytes)
{
    switch (model->state) {
    case APP_MODEL_CONFIG:
        snprintf(text, text_bytes, "%s: expected a container, found a config.json without weights",
                 model->path);
        break;
    case APP_MODEL_CHECKPOINT:
        snprintf(text, text_bytes, "%s: expected a container, found %s that is not converted yet",
                 model->path, model->foreign ? "a model of the colibri engine" : "a checkpoint");
        break;
    case APP_MODEL_UNFINISHED:
        snprintf(text, text_bytes, "%s: an unfinished conversion, %llu of %llu records are done",
                 model->path, (unsigned long long)model->records_done,
                 (unsigned long long)model->records);
        break;
    default:
        return model->reason.text;
    }
    return text;
}

int app_model_refuse(const char *verb, const app_model *model, bool json)
{
    char problem[APP_NEXT_BYTES], next[APP_NEXT_BYTES];
    const char *error = problem_of(model, problem, sizeof(problem));

    app_model_next(model, next, sizeof(next));
    fprintf(stderr, "moesaic %s: %s\nmoesaic %s: %s\n", verb, error, verb, next);
    if (json)
        (void)app_json_print(verb, json_pack("{s:o, s:s, s:o}", "error", app_json_text(error),
                                             "state", app_model_state_name(model->state), "next",
                                             app_json_text(next)));
    return APP_EXIT_FAILED;
}
