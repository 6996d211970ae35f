/* copies.c - opens mirrors and makes sure that they are copies. */
#include "expert_node/copies.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static rt_status check_same(const md_container *container, const md_container *mirror, rt_err *err)
{
    const md_container_info *expected = md_container_get_info(container);
    const md_container_info *found = md_container_get_info(mirror);
    char expected_id[65], found_id[65];

    if (memcmp(expected->model_id, found->model_id, sizeof(expected->model_id)) == 0) return RT_OK;
    md_model_id_format(expected->model_id, expected_id);
    md_model_id_format(found->model_id, found_id);
    return rt_fail(err, RT_EINVAL, "mirror %s: another model than %s: expected id %s, found %s",
                   md_container_dir(mirror), md_container_dir(container), expected_id, found_id);
}

static rt_status add_mirror(en_copies *copies, const char *dir, rt_err *err)
{
    md_container *mirror;

    if (copies->count == EN_COPIES_MAX)
        return rt_fail(err, RT_EINVAL, "mirror %s: expected at most %d mirrors", dir,
                       EN_COPIES_MAX - 1);
    RT_TRY(md_container_open(dir, &mirror, err));
    copies->owned[copies->count] = mirror;
    copies->all[copies->count++] = mirror;
    return check_same(copies->all[0], mirror, err);
}

/* A large model's copy takes some 160 descriptors: seven of them exceed the soft limit that is usual. If it
 * cannot be raised, the open that fails says so. */
static void allow_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

rt_status en_copies_open(en_copies *out, const md_container *container, const char *dirs,
                         rt_err *err)
{
    en_copies copies = {.all = {container}, .count = 1};
    char *text = strdup(dirs == NULL ? "" : dirs);
    char *rest = NULL;
    rt_status status = RT_OK;

    if (text == NULL) return rt_fail(err, RT_ENOMEM, "mirrors");
    if (dirs != NULL) allow_files();
    for (char *dir = strtok_r(text, ":", &rest); dir != NULL && status == RT_OK;
         dir = strtok_r(NULL, ":", &rest))
        status = add_mirror(&copies, dir, err);
    free(text);
    if (status != RT_OK) {
        en_copies_close(&copies);
        return status;
    }
    *out = copies;
    return RT_OK;
}

void en_copies_close(en_copies *copies)
{
    for (uint32_t i = 0; i < copies->count; i++)
        md_container_close(copies->owned[i]);
    *copies = (en_copies){0};
}
