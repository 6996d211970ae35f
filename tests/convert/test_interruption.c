/* test_interruption.c - a conversion that dies, or whose disk fails, at any durable step goes on to
 * the same container; with --consume no shard is lost before what was made of it is safe.
 *
 * The durable steps (pwrite, fdatasync, fsync, rename, unlink, ftruncate, mkdir) are counted and made
 * to fail by wrapping them. A process that "loses power" also loses what it wrote since the last sync
 * of that file: the wrapper keeps the old bytes and puts them back before it dies. */
/* wrap: pwrite fdatasync fsync rename unlink ftruncate mkdir */
#include "model/convert/convert.h"

#include "base/file.h"
#include "base/stop.h"
#include "model/convert/ledger.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the wrapped steps ---- */

typedef enum {
    HAPPENS_NOTHING,
    HAPPENS_KILL,       /* the process dies before the step */
    HAPPENS_POWER_LOSS, /* and what was not synced is undone */
    HAPPENS_ERROR,      /* the step fails with `error`, and all after it work */
    HAPPENS_ERRORS,     /* the step and all after it fail */
    HAPPENS_SIGNAL,     /* SIGINT arrives; the step works */
    HAPPENS_CORRUPTION, /* a write of a kilobyte or more brings other bytes to the disk */
} happening;

static struct {
    happening what;
    int at;    /* which step, from 0 */
    int steps; /* counted so far */
    int error;
} plan;

enum { DIED = 42 };

/* What a file held before a write that is not synced yet. */
typedef struct undo {
    struct undo *next;
    int fd; /* a duplicate */
    ino_t inode;
    off_t offset, old_size;
    size_t old_bytes;
    uint8_t *old;
} undo;

static undo *undos; /* newest first; single-threaded runs only */

ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_ftruncate(int fd, off_t size);
int __real_mkdir(const char *path, mode_t mode);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_ftruncate(int fd, off_t size);
int __wrap_mkdir(const char *path, mode_t mode);

static void lose_power(void)
{
    for (undo *u = undos; u != NULL; u = u->next) {
        if (u->old_bytes > 0) (void)__real_pwrite(u->fd, u->old, u->old_bytes, u->offset);
        (void)__real_ftruncate(u->fd, u->old_size);
    }
}

/* Counts a step; true: it fails with errno set. */
static bool step_fails(void)
{
    int number = plan.steps++;

    if (plan.what == HAPPENS_NOTHING || number < plan.at) return false;
    if (number > plan.at && plan.what != HAPPENS_ERRORS) return false;
    switch (plan.what) {
    case HAPPENS_POWER_LOSS:
        lose_power();
        _exit(DIED);
    case HAPPENS_KILL:
        _exit(DIED);
    case HAPPENS_SIGNAL:
        (void)raise(SIGINT);
        return false;
    case HAPPENS_CORRUPTION:
        return false; /* only writes know how */
    default:
        errno = plan.error;
        return true;
    }
}

static void remember(int fd, size_t bytes, off_t offset)
{
    struct stat info;
    ssize_t got;
    undo *u;

    if (plan.what != HAPPENS_POWER_LOSS) return;
    u = calloc(1, sizeof(*u));
    assert_int_equal(fstat(fd, &info), 0);
    u->fd = dup(fd);
    u->inode = info.st_ino;
    u->offset = offset;
    u->old_size = info.st_size;
    u->old = malloc(bytes + 1);
    got = pread(fd, u->old, bytes, offset);
    u->old_bytes = got > 0 ? (size_t)got : 0;
    u->next = undos;
    undos = u;
}

