"""The record of one device: what it can compute, move and hold, each figure with its unit and its source.

A device is one TOML file; `hw/file.py` reads and writes it, `hw/catalog.py` finds it. Here are the frozen records and
the plain numbers that the cost model asks for, in base units (FLOP/s, bytes/s, bytes, seconds, W).

What is not known is absent (None), never a guess from another format. Peaks are dense. `matrix` holds the rate of
matrix units (tensor cores, AMX, dot-product instructions), `vector` that of the ordinary arithmetic units. Bandwidth
is decimal and counts bytes read plus bytes written; fabric figures count both directions. Caches and memories whose
vendor prints "GB" for what the driver counts in GiB are entered in GiB. `launch_year`, `form_factor` and `process_nm`
are general knowledge; everything else names its source. This module opens no file and compares no devices.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import pairwise
from types import MappingProxyType

import msgspec

from ridgeline.base.errors import BadOption
from ridgeline.base.units import BITS_PER_BYTE, UNITS

FORMAT_BITS: Mapping[str, int] = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,  # the bits it occupies in memory
    "fp16": 16,
    "bf16": 16,
    "fp8": 8,
    "fp6": 6,
    "fp4": 4,
    "int8": 8,
    "int4": 4,
}
CONFIDENCES = ("measured", "vendor-datasheet", "vendor-blog", "third-party", "derived", "recalled")
NOTHING: Mapping[str, "Figure"] = MappingProxyType({})
NO_RATES: Mapping[str, Mapping[int, "Figure"]] = MappingProxyType({})


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the records: a field that the file misspells is an error, one that it leaves out is unknown."""


class Source(Record, frozen=True):
    """Where a figure comes from. `checked` is the day it was read, or measured."""

    title: str
    confidence: str
    url: str | None = None
    checked: date | None = None

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES:
            raise ValueError(f"confidence '{self.confidence}' is none of {', '.join(CONFIDENCES)}")


class Figure(Record, frozen=True):
    """One number as its source prints it. `source` is a key of the device's `sources`."""

    value: float
    unit: str
    source: str
    dense: bool | None = None  # of peaks only: without counting on structural sparsity
    note: str = ""

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit '{self.unit}' is none of {', '.join(UNITS)}")
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"'{self.value:g}' is not a positive number; leave out what is unknown")

    @property
    def base(self) -> float:
        """The value in its base unit."""
        return self.value * UNITS[self.unit][0]


class Level(Record, frozen=True):
    """One level of the memory hierarchy. `bandwidth` is the data sheet's; copy, read and write are measured."""

    name: str
    technology: str = ""
    capacity: Figure | None = None  # of the whole device: private caches are summed
    bandwidth: Figure | None = None
    copy: Figure | None = None
    read: Figure | None = None
    write: Figure | None = None

    @property
    def capacity_bytes(self) -> int | None:
        return None if self.capacity is None else round(self.capacity.base)

    @property
    def bytes_per_s(self) -> float | None:
        """Copy, bytes read plus bytes written: measured where known, else the data sheet's."""
        return _first(self.copy, self.bandwidth)

    @property
    def read_bytes_per_s(self) -> float | None:
        return _first(self.read, self.bandwidth, self.copy)

    @property
    def write_bytes_per_s(self) -> float | None:
        return _first(self.write, self.bandwidth, self.copy)


class Fabric(Record, frozen=True):
    """The scale-up links of one device, and its share of the network beyond."""

    name: str
    bandwidth: Figure | None = None  # all links together, both directions
    domain: Figure | None = None  # devices that reach each other over it
    scale_out: Figure | None = None  # one direction


