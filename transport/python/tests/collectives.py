"""One rank of a group: every operation of the module, against what NumPy computes of all ranks' inputs."""

import array
import gc

import numpy as np
import topod

OPS = {
    "sum": lambda all: np.sum(all, axis=0),
    "prod": lambda all: np.prod(all, axis=0),
    "min": lambda all: np.min(all, axis=0),
    "max": lambda all: np.max(all, axis=0),
}
TYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64"]


def inputs(rank, count, dtype):
    """Small whole numbers: exact in every type and order."""
    return ((np.arange(count) + 3 * rank) % 3).astype(dtype)


def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def all_reduce(comm):
    for dtype in TYPES:
        for count in (0, 1, 5, 1000, 70_000):
            everybody = [inputs(r, count, dtype) for r in range(comm.size)]
            for op, expect in OPS.items():
                expected = expect(np.array(everybody)).astype(dtype)
                data = everybody[comm.rank].copy()
                out = np.full(count, 7, dtype)
                comm.all_reduce(data, out, op=op)
                assert np.array_equal(out, expected), (dtype, count, op)
                stats = comm.all_reduce(data, op=op)
                assert np.array_equal(data, expected), (dtype, count, op)
                assert stats.bytes == data.nbytes, stats
    bits = np.array([1 << comm.rank, 255], np.uint8)
    comm.all_reduce(bits, op="or")
    assert bits.tolist() == [(1 << comm.size) - 1, 255]
    mean = np.array([float(comm.rank)])
    comm.all_reduce(mean, op="avg")
    assert mean[0] == (comm.size - 1) / 2
    # 1.0 as bf16 is the upper half of a single.
    one = np.array([0x3F80] * 3, np.uint16)
    comm.all_reduce(one, dtype="bf16")
    expected = np.array([float(comm.size)], np.float32).view(np.uint32)[0] >> 16
    assert one.tolist() == [expected] * 3


def shards(comm):
    for count in (comm.size * 4, comm.size * 1000 + 1, 1, 0):
        whole = np.arange(count, dtype=np.int64)
        mine = comm.shard(count)
        gathered = np.zeros(count, np.int64)
        comm.all_gather(whole[mine].copy(), gathered)
        assert np.array_equal(gathered, whole)
        gathered[:] = 0
        gathered[mine] = whole[mine]
        comm.all_gather(gathered[mine], gathered)
        assert np.array_equal(gathered, whole)
        part = np.zeros(len(whole[mine]), np.int64)
        comm.reduce_scatter(whole, part)
        assert np.array_equal(part, whole[mine] * comm.size)
        for root in range(comm.size):
            out = np.zeros(count, np.int64) if comm.rank == root else None
            comm.gather(whole[mine].copy(), out, root=root, count=count)
            assert comm.rank != root or np.array_equal(out, whole)
            part[:] = -1
            comm.scatter(part, whole if comm.rank == root else None, root=root, count=count)
            assert np.array_equal(part, whole[mine])


def roots(comm):
    for root in range(comm.size):
        data = np.full((3, 4), comm.rank, np.float32)
        comm.broadcast(data, root=root)
        assert (data == root).all()
        data[:] = comm.rank
        out = np.zeros((3, 4), np.float32)
        comm.reduce(data, out, root=root)
        total = comm.size * (comm.size - 1) / 2
        assert (out == (total if comm.rank == root else 0)).all()
        comm.reduce(data, root=root)
        assert (data == (total if comm.rank == root else comm.rank)).all()


def exchanges(comm):
    data = np.array([100 * comm.rank + r for r in range(comm.size)], np.int32)
    out = np.zeros_like(data)
    comm.all_to_all(data, out)
    assert out.tolist() == [100 * r + comm.rank for r in range(comm.size)]
    sends = [comm.rank + r for r in range(comm.size)]
    data = np.concatenate([np.full(n, comm.rank, np.int32) for n in sends])
    out = np.full(sum(sends), -1, np.int32)
    comm.all_to_all(data, out, sends=sends, receives=sends)
    assert out.tolist() == [r for r in range(comm.size) for _ in range(comm.rank + r)]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.zeros(50_000)
    sent = comm.send(np.full(50_000, float(comm.rank)), right, async_op=True)
    comm.receive(out, left)
    sent.wait()
    assert (out == left).all()
    if comm.rank == 0:
        heard = set()
        for _ in range(comm.size - 1):
            sender = comm.receive_any(out[:1])
            assert out[0] == sender
            heard.add(sender)
        assert heard == set(range(1, comm.size))
    else:
        comm.send(np.array([float(comm.rank)]), 0)
    comm.barrier()


def asynchronous(comm):
    arrays = [np.full(10_000 * i + 1, float(comm.rank)) for i in range(8)]
    operations = [comm.all_reduce(a, async_op=True) for a in arrays]
    total = comm.size * (comm.size - 1) / 2
    for a, operation in reversed(list(zip(arrays, operations))):
        stats = operation.wait(timeout=60)
        assert stats.bytes == a.nbytes
        assert operation.test()
        assert (a == total).all()
    # A dropped operation keeps its array until it is done.
    comm.all_reduce(np.ones(200_000), async_op=True)
    gc.collect()
    comm.barrier()