static void forget(int fd)
{
    struct stat info;
    undo **at = &undos;

    if (plan.what != HAPPENS_POWER_LOSS || fstat(fd, &info) != 0) return;
    while (*at != NULL) {
        undo *u = *at;

        if (u->inode != info.st_ino) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        close(u->fd);
        free(u->old);
        free(u);
    }
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    bool corrupt = plan.what == HAPPENS_CORRUPTION && plan.steps == plan.at && bytes >= 1024;
    ssize_t wrote;

    if (step_fails()) return -1;
    remember(fd, bytes, offset);
    wrote = __real_pwrite(fd, data, bytes, offset);
    if (corrupt && wrote > 0) {
        uint8_t byte = (uint8_t) ~*(const uint8_t *)data;

        (void)!__real_pwrite(fd, &byte, 1, offset);
    }
    return wrote;
}

/* The data need not reach a real disk: nobody cuts this machine's power. */
int __wrap_fdatasync(int fd)
{
    if (step_fails()) return -1;
    forget(fd);
    return 0;
}

int __wrap_fsync(int fd)
{
    if (step_fails()) return -1;
    forget(fd);
    return 0;
}

int __wrap_rename(const char *from, const char *to)
{
    return step_fails() ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
    return step_fails() ? -1 : __real_unlink(path);
}

int __wrap_ftruncate(int fd, off_t size)
{
    return step_fails() ? -1 : __real_ftruncate(fd, size);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return step_fails() ? -1 : __real_mkdir(path, mode);
}

/* ---- one run, in a child ---- */

typedef struct {
    int exit_code; /* 0 done, DIED, or 100 + status */
    int steps;
    uint8_t model_id[32];
} run_result;

static run_result run(const md_convert_spec *spec, uint32_t threads, happening what, int at,
                      int error)
{
    run_result out = {0};
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
        plan.what = what;
        plan.at = at;
        plan.error = error;
        plan.steps = 0;
        if (status == RT_OK) status = md_convert(spec, team, &result, NULL);
        out.steps = plan.steps;
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

/* ---- the ground ---- */

typedef struct {
    char *dir, *source, *target;
    md_convert_spec spec;
    run_result whole; /* of an undisturbed run */
} ground;

enum { GROUP = 16 };

/* A sanitizer makes every run several times slower: it sees every third step. */
#if defined(__SANITIZE_ADDRESS__)
enum { STEP = 3 };
#else
enum { STEP = 1 };
#endif

static void lay(ground *g, bool consume)
{
    temp_dir_remove(g->source);
    g->source = temp_dir_make();
    test_folder_copy(MOESAIC_FIXTURES "/nano-fp8", g->source);
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
        .commit_records = GROUP,
    };
}

static void take_up(ground *g)
{
    temp_dir_remove(g->source);
    temp_dir_remove(g->dir);
    free(g->target);
}

/* Resumes what an interruption left, and expects the container of an undisturbed run. */
static void expect_resumed(const ground *g, happening what, int at)
{
    run_result after = run(&g->spec, 1, HAPPENS_NOTHING, 0, 0);
    md_container *container = NULL;

    if (after.exit_code != 0)
        fail_msg("happening %d at step %d: resuming ended with %d", what, at, after.exit_code);
    if (memcmp(after.model_id, g->whole.model_id, 32) != 0)
        fail_msg("happening %d at step %d: another model", what, at);
    assert_int_equal(md_container_open(g->target, &container, NULL), RT_OK);
    for (uint64_t i = 0; i < md_container_record_count(container); i++) {
        md_record record;
        void *data;

        md_container_record_at(container, i, &record);
        data = malloc(record.bytes);
        if (md_record_read(&record, data, NULL) != RT_OK)
            fail_msg("happening %d at step %d: record %d is damaged", what, at, (int)i);
        free(data);
    }
    md_container_close(container);
    assert_false(test_file_exists(g->target, MD_LEDGER_NAME));
    if (g->spec.consume) {
        assert_false(test_file_exists(g->source, "model-00001-of-00002.safetensors"));
        assert_false(test_file_exists(g->source, "model-00002-of-00002.safetensors"));
    }
}

