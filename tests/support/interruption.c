/* interruption.c - conversions in children of their own, and what they leave. */
#include "tests/support/interruption.h"

#include "base/file.h"
#include "base/stop.h"
#include "model/container/container.h"
#include "model/convert/ledger.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* So few that a small model takes several commits. */
enum { RECORDS_PER_COMMIT = 16 };

interruption_result interruption_run(const md_convert_spec *spec, uint32_t threads,
                                     durable_event what, int at, int error)
{
    interruption_result out = {0};
    int ends[2], wait_status = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        rt_team_spec team_spec = {.threads = threads};
        md_convert_result result = {0};
        rt_team *team = NULL;
        rt_status status;
        int quiet = open("/dev/null", O_WRONLY);

        dup2(quiet, STDERR_FILENO);
        rt_stop_install();
        status = rt_team_create(&team_spec, &team, NULL);
        durable_plan(what, at, error);
        if (status == RT_OK) status = md_convert(spec, team, &result, NULL);
        out.steps = durable_steps();
        memcpy(out.model_id, result.model_id, sizeof(out.model_id));
        (void)!write(ends[1], &out, sizeof(out));
        _exit(status == RT_OK ? 0 : 100 + (int)status);
    }
    close(ends[1]);
    (void)!read(ends[0], &out, sizeof(out));
    close(ends[0]);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    if (!WIFEXITED(wait_status)) fail_msg("the conversion ended by a signal");
    out.exit_code = WEXITSTATUS(wait_status);
    return out;
}

void interruption_lay(interruption_ground *g, bool consume)
{
    temp_dir_remove(g->source);
    g->source = temp_dir_make();
    test_folder_copy(g->checkpoint, g->source);
    temp_dir_remove(g->dir);
    g->dir = temp_dir_make();
    free(g->target);
    g->target = rt_path_join(g->dir, "t");
    g->spec = (md_convert_spec){
        .source = g->source,
        .target = g->target,
        .expert_format = KN_Q4,
        .dense_format = KN_Q8,
        .quiet = true,
        .consume = consume,
        .commit_records = RECORDS_PER_COMMIT,
    };
}

void interruption_take_up(interruption_ground *g)
{
    temp_dir_remove(g->source);
    temp_dir_remove(g->dir);
    free(g->target);
}

void interruption_expect_resumed(const interruption_ground *g, durable_event what, int at)
{
    interruption_result after = interruption_run(&g->spec, 1, DURABLE_NOTHING, 0, 0);
    md_container *container = NULL;

    if (after.exit_code != 0)
        fail_msg("event %d at step %d: resuming ended with %d", what, at, after.exit_code);
    if (memcmp(after.model_id, g->whole.model_id, 32) != 0)
        fail_msg("event %d at step %d: another model", what, at);
    assert_int_equal(md_container_open(g->target, &container, NULL), RT_OK);
    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;
        void *data;

        md_container_record_at(container, i, &record);
        data = malloc(record.bytes);
        if (md_record_read(&record, data, NULL) != RT_OK)
            fail_msg("event %d at step %d: record %d is damaged", what, at, (int)i);
        free(data);
    }
    md_container_close(container);
    assert_false(test_file_exists(g->target, MD_LEDGER_NAME));
    if (g->spec.consume) {
        assert_false(test_file_exists(g->source, "model-00001-of-00002.safetensors"));
        assert_false(test_file_exists(g->source, "model-00002-of-00002.safetensors"));
    }
}
