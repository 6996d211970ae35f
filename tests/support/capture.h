/* capture.h - what a piece of code writes to a file descriptor, and how a process it runs in ends.
 *
 * Threads: one test. */
#ifndef TESTS_SUPPORT_CAPTURE_H
#define TESTS_SUPPORT_CAPTURE_H

#include <stddef.h>

typedef struct {
    int fd;    /* the redirected descriptor */
    int saved; /* what it was */
    int file;  /* where it goes now */
} capture;

/* Redirects fd (1 or 2) into an unlinked file until capture_end, which gives back what came in as
 * malloc'd text. stdio is flushed at both ends. */
capture capture_begin(int fd);
char *capture_end(capture *c);

/* Runs body(context) in a child; returns its wait status (see WIFSIGNALED ...). The child's stderr
 * goes nowhere. */
int run_in_child(void (*body)(void *context), void *context);

#endif
