"""Plan -> kernels in the order they run.

Each group becomes one kernel by substitution: what a unit loads and another unit of the group makes is replaced by
how it is made. Kernels are named by their content, with axes and buffers renamed in order of appearance, so equal
kernels are one object and are generated once.
"""

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from ridgeline.base.errors import CheckFailed
from ridgeline.fuse.group import Group
from ridgeline.fuse.space import plain, radix
from ridgeline.fuse.unit import Unit, guarded, plain_index
from ridgeline.fuse.walk import Plan
from ridgeline.ir.graph import Node, NodeKind
from ridgeline.ir.index import Axis, Index, as_index, unflatten
from ridgeline.ir.kernel import Buffer, Kernel, Store
from ridgeline.ir.value import Value, fresh, load, substitute, substitute_index


@dataclass(frozen=True)
class KernelStep:
    """One launch: the canonical kernel, and the graph's name of each of its buffers in order."""

    kernel: Kernel
    arguments: tuple[str, ...]
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class CallStep:
    """One node run by torch: a library call, or a view that one needs."""

    node: Node


Step = Union[KernelStep, CallStep]


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
        return Store(unit.name, index, self.value(unit), unit.definition.mode)


def build_kernel(group: Group, plan: Plan) -> KernelStep:
    """The kernel of a group, canonical, and what its buffers are called in the graph."""
    builder = _Builder(group, plan)
    stores = [builder.store(u) for u in group.units if u.name in plan.stored]
    axes = _ordered_axes(stores, plan.units.buffers)
    names = dict.fromkeys(v.attr.buffer for s in stores for v in Kernel("", axes, (s,), ()).values if v.op == "load")
    arguments = (*names, *(s.buffer for s in stores if s.buffer not in names))
    kernel = _canonical(axes, stores, [plan.units.buffers[n] for n in arguments])
    return KernelStep(kernel, arguments, tuple(group.units))


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
    text = repr((new_axes, [a.size for a in new_axes], renamed, renamed_buffers))
    name = "k" + hashlib.sha256(text.encode()).hexdigest()[:12]
    return Kernel(name, new_axes, renamed, renamed_buffers)


def steps(plan: Plan) -> list[Step]:
    """Everything the plan runs, each after what it needs, otherwise in program order."""
    out: list[tuple[int, Step, set[str], set[str]]] = []  # position, step, reads, writes
    for group in plan.groups:
        if not any(u.name in plan.stored for u in group.units):
            continue
        step = build_kernel(group, plan)
        # A group runs when its last unit would have, so that what it needs is there.
        reads = {n for n in step.arguments if n not in group.names}
        reads |= {u.storage for u in group.units if u.storage is not None}
        out.append((max(u.position for u in group.units), step, reads, {u.name for u in group.units}))
    wanted = _runtime_views(plan)
    for position, node in enumerate(plan.graph.nodes):
        if node.kind is NodeKind.LIBRARY or node.name in wanted:
            out.append((position, CallStep(node), set(node.inputs), {b.name for b in node.outputs}))
    return _ordered(plan, out)


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


def _ordered(plan: Plan, entries: Sequence[tuple[int, Step, set[str], set[str]]]) -> list[Step]:
    maker = {name: k for k, (_, _, _, writes) in enumerate(entries) for name in writes}
    after: list[set[int]] = [set() for _ in entries]
    waits = [0] * len(entries)
    for k, (_, _, reads, _) in enumerate(entries):
        for name in reads:
            if name in maker and maker[name] != k:
                after[maker[name]].add(k)
    for k, (_, step, _, _) in enumerate(entries):  # what overwrites an input waits for its readers
        storages = {u.storage for u in step.units} if isinstance(step, KernelStep) else {step.node.storage}
        for j, (_, _, reads, _) in enumerate(entries):
            if j != k and not storages.isdisjoint(reads - {None}) and not (storages - {None}).issubset(maker):
                after[j].add(k)
    for targets in after:
        for k in targets:
            waits[k] += 1
    ready = [(entries[k][0], k) for k in range(len(entries)) if not waits[k]]
    heapq.heapify(ready)
    out: list[Step] = []
    while ready:
        _, k = heapq.heappop(ready)
        out.append(entries[k][1])
        for n in after[k]:
            waits[n] -= 1
            if not waits[n]:
                heapq.heappush(ready, (entries[n][0], n))
    if len(out) != len(entries):
        raise CheckFailed("build", plan.graph.name, "its steps wait for each other in a circle")
    return out
