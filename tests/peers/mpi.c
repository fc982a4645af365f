/* Times one collective of an MPI library, as `topoctl bench` times ours: the slowest rank's time per operation, batches back to back
 * with a barrier before each; cold: each operation alone, on buffers that rotate over more than caches hold. `cargo xtask peers`
 * builds and runs it; the place of the result is MPI_IN_PLACE where `in` is given.
 *
 *   mpi COLLECTIVE in|out hot|cold MILLISECONDS BYTES...
 *
 * prints on rank 0, for each size:   BYTES MEDIAN_US LEAST_US P10_US WRONG
 * Bytes are the whole data of the collective, as nccl-tests counts them. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COLD_BYTES = 64 << 20, COLD_OPERATIONS = 100, BATCHES = 20, MOST = 2000 };

static int rank, ranks, in_place;
static const char *what;

static int is(const char *name) { return strcmp(what, name) == 0; }

/* `count` floats in all; `block` of them are one rank's. */
static void once(float *in, float *out, int count, int block) {
  MPI_Comm all = MPI_COMM_WORLD;
  float *own = out + (size_t)rank * block;
  if (is("all-reduce")) MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, count, MPI_FLOAT, MPI_SUM, all);
  else if (is("broadcast")) MPI_Bcast(out, count, MPI_FLOAT, 0, all);
  else if (is("reduce")) {
    if (in_place && rank == 0) MPI_Reduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, 0, all);
    else MPI_Reduce(in_place ? out : in, out, count, MPI_FLOAT, MPI_SUM, 0, all);
  } else if (is("all-gather")) {
    if (in_place) MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, block, MPI_FLOAT, all);
    else MPI_Allgather(in, block, MPI_FLOAT, out, block, MPI_FLOAT, all);
  } else if (is("reduce-scatter")) {
    if (in_place) MPI_Reduce_scatter_block(MPI_IN_PLACE, out, block, MPI_FLOAT, MPI_SUM, all);
    else MPI_Reduce_scatter_block(in, out, block, MPI_FLOAT, MPI_SUM, all);
  } else if (is("all-to-all")) MPI_Alltoall(in, block, MPI_FLOAT, out, block, MPI_FLOAT, all);
  else if (is("gather")) {
    if (in_place && rank == 0) MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, block, MPI_FLOAT, 0, all);
    else MPI_Gather(in_place ? own : in, block, MPI_FLOAT, out, block, MPI_FLOAT, 0, all);
  } else if (is("scatter")) {
    if (in_place && rank == 0) MPI_Scatter(out, block, MPI_FLOAT, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, 0, all);
    else MPI_Scatter(in_place ? out : in, block, MPI_FLOAT, in_place ? own : out, block, MPI_FLOAT, 0, all);
  } else if (is("send-recv"))
    MPI_Sendrecv(in, count, MPI_FLOAT, (rank + 1) % ranks, 0, out, count, MPI_FLOAT, (rank + ranks - 1) % ranks, 0, all,
                 MPI_STATUS_IGNORE);
  else if (is("barrier")) MPI_Barrier(all);
  else {
    fprintf(stderr, "no collective '%s'\n", what);
    MPI_Abort(all, 2);
  }
}

/* Sums of ones are exact, and enough to see that the library did what it was asked. */
static int wrong(float *in, float *out, int count, int block) {
  int bad = 0;
  for (int i = 0; i < count; i++) in[i] = out[i] = 1;
  once(in, out, count, block);
  if (is("all-reduce") || (is("reduce") && rank == 0))
    for (int i = 0; i < count; i++) bad += out[i] != (float)ranks;
  if (is("reduce-scatter"))
    for (int i = 0; i < block; i++) bad += out[i] != (float)ranks;
  memset(in, 0, (size_t)count * sizeof *in);
  memset(out, 0, (size_t)count * sizeof *out);
  return bad;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  const char *place = getenv("OMPI_COMM_WORLD_RANK");
  if (!place) place = getenv("PMI_RANK");
  if (place) { /* Bound as ours are: before the library looks around. */
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(place) % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 6) MPI_Abort(MPI_COMM_WORLD, 2);
  what = argv[1];
  in_place = argv[2][0] == 'i';
  int cold = argv[3][0] == 'c';
  double budget = atof(argv[4]) / 1e3;
  for (int a = 5; a < argc; a++) {
    size_t bytes = strtoull(argv[a], 0, 0);
    int count = bytes / sizeof(float), whole = is("all-reduce") || is("broadcast") || is("reduce") || is("send-recv");
    int block = count / ranks > 0 ? count / ranks : 1;
    if (!whole) count = block * ranks;
    if (is("barrier")) count = block = 0;
    size_t places = cold && count ? COLD_BYTES / sizeof(float) / count : 1;
    if (places < 1) places = 1;
    size_t room = (places * count + 16) * sizeof(float);
    float *in = aligned_alloc(4096, (room + 4095) / 4096 * 4096), *out = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    memset(in, 0, room);
    memset(out, 0, room);
    int bad = wrong(in, out, count, block), all_bad = 0;
    double last = 0, agreed;
    for (int i = 0; i < 5; i++) {
      size_t at = i % places * count;
      double start = MPI_Wtime();
      once(in + at, out + at, count, block);
      last = MPI_Wtime() - start;
    }
    MPI_Allreduce(&last, &agreed, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    int batches = cold ? COLD_OPERATIONS : BATCHES;
    double wanted = budget / BATCHES / (agreed > 1e-8 ? agreed : 1e-8);
    int operations = cold || wanted < 1 ? 1 : wanted > MOST ? MOST : (int)wanted;
    if (agreed > 0.05) batches = 3;
    double times[COLD_OPERATIONS], slowest[COLD_OPERATIONS];
    for (int b = 0; b < batches; b++) {
      size_t at = b % places * count;
      MPI_Barrier(MPI_COMM_WORLD);
      double start = MPI_Wtime();
      for (int i = 0; i < operations; i++) once(in + at, out + at, count, block);
      times[b] = (MPI_Wtime() - start) / operations;
    }
    MPI_Allreduce(times, slowest, batches, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Reduce(&bad, &all_bad, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    qsort(slowest, batches, sizeof *slowest, ascending);
    if (rank == 0) {
      printf("%zu %.4f %.4f %.4f %d\n", bytes, slowest[batches / 2] * 1e6, slowest[0] * 1e6, slowest[batches / 10] * 1e6, all_bad);
      fflush(stdout);
    }
    free(in);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
