"""Data-parallel training of a small network in NumPy: every rank has the model, and a share of each batch.

Alone, as many shards as wanted in one process:

    python3 train.py --shards 4

As a job, one process per shard, under any launcher that topod's env:// knows:

    mpirun -np 4 -x MASTER_ADDR=node1 -x MASTER_PORT=29500 python3 train.py

Gradients of a layer travel while those of the layer before are computed. They are rounded to multiples of 2^-40 first, on
each shard: sums of such numbers below 2^12 are exact in double precision, in whatever order the ranks are added, so the job's
losses have the bits of the single process's. With --unrounded the sums differ in their last places by the order of addition,
by at most (n - 1) 2^-53 of the sum of magnitudes for n ranks.
"""

import argparse
import json
import os

import numpy as np

GRAIN = 2.0**-40


class Alone:
    """All shards in this process."""

    def __init__(self, shards):
        self.shards = range(shards)
        self.count = shards
        self.leads = True

    def same_start(self, weights):
        pass

    def start_sum(self, parts):
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return lambda: total


class Job:
    """One shard for each rank of a job."""

    def __init__(self, plan):
        import topod

        self.comm = topod.Communicator(plan)
        self.shards = [self.comm.rank]
        self.count = self.comm.size
        self.leads = self.comm.rank == 0

    def same_start(self, weights):
        for weight in weights:
            self.comm.broadcast(weight, root=0)

    def start_sum(self, parts):
        (total,) = parts
        operation = self.comm.all_reduce(total, op="sum", async_op=True)

        def wait():
            operation.wait()
            return total

        return wait


def rounded(gradient, exactly):
    return np.round(gradient / GRAIN) * GRAIN if exactly else gradient


def train(world, steps, batch, exactly):
    random = np.random.default_rng(1)
    weights = [random.normal(0, 0.5, (8, 32)), random.normal(0, 0.5, (32, 1))]
    if not world.leads:
        # Whoever does not lead starts with something else, and is told.
        weights = [np.zeros_like(weight) for weight in weights]
    world.same_start(weights)
    truth = np.random.default_rng(2).normal(0, 1, 8)
    data = np.random.default_rng(3)
    losses = []
    for _ in range(steps):
        inputs = data.normal(0, 1, (batch, 8))
        wanted = np.sin(inputs @ truth)[:, None]
        pieces = []
        for shard in world.shards:
            first, last = batch * shard // world.count, batch * (shard + 1) // world.count
            x, y = inputs[first:last].copy(), wanted[first:last].copy()
            hidden = np.tanh(x @ weights[0])
            error = hidden @ weights[1] - y
            pieces.append((x, hidden, error))
        # Backwards; the last layer's gradients are on their way while the first one's are computed.
        outer = [rounded(hidden.T @ error, exactly) for _, hidden, error in pieces]
        loss = [np.array([rounded(np.sum(error**2), exactly)]) for _, _, error in pieces]
        last_layer, loss = world.start_sum(outer), world.start_sum(loss)
        inner = [
            rounded(x.T @ ((error @ weights[1].T) * (1 - hidden**2)), exactly) for x, hidden, error in pieces
        ]
        first_layer = world.start_sum(inner)
        weights[1] -= 0.2 / batch * last_layer()
        weights[0] -= 0.2 / batch * first_layer()
        losses.append(float(loss()[0]) / batch)
    return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, help="train alone, with so many shards")
    parser.add_argument("--plan", help="a plan file; else the daemon at TOPOD_SOCKET is asked")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--unrounded", action="store_true")
    arguments = parser.parse_args()
    if arguments.shards:
        world = Alone(arguments.shards)
    else:
        import topod

        ranks = int(os.environ.get("WORLD_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
        plan = topod.Plan.load(arguments.plan) if arguments.plan else topod.Plan.from_daemon(gpus=range(ranks))
        world = Job(plan)
    losses = train(world, arguments.steps, arguments.batch, not arguments.unrounded)
    if world.leads:
        print(json.dumps({"ranks": world.count, "losses": losses}))


main()
