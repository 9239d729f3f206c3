"""Library calls with a known amount of work: matrix products, convolutions, attention, recurrent layers.

Each body gives FLOPs by number format: one multiply-add is 2; bias additions and softmax belong to no count. Sizes
are example sizes where they are symbolic. Attention counts what the mask needs (causal, windowed), once for each head
of the queries. None: nobody can tell.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from ridgeline.ops.array import Array, stored
from ridgeline.ops.table import Context, library

Flops = Mapping[str, float] | None


def sizes(x: Array, context: Context) -> list[int]:
    """The shape as numbers."""
    return [context.number(s) for s in x.shape]


def work(x: Array, multiply_adds: int) -> Flops:
    """FLOPs of multiply-adds done in the format that x is stored in."""
    return {stored(x).format: 2.0 * multiply_adds}


def product_of(a: Array, b: Array, context: Context) -> Flops:
    """(..., m, k) @ (..., k, n): 2 * outputs * k; a vector counts as a matrix of one row or column."""
    left, right = sizes(a, context), sizes(b, context)
    rows = left[-2] if len(left) > 1 else 1
    columns = right[-1] if len(right) > 1 else 1
    return work(a, prod(left[:-2] or right[:-2]) * rows * left[-1] * columns)


@library("aten.mm.default", "aten.mm.dtype", "aten.bmm.default", "aten.bmm.dtype", "aten.matmul.default")
def mm(a: Array, b: Array, *rest: Any, context: Context) -> Flops:
    """(b, m, k) @ (b, k, n): 2 b m n k."""
    return product_of(a, b, context)


@library("aten.mv.default", "aten.dot.default", "aten.vdot.default", "aten._int_mm.default")
def mv(a: Array, b: Array, context: Context) -> Flops:
    """(m, k) @ (k) and (k) . (k): 2 m k, 2 k."""
    return product_of(a, b, context)


@library("aten.addmm.default", "aten.addmm.dtype", "aten.addmv.default", "aten._addmm_activation.default")
def addmm(bias: Array, a: Array, b: Array, *rest: Any, context: Context, **scales: Any) -> Flops:
    """bias + (m, k) @ (k, n): 2 m n k."""
    return product_of(a, b, context)


@library("aten.baddbmm.default", "aten.baddbmm.dtype", "aten.addbmm.default")
def baddbmm(bias: Array, a: Array, b: Array, *rest: Any, context: Context, **scales: Any) -> Flops:
    """bias + (b, m, k) @ (b, k, n): 2 b m n k."""
    return product_of(a, b, context)


@library("aten._scaled_mm.default")
def scaled_mm(a: Array, b: Array, *rest: Any, context: Context, **options: Any) -> Flops:
    """(m, k) @ (k, n) with scales: 2 m n k."""
    return product_of(a, b, context)


@library("aten._grouped_mm.default")
def grouped_mm(a: Array, b: Array, *rest: Any, context: Context, **options: Any) -> Flops:
    """Each row of (m, k) by one of g matrices (k, n): 2 m n k. Other layouts depend on the groups: unknown."""
    if a.ndim == 2 and b.ndim == 3:
        (m, k), n = sizes(a, context), sizes(b, context)[2]
        return work(a, m * k * n)
    return None


@library("aten.linear.default", "aten.mkldnn_linear.default")
def linear(x: Array, weight: Array, bias: Array | None = None, *, context: Context) -> Flops:
    """(..., k) @ (n, k)^T: 2 rows n k."""
    return work(x, prod(sizes(x, context)) * sizes(weight, context)[0])


@library("aten.linear_backward.default")
def linear_backward(x: Array, grad: Array, weight: Array, output_mask: Sequence[bool], context: Context) -> Flops:
    """One product for dx and one for dweight."""
    return work(x, prod(sizes(x, context)) * sizes(weight, context)[0] * sum(output_mask[:2]))


def convolution_products(x: Array, weight: Array, out: Sequence[int], transposed: bool, context: Context) -> int:
    """Multiply-adds: every output (input, if transposed) times the kernel's numbers for one channel."""
    kernel = prod(sizes(weight, context)[1:])
    return (prod(sizes(x, context)) if transposed else prod(out)) * kernel


@library("aten.convolution.default", "aten._convolution.default", "aten.convolution_overrideable.default")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
    context: Context,
) -> Flops:
    """2 * outputs * (channels / groups) * kernel; transposed 2 * inputs * (output channels / groups) * kernel."""
    out = [context.number(s) for s in context.out[0].shape]
    return work(x, convolution_products(x, weight, out, transposed, context))


