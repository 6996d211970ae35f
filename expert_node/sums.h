/* sums.h - the partial sums of one frame's rows, as exact integers, while a team adds to them.
 *
 * Each team member adds narrow contributions to int32 sums of its own, without a lock; the members'
 * sums are merged at the end. A contribution too large for int32 goes to an int64 sum of its row
 * that all members share under a lock: such rows are rare (a few tokens of a sequence in one to
 * three layers). One that is not finite, or too large even for that, poisons its row alone. Integer
 * addition has no order, so neither members nor their timing show in the result.
 *
 * Threads: en_sums_add from any team member; the rest from the owner. */
#ifndef EXPERT_NODE_SUMS_H
#define EXPERT_NODE_SUMS_H

#include "base/team.h"

#include <stddef.h>
#include <stdint.h>

typedef struct en_sums en_sums;

RT_MUST_CHECK rt_status en_sums_create(uint32_t rows_max, uint32_t cols, uint32_t members,
                                       en_sums **out, rt_err *err);
void en_sums_free(en_sums *sums); /* NULL allowed */
uint64_t en_sums_bytes(uint32_t rows_max, uint32_t cols, uint32_t members);

/* Starts a frame of `rows` rows with sums of zero. */
void en_sums_begin(en_sums *sums, uint32_t rows);

/* Adds round-half-even(y[i] * ws) to a row. A row may get KN_GRID_CONTRIBUTIONS_MAX of them. */
void en_sums_add(en_sums *sums, uint32_t member, uint32_t row, const float *y, float ws);

/* Merges the members' sums and writes the rows as a reply payload (transport/partial.h).
 *   payload  [rows * tr_partial_bytes_max(cols)]
 *   Errors   RT_ENOMEM  the memory for a row's wide sum could not be had */
RT_MUST_CHECK rt_status en_sums_finish(en_sums *sums, rt_team *team, uint8_t *payload,
                                       size_t *payload_bytes, rt_err *err);

#endif
