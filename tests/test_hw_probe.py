"""The measurement of this machine: what is run and counted, and the device that comes out.

Rates differ from run to run, so these tests hold what must hold on any machine, however busy.
"""

import os
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ridgeline.base.errors import BadOption
from ridgeline.base.units import GIB, KIB, MIB
from ridgeline.hw import catalog, file
from ridgeline.hw.device import Device, Figure, Level
from ridgeline.runtime import clock, probe, system
from ridgeline.runtime.system import Cache


def nothing(what: str, share: float) -> None:
    """No progress to show."""


class Told(clock.Clock):
    """A clock that runs the work once and tells the seconds it was given."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)

    def medians(self, *runs: clock.Run) -> list[float]:
        for run in runs:
            run(0)
        return [self.seconds.pop(0) for _ in runs]


def test_clock_gives_seconds_of_one_call() -> None:
    calls: list[int] = []

    def work(number: int) -> None:
        calls.append(number)
        torch.rand(200_000).sort()

    alone = clock.seconds_of(work, 1)
    median = clock.Clock().median(work)
    assert 0.02 * alone < median < 50 * alone
    assert len(calls) >= clock.FEWEST_SAMPLES


def test_waits_for_other_programs_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [0.5, 0.4, 0.05, 0.9]
    monkeypatch.setattr(clock, "busy_share", lambda threads: shares.pop(0))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert clock.wait_for_rest(2, 0.1) == 0.05  # the third time they rested
    monkeypatch.setattr(clock, "WAIT_S", 0.0)
    assert clock.wait_for_rest(2, 0.1) == 0.9


@pytest.mark.usefixtures("hurried")
def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "busy_share", lambda threads: 0.3)
    monkeypatch.setattr(probe, "busy_share", lambda threads: 0.5)
    assert "took 50% of the processor" in probe.measure("cpu", lambda _: None, nothing).note


def test_runs_touch_what_they_count() -> None:
    (copy, copied), *reads, (write, written) = probe._memory_runs("cpu", probe.Sweep(8192))
    assert copied == 8192  # 4096 read + 4096 written
    assert written == 8192  # the whole span
    assert [count for _, count in reads] == [8192] * 3
    target, source = copy(0), reads[0][0](0)
    assert isinstance(target, torch.Tensor) and target.numel() == 1024  # half the span in fp32
    assert isinstance(source, torch.Tensor) and source.item() > 100  # a sum of 2048 random numbers, not zeros
    filled = write(3)
    assert isinstance(filled, torch.Tensor) and bool((filled == 3.7).all()) and filled.numel() == 2048


def test_passes_go_over_one_small_span() -> None:
    runs = probe._memory_runs("cpu", probe.Sweep(32 * KIB, passes=64))
    # Of 8192 numbers 63 x 16 are the margin between passes; a copy has two such halves.
    assert runs[0][1] == 64 * 8 * (4096 - 1008)
    assert runs[-1][1] == 64 * 4 * (8192 - 1008)
    target = runs[0][0](0)
    assert isinstance(target, torch.Tensor) and target.untyped_storage().nbytes() == 32 * KIB


def test_bandwidth_is_the_slope_between_two_sweeps() -> None:
    large, small = probe.Sweep(4_000_000), probe.Sweep(1_000_000)
    told = Told(4e-3, 4e-3, 5e-3, 3e-3, 4e-3, 2e-3, 2e-3, 2e-3, 2e-3, 3.9e-3)
    copy, read, write = probe._bandwidths(told, large, small)
    assert copy == pytest.approx(3e6 / 2e-3)  # three million bytes more in two milliseconds more
    assert read == pytest.approx(3e6 / 1e-3)  # the best of three ways
    assert write == pytest.approx(4e6 / 4e-3)  # too little between them: the large one alone
    assert probe._bandwidths(Told(4e-3, 5e-3, 5e-3, 2e-3, 8e-3), large) == pytest.approx([1e9, 2e9, 0.5e9])


def test_nearer_levels_are_not_slower_than_farther_ones() -> None:
    def level(name: str, *rates: float) -> Level:
        copy, read, write = (Figure(rate, "GB/s", "measured") for rate in rates)
        return Level(name, copy=copy, read=read, write=write)

    near, middle, far = probe._rising((level("L1", 90, 10, 30), level("L2", 40, 15, 10), level("DRAM", 20, 20, 20)))
    assert [figure.value for figure in (near.copy, near.read, near.write) if figure] == [90, 20, 30]
    assert [figure.value for figure in (middle.copy, middle.read, middle.write) if figure] == [40, 20, 20]
    assert middle.read and middle.read.note == "as DRAM; 15 measured"
    assert far.read and far.read.value == 20


def test_matmul_rates_stop_where_the_next_size_would_take_too_long() -> None:
    told = Told(0.01, 0.06)  # eight times 0.06 s is over 0.4 s
    rates = probe._matmul_rates(told, {"fp32": torch.float32}, (16, 32, 64))
    assert {size: rate.base for size, rate in rates["fp32"].items()} == {
        16: pytest.approx(2 * 16**3 / 0.01, rel=1e-3),
        32: pytest.approx(2 * 32**3 / 0.06, rel=1e-3),
    }


def test_a_format_that_cannot_be_multiplied_is_unknown() -> None:
    assert probe._matmul_rates(Told(0.01), {"int4": torch.bool}, (16,)) == {}


def _cache_files(root: Path, cpu: int, index: int, level: str, kind: str, size: str, shared: str) -> None:
    folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(text + "\n")


def test_caches_count_instances_and_leave_instructions_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for cpu in (0, 1, 2):
        _cache_files(tmp_path, cpu, 0, "1", "Data", "48K", str(cpu))
        _cache_files(tmp_path, cpu, 1, "1", "Instruction", "32K", str(cpu))
        _cache_files(tmp_path, cpu, 2, "3", "Unified", "8192K", "0-2")
    assert system.caches(tmp_path) == (Cache("L1", 48 * KIB, 2), Cache("L3", 8 * MIB, 1))  # we may not run on cpu2
    assert system.caches(tmp_path / "nowhere") == ()


def test_name_and_memory_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nflags: x\n")
    assert system.processor_name(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert system.processor_name(tmp_path / "missing")
    assert 0 < system.memory_bytes() < 2**50


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement of small sizes, in a second or two."""
    monkeypatch.setattr(clock, "SAMPLE_S", 1e-4)
    monkeypatch.setattr(clock, "TIMING_S", 2e-3)
    monkeypatch.setattr(clock, "BUSY_S", 1e-2)
    monkeypatch.setattr(clock, "WAIT_S", 0.0)
    monkeypatch.setattr(probe, "CPU_SIZES", (32, 64))
    monkeypatch.setattr(probe, "caches", lambda: (Cache("L1", 32 * KIB, 2), Cache("L2", 1 * MIB, 2)))
    monkeypatch.setattr(probe, "memory_bytes", lambda: 64 * MIB)


