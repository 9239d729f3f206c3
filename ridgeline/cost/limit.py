"""Work on a device -> the least time it allows, what binds, and the time to expect.

The kernel limit is the largest of a kernel's own Work over each ceiling: bytes at each memory level, arithmetic per
number format, matrix units, special functions, random numbers. A prediction is the limit corrected by what is known
of real kernels - a floor per launch and the efficiency of the kernel's family - and never under it. A resource whose
rate the device file does not know sets no limit.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.base.records import Limit, Prediction, Work
from ridgeline.hw.device import FORMAT_BITS, Device

# A kernel that writes less than this share of what it reads is held against the read ceiling, not copy.
REDUCTION_SHARE = 1 / 16
# Fraction of the limit that kernels reach where a device was not calibrated, and how far off that may be. From
# 35,700 bf16 matmul shapes a device (aiconfigurator 0.12 data): large kernels at 1.15-1.4 times the roofline.
UNCALIBRATED_EFFICIENCY = 0.8
UNCALIBRATED_SPREAD = 2.0
CALIBRATED_SPREAD = 1.3
# Floor of one launch where the device file has none: 1.5-2.5 us on data-centre GPUs in the same data.
UNKNOWN_LAUNCH_S = 2e-6
# What an operator of eager mode costs its host where the device file has nothing: pytorch/pytorch#82793.
UNKNOWN_DISPATCH_S = 4e-6

NOTHING: Mapping[str, int] = MappingProxyType({})


def memory_seconds(work: Work, device: Device, near: Mapping[str, int] = NOTHING) -> dict[str, float]:
    """Seconds at each memory level; `near` holds the bytes that a level nearer than device memory still has."""
    out: dict[str, float] = {}
    far = max(work.bytes - sum(near.values()), 0)
    pure_reduction = work.bytes_written < REDUCTION_SHARE * work.bytes_read
    rate = device.read_bytes_per_s if pure_reduction else device.copy_bytes_per_s
    if rate is not None and far:
        out["memory"] = far / rate
    for level in device.levels[:-1]:
        rate = level.read_bytes_per_s if pure_reduction else level.bytes_per_s
        if near.get(level.name) and rate is not None:
            out[level.name] = near[level.name] / rate
    return out


def arithmetic_seconds(work: Work, device: Device) -> dict[str, float]:
    """Seconds on each arithmetic resource."""
    out: dict[str, float] = {}
    matrix = work.matmul_flops > 0
    for number_format, flops in (work.flops or {}).items():
        if number_format not in FORMAT_BITS or not flops:
            continue
        peak = device.peak_flops_per_s(number_format, matrix)
        if peak is not None:
            out[f"{number_format} matmul" if matrix else number_format] = flops / peak
    for name, count, rate in (
        ("special functions", work.special_ops, device.special_per_s),
        ("random numbers", work.random_numbers, device.random_per_s),
    ):
        if count and rate is not None:
            out[name] = count / rate
    fabric = device.fabric_bytes_per_s
    if work.collective_bytes and fabric is not None:
        out["fabric"] = work.collective_bytes / fabric
    return out


def kernel_limit(work: Work, device: Device, near: Mapping[str, int] = NOTHING) -> Limit:
    """The kernel limit, and the resource that binds."""
    resources = memory_seconds(work, device, near) | arithmetic_seconds(work, device)
    if not resources:
        return Limit(0.0, "nothing", resources)
    binds = max(resources, key=lambda name: resources[name])
    return Limit(resources[binds], binds, resources)


def predict(work: Work, limit: Limit, device: Device, family: str, eager: bool = False) -> Prediction:
    """Expected seconds of one call, with an interval."""
    known = device.efficiency
    efficiency = known.get(family, known.get("kernel"))
    calibrated = efficiency is not None
    known_s, unknown_s = (device.dispatch_s, UNKNOWN_DISPATCH_S) if eager else (device.launch_s, UNKNOWN_LAUNCH_S)
    floor = (unknown_s if known_s is None else known_s) * work.launches
    seconds = limit.seconds / (efficiency if efficiency is not None else UNCALIBRATED_EFFICIENCY)
    if work.matmul_flops and work.flops:
        rates = (
            (flops, device.matmul_flops_per_s(number_format, flops))
            for number_format, flops in work.flops.items()
            if number_format in FORMAT_BITS
        )
        measured = sum(flops / rate for flops, rate in rates if rate is not None)
        if measured:
            seconds, calibrated = max(measured, limit.seconds), True
    seconds = max(seconds + floor, limit.seconds)
    spread = CALIBRATED_SPREAD if calibrated else UNCALIBRATED_SPREAD
    return Prediction(seconds, max(seconds / spread, limit.seconds), seconds * spread, calibrated)
