"""Generated Triton: its text, that it spells every word, and that it computes what the reference interpreter does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.base.errors import BuildFailed
from ridgeline.codegen.triton import Triton
from ridgeline.codegen.triton_build import tables
from ridgeline.ir.index import Sym, as_index
from ridgeline.ir.kernel import Buffer, Kernel, Mode
from ridgeline.ir.program import Scratch
from ridgeline.ir.types import BF16, F32, I8, I64
from ridgeline.ir.value import load
from ridgeline.ir.words import WORDS
from ridgeline.schedule import schedule
from tests import kernels as k
from tests.triton_cases import CASES

TARGET = Triton(lambda count: None, lambda: 0)
MACHINE = TARGET.machine(132, (227 << 10, 60 << 20))
GOLDEN = {
    "pointwise": k.bias_relu(300, 1000, BF16),
    "transpose": k.transpose_add(256, 192, BF16),
    "softmax": k.softmax(16384, 1000, BF16),
    "short_rows": k.softmax(1 << 20, 96, BF16),
    "long_rows": k.cross_entropy(8192, 128256, BF16),
    "few_long_rows": k.row_fold(3, 1 << 22, F32, "welford"),
    "norm_backward": k.layer_norm_backward(16384, 768, BF16),
    "columns": k.column_sum(16384, 1000, BF16),
    "scatter": k.scatter_add_rows(1000, 512, F32),
    "gather": k.argmax_gather(100, 300, F32),
    "symbolic": k.softmax(Sym("rows"), Sym("width"), F32),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"triton_{name}.txt", TARGET.emit([schedule(GOLDEN[name], MACHINE)]))


def test_every_word_is_spelled() -> None:
    assert TARGET.words == WORDS.keys()


def run_cases(names: list[str]) -> None:
    """In a process of its own: Triton's interpreter is chosen when Triton is imported."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.triton_interpret", *names],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


COSTLY = ("argmax", "argmin", "looped-max_pool", "looped-cat", "integers-i16", "integers-u8", "integers-i32")


def test_interpreted() -> None:
    run_cases([name for name in CASES if not any(c in name for c in COSTLY)])


@pytest.mark.slow
def test_interpreted_costly() -> None:
    run_cases([name for name in CASES if any(c in name for c in COSTLY)])


# ---- what is decided from sizes


def test_offsets_take_64_bits_only_where_they_may_need_them() -> None:
    assert "int64" not in TARGET.emit([schedule(k.pointwise(1 << 15, 1 << 15, BF16), MACHINE)])
    # 2^31 elements: the last offset does not fit 31 bits with what masked lanes reach beyond it.
    assert "tl.program_id(0).to(tl.int64)" in TARGET.emit([schedule(k.pointwise(1 << 16, 1 << 15, BF16), MACHINE)])


def test_a_row_that_fits_is_loaded_once() -> None:
    for width, loads in ((32768, 1), (65536, 2)):
        text = TARGET.emit([schedule(k.softmax(4096, width, BF16), MACHINE)])
        assert text.count("tl.load(p_x") == loads, f"{width}: passes over the row"


def test_few_long_rows_are_split_and_finished_by_a_second_launch() -> None:
    table = tables(TARGET.emit([schedule(k.row_fold(3, 1 << 22, F32, "sum"), MACHINE)]))["row_sum"]
    first, second = table.launches
    # A row of 2^22 gives 128 programs the 2^15 elements that each should fold at least; one joins all three rows.
    assert (first.grid, second.grid) == ("384", "1")
    assert table.scratch == ("1536",)  # 384 partial sums of 4 bytes


def test_columns_of_one_tile_need_no_second_launch() -> None:
    table = tables(TARGET.emit([schedule(k.column_sum(20, 8192, F32), MACHINE)]))["column_sum"]
    assert len(table.launches) == 1


def test_norm_backward_sums_columns_while_rows_are_in_registers() -> None:
    """x and dy are read once by the first launch; the second reads partial sums alone."""
    table = tables(TARGET.emit([schedule(k.layer_norm_backward(16384, 8192, BF16), MACHINE)]))["layer_norm_backward"]
    first, second = table.launches
    assert {a for a, _ in first.arguments} >= {0, 1} and not {a for a, _ in second.arguments} & {0, 1}
    assert first.grid == "128"  # 512 threads a program, one at a time on 132: so many, or what divides the rows
    assert table.scratch == (str(128 * 8192 * 4),) * 2


# ---- what is refused


def test_refused() -> None:
    i = k.axis("i", 10)
    narrow = Kernel(
        "narrow",
        (i,),
        (k.store("y", (i,), load("x", (i,), I8), Mode.ADD),),
        (k.buffer("x", (10,), I8), k.buffer("y", (10,), I8)),
    )
    with pytest.raises(BuildFailed, match="atomic addition to i8"):
        TARGET.emit([schedule(narrow, MACHINE)])
    program = schedule(k.bias_relu(8, 8), MACHINE)
    own = Scratch(Buffer("own", I64, (as_index(1),), (as_index(1),)), per_worker=True)
    with pytest.raises(BuildFailed, match="scratch for each worker"):
        TARGET.emit([type(program)(program.name, program.buffers, (own,), (), program.phases)])
