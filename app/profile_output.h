/* profile_output.h - what `run --profile` says: where the time of prefill and of decode went, and which
 * part is the wall.
 *
 * Threads: main. */
#ifndef APP_PROFILE_OUTPUT_H
#define APP_PROFILE_OUTPUT_H

#include "base/profile.h"

#include <jansson.h>
#include <stdio.h>

/* One of the two halves of a run. */
typedef struct {
    rt_profile_counts counts;
    uint64_t processor_ns; /* of all threads of this process */
    uint32_t tokens;       /* rows that went through the model; 0: the half did not take place */
} app_profile_part;

typedef struct {
    app_profile_part prefill, decode;
    double read_bytes_s; /* that the team reads from memory; 0: not known */
    uint32_t threads;    /* of the team, at least 1 */
    uint32_t remote_nodes;
    uint64_t remote_compute_ns, remote_disk_ns; /* summed over them, of the whole run */
} app_profile_report;

/* "the wall is experts in memory: 78 % of the time at 14.1 GB/s of the 15.0 that memory gives", with the
 * phase that took most of the time. A rate is given where the phase touched bytes; far below that of
 * memory it is arithmetic that takes the time, and said so. read_bytes_s 0: not known. */
void app_profile_sentence(const app_profile_part *part, double read_bytes_s, char *text,
                          size_t text_bytes);

/* A table for each half that took place, and the sentence. */
void app_profile_print(const app_profile_report *report, FILE *out);

/* NULL: out of memory. */
json_t *app_profile_json(const app_profile_report *report);

#endif