def _settings() -> tuple[int, str]:
    return torch.get_num_threads(), torch.get_float32_matmul_precision()


@pytest.mark.usefixtures("hurried")
def test_measured_machine_becomes_the_default_device(tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("high")
    before, steps = _settings(), []
    device = probe.measure("cpu", lambda _: None, lambda what, share: steps.append((what, share)))
    assert _settings() == before
    torch.set_float32_matmul_precision("highest")

    assert [level.name for level in device.levels] == ["L1", "L2", "DRAM"]
    assert [level.capacity_bytes for level in device.levels] == [64 * KIB, 2 * MIB, 64 * MIB]
    assert all(level.copy and level.read and level.write for level in device.levels)
    assert device.is_measured and device.driver_names == (system.processor_name(),)
    assert {"fp32", "fp64"} == set(device.vector) and {"fp32", "fp64", "bf16"} <= set(device.matmul)
    assert device.vector["fp32"].value == max(rate.value for rate in device.matmul["fp32"].values())
    assert device.special_per_s and device.random_per_s and device.dispatch_s
    assert device.dispatch_s < 1e-2
    assert {"pointwise", "reduction", "softmax", "norm"} == set(device.efficiency)
    assert all(0 < share <= 1 for share in device.efficiency.values())
    shares = [share for _, share in steps]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] < 1

    file.write(device, tmp_path)
    assert catalog.this_machine(folder=tmp_path) == device
    assert catalog.this_machine("cuda", tmp_path) is None
    assert catalog.all_devices(tmp_path)[0].id == "this-machine"
    assert catalog.find(device.name, tmp_path) is None  # not by its name: it is no part of the catalogue


