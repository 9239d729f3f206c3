"""Writes down one eager step: all that reaches the dispatcher, inside the roots and outside of them.

Takes one step of the user's program under a TorchDispatchMode; gives the operators inside roots in order (the eager
plan is held against them) and those outside with their user's line, bytes, seconds and calls. Changes no result and
draws no random number. Bytes are each distinct byte read plus each byte written, None where that cannot be told.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.base.records import Outside
from ridgeline.capture.root import Root, current_root, user_line

_BACKWARD = "backward"
# What these read is as large as what they write, whatever the table they read from.
_GATHERS = {"aten::embedding", "aten::index", "aten::gather", "aten::index_select", "aten::take"}
# In place, and what was there before is not read.
_OVERWRITES = {"copy_", "zero_", "fill_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "set_"}
_WRITES_NOTHING = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::empty_permuted",
    "aten::resize_",
    "aten::set_",
}


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator as eager mode ran it inside a root."""

    root: str
    phase: str  # "forward" | "backward" | "optimizer"
    name: str  # "aten.addmm.default"
    bytes: int | None
    seconds: float


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    bytes: int | None = 0
    seconds: float = 0.0

    def add(self, count: int | None, seconds: float) -> None:
        self.calls += 1
        self.bytes = None if self.bytes is None or count is None else self.bytes + count
        self.seconds += seconds


@dataclass(slots=True)
class _Made:
    """Which root made which autograd nodes: each root call owns a range of their sequence numbers."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)

    def add(self, root: Root, begin: int, end: int) -> None:
        self.begins.append(begin)
        self.ends.append(end)
        self.roots.append(root)

    def root(self, number: int) -> Root | None:
        place = bisect_right(self.begins, number) - 1
        return self.roots[place] if place >= 0 and number < self.ends[place] else None


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode of the recorded step. `synchronize` waits for the device, so that seconds mean something."""

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.active = True
        self._synchronize = synchronize
        self._made = _Made()
        self._operators: list[Operator] = []
        self._outside: dict[tuple[str, str | None], _Sum] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        self._synchronize()
        begin = perf_counter()
        result = func(*args, **kwargs)
        self._synchronize()
        self._write(func, args, kwargs, result, perf_counter() - begin)
        return result

    def _write(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any, seconds: float) -> None:
        if func.namespace in ("prim", "profiler"):
            return
        count = moved_bytes(func, args, kwargs, result)
        root, phase = self._owner()
        if root is not None:
            self._operators.append(Operator(root.name, phase, str(func), count, seconds))
            return
        self._outside.setdefault((str(func), user_line()), _Sum()).add(count, seconds)

    def _owner(self) -> tuple[Root | None, str]:
        root = current_root()
        if root is not None:
            return root, "optimizer" if root.kind in ("optimizer", "clip") else "forward"
        if torch._C._current_graph_task_id() == -1:
            return None, ""
        node = torch._C._current_autograd_node()
        return (None if node is None else self._made.root(node._sequence_nr())), _BACKWARD

    def called(self, root: Root, begin: int, end: int) -> None:
        """A root call made the autograd nodes from `begin` up to `end`."""
        self._made.add(root, begin, end)

    @property
    def operators(self) -> tuple[Operator, ...]:
        return tuple(self._operators)

    @property
    def outside(self) -> tuple[Outside, ...]:
        """What no root covers, the longest first."""
        rows = [
            Outside(operator, line, total.calls, total.bytes, total.seconds)
            for (operator, line), total in self._outside.items()
        ]
        return tuple(sorted(rows, key=lambda row: -(row.seconds or 0.0)))


def moved_bytes(func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> int | None:
    """Distinct bytes one operator reads plus those it writes; 0 for a view, None for a layout we cannot count.

    A broadcast (stride 0) size is counted once, a tensor given twice is read once.
    """
    name = func._schema.name
    if name == "aten::_local_scalar_dense":
        return int(args[0].element_size())
    given = list(_tensors((args, kwargs)))
    results = list(_tensors(result))
    if any(tensor.layout is not torch.strided for tensor in (*given, *results)):
        return None
    mutated = list(_tensors(_mutated(func, args, kwargs)))
    known = {_storage(tensor) for tensor in given}
    written = [tensor for tensor in results if _storage(tensor) not in known] + mutated
    if name in _WRITES_NOTHING or (not written and results):
        return 0
    write_bytes = _distinct_bytes(written)
    if name in _GATHERS:
        return 2 * write_bytes + _distinct_bytes(given[1:])
    if name.split("::")[1] in _OVERWRITES or name.endswith("_out"):
        given = [tensor for tensor in given if not any(tensor is other for other in mutated)]
    return write_bytes + _distinct_bytes(given)


def _mutated(func: Any, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    marked = [
        (place, argument)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [args[place] if place < len(args) else kwargs.get(argument.name) for place, argument in marked]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _distinct_bytes(tensors: list[torch.Tensor]) -> int:
    parts = {
        (_storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()): _own_bytes(tensor)
        for tensor in tensors
    }
    return sum(parts.values())


def _own_bytes(tensor: torch.Tensor) -> int:
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride != 0 or size == 0 else 1
    return elements * tensor.element_size()
