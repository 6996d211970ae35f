/* test_tier_disk.c - the order of reads, what is given up, and what the background verifies. */
#include "expert_node/tier_disk_internal.h"

#include "base/stop.h"
#include "tests/support/expert_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { DEPTH = 2 }; /* one place is held, the other serves the queue */

/* A disk whose reads wait until the gate is open, and are noted in order. Reads at `held` wait for held
 * to be cleared as well: with all but one of a disk's places held, the order is the queue's alone. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    off_t held;     /* 0: none */
    off_t failing;  /* reads there give EIO; 0: none */
    int failing_fd; /* only of this descriptor; 0: of any */
    uint32_t begun;
    off_t order[256];
} gate;

static ssize_t gated_pread(void *context, int fd, void *data, size_t bytes, off_t offset)
{
    gate *g = context;
    bool fails;

    pthread_mutex_lock(&g->lock);
    g->order[g->begun++ % 256] = offset;
    pthread_cond_broadcast(&g->changed);
    while (!g->open || (g->held != 0 && g->held == offset))
        pthread_cond_wait(&g->changed, &g->lock);
    fails = g->failing != 0 && g->failing == offset && (g->failing_fd == 0 || g->failing_fd == fd);
    pthread_mutex_unlock(&g->lock);
    if (fails) {
        errno = EIO;
        return -1;
    }
    return pread(fd, data, bytes, offset);
}