class Device(Record, frozen=True):
    """All that is known of one device. Its text form is one file of `hw/data`."""

    schema_version: int
    id: str
    name: str
    vendor: str
    kind: str  # "gpu" | "cpu" | "npu"
    sources: Mapping[str, Source]
    levels: tuple[Level, ...]  # nearest to the arithmetic first, device memory last
    architecture: str = ""
    launch_year: int | None = None
    form_factor: str = ""
    process_nm: int | None = None
    driver_names: tuple[str, ...] = ()
    announced: bool = False  # pre-release figures
    flagship: bool = False  # shown in the history of its vendor
    device_count: int = 1  # devices, as programs see them, whose figures this record sums
    note: str = ""
    power: Figure | None = None
    multiprocessors: Figure | None = None  # SMs, compute units, cores
    launch: Figure | None = None  # floor of one kernel when launches are queued or replayed
    dispatch: Figure | None = None  # one eager operator on an empty device, from Python
    atomic: Figure | None = None  # spread-out fp32 atomic adds
    matrix: Mapping[str, Figure] = NOTHING
    vector: Mapping[str, Figure] = NOTHING
    special: Mapping[str, Figure] = NOTHING  # by function, fp32
    random: Mapping[str, Figure] = NOTHING  # by generator
    achieved: Mapping[str, Figure] = NOTHING  # by kernel family: fraction of the limit
    matmul: Mapping[str, Mapping[int, Figure]] = NO_RATES  # measured, by format and size: (size, size) @ (size, size)
    fabric: Fabric | None = None

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ValueError(problem)

    def __hash__(self) -> int:
        return hash(self.id)

    # Plain numbers for the cost model.

    def peak_flops_per_s(self, number_format: str, matrix: bool) -> float | None:
        """Dense peak. For a matmul the better of both kinds of unit, since it may use either; else the vector units.

        A format without vector figure of its own is None: elementwise kernels compute in fp32 or fp64.
        """
        check_format(number_format)
        vector = _first(self.vector.get(number_format))
        best = _first(self.matrix.get(number_format)) if matrix else None
        return max((rate for rate in (vector, best) if rate is not None), default=None)

    def matmul_flops_per_s(self, number_format: str, flops: float) -> float | None:
        """Measured rate of a matmul of this many FLOP, read off between the sizes measured; None without any."""
        rates = self.matmul.get(number_format)
        if not rates:
            return None
        points = sorted((2.0 * size**3, rate.base) for size, rate in rates.items())
        for (low, rate_low), (high, rate_high) in pairwise(points):
            if low <= flops <= high:
                share = math.log(flops / low) / math.log(high / low)
                return float(rate_low * (rate_high / rate_low) ** share)
        if flops > points[-1][0]:
            return points[-1][1]
        return float(
            points[0][1] * (flops / points[0][0]) ** (1 / 3)
        )  # small ones: reuse, hence rate, goes with the edge

    @property
    def memory(self) -> Level:
        """Device memory, the farthest level."""
        return self.levels[-1]

    @property
    def memory_bytes(self) -> int | None:
        return self.memory.capacity_bytes

    @property
    def copy_bytes_per_s(self) -> float | None:
        return self.memory.bytes_per_s

    @property
    def read_bytes_per_s(self) -> float | None:
        return self.memory.read_bytes_per_s

    @property
    def write_bytes_per_s(self) -> float | None:
        return self.memory.write_bytes_per_s

    @property
    def special_per_s(self) -> float | None:
        """fp32 exponentials; `special` holds the other functions."""
        return _first(self.special.get("exp"))

    @property
    def random_per_s(self) -> float | None:
        """Numbers of the fastest generator known."""
        return max((figure.base for figure in self.random.values()), default=None)

    @property
    def launch_s(self) -> float | None:
        return _first(self.launch)

    @property
    def dispatch_s(self) -> float | None:
        return _first(self.dispatch)

    @property
    def atomic_per_s(self) -> float | None:
        return _first(self.atomic)

    @property
    def power_w(self) -> float | None:
        return _first(self.power)

    @property
    def multiprocessor_count(self) -> int | None:
        return None if self.multiprocessors is None else round(self.multiprocessors.base)

    @property
    def fabric_bytes_per_s(self) -> float | None:
        """Both directions together."""
        return None if self.fabric is None else _first(self.fabric.bandwidth)

    @property
    def fabric_domain(self) -> int | None:
        return None if self.fabric is None or self.fabric.domain is None else round(self.fabric.domain.base)

    @property
    def efficiency(self) -> Mapping[str, float]:
        """Fraction of the limit that kernels of a family were seen to reach."""
        return {family: figure.base for family, figure in self.achieved.items()}

    @property
    def is_measured(self) -> bool:
        """True when the memory's copy rate was measured and not read off a data sheet."""
        return self.memory.copy is not None and self.sources[self.memory.copy.source].confidence == "measured"

    # The ridge point.

    def ridge_flops_per_s(self, number_format: str) -> float | None:
        """The peak that the ridge point is taken at.

        fp32 is the vector rate where there is one, since elementwise kernels run there; every other format is the
        best of its units.
        """
        vector = self.peak_flops_per_s(number_format, matrix=False)
        if number_format == "fp32" and vector is not None:
            return vector
        return self.peak_flops_per_s(number_format, matrix=True)

    @property
    def ridge_bytes_per_s(self) -> float | None:
        """Data-sheet bandwidth, to stand against data-sheet peaks; the measured copy where there is no other."""
        return _first(self.memory.bandwidth, self.memory.copy)

    def ridge(self, number_format: str) -> float | None:
        """FLOP per number loaded from memory above which arithmetic, not memory, is the limit."""
        per_byte = self.ridge_per_byte(number_format)
        return None if per_byte is None else per_byte * FORMAT_BITS[number_format] / BITS_PER_BYTE

    def ridge_per_byte(self, number_format: str) -> float | None:
        """The same in FLOP per byte."""
        flops_per_s, bytes_per_s = self.ridge_flops_per_s(number_format), self.ridge_bytes_per_s
        return None if flops_per_s is None or bytes_per_s is None else flops_per_s / bytes_per_s


