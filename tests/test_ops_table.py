"""The table itself: names exist, each once, each with its words; coverage of what PyTorch can reach."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from calls import CALLS, FILE, decode, operator
from samples import check_module, single_call

from ridgeline.base.errors import DuplicateRow
from ridgeline.ops.coverage import NATIVE, VIEW, coverage, how, totals
from ridgeline.ops.table import TABLE, Kind, find, scalar

REACH = json.loads((Path(__file__).parent / "data" / "reach_overloads.json").read_text())


def test_every_operator_of_the_table_exists() -> None:
    missing = []
    for name in TABLE:
        namespace, packet, overload = name.split(".")
        found = getattr(getattr(torch.ops, namespace), packet, None)
        if found is None or overload not in found.overloads():
            missing.append(name)
    assert not missing


def test_a_second_row_is_refused() -> None:
    before = dict(TABLE)
    with pytest.raises(DuplicateRow, match=r"aten\.exp\.default has two rows: ridgeline\.ops\.scalar:exp and"):
        scalar("aten.exp.default")(lambda x: x)
    assert before == TABLE


def test_every_row_says_what_it_computes() -> None:
    silent = sorted({row.where for row in TABLE.values() if not (row.body.__doc__ or "").strip()})
    assert not silent


def test_rows_are_found_by_overload_and_never_write_an_out() -> None:
    assert find("aten.add.Tensor") is TABLE["aten.add.Tensor"]
    assert find("aten.add.out") is None
    assert find("aten.nothing.default") is None


# ATen has the first three on GPUs only (test_ops_norms.py holds two, the third is dropout_backward by another name);
# what is uninitialised has no value to compare.
UNCOMPARED = (
    "aten._masked_scale.default",
    "aten._fused_rms_norm.default",
    "aten._fused_rms_norm_backward.default",
    "aten.empty",
    "aten.new_empty",
)


def example_calls() -> dict[str, tuple[Sequence[Any], Mapping[str, Any]]]:
    """An example of every row with a body: harvested ones, then those written by hand."""
    torch.manual_seed(0)
    kept = json.loads(FILE.read_text())
    found = {n: (decode(e["args"]), {k: decode(v) for k, v in e["kwargs"].items()}) for n, e in kept.items()}
    return {n: c for n, c in {**found, **CALLS}.items() if n in TABLE}


def test_every_row_has_an_example() -> None:
    missing = [n for n in TABLE if how(n) in (NATIVE, VIEW) and not n.startswith(UNCOMPARED)]
    assert not set(missing) - example_calls().keys()


@pytest.mark.parametrize("part", range(4))
def test_every_row_computes_what_aten_computes(part: int) -> None:
    calls = {n: c for n, c in example_calls().items() if not n.startswith(UNCOMPARED)}
    wrong = [w for n in sorted(calls)[part::4] if (w := problem(n, *calls[n]))]
    assert not wrong, "\n".join(wrong)


def problem(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """What is wrong with the row of an operator on an example; None if nothing."""
    try:
        module, tensors = single_call(operator(name), tuple(args), dict(kwargs))
        graph = check_module(module, *tensors)
    except AssertionError as error:
        return str(error)
    (node,) = [n for n in graph.nodes if n.operator == name]
    return None if node.definitions else f"{name} was run by ATen: {node.reason}"


def test_body_parameters_follow_the_schema() -> None:
    """A body can take as many positional arguments as its operator gives it."""
    import inspect  # noqa: PLC0415

    placement = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
    wrong = []
    for name, row in TABLE.items():
        namespace, packet, overload = name.split(".")
        schema = getattr(getattr(getattr(torch.ops, namespace), packet), overload)._schema
        given = [a for a in schema.arguments if a.name not in placement]
        keywords = {a.name: None for a in given if a.kwarg_only} | ({"context": None} if row.wants_context else {})
        try:
            inspect.signature(row.body).bind(*(a for a in given if not a.kwarg_only), **keywords)
        except TypeError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong


def test_kinds() -> None:
    assert how("aten.exp.default") == "native"
    assert how("aten.view.default") == "view"
    assert how("aten.mm.default") == "library"
    assert how("aten.no_such_operator.default") == "none"
    assert coverage(["aten.mm.default", "aten.exp.default"]) == {
        "aten.mm.default": "library",
        "aten.exp.default": "native",
    }


def test_coverage_of_what_is_left_after_decomposition() -> None:
    """Overloads that PyTorch's core list, and the compiler in PyTorch, can still meet."""
    core, compiler = totals(coverage(REACH["core_aten"])), totals(coverage(REACH["inductor_table"]))
    assert core["native"] >= 199 and core["view"] >= 13, core
    assert compiler["native"] >= 177 and compiler["view"] >= 17, compiler
    # sym_size and its like are numbers, not tensors; the rest has a row or is a library call by name.
    assert core["none"] <= 5, core
    assert compiler["none"] <= 2, compiler


def test_issue_families_are_native() -> None:
    """A few of every family that must never fall back silently."""
    names = """add.Tensor mul.Scalar div.Tensor_mode pow.Tensor_Scalar where.self clamp.default masked_fill.Scalar
        bitwise_and.Tensor eq.Scalar _to_copy.default gelu.default gelu_backward.default silu.default
        cat.default stack.default constant_pad_nd.default roll.default flip.default slice_backward.default tril.default
        sum.dim_IntList mean.dim prod.default max.dim amax.default argmax.default any.dim all.default var.correction
        std.correction linalg_vector_norm.default logsumexp.default _softmax.default _log_softmax_backward_data.default
        native_layer_norm.default native_layer_norm_backward.default native_group_norm_backward.default
        _native_batch_norm_legit_functional.default native_batch_norm_backward.default _fused_rms_norm_backward.default
        nll_loss_forward.default nll_loss_backward.default mse_loss.default binary_cross_entropy.default
        embedding.default embedding_dense_backward.default gather.default index.Tensor index_put.default
        scatter_add.default index_add.default avg_pool2d_backward.default max_pool2d_with_indices.default
        max_pool2d_with_indices_backward.default _adaptive_avg_pool2d.default upsample_nearest2d.default
        upsample_bilinear2d_backward.default upsample_bicubic2d.default arange.start_step full.default eye.default
        native_dropout_backward.default reflection_pad2d_backward.default im2col.default col2im.default"""
    fallen = [n for n in names.split() if how(f"aten.{n}") != "native"]
    assert not fallen
    views = "view expand permute transpose.int t squeeze.dim unsqueeze select.int slice.Tensor split.Tensor unbind.int"
    assert {how(f"aten.{n}" if "." in n else f"aten.{n}.default") for n in views.split()} == {"view"}
    library = (
        "mm bmm addmm convolution convolution_backward native_dropout sort cumsum _fft_r2c linalg_qr rand bernoulli"
    )
    assert {how(f"aten.{n}.default") for n in library.split()} == {"library"}


def test_scalar_rows_make_one_output() -> None:
    for name, row in TABLE.items():
        if row.kind is Kind.SCALAR:
            namespace, packet, overload = name.split(".")
            schema = getattr(getattr(getattr(torch.ops, namespace), packet), overload)._schema
            assert len(schema.returns) == 1, name
