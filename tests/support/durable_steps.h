/* durable_steps.h - the steps that make data durable (pwrite, fdatasync, fsync, rename, unlink,
 * ftruncate, mkdir), counted and made to fail.
 *
 * A process that "loses power" also loses what it wrote since the last sync of that file: the old
 * bytes are kept and put back before it dies. Syncs succeed without reaching a disk: nobody cuts
 * this machine's power.
 *
 * A test that uses this is linked with all the steps wrapped, so it carries the line
 * "wrap: pwrite fdatasync fsync rename unlink ftruncate mkdir" in a comment of its own
 * (deploy/cmake/folders.cmake). Until something is planned, all steps work.
 *
 * Threads: one, but for plans that undo nothing. */
#ifndef TESTS_SUPPORT_DURABLE_STEPS_H
#define TESTS_SUPPORT_DURABLE_STEPS_H

typedef enum {
    DURABLE_NOTHING,
    DURABLE_KILL,       /* the process dies before the step */
    DURABLE_POWER_LOSS, /* and what was not synced is undone */
    DURABLE_ERROR,      /* the step fails with `error`, and all after it work */
    DURABLE_ERRORS,     /* the step and all after it fail */
    DURABLE_SIGNAL,     /* SIGINT arrives; the step works */
    DURABLE_CORRUPTION, /* a write of a kilobyte or more brings other bytes to the disk */
} durable_event;

/* What a process that was killed or lost power exits with. */
enum { DURABLE_DIED = 42 };

/* From now on steps are counted from 0, and `what` happens at step `at`; error: an errno. */
void durable_plan(durable_event what, int at, int error);

/* Steps since the plan was made. */
int durable_steps(void);

#endif
