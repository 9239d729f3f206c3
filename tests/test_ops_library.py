"""FLOPs of library calls, each worked by hand. The K numbers are cases that public counters get wrong."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from samples import functional, with_backward

from ridgeline.capture.convert import convert
from ridgeline.ir.graph import NodeKind
from ridgeline.ops import families
from ridgeline.ops.library import causal_pairs, window_pairs
from ridgeline.ops.table import TABLE, Kind

assert families.LOADED


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def flops(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor, backward: bool = False) -> dict[str, float]:
    """The sum over the library calls of a traced function, by format; every call must be known."""
    traced = with_backward(lambda *t: [fn(*t)], list(inputs)) if backward else fn
    total: dict[str, float] = {}
    for node in convert(functional(traced, *inputs)).nodes:
        if node.kind is NodeKind.LIBRARY:
            assert node.reason is None, f"{node.operator}: {node.reason}"
            assert node.flops is not None, f"{node.operator} is unknown"
            for form, count in node.flops.items():
                total[form] = total.get(form, 0) + count
    return total


def module_flops(module: torch.nn.Module, *inputs: torch.Tensor) -> dict[str, float]:
    names, values = zip(*((n, p.detach()) for n, p in module.named_parameters()), strict=True)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, tensors[: len(names)], strict=True))
        out = torch.func.functional_call(module, given, tensors[len(names) :])
        return out[0] if isinstance(out, tuple) else out

    return flops(run, *values, *inputs)


def test_attention() -> None:
    q = tensor(1, 12, 64, 64)
    # K2: 2 products of 12 heads x 64 x 64 pairs x 64 wide: 2 * 2 * 12 * 64 * 64 * 64.
    assert flops(lambda q: F.scaled_dot_product_attention(q, q, q), q) == {"fp32": 12_582_912}


def test_grouped_queries_count_the_heads_of_the_queries() -> None:
    q, k = tensor(1, 8, 128, 64), tensor(1, 2, 128, 64)
    # K3: 2 * 2 * 8 * 128 * 128 * 64; causal 128 * 129 / 2 = 8,256 pairs instead of 16,384.
    assert flops(lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), q, k) == {"fp32": 33_554_432}
    causal = flops(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True), q, k)
    assert causal == {"fp32": 16_908_288}


def test_attention_backward_is_five_products() -> None:
    q = tensor(1, 8, 128, 64)
    # forward 2 and backward 5 products of 2 * 8 * 8,256 pairs * 64.
    found = flops(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q, backward=True)
    assert found == {"fp32": 7 * 2 * 8 * 8_256 * 64}


def test_pairs_of_masks() -> None:
    assert causal_pairs(128, 128, 0) == 8_256
    assert causal_pairs(4, 2, 0) == 1 + 2 + 2 + 2
    for queries, keys, shift in itertools.product(range(5), range(5), range(-6, 7)):
        pairs = [(i, j) for i in range(queries) for j in range(keys) if j <= i + shift]
        assert causal_pairs(queries, keys, shift) == len(pairs)
    # K3: window 512 of 2,048: 512 * 513 / 2 for the first rows, 512 for each of the other 1,536.
    assert window_pairs(2048, 2048, 511, 0) == 917_760
    assert window_pairs(4, 6, 1, 2) == 4 + 4 + 3 + 2  # rows at 2, 3, 4, 5 of 0 .. 5
    # Decoding one token after 1,023: it sees all 1,024 keys.
    assert window_pairs(1, 1024, None, 0) == 1_024


@pytest.mark.parametrize("name", ["_flash_attention_forward", "_scaled_dot_product_flash_attention"])
def test_flash_attention_on_a_gpu_graph(name: str) -> None:
    # K4: (b, s, h, d) = (2, 128, 4, 64) is 33,554,432, and so is (b, h, s, d) = (2, 4, 128, 64).
    packed = name == "_flash_attention_forward"
    shape = (2, 128, 4, 64) if packed else (2, 4, 128, 64)
    rest: tuple[Any, ...] = (None, None, 128, 128, 0.0, False, False) if packed else (0.0, False, False)
    operator = getattr(torch.ops.aten, name).default
    with torch.device("meta"):
        q = torch.empty(shape, dtype=torch.bfloat16)
    assert flops(lambda q: operator(q, q, q, *rest)[0], q) == {"bf16": 33_554_432}


def test_recurrent_layers() -> None:
    # K6: 20 steps * 2 * 4 gates * 128 * (64 + 128).
    assert module_flops(torch.nn.LSTM(64, 128), tensor(10, 2, 64)) == {"fp32": 3_932_160}
    # K6: 4 calls of a cell on 3 rows make 110,592; one call 2 * 3 * 3 gates * 32 * (16 + 32).
    assert module_flops(torch.nn.GRUCell(16, 32), tensor(3, 16), tensor(3, 32)) == {"fp32": 27_648}
    assert module_flops(torch.nn.GRU(16, 32), tensor(4, 3, 16)) == {"fp32": 110_592}


def test_transposed_convolution_counts_inputs() -> None:
    # K7: 3 channels * 2 x 2 kernel * 1 output channel * 4 input pixels = 48 multiply-adds.
    x, w = tensor(1, 3, 2, 2), tensor(3, 1, 2, 2)
    assert flops(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, w) == {"fp32": 96}


def test_transposed_convolution_backward() -> None:
    x, w = tensor(6, 192, 30, 96), tensor(192, 384, 2, 2)
    # K7: forward 2 * (6 * 192 * 30 * 96) * 384 * 4; both gradients twice that again.
    assert flops(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, w) == {"fp32": 10_192_158_720}
    both = flops(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, w, backward=True)
    assert both == {"fp32": 3 * 10_192_158_720}
    only_weight = flops(
        lambda w: F.conv_transpose2d(torch.zeros_like(w.new_empty(6, 192, 30, 96)), w, stride=2), w, backward=True
    )
    assert only_weight == {"fp32": 20_384_317_440}


def test_depthwise_convolution() -> None:
    # K7: 32 channels * 16 x 16 outputs * 9 * 2.
    x, w = tensor(1, 32, 16, 16), tensor(32, 1, 3, 3)
    assert flops(lambda x, w: F.conv2d(x, w, padding=1, groups=32), x, w) == {"fp32": 147_456}


def test_convolution_with_bias_counts_products_only() -> None:
    # 2 * (2 * 8 * 14 * 14 outputs) * 4 channels * 9, three times over with both gradients.
    x, w, b = tensor(2, 4, 16, 16), tensor(8, 4, 3, 3), tensor(8)
    assert flops(F.conv2d, x, w, b) == {"fp32": 225_792}
    assert flops(F.conv2d, x, w, b, backward=True) == {"fp32": 677_376}


def test_matrix_products() -> None:
    # K9: 120 outputs * 8 * 2; 16; 64; 20,000.
    assert flops(torch.matmul, tensor(2, 1, 4, 8), tensor(3, 8, 5)) == {"fp32": 1_920}
    assert flops(torch.matmul, tensor(8), tensor(8)) == {"fp32": 16}
    assert flops(torch.matmul, tensor(4, 8), tensor(8)) == {"fp32": 64}
    assert flops(torch.mv, tensor(100, 100), tensor(100)) == {"fp32": 20_000}
    assert flops(torch.addmv, tensor(4), tensor(4, 8), tensor(8)) == {"fp32": 64}
    assert flops(torch.baddbmm, tensor(2, 4, 5), tensor(2, 4, 8), tensor(2, 8, 5)) == {"fp32": 640}
    assert flops(torch.addbmm, tensor(4, 5), tensor(2, 4, 8), tensor(2, 8, 5)) == {"fp32": 640}
    assert flops(torch.dot, tensor(8), tensor(8)) == {"fp32": 16}


def test_linear_counts_no_bias() -> None:
    # K9: 369,098,752 multiply-adds.
    found = flops(F.linear, tensor(1, 22528, 64), tensor(256, 64), tensor(256))
    assert found == {"fp32": 2 * 369_098_752}


def test_format_is_that_of_the_operands() -> None:
    assert flops(torch.mm, *(tensor(4, 4, dtype=torch.bfloat16) for _ in "ab")) == {"bf16": 128}
    assert flops(torch._int_mm, *(tensor(32, 32, dtype=torch.int8) for _ in "ab")) == {"int8": 65_536}


def unknown(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[Any]:
    nodes = convert(functional(fn, *inputs)).nodes
    return [n.flops for n in nodes if n.kind is NodeKind.LIBRARY]


def test_unknown_is_none_and_moves_are_zero() -> None:
    x = torch.randn(4, 5)
    assert unknown(lambda x: torch.sort(x)[0], x) == [None]
    assert unknown(lambda x: torch.cumsum(x, 0), x) == [None]
    assert unknown(lambda x: torch.fft.rfft(x).abs(), x)[0] is None
    assert unknown(torch.rand_like, x) == [{}]
    assert unknown(lambda x: F.dropout(x, 0.5), x) == [{}]


def test_what_has_no_row_elsewhere_is_a_library_row() -> None:
    rows = {n: r for n, r in TABLE.items() if r.kind is Kind.LIBRARY}
    assert len(rows) > 100
    assert {"aten.mm.default", "aten.convolution.default", "aten.sort.default", "aten.randn.default"} <= rows.keys()
