"""Equal regions are walked once: a region's form, and the result of a walk carried over to another of the same form.

The form names tensors by where they stand (the third unit of the region, the second tensor from outside) and axes by
their place in a definition; two regions of one form differ in names alone, so the same merges are legal and cost the
same. Forms are compared whole, not by a hash, so no two can be mistaken for each other.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.base.records import MoveAccount
from ridgeline.fuse.group import Group
from ridgeline.fuse.unit import Unit
from ridgeline.ir.index import Axis, Div, Index, Mod, Read
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.value import Value

Form = tuple[Any, ...]


@dataclass(frozen=True)
class _Group:
    """A group by places: its units, and for each the images of its own axes by place and of bound axes by name."""

    units: tuple[int, ...]
    own: tuple[tuple[Index | None, ...], ...]
    bound: tuple[Mapping[Axis, Index], ...]
    atoms: frozenset[Axis]
    refused: Mapping[int, str]


@dataclass(frozen=True)
class Result:
    """What a walk of a region gave: groups, and moves with the place of the unit each is told of."""

    groups: tuple[_Group, ...]
    moves: tuple[MoveAccount, ...]


class Forms:
    """Builds forms of regions of one graph. Equal values get equal numbers, so a form stays small."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self.buffers = buffers
        self.numbers: dict[tuple[Any, ...], int] = {}

    def of(self, units: Sequence[Unit], outside: Iterable[bool]) -> tuple[Form, tuple[str, ...]]:
        """The form of some units, and the names its places stand for.

        `outside` says for each unit whether its tensor must be stored in any case.
        """
        names: dict[str, Any] = {u.name: k for k, u in enumerate(units)}
        form = tuple(self._unit(u, kept, names) for u, kept in zip(units, outside, strict=True))
        return form, tuple(names)

    def _unit(self, unit: Unit, kept: bool, names: dict[str, Any]) -> Form:
        d = unit.definition
        axes = {a: k for k, a in enumerate(d.axes)}
        done: dict[Value, int] = {}
        for v in unit.values:
            done[v] = self._number(self._value(v, axes, done, names))
        index = tuple(self._index(i, axes, done) for i in d.index)
        storage = None if unit.storage is None else self._buffer(unit.storage, names)
        shape = (d.buffer.dtype.name, d.buffer.shape, d.buffer.strides)
        return (unit.node.operator, done[d.value], index, d.mode, storage, shape, tuple(a.size for a in d.axes), kept)

    def _number(self, key: tuple[Any, ...]) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _buffer(self, name: str, names: dict[str, Any]) -> Any:
        if name not in names:
            b = self.buffers[name]
            names[name] = (len(names), b.dtype.name, b.shape, b.strides)
        return names[name]

    def _value(
        self, v: Value, axes: Mapping[Axis, int], done: Mapping[Value, int], names: dict[str, Any]
    ) -> tuple[Any, ...]:
        args = tuple(done[a] for a in v.args)
        if v.op == "load":
            index = tuple(self._index(i, axes, done) for i in v.attr.index)
            return ("load", args, self._buffer(v.attr.buffer, names), index)
        if v.op == "iota":
            return ("iota", self._index(v.attr, axes, done))
        return (v.op, args, repr(v.attr) if v.op == "const" else v.attr, v.dtype.name)

    def _index(self, index: Index, axes: Mapping[Axis, int], done: Mapping[Value, int]) -> Any:
        if not index.axes and not index.has_reads:
            return index
        return tuple((c, tuple(self._atom(a, axes, done) for a in f)) for c, f in index.terms)

    def _atom(self, atom: Any, axes: Mapping[Axis, int], done: Mapping[Value, int]) -> Any:
        match atom:
            case Axis():
                return axes.get(atom, atom)  # a bound axis is named by its depth alone
            case Div() | Mod():
                kind = "/" if isinstance(atom, Div) else "%"
                return (kind, self._index(atom.num, axes, done), self._index(atom.den, axes, done))
            case Read():
                return ("read", done[atom.value], atom.size)
        return atom


def group_form(forms: Forms, group: Group, stored: Container[str]) -> tuple[Form, tuple[str, ...]]:
    """The form of a group with its maps: two of one form are one kernel. And the names its places stand for."""
    form, names = forms.of(group.units, [u.name in stored for u in group.units])
    own = tuple(tuple(group.maps[u.name].get(a) for a in u.definition.axes) for u in group.units)
    return (form, own), names


def keep(units: Sequence[Unit], groups: Sequence[Group], moves: Sequence[MoveAccount]) -> Result:
    """A walk's result by places."""
    place = {u.name: k for k, u in enumerate(units)}
    kept = []
    for g in groups:
        own = tuple(tuple(g.maps[u.name].get(a) for a in u.definition.axes) for u in g.units)
        bound = tuple({a: i for a, i in g.maps[u.name].items() if a not in u.definition.axes} for u in g.units)
        refused = {place[n]: why for n, why in g.refused.items() if n in place}
        kept.append(_Group(tuple(place[u.name] for u in g.units), own, bound, g.atoms, refused))
    return Result(tuple(kept), tuple(moves))


def recall(result: Result, units: Sequence[Unit]) -> tuple[list[Group], list[MoveAccount]]:
    """The result for another region of the same form."""
    groups = []
    for g in result.groups:
        mine = [units[k] for k in g.units]
        maps = {
            u.name: {a: i for a, i in zip(u.definition.axes, own, strict=True) if i is not None} | dict(bound)
            for u, own, bound in zip(mine, g.own, g.bound, strict=True)
        }
        groups.append(Group(mine, maps, g.atoms, {units[k].name: why for k, why in g.refused.items()}))
    line = next((u.node.line for u in reversed(units) if u.node.line), None)
    return groups, [replace(m, line=line) for m in result.moves]
