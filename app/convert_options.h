/* convert_options.h - the options that convert and import share.
 *
 * Threads: main, at start. */
#ifndef APP_CONVERT_OPTIONS_H
#define APP_CONVERT_OPTIONS_H

#include "base/options.h"

typedef struct {
    const char *grid; /* "std" or "fine" */
    double latent_eps;
    bool dry_run, verify_only, grid_given, json;
    uint64_t memory_bytes, threads; /* 0: the default */
} app_convert_options;

#define APP_CONVERT_OPTIONS_DEFAULT                                                                \
    {                                                                                              \
        .grid = "std"                                                                              \
    }

/* Rows of the option table for a struct whose member `m` is an app_convert_options; again: what
 * --verify-only compares with, "conversion". */
#define APP_CONVERT_OPTION_ROWS(type, m, again)                                                    \
    {.name = "grid",                                                                               \
     .kind = RT_OPT_CHOICE,                                                                        \
     .offset = offsetof(type, m.grid),                                                             \
     .given_offset = offsetof(type, m.grid_given),                                                 \
     .arg = "GRID",                                                                                \
     .choices = "std|fine",                                                                        \
     .doc = "precision of the exact combine; fine is for comparing with references"},              \
        {.name = "latent-eps",                                                                     \
         .kind = RT_OPT_FLOAT,                                                                     \
         .offset = offsetof(type, m.latent_eps),                                                   \
         .arg = "X",                                                                               \
         .min = 1e-12,                                                                             \
         .max = 1.0,                                                                               \
         .doc = "eps of the two latent norms; without it rms_norm_eps of config.json"},            \
        {.name = "dry-run",                                                                        \
         .kind = RT_OPT_FLAG,                                                                      \
         .offset = offsetof(type, m.dry_run),                                                      \
         .excludes = "verify-only",                                                                \
         .doc = "check names, shapes, formats, disk and memory and print what was found; write "   \
                "nothing"},                                                                        \
        {.name = "verify-only",                                                                    \
         .kind = RT_OPT_FLAG,                                                                      \
         .offset = offsetof(type, m.verify_only),                                                  \
         .doc = "compare a finished container with a fresh " again " of the source"},              \
        {.name = "memory",                                                                         \
         .kind = RT_OPT_BYTES,                                                                     \
         .offset = offsetof(type, m.memory_bytes),                                                 \
         .arg = "SIZE",                                                                            \
         .doc = "bound of all buffers; 2G unless given"},                                          \
        {.name = "threads",                                                                        \
         .kind = RT_OPT_UINT,                                                                      \
         .offset = offsetof(type, m.threads),                                                      \
         .arg = "N",                                                                               \
         .min = 0,                                                                                 \
         .max = 1024,                                                                              \
         .doc = "0: the usable cores"},                                                            \
    {                                                                                              \
        .name = "json", .kind = RT_OPT_FLAG, .offset = offsetof(type, m.json),                     \
        .doc = "print one JSON object"                                                             \
    }

#endif
