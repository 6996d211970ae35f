/* verb_verify.c - a container against a reference run of another engine. */
#include "app/output.h"
#include "app/parse.h"
#include "app/session.h"
#include "app/verbs.h"
#include "app/verifier.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    app_model_options model;
    const char *reference;
    double tolerance;
    bool json;
} verify_options;

static const rt_opt table[] = {
    {.name = "reference",
     .key = 'r',
     .kind = RT_OPT_TEXT,
     .offset = offsetof(verify_options, reference),
     .arg = "DIR",
     .doc = "folder with reference.json and reference.safetensors (required)"},
    {.name = "tolerance",
     .kind = RT_OPT_FLOAT,
     .offset = offsetof(verify_options, tolerance),
     .arg = "X",
     .min = 0,
     .max = 1e6,
     .doc = "largest logit difference that passes"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(verify_options, json),
     .doc = "print one JSON object"},
    APP_MODEL_OPTION_ROWS(verify_options, model),
    {.name = NULL},
};

const rt_opt_spec app_spec_verify = {
    .verb = "verify",
    .args_doc = "MODEL",
    .doc =
        "Runs the prompts of a reference and compares logits, greedy tokens, chosen experts and "
        "chosen positions at every row. End-of-sequence ids are ignored.\v"
        "Exits 0 when the largest logit difference is within the tolerance and every greedy token, "
        "router set and index set is equal; 1 otherwise. Rows whose reference gap is below 1e-5 "
        "are counted apart. Expected to pass is only a container that was converted with --experts "
        "f32 --dense f32 --grid fine and the reference's --latent-eps, verified with --kv f32.",
    .table = table,
    .positional_min = 1,
    .positional_max = 1,
};

static bool all_equal(const app_count *count)
{
    return count->equal == count->total;
}

static bool passes(const app_verify_result *result, double tolerance)
{
    return result->max_logit_diff <= tolerance && all_equal(&result->greedy) &&
           all_equal(&result->router_sets) && all_equal(&result->index_sets);
}

static json_t *count_json(const app_count *count)
{
    return json_pack("{s:i, s:i, s:i}", "equal", (int)count->equal, "total", (int)count->total,
                     "exempt", (int)count->exempt);
}

static bool print_json(const app_verify_result *r, double tolerance)
{
    json_t *root = json_pack(
        "{s:i, s:i, s:i, s:i, s:f, s:f, s:o, s:o, s:o, s:o, s:i, s:f, s:s, s:b}", "positions_equal",
        (int)r->positions.equal, "positions_total", (int)r->positions.total, "greedy_equal",
        (int)r->greedy.equal, "greedy_total", (int)r->greedy.total, "max_logit_diff",
        r->max_logit_diff, "tolerance", tolerance, "positions", count_json(&r->positions), "greedy",
        count_json(&r->greedy), "router_sets", count_json(&r->router_sets), "index_sets",
        count_json(&r->index_sets), "exempt_rows", (int)r->exempt_rows, "max_hidden_diff",
        r->max_hidden_diff, "first_deviation", r->first_deviation, "pass", passes(r, tolerance));

    return app_json_print("verify", root);
}

static void print_count(const char *name, const app_count *count)
{
    printf("%-15s %u/%u equal", name, count->equal, count->total);
    if (count->exempt > 0) printf(", %u exempt", count->exempt);
    printf("\n");
}

static void print_text(const app_verify_result *r, double tolerance)
{
    print_count("positions", &r->positions);
    print_count("greedy", &r->greedy);
    print_count("router sets", &r->router_sets);
    print_count("index sets", &r->index_sets);
    printf("%-15s %.3g (prompt %u, row %u), tolerance %.3g\n", "max logit diff", r->max_logit_diff,
           r->worst_prompt, r->worst_row, tolerance);
    if (r->exempt_rows > 0)
        printf("%-15s %u rows have a reference gap below 1e-5\n", "exempt", r->exempt_rows);
    if (r->first_deviation[0] != '\0') printf("%-15s %s\n", "first deviation", r->first_deviation);
    printf("%s\n", passes(r, tolerance) ? "pass" : "FAIL");
}

