/* idle.h - what to do between two looks at something that cannot wake us.
 *
 * MPI has no event-driven wait, and ranks that spin starve each other as soon as a host has more ranks
 * than cores (10 to 18 times slower, docs/performance.md). So the first looks only yield, then sleeps
 * grow: a reply that comes after the usual time is seen within 20 us, a node that nobody uses wakes 5000
 * times a second at most.
 *
 * Threads: a value, one owner. */
#ifndef TRANSPORT_IDLE_H
#define TRANSPORT_IDLE_H

#include <stdint.h>

typedef struct {
    uint32_t turns; /* waits since the last event; start with 0 */
} tr_idle;

/* The sleep of a turn; 0: only yield. Never shrinks with the turn. */
uint64_t tr_idle_sleep_ns(uint32_t turn);

/* Yields or sleeps, never longer than left_ns. Ends early on a signal. */
void tr_idle_wait(tr_idle *idle, uint64_t left_ns);

#endif