static void gate_wait_begun(gate *g, uint32_t count)
{
    pthread_mutex_lock(&g->lock);
    while (g->begun < count)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void gate_hold(gate *g, off_t offset)
{
    pthread_mutex_lock(&g->lock);
    g->held = offset;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void gate_open(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

typedef struct {
    char *dir;
    md_container *container;
    md_container *mirror; /* NULL: none */
    pl_map *map;
    en_inventory inventory;
    en_tier_disk *disk;
    gate gate;
    uint8_t *data; /* 4 KiB aligned, EN_DISK_READS_MAX + 1 records */
    size_t bytes;
} fixture;

static char *model_of_parent; /* NULL outside of a child */

static char *build_model(void)
{
    tiny_model_spec model = tiny_model_default();

    model.experts = 80;
    return tiny_model_build(&model);
}

/*   piece_bytes  0: a record is one piece
 *   mirrored     a second copy, and a disk that reads one piece at a time */
static void open_copies(fixture *f, bool gated, size_t piece_bytes, bool mirrored)
{
    en_tier_disk_spec spec = {.inventory = &f->inventory,
                              .copy_count = mirrored ? 2 : 1,
                              .piece_bytes = piece_bytes,
                              .depth = mirrored ? 1 : DEPTH};
    const md_container *copies[2];
    rt_err err = {RT_OK, ""};

    memset(f, 0, sizeof(*f));
    f->dir = model_of_parent;
    if (f->dir == NULL) f->dir = build_model();
    assert_int_equal(md_container_open(f->dir, &f->container, &err), RT_OK);
    if (mirrored) assert_int_equal(md_container_open(f->dir, &f->mirror, &err), RT_OK);
    f->map = expert_rig_map(f->container, PL_WHOLE, 1, false);
    copies[0] = f->container;
    copies[1] = f->mirror;
    assert_int_equal(en_inventory_init(&f->inventory, copies, 1, f->map, 0, false, &err), RT_OK);
    f->bytes = en_inventory_record_bytes(&f->inventory, 0);
    f->data = aligned_alloc(MD_RECORD_ALIGN, (EN_DISK_READS_MAX + 1) * f->bytes);
    assert_non_null(f->data);
    assert_int_equal(pthread_mutex_init(&f->gate.lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&f->gate.changed, NULL), 0);
    spec.copies = copies;
    spec.ops = gated ? (en_disk_ops){gated_pread, &f->gate} : en_disk_real();
    spec.buffered = true; /* offsets are noted once a record */
    assert_int_equal(en_tier_disk_create(&spec, &f->disk, &err), RT_OK);
}

static void open_fixture(fixture *f, bool gated, size_t piece_bytes)
{
    open_copies(f, gated, piece_bytes, false);
}

static void close_fixture(fixture *f)
{
    en_tier_disk_free(f->disk);
    en_inventory_fini(&f->inventory);
    pl_map_free(f->map);
    md_container_close(f->mirror);
    md_container_close(f->container);
    temp_dir_remove(f->dir);
    free(f->data);
    pthread_cond_destroy(&f->gate.changed);
    pthread_mutex_destroy(&f->gate.lock);
}

static bool ask(fixture *f, uint32_t record, bool urgent)
{
    return en_tier_disk_ask(f->disk, record, f->data + record * f->bytes, record, urgent);
}

static off_t offset_of(const fixture *f, uint32_t record)
{
    md_key key = {f->inventory.records[record].layer, MD_EXPERT,
                  f->inventory.records[record].expert};
    md_record found;

    assert_true(md_container_find(f->container, key, &found));
    return (off_t)found.offset;
}

static void what_is_urgent_is_read_first_and_a_hurried_hint_with_it(void **state)
{
    static fixture f;
    en_disk_done done;
    rt_err err = {RT_OK, ""};
    uint64_t seen = 0;

    (void)state;
    open_fixture(&f, true, 0);
    for (uint32_t r = 0; r < DEPTH; r++)
        assert_true(ask(&f, r, true));
    gate_wait_begun(&f.gate, DEPTH);
    assert_true(ask(&f, 10, false));
    assert_true(ask(&f, 11, false));
    assert_true(ask(&f, 12, true));
    en_tier_disk_hurry(f.disk, 11);
    en_tier_disk_hurry(f.disk, 77); /* not asked: nothing happens */
    gate_hold(&f.gate, offset_of(&f, 1));
    gate_open(&f.gate);
    for (int i = 0; i < 5; i++) {
        if (i == 4) gate_hold(&f.gate, 0);
        assert_true(en_tier_disk_next(f.disk, true, &done, &err));
        assert_int_equal(done.status, RT_OK);
        seen |= 1ULL << done.tag;
    }
    assert_int_equal(seen, 3 | 7 << 10);
    assert_int_equal(f.gate.order[DEPTH + 2], offset_of(&f, 10)); /* the last */
    assert_false(en_tier_disk_next(f.disk, true, &done, &err));   /* nothing is asked */
    assert_int_equal(en_tier_disk_get_stats(f.disk).reads, 5);
    assert_int_equal(en_tier_disk_get_stats(f.disk).bytes, 5 * f.bytes);
    close_fixture(&f);
}

static void what_has_not_begun_can_be_given_up(void **state)
{
    static fixture f;
    en_disk_done done;
    rt_err err = {RT_OK, ""};
    uint32_t given_up = 0;

    (void)state;
    open_fixture(&f, true, 0);
    for (uint32_t r = 0; r < DEPTH; r++)
        assert_true(ask(&f, r, false));
    gate_wait_begun(&f.gate, DEPTH);
    assert_true(ask(&f, 20, false));
    assert_true(ask(&f, 21, true));
    en_tier_disk_cancel(f.disk);
    gate_open(&f.gate);
    while (en_tier_disk_next(f.disk, true, &done, &err)) {
        assert_int_equal(done.status, done.tag == 20 ? RT_ECANCELED : RT_OK);
        given_up += done.status == RT_ECANCELED;
    }
    assert_int_equal(given_up, 1);
    assert_int_equal(f.gate.begun, DEPTH + 1);
    close_fixture(&f);
}

static void the_queue_is_bounded_and_closing_drops_it(void **state)
{
    static fixture f;

    (void)state;
    open_fixture(&f, true, 0);
    for (uint32_t r = 0; r < EN_DISK_READS_MAX; r++)
        assert_true(ask(&f, r, r % 2 == 0));
    assert_false(ask(&f, EN_DISK_READS_MAX, true));
    assert_int_equal(en_tier_disk_asked(f.disk), EN_DISK_READS_MAX);
    gate_wait_begun(&f.gate, 1);
    gate_open(&f.gate);
    close_fixture(&f);
}

/* The next finished read must be of `record`. */
static rt_status finish_one(fixture *f, uint32_t record, rt_err *err)
{
    en_disk_done done;

    assert_true(en_tier_disk_next(f->disk, true, &done, err));
    assert_int_equal(done.tag, record);
    return done.status;
}

static void check_bytes(const fixture *f, uint32_t record)
{
    md_key key = {f->inventory.records[record].layer, MD_EXPERT,
                  f->inventory.records[record].expert};
    uint8_t *bytes = malloc(f->bytes);
    rt_err err = {RT_OK, ""};
    md_record found;

    assert_non_null(bytes);
    assert_true(md_container_find(f->container, key, &found));
    assert_int_equal(md_record_read(&found, bytes, &err), RT_OK);
    assert_memory_equal(f->data + record * f->bytes, bytes, f->bytes);
    free(bytes);
}

enum { PIECE = MD_RECORD_ALIGN };

static void a_disk_reads_two_pieces_of_one_record_at_a_time_and_in_turn(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};
    uint32_t pieces;

    (void)state;
    open_fixture(&f, true, PIECE);
    pieces = (uint32_t)((f.bytes + PIECE - 1) / PIECE);
    assert_true(pieces >= 3);
    assert_true(ask(&f, 5, true));
    assert_true(ask(&f, 4, true));
    gate_wait_begun(&f.gate, 2);
    gate_hold(&f.gate, offset_of(&f, 5) + PIECE);
    gate_open(&f.gate);
    /* The other place reads the rest of the record, then the next one: this is hashed only when the piece
     * that is held has come. */
    assert_int_equal(finish_one(&f, 4, &err), RT_OK);
    assert_int_equal(f.gate.begun, 2 * pieces);
    for (uint32_t i = 2; i < 2 * pieces; i++)
        assert_int_equal(f.gate.order[i], offset_of(&f, i < pieces ? 5 : 4) + (i % pieces) * PIECE);
    assert_false(en_tier_disk_next(f.disk, false, &(en_disk_done){0}, &err));
    gate_hold(&f.gate, 0);
    assert_int_equal(finish_one(&f, 5, &err), RT_OK);
    check_bytes(&f, 4);
    check_bytes(&f, 5);
    assert_int_equal(en_tier_disk_get_stats(f.disk).reads, 2);
    assert_int_equal(en_tier_disk_get_stats(f.disk).bytes, 2 * f.bytes);
    close_fixture(&f);
}

static void a_piece_that_cannot_be_read_ends_its_record_alone(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_fixture(&f, true, PIECE);
    f.gate.failing = offset_of(&f, 7) + PIECE;
    gate_open(&f.gate);
    for (int i = 0; i < 20; i++) {
        assert_true(ask(&f, 7, i % 2 == 0));
        assert_int_equal(finish_one(&f, 7, &err), RT_EIO);
        assert_non_null(strstr(err.text, "layer 1 expert 7"));
        assert_true(ask(&f, 8, i % 3 == 0));
        assert_int_equal(finish_one(&f, 8, &err), RT_OK);
    }
    check_bytes(&f, 8);
    assert_int_equal(en_tier_disk_get_stats(f.disk).failures, 20);
    close_fixture(&f);
}

static void a_wrong_byte_in_any_piece_is_found(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};

    (void)state;
    for (uint32_t pieces = 1; pieces <= 3; pieces++) {
        open_fixture(&f, false, pieces * PIECE);
        tiny_model_damage(f.dir, 1, 9);
        assert_true(ask(&f, 9, true));
        assert_int_equal(finish_one(&f, 9, &err), RT_EFORMAT);
        assert_non_null(strstr(err.text, "hash expected"));
        assert_true(ask(&f, 10, true));
        assert_int_equal(finish_one(&f, 10, &err), RT_OK);
        close_fixture(&f);
    }
}

static void what_has_begun_is_not_given_up_and_can_be_hurried(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_fixture(&f, true, PIECE);
    assert_true(ask(&f, 1, false));
    gate_wait_begun(&f.gate, 2);
    assert_true(ask(&f, 2, false));
    en_tier_disk_cancel(f.disk);
    assert_int_equal(finish_one(&f, 2, &err), RT_ECANCELED);
    en_tier_disk_hurry(f.disk, 1);
    gate_open(&f.gate);
    assert_int_equal(finish_one(&f, 1, &err), RT_OK);
    check_bytes(&f, 1);
    close_fixture(&f);
}

static void the_background_finds_what_the_disk_has_spoilt(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};
    en_tier_disk_stats stats;

    (void)state;
    open_fixture(&f, false, 0);
    tiny_model_damage(f.dir, 2, 17);
    assert_int_equal(en_tier_disk_scrub(f.disk, 0, &err), RT_OK);
    do {
        sched_yield();
        stats = en_tier_disk_get_stats(f.disk);
    } while (stats.scrubbed < f.inventory.count + 10);
    assert_int_equal(stats.quarantined, 1);
    assert_int_equal(stats.reads, 0); /* they are not what was asked */
    close_fixture(&f);
}

