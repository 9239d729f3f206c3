"""Groups: units that become one kernel, and whether that kernel can be one.

A kernel can hold its units when they share one space. With no row statistics inside, everything stored runs over the
whole space (folds may be left pending, as partial results). When something reads a fold more widely than the fold is
kept, the axes it is kept along are the rows of the kernel; all such folds must have the same rows, and everything
stored must run along them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ridgeline.fuse.space import Solution, access, mapped, plain
from ridgeline.fuse.unit import Unit
from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.value import Value, fresh, substitute_index

# Values in one kernel: beyond this the registers of any target overflow and compile time grows faster than savings.
MOST_VALUES = 400
MOST_BUFFERS = 40


@dataclass(eq=False)
class Group:
    """Units with their maps into common atoms. `mask` has a bit for each unit of its region."""

    units: list[Unit]
    maps: dict[str, dict[Axis, Index]]
    atoms: frozenset[Axis]
    refused: dict[str, str] = field(default_factory=dict)  # buffer -> why it could not be fused away

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.maps)

    @property
    def position(self) -> int:
        return min(u.position for u in self.units)


def single(unit: Unit) -> Group:
    """A unit as a group of its own."""
    axis_map = {a: as_index(fresh(a.size, "g")) for a in sorted(unit.space, key=lambda a: a.name)}
    atoms = frozenset(a for i in axis_map.values() for a in i.axes)
    axis_map |= {a: as_index(0) for a in unit.definition.axes if a.size.const == 1}
    group = Group([unit], {unit.name: axis_map}, atoms)
    if not unit.folds:
        return group
    # A buffer read both inside a fold and outside lets the bound axis run along the unit's own.
    solution = Solution()
    seen: dict[str, list[Index]] = {}
    for v in unit.loads:
        at = access(v, axis_map)
        if v.attr.buffer in seen:
            before = dict(solution.images)
            if not (solution.equate(seen[v.attr.buffer], at, at_sizes(at)) and _separate(group, solution)):
                solution.images = before
        seen.setdefault(v.attr.buffer, at)
    return _joined(group, Group([], {}, frozenset()), solution)


def at_sizes(index: list[Index]) -> list[Index]:
    """Sizes that keep dimensions apart when only equality of whole dimensions matters."""
    return [as_index(1)] * len(index)


def _separate(group: Group, solution: Solution) -> bool:
    """Whether each unit's own axes, and each fold's kept and bound ones, are still different axes."""
    for unit in group.units:
        axis_map = group.maps[unit.name]
        sets = [unit.domain, *((*f.kept, *f.bound) for f in unit.folds)]
        for axes in sets:
            if not solution.injective([axis_map[a] for a in axes if a in axis_map]):
                return False
    return True


Equation = tuple[list[Index], list[Index], tuple[Index, ...]]


def _produced(group: Group, name: str) -> tuple[Unit, list[Index]] | None:
    """A unit of the group and the position its buffer is stored at, over the group's atoms."""
    if name not in group.maps:
        return None
    unit = next(u for u in group.units if u.name == name)
    if unit.is_scatter:
        return None
    axis_map = group.maps[name]
    return unit, [axis_map.get(a, as_index(0)) for a in unit.definition.axes]


def crossing(a: Group, b: Group) -> list[tuple[Unit, Value, Group, Group]]:
    """Loads in one group of what the other makes: (reader, load, reader's group, maker's group)."""
    return [
        (u, v, reader, maker)
        for reader, maker in ((b, a), (a, b))
        for u in reader.units
        for v in u.loads
        if v.attr.buffer in maker.maps
    ]


def join(a: Group, b: Group, shared: Iterable[str], buffers: Mapping[str, Buffer]) -> Group | str:
    """The two as one group, or why they cannot be. `shared` are buffers that both read, largest first."""
    if sum(len(u.values) for u in (*a.units, *b.units)) > MOST_VALUES:
        return "the kernel would be too large"
    if any(u.is_scatter for u in (*a.units, *b.units)) and any(u.folds for u in (*a.units, *b.units)):
        return "a scatter and a sum do not share a kernel"
    for reader, maker in ((a, b), (b, a)):
        if any(u.storage in maker.maps for u in reader.units):
            return "a scatter begins from what the other makes"
    solution = Solution()
    linked = False
    for unit, load, reader, maker in crossing(a, b):
        made = _produced(maker, load.attr.buffer)
        if made is None:
            return "it is written by a scatter"
        if load.attr.index and not solution.equate(
            made[1], access(load, reader.maps[unit.name]), made[0].definition.buffer.shape
        ):
            return f"{unit.node.operator} reads it at other positions than it is made"
        linked = True
    for name in shared:
        linked = _align_reads(a, b, name, buffers[name], solution) or linked
    if not linked:
        return "their spaces have nothing in common"
    if not (_separate(a, solution) and _separate(b, solution)):
        return "two axes would become one"
    _align_folds(a, b, solution)
    return _joined(a, b, solution)


