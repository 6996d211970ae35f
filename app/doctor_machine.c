/* doctor_machine.c - processor, memory, and what the operating system allows. */
#include "app/doctor.h"

#include "app/sizing.h"
#include "app/topology.h"
#include "base/budget.h"
#include "base/cgroup.h"
#include "base/file.h"
#include "base/options.h"
#include "kernels/selfcheck.h"
#include "transport/link_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TEXT_BYTES_MAX = 1 << 20, CACHE_BYTES_MAX = 16 << 20 };

typedef char size_text[24];

static const char *size(uint64_t bytes, size_text text)
{
    return rt_bytes_format(bytes, text, sizeof(size_text));
}

/* malloc'd text of a small file of the system; NULL when it is not there. */
static char *read_text(const char *path)
{
    char *text = NULL;
    size_t bytes;

    return rt_file_read(path, TEXT_BYTES_MAX, &text, &bytes, NULL) == RT_OK ? text : NULL;
}

/* What stands after "key" and a colon in a file of such lines; "" when it does not. */
static void read_field(const char *path, const char *key, char *out, size_t out_bytes)
{
    char *text = read_text(path);
    const char *line = text == NULL ? NULL : strstr(text, key);

    out[0] = '\0';
    if (line != NULL) {
        line += strlen(key);
        line += strspn(line, " \t:");
        snprintf(out, out_bytes, "%.*s", (int)strcspn(line, "\n"), line);
    }
    free(text);
}

/* ---- processor ---- */

static void check_cpu(app_doctor *doctor)
{
    rt_cgroup_limits limits = rt_cgroup_limits_read("");
    uint32_t usable = rt_cpus_usable();
    char name[96], quota[48] = "";
    app_topology topology;
    rt_err err = {0};

    read_field("/proc/cpuinfo", "model name", name, sizeof(name));
    if (limits.cpus > 0) snprintf(quota, sizeof(quota), ", quota of %.1f", limits.cpus);
    if (app_topology_read(&topology, &err) != RT_OK) {
        app_doctor_row(doctor, APP_ROW_WARN, "cpu", "NUMA and cores are unknown; the rest works",
                       "%s: %u usable processors%s; %s", name, usable, quota, err.text);
        return;
    }
    app_doctor_row(doctor, APP_ROW_OK, "cpu", NULL,
                   "%s: %u socket%s, %u core%s, %u hardware threads, %u usable%s", name,
                   topology.packages, topology.packages == 1 ? "" : "s", topology.cores,
                   topology.cores == 1 ? "" : "s", topology.threads, usable, quota);
    if (topology.numa_nodes > 1)
        app_doctor_row(doctor, APP_ROW_WARN, "numa",
                       "run one rank on each memory node: mpirun -n N --map-by numa --bind-to numa "
                       "moesaic run ...",
                       "%u memory nodes: one process reads much of its memory from afar",
                       topology.numa_nodes);
    else
        app_doctor_row(doctor, APP_ROW_OK, "numa", NULL, "one memory node");
}

/* Appends the name of a variant to a list of such names. */
static void add_name(char *names, size_t names_bytes, kn_variant variant)
{
    size_t used = strlen(names);

    snprintf(names + used, names_bytes - used, "%s%s", used > 0 ? " " : "",
             kn_variant_name(variant));
}

static void check_kernels(app_doctor *doctor)
{
    char names[64] = "";

    for (int v = 0; v < KN_VARIANT_COUNT; v++)
        if (kn_variant_supported((kn_variant)v)) add_name(names, sizeof(names), (kn_variant)v);
    if (kn_selected() == KN_REF)
        app_doctor_row(doctor, APP_ROW_WARN, "kernels",
                       "use a processor with AVX2, FMA and F16C (Intel since 2013, AMD since 2015)",
                       "only the reference kernels run here: many times slower");
    else
        app_doctor_row(doctor, APP_ROW_OK, "kernels", NULL, "%s is used; this processor runs %s",
                       kn_variant_name(kn_selected()), names);
}

