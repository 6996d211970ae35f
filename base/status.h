/* status.h - the one error vocabulary of the runtime.
 *
 * An error has to survive a trip that starts on an expert node's disk and ends
 * in a JSON body on someone's screen, so it is a plain value (code + text) that
 * can be copied into a reply frame, not thread-local state that dies with the
 * thread that saw it.
 *
 * Two tiers, on purpose:
 *   control path  rt_status f(..., rt_err *err)   text is worth a snprintf
 *   token path    rt_status f(...)                no formatting per layer
 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* Name, number on the wire, HTTP status the coordinator maps it to, default text.
 * Numbers are part of the wire protocol: append, never renumber. */
#define RT_STATUS_LIST(X)                                                                          \
    X(OK, 0, 200, "success")                                                                       \
    X(EINVAL, 1, 400, "invalid argument")                                                          \
    X(ENOMEM, 2, 503, "out of memory budget")                                                      \
    X(EIO, 3, 500, "read or write failed")                                                         \
    X(EFORMAT, 4, 500, "file does not match the model layout")                                     \
    X(EPROTO, 5, 502, "peer sent a malformed frame")                                               \
    X(EPEER, 6, 502, "peer is gone")                                                               \
    X(ETIMEOUT, 7, 504, "deadline passed")                                                         \
    X(EBUSY, 8, 429, "queue is full")                                                              \
    X(ECANCELED, 9, 499, "request was cancelled")                                                  \
    X(EUNSUPPORTED, 10, 501, "not built into this binary")                                         \
    X(ENUMERIC, 11, 500, "a value was not finite")                                                 \
    X(ENOSPACE, 12, 507, "disk is full")

typedef enum {
#define X(name, num, http, text) RT_##name = (num),
    RT_STATUS_LIST(X)
#undef X
} rt_status;

typedef struct {
    rt_status status;
    char text[504]; /* always NUL-terminated; "" when status is RT_OK */
} rt_err;

#define RT_MUST_CHECK __attribute__((warn_unused_result))
#define RT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Records the first cause and returns `status`, so a failing line stays one line:
 *     return rt_fail(err, RT_EFORMAT, "%s: expected %u layers, found %u", ...);
 * `err` may be NULL. Never call it with RT_OK. */
rt_status rt_fail(rt_err *err, rt_status status, const char *fmt, ...) RT_PRINTF(3, 4);

/* Prepends context while unwinding ("load shard 12: " + existing text). */
void rt_err_prefix(rt_err *err, const char *fmt, ...) RT_PRINTF(2, 3);

const char *rt_status_name(rt_status status);
int rt_status_http(rt_status status);

/* Early return for code that owns nothing yet. Once something is acquired, use
 * an explicit `goto fail`: a hidden return that leaks is worse than two lines. */
#define RT_TRY(expr)                                                                               \
    do {                                                                                           \
        rt_status try_status_ = (expr);                                                            \
        if (try_status_ != RT_OK) return try_status_;                                              \
    } while (0)

#endif
