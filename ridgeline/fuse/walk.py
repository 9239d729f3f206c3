"""The walk: from one kernel an operator to the kernels that pay, move by move.

Takes an operator graph and a device; gives a `Plan` - the groups that become kernels, what each stores, and every
move with the bytes and seconds it saved or the reason it was refused. The first plan it prices is the eager one.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ridgeline.base.records import MoveAccount
from ridgeline.cost.count import Hints
from ridgeline.fuse.group import MOST_BUFFERS, Group, join, rows_of, single
from ridgeline.fuse.inline import inline_cheap
from ridgeline.fuse.price import Price, price_of
from ridgeline.fuse.regions import depths, needed_outside, regions
from ridgeline.fuse.repeat import Form, Forms, Result, keep, recall
from ridgeline.fuse.space import access, mapped
from ridgeline.fuse.unit import Unit, Units, alive, make_units, reads_together, unit_arithmetic, unit_write
from ridgeline.hw.device import Device
from ridgeline.ir.graph import Graph
from ridgeline.ir.index import as_index
from ridgeline.ir.kernel import Buffer

# A refused merge is tried again together with the groups on the path between the two, up to this many stores.
LARGEST_CLOSURE = 8


@dataclass(frozen=True)
class Plan:
    """What the walk decided."""

    graph: Graph
    units: Units
    groups: tuple[Group, ...]
    stored: frozenset[str]
    moves: tuple[MoveAccount, ...]
    price: Price


@dataclass
class _Cost:
    """A group's traffic and arithmetic; `seconds` on the device."""

    reads: dict[str, int]
    written: int
    seconds: float

    @property
    def moved(self) -> int:
        return sum(self.reads.values()) + self.written


