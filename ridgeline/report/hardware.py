"""Prints hardware tables: the list of devices, one device, ridge points, their history, a measurement.

Takes the records of `hw/ridge.py` and `hw/device.py` and a console; gives text. Computes nothing but units. Tables fit
80 columns, keep their lines whole in a pipe, show unknown as "-" and name the unit of each column.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn
from rich.text import Text

from ridgeline.base.units import GIB, GIGA, TERA, format_capacity, format_s
from ridgeline.hw.device import FORMAT_BITS, Device, Figure, Level
from ridgeline.hw.ridge import GrowthRow, HistoryRow, ListRow, RidgeRow
from ridgeline.report.tables import footnotes, paragraph, plain_table


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """A function to call with what is being done and the share done: a bar on a terminal, nothing in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, share: None
        return
    with Progress(
        "measuring {task.description}", BarColumn(), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def print_list(rows: Sequence[ListRow], console: Console) -> None:
    """All devices, one a line."""
    table = plain_table(
        "device", ("vendor", "left"), "year", "16-bit\nTFLOP/s", "memory\nGiB", "memory\nGB/s", "power\nW", "ridge"
    )
    for row in rows:
        table.add_row(
            _name(row.id, row.announced),
            row.vendor,
            "-" if row.launch_year is None else str(row.launch_year),
            _whole(_scaled(row.flops_per_s_16bit, TERA), 1),
            _whole(_scaled(row.memory_bytes, GIB)),
            _whole(_scaled(row.bytes_per_s, GIGA)),
            _whole(row.power_w),
            _whole(row.flop_per_number_16bit),
        )
    console.print(table)
    footnotes(
        console,
        "ridge: FLOP per 16-bit number loaded from memory above which arithmetic is the limit.",
        "* announced, figures may change." if any(row.announced for row in rows) else "",
    )


def print_ridge(rows: Sequence[RidgeRow], console: Console, per_byte: bool = False) -> None:
    """Ridge points of many devices in every format, and their spread."""
    table = plain_table("device", *FORMAT_BITS, "spread")
    for row in rows:
        points = row.flop_per_byte if per_byte else row.flop_per_number
        cells = [_whole(points.get(name)).replace(",", "") for name in FORMAT_BITS]
        table.add_row(_name(row.id, row.announced), *cells, "-" if row.spread is None else f"{row.spread:.2f}")
    console.print(table)
    footnotes(
        console,
        f"FLOP per {'byte' if per_byte else 'number'} loaded from memory; dense peaks.",
        "spread: largest over smallest FLOP per number from tf32 to int4, fp6 aside; 1 means equal in all.",
        "* announced, figures may change." if any(row.announced for row in rows) else "",
    )


def print_ridge_format(rows: Sequence[RidgeRow], number_format: str, console: Console) -> None:
    """Ridge points of many devices in one format, with the two rates they come from."""
    table = plain_table(
        "device", f"{number_format}\nTFLOP/s", "memory\nGB/s", "ridge, FLOP\nper number", "ridge, FLOP\nper byte"
    )
    for row in rows:
        table.add_row(
            _name(row.id, row.announced),
            _whole(_scaled(row.flops_per_s.get(number_format), TERA), 1),
            _whole(_scaled(row.bytes_per_s, GIGA)),
            _whole(row.flop_per_number.get(number_format), 1),
            _whole(row.flop_per_byte.get(number_format), 1),
        )
    console.print(table)
    footnotes(console, "* announced, figures may change." if any(row.announced for row in rows) else "")


def print_history(rows: Sequence[HistoryRow], growth: Sequence[GrowthRow], console: Console) -> None:
    """Ridge points of each vendor's flagships over the years, with a bar, and the growth."""
    widest = max((row.flop_per_number_16bit for row in rows), default=1.0)
    table = plain_table(
        ("vendor", "left"), "year", ("device", "left"), "16-bit\nridge", ("", "left"), "best\nridge", ("", "left"),
        "best, FLOP\nper byte",
    )  # fmt: skip
    vendor, bar = "", "█" if console.encoding.startswith("utf") else "#"
    for row in rows:
        table.add_row(
            row.vendor if row.vendor != vendor else "",
            str(row.launch_year),
            _name(row.id, row.announced),
            _whole(row.flop_per_number_16bit),
            bar * max(1, round(20 * row.flop_per_number_16bit / widest)),
            _whole(row.flop_per_number_best),
            row.best_format,
            _whole(row.flop_per_byte_best),
        )
        vendor = row.vendor
    console.print(table)
    footnotes(console, "ridge: FLOP per number loaded from memory; dense peaks.", "* announced, not shipping.")
    console.print()
    _print_growth(growth, console)


def _print_growth(growth: Sequence[GrowthRow], console: Console) -> None:
    table = plain_table(
        ("growth", "left"), ("from", "left"), ("to", "left"), "years", "FLOP per\nnumber", "\na year", "FLOP per\nbyte",
        "\na year",
    )  # fmt: skip
    for row in growth:
        table.add_row(
            row.vendor,
            row.first_id,
            row.last_id,
            str(row.years),
            f"x{row.flop_per_number_factor:.1f}",
            f"{row.flop_per_number_per_year:+.0%}",
            f"x{row.flop_per_byte_factor:.1f}",
            f"{row.flop_per_byte_per_year:+.0%}",
        )
    console.print(table)
    footnotes(
        console, "From the first part with matrix units to the latest that ships; FLOP per number at 16 bits, per byte "
        "at the best format."
    )  # fmt: skip


def print_device(device: Device, console: Console) -> None:
    """One device in full: every figure with its source."""
    year = "" if device.launch_year is None else str(device.launch_year)
    process = "" if device.process_nm is None else f"{device.process_nm} nm"
    facts = [device.vendor, device.architecture, year, device.form_factor, process, "announced" * device.announced]
    console.print(Text(device.name, style="bold"), f"({device.id})")
    console.print(", ".join(fact for fact in facts if fact))
    if device.driver_names:
        console.print("Drivers call it: " + ", ".join(device.driver_names))
    if device.device_count > 1:
        console.print(f"Figures are the sum of {device.device_count} devices as programs see them.")
    _print_peaks(device, console)
    _print_levels(device.levels, console)
    _print_matmul(device, console)
    _print_others(device, console)
    console.print()
    console.print(Text("Sources", style="bold"))
    for key, source in device.sources.items():
        checked = "" if source.checked is None else f", {source.checked.isoformat()}"
        paragraph(console, f"{key}: {source.title} [{source.confidence}{checked}]", "  ")
        if source.url:
            console.print(Text(f"    {source.url}"), soft_wrap=True)
    if device.note:
        console.print()
        paragraph(console, f"Note: {device.note}", "")


def _print_peaks(device: Device, console: Console) -> None:
    table = plain_table(
        "dense peak", "matrix\nTFLOP/s", "vector\nTFLOP/s", "ridge, FLOP\nper number", "ridge, FLOP\nper byte",
        ("source", "left"),
    )  # fmt: skip
    for name in FORMAT_BITS:
        known = [peak for peak in (device.matrix.get(name), device.vector.get(name)) if peak is not None]
        if known:
            table.add_row(
                name,
                _figure(device.matrix.get(name), TERA),
                _figure(device.vector.get(name), TERA),
                _whole(device.ridge(name), 1),
                _whole(device.ridge_per_byte(name), 1),
                ", ".join(dict.fromkeys(peak.source for peak in known)),
            )
    console.print()
    console.print(table)


def _print_levels(levels: Iterable[Level], console: Console) -> None:
    table = plain_table(
        "memory", "capacity", "data sheet\nGB/s", "copy\nGB/s", "read\nGB/s", "write\nGB/s", ("source", "left")
    )
    for level in levels:
        known = [f for f in (level.capacity, level.bandwidth, level.copy, level.read, level.write) if f is not None]
        table.add_row(
            f"{level.name} {level.technology}".strip(),
            format_capacity(level.capacity_bytes),
            *(_figure(figure, GIGA) for figure in (level.bandwidth, level.copy, level.read, level.write)),
            ", ".join(dict.fromkeys(figure.source for figure in known)),
        )
    console.print()
    console.print(table)


def _print_matmul(device: Device, console: Console) -> None:
    if not device.matmul:
        return
    sizes = sorted({size for rates in device.matmul.values() for size in rates})
    table = plain_table("square matmul,\nmeasured TFLOP/s", *(str(size) for size in sizes), ("source", "left"))
    for name, rates in device.matmul.items():
        sources = dict.fromkeys(figure.source for figure in rates.values())
        table.add_row(name, *(_figure(rates.get(size), TERA) for size in sizes), ", ".join(sources))
    console.print()
    console.print(table)


def _print_others(device: Device, console: Console) -> None:
    table = plain_table("other figures", ("value", "right"), ("source", "left"), ("", "left"))

    def row(label: str, figure: Figure | None, text: str | None = None) -> None:
        if figure is not None:
            table.add_row(label, text or f"{_number(figure.value)} {figure.unit}", figure.source, figure.note)

    row("power", device.power)
    row("multiprocessors", device.multiprocessors, str(device.multiprocessor_count))
    row("launch of a kernel", device.launch, format_s(device.launch_s))
    row("eager operator", device.dispatch, format_s(device.dispatch_s))
    for name, figure in device.special.items():
        row(f"fp32 {name}", figure)
    for name, figure in device.random.items():
        row(f"random, {name}", figure)
    row("fp32 atomic adds", device.atomic)
    for name, figure in device.achieved.items():
        row(f"{name} efficiency", figure, f"{figure.value:.0%}")
    if device.fabric is not None:
        row(device.fabric.name, device.fabric.bandwidth)
        row("devices in its domain", device.fabric.domain, str(device.fabric_domain))
        row("network", device.fabric.scale_out)
    if table.row_count:
        console.print()
        console.print(table)


def _name(identity: str, announced: bool) -> str:
    return f"{identity} *" if announced else identity


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def _figure(figure: Figure | None, scale: float) -> str:
    return _number(None if figure is None else figure.base / scale)


def _whole(value: float | None, digits: int = 0) -> str:
    """A number with so many digits after the point, thousands apart; for columns."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _number(value: float | None) -> str:
    """A number with the digits its source gives, no exponent."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.4g}"
