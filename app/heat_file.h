/* heat_file.h - the heat kept beside a model: where it is, reading it, adding a run's counts to it.
 *
 * Every change is read, merge, replace under a lock file (FILE.lock), so that two runs that end together
 * lose nothing of either; the file itself is replaced by rename, so readers need no lock and a crash
 * leaves the old one. What is damaged or belongs to another model is never overwritten: the error says
 * how to start anew.
 *
 * Threads: any, each with its own heat. */
#ifndef APP_HEAT_FILE_H
#define APP_HEAT_FILE_H

#include "model/container/container.h"
#include "placement/heat.h"
#include "placement/heat_usage.h"

/* A heat of the model's shape (MTP layers included), all zero. RT_EINVAL: no layer has experts;
 * RT_ENOMEM. */
RT_MUST_CHECK rt_status app_heat_create(const md_container *container, pl_heat **out, rt_err *err);

/* The file that the option --heat names: malloc'd; NULL in *out for "none". `option` NULL:
 * MODEL/heat.bin. RT_ENOMEM. */
RT_MUST_CHECK rt_status app_heat_path(const md_container *container, const char *option, char **out,
                                      rt_err *err);

/* Below this the disk of a heat file is as good as full: a heat of the release is under a megabyte. */
enum { APP_HEAT_ROOM = 4 << 20 };

/* Whether this user may create and replace files where `path` is. */
bool app_heat_is_writable(const char *path);

/* What the file says, as a new heat; all zero with *found false when there is no file.
 *   Errors  RT_EIO, those of pl_heat_image_read (with the advice), RT_ENOMEM */
RT_MUST_CHECK rt_status app_heat_load(const char *path, const md_container *container,
                                      pl_heat **out, bool *found, rt_err *err);

/* The file += a run: what it had decays by the run's tokens.
 *   Errors  RT_EBUSY  the lock was held for LOCK_WAIT (5 s)
 *           RT_EIO, RT_ENOSPACE  lock or file cannot be written; those of app_heat_load */
RT_MUST_CHECK rt_status app_heat_append(const char *path, const md_container *container,
                                        const pl_heat *run, rt_err *err);

/* The file += the counts of a usage text, which neither age it nor count as older than it. Scaled down
 * when a layer has more than a heat of our own could ever hold, so that they too are forgotten in time:
 * *scale <= 1. Tokens seen grow by what the (scaled) counts amount to.
 *   Errors  as app_heat_append; RT_EIO, and those of pl_heat_usage_read */
RT_MUST_CHECK rt_status app_heat_import(const char *path, const md_container *container,
                                        const char *usage_path, pl_heat_usage *usage, double *scale,
                                        rt_err *err);

/* Removes the file, whatever is in it. *existed false: there was none. RT_EBUSY, RT_EIO. */
RT_MUST_CHECK rt_status app_heat_reset(const char *path, bool *existed, rt_err *err);

#endif