@library("aten.convolution_backward.default")
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
    context: Context,
) -> Flops:
    """The forward's count once for dx and once for dweight; the bias gradient is a sum."""
    once = convolution_products(x, weight, sizes(grad, context), transposed, context)
    return work(x, once * sum(output_mask[:2]))


@library(
    "aten.slow_conv_dilated2d.default",
    "aten.slow_conv_dilated3d.default",
    "aten._conv_depthwise2d.default",
    "aten.conv_depthwise3d.default",
    "aten._slow_conv2d_forward.default",
    "aten.slow_conv3d_forward.default",
    "aten.mkldnn_convolution.default",
)
def direct_convolution(x: Array, weight: Array, *rest: Any, context: Context) -> Flops:
    """2 * outputs * (channels / groups) * kernel."""
    out = [context.number(s) for s in context.out[0].shape]
    return work(x, convolution_products(x, weight, out, False, context))


def causal_pairs(queries: int, keys: int, shift: int) -> int:
    """Pairs (i, j) with j <= i + shift, of `queries` x `keys`."""
    first = min(max(0, -shift), queries)  # rows before see nothing
    full = min(max(first, keys - shift - 1), queries)  # rows from here on see all keys
    growing = full - first
    return growing * (first + shift + 1) + growing * (growing - 1) // 2 + (queries - full) * keys


def attention(q: Array, k: Array, v: Array, causal: bool, context: Context, backward: bool = False) -> Flops:
    """(b, h, s, d) layout: q k^T and p v forward; q k^T again, dv, dp, dq, dk backward.

    Causal here is PyTorch's: query i sees the keys up to i.
    """
    *batch, queries, width = sizes(q, context)
    keys, out_width = sizes(k, context)[-2], sizes(v, context)[-1]
    pairs = causal_pairs(queries, keys, 0) if causal else queries * keys
    per_pair = 3 * width + 2 * out_width if backward else width + out_width
    return work(q, prod(batch) * pairs * per_pair)


@library("aten._scaled_dot_product_flash_attention_for_cpu.default", "aten._scaled_dot_product_flash_attention.default")
def flash(
    q: Array, k: Array, v: Array, dropout: float = 0, causal: bool = False, *rest: Any, context: Context, **options: Any
) -> Flops:
    """softmax(q k^T) v: 2 pairs (d + dv) for each head of q."""
    return attention(q, k, v, causal, context)


@library(
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
)
def attention_with_bias(
    q: Array,
    k: Array,
    v: Array,
    bias: Any,
    lse: bool,
    dropout: float = 0,
    causal: bool = False,
    *rest: Any,
    context: Context,
    **options: Any,
) -> Flops:
    """softmax(q k^T + bias) v: 2 pairs (d + dv) for each head of q."""
    return attention(q, k, v, causal, context)


@library("aten._scaled_dot_product_fused_attention_overrideable.default")
def attention_overrideable(
    q: Array,
    k: Array,
    v: Array,
    bias: Any = None,
    dropout: float = 0,
    causal: bool = False,
    *rest: Any,
    context: Context,
    **options: Any,
) -> Flops:
    """softmax(q k^T + bias) v: 2 pairs (d + dv) for each head of q."""
    return attention(q, k, v, causal, context)


@library("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_cpu_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Any,
    lse: Any,
    dropout: float,
    causal: bool,
    context: Context,
    **options: Any,
) -> Flops:
    """Five products for each pair: 2 pairs (3 d + 2 dv)."""
    return attention(q, k, v, causal, context, backward=True)


@library("aten._scaled_dot_product_flash_attention_backward.default")
def flash_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Any,
    lse: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: float,
    causal: bool,
    *rest: Any,
    context: Context,
    **options: Any,
) -> Flops:
    """Five products for each pair."""
    return attention(q, k, v, causal, context, backward=True)


@library("aten._scaled_dot_product_efficient_attention_backward.default")
def efficient_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    bias: Any,
    out: Any,
    lse: Any,
    seed: Any,
    offset: Any,
    dropout: float,
    mask: Any,
    causal: bool = False,
    *,
    context: Context,
    **options: Any,
) -> Flops:
    """Five products for each pair."""
    return attention(q, k, v, causal, context, backward=True)