/* Before the session ends: after a loss the launcher may kill this rank at any moment. */
static bool print(const app_verify_result *result, double tolerance, bool json)
{
    if (!json)
        print_text(result, tolerance);
    else if (!print_json(result, tolerance))
        return false;
    return app_stdout_finish("verify", APP_EXIT_OK) == APP_EXIT_OK;
}

/* The latent-norm eps is a choice of the conversion, not of the checkpoint: say which was made. */
static void say_latent_eps(const app_reference *reference, float container_eps)
{
    if (isnan(reference->latent_eps))
        fprintf(stderr,
                "verify: latent eps of the container %g; the reference does not say its own\n",
                (double)container_eps);
    else if ((float)reference->latent_eps != container_eps)
        fprintf(stderr,
                "verify: latent eps differs: container %g, reference %g; expect logit differences "
                "of 2e-4 to 6e-4 (convert with --latent-eps %g)\n",
                (double)container_eps, reference->latent_eps, reference->latent_eps);
    else
        fprintf(stderr, "verify: latent eps %g in both\n", reference->latent_eps);
}

/* Only then is the container the reference's own arithmetic, but for the order of sums. */
static void say_what_can_pass(const md_container *container, const verify_options *options)
{
    const md_container_info *info = md_container_get_info(container);

    if (info->expert_format == KN_F32 && info->dense_format == KN_F32 && info->grid_fine &&
        options->model.kv[0] == 'f')
        return;
    fprintf(stderr,
            "verify: experts are %s, dense weights %s, the grid %s, the KV cache %s: a pass is "
            "expected only of a container converted with --experts f32 --dense f32 --grid fine "
            "and the reference's --latent-eps, with --kv f32\n",
            kn_format_name(info->expert_format), kn_format_name(info->dense_format),
            info->grid_fine ? "fine" : "std", options->model.kv);
}

static rt_status verify_head(app_session *session, const verify_options *options,
                             app_verify_result *result, rt_err *err)
{
    const md_container *container = app_session_container(session);
    app_reference reference = {0};
    rt_status status = app_reference_open(options->reference, &reference, err);

    if (status != RT_OK) return status;
    say_latent_eps(&reference, md_container_get_info(container)->latent_eps);
    status = app_session_load(session, err);
    if (status == RT_OK)
        status = app_verify(app_session_engine(session), md_container_config(container), &reference,
                            app_session_chunk(session), options->tolerance, result, err);
    app_reference_close(&reference);
    return status;
}

static rt_status verify_node(app_session *session, rt_err *err)
{
    RT_TRY(app_session_load(session, err));
    return app_session_serve(session, err);
}

int app_verb_verify(int argc, char **argv)
{
    verify_options options = {.model = APP_MODEL_OPTIONS_DEFAULT, .tolerance = 1e-4};
    app_session_spec session_spec;
    app_session *session = NULL;
    app_verify_result result = {0};
    const char *positional[1];
    rt_err err = {0};
    rt_status status;
    bool head, printed = true;
    int code;

    if (!app_parse(&app_spec_verify, argc, argv, &options, positional, NULL, &code)) return code;
    if (options.reference == NULL) {
        return app_usage_error("verify", "--reference DIR is required");
    }
    session_spec = (app_session_spec){.model_dir = positional[0], .options = options.model};
    status = app_session_open(&session_spec, &session, &err);
    head = status != RT_OK || app_session_is_head(session);
    if (status == RT_OK)
        status = head ? verify_head(session, &options, &result, &err) : verify_node(session, &err);
    if (status == RT_OK && head) printed = print(&result, options.tolerance, options.json);
    if (status == RT_OK && head && !passes(&result, options.tolerance))
        say_what_can_pass(app_session_container(session), &options);
    /* Said before the session ends: after a loss the launcher may kill this rank at any moment. */
    if (status != RT_OK && err.text[0] != '\0') fprintf(stderr, "moesaic verify: %s\n", err.text);
    app_session_close(session, status, err.text);
    if (status != RT_OK) return APP_EXIT_FAILED;
    if (!head) return APP_EXIT_OK;
    return printed && passes(&result, options.tolerance) ? APP_EXIT_OK : APP_EXIT_FAILED;
}
