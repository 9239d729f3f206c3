"""The cache on disk: what a target compiled, kept between processes.

`Cache.find(key)` gives a folder with the files of an earlier `keep`, or None; `keep(key, folder)` takes a folder over.
An entry is a folder: the files, and `entry.json` with the length and SHA-256 of each. It appears whole by a rename; one
that does not check is a miss and is removed. The folder belongs to the user alone (0700, owner checked). Where no such
folder can be had, a private temporary one serves this process. Nothing is ever unpickled.
"""

import atexit
import hashlib
import json
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

import platformdirs

ENTRY = "entry.json"


def key_of(parts: Iterable[str]) -> str:
    """A name for everything a result depends on."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:40]


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def private(folder: Path) -> bool:
    """Makes the folder, readable by the user alone; False where that cannot be."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = os.lstat(folder)
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
            return False
        if stat.S_IMODE(seen.st_mode) & 0o077:
            folder.chmod(0o700)
        return os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


class Cache:
    """Entries in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Path | None:
        """The folder of a whole, undamaged entry."""
        entry = self.folder / key
        try:
            listed: dict[str, dict[str, object]] = json.loads((entry / ENTRY).read_text())["files"]
            whole = all(
                (entry / name).stat().st_size == facts["bytes"] and _checksum(entry / name) == facts["sha256"]
                for name, facts in listed.items()
            )
        except FileNotFoundError:
            if not entry.exists():
                return None
            whole = False
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return entry

    def start(self) -> Path:
        """A folder to build in, on the same file system."""
        return Path(tempfile.mkdtemp(prefix="new-", dir=self.folder))

    def keep(self, key: str, folder: Path) -> Path:
        """The folder becomes the entry of that name; the one that is there already wins."""
        files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != ENTRY)
        listed = {p.name: {"bytes": p.stat().st_size, "sha256": _checksum(p)} for p in files}
        (folder / ENTRY).write_text(json.dumps({"schema_version": 1, "files": listed}))
        entry = self.folder / key
        try:
            folder.rename(entry)
        except OSError:
            if not entry.exists():
                return folder
            shutil.rmtree(folder, ignore_errors=True)
        return entry


class _Opened:
    """Caches by the folder asked for; a child of fork makes its own temporary ones."""

    caches: dict[str | None, Cache] = {}
    process = 0


def open_cache(asked: str | None = None) -> Cache:
    """The cache in a folder: by default the user's own; "off" for one that ends with the process."""
    if _Opened.process != os.getpid():
        _Opened.process, _Opened.caches = os.getpid(), {}
    if asked not in _Opened.caches:
        folder = Path(asked) if asked else Path(platformdirs.user_cache_dir("ridgeline"))
        usable = asked != "off" and private(folder)
        if not usable and asked != "off":
            warnings.warn(f"compiled kernels are not kept: {folder} cannot be a private folder", stacklevel=2)
        _Opened.caches[asked] = Cache(folder if usable else temporary())
    return _Opened.caches[asked]


def temporary() -> Path:
    """A private folder that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder
