"""What a kernel costs on a device, in the walk's terms: seconds from bytes, arithmetic and launches.

The same ceilings as `cost.limit`, read off once so that thousands of tries cost little. Where a device file lacks a
rate, that resource is free here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.cost.limit import UNKNOWN_LAUNCH_S
from ridgeline.hw.device import Device

# One arithmetic peak stands for all formats elementwise kernels compute in: they run on fp32 units, or fp64 ones.
FORMATS = ("fp32", "fp64")


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds per unit of each resource; `launch_s` per kernel."""

    byte_s: float
    flop_s: Mapping[str, float]
    special_s: float
    random_s: float
    launch_s: float

    def seconds(
        self, moved: int, flops: Mapping[str, float], special: float, random: float, launches: int = 1
    ) -> float:
        """The limit of one kernel plus its launch."""
        busiest = max(moved * self.byte_s, self.arithmetic(flops, special), random * self.random_s)
        return busiest + launches * self.launch_s

    def arithmetic(self, flops: Mapping[str, float], special: float) -> float:
        """Seconds that arithmetic alone takes."""
        return max((special * self.special_s, *(n * self.flop_s.get(f, 0.0) for f, n in flops.items())))


def price_of(device: Device) -> Price:
    """The prices of a device."""

    def per(rate: float | None) -> float:
        return 0.0 if not rate else 1.0 / rate

    launch = device.launch_s
    return Price(
        per(device.copy_bytes_per_s),
        {f: per(device.peak_flops_per_s(f, matrix=False)) for f in FORMATS},
        per(device.special_per_s),
        per(device.random_per_s),
        UNKNOWN_LAUNCH_S if launch is None else launch,
    )
