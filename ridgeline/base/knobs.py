"""Every knob, typed, with its line of help: ten at most.

Each is read from RIDGELINE_<NAME>, or given by name in torch.compile(options={...}), which wins. A value that a knob
cannot take, or an option that does not exist, is an error naming what can.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from ridgeline.base.errors import BadOption, UnknownOption

PREFIX = "RIDGELINE_"


def _knob(default: Any, help_line: str) -> Any:
    return field(default=default, metadata={"help": help_line})


@dataclass(frozen=True)
class Knobs:
    """All settings of one engine."""

    debug: int = _knob(0, "1 a line a kernel; 2 limits; 3 the graph after each stage; 4 source; 5 each move")
    dump: str | None = _knob(None, "folder to write every stage to, as numbered files")
    fuel: int | None = _knob(None, "most moves the walk may make, to bisect")
    cache: str | None = _knob(None, "folder of the kernel cache; 'off' for none")
    strict: bool = _knob(False, "raise where the engine would fall back to eager")
    threads: int | None = _knob(None, "threads of CPU kernels; as torch.get_num_threads() by default")
    cc: str | None = _knob(None, "C compiler; cc, gcc or clang from PATH by default")
    target: str | None = _knob(None, "code generator: 'c' or 'triton'; by the device otherwise")


CHOICES: Mapping[str, tuple[str, ...]] = {"target": ("c", "triton")}


def _parse(name: str, kinds: tuple[type, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    if bool in kinds:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("1", "true", "yes", "on"):
            return True
        if str(value).lower() in ("0", "false", "no", "off", ""):
            return False
        raise BadOption(name, value, "a yes or no")
    if int in kinds:
        if isinstance(value, bool) or not str(value).lstrip("-").isdigit() or int(value) < 0:
            raise BadOption(name, value, "a whole number from 0")
        return int(value)
    if not isinstance(value, str):
        raise BadOption(name, value, "text")
    if name in CHOICES and value not in CHOICES[name]:
        raise BadOption(name, value, " or ".join(f"'{c}'" for c in CHOICES[name]))
    return value


def knobs_from(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Knobs:
    """Knobs from the environment, then from options by name."""
    known = {f.name: get_args(f.type) or (f.type,) for f in fields(Knobs)}
    given = {n: environment[PREFIX + n.upper()] for n in known if PREFIX + n.upper() in environment}
    for name, value in options.items():
        if name not in known:
            raise UnknownOption(name, known)
        given[name] = value
    return Knobs(**{name: _parse(name, known[name], value) for name, value in given.items()})
