"""Random kernels: nested folds, transposed and broadcast loads, guards, divisions in indices, several stores.

`random_kernel(seed)` is the same kernel every time. Sizes are small, so that ragged ends, short rows and coinciding
sizes (which folds may align with by mistake) all occur.
"""

import random

from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.kernel import Buffer, Kernel, Mode, Store
from ridgeline.ir.types import F32
from ridgeline.ir.value import Value, const, iota, load, word
from tests import kernels as k

SIZES = (1, 2, 3, 5, 16, 17, 33, 40)
UNARY = ("neg", "abs", "exp", "tanh", "sigmoid", "floor")
BINARY = ("add", "sub", "mul", "max", "min")
COMBINERS = ("sum", "sum", "max", "min", "welford", "maxsumexp")


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.buffers: dict[str, Buffer] = {}
        self.loaded: list[tuple[str, tuple[Index, ...]]] = []

    def size(self) -> int:
        return self.rng.choice(SIZES)

    def buffer(self, shape: list[int]) -> str:
        name = f"b{len(self.buffers)}"
        order = list(range(len(shape)))
        if self.rng.random() < 0.4:
            self.rng.shuffle(order)
        self.buffers[name] = k.buffer(name, shape, F32, order, self.rng.choice((0, 0, 0, 3)))
        return name

    def load(self, scope: list[Axis]) -> Value:
        """A load along some of the axes in scope, of a new buffer or one met before."""
        axes = [a for a in scope if self.rng.random() < 0.75]
        index: list[Index] = []
        sizes: list[int] = []
        guard = None
        for axis in axes:
            n, at = axis.size.const or 1, as_index(axis)
            kind = self.rng.random()
            if kind < 0.06 and n > 2:
                index.append(at // 2)
                sizes.append((n + 1) // 2)
            elif kind < 0.12 and n > 2:
                index += [at // 3, at % 3]
                sizes += [(n + 2) // 3, 3]
            elif kind < 0.2 and guard is None and n > 1:
                guard = word("ge", iota(at), 1)
                index.append(at - 1)
                sizes.append(n - 1)
            elif kind < 0.26:
                index.append(n - 1 - at)
                sizes.append(n)
            else:
                index.append(at)
                sizes.append(n)
        place = tuple(index)
        if self.loaded and self.rng.random() < 0.4 and guard is None:
            again = [b for b, _ in self.loaded if [s.const for s in self.buffers[b].shape] == sizes]
            if again:
                return load(self.rng.choice(again), place, F32)
        name = self.buffer(sizes)
        self.loaded.append((name, place))
        value = load(name, place, F32, guard)
        return value if guard is None else word("select", guard, value, const(0.5))

    def value(self, scope: list[Axis], depth: int, folds: int) -> Value:
        kind = self.rng.random()
        if depth == 0 or kind < 0.15:
            return self.load(scope)
        if kind < 0.4 and folds:
            return self.fold(scope, depth, folds)
        if kind < 0.6:
            return word(self.rng.choice(UNARY), self.value(scope, depth - 1, folds))
        left = self.value(scope, depth - 1, folds)
        return word(self.rng.choice(BINARY), left, self.value(scope, depth - 1, folds))

    def fold(self, scope: list[Axis], depth: int, folds: int) -> Value:
        """Over one or two axes: some of the sizes in scope, so that they may align."""
        kept = [a for a in scope if self.rng.random() < 0.6]
        free = [a.size.const or 1 for a in scope if a not in kept]
        bound = []
        for place in range(self.rng.choice((1, 1, 2))):
            n = free.pop() if free and self.rng.random() < 0.8 else self.size()
            bound.append(k.axis(f"t{depth}{folds}{place}", n))
        combiner = self.rng.choice(COMBINERS)
        part = self.rng.choice((0, 1)) if combiner in ("welford", "maxsumexp") else 0
        inner = self.value([*kept, *bound], depth - 1, folds - 1)
        return k.fold(combiner, bound, inner, part=part)

    def kernel(self, name: str) -> Kernel:
        space = [k.axis(f"a{n}", self.size()) for n in range(self.rng.choice((1, 2, 2, 3)))]
        stores: list[Store] = []
        shared = self.value(space, 2, 1)
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            value = self.value(space, 3, 2)
            if self.rng.random() < 0.5:
                value = value + shared
            domain = [a for a in space if a in value.axes]
            if self.rng.random() < 0.3:
                self.rng.shuffle(domain)
            out = f"y{len(stores)}"
            self.buffers[out] = k.buffer(out, [a.size.const or 1 for a in domain], F32)
            stores.append(Store(out, tuple(map(as_index, domain)), value, Mode.PLAIN))
        axes = tuple(a for a in space if any(a in s.domain for s in stores))
        used = {v.attr.buffer for s in stores for v in Kernel("", axes, (s,), ()).values if v.op == "load"}
        names = used | {s.buffer for s in stores}
        return Kernel(name, axes, tuple(stores), tuple(b for b in self.buffers.values() if b.name in names))


def random_kernel(seed: int) -> Kernel:
    """The kernel of a seed."""
    return _Maker(seed).kernel(f"random{seed}")
