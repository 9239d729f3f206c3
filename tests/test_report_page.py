"""The account as a page: self-contained, escaped, small, with every number; and where the roofline puts its points."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from accounts import COPY, EMPTY, FLOPS, GPT, GRAPHS, MATMUL, kernel
from test_report_terminal import text

from ridgeline.base.records import Account
from ridgeline.hw import catalog
from ridgeline.report.cells import flop_scale
from ridgeline.report.notebook import repr_html
from ridgeline.report.page import to_html
from ridgeline.report.roofline import HEIGHT, WIDTH, ceilings, roofline

VOID = {"meta", "input", "path", "circle", "line", "br"}


class Page(HTMLParser):
    """Collects tags with attributes and visible text; notes tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


HTML = to_html(GPT)
PAGE = Page(HTML)


@pytest.mark.parametrize("account", [GPT, EMPTY], ids=["gpt", "empty"])
def test_well_formed_and_without_network(account: Account) -> None:
    html = to_html(account)
    page = Page(html)
    assert page.open == []
    assert not {"link", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert "src" not in attributes and (attributes.get("href") or "#").startswith("#"), tag
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp", html)
    assert "default-src 'none'" in html


def test_names_are_escaped() -> None:
    scripts = [tag for tag, _ in PAGE.tags if tag == "script"]
    assert len(scripts) == 1  # ours
    assert (
        "<b>&model.py:7" in PAGE.text and "<img src=x>, mul" in PAGE.text and "<script>alert(1)</script>" in PAGE.text
    )
    assert "train_<gpt>.py" in PAGE.text and "train_<gpt>" not in HTML
    quoted = replace(GPT, device_name='"><script>alert(2)</script>')
    assert "<script>alert(2)" not in to_html(quoted)


def test_every_number_of_the_terminal_is_there() -> None:
    terminal = text(GPT, top=1000)
    step, kernels = terminal.split("\n2  ")[1].split("\n3  ")
    kernels = kernels.split("\n4  ")[0]
    wanted = re.findall(r"(?<![\w.])-?[\d,]+\.?\d*%?(?![\w.])", step.split("──\n")[1] + kernels.split("──\n")[1])
    assert len(wanted) > 100
    missing = [n for n in wanted if not re.search(rf"(?<![\d.]){re.escape(n.rstrip(','))}(?!\d)", PAGE.text)]
    assert set(missing) <= {"448.3", "273.0", "415.1", "264.7", "179.8"}  # the bars have three figures: 448 ms


def test_findings_in_order_and_marks() -> None:
    part = PAGE.text[PAGE.text.rindex("Findings") :]
    places = [part.index(title) for title in ("28 matmuls in fp32", "Graph break at .item()", "Batch below the ridge")]
    assert places == sorted(places)
    assert "saves 41 ms a step" in part and "saving unknown" in part
    assert "2 operators of unknown cost: mylib.scan.default" in PAGE.text
    assert "In no kernel" not in PAGE.text and "in no kernel: 57.2 ms" in PAGE.text


def test_rows_sort_by_plain_numbers() -> None:
    values = [a["data-v"] for tag, a in PAGE.tags if tag == "td" and "data-v" in a]
    assert len(values) > 150
    for value in values:
        float(str(value))


def test_a_huge_account_stays_under_5_mb() -> None:
    wide = tuple(
        replace(k, operators=k.operators * 60, name=f"{k.name}_{n}") for n in range(400) for k in GRAPHS[0].kernels
    )
    huge = replace(GPT, graphs=(replace(GRAPHS[0], kernels=wide, eager=wide),), outside=GPT.outside * 1000)
    html = to_html(huge)
    assert len(html.encode()) < 5e6
    page = Page(html)
    assert "2,600 more" in page.text and "all 3,600" in page.text  # the rest is one row, and the sum holds all


def test_notebook_frame_holds_the_page() -> None:
    (frame,) = [a for tag, a in Page(repr_html(GPT)).tags if tag == "iframe"]
    assert frame["srcdoc"] == HTML
    assert frame["sandbox"] == "allow-scripts"


# The roofline.


def one(**figures: float) -> Account:
    """An account of one kernel that reaches exactly its limit."""
    made = kernel(name="k", operators="aten.k.default", phase="forward", line=None, slower=1.0, **figures)  # type: ignore[arg-type]
    return replace(GPT, graphs=(replace(GRAPHS[0], kernels=(made,)),))


def test_a_kernel_at_the_memory_limit_lies_on_the_memory_roof() -> None:
    plot = roofline(one(read=10**9, written=10**9, flops=1e9))  # 0.5 FLOP per byte
    assert plot is not None
    (point,) = plot.points
    roof = next(r for r in plot.roofs if r.label.startswith("memory"))
    along = (point.x - roof.x1) / (roof.x2 - roof.x1)
    assert 0 < along < 1
    assert point.y == pytest.approx(roof.y1 + along * (roof.y2 - roof.y1))
    assert f"{COPY / 1e9:.0f} GB/s" in roof.label
    assert plot.left_out == 0


def test_a_matmul_at_its_limit_lies_on_the_flat_roof() -> None:
    plot = roofline(one(read=10**6, written=10**6, flops=1e9, matmul=True))
    assert plot is not None
    roof = next(r for r in plot.roofs if r.label.startswith("fp32 matmul"))
    assert plot.points[0].y == pytest.approx(roof.y1) == pytest.approx(roof.y2)
    assert plot.points[0].x > roof.x1 and f"{MATMUL / 1e9:.0f} GFLOP/s" in roof.label


def test_the_plot_keeps_to_its_frame_and_to_roofs_in_use() -> None:
    plot = roofline(GPT)
    assert plot is not None
    assert [r.label.split(" ")[0] for r in plot.roofs] == ["memory", "L3", "fp32", "fp32"]  # no kernel is int8
    for point in plot.points:
        assert plot.left <= point.x <= plot.right and plot.top <= point.y <= plot.bottom
    for roof in plot.roofs:
        assert all(-0.01 <= x <= WIDTH for x in (roof.x1, roof.x2)) and all(
            0 <= y <= HEIGHT for y in (roof.y1, roof.y2)
        )
    assert (len(plot.points), plot.left_out) == (15, 1)  # the operator of unknown cost
    assert plot.points[0].radius > plot.points[-1].radius  # largest first
    assert roofline(EMPTY) is None
    assert roofline(replace(GPT, ceilings=())) is not None  # an older document without ceilings


def test_ceilings_have_the_names_of_limits() -> None:
    device = catalog.load("h100-sxm")
    named = {c.name: c for c in ceilings(device)}
    assert named["memory"].bytes_per_s == device.copy_bytes_per_s
    assert named["bf16 matmul"].flops_per_s == device.peak_flops_per_s("bf16", matrix=True)
    assert named["fp32"].flops_per_s == device.peak_flops_per_s("fp32", matrix=False)
    assert "fp4 matmul" not in named  # unknown is left out
    assert all((c.bytes_per_s is None) != (c.flops_per_s is None) for c in named.values())


def test_flops_are_equal_in_every_view() -> None:
    scale = flop_scale([FLOPS])
    shown = f"{scale.cell(FLOPS)}+"
    row = next(line for line in text(GPT).splitlines() if line.strip().startswith("all 16"))
    assert row.split()[5] == shown  # JSON and trace are held against FLOPS in their own tests
    assert f" {shown} " in PAGE.text
