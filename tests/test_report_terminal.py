"""The account as text: golden at 100 columns, whole lines in a pipe, plain signs where the stream has no others."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from accounts import EMPTY, GPT, GRAPHS
from rich.console import Console

from ridgeline.base.records import Account, Measured, StepPlan
from ridgeline.base.totals import Sum
from ridgeline.report import cells
from ridgeline.report.headline import headline, one_line
from ridgeline.report.terminal import render


def text(account: Account, top: int = 10, width: int = 100, terminal: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)  # strict: a sign it cannot encode is an error
    colours = "truecolor" if terminal else None
    render(account, top, Console(file=stream, width=width, force_terminal=terminal, color_system=colours))  # type: ignore[arg-type]
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("report_terminal.txt", text(GPT))


def test_golden_empty(golden: Callable[[str, str], None]) -> None:
    golden("report_terminal_empty.txt", text(EMPTY))


@pytest.mark.parametrize("width", [100, 120, 180])
def test_lines_stay_whole_in_a_pipe(width: int) -> None:
    out = text(GPT, width=width)
    assert "\x1b" not in out
    for line in out.splitlines():
        assert len(line) <= width and line == line.rstrip()
    # one row a kernel and one for its line: nothing folded
    assert len(out.splitlines()) <= len(text(GPT, width=100).splitlines())


def test_80_columns_keep_every_number() -> None:
    narrow = text(GPT, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    row = next(line for line in narrow.splitlines() if line.split()[:1] == ["mm"])
    assert row.split() == ["mm", "18.9", "134.2", "12.88", "71.6", "80.2", "80.2", "89%"]


def test_colours_on_a_terminal_only() -> None:
    assert "\x1b[1m" in text(GPT, terminal=True)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_without_the_signs_gets_plain_ones(encoding: str) -> None:
    plain, full = text(GPT, encoding=encoding), text(GPT)
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in full.splitlines()]
    strange = replace(GPT, script="naïve_模型.py")
    assert "na?ve_??.py" in text(strange, encoding="ascii")


def test_top_limits_rows_and_sums_the_rest() -> None:
    out = text(GPT, top=2)
    assert "2 of 16" in out and "14 more, ×61.5" in out
    assert (
        sum("fp32 matmul" in line for line in out.splitlines() if line.strip() == "fp32 matmul" or "lib" in line) == 2
    )
    assert "and 1 more" in out  # the third finding
    assert "more, ×" not in text(GPT, top=16)


def test_measured_and_predicted_stand_side_by_side() -> None:
    lines = text(GPT).splitlines()
    assert any("measured" in line and "predicted" in line for line in lines)
    unmeasured = next(line for line in lines if "~89%" in line)
    assert unmeasured.split()[-3:] == ["45.1", "-", "~89%"]
    assert any("104%!" in line for line in lines) and any("7.0*" in line for line in lines)


def test_unknown_is_a_dash_and_is_named() -> None:
    out = text(GPT, top=16)
    row = next(line for line in out.splitlines() if line.strip().startswith("mylib.scan "))
    assert row.split()[:4] == ["mylib.scan", "3.1", "3.1", "-"]
    assert "2 operators of unknown cost: mylib.scan.default" in " ".join(out.split())
    assert "32.11+" in out  # the sum is at least that
    clean = replace(GPT, graphs=GRAPHS[1:2], outside=())
    assert "unknown cost" not in text(clean) and "32.11+" not in text(clean)


def test_remainder_is_printed() -> None:
    assert "The rest of the measured step, in no kernel: 57.2 ms." in text(GPT)


def test_headline_says_what_is_measured_and_what_is_not() -> None:
    assert headline(GPT) == (
        "A step takes 448 ms now; Ridgeline's graph takes 273 ms, 1.64 times faster; the limit is 180 ms, bound by "
        "memory. The graph reaches 66 % of the limit."
    )
    predicted = replace(GPT, plans=tuple(replace(plan, measured=None) for plan in GPT.plans))
    assert "A step is predicted to take 415 ms now; Ridgeline's graph is predicted to take 265 ms" in headline(
        predicted
    )
    slower = replace(GPT, plans=(StepPlan("eager", None, Measured(1.0, 0, 3), None, None, None),
                                 StepPlan("graph", None, Measured(2.0, 0, 3), None, None, None)))  # fmt: skip
    assert headline(slower) == "A step takes 1 s now; Ridgeline's graph takes 2 s, 2.00 times slower."
    only_eager = replace(GPT, plans=GPT.plans[:1])
    assert headline(only_eager) == "A step takes 448 ms now."
    assert headline(EMPTY).startswith("No step was captured")


def test_one_line_for_run() -> None:
    assert one_line(GPT) == (
        "ridgeline: 25 steps, 273 ms each, 1.64 times faster than eager, 66 % of the limit, 3 graphs, 2 graph breaks, "
        "compiled in 20 s"
    )
    assert one_line(EMPTY) == "ridgeline: no step was captured."
    predicted = replace(GPT, breaks=(), plans=(replace(GPT.plans[1], measured=None),))
    assert one_line(predicted) == "ridgeline: 25 steps, 265 ms each by prediction, 3 graphs, compiled in 20 s"


def test_traffic_is_decimal_and_capacity_binary() -> None:
    count = 17_179_869_184  # 17.18 GB = 16.00 GiB
    size, held = cells.byte_scale([count]), cells.capacity_scale([count])
    assert (size.cell(count), size.unit) == ("17.18", "GB")
    assert (held.cell(count), held.unit) == ("16.00", "GiB")


def test_cells() -> None:
    time = cells.time_scale([0.4123, 12e-6])
    assert (time.unit, time.cell(0.4123), time.cell(12e-6), time.cell(0.0), time.cell(None)) == (
        "ms", "412.3", "<0.1", "0", "-"
    )  # fmt: skip
    assert cells.time_scale([12e-6]).unit == "µs"
    assert time.cell(Sum(0.1, missing=1, terms=2)) == "100.0+"
    assert time.cell(Sum(0.0, missing=2, terms=2)) == "-"
    assert [time.figures(s) for s in (0.415, 3.9e-3, 0.74e-3, 12345.6, 0.0)] == [
        "415",
        "3.90",
        "0.740",
        "12,345,600",
        "0",
    ]
    assert cells.byte_scale([]).cell(None) == "-"
    assert cells.byte_scale([999]).unit == "B" and cells.byte_scale([999]).cell(999) == "999"
    assert (cells.count(2.0), cells.count(2.5), cells.count(1e6), cells.count(0.25)) == (
        "2",
        "2.5",
        "1,000,000",
        "0.25",
    )
    assert cells.percent(0.694) == "69%" and cells.percent(0.1, signed=True) == "+10%" and cells.percent(None) == "-"


def test_names_of_operators() -> None:
    assert cells.short_operator("aten.add.Tensor") == "add"
    assert cells.short_operator("aten::addmm") == "addmm"
    assert cells.short_operator("mylib.scan.default") == "mylib.scan"
    assert cells.short_operators(["aten.mul.Tensor", "aten.add.Tensor", "aten.mul.Scalar"]) == "mul ×2, add"
    assert cells.short_operators([f"aten.op{n}.default" for n in range(14)]).endswith("op9, 4 more")


def test_lines_keep_the_folders_that_tell_files_apart() -> None:
    names = ["/a/x/model.py:1", "/a/y/model.py:2", "/a/y/train.py:3", "train.py:4", None, r"C:\b\odd.py:5", "odd"]
    assert cells.short_lines(names) == {
        "/a/x/model.py:1": "x/model.py:1",
        "/a/y/model.py:2": "y/model.py:2",
        "/a/y/train.py:3": "y/train.py:3",
        "train.py:4": "train.py:4",
        r"C:\b\odd.py:5": "odd.py:5",
        "odd": "odd",
    }
