/* team.c - the open parallel region, the chunk counter and the waiting.
 *
 * The caller is member 0 and must be free to leave between jobs, which no OpenMP region allows its
 * master. So a host thread opens the region, whose members loop over jobs until the team is freed,
 * and the caller works beside them.
 *
 * A job is published as a ticket: generation in the high half, next chunk in the low half. A member
 * claims a chunk by one compare-and-swap on the whole ticket, so a member that slept through a job
 * can never claim a chunk of another job than the one whose fields it has read, and run() need not
 * wait for members that took no chunk. Rejected: a barrier per job, which waits for every member to
 * be scheduled once, 10 ms and more when threads exceed cores. */
#include "base/team.h"

#include "base/cgroup.h"
#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <fenv.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum {
    THREADS_MAX = 4096,   /* a typing mistake, not a machine */
    SPIN_FLOOR_NS = 1000, /* where an adaptive spin stays once spinning has stopped paying */
    SPIN_CHECKS = 32,     /* pauses between two looks at the clock */
    CACHE_LINE = 64,
};

static const uint32_t CHUNK_CLOSED = UINT32_MAX; /* a ticket whose fields are being written */

struct rt_team {
    uint32_t threads; /* as asked, caller included */
    uint32_t spin_ns;
    pthread_t host;
    bool host_started;
    bool running; /* owner only: run() does not nest */
    uint32_t generation;
    uint32_t owner_spin_ns;

    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    /* The job of the ticket's generation. Atomic since a late member may read them while the owner
     * writes the next job; what it read is then thrown away by the failing claim. */
    _Atomic(rt_team_job) job;
    _Atomic(void *) context;
    _Atomic uint32_t chunks;

    _Alignas(CACHE_LINE) _Atomic uint32_t pending; /* chunks not finished; owner waits for 0 */
    _Atomic bool owner_sleeps;

    _Alignas(CACHE_LINE) _Atomic uint32_t wake; /* generation; members wait for it to change */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Atomic uint32_t size;  /* caller included; 0 until the region is open */
    _Atomic uint32_t ready; /* members of the region that have started */
};

void rt_float_env_set(void)
{
#ifdef __SSE__
    _mm_setcsr(0x1f80);
#else
    fesetenv(FE_DFL_ENV);
#endif
}

