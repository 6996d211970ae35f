/* model_options.h - the options that every verb which runs a model shares (run, verify). */
#ifndef APP_MODEL_OPTIONS_H
#define APP_MODEL_OPTIONS_H

#include "base/options.h"
#include "kernels/select.h"

typedef struct {
    uint64_t ram_bytes; /* of each process; 0: what the machine has */
    uint64_t threads;   /* of each process; 0: the usable cores over the ranks of this host */
    uint64_t chunk;     /* prefill rows a step */
    uint64_t context;   /* positions; 0: what fits, up to 32k */
    const char *kv;     /* "f32" or "bf16" */
    const char *kernels;
    bool slices;
    double experts_here; /* rank 0's share of the experts, 0..1 */
    bool experts_here_given;
    bool float_activations;
    double reply_timeout_s;
    const char *log_level;
    const char *mirrors; /* other copies of the container, separated by ':'; NULL: none */
    bool buffered, scrub;
    const char *look_ahead; /* "on", "off", "auto" */
    const char *heat;       /* file, "none", or NULL: heat.bin in the model's folder */
} app_model_options;

#define APP_MODEL_OPTIONS_DEFAULT                                                                  \
    {                                                                                              \
        .chunk = 256, .kv = "bf16", .kernels = "auto", .look_ahead = "auto",                       \
        .reply_timeout_s = 120, .log_level = "warn",                                               \
    }

/* Rows of the option table for a struct whose member `m` is an app_model_options. */
#define APP_MODEL_OPTION_ROWS(type, m)                                                             \
    {.name = "ram",                                                                                \
     .kind = RT_OPT_BYTES,                                                                         \
     .offset = offsetof(type, m.ram_bytes),                                                        \
     .arg = "SIZE",                                                                                \
     .doc = "memory of each process, like 24G; default: what is available, shared by the ranks "   \
            "of a host"},                                                                          \
        {.name = "threads",                                                                        \
         .key = 't',                                                                               \
         .kind = RT_OPT_UINT,                                                                      \
         .offset = offsetof(type, m.threads),                                                      \
         .arg = "T",                                                                               \
         .min = 0,                                                                                 \
         .max = 1024,                                                                              \
         .doc = "threads of each process; 0: the usable cores, shared by the ranks of a host"},    \
        {.name = "chunk",                                                                          \
         .kind = RT_OPT_UINT,                                                                      \
         .offset = offsetof(type, m.chunk),                                                        \
         .arg = "ROWS",                                                                            \
         .min = 1,                                                                                 \
         .max = 4096,                                                                              \
         .doc = "rows of a prefill step"},                                                         \
        {.name = "ctx-size",                                                                       \
         .key = 'c',                                                                               \
         .kind = RT_OPT_UINT,                                                                      \
         .offset = offsetof(type, m.context),                                                      \
         .arg = "C",                                                                               \
         .doc = "context in tokens; 0: what fits, up to 32768"},                                   \
        {.name = "kv",                                                                             \
         .kind = RT_OPT_CHOICE,                                                                    \
         .offset = offsetof(type, m.kv),                                                           \
         .arg = "F",                                                                               \
         .choices = "f32|bf16",                                                                    \
         .doc = "format of the KV cache"},                                                         \
        {.name = "kernels",                                                                        \
         .kind = RT_OPT_CHOICE,                                                                    \
         .offset = offsetof(type, m.kernels),                                                      \
         .arg = "K",                                                                               \
         .choices = KN_VARIANT_CHOICES,                                                            \
         .doc = "kernel variant; all give the same bits"},                                         \
        {.name = "slices",                                                                         \
         .kind = RT_OPT_FLAG,                                                                      \
         .offset = offsetof(type, m.slices),                                                       \
         .doc =                                                                                    \
             "under mpirun: spread every expert's slices over the expert ranks, instead of whole " \
             "experts"},                                                                           \
        {.name = "experts-here",                                                                   \
         .kind = RT_OPT_FLOAT,                                                                     \
         .offset = offsetof(type, m.experts_here),                                                 \
         .arg = "SHARE",                                                                           \
         .min = 0,                                                                                 \
         .max = 1,                                                                                 \
         .given_offset = offsetof(type, m.experts_here_given),                                     \
         .doc = "under mpirun: rank 0's share of the experts, 0 to 1; default 0"},                 \
        {.name = "float-activations",                                                              \
         .kind = RT_OPT_FLAG,                                                                      \
         .offset = offsetof(type, m.float_activations),                                            \
         .doc = "do not quantise activations for q8 and q4 weights (slow; for oracles)"},          \
        {.name = "reply-timeout",                                                                  \
         .kind = RT_OPT_FLOAT,                                                                     \
         .offset = offsetof(type, m.reply_timeout_s),                                              \
         .arg = "SECONDS",                                                                         \
         .min = 0.01,                                                                              \
         .max = 86400,                                                                             \
         .doc = "an expert node that is silent for longer is lost"},                               \
        {.name = "mirror",                                                                         \
         .kind = RT_OPT_TEXT,                                                                      \
         .offset = offsetof(type, m.mirrors),                                                      \
         .arg = "DIR[:DIR...]",                                                                    \
         .doc =                                                                                    \
             "other copies of MODEL (moesaic.json, config, manifest and any of the packs): "       \
             "experts are read from all disks at once, and from another copy where one is bad"},   \
        {.name = "buffered",                                                                       \
         .kind = RT_OPT_FLAG,                                                                      \
         .offset = offsetof(type, m.buffered),                                                     \
         .doc = "read experts through the page cache instead of with O_DIRECT (slower)"},          \
        {.name = "look-ahead",                                                                     \
         .kind = RT_OPT_CHOICE,                                                                    \
         .offset = offsetof(type, m.look_ahead),                                                   \
         .arg = "W",                                                                               \
         .choices = "on|off|auto",                                                                 \
         .doc = "read the experts early that the next layer may choose; auto: where it is found "  \
                "to be faster"},                                                                   \
        {.name = "scrub",                                                                          \
         .kind = RT_OPT_FLAG,                                                                      \
         .offset = offsetof(type, m.scrub),                                                        \
         .doc = "verify expert records on the disks in the background, slowly"},                   \
        {.name = "heat",                                                                           \
         .kind = RT_OPT_TEXT,                                                                      \
         .offset = offsetof(type, m.heat),                                                         \
         .arg = "FILE",                                                                            \
         .doc = "where it is kept how often each expert was chosen; none: nowhere; default: "      \
                "heat.bin in the folder MODEL"},                                                   \
    {                                                                                              \
        .name = "log", .kind = RT_OPT_CHOICE, .offset = offsetof(type, m.log_level),               \
        .arg = "LEVEL", .choices = "error|warn|info|debug", .doc = "what is logged on stderr"      \
    }

#endif
