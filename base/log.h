/* log.h - one line per event on stderr: time, level, subsystem, rank, file:line, text.
 *
 * error = request or node lost; warn = degraded but correct; info = once per lifecycle event;
 * debug = per request. Nothing per row or per layer. Text is lower case, "key value" without '='.
 *
 * Threads: any; a line is one write(2), so lines of ranks sharing a terminal do not mix. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/status.h"

typedef enum { RT_LOG_ERROR, RT_LOG_WARN, RT_LOG_INFO, RT_LOG_DEBUG } rt_log_level;

/* Parses "error", "warn", "info", "debug". RT_EINVAL names the value and the choices. */
RT_MUST_CHECK rt_status rt_log_level_parse(const char *text, rt_log_level *out, rt_err *err);

void rt_log_set_level(rt_log_level level);

/* Shown in every line; -1 (the start value) shows no rank. */
void rt_log_set_rank(int rank);

void rt_log_write(rt_log_level level, const char *subsystem, const char *file, int line,
                  const char *fmt, ...) RT_PRINTF(5, 6);

#define rt_log_error(sub, ...) rt_log_write(RT_LOG_ERROR, sub, __FILE__, __LINE__, __VA_ARGS__)
#define rt_log_warn(sub, ...) rt_log_write(RT_LOG_WARN, sub, __FILE__, __LINE__, __VA_ARGS__)
#define rt_log_info(sub, ...) rt_log_write(RT_LOG_INFO, sub, __FILE__, __LINE__, __VA_ARGS__)
#define rt_log_debug(sub, ...) rt_log_write(RT_LOG_DEBUG, sub, __FILE__, __LINE__, __VA_ARGS__)

#endif
