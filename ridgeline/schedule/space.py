"""A kernel as loops see it: flat offsets, one set of axes, folds as named tasks.

`space(kernel)` takes a kernel and gives its Space: every load and store by flat offset; every fold aligned, that is,
its bound axes run along axes of the space where the size allows, so that what two passes load is one value; and
every use of a fold replaced by its result, the load of a pseudo-buffer (`%f0[i]`, see ir/program.py). Decides no
loops.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from ridgeline.ir.index import Axis, Div, Index, Mod, Read, as_index
from ridgeline.ir.kernel import Buffer, Kernel, Mode
from ridgeline.ir.program import RESULT
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, cast, fold, iota, load, loads, substitute, word

MAX_ALIGNMENTS = 64  # ways to lay the axes of one fold that are tried


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold over loop axes. `parts` are the components that somebody uses, with their types.

    `partial` names scratch that holds unfinished states, one set per point of `axes` and `kept`: the fold then joins
    those instead of elements (and `elements` only tells the types).
    """

    name: str
    combiner: str
    axes: tuple[Axis, ...]
    kept: tuple[Axis, ...]
    elements: tuple[Value, ...]
    parts: tuple[tuple[int, DType], ...]
    partial: tuple[str, ...] = ()
    offset: Index | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to fold: the result is what the combiner makes of its identity."""
        return any(a.size.const == 0 for a in self.axes)

    @property
    def domain(self) -> frozenset[Axis]:
        return frozenset(self.kept if self.empty else (*self.axes, *self.kept))

    @property
    def roots(self) -> tuple[Value, ...]:
        return () if self.partial or self.empty else self.elements

    def result(self, part: int) -> Value:
        """The value that stands for a component."""
        return result(self.name, part, self.kept, dict(self.parts)[part])


@dataclass(frozen=True, slots=True)
class Write:
    """A store by flat offset."""

    buffer: str
    offset: Index
    value: Value
    mode: Mode = Mode.PLAIN
    streaming: bool = False

    @property
    def domain(self) -> frozenset[Axis]:
        return self.value.axes | self.offset.axes

    @property
    def roots(self) -> tuple[Value, ...]:
        return (*self.offset.reads, self.value)


Task = Fold | Write


@dataclass(frozen=True, slots=True)
class Space:
    """Axes in the kernel's order, and what to do over them; folds before what uses them."""

    axes: tuple[Axis, ...]
    tasks: tuple[Task, ...]
    buffers: Mapping[str, Buffer]


def result(name: str, part: int, kept: Iterable[Axis], dtype: DType) -> Value:
    """The pseudo-load that names a component of a fold."""
    return load(f"{RESULT}{name}" + (f".{part}" if part else ""), kept, dtype)


def fold_name(value: Value) -> str | None:
    """The fold whose result a value is, if it is one."""
    if value.op != "load" or not value.attr.buffer.startswith(RESULT):
        return None
    name: str = value.attr.buffer[1:].partition(".")[0]
    return name


def fold_results(roots: Iterable[Value]) -> list[Value]:
    """The results of folds reachable from the roots."""
    return [v for v in loads(roots) if v.attr.buffer.startswith(RESULT)]


class Rewriter:
    """Rebuilds values bottom-up, each once. `before` may replace a value whole, `after` a rebuilt load."""

    def __init__(self, before: Callable[[Value], Value | None], after: Callable[[Value], Value]) -> None:
        self.before, self.after = before, after
        self.done: dict[Value, Value] = {}

    def value(self, v: Value) -> Value:
        out = self.done.get(v)
        if out is None:
            out = self.before(v)
            out = self.done[v] = self._rebuild(v) if out is None else out
        return out

    def _rebuild(self, v: Value) -> Value:
        args = tuple(self.value(a) for a in v.args)
        if v.op == "load":
            return self.after(load(v.attr.buffer, [self.index(i) for i in v.attr.index], v.attr.stored, *args))
        if v.op == "iota":
            return iota(self.index(v.attr))
        if v.op == "cast":
            return cast(args[0], v.dtype)
        if v.op == "fold":
            return fold(v.attr.combiner, v.attr.axes, *args, part=v.attr.part)
        return v if args == v.args else word(v.op, *args)

    def index(self, index: Index) -> Index:
        if not any(True for _ in index.reads):
            return index
        out = as_index(0)
        for coefficient, factors in index.terms:
            term = as_index(coefficient)
            for atom in factors:
                match atom:
                    case Read():
                        term = term * Read(self.value(atom.value), self.index(atom.size))
                    case Div():
                        term = term * (self.index(atom.num) // self.index(atom.den))
                    case Mod():
                        term = term * (self.index(atom.num) % self.index(atom.den))
                    case _:
                        term = term * atom
            out = out + term
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
        key = (v.attr.combiner, v.attr.axes, v.args)
        if key not in self.names:
            self.names[key] = f"f{len(self.names)}"
            self.waiting.append((self.names[key], v))
        name = self.names[key]
        self.parts.setdefault(name, {})[v.attr.part] = v.dtype
        return result(name, v.attr.part, self._kept(v), v.dtype)

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
        for count, axes in enumerate(self._alignments(v)):
            images = {b: as_index(a) for b, a in zip(v.attr.axes, axes, strict=True)}
            elements = tuple(substitute(a, images) for a in v.args)
            score = 2 * self._coincide(elements) + sum(a in self.axes for a in axes)
            if best is None or score > best[0]:
                best = (score, axes, elements)
            if count >= MAX_ALIGNMENTS:
                break
        assert best is not None
        return best[1:]

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
            Fold(name, v.attr.combiner, axes, kept, elements, tuple(sorted(self.parts[name].items())))
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


def space(kernel: Kernel) -> Space:
    """The kernel's stores and folds over one set of axes, by flat offset."""
    aligner = _Aligner(kernel)
    writes: list[Task] = []
    for store in kernel.stores:
        index = [aligner.rewriter.index(i) for i in store.index]
        for i in index:
            for read in i.reads:
                aligner.see(read)
        offset = aligner.buffers[store.buffer].offset(index)
        writes.append(Write(store.buffer, offset, aligner.see(store.value), store.mode))
    folds: list[Task] = list(_inner_first(aligner.folds()))
    tasks = [t for t in (*folds, *writes) if all(a.size.const != 0 for a in t.domain)]
    used = frozenset().union(*(t.domain for t in tasks)) if tasks else frozenset()
    return Space(tuple(a for a in aligner.axes if a in used), tuple(tasks), aligner.buffers)
