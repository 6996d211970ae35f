/* convert_output.c - runs a conversion or an import and says what it did. */
#include "app/convert_output.h"

#include "app/output.h"
#include "app/verbs.h"
#include "base/budget.h"
#include "base/team.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "15.2 MB" in a buffer of its own, for lines with several. */
typedef struct {
    char text[32];
} size_text;

static size_text size_of(uint64_t bytes)
{
    size_text out;

    rt_bytes_format(bytes, out.text, sizeof(out.text));
    return out;
}

typedef unsigned long long number; /* for %llu */

static void print_plan_records(FILE *out, const md_convert_spec *asked,
                               const md_convert_result *result)
{
    fprintf(out, "records    %llu: %llu to %s, %llu done already and read back",
            (number)result->records_total,
            (number)(result->records_total - result->records_resumed),
            asked->import ? "import" : "convert", (number)result->records_resumed);
    if (result->records_lost > 0)
        fprintf(out, ", %llu done but missing or damaged", (number)result->records_lost);
    fprintf(out, "; experts %s, dense %s, grid %s\n", kn_format_name(result->expert_format),
            kn_format_name(result->dense_format), asked->grid_fine ? "fine" : "std");
}

/* What an import keeps, and what it had to take from elsewhere. */
static void print_imported(FILE *out, const md_convert_spec *asked, const md_convert_result *result)
{
    const md_import_summary *sum = &result->imported;

    if (!asked->import) return;
    fprintf(out,
            "integers   %llu tensors of int8 rows, %llu of int4 rows, %llu of int4 groups; %llu of "
            "values: experts %s, dense %s\n",
            (number)sum->int8_rows, (number)sum->int4_rows, (number)sum->int4_groups,
            (number)sum->values, kn_format_name(result->expert_format),
            kn_format_name(result->dense_format));
    if (sum->indexer_elsewhere + sum->mtp_elsewhere > 0)
        fprintf(
            out,
            "elsewhere  %llu tensors of the indexer and %llu of the MTP layer from %s, matrices "
            "in %s\n",
            (number)sum->indexer_elsewhere, (number)sum->mtp_elsewhere, asked->indexer_from,
            kn_format_name(result->dense_format));
}

/* What a dry run has checked, and what the run would take. */
static void print_plan(FILE *out, const md_convert_spec *asked, const md_convert_result *result)
{
    fprintf(out,
            "source     %s: %llu shards, %llu tensors, %s: names, shapes and types are the "
            "model's (the weights are read when they are converted)\n",
            asked->source, (number)result->shards, (number)result->tensors,
            size_of(result->source_bytes).text);
    if (result->tensors_unused > 0)
        fprintf(out, "           %llu tensors are no part of this model and are left out\n",
                (number)result->tensors_unused);
    print_imported(out, asked, result);
    print_plan_records(out, asked, result);
    fprintf(out, "target     %s: %s of records when complete; can be written to\n", asked->target,
            size_of(result->target_bytes).text);
    fprintf(out, "disk       needs %s (with %s in reserve), free are %s: fits\n",
            size_of(result->needed_bytes).text, size_of(result->reserve_bytes).text,
            size_of(result->free_bytes).text);
    fprintf(out, "memory     %llu records at once, %s of buffers of the %s allowed\n",
            (number)result->records_at_once, size_of(result->buffer_bytes).text,
            size_of(result->memory_bytes).text);
    if (asked->consume)
        fprintf(out,
                "consume    deletes %llu shards, %s, each when all that is made of it is durable "
                "and read back; config, tokenizer and index stay\n",
                (number)result->shards_deletable, size_of(result->deletable_bytes).text);
    fprintf(out, "dry run    nothing was written\n");
}

static bool was_complete(const md_convert_result *result)
{
    return result->source_bytes == 0 && result->records_resumed == result->records_total;
}

/* --consume leaves shards that no record needs, and all of them when there was nothing to convert:
 * what a container was made of is deleted only by the run that has read all of it back. */
static void say_kept(const md_convert_spec *asked, const md_convert_result *result)
{
    if (result->shards_kept == 0) return;
    if (was_complete(result))
        fprintf(stderr,
                "%llu shards (%s) are kept in %s: --consume deletes only what it converts. To free "
                "the space, check the container (moesaic convert %s %s --verify-only), then delete "
                "them yourself\n",
                (number)result->shards_kept, size_of(result->kept_bytes).text, asked->source,
                asked->source, asked->target);
    else
        fprintf(stderr, "%llu shards (%s) are kept in %s: nothing of them is in the container\n",
                (number)result->shards_kept, size_of(result->kept_bytes).text, asked->source);
}

static void print_text(const md_convert_spec *asked, const md_convert_result *result)
{
    char id[65];

    md_model_id_format(result->model_id, id);
    if (asked->verify_only) {
        fprintf(stderr, "%llu records compared", (number)result->records_total);
        if (result->records_absent > 0)
            fprintf(stderr, " (%llu by the manifest alone)", (number)result->records_absent);
        fprintf(stderr, ", %llu differ; model id %s\n", (number)result->mismatches, id);
    } else if (was_complete(result)) {
        fprintf(
            stderr,
            "%s is complete: %s, model id %s; it was not compared with %s (--verify-only does)\n",
            asked->target, size_of(result->target_bytes).text, id, asked->source);
    } else {
        fprintf(stderr, "%s %s into %s: %llu records (%llu resumed",
                asked->import ? "imported" : "converted", size_of(result->source_bytes).text,
                size_of(result->target_bytes).text, (number)result->records_total,
                (number)result->records_resumed);
        if (result->records_lost > 0)
            fprintf(stderr, ", %llu converted again", (number)result->records_lost);
        fprintf(stderr, ") in %.1f s", result->seconds);
        if (asked->consume)
            fprintf(stderr, "; %llu shards deleted", (number)result->shards_deleted);
        fprintf(stderr, "; model id %s\n", id);
    }
    print_imported(stderr, asked, result);
}

