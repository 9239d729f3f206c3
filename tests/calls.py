"""One small example call for every operator of the table that has a body, kept in data/operator_examples.json.

`python tests/calls.py` harvests them anew: from PyTorch's sample inputs it keeps the smallest call of each
operator. Integers are kept as they are, floats as a range to draw from. CALLS holds what no sample reaches.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from samples import functional, op_database, samples, with_backward
from torch.fx import Interpreter, map_arg

from ridgeline.ops.coverage import NATIVE, VIEW, how
from ridgeline.ops.table import TABLE

FILE = Path(__file__).parent / "data" / "operator_examples.json"
aten = torch.ops.aten
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.int64, torch.bool, torch.uint8, torch.int32)}
DTYPES |= {str(t).removeprefix("torch."): t for t in (torch.float64, torch.float16, torch.bfloat16)}


F = torch.tensor([[0.5, -1.5, 2.0], [3.0, 0.0, -0.25]])
P = F.abs() + 0.1
I = torch.tensor([[5, -3, 2], [7, 0, 100]])  # noqa: E741
B = torch.tensor([[True, False, True], [False, False, True]])
NUMBERS = {"dtype": torch.float32, "device": torch.device("cpu")}

# Calls that no sample of PyTorch's reaches: (positional arguments, keyword arguments).
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "ridgeline.log_softmax_rows.default": ((F, 1), {}),
    "aten.log_sigmoid_backward.default": ((P, F, torch.exp(-F.abs())), {}),
    "aten.scatter_reduce.two": ((F, 1, torch.tensor([[2, 2], [0, 1]]), P, "sum"), {}),
    "aten.grid_sampler_2d_backward.default": (
        (
            P.reshape(1, 1, 2, 3),
            F.reshape(1, 1, 3, 2),
            torch.linspace(-1.2, 1.1, 12).reshape(1, 2, 3, 2),
            0,
            0,
            False,
            [True] * 2,
        ),
        {},
    ),
    "aten.searchsorted.Tensor": ((torch.tensor([0.0, 1.0, 1.0, 2.5]), F), {"right": True}),
    "aten.bucketize.Tensor": ((F, torch.tensor([0.0, 1.0, 1.0, 2.5])), {}),
    "aten.full.default": (([2, 3], 7), NUMBERS),
    "aten.scalar_tensor.default": ((2.5,), NUMBERS),
    "aten._efficientzerotensor.default": (([2],), NUMBERS),
    "aten.zeros.default": (([2, 3],), NUMBERS),
    "aten.ones.default": (([4],), NUMBERS),
    "aten.eye.default": ((3,), NUMBERS),
    "aten.eye.m": ((2, 4), NUMBERS),
    "aten.arange.default": ((7,), NUMBERS),
    "aten.arange.start": ((2, 7), NUMBERS),
    "aten.arange.start_step": ((2.0, 7.0, 0.75), NUMBERS),
    "aten.range.step": ((1, 7, 2), NUMBERS),
    "aten.range.default": ((1, 4), NUMBERS),
    "prims.iota.default": (
        (5,),
        {"start": 3, "step": 2, "dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False},
    ),
    "aten.linspace.default": ((-1.0, 2.0, 5), NUMBERS),
    "aten.linspace.Tensor_Tensor": ((F[0, 0], F[1, 0], 5), NUMBERS),
    "aten.linspace.Tensor_Scalar": ((F[0, 0], 9.0, 4), NUMBERS),
    "aten.linspace.Scalar_Tensor": ((-2, F[1, 0], 4), NUMBERS),
    "aten.logspace.default": ((0.0, 2.0, 5), NUMBERS),
    "aten.logspace.Tensor_Tensor": ((F[0, 0], F[0, 2], 5), NUMBERS),
    "aten.logspace.Tensor_Scalar": ((F[0, 0], 2.0, 4, 2.0), NUMBERS),
    "aten.logspace.Scalar_Tensor": ((-2, F[0, 2], 4), NUMBERS),
    "aten._add_relu.Tensor": ((F, P), {"alpha": -1}),
    "aten._add_relu.Scalar": ((F, -1.0), {}),
    "aten.div.Scalar_mode": ((F, 0.75), {"rounding_mode": "floor"}),
    "aten.floor_divide.Scalar": ((I, 3), {}),
    "aten.remainder.Scalar_Tensor": ((7, P), {}),
    "aten.fmod.Scalar": ((F, -0.75), {}),
    "aten.square.default": ((F,), {}),
    "aten.clamp.default": ((F, -1, 1), {}),
    "aten.clamp_max.default": ((F, 1), {}),
    "aten.fill.Tensor": ((F, P[0, 0]), {}),
    **{
        f"aten.bitwise_{w}.{o}": (a, {})
        for w in ("and", "or", "xor")
        for o, a in (("Scalar", (I, 6)), ("Scalar_Tensor", (6, I)))
    },
    "aten.bitwise_xor.Tensor": ((I, I.flip(0)), {}),
    **{
        f"aten.bitwise_{way}_shift.{o}": (a, {})
        for way in ("left", "right")
        for o, a in (("Tensor", (I, I % 9)), ("Tensor_Scalar", (I, 3)), ("Scalar_Tensor", (5, I % 9)))
    },
    **{f"aten.__{w}shift__.{o}": (a, {}) for w in "lr" for o, a in (("Tensor", (I, I % 9)), ("Scalar", (I, 2)))},
    "prims.convert_element_type.default": ((F, torch.bfloat16), {}),
    "aten._aminmax.dim": ((F, 1, True), {}),
    "aten._aminmax.default": ((F,), {}),
    "aten.any.default": ((F,), {}),
    "aten.any.dims": ((F, [0, 1]), {}),
    "aten._is_any_true.default": ((B,), {}),
    "aten.all.default": ((F,), {}),
    "aten.all.dims": ((F, [1], True), {}),
    "aten._is_all_true.default": ((B,), {}),
    "aten.count_nonzero.dim_IntList": ((F, [1]), {}),
    "aten.norm.Scalar": ((F, 2), {}),
    "aten.norm.ScalarOpt_dtype": ((F, 3), {"dtype": torch.float32}),
    "aten.norm.ScalarOpt_dim_dtype": ((F, 1, [0], True), {"dtype": torch.float32}),
    "aten.lift_fresh.default": ((F,), {}),
    "aten.lift.default": ((F,), {}),
    "aten._conj_physical.default": ((F,), {}),
    "aten.detach_copy.default": ((F,), {}),
    "aten._lazy_clone.default": ((F,), {}),
    "aten._reshape_alias.default": ((F, [3, 2], [2, 1]), {}),
    "aten.reshape.default": ((F, [-1]), {}),
    "aten._reshape_copy.default": ((F, [3, 2]), {}),
    "aten._reshape_alias_copy.default": ((F, [6], [1]), {}),
    "aten.t_copy.default": ((F,), {}),
    "aten.squeeze_copy.dims": ((F[None], [0, 1]), {}),
    "aten.select_copy.int": ((F, 1, -1), {}),
    "aten.slice_copy.Tensor": ((F, 1, 1, 3, 1), {}),
    "aten.split_copy.Tensor": ((F, 2, 1), {}),
    "aten.unsafe_split_with_sizes.default": ((F, [1, 2], 1), {}),
    "aten.chunk.default": ((F, 2, 1), {}),
    "aten.unsafe_chunk.default": ((F, 2, 1), {}),
    "aten.contiguous.default": ((F.t(),), {}),
    "aten.concat.default": (([F, P], 1), {}),
    "aten._stack.default": (([F, P], 1), {}),
    "aten.native_channel_shuffle.default": ((torch.arange(24.0).reshape(1, 6, 2, 2), 3), {}),
    "aten._native_batch_norm_legit_no_training.default": ((F, P[0], F[0], F[1], P[1], 0.1, 1e-5), {}),
    "aten._batch_norm_no_update.default": ((F, P[0], F[0], F[1], P[1], 0.1, 1e-5), {}),
    "aten.batch_norm_backward.default": (
        (F, P, P[0], F[1], P[1], F[0], P[0], True, 1e-5, [True] * 3, torch.zeros(0, dtype=torch.uint8)),
        {},
    ),
    "aten._weight_norm_interface.default": ((F, P[:, :1].clone(), 0), {}),
    "aten._weight_norm_interface_backward.default": ((F, P, P[:, :1].clone(), P[:, 1:2].clone(), 0), {}),
    "aten.replication_pad1d.default": ((F, [2, 1]), {}),
    "aten._unsafe_index.Tensor": ((F, [torch.tensor([1, 0, 1])]), {}),
    "aten._unsafe_index_put.default": ((F, [torch.tensor([1])], P[:1], True), {}),
    "aten._index_put_impl.default": ((F, [torch.tensor([1])], P[:1], False, False), {}),
    "aten.scatter.reduce": ((F, 1, torch.tensor([[2], [0]]), P), {"reduce": "add"}),
    "aten.scatter.value_reduce": ((F, 1, torch.tensor([[2], [0]]), 3.0), {"reduce": "add"}),
    "aten.isin.Tensor_Scalar": ((I, 7), {}),
    "aten.xlogy.Scalar_Self": ((2.0, P), {}),
    "aten.xlogy.Scalar_Other": ((F, 2.0), {}),
    "aten.special_xlog1py.self_scalar": ((2.0, P), {}),
    "aten.special_xlog1py.other_scalar": ((F, 2.0), {}),
}


def operator(name: str) -> Callable[..., Any]:
    """The overload of a name in the table."""
    namespace, packet, overload = name.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return found


def encode(value: Any) -> Any:
    """An argument as JSON."""
    if isinstance(value, torch.Tensor):
        spec: dict[str, Any] = {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        if value.is_floating_point():
            finite = value[value.isfinite()].double()
            ends = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
            return spec | {"range": [round(e, 6) for e in ends]}
        return spec | {"data": value.flatten().tolist()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": "cpu"}
    if isinstance(value, torch.layout | torch.memory_format):
        return {"other": str(value).removeprefix("torch.")}
    if isinstance(value, float) and value in (float("inf"), -float("inf")):
        return {"number": str(value)}
    return [encode(v) for v in value] if isinstance(value, list | tuple) else value


def decode(value: Any) -> Any:
    """The argument back, floats drawn from the current generator."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        dtype = DTYPES[value["tensor"]]
        if "range" in value:
            low, high = value["range"]
            return (torch.rand(value["shape"], dtype=torch.float64) * (high - low) + low).to(dtype)
        return torch.tensor(value["data"], dtype=dtype).reshape(value["shape"])
    if "dtype" in value:
        return DTYPES[value["dtype"]]
    if "device" in value:
        return torch.device("cpu")
    return float(value["number"]) if "number" in value else getattr(torch, value["other"])


