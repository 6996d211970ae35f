/* Which environments are an MPI launch: a wrong yes hangs a plain shell, a wrong no makes copies. */
#include "transport/link_mpi.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const names[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
};

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
    return 0;
}

static void expect_alone(void)
{
    tr_mpi_world world = tr_mpi_world_get();

    assert_false(world.launched);
    assert_int_equal(world.rank, 0);
    assert_int_equal(world.size, 1);
}

static void expect_rank(uint32_t rank, uint32_t size)
{
    tr_mpi_world world = tr_mpi_world_get();

    assert_true(world.launched);
    assert_int_equal(world.rank, rank);
    assert_int_equal(world.size, size);
}

static void a_plain_shell_is_no_launch(void **state)
{
    (void)state;
    expect_alone();
    assert_int_equal(tr_mpi_ranks_on_host(), 1);
}

static void open_mpi_is_a_launch(void **state)
{
    (void)state;
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    expect_alone();
    setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
    expect_rank(3, 8);
    assert_int_equal(tr_mpi_ranks_on_host(), 4);
}

static void hydra_and_pmi2_are_launches(void **state)
{
    (void)state;
    setenv("PMI_RANK", "0", 1);
    setenv("PMI_SIZE", "2", 1);
    setenv("MPI_LOCALNRANKS", "2", 1);
    expect_rank(0, 2);
    assert_int_equal(tr_mpi_ranks_on_host(), 2);
}

static void a_batch_script_and_a_plain_srun_are_no_launch(void **state)
{
    (void)state;
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "4", 1);
    expect_alone();
    setenv("SLURM_PROCID", "2", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    expect_alone();
}

static void srun_with_pmix_is_a_launch(void **state)
{
    (void)state;
    setenv("PMIX_RANK", "2", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    expect_alone();
    setenv("PMIX_NAMESPACE", "slurm.pmix.17.0", 1);
    expect_rank(2, 4);
}

static void pmix_without_a_size_never_claims_to_be_alone(void **state)
{
    (void)state;
    setenv("PMIX_NAMESPACE", "prte-1", 1);
    setenv("PMIX_RANK", "0", 1);
    expect_rank(0, 2);
    setenv("PMIX_RANK", "5", 1);
    expect_rank(5, 6);
}

static void values_that_are_no_ranks_are_no_launch(void **state)
{
    static const char *const bad[][2] = {
        {"", "4"},  {"x", "4"},  {"1x", "4"},         {"-1", "4"},         {"4", "4"},
        {"0", "0"}, {"0", "-2"}, {"4294967296", "4"}, {"0", "4294967297"}, {" 1", "4"},
    };

    (void)state;
    rt_log_set_level(RT_LOG_ERROR);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv("OMPI_COMM_WORLD_RANK", bad[i][0], 1);
        setenv("OMPI_COMM_WORLD_SIZE", bad[i][1], 1);
        expect_alone();
    }
}

static void creating_outside_a_launch_is_refused(void **state)
{
    tr_link *link = NULL;
    uint32_t rank = 77;
    rt_err err;
    rt_status status = tr_mpi_create(1 << 20, &link, &rank, &err);

    (void)state;
    /* With MPI: not launched. Without: not built in, and the package is named. */
    if (status == RT_EUNSUPPORTED)
        assert_non_null(strstr(err.text, "libopenmpi-dev"));
    else
        assert_int_equal(status, RT_EINVAL);
    assert_null(link);
    assert_int_equal(rank, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_plain_shell_is_no_launch, clear),
        cmocka_unit_test_setup(open_mpi_is_a_launch, clear),
        cmocka_unit_test_setup(hydra_and_pmi2_are_launches, clear),
        cmocka_unit_test_setup(a_batch_script_and_a_plain_srun_are_no_launch, clear),
        cmocka_unit_test_setup(srun_with_pmix_is_a_launch, clear),
        cmocka_unit_test_setup(pmix_without_a_size_never_claims_to_be_alone, clear),
        cmocka_unit_test_setup(values_that_are_no_ranks_are_no_launch, clear),
        cmocka_unit_test_setup(creating_outside_a_launch_is_refused, clear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
