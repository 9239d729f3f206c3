"""The common space of several units: which axis of one is which axis of another.

Each unit of a group has a map from its own axes to expressions over the group's atoms. Two groups are joined by
solving the equations that a shared buffer gives: both sides index it, so dimension by dimension the indices must be
equal. Only bijections are accepted - an axis for an axis, or an axis for the row-major position over several (a
reshape between them), or two positions of one form. What has no such solution is not fused.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from ridgeline.ir.index import Axis, Index, as_index, flatten
from ridgeline.ir.value import Value, substitute_index

AxisMap = Mapping[Axis, Index]
MOST_PAIRED = 4  # axes in one dimension's position that are tried against another's


def plain(index: Index) -> Axis | None:
    """The axis, when the index is just one axis."""
    if len(index.terms) == 1 and index.terms[0][0] == 1 and len(index.terms[0][1]) == 1:
        atom = index.terms[0][1][0]
        return atom if isinstance(atom, Axis) else None
    return None


def radix(index: Index) -> tuple[Axis, ...] | None:
    """The axes (a, b, c) when the index is their row-major position (a*|b| + b)*|c| + c."""
    axes: list[tuple[int, int, Axis]] = []
    for coefficient, factors in index.terms:
        own = [f for f in factors if isinstance(f, Axis)]
        if len(own) != 1 or coefficient < 1:
            return None
        axes.append((len(factors), coefficient, own[0]))
    axes.sort(key=lambda t: (t[0], t[1]), reverse=True)
    order = tuple(a for _, _, a in axes)
    return order if order and flatten(order, [a.size for a in order]) is index else None


def product(axes: Iterable[Axis]) -> Index:
    """How many points the axes have together."""
    out = as_index(1)
    for axis in axes:
        out = out * axis.size
    return out


class Solution:
    """Images of atoms found so far; every equation added keeps the earlier ones true."""

    def __init__(self) -> None:
        self.images: dict[Axis, Index] = {}

    def apply(self, index: Index) -> Index:
        return substitute_index(index, self.images) if self.images else index

    def equate(self, left: Sequence[Index], right: Sequence[Index], sizes: Sequence[Index]) -> bool:
        """Makes two positions in a buffer of the given sizes equal, dimension by dimension or run by run."""
        k = 0
        while k < len(sizes):
            for end in range(k + 1, len(sizes) + 1):
                run = slice(k, end)
                if self._bind(flatten(left[run], sizes[run]), flatten(right[run], sizes[run])):
                    k = end
                    break
            else:
                return False
        return True

    def _bind(self, left: Index, right: Index) -> bool:
        left, right = self.apply(left), self.apply(right)
        if left is right:
            return True
        for target, image in ((plain(left), right), (plain(right), left)):
            if target is None or target in image.axes:
                continue
            order = radix(image)
            if order is not None and product(order) is target.size:
                self._set(target, image)
                return True
        return self._bind_each(radix(left), radix(right)) or self._bind_same(left, right)

    def _bind_each(self, left: tuple[Axis, ...] | None, right: tuple[Axis, ...] | None) -> bool:
        """Two positions over axes of the same sizes are equal where each axis is."""
        if left is None or right is None or [a.size for a in left] != [a.size for a in right]:
            return False
        if not set(left).isdisjoint(right):
            return False
        for a, b in zip(left, right, strict=True):
            self._set(a, as_index(b))
        return True

    def _bind_same(self, left: Index, right: Index) -> bool:
        """Two positions of one form are equal where each axis is: a window's 2*i + r - 1 and another's."""
        ours, theirs = (sorted(i.axes, key=lambda a: a.name) for i in (left, right))
        if not 0 < len(ours) == len(theirs) <= MOST_PAIRED or not left.axes.isdisjoint(right.axes):
            return False
        for order in permutations(theirs):
            pairs = list(zip(ours, order, strict=True))
            if (
                all(a.size is b.size for a, b in pairs)
                and substitute_index(left, {a: as_index(b) for a, b in pairs}) is right
            ):
                for a, b in pairs:
                    self._set(a, as_index(b))
                return True
        return False

    def _set(self, target: Axis, image: Index) -> None:
        step = {target: image}
        self.images = {a: substitute_index(i, step) for a, i in self.images.items()} | step

    def injective(self, images: Iterable[Index]) -> bool:
        """Whether axes with these images still run over different atoms."""
        seen: set[Axis] = set()
        for image in images:
            axes = self.apply(image).axes
            if not seen.isdisjoint(axes):
                return False
            seen |= axes
        return True


def mapped(axes: Iterable[Axis], axis_map: AxisMap) -> frozenset[Axis]:
    """The atoms that the images of some axes run over."""
    out: set[Axis] = set()
    for axis in axes:
        image = axis_map.get(axis)
        if image is not None:
            out |= image.axes
    return frozenset(out)


def access(load: Value, axis_map: AxisMap) -> list[Index]:
    """A load's index over the atoms of its group."""
    return [substitute_index(i, axis_map) for i in load.attr.index]