@pytest.mark.usefixtures("hurried")
def test_generators_are_left_as_they_were() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1).item()
    torch.manual_seed(3)
    probe.measure("cpu", lambda _: None, nothing)
    assert torch.rand(1).item() == expected


@pytest.mark.usefixtures("hurried")
def test_the_callers_faster_kernels_count() -> None:
    kernels = {"DRAM.copy": lambda: 9e15, "exp": lambda: 8e15, "log": lambda: 1.0}
    device: Device = probe.measure("cpu", lambda _: None, nothing, kernels)
    assert device.copy_bytes_per_s == 9e15 and device.levels[0].bytes_per_s == 9e15  # no level is slower than DRAM
    assert device.special_per_s == 8e15
    assert device.special["log"].base > 1e6  # PyTorch's own, which is faster


class Pretended(clock.CudaClock):
    """An accelerator's clock on the processor: everything but the graphs and events."""

    device = "cpu"
    medians = clock.Clock.medians
    _timer = clock.Clock._timer


def _pretend(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    properties = SimpleNamespace(name=name, L2_cache_size=1 * MIB, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (64 * MIB, 128 * MIB))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", lambda code: lambda values: values)
    monkeypatch.setattr(torch.random, "fork_rng", lambda _: nullcontext())
    monkeypatch.setattr(probe, "CudaClock", Pretended)
    monkeypatch.setattr(probe, "CUDA_SIZES", (32, 64))
    monkeypatch.setattr(probe, "CUDA_NUMBERS", 1 << 12)


@pytest.mark.usefixtures("hurried")
def test_accelerator_keeps_its_data_sheet_beside_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _pretend(monkeypatch, "NVIDIA H200")
    device = probe.measure("cuda", lambda name: catalog.find(name, tmp_path), nothing)
    assert device.id == "this-machine-cuda" and device.vendor == "NVIDIA"
    assert device.peak_flops_per_s("bf16", matrix=True) == 989.4e12
    assert device.memory.bandwidth and device.memory.bandwidth.base == 4.8e12
    assert device.memory.copy and device.copy_bytes_per_s == device.memory.copy.base < 1e12
    assert device.memory_bytes == 128 * MIB and device.levels[0].capacity_bytes == 1 * MIB
    assert {"fp32", "tf32", "bf16", "int8"} <= set(device.matmul)
    assert {"exp", "erf", "division"} <= set(device.special)
    assert device.launch_s and device.dispatch_s and device.atomic_per_s
    assert file.read(file.write(device, tmp_path)) == catalog.this_machine("cuda", tmp_path) == device


@pytest.mark.usefixtures("hurried")
def test_accelerator_that_the_catalogue_lacks_has_measured_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "NVIDIA Z900")
    device = probe.measure("cuda", lambda _: None, nothing)
    assert device.memory.bandwidth is None and device.power_w is None
    assert device.matrix["bf16"].value == max(rate.value for rate in device.matmul["bf16"].values())
    assert set(device.vector) == {"fp32"} and "fp32" not in device.matrix


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_accelerator_is_one_clear_line() -> None:
    with pytest.raises(BadOption, match="torch sees no accelerator"):
        probe.measure("cuda", lambda _: None, nothing)


@pytest.mark.slow
def test_whole_measurement_of_this_machine() -> None:
    device = probe.measure("cpu", catalog.find, nothing)
    assert device.memory_bytes and device.memory_bytes > 2**-4 * GIB
    assert device.copy_bytes_per_s and 1e9 < device.copy_bytes_per_s < 1e13
    assert device.efficiency["pointwise"] > 0.05
