"""A script with all that stands around optimizers: run plainly and with its updates compiled, it prints the same."""

import re

import pytest
from running import SCRIPTS, run_captured, run_plain

from ridgeline.base.knobs import Knobs
from ridgeline.capture.schedule import Policy
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine
from ridgeline.top.explain_commands import Compiler

NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def test_a_script_prints_the_same() -> None:
    path = SCRIPTS / "optimizers.py"
    backend = Backend(Engine(Knobs()), Knobs())
    plain = run_plain(path)
    seen, _ = run_captured(path, engine=Compiler(backend), policy=Policy.RUN)
    assert NUMBER.sub("#", seen.out) == NUMBER.sub("#", plain.out) and not seen.err
    for ours, theirs in zip(seen.out.splitlines(), plain.out.splitlines(), strict=True):
        found, expected = ([float(n) for n in NUMBER.findall(line)] for line in (ours, theirs))
        assert found == pytest.approx(expected, rel=1e-4), (ours, theirs)
    updates = [e for e in backend.events if e.phase == "optimizer" and e.calls]
    assert {e.name.rstrip("0123456789") for e in updates} >= {"AdamW.step", "clip_grad_norm", "clip_grad_scale"}
    assert not any(e.reason for e in updates)