/* Every variant that runs here against the bits that were promised. */
static void check_bits(app_doctor *doctor)
{
    uint32_t count = kn_selfcheck_count(), wrong = 0;
    kn_selfcheck_row *rows = calloc(count, sizeof(*rows));
    char good[64] = "", first[160] = "";

    for (int v = 0; rows != NULL && v < KN_VARIANT_COUNT; v++) {
        uint32_t before = wrong;

        if (!kn_variant_supported((kn_variant)v)) continue;
        if (kn_selfcheck((kn_variant)v, rows, NULL) != RT_OK) continue;
        for (uint32_t i = 0; i < count; i++) {
            if (rows[i].found == rows[i].expected) continue;
            if (wrong++ == 0)
                snprintf(first, sizeof(first), "%s of %s: expected %016llx, found %016llx",
                         rows[i].what, kn_variant_name((kn_variant)v),
                         (unsigned long long)rows[i].expected, (unsigned long long)rows[i].found);
        }
        if (wrong == before) add_name(good, sizeof(good), (kn_variant)v);
    }
    free(rows);
    if (wrong > 0)
        app_doctor_row(doctor, APP_ROW_FAIL, "bits",
                       "run with --kernels and a variant that passed, and report this processor",
                       "%u kernels compute other bits than promised (%s); all is well with: %s",
                       wrong, first, good[0] == '\0' ? "none" : good);
    else
        app_doctor_row(doctor, APP_ROW_OK, "bits", NULL,
                       "%u kernels give the promised bits, by each of %s", count, good);
}

/* ---- memory ---- */

static void check_huge_pages(app_doctor *doctor)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    char *text = read_text(path), mine[16];

    read_field("/proc/self/status", "THP_enabled", mine, sizeof(mine));
    if (mine[0] == '0')
        app_doctor_row(doctor, APP_ROW_WARN, "huge pages",
                       "whoever starts this process forbids them (prctl PR_SET_THP_DISABLE)",
                       "switched off for this process: memory is read 10 to 30 %% slower");
    else if (text == NULL)
        app_doctor_row(doctor, APP_ROW_WARN, "huge pages",
                       "use a kernel with transparent huge pages",
                       "%s is not there: memory is read 10 to 30 %% slower", path);
    else if (strstr(text, "[never]") != NULL)
        app_doctor_row(doctor, APP_ROW_WARN, "huge pages",
                       "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                       "set to never: memory is read 10 to 30 %% slower");
    else
        app_doctor_row(doctor, APP_ROW_OK, "huge pages", NULL, "%s",
                       strstr(text, "[always]") != NULL ? "always" : "on request (madvise)");
    free(text);
}

static void check_memlock(app_doctor *doctor)
{
    struct rlimit limit;
    size_text text;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
    app_doctor_row(doctor, APP_ROW_OK, "memlock", NULL, "%s: this version locks no memory",
                   limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                                   : size((uint64_t)limit.rlim_cur, text));
}

/* "123456 kB" as bytes. */
static uint64_t meminfo_bytes(const char *key)
{
    char text[48];

    read_field("/proc/meminfo", key, text, sizeof(text));
    return strtoull(text, NULL, 10) * 1024;
}

