"""Recompute moves that pay before any merging: a cheap tensor is made again by each of its readers.

Taken when its readers then move fewer bytes than storing it once and reading it back: a producer that broadcasts, one
that is read in parts (cat, pad, slices), one that several regions read. Priced with the arithmetic it repeats. One with
row statistics (a log-softmax of which a loss reads one element a row) must not be much more arithmetic than before.
"""

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.base.records import MoveAccount
from ridgeline.cost.count import Hints
from ridgeline.fuse.price import Price
from ridgeline.fuse.space import plain
from ridgeline.fuse.unit import (
    Unit,
    Units,
    read_index_through,
    read_through,
    unit_arithmetic,
    unit_reads,
    unit_write,
)

# An elementwise body longer than this is stored rather than repeated.
MOST_REPEATED = 24
MOST_READERS = 16
# Of the arithmetic of a tensor with row statistics, what making it again may cost beyond making it once.
MOST_AGAIN = 0.5


def inline_cheap(
    units: Units, need: Mapping[str, str], depth: Mapping[str, int], hints: Hints, price: Price
) -> tuple[Units, list[MoveAccount]]:
    """The units after recompute moves, and the moves."""
    kept = dict(units.units)
    moves: list[MoveAccount] = []
    readers: dict[str, list[str]] = {}
    for unit in kept.values():
        for name in unit.reads:
            readers.setdefault(name, []).append(unit.name)
    for name in reversed(list(kept)):  # readers first: what they make again, they read of its inputs
        unit = kept[name]
        mine = [kept[r] for r in readers.get(name, ()) if r in kept]
        if name in need or not mine or not _repeatable(unit, mine):
            continue
        if all(_aligned(r, unit) and depth.get(r.name) == depth.get(name) for r in mine):
            continue  # ordinary merges
        changed = [_with_inlined(r, unit) for r in mine]
        saved, seconds = _gain(unit, mine, changed, units, hints, price)
        if saved <= 0 or seconds <= 0:
            continue
        for r in changed:
            kept[r.name] = r
            for source in unit.reads:
                readers.setdefault(source, []).append(r.name)
        del kept[name]
        moves.append(
            MoveAccount(
                *("recompute", True, unit.node.operator, unit.node.line, float(saved), seconds),
                f"{len(mine)} readers make {name} again from {', '.join(unit.reads) or 'nothing'}",
            )
        )
    return replace(units, units=kept), moves


def _repeatable(unit: Unit, readers: list[Unit]) -> bool:
    return (
        not unit.is_scatter
        and unit.storage is None
        and len(unit.values) <= MOST_REPEATED
        and len(readers) <= MOST_READERS
        and not any(r.storage is not None and (r.storage == unit.name or r.storage in unit.reads) for r in readers)
    )


def _aligned(reader: Unit, unit: Unit) -> bool:
    """Whether every load of it goes along whole axes."""
    shape = unit.definition.buffer.shape
    positions = [v.attr.index for v in reader.loads if v.attr.buffer == unit.name]
    return all(
        size.const == 1 or ((axis := plain(i)) is not None and axis.size is size)
        for index in positions
        for i, size in zip(index, shape, strict=True)
    )


def _with_inlined(reader: Unit, unit: Unit) -> Unit:
    source = {unit.name: unit.definition}
    d = reader.definition
    changed = replace(
        d, value=read_through(d.value, source), index=tuple(read_index_through(i, source) for i in d.index)
    )
    again = (*unit.again, unit.node, *reader.again)
    return Unit(reader.name, reader.node, changed, reader.position, reader.storage, again)


def _gain(
    unit: Unit, before: list[Unit], after: list[Unit], units: Units, hints: Hints, price: Price
) -> tuple[int, float]:
    """Bytes and seconds saved, as if each reader were a kernel of its own and the unit one too."""
    saved = unit_write(unit, hints)
    busy = operations = 0.0
    for sign, changed in ((1, [unit, *before]), (-1, after)):
        for u in changed:
            saved += sign * sum(unit_reads(u, units.buffers, hints).values())
            flops, special, _ = unit_arithmetic(u, hints)
            operations += sign * (sum(flops.values()) + special)
            busy += sign * price.arithmetic(flops, special)
    if unit.folds and -operations > MOST_AGAIN * sum(unit_arithmetic(unit, hints)[0].values()):
        return 0, 0.0
    return saved, saved * price.byte_s + busy
