"""Finds devices: by id, by the name a driver reports, or as the machine measured here.

The catalogue is the folder `hw/data`, one file a device. Files in the user's own folder come first, so a user can add
a device or correct one; `ridgeline hardware measure` saves there as well. Gives `Device` records; raises UnknownDevice
with the nearest id, or BadDeviceFile. It keeps nothing in memory but the files it shipped with, and measures nothing.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import platformdirs

from ridgeline.base.errors import NotMeasured, UnknownDevice
from ridgeline.hw import file
from ridgeline.hw.device import Device

DATA = Path(__file__).parent / "data"
THIS_MACHINE = "this-machine"  # the processor; "this-machine-cuda" is its accelerator

# Words that drivers add or leave out and that tell no two devices apart.
_NOISE = frozenset(
    {"nvidia", "amd", "ati", "intel", "google", "aws", "huawei", "apple", "tesla", "geforce", "quadro", "radeon"}
    | {"instinct", "graphics", "gpu", "cpu", "accelerator", "generation", "processor", "core", "oam", "r", "tm"}
)
_CAPACITY = re.compile(r"(\d+)gi?b?$")
_TECHNOLOGY = re.compile(r"(hbm|gddr|lpddr)\d\w*$")


def user_folder() -> Path:
    """Where the user's own device files are looked for, and where measured ones are saved."""
    return Path(platformdirs.user_data_dir("ridgeline", appauthor=False)) / "devices"


def known_ids(folder: Path | None = None) -> tuple[str, ...]:
    """Ids of all devices, sorted, without opening a file."""
    own = {path.stem for path in (folder or user_folder()).glob("*.toml")}
    return tuple(sorted(own | {path.stem for path in DATA.glob("*.toml")}))


def load(name: str, folder: Path | None = None) -> Device:
    """The device of this id; underscores and capitals are forgiven."""
    identity = name.strip().lower().replace("_", "-")
    ids = known_ids(folder)
    if identity in ids:
        return _open(identity, folder or user_folder())
    if _is_here(identity):
        raise NotMeasured(identity)
    raise UnknownDevice(name, ids)


def all_devices(folder: Path | None = None) -> tuple[Device, ...]:
    """Every device: this machine first, then by vendor, year of launch and id."""

    def place(device: Device) -> tuple[bool, str, int, str]:
        return not _is_here(device.id), device.vendor, device.launch_year or 0, device.id

    return tuple(sorted((_open(name, folder or user_folder()) for name in known_ids(folder)), key=place))


def find(driver_name: str, folder: Path | None = None) -> Device | None:
    """The device that a driver, `/proc/cpuinfo` or torch calls by this name; None when none fits, or several do.

    Names are compared by their words, without vendor and order. A capacity or memory technology may be missing on
    either side, but must not contradict the device's.
    """
    asked = _words(driver_name)
    exact, loose = [], []
    for device in all_devices(folder):
        if _is_here(device.id):
            continue
        names = [_words(name) for name in (device.id, device.name, *device.driver_names)]
        if asked in names:
            exact.append(device)
        elif any(_bare(asked) == _bare(name) for name in names) and not _contradicts(asked, device):
            loose.append(device)
    found = exact or loose
    return found[0] if len(found) == 1 else None


def this_machine(accelerator: str | None = None, folder: Path | None = None) -> Device | None:
    """What `ridgeline hardware measure` saved, or None: the processor's record, or with "cuda" the accelerator's."""
    identity = THIS_MACHINE if accelerator in (None, "cpu") else f"{THIS_MACHINE}-{accelerator}"
    return load(identity, folder) if identity in known_ids(folder) else None


class Hardware:
    """All devices by id: `hardware["b200"].ridge("fp8")`. Files are read when they are asked for."""

    def __getitem__(self, name: str) -> Device:
        return load(name)

    def __contains__(self, name: object) -> bool:
        return name in known_ids()

    def __iter__(self) -> Iterator[str]:
        return iter(known_ids())

    def __len__(self) -> int:
        return len(known_ids())


def _is_here(identity: str) -> bool:
    return identity.startswith(THIS_MACHINE)


def _open(identity: str, folder: Path) -> Device:
    own = folder / f"{identity}.toml"
    return file.read(own) if own.exists() else _shipped(identity)


@cache
def _shipped(identity: str) -> Device:
    return file.read(DATA / f"{identity}.toml")


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9+]+", name.lower())) - _NOISE


def _bare(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if not (_CAPACITY.match(word) or _TECHNOLOGY.match(word)))


def _contradicts(words: frozenset[str], device: Device) -> bool:
    memory = device.memory
    for word in words:
        if _TECHNOLOGY.match(word) and word != memory.technology.lower():
            return True
        capacity = _CAPACITY.match(word)
        if capacity and memory.capacity and abs(int(capacity[1]) / memory.capacity.value - 1) > 0.1:
            return True
    return False
