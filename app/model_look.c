/* model_look.c - looks at a path and says what of a model is there. */
#include "app/model_look.h"

#include "base/check.h"
#include "base/file.h"
#include "model/container/description.h"
#include "model/convert/import.h"
#include "model/convert/source_size.h"
#include "model/convert/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 16 << 20, INDEX_BYTES_MAX = 256 << 20 };

static const char index_name[] = "model.safetensors.index.json";

static const char *const state_names[] = {
    [APP_MODEL_ABSENT] = "absent",         [APP_MODEL_NOTHING] = "nothing",
    [APP_MODEL_BROKEN] = "broken",         [APP_MODEL_CONFIG] = "config",
    [APP_MODEL_CHECKPOINT] = "checkpoint", [APP_MODEL_UNFINISHED] = "unfinished conversion",
    [APP_MODEL_CONTAINER] = "container",
};

const char *app_model_state_name(app_model_state state)
{
    RT_ASSERT((unsigned)state < sizeof(state_names) / sizeof(state_names[0]));
    return state_names[state];
}

void app_model_free(app_model *model)
{
    md_container_close(model->container);
    free(model->path);
    free(model->dir);
    *model = (app_model){0};
}

static bool has(const app_model *model, const char *name)
{
    char *path = rt_path_join(model->dir, name);
    bool there = path != NULL && access(path, F_OK) == 0;

    free(path);
    return there;
}

/* ---- sizes ---- */

static rt_status add_sizes(app_model *model, rt_err *err)
{
    md_plan plan;

    RT_TRY(md_plan_create(md_container_config(model->container),
                          md_container_get_info(model->container), &plan, err));
    model->records = plan.count;
    model->bytes = plan.target_bytes;
    model->disk_bytes = md_target_file_bytes(&plan, true);
    md_plan_free(&plan);
    for (uint64_t i = 0; i < model->records; i++) {
        md_record record;

        md_container_record_at(model->container, i, &record);
        if (record.fd >= 0) {
            model->records_held++;
            model->held_bytes += record.bytes;
        } else if (record.key.kind != MD_EXPERT) {
            model->dense_lacking++;
        } else if (record.key.layer < md_container_config(model->container)->layers) {
            model->experts_lacking++;
        }
    }
    return RT_OK;
}

/* ---- container ---- */

static rt_status look_at_container(app_model *model, rt_err *err)
{
    rt_status status = md_container_open(model->dir, &model->container, &model->reason);

    if (status == RT_ENOMEM) return rt_fail(err, RT_ENOMEM, "%s", model->reason.text);
    model->state = status == RT_OK ? APP_MODEL_CONTAINER : APP_MODEL_BROKEN;
    model->lacks_tokenizer = !has(model, MD_TOKENIZER_NAME);
    return status == RT_OK ? add_sizes(model, err) : RT_OK;
}

bool app_model_is_runnable(const app_model *model)
{
    return model->state == APP_MODEL_CONTAINER && model->dense_lacking == 0 &&
           model->experts_lacking == 0 && !model->lacks_tokenizer;
}

rt_status app_model_each_missing(const app_model *model,
                                 void (*tell)(void *context, const char *pack, uint64_t records),
                                 void *context)
{
    uint32_t packs = 1 + md_config_layers_total(md_container_config(model->container));
    uint64_t *lacking = calloc(packs, sizeof(*lacking)); /* dense.bin, then by layer */

    if (lacking == NULL) return RT_ENOMEM;
    for (uint64_t i = 0; i < md_container_record_count(model->container); i++) {
        md_record record;

        md_container_record_at(model->container, i, &record);
        if (record.fd < 0) lacking[record.key.kind == MD_EXPERT ? 1 + record.key.layer : 0]++;
    }
    for (uint32_t i = 0; i < packs; i++) {
        md_key key = {.kind = i == 0 ? MD_EMBED : MD_EXPERT,
                      .layer = (uint16_t)(i == 0 ? MD_NO_LAYER : i - 1)};
        char name[32];

        if (lacking[i] == 0) continue;
        md_pack_name(key, name, sizeof(name));
        tell(context, name, lacking[i]);
    }
    free(lacking);
    return RT_OK;
}

/* ---- unfinished conversion ---- */

/* A lock held by another process. Ours is given back at once. */
static bool is_locked(const app_model *model)
{
    char *path = rt_path_join(model->dir, MD_LEDGER_NAME);
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool locked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;

    if (fd >= 0) (void)close(fd);
    free(path);
    return locked;
}

