"""A script with all that stands around optimizers: run plainly and with its updates compiled, it prints the same."""

import re
from pathlib import Path

import pytest
from running import SCRIPTS, run_captured, run_plain

from ridgeline.base.knobs import Knobs
from ridgeline.capture.schedule import Policy
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine
from ridgeline.top.explain_commands import Compiler

NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


COMPILES_ITS_STEP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
step = torch.compile(optimizer.step)
for k in range(6):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    step()
    print(model.weight.sum().item(), optimizer.state[model.weight]["step"].item())
"""


def run_both(path: Path) -> tuple[list[str], list[str], Backend]:
    """The lines of both runs, and the backend of the second."""
    backend = Backend(Engine(Knobs()), Knobs())
    plain = run_plain(path)
    seen, _ = run_captured(path, engine=Compiler(backend), policy=Policy.RUN)
    assert not seen.err
    return plain.out.splitlines(), seen.out.splitlines(), backend


def same_lines(ours: list[str], theirs: list[str]) -> None:
    """The same text, numbers as near as fp32 lets them be after some steps."""
    for mine, plain in zip(ours, theirs, strict=True):
        assert NUMBER.sub("#", mine) == NUMBER.sub("#", plain)
        found, expected = ([float(n) for n in NUMBER.findall(line)] for line in (mine, plain))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), (mine, plain)


def test_a_step_that_the_script_compiles_itself(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(COMPILES_ITS_STEP)
    plain, ours, backend = run_both(path)
    same_lines(ours, plain)
    assert [e.calls for e in backend.events if e.phase == "optimizer"] == [5]


def test_a_script_prints_the_same() -> None:
    plain, ours, backend = run_both(SCRIPTS / "optimizers.py")
    same_lines(ours, plain)
    updates = [e for e in backend.events if e.phase == "optimizer" and e.calls]
    assert {e.name.rstrip("0123456789") for e in updates} >= {"AdamW.step", "clip_grad_norm", "clip_grad_scale"}
    assert not any(e.reason for e in updates)
