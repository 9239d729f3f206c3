"""The ridge tables against figures worked by hand: 125 x TFLOP/s x bits / (GB/s), to the nearest whole."""

import pytest

from ridgeline.hw import catalog
from ridgeline.hw.device import FORMAT_BITS
from ridgeline.hw.ridge import growth, history, list_row, ridge_row

# fp64 takes the tensor rate where it is higher, fp32 the ordinary one; tf32 occupies 32 bits.
TABLE = """\
device          fp64 fp32 tf32 fp16 bf16  fp8 fp6 fp4 int8 int4 spread
p100-sxm2         58   58    -   58    -    -   -   -    -    -      -
v100-sxm2-16      69   70    -  278    -    -   -   -    -    -      -
t4                 -  101    -  406    -    -   -   -  406  406   1.00
a100-80-sxm       77   38  306  306  306    -   -   -  306  306   1.00
l40s               -  424  847  838  838  848   -   -  848  424   2.00
h100-sxm         160   80  591  591  591  591   -   -  591    -   1.00
h200-sxm         112   56  412  412  412  412   -   -  412    -   1.00
h20                2   44   74   74   74   74   -   -   74    -   1.00
b100              30   30  438  438  438  438 328 438  438    -   1.00
b200              38   39  584  584  584  584 438 584  584    -   1.00
gb200-nvl72-gpu   40   40  625  625  625  625 469 625  625    -   1.00
gb200-nvl72       40   40  625  625  625  625 469 625  625    -   1.00
b300               1   39  581  581  581  581 435 903   20    -  45.60
gb300-nvl72-gpu    1   40  625  625  625  625 469 938   21    -  45.45
rubin-nvl72-gpu    -   24  364  364  364  795 597 795  114    -   7.00
rtx-5090           7  234  234  234  234  234 175 468  468    -   2.00
mi100             75   75    -  300  150    -   -   -  150   75   4.00
mi250x           234   58    -  234  234    -   -   -  117   58   4.00
mi300x           247  123  493  493  493  493   -   -  493    -   1.00
mi355x            79   79    -  629  629  629 944 629  629    -   1.00
tpu-v6e            -    -    -    - 1121  560   -   - 1121 1123   2.00
tpu-8t             -    -    -    -  306  920   - 969  153  920   6.33
trainium3          -  149  548  274  274  514   - 257    -    -   2.13
gaudi3             -  229  457  229  914  457   -   -    -    -   4.00
apple-m4-max       -  135    -   67    -    -   -   -    -    -      -
xeon-8480plus     93   93    -    -  747    -   -   -  747    -   1.00
"""


@pytest.mark.parametrize("line", TABLE.splitlines()[1:], ids=lambda line: line.split()[0])
def test_ridge_table(line: str) -> None:
    assert TABLE.split()[1:11] == list(FORMAT_BITS)
    identity, *cells, spread = line.split()
    row = ridge_row(catalog.load(identity))
    assert [f"{row.flop_per_number[f]:.0f}" if f in row.flop_per_number else "-" for f in FORMAT_BITS] == cells
    assert ("-" if row.spread is None else f"{row.spread:.2f}") == spread


def test_flop_per_byte() -> None:
    h100 = catalog.load("h100-sxm")
    assert h100.ridge_per_byte("bf16") == pytest.approx(989.4e12 / 3.35e12)
    assert h100.ridge_per_byte("fp8") == pytest.approx(590.7, abs=0.05)  # a number is a byte
    assert catalog.load("b200").ridge_per_byte("fp4") == pytest.approx(1168.8, abs=0.05)  # two numbers a byte
    assert h100.ridge("fp4") is None


def test_ridge_of_a_measured_device_stands_on_its_data_sheet() -> None:
    assert catalog.load("h200-sxm").ridge("bf16") == pytest.approx(989.4e12 * 2 / 4.8e12)


def test_history_of_nvidia() -> None:
    rows = {row.id: row for row in history(catalog.all_devices()) if row.vendor == "NVIDIA"}
    assert {"b100", "b200", "gb200-nvl72-gpu"} < set(rows) and "gb200-nvl72" not in rows
    shown = {
        row.id: (row.launch_year, round(row.flop_per_number_16bit), round(row.flop_per_number_best), row.best_format)
        for row in rows.values()
    }
    assert shown["p100-sxm2"] == (2016, 58, 58, "fp16")
    assert shown["h100-sxm"] == (2022, 591, 591, "fp8")
    assert shown["b100"] == (2024, 438, 438, "fp4")
    assert shown["b200"] == (2024, 584, 584, "fp4")
    assert shown["gb200-nvl72-gpu"] == (2024, 625, 625, "fp4")
    assert shown["gb300-nvl72-gpu"] == (2025, 625, 938, "fp4")
    assert round(rows["b200"].flop_per_byte_best) == 1169
    assert round(rows["gb300-nvl72-gpu"].flop_per_byte_best) == 1875
    years = [row.launch_year for row in rows.values()]
    assert years == sorted(years)


def test_growth() -> None:
    rows = {row.vendor: row for row in growth(catalog.all_devices())}
    nvidia = rows["NVIDIA"]
    assert (nvidia.first_id, nvidia.last_id, nvidia.years) == (
        "v100-sxm2-16",
        "gb300-nvl72-gpu",
        8,
    )  # Rubin is announced
    assert nvidia.flop_per_number_factor == pytest.approx(2.25)  # 625 / 277.8
    assert nvidia.flop_per_number_per_year == pytest.approx(0.107, abs=5e-4)  # 2.25 ** (1/8)
    assert nvidia.flop_per_byte_factor == pytest.approx(13.5)  # 1875 / 138.9
    assert rows["AMD"].first_id == "mi100"  # the MI50 has no matrix units


def test_list_row_leaves_unknown_unknown() -> None:
    row = list_row(catalog.load("tpu-v6e"))
    assert (row.power_w, row.flops_per_s_16bit, row.bytes_per_s) == (None, 918e12, 1638e9)
    assert row.memory_bytes == 34_400_000_000