/* Packs are made at their final size, sparse. */
static uint64_t pack_bytes(const app_model *model)
{
    static const char suffix[] = ".bin";
    DIR *dir = opendir(model->dir);
    const struct dirent *entry;
    uint64_t sum = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        size_t length = strlen(entry->d_name);
        char *path = rt_path_join(model->dir, entry->d_name);
        struct stat info;

        if (length > sizeof(suffix) - 1 &&
            strcmp(entry->d_name + length - (sizeof(suffix) - 1), suffix) == 0 && path != NULL &&
            stat(path, &info) == 0 && S_ISREG(info.st_mode))
            sum += (uint64_t)info.st_size;
        free(path);
    }
    if (dir != NULL) (void)closedir(dir);
    return sum;
}

static rt_status look_at_conversion(app_model *model, rt_err *err)
{
    const md_ledger_entry *entries;
    const md_source_shard *shards;
    md_ledger *ledger = NULL;
    rt_status status = md_ledger_open(model->dir, true, &ledger, &model->reason);
    uint32_t shard_count;

    if (status == RT_ENOMEM) return rt_fail(err, RT_ENOMEM, "%s", model->reason.text);
    model->state = status == RT_OK ? APP_MODEL_UNFINISHED : APP_MODEL_BROKEN;
    model->ledger_damaged = status != RT_OK;
    if (status != RT_OK || ledger == NULL) return RT_OK; /* NULL: begun, nothing written */
    model->conversion = *md_ledger_get_options(ledger);
    model->records = model->conversion.records;
    entries = md_ledger_entries(ledger, &model->records_done);
    for (uint64_t i = 0; i < model->records_done; i++)
        model->done_bytes += entries[i].bytes;
    shards = md_ledger_shards(ledger, &shard_count);
    if (shard_count > 0)
        snprintf(model->first_shard, sizeof(model->first_shard), "%s", shards[0].name);
    for (uint32_t i = 0; i < shard_count; i++)
        model->from_other |= strncmp(shards[i].name, MD_SOURCE_OTHER_PREFIX,
                                     sizeof(MD_SOURCE_OTHER_PREFIX) - 1) == 0;
    model->shards = shard_count;
    model->disk_bytes = pack_bytes(model);
    model->running = is_locked(model);
    md_ledger_close(ledger);
    return RT_OK;
}

/* ---- config and checkpoint ---- */

static void read_quant_method(app_model *model, const char *json, size_t bytes)
{
    json_t *root = json_loadb(json, bytes, 0, NULL);
    const char *method = json_string_value(
        json_object_get(json_object_get(root, "quantization_config"), "quant_method"));

    if (method != NULL) snprintf(model->quant_method, sizeof(model->quant_method), "%s", method);
    json_decref(root);
}

/* The path says which config.json; a file of another name is not to be called so. */
static void name_config(app_model *model, const char *path)
{
    static const char name[] = "config.json: ";
    const char *text = model->reason.text;

    if (strncmp(text, name, sizeof(name) - 1) == 0) text += sizeof(name) - 1;
    (void)rt_fail(&model->reason, model->reason.status, "%s: %s", path, text);
}

/* The config as a blueprint. Its faults make the model BROKEN. */
static rt_status read_config(app_model *model, const char *path, const kn_format formats[2],
                             rt_err *err)
{
    md_container_info info;
    md_source_size source;
    md_config config;
    char *json = NULL;
    size_t bytes = 0;
    rt_status status = rt_file_read(path, CONFIG_BYTES_MAX, &json, &bytes, &model->reason);

    if (status == RT_OK) {
        status = md_config_parse(json, bytes, &config, &model->reason);
        if (status != RT_OK) name_config(model, path);
        if (status == RT_OK) read_quant_method(model, json, bytes);
    }
    free(json);
    if (status == RT_ENOMEM) return rt_fail(err, RT_ENOMEM, "%s", model->reason.text);
    model->state = status == RT_OK ? APP_MODEL_CONFIG : APP_MODEL_BROKEN;
    if (status != RT_OK) return RT_OK;
    RT_TRY(md_source_size_of(&config, strcmp(model->quant_method, "fp8") == 0, &source, err));
    model->source_bytes = source.bytes;
    model->source_tensors = source.tensors;
    md_container_info_init(&info, &config, formats[0], formats[1]);
    RT_TRY(md_container_blueprint(model->dir, &config, &info, &model->container, err));
    return add_sizes(model, err);
}

static void count_shard(app_model *model, const char *name)
{
    char *path = rt_path_join(model->dir, name);
    struct stat info;

    model->shards++;
    if (path != NULL && stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        model->shard_bytes += (uint64_t)info.st_size;
    } else {
        if (model->shards_missing++ == 0)
            snprintf(model->first_missing, sizeof(model->first_missing), "%s", name);
    }
    free(path);
}