static void over_steps(happening what, int stride, bool consume)
{
    ground g = {0};

    lay(&g, consume);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    assert_int_equal(g.whole.exit_code, 0);
    assert_true(g.whole.steps > 100);
    for (int at = 0; at < g.whole.steps; at += stride * STEP) {
        run_result broken;

        lay(&g, consume);
        broken = run(&g.spec, 1, what, at, 0);
        if (what == HAPPENS_KILL || what == HAPPENS_POWER_LOSS)
            assert_int_equal(broken.exit_code, DIED);
        /* A second interruption while it resumes changes nothing. */
        if (at % 5 == 0 && broken.exit_code != 0) (void)run(&g.spec, 1, what, at / 2, 0);
        expect_resumed(&g, what, at);
    }
    take_up(&g);
}

static void killed_at_every_other_step_it_resumes_to_the_same_model(void **state)
{
    (void)state;
    over_steps(HAPPENS_KILL, 2, false);
}

static void losing_power_at_any_step_it_resumes_to_the_same_model(void **state)
{
    (void)state;
    over_steps(HAPPENS_POWER_LOSS, 1, false);
}

static void consuming_and_losing_power_at_any_step_nothing_is_lost(void **state)
{
    (void)state;
    over_steps(HAPPENS_POWER_LOSS, 1, true);
}

static void stopped_by_a_signal_it_resumes(void **state)
{
    (void)state;
    over_steps(HAPPENS_SIGNAL, 3, true);
}

/* A disk that is full from then on (even steps) or fails once (odd steps) ends the run with that
 * error and loses nothing. */
static void a_failing_disk_ends_the_run_and_loses_nothing(void **state)
{
    static const struct {
        happening what;
        int error;
        rt_status status;
    } faults[] = {{HAPPENS_ERRORS, ENOSPC, RT_ENOSPACE}, {HAPPENS_ERROR, EIO, RT_EIO}};
    ground g = {0};

    (void)state;
    lay(&g, true);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
        for (int at = (int)f; at < g.whole.steps; at += 2 * STEP) {
            run_result broken;

            lay(&g, true);
            broken = run(&g.spec, 1, faults[f].what, at, faults[f].error);
            if (broken.exit_code < 100)
                fail_msg("error %d at step %d went unnoticed", faults[f].error, at);
            if (broken.exit_code != 100 + (int)faults[f].status &&
                broken.exit_code != 100 + (int)RT_EIO)
                fail_msg("error %d at step %d: ended with %d", faults[f].error, at,
                         broken.exit_code);
            expect_resumed(&g, faults[f].what, at);
        }
    }
    take_up(&g);
}

static void killed_with_several_threads_it_resumes_to_the_same_model(void **state)
{
    ground g = {0};

    (void)state;
    lay(&g, true);
    g.whole = run(&g.spec, 3, HAPPENS_NOTHING, 0, 0);
    for (int at = 1; at < g.whole.steps; at += 11) {
        lay(&g, true);
        (void)run(&g.spec, 3, HAPPENS_KILL, at, 0);
        expect_resumed(&g, HAPPENS_KILL, at);
    }
    take_up(&g);
}

static void a_shard_that_is_gone_and_still_needed_is_named(void **state)
{
    ground g = {0};
    char *shard;
    run_result broken;

    (void)state;
    lay(&g, false);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    lay(&g, false);
    broken = run(&g.spec, 1, HAPPENS_KILL, g.whole.steps / 2, 0);
    assert_int_equal(broken.exit_code, DIED);
    shard = rt_path_join(g.source, "model-00002-of-00002.safetensors");
    assert_int_equal(__real_unlink(shard), 0);
    {
        rt_err err = {0};
        rt_team_spec team_spec = {0};
        rt_team *team = NULL;
        md_convert_result result;

        assert_int_equal(rt_team_create(&team_spec, &team, NULL), RT_OK);
        assert_int_equal(md_convert(&g.spec, team, &result, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "model-00002-of-00002.safetensors"));
        rt_team_free(team);
    }
    free(shard);
    take_up(&g);
}

