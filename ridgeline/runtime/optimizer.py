"""One elementwise update applied to many tensors by one call a kernel.

`kernels_of` takes the steps of a compiled update and says how each kernel is launched, or why the update cannot be
applied in pieces. A `Batch` lays out the pointers of all tensors once; a step then writes only what moved. On a target
whose entries can `sweep` (C), large tensors are cut into pieces and all pieces are spread over the threads by one call;
elsewhere it is one launch a tensor.
"""

import ctypes
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.base.errors import LeftToTorch
from ridgeline.ir.index import as_index
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.steps import KernelStep, Steps
from ridgeline.runtime.execute import Launch

PIECE_BYTES = 1 << 20  # moved by one piece: long against a call, short against a thread's share
FOLD_ELEMENTS = 1 << 15  # folded into one result: few enough to stay exact in fp32
PARALLEL_BYTES = 1 << 20  # below this a second thread costs more than it saves


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
        return max(sum(s for s in self.strides if s > 0), 1)

    @property
    def piece_elements(self) -> int:
        """The most elements of one piece: a whole number of cache lines of any type."""
        if self.whole:
            return 1 << 62
        folds = min(self.strides) < 0
        return FOLD_ELEMENTS if folds else max(PIECE_BYTES // self.element_bytes // 1024, 1) * 1024

    def pieces(self, counts: Sequence[int]) -> int:
        """How many pieces tensors of so many elements make."""
        return sum(-(-count // self.piece_elements) for count in counts)


def kernels_of(
    steps: Steps, launches: Mapping[str, tuple[Launch, tuple[str, ...]]], partial: str | None = None
) -> tuple[tuple[UpdateKernel, ...], frozenset[int]]:
    """The kernels of an update, and which inputs they write.

    `partial` names an input that takes a fold over all elements; there is then one result for each piece of a tensor.
    Raises LeftToTorch when the update is not elementwise otherwise.
    """
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
        folds = partial is not None and any(k == place[partial] for k in inputs)
        check_elementwise(step.kernel, folds)
        strides = [b.dtype.bytes if b.shape else 0 for b in step.kernel.buffers]
        if folds:
            strides = [s or -b.dtype.bytes for s, b in zip(strides, step.kernel.buffers, strict=True)]
        whole = not folds and any(not s.domain for s in step.kernel.stores)
        launch, symbols = launches[step.kernel.name]
        out.append(UpdateKernel(launch, inputs, tuple(strides), len(symbols), whole))
        written |= {k for k, b in zip(inputs, step.kernel.buffers, strict=True) if b.name in step.kernel.written}
    return tuple(out), frozenset(written)


def check_elementwise(kernel: Kernel, folds: bool) -> None:
    """Raises LeftToTorch if elements depend on each other; `folds`: if they do otherwise than by a fold over all."""
    values = kernel.values
    bound = {a for v in values if v.op == "fold" for a in v.attr.axes}
    here = {(), *((as_index(a),) for a in (*kernel.axes, *bound))}
    indices = [*(v.attr.index for v in values if v.op == "load"), *(s.index for s in kernel.stores)]
    alone = not any(v.op in ("iota", "philox") for v in values) and len(kernel.axes) <= 1 and here >= {*indices}
    kept = not any(s.domain for s in kernel.stores) if folds else not bound
    if not (alone and kept):
        raise LeftToTorch("its step is not elementwise")


class Each:
    """One launch a tensor, for targets that cannot sweep."""

    def __init__(self, kernel: UpdateKernel, counts: Sequence[int]) -> None:
        self.kernel, self.counts, self.width = kernel, counts, len(kernel.inputs)
        self.pointers = [0] * (len(counts) * self.width)

    def __call__(self) -> None:
        for row, count in enumerate(self.counts):
            if count or self.kernel.whole:
                start = row * self.width
                pointers = self.pointers[start : start + self.width]
                self.kernel.launch(pointers, (count,) * self.kernel.symbols)


def lay_out(kernel: UpdateKernel, counts: Sequence[int]) -> Any:
    """A callable over all tensors with `pointers` to fill, row by row."""
    sweep = getattr(kernel.launch, "sweep", None)
    if sweep is None:
        return Each(kernel, counts)
    parallel = sum(counts) * kernel.element_bytes > PARALLEL_BYTES and torch.get_num_threads() > 1
    return sweep(kernel.strides, counts, kernel.piece_elements, parallel) or Each(kernel, counts)


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
