"""Cuts a graph into regions in which units may be merged without looking outside.

The depth of a node is the largest number of library calls on any path to it. Two units of one depth cannot have a
library call between them, so a merge inside a depth can only be illegal by a path through units of that same depth.
A unit whose makers at its depth serve it alone sinks, with them, to the depth of its nearest reader. A region is a
connected part of one depth, at most 256 units.
"""

from collections.abc import Iterable, Mapping

from ridgeline.fuse.unit import Unit, Units
from ridgeline.ir.graph import Graph, NodeKind

MOST_UNITS = 256
MOST_SUNK = 8  # units that sink together


def bases(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each buffer, the stored buffers it is a view of (itself if it is stored)."""
    base: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        if node.kind is NodeKind.VIEW:
            below = tuple(dict.fromkeys(b for name in node.inputs for b in base.get(name, (name,))))
            base |= {b.name: below for b in node.outputs}
    return base


def needed_outside(graph: Graph, units: Units) -> dict[str, str]:
    """Buffers that must be in memory whatever the walk decides, each with the reason."""
    base = bases(graph)
    need: dict[str, str] = {}
    for node in graph.nodes:
        if node.kind is NodeKind.LIBRARY:
            for name in node.inputs:
                for b in base.get(name, (name,)):
                    need.setdefault(b, f"{node.operator} is a library call and reads it")
    for name in graph.kept:
        for b in base.get(name, (name,)):
            need[b] = "it is an output of the graph"
    for unit in units.units.values():
        if unit.storage is not None and unit.storage not in units.units:
            need[unit.name] = "it updates an input in place"
    return need


def call(name: str) -> str:
    """The key of a library call, apart from that of the buffer of the same name it makes."""
    return f"{name}()"


def depths(graph: Graph, units: Units) -> dict[str, int]:
    """The depth of every stored buffer; under `call(name)`, that of a library call."""
    base = bases(graph)
    depth: dict[str, int] = {}
    own: dict[str, list[Unit]] = {}
    for unit in units.units.values():
        own.setdefault(unit.node.name, []).append(unit)
    readers = _readers(graph, units, base)
    drawn = 0  # the depth of the last call that drew random numbers: the next is at least as deep
    for node in graph.nodes:
        if node.kind is NodeKind.LIBRARY:
            at = max((depth.get(b, 0) for name in node.inputs for b in base.get(name, (name,))), default=0)
            if node.draws:
                drawn = at = max(at, drawn)
            depth[call(node.name)] = at
            depth |= dict.fromkeys((node.name, *(b.name for b in node.outputs)), at + 1)
            continue
        for unit in own.get(node.name, ()):
            at = max((depth.get(name, 0) for name in unit.reads), default=0)
            if unit.storage is not None:
                before = (depth.get(r, 0) + is_call for r, is_call in readers.get(unit.storage, ()) if r != unit.name)
                at = max(at, *before, 0)
            depth[unit.name] = at
    _sink(graph, units, depth, readers)
    return depth


def _readers(graph: Graph, units: Units, base: Mapping[str, tuple[str, ...]]) -> dict[str, list[tuple[str, bool]]]:
    """Who reads each stored buffer: (unit or node name, whether it is a library call)."""
    readers: dict[str, list[tuple[str, bool]]] = {}
    for unit in units.units.values():
        for name in unit.reads:
            readers.setdefault(name, []).append((unit.name, False))
    for node in graph.nodes:
        if node.kind is NodeKind.LIBRARY:
            for name in node.inputs:
                for b in base.get(name, (name,)):
                    readers.setdefault(b, []).append((call(node.name), True))
    return readers


def _sink(graph: Graph, units: Units, depth: dict[str, int], readers: Mapping[str, list[tuple[str, bool]]]) -> None:
    """Moves units down to their nearest reader, with the units of their depth that feed only them."""
    overwritten = overwritten_inputs(units)
    for unit in reversed(list(units.units.values())):
        users = readers.get(unit.name, ())
        if not users or unit.storage is not None or unit.name in graph.kept:
            continue
        nearest = min(depth.get(r, 0) for r, _ in users)
        if nearest > depth[unit.name]:
            chain = _only_for(unit, graph, units, depth, readers)
            if not any(name in overwritten for c in chain for name in units.units[c].reads):
                depth |= dict.fromkeys(chain, nearest)


def overwritten_inputs(units: Units) -> frozenset[str]:
    """Buffers that some unit writes over: who reads them must do so where it stands."""
    return frozenset(u.storage for u in units.units.values() if u.storage is not None and u.storage not in units.units)


def _only_for(
    unit: Unit,
    graph: Graph,
    units: Units,
    depth: Mapping[str, int],
    readers: Mapping[str, list[tuple[str, bool]]],
) -> list[str]:
    """A unit and those of its depth that feed it, if they feed nothing else; none otherwise."""
    chain, at = [unit], 0
    names = {unit.name}
    while at < len(chain):
        for name in chain[at].reads:
            feeder = units.units.get(name)
            if feeder is None or name in names or depth.get(name, 0) != depth[unit.name]:
                continue
            others = any(r not in names for r, _ in readers.get(name, ()))
            if others or feeder.storage is not None or name in graph.kept or len(chain) == MOST_SUNK:
                return []
            chain.append(feeder)
            names.add(name)
        at += 1
    return [u.name for u in chain]


def regions(units: Iterable[Unit], depth: Mapping[str, int]) -> list[list[Unit]]:
    """Connected units of one depth, in program order; larger ones are cut where least is stored across the cut."""
    by_depth: dict[int, list[Unit]] = {}
    for unit in units:
        by_depth.setdefault(depth[unit.name], []).append(unit)
    out: list[list[Unit]] = []
    for level in sorted(by_depth):
        for part in _connected(by_depth[level]):
            out += _cut(part)
    return out


def _connected(units: list[Unit]) -> list[list[Unit]]:
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    for unit in units:
        for name in (*unit.reads, *((unit.storage,) if unit.storage is not None else ())):
            parent[root(name)] = root(unit.name)
    parts: dict[str, list[Unit]] = {}
    for unit in units:
        parts.setdefault(root(unit.name), []).append(unit)
    return list(parts.values())


def _cut(units: list[Unit]) -> list[list[Unit]]:
    if len(units) <= MOST_UNITS:
        return [units]
    # Between MOST_UNITS / 2 and MOST_UNITS, cut where the fewest tensors cross.
    names = [u.name for u in units]
    last_read = {name: k for k, u in enumerate(units) for name in u.reads}
    best = min(
        range(MOST_UNITS // 2, MOST_UNITS),
        key=lambda at: sum(1 for name in names[:at] if last_read.get(name, -1) >= at),
    )
    return [units[:best], *_cut(units[best:])]
