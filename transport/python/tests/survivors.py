"""One rank of a group of which one rank is killed; the others go on without it."""

import os
import signal

import numpy as np
import topod

comm = topod.Communicator(topod.Plan.even(int(os.environ["WORLD_SIZE"])), timeout_ms=120_000)
comm.all_reduce(np.ones(1000))
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        comm.all_reduce(np.ones(1000))
except topod.FailedError as error:
    assert "rank 1" in str(error), error
left = []


def planner(ranks):
    left.extend(ranks)
    return topod.Plan.even(len(ranks))


with comm.shrink(planner) as smaller:
    assert left == [rank for rank in range(comm.size) if rank != 1], left
    assert smaller.size == comm.size - 1
    data = np.array([comm.rank])
    smaller.all_reduce(data)
    assert data[0] == sum(left), data
print(f"rank {comm.rank}: went on")
