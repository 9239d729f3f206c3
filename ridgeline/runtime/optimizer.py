"""One elementwise update applied to many tensors by one call a kernel.

`kernels_of` takes the steps of a compiled update and says how each kernel is launched, or why the update cannot be
applied in pieces. A `Batch` lays out the pointers of all tensors once; a step then writes only what moved. On a target
whose entries can `sweep` (C), large tensors are cut into pieces and all pieces are spread over the threads by one call;
elsewhere it is one launch a tensor. A `Row` is one parameter with its state as it stands in memory.
"""

import ctypes
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch

from ridgeline.base.errors import LeftToTorch
from ridgeline.ir.index import Axis, as_index
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.steps import KernelStep, Steps
from ridgeline.runtime.execute import Launch

Number = float | int
PIECE_BYTES = 1 << 20  # moved by one piece: long against a call, short against a thread's share
PARALLEL_BYTES = 1 << 18  # below this a second thread costs more than it saves
C_TYPES: Mapping[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.int64: ctypes.c_int64,
    torch.int32: ctypes.c_int32,
}


@dataclass(frozen=True, slots=True)
class UpdateKernel:
    """How one kernel is launched: for each pointer the input it is, and its bytes an element (0: one for the tensor).

    `whole`: it stores single elements, so it runs once for each tensor and not once for each piece.
    """

    launch: Launch
    inputs: tuple[int, ...]
    strides: tuple[int, ...]
    symbols: int
    whole: bool

    @property
    def element_bytes(self) -> int:
        """Bytes moved for each element; a pointer that is read and written counts twice, as it is listed twice."""
        return max(sum(self.strides), 1)


def kernels_of(
    steps: Steps, launches: Mapping[str, tuple[Launch, tuple[str, ...]]]
) -> tuple[tuple[UpdateKernel, ...], frozenset[int]]:
    """The kernels of an update, and which inputs they write. Raises LeftToTorch when it is not elementwise."""
    place = {name: k for k, name in enumerate(steps.graph.inputs)}
    out: list[UpdateKernel] = []
    written: set[int] = set()
    for step in steps.steps:
        if not isinstance(step, KernelStep):
            raise LeftToTorch(f"{step.node.operator} in its step has no kernel: {step.node.reason}")
        own = dict(zip((b.name for b in step.kernel.buffers), step.arguments, strict=True))
        inputs = tuple(place.get(step.storage.get(own[b.name], own[b.name]), -1) for b in step.kernel.buffers)
        if -1 in inputs:
            raise LeftToTorch("its step stores a tensor between two kernels")
        whole = check_elementwise(step.kernel)
        strides = tuple(b.dtype.bytes if b.shape else 0 for b in step.kernel.buffers)
        launch, symbols = launches[step.kernel.name]
        out.append(UpdateKernel(launch, inputs, strides, len(symbols), whole))
        written |= {k for k, b in zip(inputs, step.kernel.buffers, strict=True) if b.name in step.kernel.written}
    return tuple(out), frozenset(written)


def check_elementwise(kernel: Kernel) -> bool:
    """Whether a kernel must see whole tensors. Raises LeftToTorch if elements depend on each other."""
    here = {(), *((as_index(a),) for a in kernel.axes)}
    loads = [v for v in kernel.values if v.op == "load"]
    indices = [*(v.attr.index for v in loads), *(s.index for s in kernel.stores)]
    if len(kernel.axes) > 1 or any(v.op in ("fold", "iota", "philox") for v in kernel.values) or not here >= {*indices}:
        raise LeftToTorch("its step is not elementwise")
    domains: set[frozenset[Axis]] = {s.domain for s in kernel.stores}
    return any(not d for d in domains)


class Each:
    """One launch a tensor, for targets that cannot sweep."""

    def __init__(self, kernel: UpdateKernel, counts: Sequence[int]) -> None:
        self.kernel, self.counts, self.width = kernel, counts, len(kernel.inputs)
        self.pointers = [0] * (len(counts) * self.width)

    def __call__(self) -> None:
        for row, count in enumerate(self.counts):
            if count:
                start = row * self.width
                pointers = self.pointers[start : start + self.width]
                self.kernel.launch(pointers, (count,) * self.kernel.symbols)


def pieces_of(counts: Sequence[int], most: int | None) -> list[tuple[int, int, int]]:
    """(tensor, first element, how many) for all tensors, in pieces of at most so many elements."""
    out: list[tuple[int, int, int]] = []
    for row, count in enumerate(counts):
        step = count if most is None else most
        out += [(row, first, min(step, count - first)) for first in range(0, count, max(step, 1))]
    return out