static void a_resumed_conversion_refuses_other_options_and_other_sources(void **state)
{
    ground g = {0};
    md_convert_spec other;
    char *shard;
    run_result broken;
    int fd;
    char byte;

    (void)state;
    lay(&g, false);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    lay(&g, false);
    (void)run(&g.spec, 1, HAPPENS_KILL, g.whole.steps / 2, 0);
    other = g.spec;
    other.dense_format = KN_F32;
    assert_int_equal(run(&other, 1, HAPPENS_NOTHING, 0, 0).exit_code, 100 + RT_EINVAL);
    shard = rt_path_join(g.source, "model-00002-of-00002.safetensors");
    fd = open(shard, O_RDWR);
    assert_int_equal(lseek(fd, -3, SEEK_END) > 0, 1);
    assert_int_equal(read(fd, &byte, 1), 1);
    byte ^= 1;
    assert_int_equal(lseek(fd, -3, SEEK_END) > 0, 1);
    assert_int_equal(write(fd, &byte, 1), 1);
    close(fd);
    broken = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    assert_int_equal(broken.exit_code, 100 + RT_EINVAL);
    free(shard);
    take_up(&g);
}

/* ---- what the ledger names is not there any more ---- */

typedef enum { LOSS_MISSING, LOSS_EMPTY, LOSS_SHORT, LOSS_LONG, LOSS_BYTES, LOSS_COUNT } loss;

static void inflict(const ground *g, const char *name, loss what)
{
    char *pack = rt_path_join(g->target, name);
    uint8_t zeros[64] = {0};
    int fd = open(pack, O_RDWR);

    assert_true(fd >= 0);
    switch (what) {
    case LOSS_MISSING:
        assert_int_equal(__real_unlink(pack), 0);
        break;
    case LOSS_EMPTY:
        assert_int_equal(__real_ftruncate(fd, 0), 0);
        break;
    case LOSS_SHORT:
        assert_int_equal(__real_ftruncate(fd, 4096 + 100), 0);
        break;
    case LOSS_LONG:
        assert_int_equal(__real_ftruncate(fd, 1 << 24), 0);
        break;
    default:
        assert_int_equal(__real_pwrite(fd, zeros, sizeof(zeros), 4096), sizeof(zeros));
        break;
    }
    close(fd);
    free(pack);
}

static void records_that_were_lost_are_converted_again(void **state)
{
    static const char *const packs[] = {"experts-001.bin", "dense.bin"};
    ground g = {0};

    (void)state;
    lay(&g, false);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    for (int what = 0; what < LOSS_COUNT; what++) {
        for (int consume = 0; consume < 2; consume++) {
            for (size_t p = 0; p < sizeof(packs) / sizeof(packs[0]); p++) {
                lay(&g, false);
                (void)run(&g.spec, 1, HAPPENS_KILL, g.whole.steps * 3 / 4, 0);
                inflict(&g, packs[p], (loss)what);
                g.spec.consume = consume != 0;
                expect_resumed(&g, HAPPENS_KILL, what);
            }
        }
    }
    take_up(&g);
}

/* Converts without forking, for its error and its result. */
static rt_status convert_here(const md_convert_spec *spec, md_convert_result *result, rt_err *err)
{
    rt_team_spec team_spec = {0};
    rt_team *team = NULL;
    rt_status status;

    plan.what = HAPPENS_NOTHING;
    assert_int_equal(rt_team_create(&team_spec, &team, NULL), RT_OK);
    status = md_convert(spec, team, result, err);
    rt_team_free(team);
    return status;
}

