/* topod.h: collectives between processes, along the plan of a topod.

   Every function but the three that free returns a status; topod_last_error has the words. Handles are opaque, and may be used
   by any thread; plans, options and operations by one at a time.

   Operations are collective: every rank of a group calls the same ones in the same order. Each takes a place for an operation:
   with null it blocks, else it starts and leaves a handle there, for topod_wait and topod_operation_free; the buffers must
   then stay until it is done. In what order a rank waits does not matter. When an operation fails, it fails on every rank
   within the time limit, and the communicator is of no further use.

   Link with -ltopod, or with libtopod.a and -lm -lpthread -ldl. */

#ifndef TOPOD_H
#define TOPOD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What became of a call. */
typedef enum topod_status {
    /* It did what it says. */
    TOPOD_STATUS_OK = 0,
    /* An argument makes no sense; nothing was sent. */
    TOPOD_STATUS_INVALID = 1,
    /* The ranks did not come together, or do not hold the same plan and settings. */
    TOPOD_STATUS_CONNECT = 2,
    /* A rank died, fell silent or did something else: the group is broken, on every rank. */
    TOPOD_STATUS_FAILED = 3,
    /* The group was broken before; nothing was sent. */
    TOPOD_STATUS_UNUSABLE = 4,
    /* Ranks did not come to a monitored barrier; the group is as usable as before. */
    TOPOD_STATUS_MISSING = 5,
    /* No memory for a registered buffer. */
    TOPOD_STATUS_NO_MEMORY = 6,
    /* The operation is not done yet. */
    TOPOD_STATUS_NOT_DONE = 7,
    /* No daemon answers, or it has no such plan. */
    TOPOD_STATUS_DAEMON = 8,
    /* The plan cannot be read, or has no channels for the operation; nothing was sent. */
    TOPOD_STATUS_PLAN = 9,
    /* A defect of this library. */
    TOPOD_STATUS_INTERNAL = 10
} topod_status;

/* What a buffer holds. */
typedef enum topod_element {
    /* IEEE 754 single precision. */
    TOPOD_F32 = 0,
    /* IEEE 754 double precision. */
    TOPOD_F64 = 1,
    /* IEEE 754 half precision. */
    TOPOD_F16 = 2,
    /* The upper half of a single. */
    TOPOD_BF16 = 3,
    /* 8 bits, signed. */
    TOPOD_I8 = 4,
    /* 32 bits, signed. */
    TOPOD_I32 = 5,
    /* 64 bits, signed. */
    TOPOD_I64 = 6,
    /* 8 bits, unsigned. */
    TOPOD_U8 = 7
} topod_element;

/* What elements are combined by. */
typedef enum topod_op {
    /* Addition. */
    TOPOD_SUM = 0,
    /* Multiplication. */
    TOPOD_PROD = 1,
    /* The least. */
    TOPOD_MIN = 2,
    /* The greatest. */
    TOPOD_MAX = 3,
    /* The sum over the number of ranks. */
    TOPOD_AVG = 4,
    /* The bits that are set in all; integers alone. */
    TOPOD_AND = 5,
    /* The bits that are set in any; integers alone. */
    TOPOD_OR = 6
} topod_op;

/* A plan: which rank sends to which, along which channels. Every rank of a group must hold the same. */
typedef struct topod_plan topod_plan;

/* Settings of a communicator. */
typedef struct topod_options topod_options;

/* One rank's part of a group. */
typedef struct topod_communicator topod_communicator;

/* An operation that was started. */
typedef struct topod_operation topod_operation;

/* What an operation took. */
typedef struct topod_stats {
    /* Total data of the collective, as nccl-tests counts it. */
    uint64_t bytes;
    /* From call to end on this rank. */
    uint64_t nanoseconds;
    /* The way it took: 0 the plan's channels, 1 a slot of each rank in shared memory, 2 straight from and to the ranks'
       buffers, 3 round by round through a stage of each rank in shared memory. */
    uint32_t path;
    /* Channels of the plan it ran on; 0 where it took another way. */
    uint32_t channels;
    /* Steps this rank did. */
    uint64_t steps;
    /* Times this rank slept. */
    uint64_t sleeps;
    /* How long messages of this rank waited for the group's bandwidth budget, in nanoseconds. */
    uint64_t held;
} topod_stats;

/* Makes the plan of a group whose ranks have these numbers in the group it is made of; it must be the same on every rank.
   The library takes the plan and frees it. */
typedef topod_status (*topod_planner)(
    const uint32_t *ranks,
    size_t count,
    void *context,
    topod_plan **plan);

/* The rank to give where the rendezvous is env://: the launcher's variables say it. */
#define TOPOD_RANK_OF_LAUNCHER UINT32_MAX

/* The words to the last call of this thread that did not return TOPOD_STATUS_OK; never null. Valid until this thread calls
   again. */
const char *topod_last_error(void);

/* The library's version, as in "0.1.0". */
const char *topod_version(void);

/* Reads a plan as `topoctl plan -o json` writes it. */
topod_status topod_plan_parse(const char *json, size_t length, topod_plan **plan);

