/* budget.h - one ledger for the memory of a process, fixed at start.
 *
 * What does not fit fails at start with the whole table printed: an out-of-memory kill an hour
 * into a session is the worst way to learn that a context was too long.
 *
 * Threads: one owner, at start. */
#ifndef BASE_BUDGET_H
#define BASE_BUDGET_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { RT_BUDGET_LINES_MAX = 32 };

typedef struct {
    uint64_t limit_bytes;
    uint32_t line_count;
    struct {
        const char *name; /* static text: "dense weights", "kv cache" */
        uint64_t bytes;
    } lines[RT_BUDGET_LINES_MAX];
} rt_budget;

/* limit_bytes 0: what the machine has available now (MemAvailable, the limits of cgroup and process), less
 * 5 %. */
void rt_budget_init(rt_budget *budget, uint64_t limit_bytes);
uint64_t rt_memory_available_bytes(void);
/* What this process's own limits (ulimit -v, ulimit -d) leave it; UINT64_MAX: there is none. */
uint64_t rt_process_limit_left(void);

/* Books bytes under name (adds to the line when the name exists).
 *   Errors  RT_ENOMEM  the sum would exceed the limit; err->text is the whole table and how much is
 *                      missing. Nothing is booked then. */
RT_MUST_CHECK rt_status rt_budget_book(rt_budget *budget, const char *name, uint64_t bytes,
                                       rt_err *err);
uint64_t rt_budget_left(const rt_budget *budget);
void rt_budget_print(const rt_budget *budget, char *text, size_t text_bytes);

/* "24G", "512M", "1.5T", plain bytes; binary units. RT_EINVAL names the text. */
RT_MUST_CHECK rt_status rt_bytes_parse(const char *text, uint64_t *out, rt_err *err);
/* Writes "18.9 MB"-like text (decimal units); returns text. */
const char *rt_bytes_format(uint64_t bytes, char *text, size_t text_bytes);

#endif
