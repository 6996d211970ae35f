/* colibri_model.h - a test checkpoint as the colibri engine stores it: int8 or int4 rows with scales.
 *
 * Threads: one test. Asserts success. */
#ifndef TESTS_SUPPORT_COLIBRI_MODEL_H
#define TESTS_SUPPORT_COLIBRI_MODEL_H

#include <stdint.h>

/* Writes the fixture `name` (BF16) into dir: matrices of 8 or 4 bits, norms, router and biases F32. */
void colibri_model_write(const char *fixtures, const char *name, uint32_t bits, const char *dir);

#endif