/* Reads of the record fail, of the first copy alone. */
static void fail_first_copy(fixture *f, uint32_t record)
{
    md_key key = {f->inventory.records[record].layer, MD_EXPERT,
                  f->inventory.records[record].expert};
    md_record found;

    assert_true(md_container_find(f->container, key, &found));
    f->gate.failing = (off_t)found.offset;
    f->gate.failing_fd = found.fd;
}

static void a_hint_that_is_hurried_while_it_is_read_stays_urgent_when_it_fails(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""};

    (void)state;
    open_copies(&f, true, 0, true);
    fail_first_copy(&f, 5);
    assert_true(ask(&f, 5, false));
    gate_wait_begun(&f.gate, 1);
    assert_true(ask(&f, 6, true));
    gate_hold(&f.gate, offset_of(&f, 6));
    en_tier_disk_hurry(f.disk, 5);
    gate_open(&f.gate);
    assert_int_equal(finish_one(&f, 5, &err),
                     RT_OK); /* of the other copy, before what came later */
    check_bytes(&f, 5);
    gate_hold(&f.gate, 0);
    assert_int_equal(finish_one(&f, 6, &err), RT_OK);
    assert_int_equal(en_tier_disk_get_stats(f.disk).failures, 1);
    close_fixture(&f);
}

