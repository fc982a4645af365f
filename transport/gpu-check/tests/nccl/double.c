/* A test double of libnccl.so.2: what nccl.h and NCCL's documentation say of a few functions, over the CUDA driver's synchronous
 * copies and memory that ranks of a host share. It proves which calls a program makes and what it makes of answers; rates mean nothing.
 *
 *   ncclGetUniqueId    names the shared memory
 *   ncclCommInitRank   every rank says which GPU it has; two with the same one are an invalid use, as in NCCL
 *   ncclAllReduce      waits for the stream, copies out, waits for the others, sums in rank order, copies in; f32 and sum alone
 *
 * NCCL_DOUBLE_WRONG=1 adds one to the first element of every sum.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef enum { ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInvalidArgument = 4, ncclInvalidUsage = 5 } ncclResult_t;
enum { ncclFloat32 = 7, ncclSum = 0 };
enum { MOST_RANKS = 16, MOST_BYTES = 4 << 20 };

struct shared {
    pthread_barrier_t barrier;
    atomic_int ready, arrived, refused, left;
    char bus[MOST_RANKS][32];
    char data[MOST_RANKS][MOST_BYTES];
};

struct ncclComm {
    struct shared *shared;
    int rank, ranks;
};

static char last_error[256];

typedef int (*stream_fn)(void *);
typedef int (*in_fn)(unsigned long long, const void *, size_t);
typedef int (*out_fn)(void *, unsigned long long, size_t);
typedef int (*device_fn)(int *);
typedef int (*bus_fn)(char *, int, int);

static void *driver(const char *name) {
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = 22105;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    }
    return "unknown result code";
}

const char *ncclGetLastError(void *comm) {
    (void)comm;
    return last_error;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static atomic_int made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/nccl-double-%d-%d", getpid(), atomic_fetch_add(&made, 1));
    int file = shm_open(id->internal, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct shared))) return ncclSystemError;
    close(file);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(struct ncclComm **out, int ranks, ncclUniqueId id, int rank) {
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    int file = shm_open(id.internal, O_RDWR, 0600);
    if (file < 0) return ncclSystemError;
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared == MAP_FAILED) return ncclSystemError;
    if (rank == 0) {
        pthread_barrierattr_t attributes;
        pthread_barrierattr_init(&attributes);
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&shared->barrier, &attributes, ranks);
        atomic_store(&shared->ready, 1);
    }
    while (!atomic_load(&shared->ready)) sched_yield();
    int device = 0;
    device_fn current = (device_fn)driver("cuCtxGetDevice");
    bus_fn bus = (bus_fn)driver("cuDeviceGetPCIBusId");
    if (!current || !bus || current(&device) || bus(shared->bus[rank], 32, device)) return ncclUnhandledCudaError;
    pthread_barrier_wait(&shared->barrier);
    if (rank == 0) shm_unlink(id.internal);
    for (int other = 0; other < ranks; other++) {
        if (other != rank && !strcmp(shared->bus[other], shared->bus[rank])) {
            snprintf(last_error, sizeof last_error, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %s", rank, other,
                     shared->bus[rank]);
            return ncclInvalidUsage;
        }
    }
    struct ncclComm *comm = malloc(sizeof *comm);
    *comm = (struct ncclComm){shared, rank, ranks};
    *out = comm;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(struct ncclComm *comm) {
    munmap(comm->shared, sizeof *comm->shared);
    free(comm);
    return ncclSuccess;
}

/* What every rank has at `from`, where all can see it. */
static ncclResult_t share(struct ncclComm *comm, const void *from, size_t bytes, void *stream) {
    stream_fn wait = (stream_fn)driver("cuStreamSynchronize");
    out_fn copy = (out_fn)driver("cuMemcpyDtoH_v2");
    if (bytes > MOST_BYTES) return ncclInvalidArgument;
    if (!wait || !copy || wait(stream) || copy(comm->shared->data[comm->rank], (unsigned long long)from, bytes))
        return ncclUnhandledCudaError;
    pthread_barrier_wait(&comm->shared->barrier);
    return ncclSuccess;
}

static ncclResult_t put(struct ncclComm *comm, void *to, const void *data, size_t bytes) {
    in_fn copy = (in_fn)driver("cuMemcpyHtoD_v2");
    int failed = !copy || copy((unsigned long long)to, data, bytes);
    pthread_barrier_wait(&comm->shared->barrier);
    return failed ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct ncclComm *comm, void *stream) {
    if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
    ncclResult_t result = share(comm, from, 4 * count, stream);
    if (result) return result;
    float *sum = malloc(4 * count + 4);
    for (size_t i = 0; i < count; i++) {
        sum[i] = 0;
        for (int rank = 0; rank < comm->ranks; rank++) sum[i] += ((float *)comm->shared->data[rank])[i];
    }
    if (count > 1 && getenv("NCCL_DOUBLE_WRONG")) sum[0] += 1;
    result = put(comm, to, sum, 4 * count);
    free(sum);
    return result;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t each, int type, struct ncclComm *comm, void *stream) {
    if (type != ncclFloat32) return ncclInvalidArgument;
    ncclResult_t result = share(comm, from, 4 * each, stream);
    if (result) return result;
    char *all = malloc(4 * each * comm->ranks + 4);
    for (int rank = 0; rank < comm->ranks; rank++) memcpy(all + 4 * each * rank, comm->shared->data[rank], 4 * each);
    result = put(comm, to, all, 4 * each * comm->ranks);
    free(all);
    return result;
}