@dataclass
class _Walk:
    units: Units
    need: Mapping[str, str]
    readers: Mapping[str, frozenset[str]]
    buffers: Mapping[str, Buffer]
    hints: Hints
    price: Price
    fuel: int | None
    moves: list[MoveAccount] = field(default_factory=list)
    costs: WeakKeyDictionary[Group, _Cost] = field(default_factory=WeakKeyDictionary)
    known: dict[Form, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forms = Forms(self.buffers)

    def stored(self, group: Group, unit: Unit) -> bool:
        """Whether a unit's tensor must be in memory with this group as its kernel."""
        return unit.name in self.need or not self.readers.get(unit.name, frozenset()) <= group.names

    def cost(self, group: Group) -> _Cost:
        reads = reads_together(group.units, group.maps, self.buffers, self.hints)
        flops: dict[str, float] = {}
        special = random = 0.0
        written = 0
        for unit in group.units:
            f, s, r = unit_arithmetic(unit, self.hints)
            for key, count_f in f.items():
                flops[key] = flops.get(key, 0.0) + count_f
            special, random = special + s, random + r
            if self.stored(group, unit):
                written += unit_write(unit, self.hints)
        moved = sum(reads.values()) + written
        return _Cost(reads, written, self.price.seconds(moved, flops, special, random))

    def try_join(self, a: Group, b: Group) -> tuple[Group, _Cost] | str:
        """The joined group and its cost, or why not."""
        shared = [n for n in self.cost_of(a).reads if n in self.cost_of(b).reads]
        shared.sort(key=lambda n: -self.cost_of(a).reads[n])
        joined = join(a, b, shared, self.buffers)
        if isinstance(joined, str):
            return joined
        hazard = self.overwrites(joined)
        if hazard is not None:
            return hazard
        rows = rows_of(joined, lambda u: self.stored(joined, u))
        if isinstance(rows, str):
            return rows
        cost = self.cost(joined)
        if len(cost.reads) + sum(self.stored(joined, u) for u in joined.units) > MOST_BUFFERS:
            return "the kernel would have too many buffers"
        return joined, cost

    def overwrites(self, group: Group) -> str | None:
        """A kernel may write an input in place only if all of it reads that input at the point it writes, and before.

        Stores run in order, but what waits for a fold runs in a later pass: nothing that reads the input may wait for
        a fold that the overwriting store does not wait for, nor come after it unless that store loads it too.
        """
        if all(u.storage is None or u.storage in self.units.units for u in group.units):
            return None
        sees: dict[str, set[str]] = {}  # what each unit reads, its makers in the group included
        waits: dict[str, set[str]] = {}  # the units with folds that it waits for
        for unit in group.units:
            inside = [n for n in unit.reads if n in sees]
            sees[unit.name] = {n for n in unit.reads if n not in sees}.union(*(sees[n] for n in inside))
            waits[unit.name] = ({unit.name} if unit.folds else set()).union(*(waits[n] for n in inside))
        for k, unit in enumerate(group.units):
            if unit.storage is None or unit.storage in self.units.units:
                continue
            axis_map = group.maps[unit.name]
            made = [axis_map.get(a, as_index(0)) for a in unit.definition.axes]
            domain = mapped(unit.domain, axis_map)
            for other in group.units:
                theirs = group.maps[other.name]
                at = [access(v, theirs) for v in other.loads if v.attr.buffer == unit.storage]
                wider = not mapped(other.space, theirs) <= domain and unit.storage in sees[other.name]
                if wider or (at and (unit.is_scatter or any(i != made for i in at))):
                    return "it would overwrite an input that other points still read"
            for j, other in enumerate(group.units):
                if j == k or unit.storage not in sees[other.name] or not self.stored(group, other):
                    continue
                if not waits[other.name] <= waits[unit.name] or (j > k and unit.storage not in sees[unit.name]):
                    return "it would overwrite an input that another pass still reads"
        return None

    def cost_of(self, group: Group) -> _Cost:
        found = self.costs.get(group)
        if found is None:
            found = self.costs[group] = self.cost(group)
        return found

    # One region.

    def region(self, units: list[Unit]) -> list[Group]:
        """The groups of a region; one of a form met before is not walked again."""
        if len(units) == 1 or self.fuel is not None:
            return self.merge(units)
        names = {u.name for u in units}
        outside = [u.name in self.need or not self.readers.get(u.name, frozenset()) <= names for u in units]
        form, _ = self.forms.of(units, outside)
        known = self.known.get(form)
        if known is None:
            before = len(self.moves)
            groups = self.merge(units)
            self.known[form] = keep(units, groups, self.moves[before:])
            return groups
        groups, moves = recall(known, units)
        self.moves += moves
        return groups

    def merge(self, units: list[Unit]) -> list[Group]:
        """Merges groups, the pair that saves most first, until nothing pays."""
        state = _Region(self, units)
        while state.heap and self.fuel != 0:
            _, _, a, b = heapq.heappop(state.heap)
            if a not in state.groups or b not in state.groups:
                continue
            self.attempt(state, a, b)
        return list(state.groups.values())

    def attempt(self, state: "_Region", a: int, b: int) -> None:
        first, second = state.groups[a], state.groups[b]
        between = state.between(a, b)
        if between is None or len(between) > LARGEST_CLOSURE:
            self.refuse(first, second, "something between them must run after one and before the other")
            return
        joined: Group = first
        cost: _Cost | None = None
        for g in (*between, b):
            tried = self.try_join(joined, state.groups[g])
            if isinstance(tried, str):
                self.refuse(first, second, tried)
                return
            joined, cost = tried
        assert cost is not None
        before = sum(self.cost_of(state.groups[g]).seconds for g in (a, *between, b))
        if cost.seconds > before:
            self.refuse(first, second, "it would take longer")
            return
        self.accept(state, [a, *between, b], joined, cost, before)

    def accept(self, state: "_Region", merged: list[int], joined: Group, cost: _Cost, before: float) -> None:
        groups = [state.groups[g] for g in merged]
        dropped = [u for g in groups for u in g.units if self.stored(g, u) and not self.stored(joined, u)]
        saved = sum(self.cost_of(g).moved for g in groups) - cost.moved
        what = _operators(joined.units)
        self.moves.append(
            MoveAccount(
                *("drop store" if dropped else "share read", True, what),
                *(joined.units[-1].node.line, float(saved), before - cost.seconds),
                f"{_operators(dropped)} stays in registers" if dropped else "both read the same tensors",
            )
        )
        self.costs[joined] = cost
        if self.fuel is not None:
            self.fuel -= 1
        state.replace(merged, joined)

    def refuse(self, a: Group, b: Group, reason: str) -> None:
        for maker, reader in ((a, b), (b, a)):
            for unit in maker.units:
                if self.readers.get(unit.name, frozenset()) & reader.names:
                    maker.refused.setdefault(unit.name, reason)


class _Region:
    """The groups of one region, the order among them, and the pairs still worth a try."""

    def __init__(self, walk: _Walk, units: list[Unit]) -> None:
        self.walk = walk
        self.groups: dict[int, Group] = {k: single(u) for k, u in enumerate(units)}
        self.home = {u.name: k for k, u in enumerate(units)}
        self.next: dict[int, set[int]] = {k: set() for k in self.groups}
        self.heap: list[tuple[float, int, int, int]] = []
        self.tick = len(units)
        self.readers_of: dict[str, set[int]] = {}
        for k, unit in enumerate(units):
            for name in unit.reads:
                self.readers_of.setdefault(name, set()).add(k)
                maker = self.home.get(name)
                if maker is not None and maker != k:
                    self.next[maker].add(k)
        for k, unit in enumerate(units):  # readers of a buffer run before what overwrites it
            if unit.storage is not None:
                for r in self.readers_of.get(unit.storage, set()) - {k}:
                    self.next[r].add(k)
        for k in list(self.groups):
            self.push(k, later_only=True)

    def push(self, k: int, later_only: bool = False) -> None:
        """Queues the pairs of a group with those it shares tensors with."""
        group = self.groups[k]
        cost = self.walk.cost_of(group)
        gain: dict[int, float] = {}
        for name, count in cost.reads.items():
            maker = self.home.get(name)
            for other in (self.readers_of.get(name, set()) | ({maker} if maker is not None else set())) - {k}:
                # A read made inside saves the read, and the write too if nobody else needs it.
                gain[other] = gain.get(other, 0.0) + count * (2 if other == maker else 1)
        for unit in group.units:
            for other in self.readers_of.get(unit.name, set()) - {k}:
                gain[other] = gain.get(other, 0.0) + 2.0 * unit_write(unit, self.walk.hints)
        for other, saved in gain.items():
            if other in self.groups and not (later_only and other > k):
                a, b = (other, k) if self.groups[other].position <= group.position else (k, other)
                heapq.heappush(self.heap, (-saved, abs(group.position - self.groups[other].position), a, b))

    def reach(self, start: int) -> set[int]:
        seen: set[int] = set()
        stack = [start]
        while stack:
            for n in self.next[stack.pop()]:
                if n not in seen:
                    seen.add(n)
                    stack.append(n)
        return seen

    def between(self, a: int, b: int) -> list[int] | None:
        """Groups on a path from one to the other, in order; None when paths lead both ways."""
        after_a, after_b = self.reach(a), self.reach(b)
        if b in after_a and a in after_b:
            return None
        first, last = (a, b) if b in after_a else (b, a)
        ahead = after_a if first == a else after_b
        if last not in ahead:
            return []
        inside = [g for g in ahead if g != last and last in self.reach(g)]
        return sorted(inside, key=lambda g: self.groups[g].position)

    def replace(self, merged: list[int], joined: Group) -> None:
        k, self.tick = self.tick, self.tick + 1
        gone = set(merged)
        self.next[k] = set().union(*(self.next.pop(g) for g in merged)) - gone
        for targets in self.next.values():
            if not targets.isdisjoint(gone):
                targets -= gone
                targets.add(k)
        for readers in self.readers_of.values():
            if not readers.isdisjoint(gone):
                readers -= gone
                readers.add(k)
        for g in merged:
            del self.groups[g]
        self.groups[k] = joined
        self.home |= dict.fromkeys(joined.maps, k)
        self.push(k)


def _operators(units: Iterable[Unit]) -> str:
    return ", ".join(dict.fromkeys(n.operator for u in units for n in (*u.again, u.node)))


def walk(graph: Graph, device: Device, fuel: int | None = None) -> Plan:
    """The plan of a graph on a device. `fuel` bounds the moves, to bisect."""
    units = make_units(graph)
    price = price_of(device)
    need = needed_outside(graph, units)
    units = alive(units, need)
    units, inlined = inline_cheap(units, need, depths(graph, units), graph.hints, price)
    readers: dict[str, set[str]] = {}
    for unit in units.units.values():
        for name in unit.reads:
            readers.setdefault(name, set()).add(unit.name)
    state = _Walk(units, need, {n: frozenset(r) for n, r in readers.items()}, units.buffers, graph.hints, price, fuel)
    state.moves += inlined
    parts = regions(units.units.values(), depths(graph, units))
    groups = [g for part in parts for g in state.region(part)]
    stored = frozenset(u.name for g in groups for u in g.units if state.stored(g, u))
    kept = [_stayed(g, u, need, state) for g in groups for u in g.units if u.name in stored]
    return Plan(graph, units, tuple(groups), stored, (*state.moves, *(m for m in kept if m is not None)), price)


def _stayed(group: Group, unit: Unit, need: Mapping[str, str], state: _Walk) -> MoveAccount | None:
    """The refused move of a store that stayed."""
    size = unit_write(unit, state.hints)
    others = state.readers.get(unit.name, frozenset()) - group.names
    reason = need.get(unit.name) or group.refused.get(unit.name)
    if reason is None:
        reason = "its readers run after a library call" if others else "nothing reads it here"
    moved = size * (1 + len(others))
    return MoveAccount(
        "drop store", False, unit.node.operator, unit.node.line, float(moved), moved * state.price.byte_s, reason
    )