def fused(comm):
    shapes = [(3,), (10, 20), (0,), (300, 50), (1,)]
    for most in (0, 1000, 1 << 20):
        arrays = [np.full(shape, comm.rank + i, np.float32) for i, shape in enumerate(shapes)]
        stats = comm.all_reduce_fused(arrays, bucket_bytes=most)
        assert stats.bytes == sum(a.nbytes for a in arrays)
        for i, (a, shape) in enumerate(zip(arrays, shapes)):
            assert a.shape == shape and (a == comm.size * (comm.size - 1) / 2 + i * comm.size).all()
    assert comm.all_reduce_fused([]).bytes == 0


def buffers(comm):
    for memory in (bytearray(16), array.array("q", [0, 0]), comm.allocate(16)):
        view = memoryview(memory).cast("B").cast("q") if not isinstance(memory, array.array) else memory
        view[0] = 5
        comm.all_reduce(view, op="sum")
        assert view[0] == 5 * comm.size, memory
    registered = comm.zeros((2, 3), "float64")
    assert registered.shape == (2, 3) and (registered == 0).all()
    registered += comm.rank
    comm.all_reduce(registered, op="max")
    assert (registered == comm.size - 1).all()
    big = comm.zeros(1 << 20)
    big[:] = 1
    assert comm.all_reduce(big).path == "direct"
    assert (big == comm.size).all()


def mistakes(comm):
    raises(ValueError, lambda: comm.all_reduce(np.zeros((4, 4))[:, 1]), "not contiguous")
    raises(TypeError, lambda: comm.all_reduce(np.zeros(3, complex)), "no element type")
    raises(TypeError, lambda: comm.all_reduce(np.zeros(3, ">f4")), "no element type")
    raises(TypeError, lambda: comm.all_reduce(b"read only"), "read-only")
    raises(TypeError, lambda: comm.all_reduce(np.zeros(3), np.zeros(3, "f4")), "f64", "f32")
    raises(ValueError, lambda: comm.all_reduce(np.zeros(3), np.zeros(4)), "of 4 elements, not 3")
    raises(ValueError, lambda: comm.all_reduce(np.zeros(3), op="xor"), "'xor' is none of")
    raises(ValueError, lambda: comm.all_reduce(np.zeros(3), op="and"), "and does not combine")
    raises(ValueError, lambda: comm.send(np.zeros(3), comm.rank), "not another rank")
    raises(ValueError, lambda: comm.all_gather(np.zeros(3), np.zeros(3 * comm.size + comm.size)), "shard")
    raises(ValueError, lambda: topod.Communicator(topod.Plan.even(2), rank=0, speed=11), "speed")
    raises(topod.DaemonError, lambda: topod.Plan.from_daemon(socket="/nowhere.sock"), "/nowhere.sock")
    raises(ValueError, lambda: topod.Plan.parse("{}"))


def priorities(comm):
    large, small = np.ones(1 << 20, "f4"), np.array([comm.rank])
    pending = comm.all_reduce(large, async_op=True)
    comm.set_priority(1)
    assert comm.all_reduce(small).path == "plan"
    comm.set_priority(0)
    assert small[0] == sum(range(comm.size))
    assert pending.wait().held == 0.0
    assert (large == comm.size).all()
    raises(ValueError, lambda: comm.set_priority(2), "made for 2")


def groups(comm):
    half = comm.split(comm.rank % 2, planner=lambda ranks: topod.Plan.even(len(ranks)))
    data = np.array([comm.rank])
    half.all_reduce(data)
    assert data[0] == sum(range(comm.rank % 2, comm.size, 2))
    lists = [list(range(comm.size // 2)), list(range(comm.size // 2, comm.size))]
    rows = comm.subgroups(lists)
    assert [rows.size] == [len(members) for members in lists if comm.rank in members]
    # Both groups at work at once.
    a, b = np.ones(100_000), np.ones(100_000)
    one, other = half.all_reduce(a, async_op=True), rows.all_reduce(b, async_op=True)
    other.wait()
    one.wait()
    assert (a == half.size).all() and (b == rows.size).all()
    assert comm.split(None if comm.rank == 0 else 1) is None or comm.rank != 0
    half.close()
    raises(RuntimeError, lambda: half.barrier(), "closed")


def main():
    import os

    plan = topod.Plan.parse(topod.Plan.even(int(os.environ["WORLD_SIZE"])).to_json())
    for settings in ({}, {"transport": "tcp"}, {"progress_thread": True}, {"paths": "plan"}):
        with topod.Communicator(plan, timeout_ms=120_000, **settings) as comm:
            assert comm.size == plan.ranks
            for part in (all_reduce, shards, roots, exchanges, asynchronous, fused):
                part(comm)
            comm.monitored_barrier(60.0)
            if not settings:
                for part in (buffers, mistakes, groups):
                    part(comm)
            comm.barrier()
    with topod.Communicator(plan, timeout_ms=120_000, priorities=2) as comm:
        priorities(comm)
    print(f"rank {comm.rank}: done")


main()
