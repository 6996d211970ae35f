/* budget.c - the ledger of a process's memory, and sizes as people write them. */
#include "base/budget.h"

#include "base/cgroup.h"
#include "base/check.h"
#include "base/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MEMINFO_LIMIT_BYTES = 1 << 16, SIZE_TEXT_BYTES = 32 };

/* MemAvailable, not MemFree: page cache is given back when asked for. */
static uint64_t machine_available_bytes(void)
{
    static const char key[] = "MemAvailable:";
    char *text;
    const char *line;
    size_t bytes;
    uint64_t available = 0;

    if (rt_file_read("/proc/meminfo", MEMINFO_LIMIT_BYTES, &text, &bytes, NULL) != RT_OK) return 0;
    line = strstr(text, key);
    if (line != NULL) available = strtoull(line + sizeof(key) - 1, NULL, 10) * 1024;
    free(text);
    return available;
}

/* What a limit of the process leaves beside `used_pages`. */
static uint64_t left_of_limit(const struct rlimit *limit, uint64_t used_pages)
{
    uint64_t used = used_pages * (uint64_t)sysconf(_SC_PAGESIZE);

    if (limit->rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    return limit->rlim_cur > used ? limit->rlim_cur - used : 0;
}

uint64_t rt_process_limit_left(void)
{
    struct rlimit space, data;
    unsigned long long space_pages = 0, data_pages = 0;
    uint64_t left, left_data;
    char *text;
    size_t bytes;

    if (getrlimit(RLIMIT_AS, &space) != 0 || getrlimit(RLIMIT_DATA, &data) != 0) return UINT64_MAX;
    if (rt_file_read("/proc/self/statm", MEMINFO_LIMIT_BYTES, &text, &bytes, NULL) != RT_OK)
        return UINT64_MAX;
    if (sscanf(text, "%llu %*u %*u %*u %*u %llu", &space_pages, &data_pages) != 2)
        space_pages = data_pages = 0;
    free(text);
    left = left_of_limit(&space, space_pages);
    left_data = left_of_limit(&data, data_pages);
    return left < left_data ? left : left_data;
}

uint64_t rt_memory_available_bytes(void)
{
    uint64_t available = machine_available_bytes();
    uint64_t group = rt_cgroup_limits_read("").memory_bytes, process = rt_process_limit_left();

    if (group < available) available = group;
    return process < available ? process : available;
}

void rt_budget_init(rt_budget *budget, uint64_t limit_bytes)
{
    memset(budget, 0, sizeof(*budget));
    if (limit_bytes == 0) {
        uint64_t available = rt_memory_available_bytes();

        /* 5 %: page tables, stacks, libraries, and whoever else starts meanwhile. */
        limit_bytes = available - available / 20;
    }
    budget->limit_bytes = limit_bytes;
}

static uint64_t booked_bytes(const rt_budget *budget)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < budget->line_count; i++)
        sum += budget->lines[i].bytes;
    return sum;
}

uint64_t rt_budget_left(const rt_budget *budget)
{
    uint64_t booked = booked_bytes(budget);

    RT_ASSERT(booked <= budget->limit_bytes);
    return budget->limit_bytes - booked;
}

static size_t append(char *text, size_t text_bytes, size_t used, const char *fmt, ...)
    RT_PRINTF(4, 5);

static size_t append(char *text, size_t text_bytes, size_t used, const char *fmt, ...)
{
    va_list args;
    int wrote;

    va_start(args, fmt);
    wrote = vsnprintf(text + used, text_bytes - used, fmt, args);
    va_end(args);
    if (wrote < 0) return used;
    return (size_t)wrote < text_bytes - used ? used + (size_t)wrote : text_bytes - 1;
}