static void check_memory(app_doctor *doctor)
{
    uint64_t total = meminfo_bytes("MemTotal"), machine = meminfo_bytes("MemAvailable");
    uint64_t swap = meminfo_bytes("SwapTotal"), swap_free = meminfo_bytes("SwapFree");
    uint64_t group = rt_cgroup_limits_read("").memory_bytes, process = rt_process_limit_left();
    size_text a, b, c;

    app_doctor_row(doctor, APP_ROW_OK, "ram", NULL, "%s, %s available", size(total, a),
                   size(machine, b));
    if (group == UINT64_MAX)
        app_doctor_row(doctor, APP_ROW_OK, "cgroup", NULL, "no memory limit");
    else if (group < machine / 2)
        app_doctor_row(doctor, APP_ROW_WARN, "cgroup",
                       "raise the container's or the service's memory limit (docker --memory, "
                       "systemd MemoryMax=)",
                       "its memory limit leaves %s of %s", size(group, a), size(machine, b));
    else
        app_doctor_row(doctor, APP_ROW_OK, "cgroup", NULL, "its memory limit leaves %s",
                       size(group, a));
    if (process < machine)
        app_doctor_row(doctor, APP_ROW_WARN, "ulimit",
                       "raise the limit where moesaic is started: ulimit -v unlimited, ulimit -d "
                       "unlimited",
                       "a limit of this process leaves it %s of %s", size(process, a),
                       size(machine, b));
    if (swap > swap_free && swap - swap_free > total / 20)
        app_doctor_row(doctor, APP_ROW_WARN, "swap",
                       "end what else fills the memory, or give a smaller --ram",
                       "%s of %s are in use: the machine is short of memory already",
                       size(swap - swap_free, b), size(swap, c));
}

void app_doctor_machine(app_doctor *doctor)
{
    check_cpu(doctor);
    check_kernels(doctor);
    check_bits(doctor);
    check_huge_pages(doctor);
    check_memlock(doctor);
    check_memory(doctor);
}

/* ---- libraries ---- */

/* Whether a program of this name is in PATH. */
static bool in_path(const char *name)
{
    const char *at = rt_env_get("PATH");

    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, ":");
        char path[512];

        snprintf(path, sizeof(path), "%.*s/%s", (int)length, at, name);
        if (length > 0 && access(path, X_OK) == 0) return true;
        at += length + (at[length] == ':');
    }
    return false;
}

static void check_mpi(app_doctor *doctor)
{
    if (!tr_mpi_built_in())
        app_doctor_row(doctor, APP_ROW_OK, "mpi", NULL,
                       "not built in: one process alone (build with libopenmpi-dev for more)");
    else if (!in_path("mpirun"))
        app_doctor_row(doctor, APP_ROW_WARN, "mpi", "install openmpi-bin to use several processes",
                       "built in, but there is no mpirun in PATH");
    else if (geteuid() == 0 && rt_env_get("OMPI_ALLOW_RUN_AS_ROOT") == NULL)
        app_doctor_row(doctor, APP_ROW_OK, "mpi", NULL,
                       "built in, mpirun found; as root it wants OMPI_ALLOW_RUN_AS_ROOT=1 and "
                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
    else
        app_doctor_row(doctor, APP_ROW_OK, "mpi", NULL, "built in, mpirun found");
}

/* Whether the dynamic loader's cache knows a library of this name. Loading it would tell as well, but
 * would run its constructors (UCX's install signal handlers). */
static bool in_loader_cache(const char *file)
{
    static const char cache[] = "/etc/ld.so.cache";
    char *text = NULL;
    size_t bytes = 0;
    bool found = false;

    if (rt_file_read(cache, CACHE_BYTES_MAX, &text, &bytes, NULL) != RT_OK) return false;
    for (const char *at = text; !found && at != NULL;) {
        /* Paths stand there whole, each with its 0. */
        at = memmem(at, bytes - (size_t)(at - text), file, strlen(file) + 1);
        if (at == NULL) break;
        if (at > text && at[-1] == '/') {
            const char *path = at;

            while (path > text && path[-1] != '\0')
                path--;
            found = access(path, R_OK) == 0;
        }
        at++;
    }
    free(text);
    return found;
}

static void check_library(app_doctor *doctor, const char *name, const char *file)
{
    app_doctor_row(doctor, APP_ROW_OK, name, NULL, "%s %s; not used by this version", file,
                   in_loader_cache(file) ? "found" : "not found");
}

void app_doctor_libraries(app_doctor *doctor)
{
    check_mpi(doctor);
    check_library(doctor, "ucx", "libucp.so.0");
    check_library(doctor, "cuda", "libcuda.so.1");
}
