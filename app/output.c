/* output.c - stdio's own error flag forgets why; so the reason is kept or asked for. */
#include "app/output.h"

#include "app/verbs.h"
#include "base/stop.h"
#include "transport/link_mpi.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void app_stdio_open(void)
{
    /* The lowest free descriptor is the one that is opened. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", O_RDWR);
}

/* Whether the reader of a pipe is gone, for a write that failed earlier, whose errno is lost. */
static bool reader_is_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

int app_stdout_finish(const char *verb, int code)
{
    static bool failed; /* for good: a later success would only hide the gap */
    bool failed_before = ferror(stdout) != 0;
    int why = fflush(stdout) == 0 ? 0 : errno;

    clearerr(stdout);
    if (failed) return APP_EXIT_FAILED;
    if (!failed_before && why == 0) return code;
    if (why == EPIPE || (why == 0 && reader_is_gone())) return code;
    fprintf(stderr, "moesaic %s: stdout: %s\n", verb, strerror(why == 0 ? EIO : why));
    failed = true;
    return APP_EXIT_FAILED;
}

bool app_json_print(const char *verb, json_t *root)
{
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);

    json_decref(root);
    if (text == NULL) {
        fprintf(stderr, "moesaic %s: no memory for the JSON\n", verb);
        return false;
    }
    (void)puts(text);
    free(text);
    return true;
}

json_t *app_json_text(const char *text)
{
    json_t *value = json_string(text);
    char *plain;

    if (value != NULL) return value;
    plain = strdup(text);
    for (char *at = plain; at != NULL && *at != '\0'; at++)
        if ((unsigned char)*at >= 0x80) *at = '?';
    if (plain != NULL) value = json_string(plain);
    free(plain);
    return value;
}

int app_failed(const char *verb, bool json, const char *text)
{
    fprintf(stderr, "moesaic %s: %s\n", verb, text);
    if (json) (void)app_json_print(verb, json_pack("{s:o}", "error", app_json_text(text)));
    return APP_EXIT_FAILED;
}

bool app_tells_usage_error(void)
{
    enum { WAIT_MS = 1000, STEP_MS = 20 };
    tr_mpi_world world = tr_mpi_world_get();
    char host[64] = "";

    if (!world.launched || world.rank == 0) return true;
    for (int waited = 0; waited < WAIT_MS && !rt_stop_requested(); waited += STEP_MS)
        (void)poll(NULL, 0, STEP_MS);
    if (rt_stop_requested()) return false;
    (void)gethostname(host, sizeof(host) - 1);
    fprintf(stderr, "moesaic: rank %u (host %s) has a command line or environment of its own:\n",
            world.rank, host);
    return true;
}

int app_usage_error(const char *verb, const char *fmt, ...)
{
    char text[512];
    va_list args;

    if (!app_tells_usage_error()) return APP_EXIT_USAGE;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(stderr, "moesaic %s: %s (see moesaic %s --help)\n", verb, text, verb);
    return APP_EXIT_USAGE;
}
