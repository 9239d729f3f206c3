"""A kernel as loops see it: flat offsets, one set of axes, folds as named tasks.

`space(kernel)` takes a kernel and gives its Space: every load and store by flat offset; every fold aligned, that is,
its bound axes run along axes of the space where the size allows, so that what two passes load is one value; short
folds along no axis of the space spelled out; and every use of a fold replaced by its result. Decides no loops.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice

from ridgeline.ir.index import Axis, Index, as_index, flatten, unflatten
from ridgeline.ir.kernel import Kernel, Store
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, load, substitute
from ridgeline.schedule.rewrite import EXPAND, elements_count, expanded
from ridgeline.schedule.tasks import (
    Fold,
    Rewriter,
    Space,
    Task,
    Write,
    fold_name,
    fold_results,
    loads,
    result,
    state_types,
)

MAX_ALIGNMENTS = 64  # ways to lay the axes of one fold that are tried


# The loop axes of a fold, the index that each bound axis becomes, and how many of those run along given axes.
Alignment = tuple[tuple[Axis, ...], tuple[Index, ...], int]


def numel(axes: Iterable[Axis]) -> Index:
    """How many points axes have together."""
    out = as_index(1)
    for axis in axes:
        out = out * axis.size
    return out


class _Aligner:
    """Collects folds from the stores inwards, giving each its loop axes."""

    def __init__(self, kernel: Kernel) -> None:
        self.buffers = {b.name: b for b in kernel.buffers}
        self.axes = list(kernel.axes)
        self.rewriter = Rewriter(self._before, self._flat)
        self.names: dict[tuple[object, ...], str] = {}
        self.waiting: list[tuple[str, Value]] = []
        self.parts: dict[str, dict[int, DType]] = {}
        self.seen: set[tuple[str, Index]] = set()

    def _flat(self, v: Value) -> Value:
        offset = self.buffers[v.attr.buffer].offset(v.attr.index)
        return load(v.attr.buffer, (offset,), v.attr.stored, *v.args)

    def _before(self, v: Value) -> Value | None:
        if v.op != "fold":
            return v if v.op == "const" else None
        if self._short(v):
            return self.rewriter.value(expanded(v, state_types(v)))
        key = (v.attr.combiner, v.attr.axes, v.args)
        if key not in self.names:
            self.names[key] = f"f{len(self.names)}"
            self.waiting.append((self.names[key], v))
        name = self.names[key]
        self.parts.setdefault(name, {})[v.attr.part] = v.dtype
        return result(name, v.attr.part, self._kept(v), v.dtype)

    def _short(self, v: Value) -> bool:
        """Whether a fold is over few elements, and along no axis of the space: a window."""
        total = elements_count(v)
        sizes = {a.size for a in self.axes if a not in v.axes}
        return total is not None and 0 < total <= EXPAND and not any(a.size in sizes for a in v.attr.axes)

    def _kept(self, v: Value) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a in v.axes)

    def see(self, value: Value) -> Value:
        """Rewrites a value and notes what it loads."""
        out = self.rewriter.value(value)
        self.seen |= {(v.attr.buffer, v.attr.index[0]) for v in loads([out]) if v.attr.index}
        return out

    def _coincide(self, elements: Iterable[Value]) -> int:
        """How many loads of the elements are loaded elsewhere, at the same place."""
        found = {(v.attr.buffer, self.buffers[v.attr.buffer].offset(v.attr.index)) for v in loads(elements)}
        return len(found & self.seen)

    def _alignments(self, bound: Sequence[Axis], free: Sequence[Axis]) -> Iterator[Alignment]:
        """Ways to lay bound axes along free ones: one along one, one along several, several along one, or alone."""
        if not bound:
            yield (), (), 0
            return
        first = bound[0]
        choices: list[tuple[int, tuple[Axis, ...]]] = [(1, (a,)) for a in free if a.size is first.size]
        for count in range(2, len(bound) + 1):
            size = numel(bound[:count])
            choices += [(count, (a,)) for a in free if a.size is size]
        for count in (2, 3):
            choices += [(1, group) for group in combinations(free, count) if numel(group) is first.size]
        for count, axes in choices:
            flat = flatten(axes, [a.size for a in axes])
            images = unflatten(flat, [b.size for b in bound[:count]])
            rest = [a for a in free if a not in axes]
            for other, other_images, aligned in self._alignments(bound[count:], rest):
                yield (*axes, *other), (*images, *other_images), aligned + count
        alone = Axis(f"k{len(self.axes) + len(bound)}", first.size)
        for other, other_images, aligned in self._alignments(bound[1:], free):
            yield (alone, *other), (as_index(alone), *other_images), aligned

    def _align(self, v: Value) -> tuple[tuple[Axis, ...], tuple[Value, ...]]:
        best: tuple[int, tuple[Axis, ...], tuple[Value, ...]] | None = None
        most = 2 * len(loads(v.args)) + len(v.attr.axes)
        free = [a for a in self.axes if a not in v.axes]
        for axes, images, aligned in islice(self._alignments(v.attr.axes, free), MAX_ALIGNMENTS):
            along = dict(zip(v.attr.axes, images, strict=True))
            elements = tuple(substitute(a, along) for a in v.args)
            score = 2 * self._coincide(elements) + aligned
            if best is None or score > best[0]:
                best = (score, axes, elements)
            if score == most:
                break
        assert best is not None
        return best[1:]

    def _parts(self, name: str) -> tuple[tuple[int, DType], ...]:
        return tuple(sorted(self.parts[name].items(), key=lambda p: p[0]))

    def folds(self) -> list[Fold]:
        """All folds that the values seen so far use, inner ones first."""
        out: list[tuple[str, Value, tuple[Axis, ...], tuple[Axis, ...], tuple[Value, ...]]] = []
        while self.waiting:
            name, v = self.waiting.pop(0)
            kept = self._kept(v)
            axes, elements = self._align(v)
            self.axes += [a for a in axes if a not in self.axes]
            out.append((name, v, axes, kept, tuple(self.see(e) for e in elements)))
        return [
            Fold(name, v.attr.combiner, axes, kept, elements, self._parts(name), state_types(v))
            for name, v, axes, kept, elements in out
        ]


def _inner_first(folds: list[Fold]) -> list[Fold]:
    """Folds in an order where each stands after those it uses."""
    by_name = {f.name: f for f in folds}
    out: dict[str, Fold] = {}

    def visit(f: Fold) -> None:
        for v in fold_results(f.elements):
            name = fold_name(v)
            if name is not None and name not in out:
                visit(by_name[name])
        out.setdefault(f.name, f)

    for f in folds:
        visit(f)
    return list(out.values())


def _alike(stored: str, kernel: Kernel) -> frozenset[str]:
    """Loaded buffers that the stored one may be written over: those laid out like it."""
    this = kernel.buffer(stored)
    form = (this.dtype, this.shape, this.strides)
    read = set(kernel.read)
    alike = [b.name for b in kernel.buffers if b.name in read and (b.dtype, b.shape, b.strides) == form]
    return frozenset(alike) - {stored}


def space(kernel: Kernel) -> Space:
    """The kernel's stores and folds over one set of axes, by flat offset."""
    aligner = _Aligner(kernel)
    writes: list[Task] = []
    for store in kernel.stores:
        index = [aligner.rewriter.index(i) for i in store.index]
        for i in store.index:
            for read in i.reads:
                aligner.see(read)
        offset = aligner.buffers[store.buffer].offset(index)
        over = _alike(store.buffer, kernel)
        flat = Store(store.buffer, (offset,), aligner.see(store.value), store.mode).over(store.domain)
        writes.append(Write(flat.buffer, offset, flat.value, flat.mode, over=over))
    folds: list[Task] = list(_inner_first(aligner.folds()))
    tasks = [t for t in (*folds, *writes) if all(a.size.const != 0 for a in t.domain)]
    used = frozenset().union(*(t.domain for t in tasks)) if tasks else frozenset()
    return Space(tuple(a for a in aligner.axes if a in used), tuple(tasks), aligner.buffers)