def check_format(number_format: str) -> None:
    """Raise BadOption for a number format that no device can have."""
    if number_format not in FORMAT_BITS:
        raise BadOption("format", number_format, "one of " + ", ".join(FORMAT_BITS))


def figures(device: Device) -> Iterator[tuple[str, Figure, str]]:
    """Every figure with its place in the file and the base unit that the place asks for."""
    for place, unit in (
        ("power", "W"),
        ("multiprocessors", "1"),
        ("launch", "s"),
        ("dispatch", "s"),
        ("atomic", "1/s"),
    ):
        if (figure := getattr(device, place)) is not None:
            yield place, figure, unit
    tables = (("matrix", "FLOP/s"), ("vector", "FLOP/s"), ("special", "1/s"), ("random", "1/s"), ("achieved", "1"))
    for place, unit in tables:
        for key, figure in getattr(device, place).items():
            yield f"{place}.{key}", figure, unit
    for level in device.levels:
        for part in ("capacity", "bandwidth", "copy", "read", "write"):
            if (figure := getattr(level, part)) is not None:
                yield f"levels.{part}", figure, "B" if part == "capacity" else "B/s"
    for number_format, rates in device.matmul.items():
        for size, figure in rates.items():
            yield f"matmul.{number_format}.{size}", figure, "FLOP/s"
    for part, unit in (("bandwidth", "B/s"), ("domain", "1"), ("scale_out", "B/s")):
        if device.fabric is not None and (figure := getattr(device.fabric, part)) is not None:
            yield f"fabric.{part}", figure, unit


def _problems(device: Device) -> Iterator[str]:
    """What makes a file unusable although each value has the right type."""
    if device.schema_version != 1:
        yield f"schema_version {device.schema_version} is not 1"
    if not device.levels:
        yield "levels is empty: device memory is needed at least"
    for number_format in (*device.matrix, *device.vector, *device.matmul):
        if number_format not in FORMAT_BITS:
            yield f"format '{number_format}' is none of {', '.join(FORMAT_BITS)}"
    for place, figure, unit in figures(device):
        if UNITS[figure.unit][1] != unit:
            yield f"{place} has unit '{figure.unit}', which is no {unit}"
        if figure.source not in device.sources:
            yield f"{place} names source '{figure.source}', which sources does not hold"
        if place.startswith(("matrix.", "vector.")) and not figure.dense:
            yield f"{place} must be a dense peak, with dense = true"


def _first(*choices: Figure | None) -> float | None:
    """The first known of several figures, in base units."""
    return next((figure.base for figure in choices if figure is not None), None)
