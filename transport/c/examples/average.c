/* Every rank brings numbers, and gets everybody's average.

   Start one process per rank, each with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun does, or under mpirun
   with the last two exported. With TOPOD_SOCKET set, the plan is that daemon's for the first WORLD_SIZE GPUs, else an even
   one.

       cc average.c -ltopod -o average
       mpirun -np 4 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 ./average 4 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <topod.h>

/* Ends the process with the library's words where a call fails. */
static void check(topod_status status, const char *what)
{
    if (status != TOPOD_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", what, topod_last_error());
        exit(1);
    }
}

/* The sum of all ranks' arrays, and some work of this rank meanwhile. */
static double overlapped(topod_communicator *world, float *data, size_t count)
{
    topod_operation *operation;
    topod_stats stats;
    double work = 0;
    int steps = 0;
    topod_status status;

    check(topod_all_reduce(world, data, data, count, TOPOD_F32, TOPOD_SUM, &operation), "start");
    do {
        for (int i = 0; i < 1000; i++)
            work += 1.0 / (1.0 + i + steps);
        steps++;
        status = topod_wait(operation, 0, &stats);
    } while (status == TOPOD_STATUS_NOT_DONE);
    check(status, "wait");
    topod_operation_free(operation);
    if (stats.bytes != count * sizeof *data)
        exit(3);
    return work;
}

int main(int argc, char **argv)
{
    enum { COUNT = 100000 };
    uint32_t ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2, rank;
    topod_plan *plan;
    topod_options *options;
    topod_communicator *world, *half;
    void *memory;
    float *data;
    double values[3], expected;

    if (getenv("TOPOD_SOCKET")) {
        uint32_t gpus[64];
        for (uint32_t i = 0; i < ranks && i < 64; i++)
            gpus[i] = i;
        check(topod_plan_from_daemon(NULL, gpus, ranks, &plan), "plan");
    } else {
        check(topod_plan_even(ranks, &plan), "plan");
    }
    check(topod_options_create(&options), "options");
    check(topod_options_set(options, "timeout_ms", "60000"), "options");
    check(topod_communicator_create(plan, TOPOD_RANK_OF_LAUNCHER, "env://", options, &world), "meet");
    check(topod_communicator_place(world, &rank, &ranks), "place");

    /* Blocking, in place, private memory. */
    for (int i = 0; i < 3; i++)
        values[i] = rank + 10.0 * i;
    check(topod_all_reduce(world, values, values, 3, TOPOD_F64, TOPOD_AVG, NULL), "average");
    expected = (ranks - 1) / 2.0;
    printf("rank %u of %u: average %g %g %g\n", rank, ranks, values[0], values[1], values[2]);
    if (values[0] != expected || values[2] != expected + 20)
        return 2;

    /* Asynchronous, registered memory, which the ranks of a host need not copy. */
    check(topod_allocate(world, COUNT * sizeof *data, &memory), "allocate");
    data = memory;
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(i % 100) + (float)rank;
    if (overlapped(world, data, COUNT) <= 0)
        return 2;
    for (int i = 0; i < COUNT; i++)
        if (data[i] != (float)(i % 100) * (float)ranks + (float)(ranks * (ranks - 1) / 2))
            return 2;
    check(topod_release(world, memory), "release");

    /* Many small buffers in one operation. */
    float weights[40] = {0}, bias[3] = {0};
    void *tensors[] = {weights, bias};
    size_t counts[] = {40, 3};
    weights[39] = bias[2] = (float)rank;
    check(topod_all_reduce_fused(world, tensors, counts, 2, TOPOD_F32, TOPOD_MAX, 0), "fused");
    if (weights[39] != (float)(ranks - 1) || bias[2] != (float)(ranks - 1) || weights[0] != 0)
        return 2;

    /* A group of every second rank. */
    check(topod_split(world, (int32_t)(rank % 2), 0, NULL, NULL, options, &half), "split");
    check(topod_barrier(half), "barrier");
    int64_t sum = rank, total = 0;
    check(topod_all_reduce(half, &sum, &sum, 1, TOPOD_I64, TOPOD_SUM, NULL), "sum of the half");
    for (uint32_t other = rank % 2; other < ranks; other += 2)
        total += other;
    if (sum != total)
        return 2;
    topod_communicator_free(half);

    /* What makes no sense is refused before anything is sent. */
    if (topod_all_reduce(world, values, values, 3, TOPOD_F64, TOPOD_AND, NULL) != TOPOD_STATUS_INVALID
        || !strstr(topod_last_error(), "and does not combine elements of type f64"))
        return 2;
    if (topod_options_set(options, "speed", "11") != TOPOD_STATUS_INVALID)
        return 2;

    check(topod_barrier(world), "barrier");
    topod_communicator_free(world);
    topod_options_free(options);
    topod_plan_free(plan);
    printf("rank %u: done\n", rank);
    return 0;
}
