/* expert_answer.h - what rows of a frame add up to: as a node answers, and as it is defined.
 *
 * Threads: one test. All of them fail the test on an error. */
#ifndef TESTS_SUPPORT_EXPERT_ANSWER_H
#define TESTS_SUPPORT_EXPERT_ANSWER_H

#include "tests/support/expert_rig.h"

typedef struct {
    int64_t *sums; /* owned [rows][hidden] */
    bool *poison;  /* owned [rows] */
} expert_answer;

/* Zeros for all rows; expert_answer_free gives them back. */
expert_answer expert_answer_make(const expert_rows *rows);
void expert_answer_free(expert_answer *a);

/* The same rows are poisoned, and the sums of all others are equal. */
void expert_answers_assert_equal(const expert_answer *a, const expert_answer *b,
                                 const expert_rows *rows);

/* Adds what a rig answers for rows row_begin.. of its share (map) of the entries. */
void expert_answer_add(const expert_rig *rig, const expert_rows *rows, const pl_map *map,
                       bool float_activations, uint32_t row_begin, uint32_t row_count,
                       expert_answer *a);

/* Adds one contribution after the other: the definition, without groups, blocks, tasks or members. */
void expert_answer_define(const md_container *container, const expert_rows *rows,
                          bool float_activations, expert_answer *a);

#endif
