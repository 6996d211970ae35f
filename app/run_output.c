/* run_output.c - stdout is written with write(2) at once for every token: a stream is read by eye. */
#include "app/run_output.h"

#include "app/measure.h"
#include "model/text/stream.h"
#include "model/text/text_buffer.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THOUGHT_END "</think>"

struct app_output {
    app_output_mode mode;
    bool thinking, quiet, sampled;
    uint64_t seed;
    md_stream *stream;   /* owned */
    md_text_buffer text; /* JSON mode: all of it */
    md_ids ids;
    char last;       /* last byte that was shown */
    bool stop_text;  /* --stop was met */
    bool closed;     /* stdout's reader went away */
    int write_errno; /* another failure of stdout */
    bool out_of_memory;
};

typedef struct {
    double prefill_s, decode_s, prefill_rate, decode_rate, wait_share, hit_share;
    double pinned_share, ahead_share; /* of wants; of early reads, those of use. As hit_share, -1:
                                         unknown */
    const char *look_ahead;           /* "on", "off", "trying" */
    double bytes_per_token;
    uint64_t remote_compute_ns, remote_wait_ns;
    uint32_t slowest;
    bool has_slowest;
} run_timings;

static const char *const markers[] = {"<think>", THOUGHT_END};

rt_status app_output_create(const app_output_spec *spec, app_output **out, rt_err *err)
{
    uint32_t id;
    md_stream_spec stream = {.tokenizer = spec->tokenizer,
                             .skip_special = true,
                             .stops = spec->stop,
                             .stop_count = spec->stop == NULL ? 0 : 1};
    app_output *output = calloc(1, sizeof(*output));
    rt_status status;

    if (output == NULL) return rt_fail(err, RT_ENOMEM, "output");
    for (size_t i = 0; i < sizeof(markers) / sizeof(markers[0]); i++)
        if (md_tokenizer_find(spec->tokenizer, (md_text){markers[i], strlen(markers[i])}, &id))
            stream.shown[stream.shown_count++] = id;
    output->mode = spec->mode;
    output->thinking = spec->thinking;
    output->quiet = spec->quiet;
    output->sampled = spec->sampled;
    output->seed = spec->seed;
    output->last = '\n';
    status = md_stream_create(&stream, &output->stream, err);
    if (status != RT_OK) {
        app_output_free(output);
        return status;
    }
    *out = output;
    return RT_OK;
}

void app_output_free(app_output *output)
{
    if (output == NULL) return;
    md_stream_free(output->stream);
    md_text_buffer_fini(&output->text);
    md_ids_fini(&output->ids);
    free(output);
}

/* false when nothing more can be shown. */
static bool show(app_output *output, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, count);

        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            if (errno == EPIPE)
                output->closed = true;
            else
                output->write_errno = errno;
            return false;
        }
        output->last = bytes[written - 1];
        bytes += written;
        count -= (size_t)written;
    }
    return true;
}

static bool show_text(app_output *output, md_text text)
{
    if (output->mode == APP_OUTPUT_TEXT) return show(output, text.bytes, text.count);
    if (output->mode == APP_OUTPUT_JSON && text.count > 0 &&
        md_text_buffer_append(&output->text, text.bytes, text.count, NULL) != RT_OK) {
        output->out_of_memory = true;
        return false;
    }
    return true;
}

/* TOKEN:12 an id -> text on stdout. */
bool app_output_token(void *context, uint32_t id)
{
    app_output *output = context;
    md_text text;
    char number[16];

    if (md_ids_push(&output->ids, id, NULL) != RT_OK) {
        output->out_of_memory = true;
        return false;
    }
    if (output->mode == APP_OUTPUT_IDS) {
        int length = snprintf(number, sizeof(number), output->ids.count == 1 ? "%u" : " %u", id);

        if (!show(output, number, (size_t)length)) return false;
    }
    output->stop_text = !md_stream_feed(output->stream, id, &text);
    return show_text(output, text) && !output->stop_text;
}

static const char *look_ahead_of(app_session *session)
{
    an_look_ahead_trial trial = an_engine_get_look_ahead(app_session_engine(session));

    if (trial.mode == AN_LOOK_AHEAD_AUTO && trial.trying) return "trying";
    return an_look_ahead_wants(&trial) ? "on" : "off";
}

