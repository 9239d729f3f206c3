"""Sweeping a generated Triton kernel over many tensors: its text, its machine code, and what it computes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.codegen.triton_build import TARGETS, Launch, compile_kernel, import_source, tables
from ridgeline.codegen.triton_sweep import TABLES, kernel_name, swept
from tests.sweep_update import TARGET, swept_update


def text_of(whole: bool, aligned: bool) -> tuple[str, Launch]:
    program, strides = swept_update()
    source = TARGET.emit([program])
    (launch,) = tables(source)[program.name].launches
    text = swept(source, launch, strides, whole, aligned)
    return text, Launch(kernel_name(launch, whole), "", launch.threads, TABLES)


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("triton_sweep.txt", text_of(True, True)[0] + text_of(False, False)[0])


@pytest.mark.parametrize("arch", TARGETS)
def test_whole_blocks_are_moved_sixteen_bytes_at_a_time(arch: str, tmp_path: Path) -> None:
    for whole in (True, False):
        text, launch = text_of(whole, True)
        path = tmp_path / f"{launch.kernel}.py"
        path.write_text(text)
        code = compile_kernel(import_source(path), launch, TARGETS[arch]).asm
        wide = "ld.global.v4" in code["ptx"] if "ptx" in code else "global_load_dwordx4" in code["amdgcn"]
        assert wide or not whole


def test_interpreted() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.triton_sweep_interpret"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
