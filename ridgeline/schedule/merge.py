"""Adjacent axes become one where every offset stays affine: (n, h, w) over dense tensors is one flat loop."""

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.ir.index import Axis, Div, Index, Mod, as_index
from ridgeline.ir.value import Value, substitute, substitute_index
from ridgeline.schedule.tasks import Fold, Space, Task, Write, fold_name, nodes, result


def merge(space: Space) -> Space:
    """The space with as few axes as its offsets allow. Tries each ordered pair until none can be merged."""
    found = True
    while found:
        found = False
        for outer, inner in _pairs(space):
            merged = _merged(space, outer, inner)
            if merged is not None:
                space, found = merged, True
                break
    return space


def _pairs(space: Space) -> Iterator[tuple[Axis, Axis]]:
    """Pairs that every task has both or neither of, folded together or kept together."""
    for outer in space.axes:
        for inner in space.axes:
            if outer is not inner and all(_together(t, outer, inner) for t in space.tasks):
                yield outer, inner


def _together(task: Task, a: Axis, b: Axis) -> bool:
    if (a in task.domain) != (b in task.domain):
        return False
    return not isinstance(task, Fold) or (a in task.axes) == (b in task.axes)


def _merged(space: Space, outer: Axis, inner: Axis) -> Space | None:
    """The space with both axes as one, or None where a division by the inner size would stay."""
    flat = Axis(f"{outer.name}{inner.name}", outer.size * inner.size)
    images = {outer: as_index(flat) // inner.size, inner: as_index(flat) % inner.size}

    def index(i: Index) -> Index | None:
        out = substitute_index(i, images)
        return None if _divides(out, flat) else out

    # The cheap test first: no offset may keep a division.
    for task in space.tasks:
        for i in _indices(task):
            if (outer in i.axes or inner in i.axes) and index(i) is None:
                return None
    axes = tuple(flat if a is outer else a for a in space.axes if a is not inner)

    def join(names: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(flat if a is outer else a for a in names if a is not inner)

    def rename(v: Value) -> Value | None:
        name = fold_name(v)
        if name is None or not (outer in kept[name] or inner in kept[name]):
            return None
        part = v.attr.buffer.partition(".")[2]
        return result(name, int(part or 0), join(kept[name]), v.dtype)

    kept = {t.name: t.kept for t in space.tasks if isinstance(t, Fold)}

    def value(v: Value) -> Value:
        return substitute(v, images, rename)

    tasks: list[Task] = []
    for task in space.tasks:
        if isinstance(task, Fold):
            elements = tuple(value(e) for e in task.elements)
            tasks.append(replace(task, axes=join(task.axes), kept=join(task.kept), elements=elements))
        else:
            offset = substitute_index(task.offset, images, rename)
            tasks.append(replace(task, offset=offset, value=value(task.value)))
    return Space(axes, tuple(tasks), space.buffers)


def _indices(task: Task) -> Iterator[Index]:
    """Every index expression of a task but those that name results."""
    if isinstance(task, Write):
        yield task.offset
    for v in nodes(task.roots):
        if v.op == "load" and fold_name(v) is None:
            yield from v.attr.index
        elif v.op == "iota":
            yield v.attr


def _divides(index: Index, axis: Axis) -> bool:
    """Whether the axis occurs under a division or remainder."""
    return any(isinstance(a, Div | Mod) and (axis in a.num.axes or axis in a.den.axes) for a in index.atoms)
