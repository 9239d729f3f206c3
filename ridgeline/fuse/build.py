"""Plan -> kernels in the order they run.

Each group becomes one kernel by substitution: what a unit loads and another unit of the group makes is replaced by
how it is made. Kernels are named by their content, with axes and buffers renamed in order of appearance, so equal
kernels are one object and are generated once.
"""

import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.base.errors import CheckFailed
from ridgeline.fuse.group import Group
from ridgeline.fuse.regions import bases
from ridgeline.fuse.repeat import Form, Forms, group_form
from ridgeline.fuse.space import plain, radix
from ridgeline.fuse.unit import Unit, guarded, plain_index
from ridgeline.fuse.walk import Plan
from ridgeline.ir.graph import NodeKind
from ridgeline.ir.index import Axis, Index, Sym, as_index, unflatten
from ridgeline.ir.kernel import Buffer, Kernel, Store
from ridgeline.ir.steps import CallStep, KernelStep, Step, Steps
from ridgeline.ir.value import Value, fresh, load, substitute, substitute_index


class _Builder:
    """Values of one group over its atoms."""

    def __init__(self, group: Group, plan: Plan) -> None:
        self.group, self.plan = group, plan
        self.by_name = {u.name: u for u in group.units}
        self.done: dict[str, Value] = {}

    def value(self, unit: Unit) -> Value:
        if unit.name not in self.done:
            self.done[unit.name] = substitute(unit.definition.value, self.group.maps[unit.name], self.inline)
        return self.done[unit.name]

    def inline(self, v: Value) -> Value | None:
        unit = self.by_name.get(v.attr.buffer)
        if unit is None or unit.is_scatter:
            return None
        value = self.value(unit)
        axis_map = self.group.maps[unit.name]
        images: dict[Axis, Index] = {}
        for axis, index in zip(unit.definition.axes, v.attr.index, strict=True):
            image = axis_map.get(axis, as_index(0))
            if image is index or not image.terms:
                continue
            atom = plain(image)
            order = (atom,) if atom is not None else radix(image)
            if order is None:
                raise CheckFailed("build", unit.name, f"axis image {image} cannot be inverted")
            images |= zip(order, unflatten(index, [a.size for a in order]), strict=True)
        out = substitute(value, images) if images else value
        return guarded(out, v.args[0]) if v.args else out

    def store(self, unit: Unit) -> Store:
        axis_map = self.group.maps[unit.name]
        index = tuple(substitute_index(i, axis_map, self.inline) for i in plain_index(unit))
        domain = (a for i in unit.definition.axes for a in axis_map.get(i, as_index(0)).axes)
        return Store(unit.name, index, self.value(unit), unit.definition.mode).over(dict.fromkeys(domain))


class Build:
    """Kernels of a plan's groups; groups of one form are built once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.forms = Forms(plan.units.buffers)
        self.known: dict[Form, tuple[Kernel, tuple[int, ...]]] = {}

    def kernel(self, group: Group) -> KernelStep:
        """The kernel of a group, canonical, and what its buffers are called in the graph."""
        form, names = group_form(self.forms, group, self.plan.stored)
        if form in self.known:
            kernel, places = self.known[form]
            arguments = tuple(names[k] for k in places)
        else:
            kernel, arguments = build_kernel(group, self.plan)
            self.known[form] = kernel, tuple(names.index(n) for n in arguments)
        nodes = tuple(dict.fromkeys(n for u in group.units for n in (*u.again, u.node)))
        storage = {u.name: u.storage for u in group.units if u.storage is not None and u.name in self.plan.stored}
        return KernelStep(kernel, arguments, nodes, storage)


def build_kernel(group: Group, plan: Plan) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel of a group, canonical, and what its buffers are called in the graph."""
    builder = _Builder(group, plan)
    stores = [builder.store(u) for u in group.units if u.name in plan.stored]
    axes = _ordered_axes(stores, plan.units.buffers)
    names = dict.fromkeys(v.attr.buffer for s in stores for v in Kernel("", axes, (s,), ()).values if v.op == "load")
    arguments = (*names, *(s.buffer for s in stores if s.buffer not in names))
    kernel = _canonical(axes, stores, [plan.units.buffers[n] for n in arguments])
    return kernel, arguments


def _ordered_axes(stores: Sequence[Store], buffers: Mapping[str, Buffer]) -> tuple[Axis, ...]:
    """Axes of the space, outermost (largest stride in the widest store) first."""
    widest = max(stores, key=lambda s: len(s.domain))
    seen: dict[Axis, None] = {}
    buffer = buffers[widest.buffer]
    dims = sorted(
        zip(widest.index, buffer.strides, range(len(buffer.shape)), strict=True),
        key=lambda t: (-(t[1].const if t[1].const is not None else 1 << 40), t[2]),
    )
    for index, _, _ in dims:
        for atom in index.atoms:
            if isinstance(atom, Axis):
                seen.setdefault(atom)
    for s in (widest, *stores):
        for axis in sorted(s.domain, key=lambda a: a.name):
            seen.setdefault(axis)
    return tuple(seen)


