/* test_team.c - every chunk once, whatever the threads; a float environment that is guarded. */
/* wrap: pthread_create aligned_alloc */
#include "base/team.h"

#include "tests/support/capture.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum { CHUNKS_MAX = 5000 };

static bool no_thread, no_memory;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    return no_thread ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return no_memory ? NULL : __real_aligned_alloc(alignment, bytes);
}

static rt_team *make_team(uint32_t threads, uint32_t spin_us)
{
    rt_team_spec spec = {.threads = threads, .spin_us = spin_us};
    rt_team *team = NULL;

    assert_int_equal(rt_team_create(&spec, &team, NULL), RT_OK);
    return team;
}

typedef struct {
    _Atomic uint32_t runs[CHUNKS_MAX];
    _Atomic uint64_t sum;
    _Atomic uint32_t member_max;
} tally;

static void count_chunk(void *context, size_t chunk, uint32_t member)
{
    tally *t = context;
    uint32_t seen = atomic_load(&t->member_max);

    atomic_fetch_add(&t->runs[chunk], 1);
    atomic_fetch_add(&t->sum, chunk * chunk);
    while (member > seen && !atomic_compare_exchange_weak(&t->member_max, &seen, member)) {
    }
}

static void run_and_check(rt_team *team, size_t chunks)
{
    static tally t; /* too big for a stack */
    uint64_t expected = 0;

    memset(&t, 0, sizeof(t));
    rt_team_run(team, count_chunk, &t, chunks);
    for (size_t i = 0; i < CHUNKS_MAX; i++) {
        assert_int_equal(t.runs[i], i < chunks ? 1 : 0);
        if (i < chunks) expected += i * i;
    }
    assert_true(t.sum == expected);
    assert_true(t.member_max < rt_team_size(team));
}

static void every_chunk_runs_once_with_any_number_of_threads(void **state)
{
    static const uint32_t threads[] = {0, 1, 2, 3, 4, 8};
    static const size_t chunks[] = {0, 1, 2, 3, 7, 64, CHUNKS_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        rt_team *team = make_team(threads[i], 0);

        assert_int_equal(rt_team_size(team), threads[i] > 0 ? threads[i] : 1);
        for (size_t k = 0; k < sizeof(chunks) / sizeof(chunks[0]); k++)
            run_and_check(team, chunks[k]);
        rt_team_free(team);
    }
}

/* Many short jobs of changing width: members arrive late, from sleep and from spinning. */
static void many_jobs_in_a_row_lose_and_repeat_nothing(void **state)
{
    static const uint32_t spins_us[] = {0, 20};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        rt_team *team = make_team(i == 0 ? 4 : 2, spins_us[i]);

        for (size_t job = 0; job < 3000; job++) {
            tally t = {.sum = 0}; /* 20 kB */
            size_t chunks = 2 + job % 13;
            uint64_t expected = 0;

            rt_team_run(team, count_chunk, &t, chunks);
            for (size_t c = 0; c < chunks; c++)
                expected += c * c;
            assert_true(t.sum == expected);
        }
        rt_team_free(team);
    }
}

typedef struct {
    double values[512];
    double results[512];
} rows;

static void square_row(void *context, size_t chunk, uint32_t member)
{
    rows *r = context;

    (void)member;
    r->results[chunk] = r->values[chunk] * r->values[chunk] + 1;
}

static void results_are_the_same_bits_with_and_without_threads(void **state)
{
    static rows alone, shared;
    rt_team *one = make_team(1, 0), *four = make_team(4, 5);

    (void)state;
    for (int i = 0; i < 512; i++)
        alone.values[i] = shared.values[i] = 1.0 / (i + 3);
    rt_team_run(one, square_row, &alone, 512);
    rt_team_run(four, square_row, &shared, 512);
    assert_memory_equal(alone.results, shared.results, sizeof(alone.results));
    rt_team_free(one);
    rt_team_free(four);
}

static void teams_come_and_go(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        rt_team *team = make_team(3, i % 2 == 0 ? 0 : 10);

        if (i % 3 != 0) run_and_check(team, 10);
        rt_team_free(team);
    }
    rt_team_free(NULL);
}

static void two_teams_do_not_mix(void **state)
{
    rt_team *a = make_team(2, 0), *b = make_team(3, 0);

    (void)state;
    for (int i = 0; i < 50; i++) {
        run_and_check(a, 20);
        run_and_check(b, 30);
    }
    rt_team_free(a);
    run_and_check(b, 30);
    rt_team_free(b);
}

static void create_refuses_absurd_counts_and_reports_shortage(void **state)
{
    rt_team_spec absurd = {.threads = 1000000}, two = {.threads = 2};
    rt_team *team = NULL;
    rt_err err;

    (void)state;
    assert_int_equal(rt_team_create(&absurd, &team, &err), RT_EINVAL);
    assert_non_null(strstr(err.text, "found 1000000"));
    no_memory = true;
    assert_int_equal(rt_team_create(&two, &team, &err), RT_ENOMEM);
    no_memory = false;
    no_thread = true;
    assert_int_equal(rt_team_create(&two, &team, &err), RT_ENOMEM);
    no_thread = false;
    assert_null(team);
    assert_non_null(strstr(err.text, "team of 2 threads"));
}

