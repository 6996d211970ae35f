/* interruption.h - a conversion that runs in a child, where something happens to it at a durable
 * step, and the conversion that goes on from what it left.
 *
 * A test that uses this wraps the steps: see durable_steps.h. Threads: one test. All functions
 * assert success but for what the conversion itself returns. */
#ifndef TESTS_SUPPORT_INTERRUPTION_H
#define TESTS_SUPPORT_INTERRUPTION_H

#include "model/convert/convert.h"
#include "tests/support/durable_steps.h"

#include <stdbool.h>
#include <stdint.h>

/* Of one run. */
typedef struct {
    int exit_code; /* 0 done, DURABLE_DIED, or 100 + status */
    int steps;     /* 0 when it died */
    uint8_t model_id[32];
} interruption_result;

/* A checkpoint of its own and a target, laid anew for every interruption. */
typedef struct {
    const char *checkpoint; /* of two shards; set by the test before the first lay */
    char *dir, *source, *target;
    md_convert_spec spec;
    interruption_result whole; /* of an undisturbed run; set by the test */
} interruption_ground;

/* A sanitizer makes every run several times slower: it sees every third step. */
#if defined(__SANITIZE_ADDRESS__)
enum { INTERRUPTION_STRIDE = 3 };
#else
enum { INTERRUPTION_STRIDE = 1 };
#endif

/* Converts in a child, with `what` happening at step `at` of it (error: see durable_plan). */
interruption_result interruption_run(const md_convert_spec *spec, uint32_t threads,
                                     durable_event what, int at, int error);

/* Copies the checkpoint to a new source and names a target that is not there; what lay before is
 * removed. The spec converts the one to the other in commits of a few records. */
void interruption_lay(interruption_ground *g, bool consume);
/* Removes what was laid. */
void interruption_take_up(interruption_ground *g);

/* Resumes what an interruption left, and expects the container of an undisturbed run: every record
 * whole, no ledger, and no shard when the spec consumes. what, at: for the message. */
void interruption_expect_resumed(const interruption_ground *g, durable_event what, int at);

#endif
