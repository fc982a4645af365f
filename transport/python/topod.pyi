"""Collectives between processes, along the plan of a topod.

Arrays come by the buffer protocol: NumPy arrays, array.array, bytearray, memoryviews of any of them; contiguous, of
float16, float32, float64, int8, uint8, int32 or int64, or bf16 by dtype="bf16" on an array of uint16. They are used where
they lie, and kept as long as an operation uses them.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, overload

__version__: str

Array = Any
"""Anything with a buffer."""
Op = Literal["sum", "prod", "min", "max", "avg", "and", "or"]
DType = Literal["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8"]

class Error(Exception):
    """Anything that goes wrong between ranks."""

class ConnectError(Error):
    """The ranks did not come together."""

class FailedError(Error):
    """A rank died, fell silent or did something else: the group is broken."""

class MissingError(Error):
    """Ranks did not come to a monitored barrier; the group is as usable as before."""

class DaemonError(Error):
    """No daemon answers, or it has no such plan."""

class Plan:
    """Which rank sends to which, along which channels. Every rank of a group must hold the same."""

    @staticmethod
    def parse(json: str) -> Plan: ...
    @staticmethod
    def load(path: str | PathLike[str]) -> Plan: ...
    @staticmethod
    def from_daemon(gpus: Sequence[int] | None = None, socket: str | PathLike[str] | None = None) -> Plan: ...
    @staticmethod
    def even(ranks: int) -> Plan: ...
    @property
    def ranks(self) -> int: ...
    @property
    def digest(self) -> str: ...
    def to_json(self) -> str: ...

class Stats:
    """What an operation took."""

    @property
    def bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def path(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def held(self) -> float: ...

class Operation:
    """An operation that was started. It keeps its arrays, and waits for its end when it is dropped."""

    def wait(self, timeout: float | None = None) -> Stats: ...
    def test(self) -> bool: ...

class Buffer:
    """Zeroed memory that operations use where it lies, where all ranks share a host."""

    @property
    def shared(self) -> bool: ...
    def __len__(self) -> int: ...

class Communicator:
    """One rank's part of a group.

    Operations are collective: every rank calls the same ones in the same order. When one fails, it fails on every rank, and
    the communicator is of no further use. With async_op, an operation is started and returned.
    """

    rank: int
    size: int
    def __init__(
        self,
        plan: Plan,
        rank: int | None = None,
        rendezvous: str = "env://",
        progress_thread: bool = False,
        **settings: object,
    ) -> None: ...
    @overload
    def all_reduce(self, array: Array, out: Array | None = None, op: Op = "sum", async_op: Literal[False] = False, dtype: DType | None = None) -> Stats: ...
    @overload
    def all_reduce(self, array: Array, out: Array | None = None, op: Op = "sum", *, async_op: Literal[True], dtype: DType | None = None) -> Operation: ...
    def all_reduce_fused(self, arrays: Sequence[Array], op: Op = "sum", bucket_bytes: int = 26_214_400, dtype: DType | None = None) -> Stats: ...
    def all_gather(self, shard: Array, out: Array, async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def reduce_scatter(self, array: Array, out: Array, op: Op = "sum", async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def broadcast(self, array: Array, root: int = 0, async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def reduce(self, array: Array, out: Array | None = None, op: Op = "sum", root: int = 0, async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def gather(self, shard: Array, out: Array | None = None, root: int = 0, count: int | None = None, async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def scatter(self, out: Array, array: Array | None = None, root: int = 0, count: int | None = None, async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def all_to_all(
        self,
        array: Array,
        out: Array,
        sends: Sequence[int] | None = None,
        receives: Sequence[int] | None = None,
        async_op: bool = False,
        dtype: DType | None = None,
    ) -> Stats | Operation: ...
    def send(self, array: Array, to: int, async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def receive(self, array: Array, source: int, async_op: bool = False, dtype: DType | None = None) -> Stats | Operation: ...
    def receive_any(self, array: Array, dtype: DType | None = None) -> int: ...
    def set_priority(self, priority: int) -> None: ...
    def barrier(self) -> None: ...
    def monitored_barrier(self, timeout: float) -> None: ...
    def split(
        self,
        colour: int | None,
        key: int = 0,
        planner: Callable[[list[int]], Plan] | None = None,
        progress_thread: bool = False,
        **settings: object,
    ) -> Communicator | None: ...
    def shrink(
        self,
        planner: Callable[[list[int]], Plan] | None = None,
        progress_thread: bool = False,
        **settings: object,
    ) -> Communicator: ...
    def subgroups(
        self,
        lists: Sequence[Sequence[int]],
        planner: Callable[[list[int]], Plan] | None = None,
        progress_thread: bool = False,
        **settings: object,
    ) -> Communicator | None: ...
    def allocate(self, bytes: int) -> Buffer: ...
    def zeros(self, shape: int | Sequence[int], dtype: str = "float32") -> Array: ...
    def shard(self, count: int, rank: int | None = None) -> slice: ...
    def close(self) -> None: ...
    def __enter__(self) -> Communicator: ...
    def __exit__(self, kind: object, value: object, trace: object) -> None: ...
