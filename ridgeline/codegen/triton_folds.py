"""Folds: accumulators of one Triton kernel, as blocks that are stepped, joined and folded away.

A fold over one tile is one reduction. Over several, each position of the tile keeps a state of its own (a lane) until
the end, but for combiners that fold a whole tile more cheaply than lane by lane. Statements are `triton.py`'s.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ridgeline.base.errors import BuildFailed
from ridgeline.codegen import render
from ridgeline.codegen import triton_words as spell
from ridgeline.codegen.triton_blocks import NARROW, NONE, Blocks, Dims
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.index import Axis, Index, as_index, upper
from ridgeline.ir.program import Accumulator, Begin, Join, Loop, Statement, Step
from ridgeline.ir.types import I32, DType
from ridgeline.ir.value import Value

ROWWISE = ("maxsumexp",)  # combiners whose tile is folded at once each time, not lane by lane
JOINED_AT_ONCE = ("maxsumexp", "welford")  # combiners with a function of the prelude that folds a tile of states


@dataclass
class Held:
    """How one accumulator is held. `tiles`: the folded tiled axes open where it is stepped."""

    steps: int = 0
    looped: bool = False
    joins: bool = False
    narrow: bool = False  # positions fit 32 bits
    ragged: frozenset[Axis] = frozenset()  # of the tiles
    tiles: tuple[Axis, ...] = ()

    @property
    def once(self) -> bool:
        """One tile makes the whole state."""
        return self.steps == 1 and not self.looped


def even(size: Index, by: Index) -> bool:
    """Whether blocks cover a size exactly."""
    return size is by or (size.const is not None and by.const is not None and size.const % by.const == 0)


def is_ragged(loop: Loop) -> bool:
    """Whether some tile has positions that do not count."""
    return not (even(loop.axis.size, loop.extent) and even(loop.extent, as_index(loop.tile)))


@dataclass
class Folds(Blocks):
    """A kernel's accumulators."""

    held: dict[Accumulator, Held] = field(default_factory=dict)
    made: dict[Accumulator, list[str]] = field(default_factory=dict)  # states that one tile made
    combines: dict[str, Accumulator] = field(default_factory=dict)  # functions of two states that the module needs

    def survey(self, body: Iterable[Statement], loops: tuple[Loop, ...], begun: dict[Accumulator, int]) -> None:
        """How each accumulator is stepped, relative to the loops around its Begin."""
        for s in body:
            match s:
                case Loop():
                    self.survey(s.body, (*loops, s), begun)
                case Begin(acc):
                    if acc.memory:
                        raise BuildFailed("triton", f"accumulator {acc.name} is kept in memory")
                    begun[acc], self.held[acc] = len(loops), Held()
                case Step(acc, _) | Join(acc, _):
                    held = self.held[acc]
                    held.steps += 1
                    held.joins |= isinstance(s, Join)
                    held.narrow = (
                        isinstance(s, Step) and COMBINERS[acc.combiner].ordered and self.counts_up(s.elements[1])
                    )
                    held.looped |= any(not loop.once for loop in loops[begun[acc] :])
                    tiled = {loop.axis: loop for loop in loops if loop.tile > 1}
                    held.tiles = tuple(a for a in self.order if a in tiled and a in acc.axes)
                    held.ragged = frozenset(a for a in held.tiles if is_ragged(tiled[a]))

    def counts_up(self, position: Value) -> bool:
        """Whether a value is a position that fits 32 bits."""
        most = upper(position.attr).const if position.op == "iota" else None
        return most is not None and most < NARROW and self.is_narrow(position.attr)

    def types(self, acc: Accumulator) -> tuple[DType, ...]:
        """The types that the states have here."""
        return (acc.states[0], I32) if self.held[acc].narrow else acc.states

    def states(self, acc: Accumulator) -> list[str]:
        return self.made.get(acc) or [f"{acc.name}{'abcdef'[k]}" for k in range(len(acc.states))]

    def lanes(self, acc: Accumulator) -> tuple[Axis, ...]:
        """The folded axes along which each position has a state of its own until they are joined."""
        held = self.held[acc]
        return () if held.once or acc.combiner in ROWWISE else held.tiles

    def begin(self, acc: Accumulator) -> None:
        if self.held[acc].once:
            return
        kept = self.dims(acc.kept)
        states = zip(self.states(acc), self.types(acc), self.identity(acc), strict=True)
        for k, (name, dtype, number) in enumerate(states):
            shape = self.shape(self.held[acc].ragged if self.counts_alone(acc) and not k else kept | {*self.lanes(acc)})
            self.put(f"{name} = tl.full({shape}, {spell.literal(number, dtype)}, {spell.type_name(dtype)})")

    def counts_alone(self, acc: Accumulator) -> bool:
        """Whether the first component is a count of steps, the same wherever no position is left out."""
        return acc.combiner == "welford" and bool(self.lanes(acc)) and not self.held[acc].joins

    def identity(self, acc: Accumulator) -> list[bool | int | float]:
        exprs = zip(COMBINERS[acc.combiner].identity, self.types(acc), strict=True)
        numbers = [render.extreme(t, e == "lowest") if isinstance(e, str) else e for e, t in exprs]
        return [numbers[0], render.extreme(I32, False)] if self.held[acc].narrow else numbers

    def step_elements(self, s: Step) -> None:
        """Elements as states, folded in the way that is cheapest for the combiner."""
        acc, over = s.accumulator, self.held[s.accumulator].tiles
        elements = [(self.value(e, True), self.dims(e.axes)) for e in s.elements]
        want = self.dims(acc.kept) | frozenset(over)
        if self.held[acc].narrow:
            elements[1] = (self.index(s.elements[1].attr), elements[1][1])
        if self.counts_alone(acc):
            self.step_moments(acc, elements[0], over)
        elif acc.combiner == "welford" and over and (len(over) == 1 or want == frozenset(over)):
            self.take(acc, self.moments(acc, elements[0], over))
        elif acc.combiner == "maxsumexp" and over:
            top = self.counted(elements[0], over, spell.number(float("-inf"), acc.states[0]), want)
            self.take(acc, self.fold_tile(acc, [top, "1.0"], over))
        else:
            parts = COMBINERS[acc.combiner].lift
            lifted = [
                elements[int(x[1:])] if isinstance(x, str) else (spell.typed(x, t), NONE)
                for x, t in zip(parts, acc.states, strict=True)
            ]
            self.step(acc, lifted)

    def step(self, acc: Accumulator, other: Sequence[tuple[str, Dims]]) -> None:
        """Takes a tile of states."""
        over = self.held[acc].tiles
        want = self.dims(acc.kept) | frozenset(over)
        starts = [spell.number(n, t) for n, t in zip(self.identity(acc), self.types(acc), strict=True)]
        states = [self.counted(o, over, start, want) for o, start in zip(other, starts, strict=True)]
        self.take(acc, states if self.lanes(acc) else self.fold_tile(acc, states, over))

    def take(self, acc: Accumulator, states: Sequence[str]) -> None:
        """Joins states to the accumulator's."""
        if self.held[acc].once:
            self.made[acc] = list(states)
            return
        names = self.states(acc)
        new = render.combine(self, acc, names, states)
        for name, text in zip(names, new, strict=True):
            self.put(f"{name} = {text}")

    def counted(self, given: tuple[str, Dims], over: Iterable[Axis], start: str, want: Dims) -> str:
        """A value over the whole tile, the identity where positions do not count."""
        text, have = given
        mask = self.mask(over)
        if mask:
            text = self.fresh(f"tl.where({mask}, {text}, {start})")[0]
            have = have | {a for a in over if a in self.masks}
        return self.spread(text, have, want)

    def step_moments(self, acc: Accumulator, given: tuple[str, Dims], over: tuple[Axis, ...]) -> None:
        """Welford's step of each lane. All share the count, and with it the division, but for those left out."""
        count, mean, m2 = self.states(acc)
        x, inside = self.spread(*given, self.dims(acc.kept) | frozenset(over)), self.mask(over)
        one = self.fresh(f"tl.where({inside}, 1.0, 0.0)")[0] if inside else "1.0"
        self.put(f"{count} = {count} + {one}")
        share = self.fresh(f"{one} / tl.maximum({count}, 1.0)" if inside else f"1.0 / {count}")[0]
        away = self.fresh(f"tl.where({inside}, {x} - {mean}, 0.0)" if inside else f"{x} - {mean}")[0]
        self.put(f"{mean} = {mean} + {away} * {share}")
        square = f"{away} * ({x} - {mean})"
        self.put(f"{m2} = {m2} + {f'tl.where({inside}, {square}, 0.0)' if inside else square}")

    def moments(self, acc: Accumulator, given: tuple[str, Dims], over: tuple[Axis, ...]) -> list[str]:
        """Welford's state of a tile of elements: its mean, then the squares of what is away from it."""
        t, want = spell.type_name(acc.states[0]), self.dims(acc.kept) | frozenset(over)
        x = self.spread(*given, want)
        count = self.fresh(f"tl.cast({' * '.join(self.counts[a] for a in over)}, {t})")[0]
        inside = self.mask(over) or "True"
        if len(over) > 1:
            inside = inside if inside == "True" else f"tl.broadcast_to({inside}, {self.shape(want)})"
            x, inside = self.flat(x, over), inside if inside == "True" else self.flat(inside, over)
        dim, keep = self.dimension(over[0], want - set(over))
        mean, m2 = self.fresh(f"tile_moments({x}, {inside}, {count}, {dim}, {keep})", 2)
        return [count, mean, m2]

    def flat(self, text: str, over: Iterable[Axis]) -> str:
        """A block over just these axes as one dimension."""
        size = 1
        for axis in over:
            size *= self.tiles[axis]
        return text if len(self.order) == 1 else f"tl.reshape({text}, [{size}])"

    def dimension(self, axis: Axis, left: Dims) -> tuple[int, bool]:
        """Which dimension an axis is, and whether it stays with length 1; the last one of all leaves a scalar."""
        return (self.order.index(axis), True) if left else (0, False)

    def fold_tile(self, acc: Accumulator, states: Sequence[str], over: tuple[Axis, ...]) -> list[str]:
        """States with the tiled axes `over` folded away: all at once if nothing is left, else one after the other."""
        texts, left = list(states), self.dims(acc.kept)
        if not left and over:
            texts = [t if t == "1.0" else self.flat(t, over) for t in texts]
            return self.fold_dim(acc, texts, 0, False)
        for axis in reversed(over):
            texts = self.fold_dim(acc, texts, self.order.index(axis), True)
        return texts

    def fold_dim(self, acc: Accumulator, states: list[str], dim: int, keep: bool) -> list[str]:
        tail = ", keep_dims=True" if keep else ""
        if acc.combiner == "sum":
            return self.fresh(spell.sum_of(states[0], dim, keep, acc.states[0]))
        if acc.combiner in spell.SIMPLE_FOLDS:
            return self.fresh(f"tl.reduce({states[0]}, {dim}, {spell.SIMPLE_FOLDS[acc.combiner]}{tail})")
        if acc.combiner in JOINED_AT_ONCE:
            return self.fresh(f"tile_{acc.combiner}({', '.join(states)}, {dim}, {keep})", len(states))
        self.combines[f"c_{acc.combiner}"] = acc
        return self.fresh(f"tl.reduce(({', '.join(states)}), {dim}, c_{acc.combiner}{tail})", len(states))

    def joined(self, acc: Accumulator) -> list[str]:
        """The states with lanes joined."""
        lanes, states = self.lanes(acc), self.states(acc)
        if self.counts_alone(acc):
            whole = self.dims(acc.kept) | frozenset(lanes)
            states = [self.fresh(self.spread(states[0], self.held[acc].ragged, whole))[0], *states[1:]]
        return self.fold_tile(acc, states, lanes) if lanes else states
