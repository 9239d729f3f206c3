"""Counts where public counters go wrong: each case with its value worked by hand.

FLOP cases of matmuls, convolutions and attention stand beside their rows in test_ops_library.py. Here are bytes,
unknowns, units and the order between limit and prediction.
"""

import pytest
import torch
import torch.nn.functional as F
from rows import capture

from ridgeline.base.records import Work
from ridgeline.base.units import format_bytes, format_capacity
from ridgeline.cost.count import node_work
from ridgeline.cost.limit import kernel_limit, predict
from ridgeline.hw import catalog
from ridgeline.ir.graph import Graph, NodeKind

META = torch.device("meta")


def works(graph: Graph) -> list[Work]:
    return [
        node_work(n, graph.buffers, graph.hints) for n in graph.nodes if n.kind in (NodeKind.COMPUTE, NodeKind.LIBRARY)
    ]


def test_an_embedding_reads_its_rows_not_its_table() -> None:
    # rows 2048 * 3072 * 2 = 12,582,912, ids 2048 * 8 = 16,384, output 12,582,912
    graph = capture(F.embedding, torch.zeros(2048, dtype=torch.int64), torch.zeros(50016, 3072, dtype=torch.bfloat16))
    [work] = works(graph)
    assert work.bytes == 25_182_208


def test_broadcast_operands_count_once() -> None:
    # 2 * 4096 * 4 read + 4096 * 4096 * 4 written
    [work] = works(capture(torch.add, torch.zeros(4096, 1), torch.zeros(1, 4096)))
    assert work.bytes == 67_141_632


def test_an_expanded_input_counts_once() -> None:
    # 1024 * 4 read through the stride of 0, 1024 * 1024 * 4 written
    [work] = works(capture(lambda a: a.expand(1024, 1024) * 2.0, torch.zeros(1024)))
    assert (work.bytes_read, work.bytes_written) == (4096, 4_194_304)


def test_the_same_tensor_twice_is_one_read() -> None:
    # x + x: 1 read + 1 write of 256 * 4
    [work] = works(capture(lambda a: a + a, torch.zeros(256)))
    assert (work.bytes_read, work.bytes_written) == (1024, 1024)


def test_a_slice_reads_its_part() -> None:
    # 16 of 64 columns of 32 rows: 32 * 16 * 4
    [work] = works(capture(lambda a: a[:, 8:24].exp(), torch.zeros(32, 64)))
    assert work.bytes_read == 2048


def test_views_move_nothing() -> None:
    graph = capture(lambda a: a.t().reshape(4, 2, 3).permute(2, 0, 1)[0], torch.zeros(6, 4).t().contiguous().t())
    assert sum(w.bytes for w in works(graph)) == 0


def test_softmax_counts_two_exponentials_an_element_at_most() -> None:
    # online maximum and sum: one; the store: one; log of nothing; one division a element
    [work] = works(capture(lambda a: torch.softmax(a, -1), torch.zeros(64, 256)))
    assert (work.bytes_read, work.bytes_written) == (65_536, 65_536)
    assert 2 * 64 * 256 <= work.special_ops <= 3 * 64 * 256 + 64


def test_gelu_counts_its_erf() -> None:
    [work] = works(capture(F.gelu, torch.zeros(1000)))
    assert work.special_ops == 1000


def test_a_dropout_draws_a_number_an_element() -> None:
    # 4096 numbers; reads 4096 * 4, writes 4096 * 4 and a mask of 4096 bytes
    [work] = works(capture(torch.ops.aten.native_dropout.default, torch.zeros(64, 64), 0.1, True))
    assert work.random_numbers == 4096
    assert (work.bytes_read, work.bytes_written) == (16_384, 20_480)


def test_unknown_is_unknown_never_zero() -> None:
    [work] = works(capture(torch.ops.aten.sort.default, torch.zeros(64)))
    assert work.flops is None
    assert work.total_flops is None
    assert (work + Work(flops={"fp32": 1.0})).flops is None


@torch.library.custom_op("ridgeline_tests::cube", mutates_args=())
def cube(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@cube.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def test_a_custom_operator_has_bytes_and_no_flops() -> None:
    # 2 * 64 * 64 * 4 read, 64 * 64 * 4 written; what it computes nobody can tell
    graph = capture(torch.ops.ridgeline_tests.cube.default, torch.zeros(64, 64), torch.zeros(64, 64))
    [work] = works(graph)
    assert (work.bytes_read, work.bytes_written, work.flops) == (32_768, 16_384, None)
    [node] = [n for n in graph.nodes if n.kind is NodeKind.LIBRARY]
    assert node.reason == "no row in the table"


def test_gb_and_gib_are_never_mixed() -> None:
    assert format_bytes(17_179_869_184) == "17.2 GB"
    assert format_capacity(17_179_869_184) == "16.00 GiB"


@pytest.mark.parametrize("device", catalog.all_devices(), ids=lambda d: d.id)
def test_a_prediction_is_never_under_its_limit(device) -> None:
    for work in (
        Work(10**9, 10**9, {"fp32": 1e9}),
        Work(10**9, 10),
        Work(1, 1, {"bf16": 2 * 8192.0**3}, matmul_flops=2 * 8192.0**3),
        Work(10**6, 10**6, {"fp32": 1e6}, special_ops=1e9),
        Work(0, 0, None),
    ):
        limit = kernel_limit(work, device)
        for family in ("pointwise", "matmul", "reduction"):
            prediction = predict(work, limit, device, family)
            assert prediction.low_s >= limit.seconds
            assert prediction.low_s <= prediction.seconds <= prediction.high_s


def test_a_matmul_is_not_predicted_below_its_peak() -> None:
    # 8192 cubed in bf16 on an H200: 2 * 8192^3 / 989.5e12 = 1.1112 ms
    flops = 2 * 8192.0**3
    work = Work(3 * 8192 * 8192 * 2, 0, {"bf16": flops}, matmul_flops=flops)
    limit = kernel_limit(work, catalog.load("h200-sxm"))
    assert limit.seconds == pytest.approx(1.1112e-3, rel=2e-3)
    assert limit.binds == "bf16 matmul"


def test_reductions_are_held_against_the_read_ceiling() -> None:
    device = catalog.load("h200-sxm")
    assert device.read_bytes_per_s is not None and device.copy_bytes_per_s is not None
    assert kernel_limit(Work(10**9, 4), device).seconds == pytest.approx((10**9 + 4) / device.read_bytes_per_s)
    half = Work(10**9 // 2, 10**9 // 2)
    assert kernel_limit(half, device).seconds == pytest.approx(10**9 / device.copy_bytes_per_s)
