/* verb_version.c - what this binary is: version, ids, kernels, what is built in. */
#include "app/output.h"
#include "app/parse.h"
#include "app/verbs.h"
#include "base/options.h"
#include "kernels/select.h"
#include "model/container/container.h"
#include "transport/frame.h"
#include "transport/link_mpi.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    bool json;
} version_options;

static const rt_opt table[] = {
    {.name = "json",
     .kind = RT_OPT_FLAG,
     .offset = offsetof(version_options, json),
     .doc = "print one JSON object"},
    {.name = NULL},
};

const rt_opt_spec app_spec_version = {
    .verb = "version",
    .doc = "Prints the version, the ids that must agree between nodes, and what is built in.",
    .table = table,
};

static int print_json(void)
{
    json_t *kernels = json_array();
    json_t *root;

    for (int v = 0; v < KN_VARIANT_COUNT; v++)
        if (kn_variant_supported((kn_variant)v))
            json_array_append_new(kernels, json_string(kn_variant_name((kn_variant)v)));
    root = json_pack("{s:s, s:i, s:i, s:i, s:[i,i], s:b, s:o}", "version", MOESAIC_VERSION,
                     "numerics_id", MD_NUMERICS_ID, "conversion_id", MD_CONVERSION_ID,
                     "container_version", MD_CONTAINER_VERSION, "protocol", TR_PROTOCOL_MIN,
                     TR_PROTOCOL_MAX, "mpi", (int)tr_mpi_built_in(), "kernels", kernels);
    return app_json_print("version", root) ? APP_EXIT_OK : APP_EXIT_FAILED;
}

int app_verb_version(int argc, char **argv)
{
    version_options options = {0};
    int code;

    if (!app_parse(&app_spec_version, argc, argv, &options, NULL, NULL, &code)) return code;
    if (options.json) return print_json();
    printf("moesaic %s\nnumerics id %d, conversion id %d, container version %d, protocol %d..%d\n",
           MOESAIC_VERSION, MD_NUMERICS_ID, MD_CONVERSION_ID, MD_CONTAINER_VERSION, TR_PROTOCOL_MIN,
           TR_PROTOCOL_MAX);
    printf("mpi %s\nkernels", tr_mpi_built_in() ? "built in" : "not built in");
    for (int v = 0; v < KN_VARIANT_COUNT; v++)
        if (kn_variant_supported((kn_variant)v)) printf(" %s", kn_variant_name((kn_variant)v));
    printf("\n");
    return APP_EXIT_OK;
}
