/* test_stop.c - the first signal asks, the second ends; a closed pipe is an error code. */
#include "base/stop.h"

#include "tests/support/capture.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { CLAIM_HOLDS = 7 };

static void first_signal_only_asks(void *context)
{
    int number = *(const int *)context;

    rt_stop_install();
    if (rt_stop_requested() || rt_stop_signal() != 0) return;
    raise(number);
    if (rt_stop_requested() && rt_stop_signal() == number) _exit(CLAIM_HOLDS);
}

static void second_signal_ends(void *context)
{
    (void)context;
    rt_stop_install();
    raise(SIGINT);
    raise(SIGTERM);
}

static void writes_to_a_closed_pipe(void *context)
{
    int ends[2];

    (void)context;
    rt_stop_install();
    if (pipe(ends) != 0) return;
    close(ends[0]);
    if (write(ends[1], "x", 1) == -1 && errno == EPIPE) _exit(CLAIM_HOLDS);
}

static void the_first_sigint_or_sigterm_sets_the_flag(void **state)
{
    int numbers[] = {SIGINT, SIGTERM};

    (void)state;
    for (int i = 0; i < 2; i++) {
        int status = run_in_child(first_signal_only_asks, &numbers[i]);

        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), CLAIM_HOLDS);
    }
}

static void the_second_signal_ends_the_process(void **state)
{
    int status = run_in_child(second_signal_ends, NULL);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
}

static void a_closed_pipe_is_an_epipe(void **state)
{
    int status = run_in_child(writes_to_a_closed_pipe, NULL);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), CLAIM_HOLDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_sigint_or_sigterm_sets_the_flag),
        cmocka_unit_test(the_second_signal_ends_the_process),
        cmocka_unit_test(a_closed_pipe_is_an_epipe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
