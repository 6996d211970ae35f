/* test_stop.c - the first signal asks, the second ends; a closed pipe is an error code. */
#include "base/stop.h"

#include "tests/support/capture.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
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

/* run_in_child silences stderr, so the handler's line goes into a pipe. */
static int line_pipe[2];

static void waits_in_a_library_for_good(void *context)
{
    dup2(line_pipe[1], STDERR_FILENO);
    rt_stop_install();
    rt_stop_waiting_for(context);
    rt_stop_blocking(true);
    raise(SIGTERM);
    for (;;)
        pause();
}

static void answers_in_time(void *context)
{
    (void)context;
    rt_stop_install();
    rt_stop_waiting_for("rank 9");
    rt_stop_blocking(true);
    raise(SIGTERM);
    rt_stop_blocking(false);
    pause(); /* until the grace is over: no call is stuck, so nothing happens */
    _exit(CLAIM_HOLDS);
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

static void writes_beyond_a_file_limit(void *context)
{
    const struct rlimit limit = {1, 1};
    char name[] = "/tmp/test_stop_XXXXXX";
    int fd = mkstemp(name);

    (void)context;
    rt_stop_install();
    if (fd < 0 || unlink(name) != 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0) return;
    if (write(fd, "xy", 2) == 1 && write(fd, "z", 1) == -1 && errno == EFBIG) _exit(CLAIM_HOLDS);
}

static void a_file_beyond_its_limit_is_an_efbig(void **state)
{
    int status = run_in_child(writes_beyond_a_file_limit, NULL);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), CLAIM_HOLDS);
}

static void reads_after_the_flag_was_looked_at(void *context)
{
    int ends[2];
    char byte;

    (void)context;
    if (pipe(ends) != 0) return;
    rt_stop_install();
    raise(SIGTERM); /* as if it came between the look and the read */
    if (read(ends[0], &byte, 1) == -1 && errno == EINTR) _exit(CLAIM_HOLDS);
}

static void a_read_begun_just_after_the_stop_is_interrupted(void **state)
{
    int status = run_in_child(reads_after_the_flag_was_looked_at, NULL);

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), CLAIM_HOLDS);
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

static void a_wait_that_never_returns_ends_with_its_peer_named(void **state)
{
    char text[128] = {0};
    int status;

    (void)state;
    assert_int_equal(pipe(line_pipe), 0);
    status = run_in_child(waits_in_a_library_for_good, (void *)"rank 2 (host a, pid 17)");
    close(line_pipe[1]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_true(read(line_pipe[0], text, sizeof(text) - 1) > 0);
    close(line_pipe[0]);
    assert_string_equal(text,
                        "moesaic: stopped while waiting for rank 2 (host a, pid 17), INCOMPLETE\n");
}

static void a_wait_that_is_over_leaves_the_end_to_the_main_loop(void **state)
{
    int status = run_in_child(answers_in_time, NULL);

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
        cmocka_unit_test(a_file_beyond_its_limit_is_an_efbig),
        cmocka_unit_test(a_read_begun_just_after_the_stop_is_interrupted),
        cmocka_unit_test(a_wait_that_never_returns_ends_with_its_peer_named),
        cmocka_unit_test(a_wait_that_is_over_leaves_the_end_to_the_main_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
