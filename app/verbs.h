/* verbs.h - the verbs of the program: each takes its own arguments and gives the exit code.
 *
 * argv[0] is the verb's name. Exit codes: 0 ok, 1 failed, 2 usage, 3 degraded. stdout carries results
 * only; everything else goes to stderr. main flushes stdout after each verb and reports its failures. */
#ifndef APP_VERBS_H
#define APP_VERBS_H

#include "base/options.h"

enum { APP_EXIT_OK = 0, APP_EXIT_FAILED = 1, APP_EXIT_USAGE = 2, APP_EXIT_DEGRADED = 3 };

int app_verb_run(int argc, char **argv);
int app_verb_verify(int argc, char **argv);
int app_verb_convert(int argc, char **argv);
int app_verb_import(int argc, char **argv);
int app_verb_heat(int argc, char **argv);
int app_verb_inspect(int argc, char **argv);
int app_verb_plan(int argc, char **argv);
int app_verb_doctor(int argc, char **argv);
int app_verb_status(int argc, char **argv);
int app_verb_bench(int argc, char **argv);
int app_verb_version(int argc, char **argv);

/* Their options. */
extern const rt_opt_spec app_spec_run;
extern const rt_opt_spec app_spec_verify;
extern const rt_opt_spec app_spec_convert;
extern const rt_opt_spec app_spec_import;
extern const rt_opt_spec app_spec_heat;
extern const rt_opt_spec app_spec_inspect;
extern const rt_opt_spec app_spec_plan;
extern const rt_opt_spec app_spec_doctor;
extern const rt_opt_spec app_spec_status;
extern const rt_opt_spec app_spec_bench;
extern const rt_opt_spec app_spec_version;

#endif
