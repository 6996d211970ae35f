/* text.h - text that came from a peer: is it fit to be shown, and what is shown if not.
 *
 * A peer's text ends in logs and on terminals. Control characters there can forge lines or drive the
 * terminal, so text is checked (control messages) or cleaned (error frames) where it enters.
 *
 * Threads: any. */
#ifndef TRANSPORT_TEXT_H
#define TRANSPORT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Well-formed UTF-8 without control characters (C0, DEL, C1). */
bool tr_text_is_clean(const char *text, size_t bytes);

/* Copies text with '?' for each offending byte; cuts at a character. out is always terminated;
 * out_bytes > 0. Returns the length. */
size_t tr_text_clean(const char *text, size_t bytes, char *out, size_t out_bytes);

/* The longest length <= limit at which text [bytes] can be cut without splitting a character. */
size_t tr_text_cut(const char *text, size_t bytes, size_t limit);

#endif
