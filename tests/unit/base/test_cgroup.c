/* test_cgroup.c - made-up trees of both cgroup versions: the tightest level counts. */
#include "base/cgroup.h"

#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char v2_mount[] = "22 1 0:20 / /sys rw - sysfs sysfs rw\n"
                               "30 22 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup rw\n";

static void put(const char *root, const char *name, const char *text)
{
    free(temp_dir_write(root, name, text, strlen(text)));
}

static int setup(void **state)
{
    *state = temp_dir_make();
    return 0;
}

static int teardown(void **state)
{
    temp_dir_remove(*state);
    return 0;
}

static void v2_takes_the_tightest_level(void **state)
{
    char *root = *state;
    rt_cgroup_limits limits;

    put(root, "proc/self/cgroup", "0::/user/app\n");
    put(root, "proc/self/mountinfo", v2_mount);
    put(root, "sys/fs/cgroup/user/app/cpu.max", "400000 100000\n");
    put(root, "sys/fs/cgroup/user/cpu.max", "150000 100000\n");
    put(root, "sys/fs/cgroup/user/app/memory.max", "max\n");
    put(root, "sys/fs/cgroup/user/memory.max", "1000000\n");
    put(root, "sys/fs/cgroup/user/memory.current", "700000\n");
    put(root, "sys/fs/cgroup/user/memory.stat",
        "anon 1\ninactive_file 200000\nactive_file 100000\n");
    limits = rt_cgroup_limits_read(root);
    assert_true(limits.cpus == 1.5);
    assert_int_equal(limits.memory_bytes, 600000);
}

static void v2_counts_the_throttling_limit_too(void **state)
{
    char *root = *state;

    put(root, "proc/self/cgroup", "0::/\n");
    put(root, "proc/self/mountinfo", v2_mount);
    put(root, "sys/fs/cgroup/memory.max", "1000\n");
    put(root, "sys/fs/cgroup/memory.high", "900\n");
    put(root, "sys/fs/cgroup/memory.current", "100\n");
    assert_int_equal(rt_cgroup_limits_read(root).memory_bytes, 800);
}

static void v2_max_is_no_limit(void **state)
{
    char *root = *state;
    rt_cgroup_limits limits;

    put(root, "proc/self/cgroup", "0::/app\n");
    put(root, "proc/self/mountinfo", v2_mount);
    put(root, "sys/fs/cgroup/app/cpu.max", "max 100000\n");
    put(root, "sys/fs/cgroup/app/memory.max", "max\n");
    limits = rt_cgroup_limits_read(root);
    assert_true(limits.cpus == 0);
    assert_true(limits.memory_bytes == UINT64_MAX);
}

static void usage_above_the_limit_leaves_nothing(void **state)
{
    char *root = *state;

    put(root, "proc/self/cgroup", "0::/\n");
    put(root, "proc/self/mountinfo", v2_mount);
    put(root, "sys/fs/cgroup/memory.max", "1000\n");
    put(root, "sys/fs/cgroup/memory.current", "1200\n");
    assert_int_equal(rt_cgroup_limits_read(root).memory_bytes, 0);
}

static void v1_reads_each_controller_in_its_mount(void **state)
{
    char *root = *state;
    rt_cgroup_limits limits;

    put(root, "proc/self/cgroup", "4:memory:/job/1\n3:cpu,cpuacct:/job\n2:cpuset:/\n");
    put(root, "proc/self/mountinfo",
        "31 22 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 22 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 22 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
    put(root, "sys/fs/cgroup/memory/job/1/memory.limit_in_bytes", "9223372036854771712\n");
    put(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
    put(root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3000\n");
    put(root, "sys/fs/cgroup/memory/job/memory.stat",
        "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 500\n");
    put(root, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
    put(root, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    limits = rt_cgroup_limits_read(root);
    assert_true(limits.cpus == 0.5);
    assert_int_equal(limits.memory_bytes, 3000);
}

static void a_container_sees_its_own_group_as_the_top(void **state)
{
    char *root = *state;

    /* The mount shows /docker/abc as its top, while the process names its group from the host. */
    put(root, "proc/self/cgroup", "0::/docker/abc/init\n");
    put(root, "proc/self/mountinfo",
        "30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put(root, "sys/fs/cgroup/cpu.max", "200000 100000\n");
    put(root, "sys/fs/cgroup/init/cpu.max", "100000 100000\n");
    assert_true(rt_cgroup_limits_read(root).cpus == 1);
}

static void a_group_outside_the_mount_counts_from_the_top(void **state)
{
    char *root = *state;

    put(root, "proc/self/cgroup", "0::/docker/abcdef\n");
    put(root, "proc/self/mountinfo",
        "30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put(root, "sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_true(rt_cgroup_limits_read(root).cpus == 2);
}

static void nothing_or_nonsense_does_not_limit(void **state)
{
    static const char *const mounts[] = {"",
                                         "\n\n",
                                         " - ",
                                         "x - cgroup2",
                                         "1 2 3 4 5 - cgroup",
                                         "30 22 0:26 / - cgroup2 cgroup rw\n"};
    char *root = *state;
    rt_cgroup_limits limits = rt_cgroup_limits_read(root); /* an empty folder */

    assert_true(limits.cpus == 0 && limits.memory_bytes == UINT64_MAX);
    put(root, "proc/self/cgroup", "0\n::\n0::\n4:memory\nxyz");
    for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
        put(root, "proc/self/mountinfo", mounts[i]);
        limits = rt_cgroup_limits_read(root);
        assert_true(limits.cpus == 0 && limits.memory_bytes == UINT64_MAX);
    }
    put(root, "proc/self/cgroup", "0::/\n");
    put(root, "proc/self/mountinfo", v2_mount);
    put(root, "sys/fs/cgroup/cpu.max", "100000 0\n");
    put(root, "sys/fs/cgroup/memory.max", "lots\n");
    limits = rt_cgroup_limits_read(root);
    assert_true(limits.cpus == 0 && limits.memory_bytes == UINT64_MAX);
}

#define TREE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(v2_takes_the_tightest_level),
        TREE_TEST(v2_counts_the_throttling_limit_too),
        TREE_TEST(v2_max_is_no_limit),
        TREE_TEST(usage_above_the_limit_leaves_nothing),
        TREE_TEST(v1_reads_each_controller_in_its_mount),
        TREE_TEST(a_container_sees_its_own_group_as_the_top),
        TREE_TEST(a_group_outside_the_mount_counts_from_the_top),
        TREE_TEST(nothing_or_nonsense_does_not_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