def piece_elements(element_bytes: int) -> int:
    """Elements of one piece, a whole number of cache lines of any type."""
    return max(PIECE_BYTES // element_bytes // 1024, 1) * 1024


def lay_out(kernel: UpdateKernel, counts: Sequence[int]) -> Any:
    """A callable over all tensors with `pointers` to fill, row by row."""
    sweep = getattr(kernel.launch, "sweep", None)
    if sweep is None:
        return Each(kernel, counts)
    pieces = pieces_of(counts, None if kernel.whole else piece_elements(kernel.element_bytes))
    parallel = sum(counts) * kernel.element_bytes > PARALLEL_BYTES and torch.get_num_threads() > 1
    return sweep(kernel.strides, len(counts), pieces, parallel)


class Batch:
    """The kernels of an update over a fixed list of tensors, given by their numbers of elements."""

    def __init__(self, kernels: Sequence[UpdateKernel], counts: Sequence[int]) -> None:
        self.calls = [lay_out(kernel, counts) for kernel in kernels]
        self.targets: dict[int, list[tuple[Any, int, int]]] = {}
        for call, kernel in zip(self.calls, kernels, strict=True):
            for k, place in enumerate(kernel.inputs):
                self.targets.setdefault(place, []).append((call.pointers, len(kernel.inputs), k))

    def point(self, place: int, addresses: Sequence[int]) -> None:
        """Where input `place` of each tensor begins."""
        for pointers, width, k in self.targets.get(place, ()):
            pointers[k::width] = addresses

    def run(self, times: list[float] | None = None, device: torch.device | None = None) -> None:
        """All kernels in order; adds the seconds of each to `times`."""
        if times is None:
            for call in self.calls:
                call()
            return
        for k, call in enumerate(self.calls):
            start = time.perf_counter()
            call()
            if device is not None and device.type == "cuda":
                torch.cuda.synchronize(device)
            times[k] += time.perf_counter() - start


class NumberTable:
    """The numbers of several answers, as kernels read them: fp64, one after the other."""

    def __init__(self, answers: int, width: int, device: torch.device) -> None:
        self.width, self.device = width, device
        self.host = torch.empty(max(answers * width, 1), dtype=torch.float64)
        self.memory = self.host if device.type == "cpu" else self.host.to(device)
        self.cells = (ctypes.c_double * self.host.numel()).from_address(self.host.data_ptr())
        self.address = self.memory.data_ptr()

    def write(self, numbers: Iterable[Sequence[float]]) -> None:
        for k, row in enumerate(numbers):
            self.cells[k * self.width : (k + 1) * self.width] = list(row)
        if self.device.type != "cpu":
            self.memory.copy_(self.host.clone().pin_memory(), non_blocking=True)

    def at(self, answer: int, place: int) -> int:
        return self.address + 8 * (answer * self.width + place)


class Row:
    """One parameter and its state in memory. `roles` are the tensors a kernel is given; `hosts` keys of host state."""

    __slots__ = (
        *("addresses", "cells", "count", "held", "hosts_keys", "keys", "parameter"),
        *("roles", "size", "state", "tensors"),
    )

    def __init__(
        self,
        parameter: torch.Tensor,
        state: dict[str, Any] | None,
        roles: Mapping[str, torch.Tensor],
        hosts: Sequence[str],
    ) -> None:
        own: dict[str, Any] = state if state is not None else {}
        self.parameter, self.state, self.roles, self.count = parameter, state, dict(roles), parameter.numel()
        self.keys = tuple(k for k, v in own.items() if isinstance(v, torch.Tensor))
        self.held = tuple(own[k] for k in self.keys)
        self.hosts_keys = tuple(hosts)
        self.size = len(own)
        self.tensors = (parameter, *self.held)
        self.addresses = [t.data_ptr() for t in self.tensors]
        self.cells = [
            C_TYPES[own[k].dtype].from_address(own[k].data_ptr()) if k in self.keys else None for k in self.hosts_keys
        ]

    def stands(self, state: dict[str, Any] | None) -> bool:
        """Whether the parameter and its state are still the same tensors in the same places."""
        return (
            state is self.state
            and (state is None or (len(state) == self.size and all(map(is_, map(state.get, self.keys), self.held))))
            and [t.data_ptr() for t in self.tensors] == self.addresses
        )

    def hosts(self) -> tuple[Number, ...]:
        """The host state: step counts and the like."""
        if self.state is None:
            return ()
        pairs = zip(self.cells, self.hosts_keys, strict=True)
        return tuple([self.state[k] if cell is None else cell.value for cell, k in pairs])

    def put_hosts(self, values: Sequence[Number]) -> None:
        for cell, key, value in zip(self.cells, self.hosts_keys, values, strict=True):
            if cell is not None:
                cell.value = value
            elif self.state is not None:
                self.state[key] = value
