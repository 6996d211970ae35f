/* stop.c - the handlers behind rt_stop_requested.
 *
 * SA_RESTART is left out on purpose: a read of stdin or a sleep in poll ends with EINTR, and its
 * loop gets to see the flag. */
#include "base/stop.h"

#include "base/check.h"

#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>
#include <unistd.h>

static _Atomic int stop_signal;

static_assert(ATOMIC_INT_LOCK_FREE == 2, "a handler may only touch lock-free atomics");

static void on_signal(int number)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&stop_signal, &none, number)) _exit(128 + number);
}

void rt_stop_install(void)
{
    struct sigaction stop = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};

    sigemptyset(&stop.sa_mask);
    sigemptyset(&ignore.sa_mask);
    RT_ASSERT(sigaction(SIGINT, &stop, NULL) == 0);
    RT_ASSERT(sigaction(SIGTERM, &stop, NULL) == 0);
    RT_ASSERT(sigaction(SIGPIPE, &ignore, NULL) == 0);
}

bool rt_stop_requested(void)
{
    return rt_stop_signal() != 0;
}

int rt_stop_signal(void)
{
    return atomic_load_explicit(&stop_signal, memory_order_relaxed);
}