void rt_float_env_assert(void)
{
#ifdef __SSE__
    /* The low six bits only record what has happened. */
    RT_ASSERT((_mm_getcsr() & ~0x3fu) == 0x1f80);
#else
    RT_ASSERT(fegetround() == FE_TONEAREST);
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t waiters)
{
    int count = waiters < INT32_MAX ? (int)waiters : INT32_MAX;

    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_cpu(void)
{
#ifdef __SSE__
    _mm_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Spins until *word differs from `old` or the spin time is used up; true if it differs. Adapts the
 * time: a spin that paid may grow again, one that did not is halved. */
static bool spin_while(const _Atomic uint32_t *word, uint32_t old, uint32_t *spin_ns,
                       uint32_t spin_max_ns)
{
    uint64_t start;

    if (atomic_load_explicit(word, memory_order_acquire) != old) return true;
    if (*spin_ns == 0) return false;
    start = now_ns();
    do {
        for (int i = 0; i < SPIN_CHECKS; i++) {
            pause_cpu();
            if (atomic_load_explicit(word, memory_order_acquire) != old) {
                *spin_ns = *spin_ns <= spin_max_ns / 2 ? *spin_ns * 2 : spin_max_ns;
                return true;
            }
        }
    } while (now_ns() - start < *spin_ns);
    if (*spin_ns / 2 >= SPIN_FLOOR_NS) *spin_ns /= 2;
    return false;
}

/* Runs chunks of the current job until none is left to claim; returns how many. */
static uint32_t work(rt_team *team, uint32_t member)
{
    uint32_t done = 0;

    for (;;) {
        uint64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
        uint32_t chunks = atomic_load_explicit(&team->chunks, memory_order_acquire);
        rt_team_job job = atomic_load_explicit(&team->job, memory_order_acquire);
        void *context = atomic_load_explicit(&team->context, memory_order_acquire);
        uint32_t chunk = (uint32_t)ticket;

        if (chunk >= chunks) return done;
        /* The owner closes the ticket before it writes the fields, so success here proves that
         * all three belong to this ticket. */
        if (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, ticket + 1,
                                                   memory_order_acq_rel, memory_order_relaxed))
            continue;
        job(context, chunk, member);
        done++;
    }
}

static void finish(rt_team *team, uint32_t done)
{
    if (done == 0) return;
    if (atomic_fetch_sub(&team->pending, done) == done && atomic_load(&team->owner_sleeps))
        futex_wake(&team->pending, 1);
}

/* Returns the generation that ended the wait. */
static uint32_t wait_for_job(rt_team *team, uint32_t seen, uint32_t *spin_ns)
{
    if (!spin_while(&team->wake, seen, spin_ns, team->spin_ns)) {
        atomic_fetch_add(&team->sleepers, 1);
        while (atomic_load(&team->wake) == seen)
            futex_wait(&team->wake, seen);
        atomic_fetch_sub(&team->sleepers, 1);
    }
    return atomic_load_explicit(&team->wake, memory_order_acquire);
}

static void member_loop(rt_team *team, uint32_t member)
{
    uint32_t seen = 0, spin_ns = team->spin_ns;

    rt_float_env_set();
    atomic_fetch_add(&team->ready, 1);
    futex_wake(&team->ready, 1);
    for (;;) {
        seen = wait_for_job(team, seen, &spin_ns);
        if (atomic_load(&team->stop)) return;
        rt_float_env_assert();
        finish(team, work(team, member));
    }
}

static void *host_main(void *argument)
{
    rt_team *team = argument;

    omp_set_dynamic(0);
#pragma omp parallel num_threads(team->threads - 1) default(none) shared(team)
    {
        if (omp_get_thread_num() == 0)
            atomic_store(&team->size, (uint32_t)omp_get_num_threads() + 1);
        member_loop(team, (uint32_t)omp_get_thread_num() + 1);
    }
    return NULL;
}

/* Signals of the process belong to the thread that waits for them, never to a member in a kernel.
 * Those a thread raises by its own fault stay open. */
static int start_host(rt_team *team)
{
    sigset_t blocked, previous;
    int error;

    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &blocked, &previous);
    error = pthread_create(&team->host, NULL, host_main, team);
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    return error;
}

/* Until every member stands in its loop: a first job would otherwise find a team half there. */
static void await_members(rt_team *team)
{
    for (;;) {
        uint32_t ready = atomic_load(&team->ready);
        uint32_t size = atomic_load(&team->size);

        if (size != 0 && ready == size - 1) return;
        futex_wait(&team->ready, ready);
    }
}

rt_status rt_team_create(const rt_team_spec *spec, rt_team **out, rt_err *err)
{
    rt_team *team;
    int error;

    if (spec->threads > THREADS_MAX)
        return rt_fail(err, RT_EINVAL, "threads: expected at most %d, found %u", THREADS_MAX,
                       spec->threads);
    team = aligned_alloc(CACHE_LINE, sizeof(*team));
    if (team == NULL) return rt_fail(err, RT_ENOMEM, "team of %u threads", spec->threads);
    memset(team, 0, sizeof(*team));
    team->threads = spec->threads > 0 ? spec->threads : 1;
    /* Spinning pays on cores of one's own only; beyond them it takes time from those who work. */
    if (team->threads <= rt_cpus_usable())
        team->spin_ns = spec->spin_us < 1000000 ? spec->spin_us * 1000 : 1000000000;
    team->owner_spin_ns = team->spin_ns;
    atomic_store(&team->ticket, CHUNK_CLOSED);
    rt_float_env_set();
    if (team->threads > 1) {
        error = start_host(team);
        if (error != 0) {
            free(team);
            return rt_fail(err, RT_ENOMEM, "team of %u threads: %s", spec->threads,
                           strerror(error));
        }
        team->host_started = true;
        await_members(team);
        if (rt_team_size(team) != team->threads)
            rt_log_warn("team", "threads asked %u granted %u (a limit such as OMP_THREAD_LIMIT)",
                        team->threads, rt_team_size(team));
    } else {
        atomic_store(&team->size, 1);
    }
    *out = team;
    return RT_OK;
}