def _canonical(axes: tuple[Axis, ...], stores: Sequence[Store], buffers: Sequence[Buffer]) -> Kernel:
    new_axes = tuple(Axis(f"a{k}", a.size) for k, a in enumerate(axes))
    # Through fresh names first, so that an a0 that is already there cannot be captured.
    middle = tuple(fresh(a.size) for a in axes)
    first = {a: as_index(m) for a, m in zip(axes, middle, strict=True)}
    second = {m: as_index(n) for m, n in zip(middle, new_axes, strict=True)}
    new_names = {b.name: f"b{k}" for k, b in enumerate(buffers)}

    def rename(v: Value) -> Value | None:
        return load(new_names[v.attr.buffer], v.attr.index, v.attr.stored, *v.args)

    renamed = tuple(
        Store(
            new_names[s.buffer],
            tuple(substitute_index(substitute_index(i, first, rename), second) for i in s.index),
            substitute(substitute(s.value, first, rename), second),
            s.mode,
        )
        for s in stores
    )
    renamed_buffers = tuple(replace(b, name=new_names[b.name]) for b in buffers)
    kernel = Kernel("", new_axes, renamed, renamed_buffers)
    text = repr((new_axes, [a.size for a in new_axes], renamed, renamed_buffers, _leasts(kernel)))
    return replace(kernel, name="k" + hashlib.sha256(text.encode()).hexdigest()[:12])


def _leasts(kernel: Kernel) -> list[tuple[str, int]]:
    """Size symbols whose least number is not the usual 2: what is proved of a kernel depends on it."""
    indices = [a.size for a in kernel.axes]
    indices += [i for b in kernel.buffers for i in (*b.shape, *b.strides)]
    indices += [i for s in kernel.stores for i in s.index]
    for v in kernel.values:
        indices += v.attr.index if v.op == "load" else (v.attr,) if v.op == "iota" else ()
    return sorted({(a.name, a.low) for i in indices for a in i.atoms if isinstance(a, Sym) and a.low != 2})


@dataclass(frozen=True)
class _Entry:
    position: int
    step: Step
    reads: frozenset[str]
    writes: frozenset[str]
    overwrites: frozenset[str]  # inputs of the graph that it changes in place


def steps(plan: Plan) -> Steps:
    """Everything the plan runs, each after what it needs, otherwise in program order."""
    entries: list[_Entry] = []
    build = Build(plan)
    for group in plan.groups:
        if not any(u.name in plan.stored for u in group.units):
            continue
        step = build.kernel(group)
        # A group runs when its last unit would have, so that what it needs is there.
        position = max(u.position for u in group.units)
        reads = frozenset((*step.read, *step.storage.values())) - group.names
        entries.append(_Entry(position, step, reads, group.names, _overwritten(plan, step.storage.values())))
    wanted = _runtime_views(plan)
    base = bases(plan.graph)
    drawn: tuple[str, ...] = ()  # the last call that drew random numbers
    for position, node in enumerate(plan.graph.nodes):
        if node.kind is NodeKind.LIBRARY or node.name in wanted:
            made = frozenset((node.name, *(b.name for b in node.outputs)))
            changed = _overwritten(plan, () if node.storage is None else (node.storage,))
            needs = {*node.inputs, *(b for name in node.inputs for b in base.get(name, ()))}
            if node.draws:
                needs, drawn = needs.union(drawn), (node.name,)
            entries.append(_Entry(position, CallStep(node), frozenset(needs), made, changed))
    return Steps(plan.graph, tuple(_ordered(plan, entries)), plan.units.buffers)


def _overwritten(plan: Plan, storages: Iterable[str]) -> frozenset[str]:
    return frozenset(s for s in storages if s not in plan.units.units)


def _runtime_views(plan: Plan) -> set[str]:
    """Views that a library call or the caller needs as tensors."""
    wanted: set[str] = set()
    producer = plan.graph.producer
    stack = [n for node in plan.graph.nodes if node.kind is NodeKind.LIBRARY for n in node.inputs]
    stack += plan.graph.kept
    while stack:
        node = producer.get(stack.pop())
        if node is not None and node.kind is NodeKind.VIEW and node.name not in wanted:
            wanted.add(node.name)
            stack += node.inputs
    return wanted


def _ordered(plan: Plan, entries: Sequence[_Entry]) -> list[Step]:
    maker = {name: k for k, e in enumerate(entries) for name in e.writes}
    readers: dict[str, list[int]] = {}
    after: list[set[int]] = [set() for _ in entries]
    for k, e in enumerate(entries):
        for name in e.reads:
            readers.setdefault(name, []).append(k)
            if name in maker and maker[name] != k:
                after[maker[name]].add(k)
    for k, e in enumerate(entries):  # what overwrites an input waits for its readers
        for j in (j for name in e.overwrites for j in readers.get(name, ()) if j != k):
            after[j].add(k)
    waits = [0] * len(entries)
    for targets in after:
        for k in targets:
            waits[k] += 1
    ready = [(e.position, k) for k, e in enumerate(entries) if not waits[k]]
    heapq.heapify(ready)
    out: list[Step] = []
    while ready:
        _, k = heapq.heappop(ready)
        out.append(entries[k].step)
        for n in after[k]:
            waits[n] -= 1
            if not waits[n]:
                heapq.heappush(ready, (entries[n].position, n))
    if len(out) != len(entries):
        raise CheckFailed("build", plan.graph.name, "its steps wait for each other in a circle")
    return out
