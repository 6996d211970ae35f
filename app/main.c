/* main.c - picks the verb. The only file besides base/check.c that may end the process. */
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
    int (*run)(int argc, char **argv);
    const char *doc;
} verb;

static const verb verbs[] = {
    {"run", app_verb_run, "generate text from a prompt, in one process or under mpirun"},
    {"verify", app_verb_verify, "compare a model's every logit and choice with a reference"},
    {"convert", app_verb_convert, "turn a checkpoint into a container"},
    {"inspect", app_verb_inspect, "print what a container holds; --deep checks every hash"},
    {"heat", app_verb_heat, "show, import or forget which experts are chosen most"},
    {"plan", app_verb_plan, "say what a model needs and how fast it would be, before a download"},
    {"doctor", app_verb_doctor, "check this machine, and a model on it; say what to do"},
    {"status", app_verb_status, "look at a model: what is there, what fits, what to run next"},
    {"version", app_verb_version, "print version, numerics id and what is built in"},
};

enum { VERB_COUNT = sizeof(verbs) / sizeof(verbs[0]) };

static void print_help(FILE *out)
{
    fprintf(out,
            "Usage: moesaic VERB [OPTION...] [ARGUMENT...]\n"
            "GLM-5.2 on the machines you have: the same tokens, wherever the experts are.\n\n");
    for (int i = 0; i < VERB_COUNT; i++)
        fprintf(out, "  %-10s %s\n", verbs[i].name, verbs[i].doc);
    fprintf(out, "\n`moesaic VERB --help` lists a verb's options. "
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

int main(int argc, char **argv)
{
    silence_other_ranks();
    if (argc < 2) {
        print_help(stderr);
        return APP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return fflush(stdout) == 0 ? APP_EXIT_OK : APP_EXIT_FAILED;
    }
    if (strcmp(argv[1], "--version") == 0) argv[1] = (char *)"version";
    for (int i = 0; i < VERB_COUNT; i++) {
        if (strcmp(argv[1], verbs[i].name) != 0) continue;
        rt_stop_install();
        rt_float_env_set();
        return verbs[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "moesaic: no verb '%s'; there are:", argv[1]);
    for (int i = 0; i < VERB_COUNT; i++)
        fprintf(stderr, " %s", verbs[i].name);
    fprintf(stderr, "\n");
    return APP_EXIT_USAGE;
}
