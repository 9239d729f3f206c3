"""A kernel as loops see it: flat offsets, one set of axes, folds as named tasks.

`space(kernel)` takes a kernel and gives its Space: every load and store by flat offset; every fold aligned, that is,
its bound axes run along axes of the space where the size allows, so that what two passes load is one value; short
folds along no axis of the space spelled out; and every use of a fold replaced by its result. Decides no loops.
"""

from collections.abc import Iterable, Iterator
from itertools import product

from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.kernel import Kernel
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

    def _alignments(self, v: Value) -> Iterator[tuple[Axis, ...]]:
        choices = []
        for bound in v.attr.axes:
            same = [a for a in self.axes if a.size is bound.size and a not in v.axes]
            choices.append([*same, None])
        for chosen in product(*choices):
            used = [a for a in chosen if a is not None]
            if len(set(used)) < len(used):
                continue
            fresh = iter(range(len(self.axes), len(self.axes) + len(chosen)))
            yield tuple(
                Axis(f"k{next(fresh)}", b.size) if a is None else a for a, b in zip(chosen, v.attr.axes, strict=True)
            )

    def _align(self, v: Value) -> tuple[tuple[Axis, ...], tuple[Value, ...]]:
        best: tuple[int, tuple[Axis, ...], tuple[Value, ...]] | None = None
        most = 2 * len(loads(v.args)) + len(v.attr.axes)
        for count, axes in enumerate(self._alignments(v)):
            images = {b: as_index(a) for b, a in zip(v.attr.axes, axes, strict=True)}
            elements = tuple(substitute(a, images) for a in v.args)
            score = 2 * self._coincide(elements) + sum(a in self.axes for a in axes)
            if best is None or score > best[0]:
                best = (score, axes, elements)
            if count >= MAX_ALIGNMENTS or score == most:
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
        writes.append(Write(store.buffer, offset, aligner.see(store.value), store.mode, over=over))
    folds: list[Task] = list(_inner_first(aligner.folds()))
    tasks = [t for t in (*folds, *writes) if all(a.size.const != 0 for a in t.domain)]
    used = frozenset().union(*(t.domain for t in tasks)) if tasks else frozenset()
    return Space(tuple(a for a in aligner.axes if a in used), tuple(tasks), aligner.buffers)
