"""Conversions and printed units, the one place where 1e9 is written.

Rates and traffic are decimal (GB = 10^9 bytes), capacity is binary (GiB = 2^30 bytes), one multiply-add
is two FLOP. Takes plain numbers in base units (bytes, seconds, FLOP); gives strings with their unit.
"""

KILO, MEGA, GIGA, TERA, PETA = 1e3, 1e6, 1e9, 1e12, 1e15
KIB, MIB, GIB = 2**10, 2**20, 2**30
BITS_PER_BYTE = 8

# Units as written in device files: factor to the base unit, and that base unit.
UNITS: dict[str, tuple[float, str]] = {
    "TFLOP/s": (TERA, "FLOP/s"),
    "TOP/s": (TERA, "FLOP/s"),
    "TB/s": (TERA, "B/s"),
    "GB/s": (GIGA, "B/s"),
    "Gbit/s": (GIGA / BITS_PER_BYTE, "B/s"),
    "GB": (GIGA, "B"),
    "GiB": (GIB, "B"),
    "MiB": (MIB, "B"),
    "KiB": (KIB, "B"),
    "G/s": (GIGA, "1/s"),
    "us": (1e-6, "s"),
    "W": (1.0, "W"),
    "count": (1.0, "1"),
    "fraction": (1.0, "1"),
}

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL = ((PETA, "P"), (TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"))


def format_s(seconds: float | None) -> str:
    """A duration with three significant digits: `1.23 ms`; `-` when unknown."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    for scale, unit in _TIMES:
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}" if abs(seconds) < 999.5 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def format_si(value: float | None, unit: str) -> str:
    """A decimal quantity: `format_si(3.2e9, "B")` is `3.2 GB`; `-` when unknown."""
    if value is None:
        return "-"
    for scale, prefix in _DECIMAL:
        if abs(value) >= scale:
            return (
                f"{value / scale:.3g} {prefix}{unit}"
                if abs(value) < 999.5 * scale
                else (f"{value / scale:.0f} {prefix}{unit}")
            )
    return f"{value:.3g} {unit}"


def format_bytes(count: float | None) -> str:
    """Traffic in decimal units: kB, MB, GB."""
    return format_si(count, "B")


def format_capacity(count: float | None) -> str:
    """Memory capacity in binary units: `16.00 GiB`."""
    if count is None:
        return "-"
    for scale, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def format_flops(count: float | None) -> str:
    """A count of operations: `12.6 MFLOP`."""
    return format_si(count, "FLOP")
