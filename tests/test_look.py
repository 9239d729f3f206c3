"""Looking inside: what each RIDGELINE_DEBUG level prints, what RIDGELINE_DUMP writes, how little there is to read."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import ridgeline
from ridgeline.base.errors import BadOption
from ridgeline.base.knobs import Knobs
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine

# What each level adds: the words only it prints.
LEVELS = {
    1: "4.1 kB read, 4.1 kB written",
    2: "; limit ",
    3: "space <a0",
    4: "#include",
    5: "+ drop store: aten.exp.default, aten.add.Tensor",
}


def compiled(**knobs: Any) -> None:
    torch._dynamo.reset()
    settings = Knobs(strict=True, cache="off", **knobs)
    run = torch.compile(lambda x: x.exp() + 1, backend=Backend(Engine(settings), settings))
    x = torch.randn(1024)
    torch.testing.assert_close(run(x), x.exp() + 1)


@pytest.mark.parametrize("level", range(6))
def test_levels(level: int, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(debug=level)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert {n for n, words in LEVELS.items() if words in printed.err} == set(range(1, level + 1))


def test_a_dump_holds_every_stage_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(dump=str(tmp_path / "new"))
    assert capsys.readouterr().err == ""
    files = sorted((tmp_path / "new").iterdir())
    stages = [re.sub(r"^\d{4}-graph0_inference-", "", f.name) for f in files]
    assert stages == [
        "captured.py",
        "operators.txt",
        "moves.txt",
        "summary.txt",
        "kernels.txt",
        "programs.txt",
        "source.c",
    ]
    assert "torch.ops.aten.exp.default" in files[0].read_text()
    assert "compute aten.exp.default(" in files[1].read_text()


def test_a_dump_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOption, match="dump"):
        Backend(Engine(Knobs()), Knobs(dump=str(tmp_path / "file")))


def test_compiling_exp_enters_few_files() -> None:
    """What a reader who follows one operator reads: 10 files at most name it. The aim is 30 files in all."""
    package = Path(ridgeline.__file__).parent
    entered: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(package)):
            entered.add(frame.f_code.co_filename)

    torch._dynamo.reset()
    settings = Knobs(strict=True, cache="off")
    run = torch.compile(torch.exp, backend=Backend(Engine(settings), settings))
    sys.setprofile(profile)
    try:
        run(torch.randn(64))
    finally:
        sys.setprofile(None)
    files = sorted(Path(f).relative_to(package) for f in entered if Path(f).name != "__init__.py")
    naming = [f for f in files if re.search(r"\bexp\b", (package / f).read_text())]
    assert len(files) <= 52, files
    assert len(naming) <= 10, naming
