/* stop.c - the handlers behind rt_stop_requested.
 *
 * SA_RESTART is left out on purpose: a read of stdin or a sleep in poll ends with EINTR, and its
 * loop gets to see the flag. The grace timer repeats, so that a call begun just after the flag was
 * looked at is interrupted too. */
#include "base/stop.h"

#include "base/check.h"

#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

static _Atomic int stop_signal;

static_assert(ATOMIC_INT_LOCK_FREE == 2, "a handler may only touch lock-free atomics");

static const char *_Atomic waiting_for;
static atomic_bool blocking;

static_assert(ATOMIC_POINTER_LOCK_FREE == 2, "a handler may only touch lock-free atomics");

static void start_grace(void)
{
    const struct itimerval grace = {.it_value = {.tv_usec = RT_STOP_GRACE_MS * 1000}};

    setitimer(ITIMER_REAL, &grace, NULL);
}

static void on_signal(int number)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&stop_signal, &none, number)) _exit(128 + number);
    start_grace();
}

/* Only write(2) and _exit here: the main thread may be anywhere, also inside malloc. */
static void on_grace_over(int number)
{
    const char *whom = atomic_load(&waiting_for);
    struct iovec line[] = {{(void *)"moesaic: stopped while waiting for ", 35},
                           {(void *)whom, 0},
                           {(void *)", INCOMPLETE\n", 13}};

    (void)number;
    if (whom == NULL ||
        !atomic_load(
            &blocking)) { /* the main loop is on its way out, or in work that ends by itself */
        start_grace();
        return;
    }
    while (whom[line[1].iov_len] != '\0')
        line[1].iov_len++;
    if (writev(STDERR_FILENO, line, 3) < 0) _exit(1);
    _exit(1);
}

const char *rt_stop_waiting_for(const char *whom)
{
    return atomic_exchange_explicit(&waiting_for, whom, memory_order_relaxed);
}

void rt_stop_blocking(bool inside)
{
    atomic_store_explicit(&blocking, inside, memory_order_relaxed);
}

void rt_stop_install(void)
{
    struct sigaction stop = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    struct sigaction grace = {.sa_handler = on_grace_over};

    sigemptyset(&stop.sa_mask);
    sigemptyset(&ignore.sa_mask);
    sigemptyset(&grace.sa_mask);
    RT_ASSERT(sigaction(SIGINT, &stop, NULL) == 0);
    RT_ASSERT(sigaction(SIGTERM, &stop, NULL) == 0);
    RT_ASSERT(sigaction(SIGALRM, &grace, NULL) == 0);
    RT_ASSERT(sigaction(SIGPIPE, &ignore, NULL) == 0);
    RT_ASSERT(sigaction(SIGXFSZ, &ignore, NULL) == 0);
}

bool rt_stop_requested(void)
{
    return rt_stop_signal() != 0;
}

int rt_stop_signal(void)
{
    return atomic_load_explicit(&stop_signal, memory_order_relaxed);
}
