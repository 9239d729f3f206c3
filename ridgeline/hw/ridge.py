"""The ridge tables: what each device must do with a number it loads, and how that grew over the years.

ridge = dense peak FLOP/s x bits per number / bandwidth in bit/s: FLOP per number loaded from device memory. A kernel
that does less is bound by memory, one that does more by arithmetic. `Device.ridge` holds the formula; here are the
rows that tables, JSON and plots show. Takes devices, gives frozen records; prints nothing.

A spread of 1 says that halving the bits doubles the rate, so that a narrower format moves nothing but capacity.
fp6 stays out of the spread, since it runs at the rate of fp8 on some devices and of fp4 on others.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby

from ridgeline.hw.device import FORMAT_BITS, Device, Record

SPREAD_FORMATS = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")


class ListRow(Record, frozen=True):
    """One line of the list of devices. Rates in base units."""

    id: str
    name: str
    vendor: str
    launch_year: int | None
    announced: bool
    measured: bool
    flops_per_s_16bit: float | None
    memory_bytes: int | None
    bytes_per_s: float | None
    power_w: float | None
    flop_per_number_16bit: float | None


class RidgeRow(Record, frozen=True):
    """The ridge point of one device in every format it has."""

    id: str
    announced: bool
    bytes_per_s: float | None
    flops_per_s: Mapping[str, float]
    flop_per_number: Mapping[str, float]
    flop_per_byte: Mapping[str, float]
    spread: float | None  # largest over smallest FLOP per number among the formats of 32 bits and fewer, fp6 aside


class HistoryRow(Record, frozen=True):
    """The ridge point of a vendor's flagship in its year."""

    id: str
    vendor: str
    launch_year: int
    announced: bool
    flop_per_number_16bit: float
    flop_per_number_best: float
    best_format: str
    flop_per_byte_best: float


class GrowthRow(Record, frozen=True):
    """From a vendor's first flagship with matrix units to its latest that ships; factors and share a year."""

    vendor: str
    first_id: str
    last_id: str
    years: int
    flop_per_number_factor: float
    flop_per_number_per_year: float
    flop_per_byte_factor: float
    flop_per_byte_per_year: float


def list_row(device: Device) -> ListRow:
    """What `hardware list` shows of one device."""
    peaks = [device.ridge_flops_per_s(number_format) for number_format in ("fp16", "bf16")]
    return ListRow(
        id=device.id,
        name=device.name,
        vendor=device.vendor,
        launch_year=device.launch_year,
        announced=device.announced,
        measured=device.is_measured,
        flops_per_s_16bit=max((peak for peak in peaks if peak is not None), default=None),
        memory_bytes=device.memory_bytes,
        bytes_per_s=device.ridge_bytes_per_s,
        power_w=device.power_w,
        flop_per_number_16bit=_ridge_16bit(device),
    )


def ridge_row(device: Device) -> RidgeRow:
    """What `hardware ridge` shows of one device."""
    rates = {name: device.ridge_flops_per_s(name) for name in FORMAT_BITS}
    per_number = {name: device.ridge(name) for name in FORMAT_BITS}
    per_byte = {name: device.ridge_per_byte(name) for name in FORMAT_BITS}
    low = [value for name in SPREAD_FORMATS if (value := per_number[name]) is not None]
    return RidgeRow(
        id=device.id,
        announced=device.announced,
        bytes_per_s=device.ridge_bytes_per_s,
        flops_per_s=_known(rates),
        flop_per_number=_known(per_number),
        flop_per_byte=_known(per_byte),
        spread=max(low) / min(low) if len(low) > 1 else None,
    )


def history(devices: Iterable[Device]) -> tuple[HistoryRow, ...]:
    """The flagships of each vendor by year, within a year by ridge point."""
    rows = [row for device in devices if device.flagship and (row := _history_row(device)) is not None]
    return tuple(sorted(rows, key=lambda row: (row.vendor, row.launch_year, row.flop_per_number_16bit)))


def growth(devices: Iterable[Device]) -> tuple[GrowthRow, ...]:
    """How fast the ridge point of each vendor moved; announced devices and those without matrix units left out."""
    flagships = history(device for device in devices if device.matrix and not device.announced)
    rows = []
    for vendor, group in groupby(flagships, key=lambda row: row.vendor):
        first, *others = group
        if not others or (years := others[-1].launch_year - first.launch_year) == 0:
            continue
        last = others[-1]
        numbers = last.flop_per_number_16bit / first.flop_per_number_16bit
        per_byte = last.flop_per_byte_best / first.flop_per_byte_best
        rows.append(
            GrowthRow(
                vendor=vendor,
                first_id=first.id,
                last_id=last.id,
                years=years,
                flop_per_number_factor=numbers,
                flop_per_number_per_year=numbers ** (1 / years) - 1,
                flop_per_byte_factor=per_byte,
                flop_per_byte_per_year=per_byte ** (1 / years) - 1,
            )
        )
    return tuple(rows)


def _history_row(device: Device) -> HistoryRow | None:
    row, sixteen = ridge_row(device), _ridge_16bit(device)
    low = {name: row.flop_per_number[name] for name in SPREAD_FORMATS if name in row.flop_per_number}
    if sixteen is None or device.launch_year is None:
        return None
    # Formats often tie up to rounding of the data sheet: then the narrowest is meant.
    best = min((name for name in low if low[name] > 0.99 * max(low.values())), key=lambda name: FORMAT_BITS[name])
    return HistoryRow(
        id=device.id,
        vendor=device.vendor,
        launch_year=device.launch_year,
        announced=device.announced,
        flop_per_number_16bit=sixteen,
        flop_per_number_best=max(low.values()),
        best_format=best,
        flop_per_byte_best=max(row.flop_per_byte[name] for name in low),
    )


def _ridge_16bit(device: Device) -> float | None:
    points = (device.ridge("fp16"), device.ridge("bf16"))
    return max((point for point in points if point is not None), default=None)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
