/* parse.c - lets rank 0 alone tell what is wrong with a command line. */
#include "app/parse.h"

#include "app/output.h"
#include "app/verbs.h"
#include "transport/link_mpi.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* With stderr going nowhere. */
static rt_parse_result parse_quietly(const rt_opt_spec *spec, int argc, char **argv, void *values,
                                     const char **positional, uint32_t *positional_count)
{
    int saved = dup(STDERR_FILENO), null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    rt_parse_result result;

    if (saved >= 0 && null_fd >= 0) dup2(null_fd, STDERR_FILENO);
    result = rt_options_parse(spec, argc, argv, values, positional, positional_count);
    if (saved >= 0) {
        dup2(saved, STDERR_FILENO);
        close(saved);
    }
    if (null_fd >= 0) close(null_fd);
    return result;
}

static rt_parse_result parse(const rt_opt_spec *spec, int argc, char **argv, void *values,
                             const char **positional, uint32_t *positional_count)
{
    tr_mpi_world world = tr_mpi_world_get();

    if (world.launched && world.rank > 0) {
        rt_parse_result result =
            parse_quietly(spec, argc, argv, values, positional, positional_count);

        if (result != RT_PARSE_USAGE || !app_tells_usage_error()) return result;
    }
    return rt_options_parse(spec, argc, argv, values, positional, positional_count);
}

bool app_parse(const rt_opt_spec *spec, int argc, char **argv, void *values,
               const char **positional, uint32_t *positional_count, int *code)
{
    rt_parse_result result = parse(spec, argc, argv, values, positional, positional_count);

    if (result == RT_PARSE_OK) return true;
    *code = result == RT_PARSE_HELP ? APP_EXIT_OK : APP_EXIT_USAGE;
    return false;
}