static void check_signals(void *context, size_t chunk, uint32_t member)
{
    _Atomic uint32_t *open = context;
    sigset_t blocked;

    (void)chunk;
    if (member == 0) return;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGTERM) ||
        sigismember(&blocked, SIGSEGV))
        atomic_fetch_add(open, 1);
}

static void signals_stay_with_the_caller(void **state)
{
    rt_team *team = make_team(3, 0);
    _Atomic uint32_t open = 0;
    sigset_t blocked;

    (void)state;
    for (int i = 0; i < 20; i++)
        rt_team_run(team, check_signals, &open, 64);
    assert_int_equal(open, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    assert_false(sigismember(&blocked, SIGINT));
    rt_team_free(team);
}

static void usable_processors_follow_the_affinity_mask(void **state)
{
    cpu_set_t all, one;

    (void)state;
    assert_true(rt_cpus_usable() >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    assert_true(rt_cpus_usable() <= (uint32_t)CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_SET(cpu, &one);
        break;
    }
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(rt_cpus_usable(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

#ifdef __SSE__
static void look_at_mxcsr(void *context, size_t chunk, uint32_t member)
{
    _Atomic uint32_t *wrong = context;

    (void)chunk;
    (void)member;
    if ((_mm_getcsr() & ~0x3fu) != 0x1f80) atomic_fetch_add(wrong, 1);
}

/* The caller's MXCSR is off before the team exists: members must not inherit that. */
static void members_start_with_the_one_float_environment(void **state)
{
    _Atomic uint32_t wrong = 0;
    rt_team *team;

    (void)state;
    _mm_setcsr(0x1f80 | 0x8040); /* flush to zero, denormals are zero */
    team = make_team(4, 0);
    for (int i = 0; i < 20; i++)
        rt_team_run(team, look_at_mxcsr, &wrong, 64);
    assert_int_equal(wrong, 0);
    assert_int_equal(_mm_getcsr() & ~0x3fu, 0x1f80);
    rt_team_free(team);
}

typedef struct {
    uint32_t size;
    uint32_t victim; /* the member that a careless library spoils */
    _Atomic uint32_t arrived;
} spoiling;

/* As many chunks as members, each of which waits for the others: every member takes one. */
static void spoil_one_member(void *context, size_t chunk, uint32_t member)
{
    spoiling *s = context;

    (void)chunk;
    if (member == s->victim) _mm_setcsr(0x1f80 | 0x8000);
    atomic_fetch_add(&s->arrived, 1);
    while (atomic_load(&s->arrived) % s->size != 0) {
    }
}

static void spoil_and_run(void *context)
{
    spoiling *s = context;
    rt_team *team = make_team(s->size, 0);

    signal(SIGABRT, SIG_DFL);
    rt_team_run(team, spoil_one_member, s, s->size);
    rt_team_run(team, spoil_one_member, s, s->size);
}

static void flush_to_zero_is_caught_before_the_next_job(void **state)
{
    spoiling cases[] = {
        {.size = 1, .victim = 0}, {.size = 3, .victim = 0}, {.size = 3, .victim = 2}};
    spoiling harmless = {.size = 3, .victim = 9};

    (void)state;
    assert_int_equal(run_in_child(spoil_and_run, &harmless), 0);
    for (int i = 0; i < 3; i++) {
        int status = run_in_child(spoil_and_run, &cases[i]);

        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGABRT);
    }
}
#endif

static void exceptions_that_only_were_recorded_pass(void **state)
{
    (void)state;
    rt_float_env_set();
    feraiseexcept(FE_INEXACT | FE_DIVBYZERO);
    rt_float_env_assert();
}

static void run_nested(void *context, size_t chunk, uint32_t member)
{
    (void)chunk;
    (void)member;
    rt_team_run(*(rt_team **)context, run_nested, context, 1);
}

static void nest(void *context)
{
    rt_team *team = make_team(1, 0);

    (void)context;
    signal(SIGABRT, SIG_DFL);
    rt_team_run(team, run_nested, &team, 1);
}

static void a_job_inside_a_job_is_asserted(void **state)
{
    (void)state;
    assert_true(WIFSIGNALED(run_in_child(nest, NULL)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chunk_runs_once_with_any_number_of_threads),
        cmocka_unit_test(many_jobs_in_a_row_lose_and_repeat_nothing),
        cmocka_unit_test(results_are_the_same_bits_with_and_without_threads),
        cmocka_unit_test(teams_come_and_go),
        cmocka_unit_test(two_teams_do_not_mix),
        cmocka_unit_test(create_refuses_absurd_counts_and_reports_shortage),
        cmocka_unit_test(signals_stay_with_the_caller),
        cmocka_unit_test(usable_processors_follow_the_affinity_mask),
#ifdef __SSE__
        cmocka_unit_test(members_start_with_the_one_float_environment),
        cmocka_unit_test(flush_to_zero_is_caught_before_the_next_job),
#endif
        cmocka_unit_test(exceptions_that_only_were_recorded_pass),
        cmocka_unit_test(a_job_inside_a_job_is_asserted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