/* A hint's first copy cannot be read, and while it waits for its turn the scrub finds the other one bad. */
static void what_the_scrub_finds_out_leaves_no_read_without_a_copy(void **state)
{
    static fixture f;
    rt_err err = {RT_OK, ""}, found = {RT_EFORMAT, "a test's record"};

    (void)state;
    open_copies(&f, true, 0, true);
    fail_first_copy(&f, 5);
    assert_true(ask(&f, 5, false));
    gate_wait_begun(&f.gate, 1);
    assert_true(ask(&f, 6, true));
    gate_hold(&f.gate, offset_of(&f, 6));
    gate_open(&f.gate);
    gate_wait_begun(&f.gate, 2);
    pthread_mutex_lock(&f.disk->lock);
    en_disk_quarantine(f.disk, 5, 1, &found);
    pthread_mutex_unlock(&f.disk->lock);
    gate_hold(&f.gate, 0);
    assert_int_equal(finish_one(&f, 6, &err), RT_OK);
    assert_int_equal(finish_one(&f, 5, &err), RT_OK);
    check_bytes(&f, 5);
    close_fixture(&f);
}

/* A disk that never answers. The child ends by the stop's grace; nothing is left to close. */
static void wait_for_good(int told)
{
    static fixture f;
    en_disk_done done;
    rt_err err;

    dup2(told, STDERR_FILENO);
    rt_stop_install();
    open_fixture(&f, true, 0);
    f.disk->spec.warn_ns = 1;
    assert_true(ask(&f, 3, true));
    (void)en_tier_disk_next(f.disk, true, &done, &err);
}

/* The same while closing. */
static void close_for_good(int told)
{
    static fixture f;

    dup2(told, STDERR_FILENO);
    rt_stop_install();
    open_fixture(&f, true, 0);
    f.disk->spec.warn_ns = 1;
    assert_true(ask(&f, 3, true));
    gate_wait_begun(&f.gate, 1);
    close_fixture(&f);
}

static void check_it_is_told_and_can_be_stopped(void (*run)(int told))
{
    char text[1 << 16] = "";
    size_t used = 0;
    bool stopped = false;
    ssize_t got;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    model_of_parent = build_model();
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        run(ends[1]);
        _exit(99);
    }
    close(ends[1]);
    while ((got = read(ends[0], text + used, sizeof(text) - used - 1)) > 0) {
        used += (size_t)got;
        text[used] = '\0';
        if (stopped || strstr(text, "experts-001.bin: waiting for it") == NULL) continue;
        stopped = true;
        assert_int_equal(kill(child, SIGTERM), 0);
    }
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    temp_dir_remove(model_of_parent);
    model_of_parent = NULL;
    assert_true(stopped);
    assert_non_null(strstr(text, "stopped while waiting for "));
    assert_non_null(
        strstr(strstr(text, "stopped while waiting for "), "experts-001.bin, INCOMPLETE\n"));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

static void a_disk_that_does_not_answer_is_named_and_does_not_hold_up_a_stop(void **state)
{
    (void)state;
    check_it_is_told_and_can_be_stopped(wait_for_good);
    check_it_is_told_and_can_be_stopped(close_for_good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_urgent_is_read_first_and_a_hurried_hint_with_it),
        cmocka_unit_test(what_has_not_begun_can_be_given_up),
        cmocka_unit_test(the_queue_is_bounded_and_closing_drops_it),
        cmocka_unit_test(a_disk_reads_two_pieces_of_one_record_at_a_time_and_in_turn),
        cmocka_unit_test(a_piece_that_cannot_be_read_ends_its_record_alone),
        cmocka_unit_test(a_wrong_byte_in_any_piece_is_found),
        cmocka_unit_test(what_has_begun_is_not_given_up_and_can_be_hurried),
        cmocka_unit_test(the_background_finds_what_the_disk_has_spoilt),
        cmocka_unit_test(a_hint_that_is_hurried_while_it_is_read_stays_urgent_when_it_fails),
        cmocka_unit_test(what_the_scrub_finds_out_leaves_no_read_without_a_copy),
        cmocka_unit_test(a_disk_that_does_not_answer_is_named_and_does_not_hold_up_a_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