class _Harvest(Interpreter):
    """Runs a graph and keeps the smallest call of every operator that has a body."""

    def __init__(self, module: torch.fx.GraphModule, found: dict[str, Any]) -> None:
        super().__init__(module)
        self.found = found

    def run_node(self, n: torch.fx.Node) -> Any:
        name = str(n.target)
        if n.op == "call_function" and name in TABLE and how(name) in (NATIVE, VIEW):
            args, kwargs = map_arg((n.args, n.kwargs), lambda a: self.env[a])
            self.keep(name, args, kwargs)
        return super().run_node(n)

    def keep(self, name: str, args: Any, kwargs: Any) -> None:
        tensors = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        if any(t.numel() == 0 or t.dtype not in DTYPES.values() for t in tensors):
            return
        try:
            example = {"args": encode(list(args)), "kwargs": {k: encode(v) for k, v in kwargs.items()}}
            text = json.dumps(example)
        except TypeError:
            return
        # A few elements say more than one.
        enough = not tensors or sum(t.numel() for t in tensors) >= 4
        if enough and (name not in self.found or len(text) < len(json.dumps(self.found[name]))):
            self.found[name] = example


def harvest() -> dict[str, Any]:
    """The smallest example of each operator."""
    found: dict[str, Any] = {}
    for name, info in sorted(op_database().items()):
        if torch.float32 not in info.dtypes or name.startswith(("sparse", "to_sparse", "jiterator")):
            continue
        for fn, inputs in samples(name, torch.float32, 4, info.supports_autograd):
            run = with_backward(fn, inputs) if info.supports_autograd else fn
            given = [t.detach() for t in inputs]
            try:
                module = functional(run, *given)
                _Harvest(module, found).run(*given)
            except (RuntimeError, ValueError, AssertionError):  # what cannot be traced gives no example
                continue
    return found


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = harvest()
    lines = [f" {json.dumps(name)}: {json.dumps(examples[name])}" for name in sorted(examples)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
