"""The step limit of a graph: the least its work can take whatever the plan.

Library calls at their limits, plus for each fusible region between them its compulsory work: what it reads from
outside once, what is needed outside once, and the arithmetic of its definitions. No decision of the walk enters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.base.records import NO_WORK, Limit, Work
from ridgeline.cost.count import Hints, bytes_read, definition_values, node_work, stored_elements
from ridgeline.cost.limit import kernel_limit
from ridgeline.cost.memory import Touch, near_bytes
from ridgeline.fuse.regions import bases, depths, needed_outside, regions
from ridgeline.fuse.unit import Unit, Units, alive, make_units, reads_together, unit_arithmetic, unit_write
from ridgeline.hw.device import Device
from ridgeline.ir.graph import Graph, Node, NodeKind
from ridgeline.ir.kernel import Buffer


@dataclass(frozen=True)
class Part:
    """A region or a library call: where it stands, its Work and the buffers it must touch."""

    position: int
    work: Work
    touch: Touch


def region_part(units: list[Unit], need: Mapping[str, str], all_units: Units, hints: Hints) -> Part:
    """The compulsory work of a region."""
    names = {u.name for u in units}
    outside: set[str] = {r for u in all_units.units.values() if u.name not in names for r in u.reads}
    reads = reads_together(units, names, all_units.buffers, hints)
    writes: dict[str, int] = {}
    flops: dict[str, float] = {}
    special = random = 0.0
    for unit in units:
        if unit.name in need or unit.name in outside:
            writes[unit.name] = unit_write(unit, hints)
        f, s, r = unit_arithmetic(unit, hints)
        for key, count_f in f.items():
            flops[key] = flops.get(key, 0.0) + count_f
        special, random = special + s, random + r
    work = Work(sum(reads.values()), sum(writes.values()), flops, special, random)
    return Part(min(u.position for u in units), work, Touch(reads, writes))


def call_part(position: int, node: Node, graph: Graph, base: Mapping[str, Sequence[str]]) -> Part:
    """A library call as it is."""
    work = node_work(node, graph.buffers, graph.hints)
    return Part(position, work, node_touch(node, graph.buffers, graph.hints, base))


def node_touch(node: Node, buffers: Mapping[str, Buffer], hints: Hints, base: Mapping[str, Sequence[str]]) -> Touch:
    """The buffers one operator reads and writes by itself, with the bytes of each; a view stands for what it views."""
    if node.definitions:
        reads = bytes_read(definition_values(node.definitions), buffers, hints)
    else:
        reads = {n: stored_bytes(buffers[n], hints) for n in node.inputs if n in buffers}
    under: dict[str, int] = {}
    for name, count in reads.items():
        for b in base.get(name, (name,)):
            under[b] = max(under.get(b, 0), count)
    return Touch(under, {b.name: stored_bytes(b, hints) for b in node.outputs})


def stored_bytes(buffer: Buffer, hints: Hints) -> int:
    """Distinct bytes a buffer holds."""
    return stored_elements(buffer, hints) * buffer.dtype.bytes


def parts(graph: Graph) -> list[Part]:
    """Regions and library calls in program order."""
    units = make_units(graph)
    base = bases(graph)
    need = needed_outside(graph, units)
    units = alive(units, need)
    out = [
        region_part(region, need, units, graph.hints) for region in regions(units.units.values(), depths(graph, units))
    ]
    out += [
        call_part(k, node, graph, base)
        for k, node in enumerate(graph.nodes)
        if node.kind is NodeKind.LIBRARY and node.family == "library"
    ]
    return sorted(out, key=lambda p: p.position)


def step_limit(graph: Graph, device: Device) -> tuple[Limit, Work]:
    """The limit of a graph's step on a device, with the seconds of each resource over its parts, and its Work."""
    found = parts(graph)
    near = near_bytes([p.touch for p in found], device)
    seconds = 0.0
    resources: dict[str, float] = {}
    total = NO_WORK
    for part, cached in zip(found, near, strict=True):
        limit = kernel_limit(part.work, device, cached)
        seconds += limit.seconds
        if limit.seconds:
            resources[limit.binds] = resources.get(limit.binds, 0.0) + limit.seconds
        # Of an unknown number of operations the least is none: the rest of the work is not unknown with it.
        total = total + (part.work if part.work.flops is not None else replace(part.work, flops={}))
    binds = max(resources, key=lambda name: resources[name]) if resources else "nothing"
    return Limit(seconds, binds, resources), total