def _align_reads(a: Group, b: Group, name: str, buffer: Buffer, solution: Solution) -> bool:
    """Tries to let both read a shared buffer at the same positions; leaves the solution alone if that fails."""
    left = [access(v, a.maps[u.name]) for u in a.units for v in u.loads if v.attr.buffer == name]
    right = [access(v, b.maps[u.name]) for u in b.units for v in u.loads if v.attr.buffer == name]
    for one in left[:2]:
        for other in right[:2]:
            before = dict(solution.images)
            fits = solution.equate(one, other, buffer.shape)
            if fits and _separate(a, solution) and _separate(b, solution):
                return True
            solution.images = before
    return False


def _align_folds(a: Group, b: Group, solution: Solution) -> None:
    """Lets an axis bound in one group run along an axis of equal size that only the other has."""
    for group, other in ((a, b), (b, a)):
        bound = {x for u in group.units for f in u.folds for x in mapped(f.bound, group.maps[u.name])}
        theirs = {x for i in other.atoms for x in solution.apply(as_index(i)).axes}
        mine = {x for i in group.atoms for x in solution.apply(as_index(i)).axes}
        for axis in sorted(bound, key=lambda x: x.name):
            image = plain(solution.apply(as_index(axis)))
            if image is None or image in theirs:
                continue
            match = next((t for t in sorted(theirs - mine, key=lambda x: x.name) if t.size is image.size), None)
            if match is not None:
                step = {image: as_index(match)}
                solution.images = {k: substitute_index(i, step) for k, i in solution.images.items()} | step
                mine.add(match)


def _joined(a: Group, b: Group, solution: Solution) -> Group:
    maps = {
        name: {axis: solution.apply(i) for axis, i in axis_map.items()}
        for group in (a, b)
        for name, axis_map in group.maps.items()
    }
    atoms = frozenset(x for i in a.atoms | b.atoms for x in solution.apply(as_index(i)).axes)
    units = sorted((*a.units, *b.units), key=lambda u: (u.position, u.is_scatter))
    return Group(units, maps, atoms, a.refused | b.refused)


def rows_of(group: Group, stored: Callable[[Unit], bool]) -> frozenset[Axis] | str | None:
    """The rows of the kernel, None when it needs none, or why it cannot be one kernel."""
    rows: set[frozenset[Axis]] = set()
    pending: dict[str, set[frozenset[Axis]]] = {}
    for unit in group.units:
        axis_map = group.maps[unit.name]
        space = mapped(unit.space, axis_map)
        mine: set[frozenset[Axis]] = set()
        for f in unit.folds:
            (rows if f.consumed else mine).add(mapped(f.kept, axis_map))
        for name in unit.reads:
            for kept in pending.get(name, ()):
                (mine if space <= kept else rows).add(kept)
        pending[unit.name] = mine
    spaces = {u.name: mapped(u.space, group.maps[u.name]) for u in group.units if stored(u)}
    for name, space in spaces.items():
        if space != group.atoms and space not in pending[name]:
            rows.add(space)  # it runs along part of the space: those are rows, or there is no one space
    if len(rows) > 1:
        return "two row statistics are kept along different axes"
    kept_rows = next(iter(rows)) if rows else None
    if kept_rows is None:
        return None
    for name, space in spaces.items():
        finished = space in pending[name] and space.isdisjoint(kept_rows)  # a column sum, finished after all rows
        if not (kept_rows <= space or finished):
            return "what it stores does not run along the rows"
        if any(kept != kept_rows and not kept.isdisjoint(kept_rows) for kept in pending[name]):
            return "a sum would be kept along part of the rows"
    return kept_rows
