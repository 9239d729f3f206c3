"""`ridgeline explain` and `ridgeline run`: a script goes in, an account of where its time goes comes out.

Reads options, checks outputs before the long work begins, runs the script with its roots captured and hands the
account to the views. Everything after SCRIPT is the script's own.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ridgeline.base.errors import BadScript
from ridgeline.base.knobs import knobs_from
from ridgeline.base.records import Account
from ridgeline.capture.schedule import Policy
from ridgeline.capture.script import Session
from ridgeline.capture.script import run as run_script
from ridgeline.capture.steps import Run
from ridgeline.capture.target import is_object
from ridgeline.hw import catalog
from ridgeline.report.document import to_json
from ridgeline.report.headline import one_line
from ridgeline.report.page import to_html
from ridgeline.report.tables import console_for
from ridgeline.report.terminal import render
from ridgeline.report.trace import to_trace
from ridgeline.report.write import check_writable, write
from ridgeline.top.account import account_of
from ridgeline.top.backend import Backend
from ridgeline.top.clip import Clips
from ridgeline.top.engine import Engine
from ridgeline.top.optimizer import Updates

Action = Callable[[], int]

explain = typer.Typer(add_completion=False)
run = typer.Typer(add_completion=False)
OWN_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script, or module:object with --input-shape.")]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="End the script after so many steps.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--input-shape", metavar="8x128", help="Input of a module:object; repeatable.")
]


class Compiler:
    """What the script runner asks for: a backend, updates for optimizers, and clipping of gradients."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.optimizer_step = Updates(backend).optimizer_step
        self.clip = Clips(backend).clip


@explain.command(context_settings=OWN_ARGUMENTS)
def explain_command(
    context: typer.Context,
    script: Script,
    on: Annotated[
        str | None, typer.Option("--on", metavar="ID,ID", help="The same program on these devices, by the model.")
    ] = None,
    steps: Steps = None,
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Count and predict only; time nothing.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows in each table.")] = 12,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the account as JSON.")] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML page.")] = None,
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help="Write a Perfetto trace.")] = None,
    input_shape: Shapes = None,
) -> Action:
    """Run SCRIPT and explain where its time goes: eager, graph, limit, every kernel, every move."""
    outputs = {"json": json, "html": html, "trace": trace}
    policy = Policy.COUNT if no_measure else Policy.MEASURE
    return partial(_explain, script, context.args, on, steps, policy, top, outputs, input_shape or ())


@run.command(context_settings=OWN_ARGUMENTS)
def run_command(context: typer.Context, script: Script, steps: Steps = None, input_shape: Shapes = None) -> Action:
    """Run SCRIPT compiled, with one summary line at the end."""
    return partial(_run, script, context.args, steps, input_shape or ())


def _explain(
    script: str,
    arguments: Sequence[str],
    on: str | None,
    steps: int | None,
    policy: Policy,
    top: int,
    outputs: dict[str, str | None],
    input_shapes: Sequence[str],
) -> int:
    elsewhere = [catalog.load(name.strip()) for name in on.split(",") if name.strip()] if on else []
    for asked in filter(None, outputs.values()):
        check_writable(asked)
    result, backend = _session(script, arguments, policy, steps, input_shapes, timed=policy is Policy.MEASURE)
    account = account_of(result, backend.events, backend.engine.device(_main_device(backend)), elsewhere)
    for kind, path in outputs.items():
        if path is not None:
            write(Path(path), WRITERS[kind](account))
    try:
        render(account, top, console_for())
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough; what Python still holds back goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return result.exit_code


WRITERS: dict[str, Callable[[Account], str]] = {"json": to_json, "html": to_html, "trace": to_trace}


def _run(script: str, arguments: Sequence[str], steps: int | None, input_shapes: Sequence[str]) -> int:
    result, backend = _session(script, arguments, Policy.RUN, steps, input_shapes, timed=False)
    account = account_of(result, backend.events, backend.engine.device(_main_device(backend)), ())
    print(one_line(account), file=sys.stderr)
    return result.exit_code


def _session(
    script: str, arguments: Sequence[str], policy: Policy, steps: int | None, input_shapes: Sequence[str], timed: bool
) -> tuple[Run, Backend]:
    if script.startswith("-"):
        raise BadScript(script, "there is no such option, and options stand before the script; --help shows them")
    if is_object(script) and arguments:
        raise BadScript(script, f"{arguments[0]} stands after it; options stand before a module:object")
    if input_shapes and not is_object(script):
        raise BadScript(script, "--input-shape is for a module:object, and this is a script")
    knobs = knobs_from({})
    backend = Backend(Engine(knobs), knobs, timed)
    session = Session(Compiler(backend), policy, steps, input_shapes=tuple(input_shapes))
    return run_script(script, list(arguments), session), backend


def _main_device(backend: Backend) -> torch.device:
    """Where most graphs ran."""
    places: list[Any] = [e.compiled.run.device for e in backend.events if e.compiled is not None]
    return max(places, key=places.count) if places else torch.device("cpu")
