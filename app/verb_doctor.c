/* verb_doctor.c - measures and judges this machine, and a model on it. */
#include "app/doctor.h"
#include "app/model_advice.h"
#include "app/output.h"
#include "app/parse.h"
#include "app/sizing.h"
#include "app/verbs.h"
#include "base/check.h"
#include "kernels/select.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    app_model_options session;
    bool deep, json;
} doctor_options;

static const rt_opt table[] = {
    {.name = "deep",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(doctor_options, deep),
     .doc = "read every record that is here and check its hash"},
    {.name = "ram",
     .kind = RT_OPT_BYTES,
     .offset = offsetof(doctor_options, session.ram_bytes),
     .arg = "SIZE",
     .doc = "memory that a run would be given; default: what is available"},
    {.name = "ctx-size",
     .key = 'c',
     .kind = RT_OPT_UINT,
     .offset = offsetof(doctor_options, session.context),
     .arg = "C",
     .doc = "context that a run would be given; 0: what fits, up to 32768"},
    {.name = "heat",
     .kind = RT_OPT_TEXT,
     .offset = offsetof(doctor_options, session.heat),
     .arg = "FILE",
     .doc = "heat file that a run would be given; \"none\": do not look at any; default: heat.bin "
            "in the folder MODEL"},
    {.name = "threads",
     .key = 't',
     .kind = RT_OPT_UINT,
     .offset = offsetof(doctor_options, session.threads),
     .arg = "T",
     .min = 0,
     .max = 1024,
     .doc = "threads of a process; 0: the usable cores"},
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(doctor_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_doctor = {
    .verb = "doctor",
    .args_doc = "[MODEL]",
    .doc = "Checks this machine and, when given, the model in the folder MODEL on it: one row a "
           "check, with what to do where something is not well. Without MODEL the disk of the "
           "current folder is measured by a file of up to 256 MiB that never has a name.\v"
           "Exits 0 when all is well, 3 when there are warnings, 1 when something will not work. "
           "Takes a few seconds; --deep as long as reading the whole container.",
    .table = table,
    .positional_min = 0,
    .positional_max = 1,
};

static const char *const level_names[] = {"ok", "warn", "fail"};

void app_doctor_row(app_doctor *doctor, app_row_level level, const char *name, const char *advice,
                    const char *fmt, ...)
{
    char found[APP_NEXT_BYTES];
    va_list args;
    json_t *row;

    RT_ASSERT((unsigned)level < sizeof(level_names) / sizeof(level_names[0]));
    RT_ASSERT(level == APP_ROW_OK || advice != NULL);
    va_start(args, fmt);
    vsnprintf(found, sizeof(found), fmt, args);
    va_end(args);
    doctor->count[level]++;
    row = json_pack("{s:s, s:s, s:o}", "name", name, "level", level_names[level], "found",
                    app_json_text(found));
    if (row != NULL && advice != NULL)
        (void)json_object_set_new(row, "advice", app_json_text(advice));
    (void)json_array_append_new(doctor->rows, row);
    if (doctor->json) return;
    printf("[%s]%*s %-11s %s\n", level_names[level], level == APP_ROW_OK ? 2 : 0, "", name, found);
    if (advice != NULL) printf("%19s-> %s\n", "", advice);
    (void)app_stdout_finish("doctor", APP_EXIT_OK); /* rows are read as they come */
}

static int code_of(const app_doctor *doctor)
{
    if (doctor->count[APP_ROW_FAIL] > 0) return APP_EXIT_FAILED;
    return doctor->count[APP_ROW_WARN] > 0 ? APP_EXIT_DEGRADED : APP_EXIT_OK;
}

static bool print_end(const app_doctor *doctor)
{
    static const char *const verdicts[] = {"ok", "failed", "usage", "degraded"};
    json_t *root;

    if (!doctor->json) {
        printf("%u ok, %u warning%s, %u failure%s\n", doctor->count[APP_ROW_OK],
               doctor->count[APP_ROW_WARN], doctor->count[APP_ROW_WARN] == 1 ? "" : "s",
               doctor->count[APP_ROW_FAIL], doctor->count[APP_ROW_FAIL] == 1 ? "" : "s");
        return true;
    }
    root = json_pack("{s:s, s:O}", "verdict", verdicts[code_of(doctor)], "rows", doctor->rows);
    return app_json_print("doctor", root);
}

static rt_status examine(app_doctor *doctor, const char *path, rt_err *err)
{
    app_model model = {0};
    rt_status status = RT_OK;

    app_doctor_machine(doctor);
    if (path == NULL) {
        app_doctor_place(doctor, ".");
    } else {
        status = app_model_look(path, KN_Q4, KN_Q8, &model, err);
        if (status == RT_OK) app_doctor_model(doctor, &model);
        app_model_free(&model);
    }
    if (status == RT_OK) app_doctor_libraries(doctor);
    return status;
}

int app_verb_doctor(int argc, char **argv)
{
    doctor_options options = {.session = APP_MODEL_OPTIONS_DEFAULT};
    rt_team_spec team_spec;
    const char *positional[1];
    uint32_t positional_count;
    app_doctor doctor = {0};
    rt_err err = {0};
    rt_status status;
    int code;

    if (!app_parse(&app_spec_doctor, argc, argv, &options, positional, &positional_count, &code))
        return code;
    if (options.deep && positional_count == 0)
        return app_usage_error("doctor", "--deep checks a model: expected MODEL");
    doctor = (app_doctor){.json = options.json, .deep = options.deep, .session = options.session};
    doctor.rows = json_array();
    team_spec = (rt_team_spec){.threads = app_threads(&options.session, 1)};
    status = doctor.rows == NULL ? rt_fail(&err, RT_ENOMEM, "out of memory") : RT_OK;
    if (status == RT_OK) status = kn_select("auto", &err);
    if (status == RT_OK) status = rt_team_create(&team_spec, &doctor.team, &err);
    if (status == RT_OK)
        status = examine(&doctor, positional_count > 0 ? positional[0] : NULL, &err);
    code = status == RT_OK ? code_of(&doctor) : APP_EXIT_FAILED;
    if (status != RT_OK)
        (void)app_failed("doctor", options.json, err.text);
    else if (!print_end(&doctor))
        code = APP_EXIT_FAILED;
    rt_team_free(doctor.team);
    json_decref(doctor.rows);
    return code;
}
