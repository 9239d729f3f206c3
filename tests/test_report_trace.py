"""The account as a Chrome trace: what viewers need, slices that add up, arrows in pairs, a bounded size."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from accounts import EMPTY, FLOPS, GPT, GRAPH_S, GRAPHS, KERNELS

from ridgeline.report import trace
from ridgeline.report.trace import EAGER, GRAPH, LIMIT, MEASURED, PREDICTED, to_trace

TRACE = json.loads(to_trace(GPT))
EVENTS: list[dict[str, Any]] = TRACE["traceEvents"]


def slices(process: int, track: int, *kinds: str) -> list[dict[str, Any]]:
    track_events = [e for e in EVENTS if e["ph"] == "X" and (e["pid"], e["tid"]) == (process, track)]
    return [e for e in track_events if e["cat"] in kinds or not kinds]


def test_required_keys() -> None:
    assert TRACE["distributedInfo"]["rank"] == 0 and TRACE["displayTimeUnit"] == "ms"
    for event in EVENTS:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(event)
        assert event["ph"] in "MXCsf"
        assert event["ph"] != "X" or event["dur"] >= 0
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in EVENTS if e["name"] == "thread_name"}
    assert names == {
        (EAGER, PREDICTED): "predicted", (EAGER, MEASURED): "measured",
        (GRAPH, PREDICTED): "predicted", (GRAPH, MEASURED): "measured", (GRAPH, LIMIT): "kernel limit",
    }  # fmt: skip
    assert sum(e["name"] == "process_name" for e in EVENTS) == 2


def test_slices_follow_one_another_inside_their_graph() -> None:
    for process, track in (
        (EAGER, PREDICTED),
        (EAGER, MEASURED),
        (GRAPH, PREDICTED),
        (GRAPH, MEASURED),
        (GRAPH, LIMIT),
    ):
        now = 0.0
        for e in slices(process, track, "kernel", "library", "eager"):
            assert e["ts"] == pytest.approx(now)
            now = e["ts"] + e["dur"]
        graphs = slices(process, track, "forward", "backward", "optimizer")
        assert [g["cat"] for g in graphs] == ["forward", "backward", "optimizer"]
        assert sum(g["dur"] for g in graphs) == pytest.approx(now)


def test_kernels_and_remainder_are_the_measured_step() -> None:
    measured = slices(GRAPH, MEASURED, "kernel", "library")
    assert len(measured) == len(KERNELS) - 1  # one was not measured
    remainder = slices(GRAPH, MEASURED, "remainder")
    assert sum(e["dur"] for e in (*measured, *remainder)) == pytest.approx(GRAPH_S * 1e6)  # µs


def test_arguments() -> None:
    first = slices(GRAPH, PREDICTED, "library")[0]
    assert first["name"] == "mm"
    assert first["args"]["shapes"] == "fp32 (4096, 192) @ (192, 576)"
    assert first["args"]["flop"] == 4 * 2 * 4096 * 192 * 576
    assert first["args"]["bytes_written"] == 4 * 4096 * 576 * 4
    assert first["args"]["bound"] == "fp32 matmul"
    assert first["args"]["measured_s"] == pytest.approx(1.12 * first["args"]["limit_s"])
    unknown = next(e for e in slices(GRAPH, PREDICTED) if e["name"] == "mylib.scan")
    assert unknown["args"]["cost"] == "unknown" and "flop" not in unknown["args"]
    assert TRACE["metadata"]["unknown_cost"][0] == "mylib.scan.default"


def test_flops_add_up() -> None:
    for track in (PREDICTED, LIMIT):
        assert sum(e["args"].get("flop", 0) for e in slices(GRAPH, track, "kernel", "library")) == FLOPS
    assert TRACE["metadata"]["flop_per_step"] == FLOPS


def test_arrows_lead_from_forward_to_backward() -> None:
    starts = {e["id"]: e for e in EVENTS if e["ph"] == "s"}
    ends = {e["id"]: e for e in EVENTS if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) >= 5
    where = {
        track: [(e["ts"], e["ts"] + e["dur"], e["args"]["line"]) for e in slices(*track, "kernel", "library", "eager")]
        for track in ((GRAPH, PREDICTED), (EAGER, MEASURED))
    }
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e" and start["ts"] < end["ts"] and start["tid"] == end["tid"]
        if spans := where.get((start["pid"], start["tid"])):
            lines = [{line for low, high, line in spans if low <= e["ts"] <= high} for e in (start, end)]
            assert lines[0] & lines[1]


def test_memory_counter() -> None:
    peaks = [e["args"]["bytes"] for e in EVENTS if e["ph"] == "C" and e["pid"] == GRAPH]
    assert peaks == [610 << 20, 0] * 3
    assert not [e for e in json.loads(to_trace(replace(GPT, graphs=())))["traceEvents"] if e["ph"] == "C"]


def test_size_is_bounded_and_the_rest_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sum(e["dur"] for e in slices(GRAPH, PREDICTED, "kernel", "library"))
    monkeypatch.setattr(trace, "MOST_EVENTS", 60)  # 60 // (5 tracks x 3 graphs): 4 kernels a graph
    events = json.loads(to_trace(GPT))["traceEvents"]
    shown = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (GRAPH, PREDICTED)]
    assert Counter(e["cat"] for e in shown)["other"] == 2
    kept = [e for e in shown if e["cat"] in ("kernel", "library", "other")]
    assert len(kept) == 4 + 1 + 4 + 1 + 1
    assert sum(e["dur"] for e in kept) == pytest.approx(whole)
    assert sum(e["args"]["flop"] for e in kept) == FLOPS
    assert {e["name"] for e in kept} >= {"mm"}


def test_a_huge_step_stays_small() -> None:
    huge = replace(GPT, graphs=tuple(replace(g, kernels=g.kernels * 2000, eager=g.eager * 2000) for g in GRAPHS))
    text = to_trace(huge)
    assert len(json.loads(text)["traceEvents"]) < 3 * trace.MOST_EVENTS
    assert len(text) < 15e6


def test_empty() -> None:
    events = json.loads(to_trace(EMPTY))["traceEvents"]
    assert {e["ph"] for e in events} == {"M"}
