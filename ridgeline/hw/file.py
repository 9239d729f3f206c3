"""Reads and writes a device file: TOML text on one side, a `Device` on the other.

A file that cannot be used raises BadDeviceFile, one line that names the file and the line in it. Writing goes through
a temporary file in the same folder and a rename, so a reader never meets half a file.
"""

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.base.errors import BadDeviceFile, BadOutput
from ridgeline.hw.device import Device


def read(path: Path) -> Device:
    """The device in one file. Its id must be the file's name."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDeviceFile(str(path), _one_line(error)) from error
    try:
        device = msgspec.convert(tomllib.loads(text), Device, str_keys=True)
    except tomllib.TOMLDecodeError as error:  # its text ends in "(at line 3, column 5)"
        raise BadDeviceFile(str(path), f"not TOML, {_one_line(error)}") from error
    except msgspec.ValidationError as error:
        why, _, place = _one_line(error).partition(" - at ")
        number = _line_of(text, why, place.strip("`"))
        raise BadDeviceFile(str(path), f"line {number}: {why}" if number else why) from error
    if device.id != path.stem:
        number = _line_of(text, "", "$.id")
        raise BadDeviceFile(str(path), f"line {number}: id '{device.id}' differs from the file's name")
    return device


def write(device: Device, folder: Path) -> Path:
    """Save as `<id>.toml` in the folder, which is made if it is missing; raises BadOutput when that fails."""
    path = folder / f"{device.id}.toml"
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{device.id}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(to_toml(device))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise BadOutput(str(path), error.strerror or _one_line(error)) from error
    return path


def check_folder(folder: Path) -> None:
    """Raise BadOutput when nothing can be saved in the folder, before anything is worth saving."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadOutput(str(folder), error.strerror or _one_line(error)) from error


def to_toml(device: Device) -> str:
    """The text form: plain values first, then one section a table, each figure on one line."""
    table = msgspec.to_builtins(device, builtin_types=(date,), str_keys=True)
    return "\n".join(_section("", table)) + "\n"


def _section(name: str, table: Mapping[str, Any], header: str = "[{}]") -> Iterator[str]:
    later, heading = [], ["", header.format(name)] if name else []
    for key, value in table.items():
        if isinstance(value, Mapping) and not _on_one_line(value):
            later.append((key, [value], "[{}]"))
        elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            later.append((key, list(value), "[[{}]]"))
        else:
            yield from (*heading, f"{_key(key)} = {_value(value)}")
            heading = []
    for key, tables, form in later:
        for inner in tables:
            yield from _section(f"{name}.{_key(key)}" if name else _key(key), inner, form)


def _on_one_line(table: Mapping[str, Any]) -> bool:
    return "value" in table or "confidence" in table  # a figure or a source


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case int() | float():
            return repr(value)
        case date():
            return value.isoformat()
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
        case _:
            return "[" + ", ".join(_value(inner) for inner in value) + "]"


def _line_of(text: str, why: str, place: str) -> int | None:
    """The line that a complaint is about: the names of its place and the words it quotes, sought one after the other.

    msgspec writes a place as `$.matrix[...].unit`; our own complaints begin with one (`matrix.fp8 has unit 'W'`).
    """
    names = re.findall(r"[A-Za-z_]\w*", place)
    if not why.startswith("Expected"):  # there the quoted words are types
        quoted = re.finditer(r"^(\w+)\.(\w+)|'([^']+)'|`(\w+)`", why)
        names += [name for match in quoted for name in match.groups() if name]
    found, lines = 0, text.splitlines()
    for name in names:
        sought = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
        numbers = range(max(found, 1), len(lines) + 1)
        found = next((number for number in numbers if sought.search(lines[number - 1])), found)
    return found or None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
