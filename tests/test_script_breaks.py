"""Graph breaks and recompiles: read from TorchDynamo's own words, with the user's line, and kept off the screen."""

import logging
from pathlib import Path

import pytest
import torch
from running import run_captured

from ridgeline.capture.breaks import Breaks, read_break

BROKEN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        x = self.linear(x)
        print("sum", round(x.sum().item(), 4))  # line 13
        return x.relu()


torch.manual_seed(0)
net = Net()
for size in (2, 2, 2, 2, 5, 6, 5):
    with torch.no_grad():
        net(torch.randn(size, 3))  # line 21
"""


def test_breaks_and_recompiles_carry_the_users_lines_and_reasons(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    shown, seen = run_captured(path, pairs=1)
    assert shown.out.count("sum") == 7
    assert shown.err == "" == capfd.readouterr().err
    breaks = [found for found in seen.breaks if found.kind == "graph break"]
    assert {found.line for found in breaks} == {f"{path}:13"}
    assert any("item" in found.reason for found in breaks)
    recompiles = [found for found in seen.breaks if found.kind == "recompile"]
    assert any("expected 2, actual 5" in found.reason for found in recompiles)
    assert {found.line for found in recompiles} >= {f"{path}:21"}


def test_a_wrapped_reason_is_unwrapped() -> None:
    message = """Graph break in user code at /home/me/net.py:4
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print`
  Hint: something

User code traceback:
  File "/home/me/train.py", line 9, in main
    f(x)
  File "/home/me/net.py", line 4, in forward
    print("hi")
"""
    found = read_break(message)
    assert found is not None
    assert found.reason.startswith("Failed to trace builtin operator: Dynamo does not know how to trace")
    assert (found.kind, found.line) == ("graph break", "/home/me/net.py:4")


def test_a_break_in_a_library_is_shown_at_the_users_line() -> None:
    message = """Graph break in user code at /venv/site-packages/lib/model.py:7
Graph Break Reason: Data-dependent branching
  Explanation: Detected data-dependent branching.

User code traceback:
  File "/home/me/train.py", line 9, in main
  File "/venv/site-packages/lib/model.py", line 7, in forward
"""
    found = read_break(message.replace("/venv/site-packages", torch.__path__[0].rpartition("/")[0]))
    assert found is not None
    assert found.line == "/home/me/train.py:9"
    assert found.reason.endswith("(in lib/model.py:7)")


def test_a_recompile_names_the_guard_and_the_source_it_came_from() -> None:
    message = """Recompiling function forward in /home/me/net.py:12
    triggered by the following guard failure(s):
    - 0/0: self.calls == 2                       # self.calls += 1  # me/net.py:14 in forward (HINT: long advice)"""
    found = read_break(message)
    assert found is not None
    assert (found.kind, found.reason) == ("recompile", "self.calls == 2 (self.calls += 1)")
    assert found.line == "/home/me/net.py:12"


def test_other_messages_are_neither() -> None:
    assert read_break("Step 1: torchdynamo start tracing") is None


def test_loggers_are_left_as_they_were() -> None:
    names = ("torch", "torch._dynamo", "torch._dynamo.guards.__recompiles", "torch._dynamo.symbolic_convert")
    loggers = [logging.getLogger(name) for name in names]

    def state() -> list[object]:
        filters = [[list(handler.filters) for handler in logger.handlers] for logger in loggers]
        return [[(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers], filters]

    before = state()
    with Breaks():
        assert state() != before
    assert state() == before
    assert "recompiles" not in torch._logging._internal.log_state.artifact_names


def test_compiler_warnings_become_notes() -> None:
    with Breaks() as breaks:
        logging.getLogger("torch._dynamo.convert_frame").warning("hit config.recompile_limit (8)\nand more")
    assert breaks.notes == ("hit config.recompile_limit (8)",)