void rt_budget_print(const rt_budget *budget, char *text, size_t text_bytes)
{
    char size[SIZE_TEXT_BYTES];
    size_t used = 0;

    RT_ASSERT(text_bytes > 0);
    text[0] = '\0';
    for (uint32_t i = 0; i < budget->line_count; i++)
        used = append(text, text_bytes, used, "%s %s\n", budget->lines[i].name,
                      rt_bytes_format(budget->lines[i].bytes, size, sizeof(size)));
    used = append(text, text_bytes, used, "booked %s",
                  rt_bytes_format(booked_bytes(budget), size, sizeof(size)));
    append(text, text_bytes, used, " of %s",
           rt_bytes_format(budget->limit_bytes, size, sizeof(size)));
}

/* The error of a booking that does not fit. What is missing comes first: should the table be longer
 * than the text, its end is what is lost. */
static rt_status does_not_fit(const rt_budget *budget, const char *name, uint64_t bytes,
                              rt_err *err)
{
    char wanted[SIZE_TEXT_BYTES], missing[SIZE_TEXT_BYTES];
    char table[sizeof(err->text)];

    rt_budget_print(budget, table, sizeof(table));
    return rt_fail(err, RT_ENOMEM, "memory: %s needs %s, %s more than is left\n%s", name,
                   rt_bytes_format(bytes, wanted, sizeof(wanted)),
                   rt_bytes_format(bytes - rt_budget_left(budget), missing, sizeof(missing)),
                   table);
}

rt_status rt_budget_book(rt_budget *budget, const char *name, uint64_t bytes, rt_err *err)
{
    uint32_t i = 0;

    if (bytes > rt_budget_left(budget)) return does_not_fit(budget, name, bytes, err);
    while (i < budget->line_count && strcmp(budget->lines[i].name, name) != 0)
        i++;
    if (i == budget->line_count) {
        RT_ASSERT(i < RT_BUDGET_LINES_MAX);
        budget->lines[i].name = name;
        budget->lines[i].bytes = 0;
        budget->line_count++;
    }
    budget->lines[i].bytes += bytes;
    return RT_OK;
}

/* The power of two of a unit letter, -1 if it is none. */
static int unit_shift(char letter)
{
    switch (letter) {
    case 'K':
    case 'k':
        return 10;
    case 'M':
    case 'm':
        return 20;
    case 'G':
    case 'g':
        return 30;
    case 'T':
    case 't':
        return 40;
    default:
        return -1;
    }
}

/* Digits, an optional fraction (of six digits at most), an optional unit K M G T or KiB MiB ... */
static bool parse_size(const char *text, uint64_t *out)
{
    uint64_t whole = 0, fraction = 0, fraction_unit = 1;
    const char *at = text;
    int shift = 0;

    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(whole, 10u, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*at - '0'), &whole))
            return false;
    }
    if (at == text) return false;
    if (*at == '.') {
        const char *first = ++at;

        for (; *at >= '0' && *at <= '9' && fraction_unit < 1000000; at++) {
            fraction = fraction * 10 + (uint64_t)(*at - '0');
            fraction_unit *= 10;
        }
        if (at == first || unit_shift(*at) < 0) return false; /* no parts of a byte */
    }
    if (*at != '\0') {
        shift = unit_shift(*at++);
        if (shift < 0) return false;
        if (strcmp(at, "iB") != 0 && *at != '\0') return false;
    }
    if (whole > UINT64_MAX >> shift) return false;
    fraction = (fraction << shift) / fraction_unit; /* < 10^6 * 2^40: fits */
    return !__builtin_add_overflow(whole << shift, fraction, out);
}

rt_status rt_bytes_parse(const char *text, uint64_t *out, rt_err *err)
{
    uint64_t bytes;

    if (!parse_size(text, &bytes))
        return rt_fail(err, RT_EINVAL,
                       "expected a size such as 512M, 24G, 1.5T or plain bytes, found \"%s\"",
                       text);
    *out = bytes;
    return RT_OK;
}

const char *rt_bytes_format(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;

    /* 999.95, not 1000: what would be rounded to 1000.0 belongs to the next unit. */
    while (value >= 999.95 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1000;
        unit++;
    }
    snprintf(text, text_bytes, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}
