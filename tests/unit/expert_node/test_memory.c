/* test_memory.c - each allocation of the expert node fails in turn: an error, and nothing leaks. */
/* wrap: calloc mmap */
#include "expert_node/node.h"

#include "expert_node/sums.h"
#include "tests/support/expert_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "transport/partial.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

/* Allocations until the one that fails; negative: none does. */
static int left = -1;
static bool failed;

static bool fails_now(void)
{
    if (left < 0 || left-- > 0) return false;
    failed = true;
    return true;
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    if (fails_now()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(at, bytes, prot, flags, fd, offset);
}

static void arm(int allocations)
{
    left = allocations;
    failed = false;
}

static void opening_a_store_survives_each_failure(void **state)
{
    tiny_model_spec model = tiny_model_default();
    char *dir = tiny_model_build(&model);
    expert_rig rig;
    int failures = 0;

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir, .mode = PL_SLICED, .nodes = 2});
    for (int n = 0;; n++) {
        en_store_spec spec = {.container = rig.container, .map = rig.map, .quiet = true};
        en_store *store = NULL;
        rt_err err = {RT_OK, ""};
        rt_status status;
        spec.ram_bytes = en_store_get_stats(rig.store).ram_bytes / 2; /* staging slots, too */
        arm(n);
        status = en_store_open(&spec, &store, &err);
        left = -1;
        if (status == RT_OK) {
            en_store_close(store);
            if (!failed) break; /* past the last allocation */
            continue;           /* it was the progress line's, which is not needed */
        }
        assert_int_equal(status, RT_ENOMEM);
        assert_null(store);
        assert_true(strlen(err.text) > 0);
        failures++;
    }
    assert_true(failures >= 7);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

static void creating_executor_and_node_survives_each_failure(void **state)
{
    tiny_model_spec model = tiny_model_default();
    char *dir = tiny_model_build(&model);
    expert_rig rig;
    int failures = 0;

    (void)state;
    expert_rig_open(&rig, &(expert_rig_spec){.dir = dir});
    for (int n = 0;; n++) {
        en_executor_spec spec = {
            .store = rig.store, .container = rig.container, .team = rig.team, .rows_max = 16};
        en_node_spec node_spec = {.executor = rig.executor, .container = rig.container};
        en_executor *executor = NULL;
        en_node *node = NULL;
        rt_err err = {RT_OK, ""};
        rt_status status;
        arm(n);
        status = en_executor_create(&spec, &executor, &err);
        if (status == RT_OK) status = en_node_create(&node_spec, &node, &err);
        left = -1;
        en_node_free(node);
        en_executor_free(executor);
        if (status == RT_OK) break;
        assert_true(failed);
        assert_int_equal(status, RT_ENOMEM);
        assert_null(node);
        failures++;
    }
    assert_true(failures >= 14);
    expert_rig_close(&rig);
    temp_dir_remove(dir);
}

static void a_wide_sum_without_memory_fails_its_frame_only(void **state)
{
    enum { ROWS = 12, COLS = 20 };
    rt_team_spec team_spec = {.threads = 1};
    rt_team *team;
    en_sums *sums;
    rt_err err = {RT_OK, ""};
    float y[COLS];
    uint8_t *payload = malloc(ROWS * tr_partial_bytes_max(COLS));
    size_t bytes = 0;

    (void)state;
    assert_non_null(payload);
    for (int i = 0; i < COLS; i++) {
        y[i] = 0x1p40f;
    }
    assert_int_equal(rt_team_create(&team_spec, &team, &err), RT_OK);
    assert_int_equal(en_sums_create(ROWS, COLS, 1, &sums, &err), RT_OK);
    for (int frame = 0; frame < 3; frame++) {
        rt_status status;
        en_sums_begin(sums, ROWS);
        arm(frame == 1 ? 1 : -1); /* the second row beyond the pool */
        for (uint32_t row = 0; row < ROWS; row++) {
            en_sums_add(sums, 0, row, y, 1.0f);
        }
        left = -1;
        status = en_sums_finish(sums, team, payload, &bytes, &err);
        assert_int_equal(status, frame == 1 ? RT_ENOMEM : RT_OK);
    }
    assert_true(bytes > ROWS * COLS * 5);
    en_sums_free(sums);
    rt_team_free(team);
    free(payload);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_a_store_survives_each_failure),
        cmocka_unit_test(creating_executor_and_node_survives_each_failure),
        cmocka_unit_test(a_wide_sum_without_memory_fails_its_frame_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
