/* test_check.c - a broken invariant ends the process and says where. */
#include "base/check.h"

#include "tests/support/capture.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void break_invariant(void *context)
{
    signal(SIGABRT, SIG_DFL); /* a sanitizer may have its own */
    dup2(*(const int *)context, STDERR_FILENO);
    RT_ASSERT(1 + 1 == 3);
}

static void assert_aborts_and_names_the_place(void **state)
{
    capture c;
    char *text;
    int status;

    (void)state;
    c = capture_begin(STDERR_FILENO);
    status = run_in_child(break_invariant, &c.file);
    text = capture_end(&c);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "test_check.c:"));
    assert_non_null(strstr(text, "invariant broken: 1 + 1 == 3\n"));
    free(text);
}

static void assert_that_holds_evaluates_once(void **state)
{
    int count = 0;

    (void)state;
    RT_ASSERT(++count == 1);
    assert_int_equal(count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(assert_aborts_and_names_the_place),
        cmocka_unit_test(assert_that_holds_evaluates_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
