"""Times one collective of Gloo, through torch.distributed, as `mpi.c` beside it times those of an MPI library.

    gloo.py RANKS COLLECTIVE in|out hot|cold MILLISECONDS BYTES...

prints on rank 0, for each size:   BYTES MEDIAN_US LEAST_US P10_US WRONG
With TOPOD_PEERS_HOSTS=A,B,ADDRESS,DEVICE half of the ranks are in either network namespace; A has the address, both the device.
Bytes are the whole data of the collective, as nccl-tests counts them. The slowest rank's time counts.
"""
import ctypes
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CLONE_NEWNET = 0x40000000
COLD_BYTES, COLD_OPERATIONS, BATCHES, MOST = 64 << 20, 100, 20, 2000
WHOLE = ("all-reduce", "broadcast", "reduce", "send-recv")


def operation(what, in_place, rank, ranks, count, block):
    """The collective as a function of the memory it reads and the memory it writes, `count` floats each."""
    if what == "all-reduce":
        # Gloo sums in place; out of place costs its caller a copy.
        return (lambda a, b: dist.all_reduce(b)) if in_place else (lambda a, b: (b.copy_(a), dist.all_reduce(b)))
    if what == "broadcast":
        return lambda a, b: dist.broadcast(b, 0)
    if what == "reduce":
        return (lambda a, b: dist.reduce(b, 0)) if in_place else (lambda a, b: (b.copy_(a), dist.reduce(b, 0)))
    if what == "all-gather":
        return lambda a, b: dist.all_gather(list(b.split(block)), a[:block])
    if what == "all-to-all":
        return lambda a, b: dist.all_to_all_single(b, a)
    if what == "gather":
        return lambda a, b: dist.gather(a[:block], list(b.split(block)) if rank == 0 else None, 0)
    if what == "scatter":
        return lambda a, b: dist.scatter(b[:block], list(a.split(block)) if rank == 0 else None, 0)
    if what == "reduce-scatter":
        return lambda a, b: dist.reduce_scatter(b[:block], list(a.split(block)))
    if what == "send-recv":

        def exchange(a, b):
            sent = dist.isend(a, (rank + 1) % ranks)
            dist.recv(b, (rank - 1) % ranks)
            sent.wait()

        return exchange
    if what == "barrier":
        return lambda a, b: dist.barrier()
    raise SystemExit(f"no collective '{what}'")


def slowest(times):
    worst = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return sorted(worst.tolist())


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(rank, ranks, what, in_place, cold, budget, size):
    count = size // 4
    block = max(1, count // ranks)
    if what not in WHOLE:
        count = block * ranks
    if what == "barrier":
        count = block = 1
    once = operation(what, in_place, rank, ranks, count, block)
    places = max(1, COLD_BYTES // 4 // count) if cold else 1
    a, b = torch.ones(places * count), torch.ones(places * count)
    once(a[:count], b[:count])
    summed = {"all-reduce": count, "reduce": count if rank == 0 else 0, "reduce-scatter": block}.get(what, 0)
    wrong = int((b[:summed] != ranks).sum())
    a.zero_()
    b.zero_()
    at = lambda i: slice(i % places * count, i % places * count + count)
    last = slowest([min(timed(lambda: once(a[at(i)], b[at(i)])) for i in range(5))])[0]
    batches = COLD_OPERATIONS if cold else 3 if last > 0.05 else BATCHES
    operations = 1 if cold else int(min(MOST, max(1, budget / BATCHES / max(last, 1e-8))))
    times = []
    for batch in range(batches):
        x, y = a[at(batch)], b[at(batch)]
        dist.barrier()
        times.append(timed(lambda: [once(x, y) for _ in range(operations)]) / operations)
    bad = torch.tensor([wrong])
    dist.all_reduce(bad)
    return slowest(times), int(bad)


def enter(host):
    """Moves this process into a network namespace."""
    with open(f"/run/netns/{host}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {host}")


def work(rank, ranks, port, what, place, heat, budget, sizes):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    address, device = "127.0.0.1", "lo"
    if hosts := os.environ.get("TOPOD_PEERS_HOSTS"):
        *names, address, device = hosts.split(",")
        enter(names[rank * len(names) // ranks])
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=device)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in sizes:
        times, wrong = measure(rank, ranks, what, place == "in", heat == "cold", budget, size)
        if rank == 0:
            figures = (times[len(times) // 2], times[0], times[len(times) // 10])
            print(size, *(f"{seconds * 1e6:.4f}" for seconds in figures), wrong, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
    words = sys.argv[1:]
    arguments = (int(words[0]), free_port, *words[1:4], float(words[4]) / 1e3, [int(word) for word in words[5:]])
    mp.spawn(work, arguments, nprocs=arguments[0])
