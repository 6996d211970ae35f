/* main.c - picks the verb. The only file besides base/check.c that may end the process. */
#include "app/output.h"
#include "app/verbs.h"
#include "base/options.h"
#include "base/stop.h"
#include "base/team.h"
#include "transport/link_mpi.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name;
    const rt_opt_spec *spec;
    int (*run)(int argc, char **argv);
    const char *doc;
} verb;

static const verb verbs[] = {
    {"run", &app_spec_run, app_verb_run,
     "generate text from a prompt, in one process or under mpirun"},
    {"verify", &app_spec_verify, app_verb_verify,
     "compare a model's every logit and choice with a reference"},
    {"convert", &app_spec_convert, app_verb_convert, "turn a checkpoint into a container"},
    {"import", &app_spec_import, app_verb_import,
     "take over a quantised model of the colibri engine, bit for bit"},
    {"inspect", &app_spec_inspect, app_verb_inspect,
     "print what a container holds; --deep checks every hash"},
    {"heat", &app_spec_heat, app_verb_heat, "show, import or forget which experts are chosen most"},
    {"plan", &app_spec_plan, app_verb_plan,
     "say what a model needs and how fast it would be, before a download"},
    {"doctor", &app_spec_doctor, app_verb_doctor,
     "check this machine, and a model on it; say what to do"},
    {"status", &app_spec_status, app_verb_status,
     "look at a model: what is there, what fits, what to run next"},
    {"bench", &app_spec_bench, app_verb_bench,
     "time memory and kernels; --selfcheck proves their bits"},
    {"version", &app_spec_version, app_verb_version,
     "print version, numerics id and what is built in"},
};

enum { VERB_COUNT = sizeof(verbs) / sizeof(verbs[0]), OUT_BYTES = 1 << 18 };

static void print_help(FILE *out)
{
    fprintf(out,
            "Usage: moesaic VERB [OPTION...] [ARGUMENT...]\n"
            "GLM-5.2 on the machines you have: the same tokens, wherever the experts are.\n\n");
    for (int i = 0; i < VERB_COUNT; i++)
        fprintf(out, "  %-10s %s\n", verbs[i].name, verbs[i].doc);
    fprintf(out, "\n`moesaic VERB --help` or `moesaic help VERB` lists a verb's options.\n"
                 "Under mpirun -n N, rank 0 attends and the other ranks hold the experts.\n");
}

/* Only rank 0 of an mpirun job may write results: the others' stdout goes nowhere. */
static void silence_other_ranks(void)
{
    tr_mpi_world world = tr_mpi_world_get();
    int null_fd;

    if (!world.launched || world.rank == 0) return;
    null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null_fd < 0) return;
    dup2(null_fd, STDOUT_FILENO);
    close(null_fd);
}

static const verb *find_verb(const char *name)
{
    for (int i = 0; i < VERB_COUNT; i++)
        if (strcmp(name, verbs[i].name) == 0) return &verbs[i];
    return NULL;
}

static int no_such_verb(const char *name)
{
    fprintf(stderr, "moesaic: no verb '%s'; there are:", name);
    for (int i = 0; i < VERB_COUNT; i++)
        fprintf(stderr, " %s", verbs[i].name);
    fprintf(stderr, "\n");
    return APP_EXIT_USAGE;
}

static void warn_of_unknown_variables(void)
{
    tr_mpi_world world = tr_mpi_world_get();
    const rt_opt_spec *specs[VERB_COUNT];

    if (world.launched && world.rank > 0) return;
    for (int i = 0; i < VERB_COUNT; i++)
        specs[i] = verbs[i].spec;
    rt_env_warn_unknown(specs, VERB_COUNT);
}

/* argv[0] is the verb's name. */
static int run_verb(const verb *chosen, int argc, char **argv)
{
    warn_of_unknown_variables();
    rt_stop_install();
    rt_float_env_set();
    return app_stdout_finish(chosen->name, chosen->run(argc, argv));
}

/* `moesaic help`, or `moesaic help VERB`. */
static int help(int argc, char **argv)
{
    char option[] = "--help";
    char *of_verb[] = {argc > 1 ? argv[1] : option, option, NULL};
    const verb *chosen = argc > 1 ? find_verb(argv[1]) : NULL;

    if (chosen != NULL) return run_verb(chosen, 2, of_verb);
    if (argc > 1) return no_such_verb(argv[1]);
    rt_stop_install(); /* a closed pipe is no signal */
    print_help(stdout);
    return app_stdout_finish("help", APP_EXIT_OK);
}

int main(int argc, char **argv)
{
    static char buffer[OUT_BYTES];
    const verb *chosen;

    app_stdio_open();
    /* Results are written once, at the end, where the reason of a failure is known. `run` streams past
     * this buffer. */
    (void)setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    silence_other_ranks();
    if (argc < 2) {
        print_help(stderr);
        return APP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0 ||
        strcmp(argv[1], "-h") == 0)
        return help(argc - 1, argv + 1);
    if (strcmp(argv[1], "--version") == 0) argv[1] = (char *)"version";
    chosen = find_verb(argv[1]);
    return chosen == NULL ? no_such_verb(argv[1]) : run_verb(chosen, argc - 1, argv + 1);
}