static bool is_shard_name(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);

    return length > sizeof(suffix) - 1 && name[0] != '.' && strchr(name, '/') == NULL &&
           strcmp(name + length - (sizeof(suffix) - 1), suffix) == 0;
}

/* Every file name of the index once: it names them per tensor. */
static rt_status count_indexed(app_model *model, json_t *index, rt_err *err)
{
    json_t *seen = json_object(), *file;
    const char *tensor;

    if (seen == NULL) return rt_fail(err, RT_ENOMEM, "%s", index_name);
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file)
    {
        const char *name = json_string_value(file);

        if (name == NULL || !is_shard_name(name) || json_object_get(seen, name) != NULL) continue;
        if (json_object_set_new(seen, name, json_true()) != 0) {
            json_decref(seen);
            return rt_fail(err, RT_ENOMEM, "%s", index_name);
        }
        count_shard(model, name);
    }
    json_decref(seen);
    model->shard_bytes_index = (uint64_t)json_integer_value(
        json_object_get(json_object_get(index, "metadata"), "total_size"));
    return RT_OK;
}

static void count_listed(app_model *model, const char *begins)
{
    DIR *dir = opendir(model->dir);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (strncmp(entry->d_name, begins, strlen(begins)) == 0 && is_shard_name(entry->d_name))
            count_shard(model, entry->d_name);
    if (dir != NULL) (void)closedir(dir);
}

/* The blueprint of what import would make, and what it would say against it. */
static rt_status look_at_foreign(app_model *model, rt_err *err)
{
    const md_config config = *md_container_config(model->container);
    md_container_info info;
    md_container *other = NULL;
    md_import found;
    rt_err problem = {0};
    rt_status status = md_import_look(model->dir, NULL, &config, &found, &problem);

    model->foreign = true;
    model->source_bytes = model->shard_bytes;
    if (status == RT_ENOMEM) return rt_fail(err, RT_ENOMEM, "%s", problem.text);
    if (status != RT_OK) {
        snprintf(model->import_problem, sizeof(model->import_problem), "%s", problem.text);
        return RT_OK;
    }
    md_container_info_init(&info, &config, found.expert_format, found.dense_format);
    RT_TRY(md_container_blueprint(model->dir, &config, &info, &other, err));
    md_container_close(model->container);
    model->container = other;
    return add_sizes(model, err);
}

static rt_status count_shards(app_model *model, rt_err *err)
{
    char *path = rt_path_join(model->dir, index_name), *text = NULL;
    json_t *index = NULL;
    size_t bytes = 0;
    rt_status status = RT_OK;

    if (path != NULL && rt_file_read(path, INDEX_BYTES_MAX, &text, &bytes, NULL) == RT_OK)
        index = json_loadb(text, bytes, 0, NULL);
    free(path);
    free(text);
    if (index != NULL)
        status = count_indexed(model, index, err);
    else
        count_listed(model, "model");
    json_decref(index);
    RT_TRY(status);
    if (model->shards == 0 && index == NULL) {
        count_listed(model, "out-");
        if (model->shards > 0) RT_TRY(look_at_foreign(model, err));
    }
    if (model->shards == 0 || model->shards == model->shards_missing) return RT_OK;
    model->state = APP_MODEL_CHECKPOINT;
    if (model->shards_missing == 0 && !has(model, "tokenizer.json"))
        snprintf(model->first_missing, sizeof(model->first_missing), "tokenizer.json");
    return RT_OK;
}

bool app_model_is_convertible(const app_model *model)
{
    bool readable = model->foreign
                        ? model->import_problem[0] == '\0'
                        : model->quant_method[0] == '\0' || strcmp(model->quant_method, "fp8") == 0;

    return model->state == APP_MODEL_CHECKPOINT && model->first_missing[0] == '\0' && readable &&
           model->denied[0] == '\0' && model->shard_bytes >= model->shard_bytes_index;
}

/* ---- what may not be read ---- */

static bool is_denied(app_model *model, const char *path, int mode)
{
    if (faccessat(AT_FDCWD, path, mode, AT_EACCESS) == 0 || errno != EACCES) return false;
    snprintf(model->denied, sizeof(model->denied), "%s", path);
    return true;
}

static bool is_source_name(const char *name)
{
    size_t length = strlen(name);

    return is_shard_name(name) || (length > 5 && strcmp(name + length - 5, ".json") == 0);
}

