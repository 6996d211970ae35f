/* cgroup.c - walks the groups of this process and keeps the tightest limit of each kind. */
#include "base/cgroup.h"

#include "base/file.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_LIMIT_BYTES = 1 << 20 };

typedef struct {
    const char *root; /* borrowed; "" on a real machine */
    char *mountinfo;  /* owned */
    char *groups;     /* owned */
    rt_cgroup_limits limits;
} reader;

static char *read_text(const char *root, const char *path)
{
    char full[PATH_MAX];
    char *text;
    size_t bytes;

    if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full)) return NULL;
    return rt_file_read(full, TEXT_LIMIT_BYTES, &text, &bytes, NULL) == RT_OK ? text : NULL;
}

/* The number in DIR/NAME: false when the file is missing or says "max". */
static bool read_number(const char *dir, const char *name, uint64_t *out)
{
    char path[PATH_MAX];
    char *text, *end;
    unsigned long long value;

    if (snprintf(path, sizeof(path), "/%s", name) >= (int)sizeof(path)) return false;
    text = read_text(dir, path);
    if (text == NULL) return false;
    value = strtoull(text, &end, 10);
    if (end == text || text[0] == '-') {
        free(text);
        return false;
    }
    free(text);
    *out = value;
    return true;
}

/* "key 123" in a stat file; 0 when it is missing. */
static uint64_t stat_value(const char *text, const char *key)
{
    size_t key_bytes = strlen(key);

    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, key_bytes) == 0 && line[key_bytes] == ' ')
            return strtoull(line + key_bytes + 1, NULL, 10);
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    return 0;
}

static void limit_cpus(reader *r, double quota, double period)
{
    double cpus = period > 0 ? quota / period : 0;

    if (cpus > 0 && (r->limits.cpus <= 0 || cpus < r->limits.cpus)) r->limits.cpus = cpus;
}

/* Page cache is counted as usage but given back on demand, so it is available. */
static void limit_memory(reader *r, const char *dir, uint64_t limit, const char *usage_name,
                         const char *inactive, const char *active)
{
    uint64_t usage = 0, cache = 0, left;
    char *stat = read_text(dir, "/memory.stat");

    if (!read_number(dir, usage_name, &usage)) usage = 0;
    if (stat != NULL) cache = stat_value(stat, inactive) + stat_value(stat, active);
    free(stat);
    usage = usage > cache ? usage - cache : 0;
    left = limit > usage ? limit - usage : 0;
    if (left < r->limits.memory_bytes) r->limits.memory_bytes = left;
}

static void read_group_v2(reader *r, const char *dir)
{
    uint64_t limit;
    char *cpu = read_text(dir, "/cpu.max"); /* "max 100000" or "150000 100000" */

    if (cpu != NULL) {
        char *end;
        double quota = strtod(cpu, &end);

        if (end != cpu) limit_cpus(r, quota, strtod(end, NULL));
    }
    free(cpu);
    if (read_number(dir, "memory.max", &limit))
        limit_memory(r, dir, limit, "memory.current", "inactive_file", "active_file");
    if (read_number(dir, "memory.high", &limit))
        limit_memory(r, dir, limit, "memory.current", "inactive_file", "active_file");
}

static void read_group_v1(reader *r, const char *dir)
{
    uint64_t limit, quota, period;

    if (read_number(dir, "cpu.cfs_quota_us", &quota) &&
        read_number(dir, "cpu.cfs_period_us", &period))
        limit_cpus(r, (double)quota, (double)period);
    /* No limit is a number near 2^63 there. */
    if (read_number(dir, "memory.limit_in_bytes", &limit) && limit < (uint64_t)1 << 60)
        limit_memory(r, dir, limit, "memory.usage_in_bytes", "total_inactive_file",
                     "total_active_file");
}

/* Visits the process's group in one mount and every group above it.
 *   mount_root  which group the mount shows as its top ("/" or a container's own)
 *   group       the process's group as /proc/self/cgroup names it */
static void walk_groups(reader *r, bool v2, const char *mount_root, const char *mount_point,
                        const char *group)
{
    char dir[PATH_MAX];
    size_t top, root_bytes = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    int used;

    /* A group outside the mount (a container without a cgroup namespace): the top is what counts.
     */
    if (strncmp(group, mount_root, root_bytes) == 0 &&
        (group[root_bytes] == '/' || group[root_bytes] == '\0'))
        group += root_bytes;
    else
        group = "";
    top = strlen(r->root) + strlen(mount_point);
    used = snprintf(dir, sizeof(dir), "%s%s%s", r->root, mount_point, group);
    if (used < 0 || used >= (int)sizeof(dir)) return;
    for (;;) {
        char *slash;

        if (v2)
            read_group_v2(r, dir);
        else
            read_group_v1(r, dir);
        slash = strrchr(dir, '/');
        if (strlen(dir) <= top || slash == NULL || (size_t)(slash - dir) < top) break;
        *slash = '\0';
    }
}

/* True if the comma-separated list has the word. */
static bool list_has(const char *list, const char *word)
{
    size_t word_bytes = strlen(word);

    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, word, word_bytes) == 0 && (at[word_bytes] == ',' || at[word_bytes] == '\0'))
            return true;
    }
    return false;
}

/* Finds this process's group for a mount among the lines "id:controllers:path" and walks it. */
static void visit_mount(reader *r, bool v2, const char *controllers, const char *mount_root,
                        const char *mount_point)
{
    char *copy = strdup(r->groups), *rest = copy, *line;

    if (copy == NULL) return;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *path = line, *list;
        bool found;

        (void)strsep(&path, ":");
        list = strsep(&path, ":");
        if (list == NULL || path == NULL) continue;
        if (v2)
            found = list[0] == '\0';
        else
            found = (list_has(list, "memory") && list_has(controllers, "memory")) ||
                    (list_has(list, "cpu") && list_has(controllers, "cpu"));
        if (found) walk_groups(r, v2, mount_root, mount_point, path);
    }
    free(copy);
}

/* One line of mountinfo: "id parent dev ROOT POINT options... - TYPE source SUPER_OPTIONS". */
static void visit_mountinfo_line(reader *r, char *line)
{
    char *fields[5] = {NULL}, *type = strstr(line, " - "), *super;
    bool v2;

    if (type == NULL) return;
    *type = '\0';
    type += 3;
    for (int i = 0; i < 5; i++) {
        fields[i] = strsep(&line, " ");
        if (fields[i] == NULL) return;
    }
    super = type;
    type = strsep(&super, " ");
    (void)strsep(&super, " ");
    v2 = strcmp(type, "cgroup2") == 0;
    if (!v2 && (strcmp(type, "cgroup") != 0 || super == NULL)) return;
    visit_mount(r, v2, super, fields[3], fields[4]);
}

rt_cgroup_limits rt_cgroup_limits_read(const char *root)
{
    reader r = {.root = root, .limits = {.cpus = 0, .memory_bytes = UINT64_MAX}};

    r.groups = read_text(root, "/proc/self/cgroup");
    r.mountinfo = read_text(root, "/proc/self/mountinfo");
    if (r.groups != NULL && r.mountinfo != NULL) {
        char *rest = r.mountinfo, *line;

        while ((line = strsep(&rest, "\n")) != NULL)
            visit_mountinfo_line(&r, line);
    }
    free(r.groups);
    free(r.mountinfo);
    return r.limits;
}
