/* source_files.c - config, generation defaults, tokenizer and template of a checkpoint. All are
 * checked before the first record is converted: hours of work must not end at a bad file. */
#include "model/convert/convert_internal.h"

#include "base/file.h"
#include "model/text/tokenizer.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    CONFIG_BYTES_MAX = 16 << 20,
    TOKENIZER_BYTES_MAX = 256 << 20, /* the release's is 20 MB */
    TEMPLATE_BYTES_MAX = 16 << 20,
};

static rt_status read_file(const char *dir, const char *name, size_t limit, bool optional,
                           char **out, size_t *bytes, rt_err *err)
{
    char *path = rt_path_join(dir, name);
    rt_status status = RT_OK;

    if (path == NULL) return rt_fail(err, RT_ENOMEM, "%s", dir);
    if (!optional || access(path, F_OK) == 0) status = rt_file_read(path, limit, out, bytes, err);
    free(path);
    return status;
}

static rt_status read_config(const char *dir, md_source_files *files, rt_err *err)
{
    rt_status status;

    RT_TRY(read_file(dir, "config.json", CONFIG_BYTES_MAX, false, &files->config_json,
                     &files->config_bytes, err));
    files->config_hash = XXH3_64bits(files->config_json, files->config_bytes);
    status = md_config_parse(files->config_json, files->config_bytes, &files->config, err);
    if (status != RT_OK) rt_err_prefix(err, "%s/config.json: ", dir);
    return status;
}

static rt_status read_generation(const char *dir, md_source_files *files, rt_err *err)
{
    md_generation generation = {0};
    rt_status status;

    RT_TRY(read_file(dir, "generation_config.json", CONFIG_BYTES_MAX, true, &files->generation_json,
                     &files->generation_bytes, err));
    if (files->generation_json == NULL) return RT_OK;
    status = md_generation_parse(files->generation_json, files->generation_bytes, &generation, err);
    for (uint32_t i = 0; status == RT_OK && i < generation.eos_count; i++)
        if (generation.eos[i] >= files->config.vocab)
            status = rt_fail(err, RT_EFORMAT, "eos_token_id: expected ids below %u, found %u",
                             files->config.vocab, generation.eos[i]);
    if (status != RT_OK) rt_err_prefix(err, "%s/generation_config.json: ", dir);
    return status;
}

static rt_status read_tokenizer(const char *dir, md_source_files *files, rt_err *err)
{
    char *json = NULL;
    size_t bytes = 0;
    rt_status status;

    RT_TRY(read_file(dir, "tokenizer.json", TOKENIZER_BYTES_MAX, false, &json, &bytes, err));
    status = md_tokenizer_compile(json, bytes, &files->tokenizer, &files->tokenizer_bytes, err);
    free(json);
    if (status != RT_OK) rt_err_prefix(err, "%s/tokenizer.json: ", dir);
    return status;
}

/* MD5 because that is how the released template is known; it protects nothing. */
static rt_status read_template(const char *dir, md_source_files *files, rt_err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    char *text = NULL;
    size_t bytes = 0;
    int ok;

    RT_TRY(read_file(dir, "chat_template.jinja", TEMPLATE_BYTES_MAX, true, &text, &bytes, err));
    if (text == NULL) return RT_OK;
    ok = EVP_Digest(text, bytes, digest, &length, EVP_md5(), NULL);
    free(text);
    if (ok != 1 || length != 16) return rt_fail(err, RT_EUNSUPPORTED, "OpenSSL refuses MD5");
    for (unsigned int i = 0; i < length; i++)
        snprintf(files->template_id + 2 * i, 3, "%02x", digest[i]);
    return RT_OK;
}

rt_status md_source_files_read(const char *dir, md_source_files *out, rt_err *err)
{
    md_source_files files = {0};
    rt_status status = read_config(dir, &files, err);

    if (status == RT_OK) status = read_generation(dir, &files, err);
    if (status == RT_OK) status = read_tokenizer(dir, &files, err);
    if (status == RT_OK) status = read_template(dir, &files, err);
    if (status != RT_OK) {
        md_source_files_free(&files);
        return status;
    }
    *out = files;
    return RT_OK;
}

void md_source_files_free(md_source_files *files)
{
    free(files->config_json);
    free(files->generation_json);
    free(files->tokenizer);
    *files = (md_source_files){0};
}

rt_status md_config_file_hash(const char *dir, uint64_t *out, rt_err *err)
{
    char *text = NULL;
    size_t bytes = 0;

    RT_TRY(read_file(dir, "config.json", CONFIG_BYTES_MAX, false, &text, &bytes, err));
    *out = XXH3_64bits(text, bytes);
    free(text);
    return RT_OK;
}
