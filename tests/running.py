"""Runs a script plainly and under the runner, in this process, and keeps all that it printed."""

import contextlib
import io
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch._dynamo.backends.registry import lookup_backend

from ridgeline.capture.root import current_root
from ridgeline.capture.script import Session, run
from ridgeline.capture.steps import Run

SCRIPTS = Path(__file__).parent / "scripts"


class Exact:
    """An engine that runs every graph by ATen: results are those of eager mode, bit by bit."""

    def __init__(self) -> None:
        self.graphs: list[tuple[str, torch.fx.GraphModule]] = []
        self._compile = lookup_backend("aot_eager")

    def backend(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        root = current_root()
        self.graphs.append((root.name if root else "", graph))
        return self._compile(graph, example_inputs)

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
        return None

    def clip(self, function: Any, gradients: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        return None

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.graphs}


@dataclass(frozen=True)
class Shown:
    """What a script showed to the world."""

    out: str
    err: str
    exit_code: object


def run_plain(path: Path, *arguments: str) -> Shown:
    """What `python path arguments` shows, but for the traceback of an uncaught error."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        torch._dynamo.config.patch(disable=True),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as exit:
            code = exit.code
        except Exception:
            code = 1
    return Shown(out.getvalue(), err.getvalue(), code)


def run_captured(path: Path, *arguments: str, engine: Any = None, **options: Any) -> tuple[Shown, Run]:
    """What the same script shows under the runner, and what the runner saw."""
    torch._dynamo.reset()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        seen = run(str(path), arguments, Session(engine or Exact(), **options))
    return Shown(out.getvalue(), err.getvalue(), seen.exit_code), seen