/* Reads a plan file. */
topod_status topod_plan_load(const char *path, topod_plan **plan);

/* Asks the daemon for the plan of the GPUs with these NVML indices, in rank order; of all where `count` is 0. `socket` may
   be null: then it is TOPOD_SOCKET's, or the usual one. */
topod_status topod_plan_from_daemon(
    const char *socket,
    const uint32_t *gpus,
    size_t count,
    topod_plan **plan);

/* A plan that knows of no topology: two rings, one each way, and direct exchanges. It serves every operation, for
   processes on one host or where nothing better is at hand. */
topod_status topod_plan_even(uint32_t ranks, topod_plan **plan);

/* Writes the number of ranks of a plan. */
topod_status topod_plan_ranks(const topod_plan *plan, uint32_t *ranks);

/* Frees a plan; null is nothing. Communicators made of it keep their own. */
void topod_plan_free(topod_plan *plan);

/* New settings, all at their defaults. */
topod_status topod_options_create(topod_options **options);

/* Changes a setting: timeout_ms, join_timeout_ms, transport (auto, shm, tcp, verbs), paths (auto, plan), collectives (all, or
   names separated by commas), heap_bytes, slots, slot_bytes, sockets, cross_memory, pin, timed (0 or 1), algo, proto, socket_ifname,
   debug, debug_subsys, debug_file, ib_hca, ib_gid_index, ib_timeout, ib_retry_cnt, ib_qps_per_connection, ib_sl, ib_tc,
   ib_adaptive_routing, ib_disable (as NCCL's variables); priorities (how many operations may have); bandwidth (bytes a second a
   rank may send, 0 for any); report (the socket of a daemon that is told how operations end, or default); and progress_thread
   (0 or 1): whether a thread moves operations while the caller computes. What is not set is the environment's: TOPOD_ and the
   name in capitals, else NCCL's variable. */
topod_status topod_options_set(topod_options *options, const char *name, const char *value);

/* Frees options; null is nothing. */
void topod_options_free(topod_options *options);

/* Meets the other ranks of the plan and connects to the peers it names. `rendezvous` is "env://" (MASTER_ADDR, MASTER_PORT, and
   the rank from torchrun's, mpirun's or srun's variables), "tcp://HOST:PORT" (rank 0 listens there) or "file://PATH".
   `options` may be null. */
topod_status topod_communicator_create(
    const topod_plan *plan,
    uint32_t rank,
    const char *rendezvous,
    const topod_options *options,
    topod_communicator **communicator);

/* Leaves the group, frees its registered buffers; null is nothing. Operations that were started keep the group until they
   are freed, too. */
void topod_communicator_free(topod_communicator *communicator);

/* Writes this rank and the number of ranks; either may be null. */
topod_status topod_communicator_place(
    const topod_communicator *communicator,
    uint32_t *rank,
    uint32_t *ranks);

/* Writes the rank's part of `count` elements cut into shards, as the collectives that gather and scatter cut them: equal
   parts where the number of ranks divides `count`, else parts that differ by one element. */
topod_status topod_shard(
    const topod_communicator *communicator,
    size_t count,
    uint32_t rank,
    size_t *first,
    size_t *length);

/* Gives operations that are started from now on a priority, from 0 up to one less than the setting `priorities`. Every rank calls it at
   the same place among its operations. Those of a higher priority pass lower ones that are in flight. */
topod_status topod_set_priority(const topod_communicator *communicator, uint32_t priority);

/* Returns once every rank has called it. */
topod_status topod_barrier(const topod_communicator *communicator);

/* A barrier that says who does not come within so many milliseconds: TOPOD_STATUS_MISSING on every rank that called, and the
   words name the others. The group remains usable. */
topod_status topod_monitored_barrier(const topod_communicator *communicator, uint64_t limit_ms);

/* Zeroed memory that operations of this group use where it lies, where all ranks share a host; that NICs send from where it
   lies, where verbs links join them; else ordinary memory.
   Aligned for every element type. */
topod_status topod_allocate(const topod_communicator *communicator, size_t bytes, void **memory);

/* Gives back what topod_allocate gave; null is nothing. No operation may be using it. */
topod_status topod_release(const topod_communicator *communicator, void *memory);

/* Makes one group of all ranks of each colour, in the order of `key` and then of rank; none for ranks of a negative colour,
   which get a null handle. Every rank calls it. Without a planner the groups' plans are even ones. */
topod_status topod_split(
    const topod_communicator *communicator,
    int32_t colour,
    int64_t key,
    topod_planner planner,
    void *context,
    const topod_options *options,
    topod_communicator **group);

/* Makes one group of each list of ranks, in the order of the list; a null handle for a rank in no list. Every rank calls it with
   the same lists: `lengths` has the lengths of `count` lists, which lie one after the other in `ranks`. With lists along each
   dimension of a grid of ranks these are the groups of data, tensor and pipeline parallelism. */
topod_status topod_subgroups(
    const topod_communicator *communicator,
    const uint32_t *ranks,
    const size_t *lengths,
    size_t count,
    topod_planner planner,
    void *context,
    const topod_options *options,
    topod_communicator **group);

