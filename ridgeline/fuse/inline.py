"""Recompute moves that pay before any merging: a cheap tensor is made again by each of its readers.

Taken when its readers then move fewer bytes than storing it once and reading it back: a producer that broadcasts, one
that is read in parts (cat, pad, slices), one that several regions read. Priced with the arithmetic it repeats. One with
row statistics (a log-softmax of which a loss reads one element a row) must not be much more arithmetic than before.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from ridgeline.base.records import MoveAccount
from ridgeline.cost.count import Hints
from ridgeline.fuse.price import Price
from ridgeline.fuse.regions import overwritten_inputs
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
from ridgeline.ir.kernel import Buffer

# A body of more values than this is stored rather than repeated.
MOST_REPEATED = 24
MOST_MOVED = 100  # where it has one reader, it is not repeated but only moved
MOST_READERS = 16
# Of the arithmetic of a tensor with row statistics, what making it again may cost beyond making it once.
MOST_AGAIN = 0.5


def inline_cheap(
    units: Units, need: Mapping[str, str], depth: Mapping[str, int], hints: Hints, price: Price
) -> tuple[Units, list[MoveAccount]]:
    """The units after recompute moves, and the moves."""
    work = _Inlining(dict(units.units), units.buffers, need, depth, hints, price, overwritten_inputs(units))
    for name in reversed(list(work.kept)):  # readers first: what they make again, they read of its inputs
        work.consider(work.kept[name])
    return replace(units, units=work.kept), work.moves


@dataclass
class _Inlining:
    kept: dict[str, Unit]
    buffers: Mapping[str, Buffer]
    need: Mapping[str, str]
    depth: Mapping[str, int]
    hints: Hints
    price: Price
    overwritten: frozenset[str]
    moves: list[MoveAccount] = field(default_factory=list)
    readers: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for unit in self.kept.values():
            for name in unit.reads:
                self.readers.setdefault(name, set()).add(unit.name)

    def users(self, name: str) -> list[Unit]:
        return [self.kept[r] for r in sorted(self.readers.get(name, ())) if r in self.kept]

    def home(self, name: str) -> int | None:
        return self.depth.get(name)

    def consider(self, unit: Unit) -> None:
        """Lets the readers that no ordinary merge reaches make a tensor again, if that pays."""
        users = self.users(unit.name)
        far = [r for r in users if not (_aligned(r, unit) and self.home(r.name) == self.home(unit.name))]
        if unit.name in self.need or not far or not _repeatable(unit, far):
            return
        gone = len(far) == len(users)
        most = MOST_MOVED if gone and len(far) == 1 else MOST_REPEATED
        whole = self.expanded(unit, most)
        if len(whole.values) > most or not self.overwritten.isdisjoint(whole.reads):
            return
        changed = [_with_inlined(r, whole) for r in far]
        saved, seconds = self.gain(whole, far, changed, gone)
        if saved <= 0 or seconds <= 0:
            return
        for r in changed:
            self.kept[r.name] = r
            for source in r.reads:
                self.readers.setdefault(source, set()).add(r.name)
            self.readers[unit.name].discard(r.name)
        if gone:
            del self.kept[unit.name]
        self.moves.append(
            MoveAccount(
                *("recompute", True, unit.node.operator, unit.node.line, float(saved), seconds),
                f"{len(far)} readers make {unit.name} again from {', '.join(whole.reads) or 'nothing'}",
            )
        )

    def expanded(self, unit: Unit, most: int) -> Unit:
        """The unit with what feeds it made again too, down to what lies in memory anyway."""
        while len(unit.values) <= most:
            feeders = (self.kept.get(name) for name in unit.reads)
            inner = next((f for f in feeders if f is not None and self.passing(f, unit)), None)
            if inner is None:
                return unit
            unit = _with_inlined(unit, inner)
        return unit

    def passing(self, feeder: Unit, unit: Unit) -> bool:
        """Whether a merge at home would keep a feeder out of memory."""
        at_home = all(self.home(r.name) == self.home(feeder.name) for r in self.users(feeder.name))
        return feeder.name not in self.need and at_home and _repeatable(feeder, [unit])

    def gain(self, whole: Unit, before: list[Unit], after: list[Unit], gone: bool) -> tuple[int, float]:
        """Bytes and seconds saved: the store, what each reader reads, and what only a unit now gone has read.

        What another unit at home reads or makes too counts for nothing: a merge will share it.
        """
        saved = unit_write(whole, self.hints)
        inside = {whole.name, *(u.name for u in before)}
        for old, new in zip(before, after, strict=True):
            reads = unit_reads(new, self.buffers, self.hints)
            own = (n for name, n in reads.items() if name in old.reads or not self.shared(name, new, inside))
            saved += sum(unit_reads(old, self.buffers, self.hints).values()) - sum(own)
        if gone:
            mine = unit_reads(whole, self.buffers, self.hints)
            saved += sum(count for name, count in mine.items() if not self.shared(name, whole, inside))
        busy = operations = 0.0
        for sign, changed in ((1, [*([whole] if gone else []), *before]), (-1, after)):
            for u in changed:
                flops, special, _ = unit_arithmetic(u, self.hints)
                operations += sign * (sum(flops.values()) + special)
                busy += sign * self.price.arithmetic(flops, special)
        if whole.folds and -operations > MOST_AGAIN * sum(unit_arithmetic(whole, self.hints)[0].values()):
            return 0, 0.0
        return saved, saved * self.price.byte_s + busy

    def shared(self, name: str, unit: Unit, inside: Container[str]) -> bool:
        """Whether a unit at home, but none of these, makes or reads a buffer, so that a merge saves the unit's read."""
        home = self.home(unit.name)
        near = (u for u in self.users(name) if self.home(u.name) == home)
        return (name in self.kept and self.home(name) == home) or any(u.name not in inside for u in near)


def _repeatable(unit: Unit, readers: list[Unit]) -> bool:
    return (
        not unit.is_scatter
        and unit.storage is None
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