/* The path itself, or the first file of a checkpoint or a container that cannot be opened. */
static void find_denied(app_model *model)
{
    bool opened = model->state == APP_MODEL_CHECKPOINT || model->state == APP_MODEL_BROKEN;
    const struct dirent *entry;
    DIR *dir;

    /* Not any unreadable file breaks a model: the reason must be that. */
    if (model->state == APP_MODEL_BROKEN && strstr(model->reason.text, strerror(EACCES)) == NULL)
        return;
    if (is_denied(model, model->path, model->is_file ? R_OK : X_OK)) return;
    if (model->is_file || !opened) return;
    dir = opendir(model->dir);
    while (dir != NULL && model->denied[0] == '\0' && (entry = readdir(dir)) != NULL) {
        char *path = rt_path_join(model->dir, entry->d_name);

        if (path != NULL && entry->d_name[0] != '.' &&
            (model->state == APP_MODEL_BROKEN || is_source_name(entry->d_name)))
            (void)is_denied(model, path, R_OK);
        free(path);
    }
    if (dir != NULL) (void)closedir(dir);
}

/* ---- looking ---- */

/* A file that only a container has. */
static bool find_part(const app_model *model, char *name, size_t name_bytes)
{
    DIR *dir = opendir(model->dir);
    const struct dirent *entry;
    bool found = false;

    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        unsigned layer;
        int end = 0;

        found = strcmp(entry->d_name, "manifest.bin") == 0 ||
                strcmp(entry->d_name, "dense.bin") == 0 ||
                (sscanf(entry->d_name, "experts-%u.bin%n", &layer, &end) == 1 && end > 0 &&
                 entry->d_name[end] == '\0');
        if (found) snprintf(name, name_bytes, "%.*s", (int)name_bytes - 1, entry->d_name);
    }
    if (dir != NULL) (void)closedir(dir);
    return found;
}

static rt_status look_at_directory(app_model *model, const kn_format formats[2], rt_err *err)
{
    char *config, part[64];
    rt_status status;

    if (has(model, MD_DESCRIPTION_NAME)) return look_at_container(model, err);
    if (has(model, MD_LEDGER_NAME)) return look_at_conversion(model, err);
    if (find_part(model, part, sizeof(part))) {
        model->state = APP_MODEL_BROKEN;
        model->is_part = true;
        (void)rt_fail(&model->reason, RT_EFORMAT,
                      "%s: expected %s beside %s, found none: a container that was not copied "
                      "whole, or what is left of a conversion",
                      model->dir, MD_DESCRIPTION_NAME, part);
        return RT_OK;
    }
    if (!has(model, "config.json")) {
        model->state = APP_MODEL_NOTHING;
        (void)rt_fail(&model->reason, RT_EFORMAT,
                      "%s: expected a container (%s), a checkpoint or a config.json, found neither",
                      model->dir, MD_DESCRIPTION_NAME);
        return RT_OK;
    }
    config = rt_path_join(model->dir, "config.json");
    if (config == NULL) return rt_fail(err, RT_ENOMEM, "%s", model->dir);
    status = read_config(model, config, formats, err);
    free(config);
    if (status == RT_OK && model->state == APP_MODEL_CONFIG) status = count_shards(model, err);
    return status;
}

static rt_status look_at(app_model *model, const kn_format formats[2], rt_err *err)
{
    struct stat info;

    if (stat(model->path, &info) != 0) {
        const char *why = strerror(errno);

        if (model->path[0] == '\0')
            (void)rt_fail(&model->reason, RT_EINVAL, "MODEL: expected a path, found an empty text");
        else
            (void)rt_fail(&model->reason, RT_EIO, "%s: %s", model->path, why);
        return RT_OK;
    }
    if (S_ISDIR(info.st_mode)) return look_at_directory(model, formats, err);
    model->is_file = true;
    free(model->dir);
    model->dir = rt_path_parent(model->path);
    if (model->dir == NULL) return rt_fail(err, RT_ENOMEM, "%s", model->path);
    return read_config(model, model->path, formats, err);
}

rt_status app_model_look(const char *path, kn_format expert_format, kn_format dense_format,
                         app_model *out, rt_err *err)
{
    const kn_format formats[2] = {expert_format, dense_format};

    *out = (app_model){.state = APP_MODEL_ABSENT, .path = strdup(path), .dir = strdup(path)};
    if (out->path == NULL || out->dir == NULL) return rt_fail(err, RT_ENOMEM, "%s", path);
    RT_TRY(look_at(out, formats, err));
    if (out->state == APP_MODEL_CONTAINER || out->state == APP_MODEL_UNFINISHED ||
        out->state == APP_MODEL_CONFIG)
        return RT_OK;
    find_denied(out);
    if (out->denied[0] != '\0' && out->state == APP_MODEL_NOTHING) {
        out->state = APP_MODEL_ABSENT;
        (void)rt_fail(&out->reason, RT_EIO, "%s: %s", out->path, strerror(EACCES));
    }
    return RT_OK;
}