static json_t *result_json(const md_convert_spec *asked, const md_convert_result *result)
{
    static const uint8_t no_id[32];
    char id[65] = "";

    if (memcmp(result->model_id, no_id, sizeof(no_id)) != 0)
        md_model_id_format(result->model_id, id);
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:b}", "model_id", id,
        "source_bytes", (json_int_t)result->source_bytes, "target_bytes",
        (json_int_t)result->target_bytes, "records_total", (json_int_t)result->records_total,
        "records_done", (json_int_t)result->records_done, "records_resumed",
        (json_int_t)result->records_resumed, "records_lost", (json_int_t)result->records_lost,
        "shards_deleted", (json_int_t)result->shards_deleted, "shards_kept",
        (json_int_t)result->shards_kept, "seconds", result->seconds, "mismatches",
        (json_int_t)result->mismatches, "records_absent", (json_int_t)result->records_absent,
        "dry_run", (int)asked->dry_run);
}

/* The numbers of the plan: what print_plan prints. */
static json_t *plan_json(const md_convert_spec *asked, const md_convert_result *result)
{
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "shards", (json_int_t)result->shards,
        "tensors", (json_int_t)result->tensors, "tensors_unused",
        (json_int_t)result->tensors_unused, "free_bytes", (json_int_t)result->free_bytes,
        "needed_bytes", (json_int_t)result->needed_bytes, "reserve_bytes",
        (json_int_t)result->reserve_bytes, "records_at_once", (json_int_t)result->records_at_once,
        "buffer_bytes", (json_int_t)result->buffer_bytes, "memory_bytes",
        (json_int_t)result->memory_bytes);

    if (root != NULL && asked->consume)
        (void)json_object_set_new(root, "consume",
                                  json_pack("{s:I, s:I}", "shards",
                                            (json_int_t)result->shards_deletable, "bytes",
                                            (json_int_t)result->deletable_bytes));
    return root;
}

static json_t *imported_json(const md_convert_spec *asked, const md_convert_result *result)
{
    const md_import_summary *sum = &result->imported;

    json_t *from = asked->indexer_from != NULL ? app_json_text(asked->indexer_from) : json_null();

    return json_pack(
        "{s:{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}}", "import", "expert_format",
        kn_format_name(result->expert_format), "dense_format", kn_format_name(result->dense_format),
        "int8_rows", (json_int_t)sum->int8_rows, "int4_rows", (json_int_t)sum->int4_rows,
        "int4_groups", (json_int_t)sum->int4_groups, "values", (json_int_t)sum->values, "expanded",
        (json_int_t)sum->expanded, "indexer_elsewhere", (json_int_t)sum->indexer_elsewhere,
        "mtp_elsewhere", (json_int_t)sum->mtp_elsewhere, "indexer_from", from);
}

static int print_json(const char *verb, const md_convert_spec *asked,
                      const md_convert_result *result)
{
    json_t *root = result_json(asked, result), *plan = plan_json(asked, result);

    if (root != NULL && (plan == NULL || json_object_update(root, plan) != 0)) {
        json_decref(root);
        root = NULL;
    }
    json_decref(plan);
    if (root != NULL && asked->import) {
        json_t *imported = imported_json(asked, result);

        if (imported == NULL || json_object_update(root, imported) != 0) {
            json_decref(root);
            root = NULL;
        }
        json_decref(imported);
    }
    return app_json_print(verb, root) ? APP_EXIT_OK : APP_EXIT_FAILED;
}

/* Errors quote names from files, which must not write to the terminal as they like. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

static md_convert_spec with_options(const md_convert_spec *spec, const app_convert_options *options)
{
    md_convert_spec out = *spec;

    out.grid_fine = strcmp(options->grid, "fine") == 0;
    out.grid_any = options->verify_only && !options->grid_given;
    out.latent_eps = (float)options->latent_eps;
    out.dry_run = options->dry_run;
    out.verify_only = options->verify_only;
    out.memory_bytes = options->memory_bytes;
    return out;
}

int app_convert_run(const char *verb, const app_convert_options *options,
                    const md_convert_spec *spec)
{
    const md_convert_spec asked = with_options(spec, options);
    rt_team_spec team_spec = {.threads = options->threads > 0 ? (uint32_t)options->threads
                                                              : rt_cpus_usable()};
    md_convert_result result;
    rt_team *team = NULL;
    rt_err err = {0};
    rt_status status = rt_team_create(&team_spec, &team, &err);

    if (status == RT_OK) status = md_convert(&asked, team, &result, &err);
    rt_team_free(team);
    if (status != RT_OK) {
        bool resumable = status == RT_ECANCELED && !asked.dry_run && !asked.verify_only;
        char text[sizeof(err.text) + 64];

        make_printable(err.text);
        snprintf(text, sizeof(text), "%s%s", err.text,
                 resumable ? ": what is done is kept, run again to resume" : "");
        return app_failed(verb, options->json, text);
    }
    if (asked.dry_run && result.source_bytes > 0)
        print_plan(options->json ? stderr : stdout, &asked, &result);
    else
        print_text(&asked, &result);
    if (asked.consume) say_kept(&asked, &result);
    if (options->json && print_json(verb, &asked, &result) != APP_EXIT_OK) return APP_EXIT_FAILED;
    return result.mismatches == 0 ? APP_EXIT_OK : APP_EXIT_FAILED;
}
