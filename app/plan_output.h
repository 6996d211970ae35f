/* plan_output.h - a plan as text for people or as one JSON object (docs/operations.md).
 *
 * Threads: main. */
#ifndef APP_PLAN_OUTPUT_H
#define APP_PLAN_OUTPUT_H

#include "app/plan.h"

#include <jansson.h>

void app_plan_print_text(const app_plan *plan, const app_model *model);

/* NULL when memory is short. */
json_t *app_plan_json(const app_plan *plan, const app_model *model);

#endif
