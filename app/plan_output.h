/* plan_output.h - a plan as text for people or as one JSON object (docs/operations.md).
 *
 * Threads: main. */
#ifndef APP_PLAN_OUTPUT_H
#define APP_PLAN_OUTPUT_H

#include "app/plan.h"

void app_plan_print_text(const app_plan *plan, const app_model *model);

/* malloc'd text without a newline; NULL when memory is short. */
char *app_plan_json_text(const app_plan *plan, const app_model *model);

#endif
