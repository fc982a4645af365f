"""Every rank brings an array, and gets everybody's average.

Start one process per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun does, or under mpirun:

    mpirun -np 4 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 python3 average.py

With TOPOD_SOCKET set, the plan is that daemon's for the first WORLD_SIZE GPUs, else an even one.
"""

import os

import numpy as np
import topod

ranks = int(os.environ.get("WORLD_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
if "TOPOD_SOCKET" in os.environ:
    plan = topod.Plan.from_daemon(gpus=range(ranks))
else:
    plan = topod.Plan.even(ranks)

with topod.Communicator(plan) as comm:
    # Blocking, in place.
    values = np.array([0.0, 10.0, 20.0]) + comm.rank
    comm.all_reduce(values, op="avg")
    print(f"rank {comm.rank} of {comm.size}: average {values}")
    assert np.allclose(values, np.array([0.0, 10.0, 20.0]) + (comm.size - 1) / 2)

    # Registered memory, which the ranks of a host need not copy, while this rank computes something else.
    data = comm.zeros((300, 400), "float32")
    data += comm.rank
    operation = comm.all_reduce(data, op="sum", async_op=True)
    work = np.linalg.norm(np.arange(10_000.0))
    stats = operation.wait()
    assert (data == comm.size * (comm.size - 1) / 2).all() and work > 0
    print(f"rank {comm.rank}: {stats}")

    # A group of every second rank.
    half = comm.split(comm.rank % 2)
    half.barrier()
    half.close()
    print(f"rank {comm.rank}: done")