/* After a call that returned TOPOD_STATUS_FAILED: makes a group of the ranks that live, in their old order. Every rank that got
   the failure calls it, once; TOPOD_STATUS_CONNECT where so many are silent that they may be a group of their own, or where this
   rank is the one at fault. The old group is to be freed like any other. */
topod_status topod_shrink(
    const topod_communicator *communicator,
    topod_planner planner,
    void *context,
    const topod_options *options,
    topod_communicator **group);

/* Combines the inputs of all ranks, element by element, into every rank's output. In place where both are the same.
   `element_type` is a topod_element, `reduce_op` a topod_op; `operation` null to block, here and below. */
topod_status topod_all_reduce(
    const topod_communicator *communicator,
    const void *input,
    void *output,
    size_t count,
    uint32_t element_type,
    uint32_t reduce_op,
    topod_operation **operation);

/* Combines `tensors` buffers, each in place, by few operations: those that fit are packed into buckets of at most
   `bucket_bytes` (25 MiB where that is 0). `counts` has the number of elements of each. Blocks. */
topod_status topod_all_reduce_fused(
    const topod_communicator *communicator,
    void *const *buffers,
    const size_t *counts,
    size_t tensors,
    uint32_t element_type,
    uint32_t reduce_op,
    size_t bucket_bytes);

/* Gathers every rank's shard into every rank's output of `count` elements, by rank; topod_shard says how they are cut. In
   place where the input is at its place in the output. */
topod_status topod_all_gather(
    const topod_communicator *communicator,
    const void *input,
    void *output,
    size_t count,
    uint32_t element_type,
    topod_operation **operation);

/* Combines the inputs of `count` elements of all ranks and leaves each rank its shard of the result. In place where the output
   is at its place in the input. */
topod_status topod_reduce_scatter(
    const topod_communicator *communicator,
    const void *input,
    void *output,
    size_t count,
    uint32_t element_type,
    uint32_t reduce_op,
    topod_operation **operation);

/* Every rank's buffer becomes that of `root`. */
topod_status topod_broadcast(
    const topod_communicator *communicator,
    void *buffer,
    size_t count,
    uint32_t element_type,
    uint32_t root,
    topod_operation **operation);

/* Combines the inputs of all ranks into the output of `root`; elsewhere `output` is not looked at and may be null. */
topod_status topod_reduce(
    const topod_communicator *communicator,
    const void *input,
    void *output,
    size_t count,
    uint32_t element_type,
    uint32_t reduce_op,
    uint32_t root,
    topod_operation **operation);

/* Gathers every rank's shard of `count` elements into the output of `root`; elsewhere `output` is not looked at and may be
   null. */
topod_status topod_gather(
    const topod_communicator *communicator,
    const void *input,
    void *output,
    size_t count,
    uint32_t element_type,
    uint32_t root,
    topod_operation **operation);

/* Leaves every rank its shard of the `count` elements of the root's input; elsewhere `input` is not looked at and may be
   null. */
topod_status topod_scatter(
    const topod_communicator *communicator,
    const void *input,
    void *output,
    size_t count,
    uint32_t element_type,
    uint32_t root,
    topod_operation **operation);

/* Sends the r-th of the equal parts of the input to rank r, and leaves what comes from rank r in the r-th part of the output.
   `count` elements each in all, which the number of ranks divides. */
topod_status topod_all_to_all(
    const topod_communicator *communicator,
    const void *input,
    void *output,
    size_t count,
    uint32_t element_type,
    topod_operation **operation);

/* As topod_all_to_all, with `sends[r]` elements to rank r and `receives[r]` from it. Blocks one after the other. Counts that do not
   match are an error on every rank before any data moves. */
topod_status topod_all_to_all_uneven(
    const topod_communicator *communicator,
    const void *input,
    const size_t *sends,
    void *output,
    const size_t *receives,
    uint32_t element_type,
    topod_operation **operation);

/* Sends to one rank, which receives as many elements of the same type; messages between two ranks arrive in order. */
topod_status topod_send(
    const topod_communicator *communicator,
    const void *input,
    size_t count,
    uint32_t element_type,
    uint32_t to,
    topod_operation **operation);

/* Receives from one rank. */
topod_status topod_receive(
    const topod_communicator *communicator,
    void *output,
    size_t count,
    uint32_t element_type,
    uint32_t from,
    topod_operation **operation);

/* Receives from whichever rank sends first, and writes who it was. Blocks. */
topod_status topod_receive_any(
    const topod_communicator *communicator,
    void *output,
    size_t count,
    uint32_t element_type,
    uint32_t *from);

/* Waits until an operation is done, at most for so many milliseconds, or without limit where `limit_ms` is negative:
   TOPOD_STATUS_NOT_DONE where it is not done by then. With 0 it moves everything in flight and returns at once. `stats` may
   be null. */
topod_status topod_wait(topod_operation *operation, int64_t limit_ms, topod_stats *stats);

/* Frees an operation; null is nothing. One that is not done is waited for first, for the sake of its buffers and of the
   other ranks. */
void topod_operation_free(topod_operation *operation);


#ifdef __cplusplus
}
#endif

#endif