/* ask: the other nodes for their counters too; after a loss they may not answer. */
static run_timings timings_of(app_session *session, const app_generation *generation, bool ask)
{
    an_engine_stats stats = an_engine_get_stats(app_session_engine(session));
    app_expert_stats experts = {0};
    run_timings t = {.prefill_s = (double)generation->prefill_ns * 1e-9,
                     .decode_s = (double)generation->decode_ns * 1e-9,
                     .hit_share = -1,
                     .pinned_share = -1,
                     .ahead_share = -1,
                     .look_ahead = look_ahead_of(session)};
    uint64_t worst = 0;

    if (t.prefill_s > 0) t.prefill_rate = generation->prefilled / t.prefill_s;
    if (t.decode_s > 0) t.decode_rate = generation->decode_steps / t.decode_s;
    if (stats.total_ns > 0) t.wait_share = (double)stats.wait_ns / (double)stats.total_ns;
    if (stats.rows > 0)
        t.bytes_per_token = (double)(stats.sent_bytes + stats.received_bytes) / (double)stats.rows;
    for (uint32_t n = 0; n < stats.nodes && n < AN_NODE_STATS_MAX; n++) {
        if (stats.node_wait_ns[n] <= worst) continue;
        worst = stats.node_wait_ns[n];
        t.slowest = n;
        t.has_slowest = true;
    }
    if (ask && app_session_expert_stats(session, &experts, NULL) == RT_OK) {
        t.remote_compute_ns = experts.remote_compute_ns;
        t.remote_wait_ns = experts.remote_wait_ns;
        if (experts.hits + experts.reads > 0)
            t.hit_share = (double)experts.hits / (double)(experts.hits + experts.reads);
        if (t.hit_share >= 0)
            t.pinned_share = (double)experts.hits_pinned / (double)(experts.hits + experts.reads);
        if (experts.ahead_reads > 0)
            t.ahead_share = (double)experts.ahead_useful / (double)experts.ahead_reads;
    }
    return t;
}

/* With the rate of this machine's memory, measured now: only figures of one run can be compared. */
static app_profile_report profile_of(app_session *session, const app_generation *generation,
                                     const run_timings *t)
{
    app_profile_report report = {.prefill = generation->prefill_profile,
                                 .decode = generation->decode_profile,
                                 .threads = rt_team_size(app_session_team(session)),
                                 .remote_nodes = app_session_nodes(session) - 1,
                                 .remote_compute_ns = t->remote_compute_ns,
                                 .remote_disk_ns = t->remote_wait_ns};

    if (app_measure_ram(rt_team_size(app_session_team(session)), &report.read_bytes_s, NULL) !=
        RT_OK)
        report.read_bytes_s = 0;
    return report;
}

/* The whole text in two: the thought, when there is one, and what follows its end. */
static bool add_parts(const app_output *output, json_t *root)
{
    const char *text = output->text.bytes == NULL ? "" : output->text.bytes;
    const char *end = output->text.count == 0
                          ? NULL
                          : memmem(text, output->text.count, THOUGHT_END, sizeof(THOUGHT_END) - 1);
    size_t thought = end != NULL ? (size_t)(end - text) : output->text.count, from = 0;

    if (output->thinking) from = end != NULL ? thought + sizeof(THOUGHT_END) - 1 : thought;
    return json_object_set_new(root, "text", json_stringn(text, output->text.count)) == 0 &&
           json_object_set_new(root, "reasoning",
                               output->thinking ? json_stringn(text, thought) : json_null()) == 0 &&
           json_object_set_new(root, "content",
                               json_stringn(text + from, output->text.count - from)) == 0;
}

static json_t *stop_reason(const app_generation *generation)
{
    switch (generation->finish) {
    case APP_FINISH_EOS:
        return json_integer(generation->eos);
    case APP_FINISH_STOP_TEXT:
        return json_string("stop text");
    case APP_FINISH_LENGTH:
        break;
    }
    return json_string("length");
}