@library("aten._scaled_dot_product_cudnn_attention_backward.default")
def cudnn_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Any,
    lse: Any,
    seed: Any,
    offset: Any,
    bias: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: float,
    causal: bool,
    *,
    context: Context,
    **options: Any,
) -> Flops:
    """Five products for each pair."""
    return attention(q, k, v, causal, context, backward=True)


@library("aten._scaled_dot_product_fused_attention_overrideable_backward.default")
def overrideable_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    bias: Any,
    mask: Any,
    out: Any,
    lse: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: float,
    causal: bool,
    *rest: Any,
    context: Context,
    **options: Any,
) -> Flops:
    """Five products for each pair."""
    return attention(q, k, v, causal, context, backward=True)


def window_pairs(queries: int, keys: int, left: int | None, right: int | None) -> int:
    """Pairs with p - left <= j <= p + right, where query i stands at p = i + keys - queries (bottom right)."""
    place = keys - queries
    seen = queries * keys if right is None or right < 0 else causal_pairs(queries, keys, place + right)
    return seen if left is None or left < 0 else seen - causal_pairs(queries, keys, place - left - 1)


def packed_attention(
    *operands: Any, causal: bool, left: int | None, right: int | None, backward: bool, context: Context
) -> Flops:
    """(b, s, h, d) layout, causal from the bottom right, windowed; sequences of unequal length are unknown."""
    q, k, v, cum_q = operands
    if cum_q is not None:
        return None
    b, queries, heads, width = sizes(q, context)
    keys, out_width = sizes(k, context)[1], sizes(v, context)[-1]
    pairs = window_pairs(queries, keys, left, 0 if causal else right)
    return work(q, b * heads * pairs * (3 * width + 2 * out_width if backward else width + out_width))


@library("aten._flash_attention_forward.default")
def flash_packed(
    q: Array,
    k: Array,
    v: Array,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: float,
    causal: bool,
    *rest: Any,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    context: Context,
    **options: Any,
) -> Flops:
    """softmax(q k^T) v in (b, s, h, d) layout."""
    window = {"left": window_size_left, "right": window_size_right}
    return packed_attention(q, k, v, cum_q, causal=causal, backward=False, context=context, **window)


@library("aten._flash_attention_backward.default")
def flash_packed_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Any,
    lse: Any,
    cum_q: Any,
    cum_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: float,
    causal: bool,
    *rest: Any,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    context: Context,
    **options: Any,
) -> Flops:
    """Five products for each pair in (b, s, h, d) layout."""
    window = {"left": window_size_left, "right": window_size_right}
    return packed_attention(q, k, v, cum_q, causal=causal, backward=True, context=context, **window)


def recurrent(x: Array, weights: Sequence[Array], context: Context, times: int) -> Flops:
    """Each time step of each sequence by every weight matrix."""
    rows = prod(sizes(x, context)[:-1])
    return work(x, times * rows * sum(prod(sizes(w, context)) for w in weights if w.ndim == 2))


@library("aten.mkldnn_rnn_layer.default")
def mkldnn_rnn(x: Array, *rest: Any, context: Context) -> Flops:
    """One layer, one direction: 2 steps * (gates * hidden) * (inputs + hidden)."""
    return recurrent(x, rest[:2], context, 1)


@library("aten.mkldnn_rnn_layer_backward.default")
def mkldnn_rnn_backward(x: Array, *rest: Any, context: Context) -> Flops:
    """Twice the forward."""
    return recurrent(x, rest[:2], context, 2)


@library("aten._cudnn_rnn.default")
def cudnn_rnn(x: Array, weights: Sequence[Array], *rest: Any, context: Context) -> Flops:
    """2 steps * every weight of every layer and direction."""
    return recurrent(x, weights, context, 1)


@library("aten._cudnn_rnn_backward.default")
def cudnn_rnn_backward(x: Array, weights: Sequence[Array], *rest: Any, context: Context) -> Flops:
    """Twice the forward."""
    return recurrent(x, weights, context, 2)


@library(
    *("aten.nonzero.default", "aten.nonzero_static.default", "aten.masked_select.default"),
    *("aten.masked_scatter.default", "aten.masked_scatter_backward.default", "aten.repeat_interleave.Tensor"),
    *("aten._local_scalar_dense.default", "aten.equal.default", "aten.allclose.default"),
    *("aten.as_strided_scatter.default", "aten.view.dtype", "aten._chunk_cat.default"),
    *("aten.resize.default", "aten.set.source_Tensor", "aten.view_as_real.default", "aten.view_as_complex.default"),
    *("aten._conj.default", "aten._neg_view.default", "aten.complex.default", "aten.real.default", "aten.imag.default"),
    *("aten._assert_async.msg", "aten._assert_scalar.default", "aten._assert_tensor_metadata.default"),
    *("aten._linalg_check_errors.default", "aten.resize_as.default"),
)
def moved(*args: Any, **options: Any) -> Flops:
    """Elements are moved, counted or compared, nothing is computed: 0 FLOP."""
    return {}


