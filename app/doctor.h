/* doctor.h - what is right and wrong with this machine, and with a model on it: one row a check, each
 * with a judgement and, when it is not ok, what to do.
 *
 * Rows are printed as they come, so that a slow check is seen to be one. "warn" means that it works,
 * but worse than it could; "fail", that it will not work.
 *
 * Threads: main. */
#ifndef APP_DOCTOR_H
#define APP_DOCTOR_H

#include "app/model_look.h"
#include "app/model_options.h"
#include "base/team.h"

#include <jansson.h>

typedef enum { APP_ROW_OK, APP_ROW_WARN, APP_ROW_FAIL } app_row_level;

typedef struct {
    bool json, deep;
    app_model_options session; /* as for a run: its memory, context and threads are judged */
    rt_team *team;             /* borrowed */
    json_t *rows;              /* owned: all rows so far */
    uint32_t count[3];         /* of each level */
} app_doctor;

/* One row. advice NULL: none; a row that is not ok has one (asserted). */
void app_doctor_row(app_doctor *doctor, app_row_level level, const char *name, const char *advice,
                    const char *fmt, ...) RT_PRINTF(5, 6);

void app_doctor_machine(app_doctor *doctor);
void app_doctor_libraries(app_doctor *doctor);

/* The disk of `dir`, by a scratch file of bounded size that never has a name. */
void app_doctor_place(app_doctor *doctor, const char *dir);
void app_doctor_model(app_doctor *doctor, const app_model *model);

#endif
