"""`ridgeline hardware`: the catalogue on the command line, and the measurement of this machine.

Reads options and hands records to `report/hardware.py`, or to JSON with the same field names. Only `measure` loads
torch, and only when it runs.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ridgeline.base.errors import BadOption
from ridgeline.hw import catalog, file, ridge
from ridgeline.hw.device import check_format
from ridgeline.report import hardware as report
from ridgeline.report.tables import console_for

SCHEMA_VERSION = 1
Action = Callable[[], None]

app = typer.Typer(add_completion=False, help="Accelerators: what they can do, and what this machine can.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table; field names are the records'.")]
Identity = Annotated[str, typer.Argument(metavar="ID", help="Device id, as in `hardware list`, or a driver's name.")]
Identities = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Device ids; all without one.")]


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> Action | None:
    """Without a command: list."""
    return partial(_list, False) if context.invoked_subcommand is None else None


@app.command("list")
def list_command(json: Json = False) -> Action:
    """List all devices with their main figures."""
    return partial(_list, json)


@app.command("show")
def show_command(identity: Identity, json: Json = False) -> Action:
    """Show every figure of one device, with its source."""
    return partial(_show, identity, json)


@app.command("ridge")
def ridge_command(
    identities: Identities = None,
    number_format: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="One number format, with its two rates: bf16, fp8, ..."),
    ] = None,
    per_byte: Annotated[bool, typer.Option("--per-byte", help="FLOP per byte instead of FLOP per number.")] = False,
    json: Json = False,
) -> Action:
    """Show ridge points: FLOP per number loaded from memory above which arithmetic, not memory, is the limit."""
    return partial(_ridge, tuple(identities or ()), number_format, per_byte, json)


@app.command("history")
def history_command(json: Json = False) -> Action:
    """Show how the ridge point of each vendor's flagships moved over the years."""
    return partial(_history, json)


@app.command("measure")
def measure_command(
    device: Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="What to measure.")] = "cpu",
    json: Json = False,
) -> Action:
    """Measure this machine in half a minute and save it as the device that other commands use by default."""
    return partial(_measure, device, json)


def _list(json: bool) -> None:
    rows = [ridge.list_row(device) for device in catalog.all_devices()]
    if json:
        _print_json({"devices": rows})
    else:
        report.print_list(rows, console_for())


def _show(identity: str, json: bool) -> None:
    device = catalog.find(identity) if identity not in catalog.known_ids() else None
    device = device or catalog.load(identity)
    if json:
        _print_json({"device": device, "ridge": ridge.ridge_row(device)})
    else:
        report.print_device(device, console_for())


def _ridge(identities: tuple[str, ...], number_format: str | None, per_byte: bool, json: bool) -> None:
    if number_format is not None:
        check_format(number_format)
    devices = [catalog.load(identity) for identity in identities] if identities else catalog.all_devices()
    rows = [ridge.ridge_row(device) for device in devices]
    if number_format is not None and not identities:
        rows = [row for row in rows if number_format in row.flop_per_number]
    if json:
        _print_json({"ridge": rows})
    elif number_format is not None:
        report.print_ridge_format(rows, number_format, console_for())
    else:
        report.print_ridge(rows, console_for(), per_byte)


def _history(json: bool) -> None:
    devices = catalog.all_devices()
    rows, growth = ridge.history(devices), ridge.growth(devices)
    if json:
        _print_json({"history": rows, "growth": growth})
    else:
        report.print_history(rows, growth, console_for())


def _measure(kind: str, json: bool) -> None:
    if kind not in ("cpu", "cuda"):
        raise BadOption("--device", kind, "cpu or cuda")
    folder = catalog.user_folder()
    file.check_folder(folder)  # before half a minute of measuring
    probe = import_module("ridgeline.runtime.probe")  # loads torch
    with report.progress() as step:
        own = import_module("ridgeline.top.own_kernels").own_kernels() if kind == "cpu" else None
        device = probe.measure(kind, catalog.find, step, own)
    path: Path = file.write(device, folder)
    if device.note:
        print(f"ridgeline: {device.note}", file=sys.stderr)
    if json:
        _print_json({"device": device, "path": str(path)})
    else:
        console = console_for()
        report.print_device(device, console)
        console.print(f"\nSaved as {path}", soft_wrap=True)


def _print_json(content: dict[str, object]) -> None:
    """One JSON document on standard output."""
    encoded = msgspec.json.format(msgspec.json.encode({"schema_version": SCHEMA_VERSION, **content}), indent=2)
    console_for().out(encoded.decode(), highlight=False)