static rt_status print_json(app_output *output, app_session *session,
                            const app_generation *generation, const run_timings *t,
                            const app_profile_report *profile, uint32_t prompt_count, rt_err *err)
{
    const md_container *container = app_session_container(session);
    json_t *ids = json_array();
    json_t *root;
    char model[65], *line = NULL;
    bool shown;

    for (size_t i = 0; i < output->ids.count; i++)
        json_array_append_new(ids, json_integer(output->ids.ids[i]));
    md_model_id_format(md_container_get_info(container)->model_id, model);
    root = json_pack("{s:s, s:o, s:o, s:s, s:o, s:i, s:{s:f, s:f, s:i, s:f, s:f, s:f, s:o, s:f, "
                     "s:o, s:o, s:s, s:o}}",
                     "model", model, "seed",
                     output->sampled ? json_integer((json_int_t)output->seed) : json_null(), "ids",
                     ids, "finish", generation->finish == APP_FINISH_LENGTH ? "length" : "stop",
                     "stop_reason", stop_reason(generation), "prompt_tokens", (int)prompt_count,
                     "timings", "prefill_s", t->prefill_s, "prefill_tok_s", t->prefill_rate,
                     "decode_steps", (int)generation->decode_steps, "decode_s", t->decode_s,
                     "decode_tok_s", t->decode_rate, "wait_share", t->wait_share, "slowest_node",
                     t->has_slowest && app_session_nodes(session) > 1
                         ? json_string(app_session_node_name(session, t->slowest))
                         : json_null(),
                     "bytes_per_token", t->bytes_per_token, "ram_hit_share",
                     t->hit_share >= 0 ? json_real(t->hit_share) : json_null(), "pinned_hit_share",
                     t->pinned_share >= 0 ? json_real(t->pinned_share) : json_null(), "look_ahead",
                     t->look_ahead, "ahead_useful_share",
                     t->ahead_share >= 0 ? json_real(t->ahead_share) : json_null());
    if (root != NULL && profile != NULL)
        json_object_set_new(root, "profile", app_profile_json(profile));
    if (root != NULL && add_parts(output, root)) line = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (line == NULL) return rt_fail(err, RT_ENOMEM, "the JSON of %zu tokens", output->ids.count);
    shown = show(output, line, strlen(line));
    free(line);
    if (!shown && !output->closed)
        return rt_fail(err, RT_EIO, "stdout: %s", strerror(output->write_errno));
    return RT_OK;
}

/* docs/operations.md explains every figure. */
static void closing_line(app_session *session, const app_generation *generation,
                         const run_timings *t, uint32_t prompt_count, bool complete)
{
    fprintf(stderr, "moesaic: %sprefill ", complete ? "" : "INCOMPLETE, ");
    if (generation->prefilled < prompt_count) fprintf(stderr, "%u of ", generation->prefilled);
    fprintf(stderr, "%u token%s", prompt_count, prompt_count == 1 ? "" : "s");
    if (t->prefill_rate > 0) fprintf(stderr, " %.1f tok/s", t->prefill_rate);
    fprintf(stderr, ", decode %u token%s", generation->generated,
            generation->generated == 1 ? "" : "s");
    if (t->decode_rate > 0) fprintf(stderr, " %.1f tok/s", t->decode_rate);
    if (app_session_nodes(session) == 1)
        fprintf(stderr, ", experts took %.0f %% of the time", 100 * t->wait_share);
    else
        fprintf(stderr, ", waited %.0f %% for experts%s%s", 100 * t->wait_share,
                t->has_slowest ? ", slowest " : "",
                t->has_slowest ? app_session_node_name(session, t->slowest) : "");
    fprintf(stderr, ", %.1f kB per token", t->bytes_per_token / 1e3);
    if (t->hit_share >= 0) fprintf(stderr, ", %.1f %% of experts from RAM", 100 * t->hit_share);
    if (t->hit_share < 1 && t->pinned_share > 0)
        fprintf(stderr, " (%.1f %% pinned)", 100 * t->pinned_share);
    if (t->ahead_share >= 0)
        fprintf(stderr, ", look-ahead %s (%.0f %% of its reads used)", t->look_ahead,
                100 * t->ahead_share);
    fprintf(stderr, "\n");
}

rt_status app_output_finish(app_output *output, app_session *session, app_generation *generation,
                            uint32_t prompt_count, rt_status status, rt_err *err)
{
    bool profiled = app_session_profile(session) != NULL;
    app_profile_report profile = {0};
    run_timings timings;
    md_text rest;

    if (output->closed) return RT_OK;
    if (output->write_errno != 0)
        return rt_fail(err, RT_EIO, "stdout: %s", strerror(output->write_errno));
    if (output->out_of_memory)
        return rt_fail(err, RT_ENOMEM, "the text of %u tokens", generation->generated);
    if (status == RT_OK && !output->stop_text) {
        if (!md_stream_finish(output->stream, &rest)) generation->finish = APP_FINISH_STOP_TEXT;
        show_text(output, rest);
    }
    timings = timings_of(session, generation, status == RT_OK);
    if (profiled) profile = profile_of(session, generation, &timings);
    if (status == RT_OK && output->mode == APP_OUTPUT_JSON)
        status = print_json(output, session, generation, &timings, profiled ? &profile : NULL,
                            prompt_count, err);
    if (output->last != '\n') show(output, "\n", 1);
    if (output->closed) return RT_OK;
    if (output->write_errno != 0)
        return rt_fail(err, RT_EIO, "stdout: %s", strerror(output->write_errno));
    if (profiled) app_profile_print(&profile, stderr);
    if (!output->quiet || status != RT_OK)
        closing_line(session, generation, &timings, prompt_count, status == RT_OK);
    return status;
}