void rt_team_free(rt_team *team)
{
    if (team == NULL) return;
    RT_ASSERT(!team->running);
    if (team->host_started) {
        atomic_store(&team->stop, true);
        atomic_store(&team->wake, team->generation + 1);
        futex_wake(&team->wake, UINT32_MAX);
        pthread_join(team->host, NULL);
    }
    free(team);
}

uint32_t rt_team_size(const rt_team *team)
{
    return atomic_load_explicit(&team->size, memory_order_relaxed);
}

static void publish(rt_team *team, rt_team_job job, void *context, uint32_t chunks)
{
    uint64_t generation = ++team->generation;
    uint32_t sleepers;

    atomic_store(&team->ticket, generation << 32 | CHUNK_CLOSED);
    atomic_store_explicit(&team->job, job, memory_order_release);
    atomic_store_explicit(&team->context, context, memory_order_release);
    atomic_store_explicit(&team->chunks, chunks, memory_order_release);
    atomic_store_explicit(&team->pending, chunks, memory_order_release);
    atomic_store(&team->ticket, generation << 32);
    atomic_store(&team->wake, (uint32_t)generation);
    /* Either a member that goes to sleep sees the new wake, or we see it among the sleepers. */
    sleepers = atomic_load(&team->sleepers);
    if (sleepers > 0) futex_wake(&team->wake, sleepers < chunks - 1 ? sleepers : chunks - 1);
}

/* The spin ends when anything is reported, so it is repeated while reports come. */
static void await_chunks(rt_team *team)
{
    uint32_t pending;

    while ((pending = atomic_load(&team->pending)) != 0) {
        if (spin_while(&team->pending, pending, &team->owner_spin_ns, team->spin_ns)) continue;
        atomic_store(&team->owner_sleeps, true);
        pending = atomic_load(&team->pending);
        if (pending != 0) futex_wait(&team->pending, pending);
        atomic_store(&team->owner_sleeps, false);
    }
}

void rt_team_run(rt_team *team, rt_team_job job, void *context, size_t chunks)
{
    RT_ASSERT(!team->running);
    RT_ASSERT(chunks < CHUNK_CLOSED);
    rt_float_env_assert();
    team->running = true;
    if (rt_team_size(team) == 1 || chunks <= 1) {
        for (size_t chunk = 0; chunk < chunks; chunk++)
            job(context, chunk, 0);
    } else {
        publish(team, job, context, (uint32_t)chunks);
        finish(team, work(team, 0));
        await_chunks(team);
    }
    team->running = false;
}

/* Counts the affinity mask, whatever the machine's width: the kernel refuses a too small set. */
static uint32_t affinity_cpus(void)
{
    for (size_t width = 1024; width <= 1u << 20; width *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(width);
        cpu_set_t *set = CPU_ALLOC(width);
        int count = 0;

        if (set == NULL) return 1;
        if (sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (count > 0) return (uint32_t)count;
        if (errno != EINVAL) return 1;
    }
    return 1;
}

uint32_t rt_cpus_usable(void)
{
    uint32_t cpus = affinity_cpus();
    double quota = rt_cgroup_limits_read("").cpus;

    /* A part of a processor counts as one: two threads on 1.5 finish more than one does. */
    if (quota > 0 && quota < (double)cpus) {
        uint32_t whole = (uint32_t)quota;

        cpus = (double)whole < quota ? whole + 1 : whole;
    }
    return cpus > 0 ? cpus : 1;
}
