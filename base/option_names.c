/* option_names.c - twins, and the nearest of several names by edits. */
#include "base/check.h"
#include "base/options.h"
#include "base/options_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "MOESAIC_"

enum { PREFIX_BYTES = sizeof(PREFIX) - 1 };

const char *rt_opt_twin_name(const char *option, char *twin)
{
    int used = snprintf(twin, RT_OPT_TWIN_BYTES, PREFIX "%s", option);

    RT_ASSERT(used > 0 && used < RT_OPT_TWIN_BYTES);
    for (char *c = twin; *c != '\0'; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    return twin;
}

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;

    return least < c ? least : c;
}

/* Edits (insert, delete, replace, swap neighbours) that turn a into b; both below RT_OPT_TWIN_BYTES. */
static size_t edit_distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t rows[3][RT_OPT_TWIN_BYTES + 1]; /* the row before the last, the last, this one */

    for (size_t j = 0; j <= b_bytes; j++)
        rows[1][j] = j;
    for (size_t i = 1; i <= a_bytes; i++) {
        rows[2][0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;

            rows[2][j] = smallest(rows[1][j] + 1, rows[2][j - 1] + 1, rows[1][j - 1] + cost);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                rows[0][j - 2] + 1 < rows[2][j])
                rows[2][j] = rows[0][j - 2] + 1;
        }
        memcpy(rows[0], rows[1], sizeof(rows[0]));
        memcpy(rows[1], rows[2], sizeof(rows[1]));
    }
    return rows[1][b_bytes];
}

rt_opt_nearest rt_opt_nearest_begin(const char *name, size_t name_bytes)
{
    /* Farther than a third of its letters is another word; one slip is always forgiven. */
    size_t best = name_bytes < 3 ? 2 : name_bytes / 3 + 1;

    if (name_bytes >= RT_OPT_TWIN_BYTES) best = 0;

    return (rt_opt_nearest){.name = name, .name_bytes = name_bytes, .best = best};
}

bool rt_opt_nearest_offer(rt_opt_nearest *nearest, const char *candidate)
{
    size_t distance;

    if (nearest->best == 0) return false; /* too long, or found to the letter */
    distance = edit_distance(nearest->name, nearest->name_bytes, candidate, strlen(candidate));
    if (distance >= nearest->best) return false;
    nearest->best = distance;
    nearest->found = candidate;
    return true;
}

/* Not options: where the tests look for their material. */
static bool is_special(const char *name, size_t name_bytes)
{
    static const char *const special[] = {"MOESAIC_GLM5_TOKENIZER_JSON", "MOESAIC_FIXTURES"};

    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
        if (strlen(special[i]) == name_bytes && strncmp(special[i], name, name_bytes) == 0)
            return true;
    return false;
}

/* name: behind the prefix that all twins have. */
static void check_variable(const rt_opt_spec *const *specs, uint32_t count, const char *name,
                           size_t name_bytes)
{
    rt_opt_nearest nearest = rt_opt_nearest_begin(name, name_bytes);
    char meant[RT_OPT_TWIN_BYTES] = "";
    int shown = (int)(name_bytes < RT_OPT_TWIN_BYTES ? name_bytes : RT_OPT_TWIN_BYTES);

    for (uint32_t s = 0; s < count; s++) {
        for (const rt_opt *option = specs[s]->table; option->name != NULL; option++) {
            char twin[RT_OPT_TWIN_BYTES];

            rt_opt_twin_name(option->name, twin);
            if (!rt_opt_nearest_offer(&nearest, twin + PREFIX_BYTES)) continue;
            if (nearest.best == 0) return; /* it is this one */
            memcpy(meant, twin, sizeof(meant));
        }
    }
    fprintf(stderr, "moesaic: the environment variable " PREFIX "%.*s is no option's twin%s%s%s\n",
            shown, name, meant[0] == '\0' ? "" : ": did you mean ", meant,
            meant[0] == '\0' ? "" : "?");
}

void rt_env_warn_unknown(const rt_opt_spec *const *specs, uint32_t count)
{
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        size_t name_bytes = strcspn(*at, "=");

        if (strncmp(*at, PREFIX, PREFIX_BYTES) == 0 && !is_special(*at, name_bytes))
            check_variable(specs, count, *at + PREFIX_BYTES, name_bytes - PREFIX_BYTES);
    }
}
