"""Writes output files whole or not at all.

Takes a path and text; gives the file, or raises BadOutput with nothing half-written: the text goes to a temporary name
in the same folder, which then takes the file's place. `check_writable` asks beforehand, so that long work is not lost
to a typing mistake. A name ending in `.gz` is compressed.
"""

import gzip
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ridgeline.base.errors import BadOutput

_SPECIAL = ("/dev/", "/proc/")  # written in place: taking the place of these would break them


def check_writable(path: str | Path) -> None:
    """Raise BadOutput if a file of that name cannot be written; leaves no trace otherwise."""
    with _one_line(path):
        if _in_place(path):
            if not os.access(path, os.W_OK):  # opening a pipe would end it for its reader
                raise PermissionError(None, "it cannot be opened for writing")
            return
        target = _target(path)
        temporary = _temporary(target)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        temporary.unlink()


def write(path: str | Path, text: str) -> None:
    """Write UTF-8 text, compressed if the name says so. Raises BadOutput."""
    content = text.encode()
    if str(path).endswith(".gz"):
        content = gzip.compress(content, mtime=0)  # equal accounts give equal files
    with _one_line(path):
        if _in_place(path):
            with open(path, "wb") as file:
                file.write(content)
            return
        _replace(_target(path), content)


def _replace(target: Path, content: bytes) -> None:
    temporary = _temporary(target)
    try:
        with open(temporary, "xb") as file:
            if target.exists():
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()  # gone already when all went well


def _target(path: str | Path) -> Path:
    """The file itself, behind links. Raises OSError for what cannot be replaced by a file."""
    target = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        os.lstat(target)  # raises for a name too long, and for a file where a folder should be
    if target.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(None, "it is read-only")
    if not target.parent.is_dir():
        raise FileNotFoundError(None, f"there is no folder {target.parent}")
    return target


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")


def _in_place(path: str | Path) -> bool:
    """Devices, pipes and sockets cannot be replaced by a file."""
    if str(path).startswith(_SPECIAL):
        return True
    with suppress(OSError):
        mode = os.stat(path).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


@contextmanager
def _one_line(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadOutput(str(path), why[:1].lower() + why[1:]) from error
