"""What schedule decides, kernel by kernel: golden programs and their C, and the rules behind them."""

from collections.abc import Callable, Iterator

import pytest

from ridgeline.base.records import Machine
from ridgeline.codegen import c
from ridgeline.ir.index import Axis, Read, Sym, as_index
from ridgeline.ir.kernel import Kernel, Mode
from ridgeline.ir.program import Accumulator, Begin, Compute, Loop, Prefetch, Program, Put, Statement, statements
from ridgeline.ir.show import show
from ridgeline.ir.types import F32, I64
from ridgeline.ir.value import iota, load, word
from ridgeline.schedule import candidates, schedule
from ridgeline.schedule.merge import merge
from ridgeline.schedule.rank import cycles
from ridgeline.schedule.space import space
from ridgeline.schedule.strides import may_collide, separates
from ridgeline.schedule.tasks import Fold, Write
from tests import kernels as k

MACHINE = Machine("vector", 16, 16, 2, (48 << 10, 2 << 20, 32 << 20))

# One idea a file.
GOLDEN: dict[str, Kernel] = {
    "exp": k.pointwise(100, 11),  # a ragged end
    "add_layer_norm": k.add_layer_norm(512, 128),
    "softmax": k.softmax(512, 128),
    "bias_gradient": k.column_sum(512, 128),
    "whole_sum": k.whole_fold(512, 512),
    "transpose_add": k.transpose_add(512, 256),
    "gather_rows": k.gather_rows(512, 128),
    "scatter_add_rows": k.scatter_add_rows(512, 128),
    "cat": k.cat(512, 64),
    "max_pool": k.max_pool(512, 64),
    "layer_norm_backward": k.layer_norm_backward(512, 128),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    kernel = k.renamed(GOLDEN[name], name)
    program = schedule(kernel, MACHINE)
    source = c.emit([program])
    function = source[source.index(f"int k_{name}") :]
    golden(f"kernel_{name}.txt", "\n".join((show(kernel), show(program), function)))


# ---- helpers


def every(program: Program) -> Iterator[Statement]:
    for phase in program.phases:
        yield from statements(phase.body)


def lane_loops(program: Program) -> list[Loop]:
    return [s for s in every(program) if isinstance(s, Loop) and s.tile > 1]


def accumulators(program: Program) -> dict[str, Accumulator]:
    return {s.accumulator.name: s.accumulator for s in every(program) if isinstance(s, Begin)}


def loads_in(loop: Loop, buffer: str) -> int:
    """Statements directly in a loop that load a buffer."""
    return sum(isinstance(s, Compute) and s.value.op == "load" and s.value.attr.buffer == buffer for s in loop.body)


# ---- axes


def test_dense_axes_merge_into_one() -> None:
    i, j, h = k.axis("i", 8), k.axis("j", 9), k.axis("h", 10)
    buffers = (k.buffer("x", (8, 9, 10)), k.buffer("y", (8, 9, 10)))
    kernel = Kernel("copy3", (i, j, h), (k.store("y", (i, j, h), load("x", (i, j, h), F32)),), buffers)
    (axis,) = merge(space(kernel)).axes
    assert axis.size.const == 720


def test_padded_rows_do_not_merge() -> None:
    i, j = k.axis("i", 8), k.axis("j", 9)
    buffers = (k.buffer("x", (8, 9), pad=7), k.buffer("y", (8, 9)))
    kernel = Kernel("unpad", (i, j), (k.store("y", (i, j), load("x", (i, j), F32)),), buffers)
    assert len(merge(space(kernel)).axes) == 2


def test_batch_norm_merges_what_it_folds() -> None:
    """Channels last: images and positions are one axis; channels first: they are not neighbours and stay two."""
    assert len(merge(space(k.batch_norm(4, 5, 6, last=True))).axes) == 2
    assert len(merge(space(k.batch_norm(4, 5, 6))).axes) == 3


def test_a_fold_runs_along_the_axis_of_the_space() -> None:
    """Both passes of softmax load the same value."""
    tasks = space(k.softmax(6, 7)).tasks
    (fold,) = [t for t in tasks if isinstance(t, Fold)]
    (write,) = [t for t in tasks if isinstance(t, Write)]
    assert fold.axes[0].name == "j" and fold.kept[0].name == "i"
    assert fold.elements[0] in write.value.args[0].args[0].args


def test_square_folds_align_by_what_they_load() -> None:
    """Rows and columns have one size: the fold over rows must not run along columns."""
    tasks = space(k.layer_norm_backward(9, 9)).tasks
    over = {t.name: (t.axes[0].name, t.kept[0].name) for t in tasks if isinstance(t, Fold)}
    assert sorted(over.values()) == [("i", "j"), ("i", "j"), ("j", "i"), ("j", "i")]


def test_a_fold_over_flat_rows_runs_along_two_axes() -> None:
    """A bias gradient over 200 flat rows beside stores over (10, 20): r is 20 * i + j, and both load x at one place."""
    i, j, c, r = k.axis("i", 10), k.axis("j", 20), k.axis("c", 5), k.axis("r", 200)
    x = load("x", (i, j, c), F32)
    flat = load("x", (as_index(r) // 20, as_index(r) % 20, c), F32)
    stores = (k.store("y", (i, j, c), x + 1.0), k.store("g", (c,), k.fold("sum", (r,), flat)))
    buffers = (k.buffer("x", (10, 20, 5)), k.buffer("y", (10, 20, 5)), k.buffer("g", (5,)))
    (fold,) = [t for t in space(Kernel("two", (i, j, c), stores, buffers)).tasks if isinstance(t, Fold)]
    assert [a.name for a in fold.axes] == ["i", "j"]


def test_a_fold_over_two_axes_runs_along_their_flat_one() -> None:
    i, c, r, s = k.axis("i", 200), k.axis("c", 5), k.axis("r", 10), k.axis("s", 20)
    x = load("x", (as_index(i) // 20, as_index(i) % 20, c), F32)
    stores = (k.store("y", (i, c), x), k.store("g", (c,), k.fold("sum", (r, s), load("x", (r, s, c), F32))))
    buffers = (k.buffer("x", (10, 20, 5)), k.buffer("y", (200, 5)), k.buffer("g", (5,)))
    (fold,) = [t for t in space(Kernel("two", (i, c), stores, buffers)).tasks if isinstance(t, Fold)]
    assert [a.name for a in fold.axes] == ["i"]


def test_windows_are_spelled_out() -> None:
    assert not any(isinstance(t, Fold) for t in space(k.max_pool(5, 6)).tasks)
    assert any(isinstance(t, Fold) for t in space(k.row_fold(5, 100)).tasks)


# ---- passes


def test_softmax_is_three_passes_with_one_exponential() -> None:
    program = schedule(k.softmax(4000, 1000), MACHINE)
    assert len(program.phases) == 1
    assert len(lane_loops(program)) == 3
    assert sum(isinstance(s, Compute) and s.value.op == "exp" for s in every(program)) == 1
    (row,) = program.scratch
    assert row.per_worker and row.buffer.numel.const == 1000


def test_column_folds_share_the_rows_loop() -> None:
    """Layer norm backward takes x and dy from memory once: column accumulators step in the first pass over a row."""
    program = schedule(k.layer_norm_backward(4000, 1000), MACHINE)
    assert len(program.phases) == 2
    kinds = accumulators(program)
    assert kinds["f2"].memory == () or kinds["f2"].kept[0].name == "j"
    rows = [s for s in every(program) if isinstance(s, Loop) and s.axis.name == "i"]
    assert len(rows) == 1
    passes = [s for s in rows[0].body if isinstance(s, Loop)]
    assert [loads_in(p, "x") for p in passes] == [1, 1]


def test_a_fold_over_everything_is_split_and_finished() -> None:
    program = schedule(k.whole_fold(3000, 1000), MACHINE)
    first, last = program.phases
    assert first.grid and not last.grid
    assert not accumulators(program)["f0"].memory


def test_a_value_needed_everywhere_takes_three_phases() -> None:
    assert len(schedule(k.normalise_by_all(3000, 1000), MACHINE).phases) == 3


def test_long_reductions_have_several_accumulators() -> None:
    unrolled = [
        s.unroll for s in every(schedule(k.row_fold(3000, 1000), MACHINE)) if isinstance(s, Loop) and s.unroll > 1
    ]
    assert unrolled == [4]


def test_rows_of_few_elements_lie_in_registers() -> None:
    program = schedule(k.softmax(100_000, 10), MACHINE)
    (loop,) = lane_loops(program)
    assert loop.axis.name == "i"
    assert sum(isinstance(s, Compute) and s.value.op == "load" for s in loop.body) == 10
    assert not program.scratch


def test_the_next_row_is_fetched_only_of_large_buffers() -> None:
    def hints(program: Program) -> int:
        return sum(isinstance(s, Prefetch) for s in every(program))

    assert hints(schedule(k.softmax(8000, 1000), MACHINE)) == 1
    assert hints(schedule(k.softmax(100, 1000), MACHINE)) == 0


# ---- memory


def test_stores_pass_by_caches_that_they_outgrow() -> None:
    def streams(program: Program) -> set[bool]:
        return {s.streaming for s in every(program) if isinstance(s, Put)}

    assert streams(schedule(k.copy(16 << 20), MACHINE)) == {True}  # 64 MB through 32 MB
    assert streams(schedule(k.copy(4 << 20), MACHINE)) == {False}
    assert streams(schedule(k.bias_relu(16 << 10, 1001), MACHINE)) == {False}  # rows begin anywhere in a line


def test_transposes_are_blocked() -> None:
    (phase,) = schedule(k.transpose_add(4000, 3000), MACHINE).phases
    assert len(phase.grid) == 2
    loops = [s for s in statements(phase.body) if isinstance(s, Loop)]
    assert all(s.extent.const is not None and s.extent.const <= 128 for s in loops)


def test_small_work_stays_serial() -> None:
    assert schedule(k.bias_relu(10, 20), MACHINE).phases[0].grid == ()


# ---- order of writes


def test_what_separates_two_writes() -> None:
    i, j = Axis("i", as_index(50)), Axis("j", as_index(64))
    row = as_index(Read(load("t", (i,), I64), as_index(9)))
    assert separates(row * 64 + j, j) and not separates(row * 64 + j, i)
    assert not separates(row * 63 + j, j)  # rows overlap
    assert separates(as_index(i) * 64 + j, i)
    m = Axis("m", as_index(Sym("m")))
    assert separates(row * Sym("m") + m, m)


def test_colliding_axes_are_never_parallel() -> None:
    for kernel in (
        k.scatter_add_rows(5000, 300),
        k.scatter_add_rows(100_000, 4),
        k.scatter_add_rows(Sym("n"), Sym("m")),
    ):
        (task,) = space(kernel).tasks
        colliding = {a.name for a in kernel.axes if may_collide(task, a)}
        assert colliding == {"i"}
        for program in candidates(kernel, MACHINE, every=True):
            grids = {a.name.removesuffix("_b") for p in program.phases for a in p.grid}
            assert not colliding & grids


def test_overwriting_by_index_keeps_its_order() -> None:
    """The last write wins, as in a sequential loop: also a plain store at an index that is read."""
    i = k.axis("i", 100_000)
    at = Read(load("t", (i,), I64), as_index(50))
    kernel = Kernel(
        "put",
        (i,),
        (k.store("y", (at,), load("x", (i,), F32), Mode.PLAIN),),
        (k.buffer("t", (100_000,), I64), k.buffer("x", (100_000,)), k.buffer("y", (50,))),
    )
    assert all(p.grid == () for p in schedule(kernel, MACHINE).phases)


# ---- candidates


@pytest.mark.parametrize("name", sorted(k.PATTERNS))
def test_candidates_differ_and_come_best_first(name: str) -> None:
    programs = candidates(k.PATTERNS[name](5000, 12), MACHINE, every=True)
    costs = [cycles(p, MACHINE) for p in programs]
    assert costs == sorted(costs)
    assert len({show(p) for p in programs}) == len(programs)


def test_guards_that_always_hold_are_dropped() -> None:
    i = k.axis("i", 100)
    inside = word("and", word("ge", iota(as_index(i)), 0), word("lt", iota(as_index(i)), 100))
    y = word("select", inside, load("x", (i,), F32, inside), 1.0)
    kernel = Kernel("guard", (i,), (k.store("y", (i,), y),), (k.buffer("x", (100,)), k.buffer("y", (100,))))
    assert "select" not in show(schedule(kernel, MACHINE)) and " if " not in show(schedule(kernel, MACHINE))


# ---- outputs written over inputs


def test_what_may_be_overwritten_is_read_before() -> None:
    """s may be x's memory: it is stored in the last pass over a row, after every load of x there."""
    (phase,) = schedule(k.add_layer_norm(512, 128), MACHINE).phases
    passes = [s for s in phase.body if isinstance(s, Loop)]
    stored = [[s.buffer for s in p.body if isinstance(s, Put)] for p in passes]
    assert stored == [[], [], ["s", "y"]] or stored == [[], [], ["y", "s"]]
    names = [s.buffer if isinstance(s, Put) else "load" for s in passes[-1].body if isinstance(s, Put) or _loads(s)]
    assert names[-2:] != ["load"] and "load" not in names[names.index("s") :]


def _loads(s: Statement) -> bool:
    return isinstance(s, Compute) and s.value.op == "load"