static void a_dry_run_counts_what_was_lost_and_changes_nothing(void **state)
{
    md_convert_result before = {0}, after = {0};
    ground g = {0};

    (void)state;
    lay(&g, false);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    lay(&g, false);
    (void)run(&g.spec, 1, HAPPENS_KILL, g.whole.steps * 3 / 4, 0);
    g.spec.dry_run = true;
    assert_int_equal(convert_here(&g.spec, &before, NULL), RT_OK);
    assert_true(before.records_resumed > 0);
    assert_int_equal(before.records_lost, 0);
    inflict(&g, "experts-001.bin", LOSS_MISSING);
    assert_int_equal(convert_here(&g.spec, &after, NULL), RT_OK);
    assert_true(after.records_lost > 0);
    assert_int_equal(after.records_lost + after.records_resumed, before.records_resumed);
    assert_false(test_file_exists(g.target, "experts-001.bin"));
    take_up(&g);
}

static void lost_records_whose_shards_were_consumed_are_named_with_them(void **state)
{
    static const char shard[] = "model-00001-of-00002.safetensors";
    md_convert_result result;
    ground g = {0};
    rt_err err = {0};
    int at;

    (void)state;
    lay(&g, true);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    for (at = g.whole.steps / 4; at < g.whole.steps; at++) {
        lay(&g, true);
        (void)run(&g.spec, 1, HAPPENS_KILL, at, 0);
        if (!test_file_exists(g.source, shard)) break;
    }
    assert_true(test_file_exists(g.target, MD_LEDGER_NAME));
    inflict(&g, "experts-001.bin", LOSS_MISSING);
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(convert_here(&g.spec, &result, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "layer 1 expert 0"));
        assert_non_null(strstr(err.text, shard));
        assert_non_null(strstr(err.text, "put these back"));
    }
    /* Put back, it goes on. */
    {
        char *back = rt_path_join(g.source, shard);

        test_file_copy(MOESAIC_FIXTURES "/nano-fp8/model-00001-of-00002.safetensors", back);
        free(back);
    }
    expect_resumed(&g, HAPPENS_KILL, at);
    take_up(&g);
}

/* A record that the disk gives back wrong at once ends the run and keeps its shard; it is said once,
 * and the next run mends it. */
static void consume_keeps_the_shards_of_a_record_that_reads_back_wrong(void **state)
{
    ground g = {0};
    int seen = 0;

    (void)state;
    lay(&g, true);
    g.whole = run(&g.spec, 1, HAPPENS_NOTHING, 0, 0);
    for (int at = 10; at < g.whole.steps; at += 7 * STEP) {
        run_result broken;

        lay(&g, true);
        broken = run(&g.spec, 1, HAPPENS_CORRUPTION, at, 0);
        if (broken.exit_code == 0) continue; /* it was no record's bytes, or none at all */
        if (broken.exit_code != 100 + RT_EFORMAT)
            fail_msg("step %d: ended with %d", at, broken.exit_code);
        assert_true(test_file_exists(g.source, "model-00001-of-00002.safetensors") ||
                    test_file_exists(g.source, "model-00002-of-00002.safetensors"));
        expect_resumed(&g, HAPPENS_CORRUPTION, at);
        seen++;
    }
    assert_true(seen > 3);
    take_up(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_every_other_step_it_resumes_to_the_same_model),
        cmocka_unit_test(losing_power_at_any_step_it_resumes_to_the_same_model),
        cmocka_unit_test(consuming_and_losing_power_at_any_step_nothing_is_lost),
        cmocka_unit_test(stopped_by_a_signal_it_resumes),
        cmocka_unit_test(a_failing_disk_ends_the_run_and_loses_nothing),
        cmocka_unit_test(killed_with_several_threads_it_resumes_to_the_same_model),
        cmocka_unit_test(a_shard_that_is_gone_and_still_needed_is_named),
        cmocka_unit_test(a_resumed_conversion_refuses_other_options_and_other_sources),
        cmocka_unit_test(records_that_were_lost_are_converted_again),
        cmocka_unit_test(a_dry_run_counts_what_was_lost_and_changes_nothing),
        cmocka_unit_test(lost_records_whose_shards_were_consumed_are_named_with_them),
        cmocka_unit_test(consume_keeps_the_shards_of_a_record_that_reads_back_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
