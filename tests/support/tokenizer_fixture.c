/* tokenizer_fixture.c - see tokenizer_fixture.h. */
#include "tests/support/tokenizer_fixture.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void require(rt_status status, const rt_err *err)
{
    if (status != RT_OK) fail_msg("%s: %s", rt_status_name(status), err->text);
}

char *fixture_text(const char *dir, const char *name, size_t *bytes)
{
    rt_err err = {0};
    char *path = rt_path_join(dir, name);
    char *text = NULL;

    assert_non_null(path);
    require(rt_file_read(path, 256u << 20, &text, bytes, &err), &err);
    free(path);
    return text;
}

json_t *fixture_json(const char *dir, const char *name)
{
    size_t bytes;
    char *text = fixture_text(dir, name, &bytes);
    json_t *json = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);

    assert_non_null(json);
    free(text);
    return json;
}

tokenizer_fixture tokenizer_fixture_open(const char *dir, const char *name)
{
    tokenizer_fixture fixture = {0};
    rt_err err = {0};
    size_t bytes;
    char *text = fixture_text(dir, name, &bytes);

    require(md_tokenizer_compile(text, bytes, &fixture.image, &fixture.image_bytes, &err), &err);
    free(text);
    require(md_tokenizer_open(fixture.image, fixture.image_bytes, &fixture.tokenizer, &err), &err);
    return fixture;
}

void tokenizer_fixture_close(tokenizer_fixture *fixture)
{
    md_tokenizer_close(fixture->tokenizer);
    free(fixture->image);
    *fixture = (tokenizer_fixture){0};
}
