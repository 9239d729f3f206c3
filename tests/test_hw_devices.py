"""The device files, the records they become, and finding one by id or by a driver's name."""

import re
from pathlib import Path

import pytest

from ridgeline.base.errors import BadDeviceFile, BadOption, BadOutput, NotMeasured, UnknownDevice
from ridgeline.hw import catalog, file
from ridgeline.hw.device import CONFIDENCES, Device, figures

SHIPPED = sorted(path.stem for path in catalog.DATA.glob("*.toml"))

# A device as a user might write it by hand.
HAND_WRITTEN = """\
schema_version = 1
id = "mine"
name = "My accelerator"
vendor = "Me"
kind = "gpu"

[sources]
sheet = { title = "Data sheet", confidence = "vendor-datasheet" }

[[levels]]
name = "DRAM"
bandwidth = { value = 1000, unit = "GB/s", source = "sheet" }

[matrix]
bf16 = { value = 200, unit = "TFLOP/s", source = "sheet", dense = true }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(HAND_WRITTEN)
    return tmp_path


def test_every_row_of_the_fact_table_is_a_file() -> None:
    assert len(SHIPPED) == 65
    assert {"p100-sxm2", "h20", "gb200-nvl72", "rubin-nvl72-gpu", "mi455x", "tpu-8i", "epyc-9654"} < set(SHIPPED)


@pytest.mark.parametrize("identity", SHIPPED)
def test_file_is_whole(identity: str) -> None:
    path = catalog.DATA / f"{identity}.toml"
    device = file.read(path)
    placed = list(figures(device))
    assert {figure.source for _, figure, _ in placed} == set(device.sources), "a source that no figure names"
    assert all(source.title and source.confidence in CONFIDENCES for source in device.sources.values())
    assert all(figure.dense for place, figure, _ in placed if place.startswith(("matrix.", "vector.")))
    assert device.ridge_bytes_per_s is not None and device.launch_year is not None
    assert file.to_toml(device) == path.read_text(), "the writer and the file disagree"


def test_figures_of_the_h200() -> None:
    device = catalog.load("h200-sxm")
    assert device.peak_flops_per_s("bf16", matrix=True) == 989.4e12
    assert device.peak_flops_per_s("bf16", matrix=False) is None  # no figure for bf16 outside the tensor cores
    assert device.peak_flops_per_s("fp32", matrix=False) == 67e12
    assert device.peak_flops_per_s("fp32", matrix=True) == 67e12  # no tensor cores for fp32: the vector units do it
    assert device.peak_flops_per_s("fp64", matrix=False) == 34e12
    assert device.peak_flops_per_s("fp64", matrix=True) == 67e12
    assert device.peak_flops_per_s("fp4", matrix=True) is None
    assert device.copy_bytes_per_s == 4.26e12  # measured, not the 4.8e12 of the data sheet
    assert (device.read_bytes_per_s, device.write_bytes_per_s) == (4.61e12, 4.68e12)
    assert [level.name for level in device.levels] == ["L2", "DRAM"]
    assert device.levels[0].capacity_bytes == 60 * 2**20
    assert device.levels[0].bytes_per_s is None
    assert device.memory_bytes == 141 * 2**30
    assert device.special_per_s == 4.1e12
    assert device.special["erf"].base == 0.97e12
    assert device.random_per_s == 1.004e12
    assert device.launch_s == 1e-6
    assert device.dispatch_s == pytest.approx(21e-6)
    assert device.atomic_per_s == 75e9
    assert (device.power_w, device.multiprocessor_count) == (700, 132)
    assert (device.fabric_bytes_per_s, device.fabric_domain) == (900e9, 8)
    assert device.efficiency["matmul"] == pytest.approx(0.775)
    assert device.is_measured


def test_unmeasured_device_falls_back_to_its_data_sheet_and_leaves_unknown_unknown() -> None:
    device = catalog.load("rubin-nvl72-gpu")
    assert device.copy_bytes_per_s == device.read_bytes_per_s == device.write_bytes_per_s == 22e12
    assert device.announced and not device.is_measured
    unknown = (device.power_w, device.launch_s, device.special_per_s, device.random_per_s, device.multiprocessor_count)
    assert unknown == (None,) * 5
    assert device.efficiency == {}
    assert device.matmul_flops_per_s("bf16", 1e12) is None


def test_formats_that_vendors_traded_off() -> None:
    b300 = catalog.load("b300")
    assert b300.peak_flops_per_s("int8", matrix=True) == 153.5e12  # a twenty-ninth of its fp8
    assert b300.peak_flops_per_s("fp4", matrix=True) == 14e15
    assert catalog.load("mi250x").peak_flops_per_s("fp32", matrix=True) == 95.7e12  # its matrix cores do fp32 ...
    assert catalog.load("mi250x").peak_flops_per_s("fp32", matrix=False) == 47.9e12  # ... twice as fast
    with pytest.raises(BadOption, match="'fp12'"):
        b300.peak_flops_per_s("fp12", matrix=True)


def test_measured_matmul_rate_between_outside_and_at_the_sizes() -> None:
    device = catalog.load("h200-sxm")
    small, large = 2 * 2048**3, 2 * 4096**3
    assert device.matmul_flops_per_s("bf16", small) == 398e12
    middle = device.matmul_flops_per_s("bf16", (small * large) ** 0.5)
    assert middle == pytest.approx((398 * 718) ** 0.5 * 1e12)  # halfway on both logarithmic scales
    assert device.matmul_flops_per_s("bf16", small / 8) == pytest.approx(199e12)  # half the edge, half the reuse
    assert device.matmul_flops_per_s("bf16", 1e18) == 678e12  # the largest size measured


@pytest.mark.parametrize(
    ("driver", "identity"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40-sxm"),
        ("NVIDIA A100-PCIE-40GB", "a100-40-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32"),
        ("Tesla T4", "t4"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200-nvl72-gpu"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD EPYC 9654 96-Core Processor", "epyc-9654"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-8480plus"),
        ("TPU v5 lite", "tpu-v5e"),
        ("h100_sxm", "h100-sxm"),
        ("H100", "h100-sxm"),
    ],
)
def test_driver_name_finds_its_device(driver: str, identity: str, tmp_path: Path) -> None:
    found = catalog.find(driver, tmp_path)
    assert found is not None and found.id == identity


@pytest.mark.parametrize(
    "driver",
    [
        "NVIDIA H200 NVL",  # a slower card than the H200 SXM
        "NVIDIA H100 64GB HBM2e",  # other memory than the SXM5 card's
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # a slice of a card
        "NVIDIA A100",  # four cards bear the name
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A10G",
        "Quadro RTX 6000",
        "Intel(R) Xeon(R) Processor",
        "",
    ],
)
def test_near_miss_finds_nothing(driver: str, tmp_path: Path) -> None:
    assert catalog.find(driver, tmp_path) is None


def test_users_folder_adds_and_overrides(folder: Path) -> None:
    assert catalog.load("mine", folder).ridge("bf16") == 400  # 200e12 x 16 / (1000e9 x 8)
    assert "mine" in catalog.known_ids(folder)
    (folder / "t4.toml").write_text(HAND_WRITTEN.replace('"mine"', '"t4"'))
    assert catalog.load("t4", folder).vendor == "Me"
    assert len(catalog.all_devices(folder)) == 66


def test_unknown_device_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownDevice, match="Did you mean 'mi300x'"):
        catalog.load("m1300x", tmp_path)
    with pytest.raises(UnknownDevice, match="Did you mean 'h200-sxm'"):
        catalog.Hardware()["h200sxm"]
    with pytest.raises(NotMeasured, match="hardware measure"):
        catalog.load("this-machine", tmp_path)
    assert catalog.this_machine(folder=tmp_path) is None


def test_hardware_by_id() -> None:
    hardware = catalog.Hardware()
    assert hardware["b200"].ridge("fp8") == pytest.approx(584.4, abs=0.05)  # 4500e12 x 8 / (7.7e12 x 8)
    assert "b200" in hardware and "b2000" not in hardware
    assert len(hardware) == len(list(hardware)) >= 65


@pytest.mark.parametrize(
    ("written", "instead", "line", "why"),
    [
        ("[matrix]", "[matrix", 14, "not TOML"),
        ('unit = "GB/s"', 'unit = "GBs"', 12, "unit 'GBs'"),
        ("value = 200", 'value = "200"', 15, "Expected `float`"),
        ("value = 200", "value = -2", 15, "not a positive number"),
        ("bandwidth =", "bandwith =", 12, "unknown field `bandwith`"),
        ("bf16 =", "bf17 =", 15, "format 'bf17'"),
        ("dense = true", "dense = false", 15, "must be a dense peak"),
        ('source = "sheet", dense', 'source = "sheat", dense', 15, "source 'sheat'"),
        ('unit = "TFLOP/s"', 'unit = "W"', 15, "unit 'W'"),
        ('confidence = "vendor-datasheet"', 'confidence = "sure"', 8, "confidence 'sure'"),
        ('id = "mine"', 'id = "yours"', 2, "differs from the file's name"),
    ],
)
def test_malformed_file_is_one_line_with_file_and_line(
    folder: Path, written: str, instead: str, line: int, why: str
) -> None:
    path = folder / "mine.toml"
    assert written in HAND_WRITTEN
    path.write_text(HAND_WRITTEN.replace(written, instead))
    with pytest.raises(BadDeviceFile) as raised:
        catalog.load("mine", folder)
    message = str(raised.value)
    assert "\n" not in message and str(path) in message and why in message
    assert re.search(rf"line {line}\b", message), message


def test_missing_field_and_unreadable_file(folder: Path) -> None:
    (folder / "mine.toml").write_text(HAND_WRITTEN.replace('vendor = "Me"\n', ""))
    with pytest.raises(BadDeviceFile, match="missing required field `vendor`"):
        catalog.load("mine", folder)
    (folder / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadDeviceFile, match="utf-8"):
        catalog.load("mine", folder)


def test_writing_leaves_one_file_that_reads_back(tmp_path: Path) -> None:
    device = catalog.load("h200-sxm", tmp_path)
    path = file.write(device, tmp_path / "new" / "devices")
    assert file.read(path) == device
    assert [entry.name for entry in path.parent.iterdir()] == ["h200-sxm.toml"]


def test_text_with_quotes_and_dates_reads_back(folder: Path) -> None:
    awkward = HAND_WRITTEN.replace("My accelerator", 'A \\"fast\\" one \\\\ é')
    (folder / "mine.toml").write_text(awkward.replace('-datasheet" }', '-datasheet", checked = 2026-11-30 }'))
    device = catalog.load("mine", folder)
    assert device.name == 'A "fast" one \\ é'
    (folder / "again").mkdir()
    assert file.read(file.write(device, folder / "again")) == device


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    device: Device = catalog.load("t4", tmp_path)
    with pytest.raises(BadOutput, match="nothing was written"):
        file.write(device, tmp_path / "taken" / "devices")
    with pytest.raises(BadOutput):
        file.check_folder(tmp_path / "taken" / "devices")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]