@library(
    *("aten.sort.default", "aten.sort.stable", "aten.topk.default", "aten.kthvalue.default", "aten.mode.default"),
    *("aten.median.default", "aten.median.dim", "aten.nanmedian.default", "aten.nanmedian.dim"),
    *("aten._unique.default", "aten._unique2.default", "aten.unique_dim.default", "aten.unique_consecutive.default"),
    *("aten.bincount.default", "aten.histc.default", "aten.histogram.bin_ct", "aten.histogram.bins_tensor"),
    *("aten.cummax.default", "aten.cummin.default", "aten.cumsum.default", "aten.cumprod.default"),
    *("aten.logcumsumexp.default", "aten._cdist_forward.default", "aten._cdist_backward.default"),
    *("aten._pdist_forward.default", "aten._pdist_backward.default", "aten._trilinear.default"),
    *("aten._fft_c2c.default", "aten._fft_r2c.default", "aten._fft_c2r.default"),
    *("aten.cholesky.default", "aten.cholesky_inverse.default", "aten.cholesky_solve.default"),
    *("aten.linalg_cholesky_ex.default", "aten.linalg_inv_ex.default", "aten.linalg_lu.default"),
    *("aten.linalg_lu_factor_ex.default", "aten.linalg_lu_solve.default", "aten.linalg_qr.default"),
    *("aten.linalg_eig.default", "aten._linalg_eigh.default", "aten._linalg_svd.default", "aten._linalg_det.default"),
    *("aten._linalg_slogdet.default", "aten._linalg_solve_ex.default", "aten.linalg_solve_triangular.default"),
    *("aten.linalg_ldl_factor_ex.default", "aten.linalg_ldl_solve.default", "aten.linalg_householder_product.default"),
    *("aten.linalg_matrix_exp.default", "aten.linalg_pinv.atol_rtol_tensor", "aten.lu_unpack.default"),
    *("aten.triangular_solve.default", "aten.geqrf.default", "aten.ormqr.default", "aten._ctc_loss.Tensor"),
    *("aten._ctc_loss.default", "aten._ctc_loss_backward.default", "aten._ctc_loss_backward.Tensor"),
    *("aten.fractional_max_pool2d.default", "aten.fractional_max_pool2d_backward.default"),
    *("aten.fractional_max_pool3d.default", "aten.fractional_max_pool3d_backward.default"),
    *("aten._histogramdd_bin_edges.default", "aten._histogramdd_from_bin_cts.default"),
    *("aten._histogramdd_from_bin_tensors.default", "aten.hash_tensor.default", "aten.index_reduce.default"),
    *("aten._embedding_bag_backward.default", "aten._embedding_bag_per_sample_weights_backward.default"),
    *("aten._segment_reduce_backward.default", "aten.gcd.default", "aten.lcm.default", "aten.polar.default"),
    *(f"aten._upsample_{m}2d_aa{b}.default" for m in ("bilinear", "bicubic") for b in ("", "_backward")),
    *("aten.grid_sampler_3d.default", "aten.grid_sampler_3d_backward.default", "aten.embedding_renorm.default"),
    *("aten.igamma.default", "aten.igammac.default", "aten.special_zeta.default", "aten.special_airy_ai.default"),
    *("aten.special_erfcx.default", "aten.special_log_ndtr.default", "aten._masked_softmax.default"),
    *(f"aten.special_{s}chebyshev_polynomial_{k}.default" for s in ("", "shifted_") for k in "tuvw"),
    *("aten.special_hermite_polynomial_h.default", "aten.special_hermite_polynomial_he.default"),
    *("aten.special_laguerre_polynomial_l.default", "aten.special_legendre_polynomial_p.default"),
    *("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default", "aten.segment_reduce.default"),
)
def unknown_work(*args: Any, **options: Any) -> Flops:
    """Sorting, scanning, factorising, iterating: what it takes depends on ATen's method, so nobody can tell."""
    return None
