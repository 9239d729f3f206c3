"""The command line: finds the command's module, lets it read its options, runs what it returns.

`COMMANDS` is the one dispatch table. A module is imported only when its command is called, so a command that needs no
torch starts without it. Each module holds a Typer application whose command functions read their options and
return a callable without arguments; `main` calls that outside Typer, so that nothing of Typer stands between a user's
script and its own exceptions. The callable gives an exit code or None.

Exit codes: 0, 2 for an error that the user can mend (one line on stderr, no traceback), 130 for Ctrl-C, or what the
callable gives. A user's own exception passes through untouched.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from ridgeline.base.errors import RidgelineError, UnknownCommand

USER_ERROR, INTERRUPTED = 2, 130


@dataclass(frozen=True, slots=True)
class Command:
    """A command's module, the Typer application in it, and its line in the overview."""

    module: str
    help: str
    app: str = "app"


COMMANDS: dict[str, Command] = {
    "explain": Command("ridgeline.top.explain_commands", "where a script's time goes: eager, graph, limit", "explain"),
    "run": Command("ridgeline.top.explain_commands", "run a script compiled", "run"),
    "hardware": Command("ridgeline.top.hardware_commands", "accelerators: list, show, ridge points, history, measure"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and give its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            print(_overview())
            return 0
        if words[0] == "--version":
            print(f"ridgeline {metadata.version('ridgeline')}")
            return 0
        return _run(words[0], words[1:])
    except RidgelineError as error:
        print(f"ridgeline: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        raise UnknownCommand(name, COMMANDS)
    command = COMMANDS[name]
    chosen = _read_options(name, getattr(import_module(command.module), command.app), words)
    if isinstance(chosen, int):
        return chosen
    code = chosen()
    return 0 if code is None else code


def _read_options(name: str, app: Any, words: list[str]) -> int | Callable[[], int | None]:
    """What the command function returned, or the exit code of --help or of a mistake in the options."""
    errors = import_module("typer.exceptions")  # with the command, so that the overview starts without Typer
    try:
        chosen: int | Callable[[], int | None] = app(args=words, prog_name=f"ridgeline {name}", standalone_mode=False)
    except errors.TyperException as error:
        text = error.format_message()
        text = text if text.endswith((".", "?")) else text + "."
        print(f"ridgeline {name}: {text} `ridgeline {name} --help` shows the options.", file=sys.stderr)
        return USER_ERROR
    if not (isinstance(chosen, int) or callable(chosen)):
        raise TypeError(f"command '{name}' returned {chosen!r}, not a callable")
    return chosen


def _overview() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: ridgeline COMMAND [OPTIONS] [ARGUMENTS]",
            "",
            "Commands:",
            *lines,
            "",
            "`ridgeline COMMAND --help` explains a command, `ridgeline --version` prints the version.",
        ]
    )
