"""The reference interpreter: runs any kernel with numpy, one value at a time over its whole domain.

Slow and plain on purpose: it is what every target is held against. Takes arrays (views with any strides) by buffer
name and the numbers of the size symbols; writes the stored buffers in place. bf16 and 8-bit floats are held in f32.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ridgeline.ir.combiners import COMBINERS, Combiner
from ridgeline.ir.index import Axis, Index, Mod, Read, Sym
from ridgeline.ir.index import Div as DivAtom
from ridgeline.ir.kernel import Kernel, Mode
from ridgeline.ir.types import BF16, BOOL, F16, DType
from ridgeline.ir.value import Value

Array = Any
Sizes = Mapping[str, int]

NUMPY = {
    **{"f64": np.float64, "f32": np.float32, "bf16": np.float32, "f16": np.float32},
    **{"i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8},
    **{"u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8, "bool": np.bool_},
}


def round_to(x: Array, stored: DType) -> Array:
    """Values as they come back from memory of that format (round to nearest even)."""
    if stored is F16:
        return x.astype(np.float16).astype(np.float32)
    if stored is BF16:
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(x), x, rounded.view(np.float32).reshape(x.shape))
    return x.astype(NUMPY[stored.compute.name])


def _elementwise(f: Callable[..., float]) -> Callable[..., Array]:
    def apply(*xs: Array) -> Array:
        def one(*args: float) -> float:
            try:
                return f(*map(float, args))
            except (ValueError, OverflowError):
                return math.nan if any(map(math.isnan, args)) else math.inf

        return np.vectorize(one, otypes=[np.float64])(*xs).astype(xs[0].dtype)

    return apply


def _digamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        fraction = x - math.trunc(x) if math.isfinite(x) else 0
        return math.nan if fraction == 0 else _digamma(1 - x) - math.pi / math.tan(math.pi * fraction)
    shift = 0.0
    while x < 10:
        shift, x = shift - 1 / x, x + 1
    y = 1 / (x * x)
    series = 8.33333333333333333333e-2 - y * (8.33333333333333333333e-3 - y * (3.96825396825396825397e-3 - y / 240))
    return shift + math.log(x) - 0.5 / x - y * series


def _erfinv(x: float) -> float:
    if abs(x) >= 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    w = math.log1p(-x * x)
    t = 2 / (math.pi * 0.147) + w / 2
    y = math.copysign(math.sqrt(max(math.sqrt(t * t - w / 0.147) - t, 0)), x)
    for _ in range(4):  # Newton steps on erf(y) = x
        y -= (math.erf(y) - x) / (2 / math.sqrt(math.pi) * math.exp(-y * y))
    return y


def _integer_divide(how: str) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        if a.dtype.kind == "f":
            return np.floor(a / b) if how == "div_floor" else np.trunc(a / b)
        safe = np.where(b == 0, 1, b)
        q = a // safe
        if how == "div_trunc":
            q = q + (((a - q * safe) != 0) & ((a < 0) != (safe < 0)))
        return np.where(b == 0, 0, q).astype(a.dtype)

    return apply


def _sigmoid(x: Array) -> Array:
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


WORD_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs, "div": np.divide},
    "fma": lambda a, b, c: a * b + c,
    **{"div_trunc": _integer_divide("div_trunc"), "div_floor": _integer_divide("div_floor")},
    **{"mod": np.mod, "fmod": np.fmod, "min": np.minimum, "max": np.maximum},
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or},
    **{"xor": np.bitwise_xor, "not": np.invert, "shl": np.left_shift, "shr": np.right_shift},
    **{"select": np.where, "isnan": np.isnan, "isinf": np.isinf, "signbit": np.signbit},
    **{"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint},
    "round_bf16": lambda x: round_to(x, BF16),
    "round_f16": lambda x: round_to(x, F16),
    **{n: getattr(np, n) for n in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt")},
    **{n: getattr(np, n) for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot", "copysign", "nextafter")},
    **{"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh},
    **{"atanh": np.arctanh, "atan2": np.arctan2, "pow": np.power, "sigmoid": _sigmoid},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "recip": lambda x: 1 / x,
    **{"erf": _elementwise(math.erf), "erfc": _elementwise(math.erfc), "lgamma": _elementwise(math.lgamma)},
    **{"erfinv": _elementwise(_erfinv), "digamma": _elementwise(_digamma)},
}


def extreme(dtype: Any, lowest: bool) -> Any:
    """The least or greatest number of a numpy type, infinities included."""
    if dtype.kind == "f":
        return -np.inf if lowest else np.inf
    if dtype.kind == "b":
        return not lowest
    return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max


def _expression(expr: Any, state: Mapping[str, Array], dtype: Any) -> Array:
    if isinstance(expr, tuple):
        args = [_expression(e, state, dtype) for e in expr[1:]]
        return WORD_FUNCTIONS[expr[0]](*args)
    if isinstance(expr, str):
        return state[expr] if expr in state else dtype.type(extreme(dtype, expr == "lowest"))
    return expr if isinstance(expr, bool) else dtype.type(expr)


class _Interpreter:
    """Evaluates values over the axes in scope; each axis is one numpy dimension, in `order`."""

    def __init__(self, arrays: Mapping[str, Array], sizes: Sizes, order: tuple[Axis, ...]) -> None:
        self.arrays, self.sizes, self.order = arrays, sizes, order
        self.done: dict[Value, Array] = {}

    def size(self, index: Index) -> int:
        return int(self.index(index))

    def axis(self, axis: Axis) -> Array:
        k = self.order.index(axis)
        shape = [1] * len(self.order)
        shape[k] = self.size(axis.size)
        return np.arange(shape[k]).reshape(shape)

    def index(self, index: Index) -> Array:
        total: Array = np.int64(0)
        for coefficient, factors in index.terms:
            term: Array = np.int64(coefficient)
            for atom in factors:
                match atom:
                    case Axis():
                        term = term * self.axis(atom)
                    case Sym():
                        term = term * self.sizes[atom.name]
                    case DivAtom():
                        term = term * (self.index(atom.num) // self.index(atom.den))
                    case Mod():
                        term = term * (self.index(atom.num) % self.index(atom.den))
                    case Read():
                        term = term * self.value(atom.value).astype(np.int64)
            total = total + term
        return total

    def value(self, v: Value) -> Array:
        out = self.done.get(v)
        if out is None:
            out = self.done[v] = self._value(v)
        return out

    def _value(self, v: Value) -> Array:
        dtype = NUMPY[v.dtype.name]
        if v.op == "const":
            return np.asarray(v.attr).astype(dtype)
        if v.op == "iota":
            return np.asarray(self.index(v.attr)).astype(dtype)
        if v.op == "load":
            return self._load(v)
        if v.op == "fold":
            return self._fold(v)
        args = [self.value(a) for a in v.args]
        if v.op == "cast":
            return (args[0] != 0) if v.dtype is BOOL else args[0].astype(dtype)
        return np.asarray(WORD_FUNCTIONS[v.op](*args)).astype(dtype)

    def _load(self, v: Value) -> Array:
        array = self.arrays[v.attr.buffer]
        index = [self.index(i) for i in v.attr.index]
        if not v.args:
            return array[tuple(index)] if index else array[()]
        guard = self.value(v.args[0])
        if not guard.any():
            return np.zeros_like(guard, dtype=array.dtype)
        safe = [np.where(guard, i, 0) for i in index]
        return np.where(guard, array[tuple(safe)], array.dtype.type(0))

    def _fold(self, v: Value) -> Array:
        attr = v.attr
        info = COMBINERS[attr.combiner]
        inner = _Interpreter(self.arrays, self.sizes, (*(a for a in self.order if a not in attr.axes), *attr.axes))
        # Bound axes become the last dimensions, then one flat dimension to fold over.
        dims = [inner.size(a.size) for a in inner.order]
        outer = dims[: len(dims) - len(attr.axes)]
        flat = (*outer, math.prod(dims[len(outer) :]))
        # Nothing is loaded for an empty domain: its buffers may hold no element to load.
        elements = [np.broadcast_to(inner.value(a) if all(dims) else NUMPY[a.dtype.name](0), dims) for a in v.args]
        elements = [e.reshape(flat) for e in elements]
        result = _run(info, elements, NUMPY[v.args[0].dtype.name])[attr.part]
        # Put back a dimension of one for every axis that the fold shadows.
        for k, axis in enumerate(self.order):
            if axis in attr.axes:
                result = np.expand_dims(result, k)
        used = [k for k, a in enumerate(self.order) if a not in v.axes]
        for k in used:
            result = np.take(result, [0], axis=k) if result.shape[k] else result
        return result


def _run(info: Combiner, elements: list[Array], dtype: Any) -> list[Array]:
    """Folds the last dimension by halves, keeping the order of elements."""
    dt = np.dtype(dtype)
    shape = elements[0].shape
    lifted = {f"x{k}": e for k, e in enumerate(elements)}
    states = [np.broadcast_to(np.asarray(_expression(e, lifted, dt)), shape) for e in info.lift]
    while states[0].shape[-1] > 1:
        half = states[0].shape[-1] // 2
        joined = {f"a{k}": s[..., 0 : 2 * half : 2] for k, s in enumerate(states)}
        joined |= {f"b{k}": s[..., 1 : 2 * half : 2] for k, s in enumerate(states)}
        combined = [np.asarray(_expression(e, joined, dt)) for e in info.combine]
        states = [np.concatenate([c, s[..., 2 * half :]], axis=-1) for c, s in zip(combined, states, strict=True)]
    if states[0].shape[-1] == 0:
        ends = [np.asarray(_expression(e, {}, dt)) for e in info.identity]
        states = [np.broadcast_to(e, (*shape[:-1], 1)) for e in ends]
    final = {f"a{k}": s[..., 0] for k, s in enumerate(states)}
    return [np.asarray(_expression(e, final, dt)) for e in info.finish]


def evaluate(value: Value, axes: tuple[Axis, ...], arrays: Mapping[str, Array], sizes: Sizes) -> Array:
    """The value over the given axes, one numpy dimension each."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        run = _Interpreter(arrays, sizes, axes)
        shape = [run.size(a.size) for a in axes]
        return np.broadcast_to(run.value(value), shape) if all(shape) else np.zeros(shape, NUMPY[value.dtype.name])


def run_kernel(kernel: Kernel, arrays: Mapping[str, Array], sizes: Sizes | None = None) -> None:
    """Runs every store of the kernel, writing `arrays` in place. All loads see the buffers as they were before."""
    results = []
    for store in kernel.stores:
        axes = tuple(a for a in kernel.axes if a in store.domain)
        values = evaluate(store.value, axes, arrays, sizes or {})
        run = _Interpreter(arrays, sizes or {}, axes)
        index = tuple(np.broadcast_to(run.index(i), values.shape) for i in store.index)
        results.append((store, index, values))
    for store, index, values in results:
        rounded = round_to(np.asarray(values), kernel.buffer(store.buffer).dtype)
        if store.mode is Mode.ADD:
            np.add.at(arrays[store.buffer], index, rounded)
        else:
            arrays[store.buffer][index if index else ()] = rounded if index else rounded[()]
