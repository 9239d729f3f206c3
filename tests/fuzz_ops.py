"""The grammar of the fuzzer: every way a program may continue, as text of one expression over values made before.

Each rule takes a `Scope` and gives (expression, whether its result is exact), or None where nothing fits. A value is
exact when every right implementation gives the same bits: only such values may be compared, rounded, counted by arg-,
or cast to integers, since elsewhere one rounding more or less flips the result. Sizes are spelt `x.size(d)`, so that a
program stays true for inputs of other sizes.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

FLOATS = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
INTS = {"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8}
TYPES = {**FLOATS, **INTS, "b8": torch.bool}
LOW = (torch.bfloat16, torch.float16)

Found = tuple[str, bool] | None


@dataclass
class Scope:
    """The values a program has made so far, as eager made them."""

    rng: random.Random
    values: Mapping[str, torch.Tensor]
    exact: set[str]
    backward: bool
    dynamic: bool
    used: set[str] = field(default_factory=set)

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda t: True, exact: bool = False) -> str | None:
        """A value that fits: one that nothing has read yet, or any, later ones more often."""
        names = [n for n in self.values if fits(self.values[n]) and (not exact or n in self.exact)]
        if not names:
            return None
        made = [n for n in names if n.startswith("v") and n not in self.used]
        if made and self.rng.random() < 0.6:
            return self.rng.choice(made)
        return names[max(self.rng.randrange(len(names)), self.rng.randrange(len(names)))]

    def float(self, rank: int = 0, exact: bool = False) -> str | None:
        return self.pick(lambda t: t.is_floating_point() and t.dim() >= rank, exact)

    def whole(self, rank: int = 0) -> str | None:
        return self.pick(lambda t: not t.is_floating_point() and t.dtype is not torch.bool and t.dim() >= rank)

    def like(self, name: str, exact: bool = False, fits: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        """A value that broadcasts with another, more often than not of the same shape."""
        shape = self.values[name].shape

        def broadcasts(t: torch.Tensor) -> bool:
            pairs = zip(reversed(t.shape), reversed(shape), strict=False)
            return fits(t) and all(a == b or 1 in (a, b) for a, b in pairs)

        same = self.pick(lambda t: fits(t) and t.shape == shape, exact)
        return same if same is not None and self.rng.random() < 0.6 else self.pick(broadcasts, exact)

    def dim(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.rng.randrange(-rank, rank)

    def dims(self, name: str) -> list[int]:
        rank = self.values[name].dim()
        return sorted(self.rng.sample(range(rank), self.rng.randint(1, rank)))

    def choice(self, *of: Any) -> Any:
        return self.rng.choice(of)

    def is_exact(self, *names: str) -> bool:
        return all(n in self.exact for n in names)

    def integral(self, *names: str) -> bool:
        return not any(self.values[n].is_floating_point() for n in names)

    def steady(self, *names: str) -> bool:
        """Whether a kink (relu, max) at these values is at the same place for every implementation."""
        return self.is_exact(*names) or not self.backward

    def conditioned(self, name: str) -> bool:
        """Whether dividing by a deviation of these values means something: 16-bit roundings may be all it is."""
        return self.is_exact(name) or not self.backward or self.values[name].dtype not in LOW


SMOOTH = (
    *("x.sin()", "x.cos()", "x.tanh()", "x.sigmoid()", "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)"),
    *("x.erf()", "x.abs().sqrt()", "(x.abs() + 1).rsqrt()", "x.abs().log1p()", "(x.abs() + 0.5).log()", "x.square()"),
    *("F.softplus(x)", "F.mish(x)", "x.atan()", "x.clamp(-4, 4).exp()", "x.clamp(-4, 4).expm1()", "x.asinh()"),
    *("(x.abs() + 1).reciprocal()", "(x.abs() + 1).pow(0.3)", "x.pow(3)", "x.clamp(-3, 3).sinh()", "F.logsigmoid(x)"),
    *("x.clamp(-4, 4).exp2()", "(x.abs() + 1).log2()", "(x.abs() + 1).log10()", "F.tanhshrink(x)", "F.softsign(x)"),
    *("(x.abs() + 1.5).lgamma()", "x.clamp(-0.9, 0.9).asin()", "x.clamp(-0.9, 0.9).atanh()", "x.erfc()"),
)
KINKED = (
    *(
        "x.relu()",
        "F.leaky_relu(x, 0.1)",
        "F.elu(x)",
        "F.hardtanh(x)",
        "F.hardswish(x)",
        "F.hardsigmoid(x)",
        "F.relu6(x)",
    ),
    *(
        "x.clamp(min=-0.5)",
        "x.clamp(-1, 2)",
        "F.celu(x)",
        "F.selu(x)",
        "x.abs()",
        "F.softshrink(x)",
        "F.threshold(x, 0.1, 0.2)",
    ),
)
STEPS = ("x.floor()", "x.ceil()", "x.round()", "x.trunc()", "x.sign()", "x.frac()", "x.sgn()", "F.hardshrink(x)")
TESTS = ("x.isnan()", "x.isinf()", "x.signbit()", "x.isfinite()", "x.logical_not()", "(x > 0)", "(x == 0)", "(x != 0)")
WHOLE = ("-x", "x.abs()", "~x", "x.sign()", "x.square()", "x.clamp(2, 9)", "x * 3", "x + 7", "5 - x", "x // 3", "x % 5")
COMPARE = ("x < y", "x <= y", "x > y", "x >= y", "x == y", "x != y")


def smooth(s: Scope) -> Found:
    x = s.float()
    return None if x is None else (put(s.choice(*SMOOTH), x=x), False)


def put(text: str, **names: str) -> str:
    """The text with the words x, y, z replaced by names."""
    out, word = "", ""
    for c in text + " ":
        if c.isalnum() or c == "_":
            word += c
            continue
        after_dot = out.endswith(".")
        out += (word if after_dot else names.get(word, word)) + c
        word = ""
    return out[:-1]


def kinked(s: Scope) -> Found:
    x = s.float()
    if x is None or not s.steady(x):
        return None
    text = s.choice(*KINKED)
    return put(text, x=x), s.is_exact(x) and text in ("x.relu()", "x.clamp(min=-0.5)", "x.clamp(-1, 2)", "x.abs()")


def steps(s: Scope) -> Found:
    x = s.float(exact=True)
    return None if x is None else (put(s.choice(*STEPS), x=x), True)


def tests(s: Scope) -> Found:
    x = s.pick(exact=True)
    return None if x is None else (put(s.choice(*TESTS), x=x), True)


def whole(s: Scope) -> Found:
    x = s.whole()
    return None if x is None else (put(s.choice(*WHOLE), x=x), True)


def bits(s: Scope) -> Found:
    x = s.pick(lambda t: not t.is_floating_point())
    y = None if x is None else s.like(x, fits=lambda t: not t.is_floating_point())
    return (
        None
        if y is None
        else (put(s.choice("x & y", "x | y", "x ^ y", "x << (y & 3)", "x >> (y & 3)"), x=x, y=y), True)
    )


def arithmetic(s: Scope) -> Found:
    x = s.pick()
    y = None if x is None else s.like(x)
    if x is None or y is None:
        return None
    text = s.choice(
        "x + y", "x - y", "x * y", "x / (y.abs() + 1)", "torch.add(x, y, alpha=2)", "torch.rsub(x, y)", "x * 0.5 + y"
    )
    return put(text, x=x, y=y), s.integral(x, y) and "/" not in text and "0.5" not in text


def scalar(s: Scope) -> Found:
    x = s.pick(lambda t: t.dtype is not torch.bool)
    if x is None:
        return None
    text = s.choice("x * 2", "x + 1", "3 - x", "x * 1.5", "x - 0.25", "x / 3", "x ** 2", "2 * x", "x * True", "1.0 * x")
    return put(text, x=x), s.integral(x) and "." not in text and "/" not in text


def floats2(s: Scope) -> Found:
    x = s.float()
    y = None if x is None else s.like(x, fits=torch.is_floating_point)
    if y is None:
        return None
    text = s.choice(
        *("torch.atan2(x, y.abs() + 1)", "torch.hypot(x, y)", "torch.logaddexp(x, y)", "torch.lerp(x, y, 0.3)"),
        *(
            "torch.addcmul(x, x, y, value=0.5)",
            "torch.addcdiv(x, x, y.abs() + 1)",
            "F.mse_loss(x, y, reduction='none')",
        ),
        *("F.smooth_l1_loss(x, y)", "torch.xlogy(x, y.abs() + 1)", "F.binary_cross_entropy_with_logits(x, y)"),
    )
    return put(text, x=x, y=y), False


def extremes(s: Scope) -> Found:
    x = s.pick()
    y = None if x is None else s.like(x)
    if y is None or not s.steady(x, y):
        return None
    return put(
        s.choice("torch.maximum(x, y)", "torch.minimum(x, y)", "torch.fmax(x, y)", "torch.fmin(x, y)"), x=x, y=y
    ), s.is_exact(x, y)


def compare(s: Scope) -> Found:
    x = s.pick(exact=True)
    y = None if x is None else s.like(x, exact=True)
    return None if y is None else (put(s.choice(*COMPARE), x=x, y=y), True)


def logical(s: Scope) -> Found:
    x = s.pick(exact=True)
    y = None if x is None else s.like(x, exact=True)
    return (
        None
        if y is None
        else (
            put(s.choice("torch.logical_and(x, y)", "torch.logical_or(x, y)", "torch.logical_xor(x, y)"), x=x, y=y),
            True,
        )
    )


def divisions(s: Scope) -> Found:
    x = s.pick(lambda t: t.dtype is not torch.bool, exact=True)
    y = None if x is None else s.like(x, exact=True, fits=lambda t: t.dtype is not torch.bool)
    if y is None or (s.backward and not s.integral(x, y)):
        return None
    one = "y.abs().clamp(min=1)"
    text = s.choice(
        *(f"torch.floor_divide(x, {one})", f"torch.remainder(x, {one})", f"torch.fmod(x, {one})"),
        *(f"torch.div(x, {one}, rounding_mode='trunc')", f"x // {one}"),
    )
    return put(text, x=x, y=y), True


def choose(s: Scope) -> Found:
    x = s.pick()
    y = None if x is None else s.like(x)
    m = None if x is None else s.like(x, fits=lambda t: t.dtype is torch.bool)
    if y is None or m is None:
        return None
    text = s.choice("torch.where(z, x, y)", "torch.where(z, x, 0)", "x.masked_fill(z, 2)", "torch.where(~z, x, y)")
    return put(text, x=x, y=y, z=m), s.is_exact(x, y)


def cast(s: Scope) -> Found:
    x = s.pick()
    if x is None:
        return None
    to = s.rng.choice(list(TYPES))
    t = s.values[x]
    if not t.is_floating_point():
        return f"{x}.to({to})", (s.is_exact(x) and to not in ("bf16", "f16")) or t.dtype is torch.bool
    if to in FLOATS:
        return f"{x}.to({to})", s.is_exact(x)
    if x not in s.exact:
        return None
    if to == "b8":
        return f"{x}.to(b8)", True
    low = 0 if to == "u8" else -100
    return f"{x}.nan_to_num(1.0).clamp({low}, 100).to({to})", True


def fold(s: Scope) -> Found:
    x = s.pick(lambda t: t.dim() > 0)
    if x is None:
        return None
    dims, keep, t = s.dims(x), s.choice(True, False), s.values[x]
    whole = not t.is_floating_point()
    kinds = [
        "sum",
        "sum",
        "mean",
        "amax",
        "amin",
        "any",
        "all",
        "var",
        "std",
        "norm",
        "logsumexp",
        "prod",
        "nansum",
        "count",
        "full",
        "std_mean",
    ]
    kind = s.rng.choice(kinds)
    over = f"dim={dims}, keepdim={keep}"
    if kind in ("amax", "amin"):
        return (f"{x}.{kind}({over})", s.is_exact(x)) if s.steady(x) else None
    if kind in ("any", "all"):
        return (f"torch.{kind}({x}, dim={dims[0]}, keepdim={keep})", True) if s.is_exact(x) else None
    if kind == "count":
        return (f"torch.count_nonzero({x}, dim={dims[0]})", True) if s.is_exact(x) else None
    if kind == "prod":
        return f"torch.prod({x}, {dims[0]}, keepdim={keep})", whole
    if kind == "full":
        return f"{x}.sum()", whole
    if kind == "sum":
        return f"{x}.sum({over})", whole
    if whole:
        return None
    if kind == "std_mean":
        return f"torch.var_mean({x}, {over})[{s.choice(0, 1)}]", False
    if kind == "norm":
        order = s.choice(2, 1, float("inf"))
        return f"torch.linalg.vector_norm({x}, {order!r}, {over})".replace("inf", "math.inf"), False
    return f"torch.{kind}({x}, {over})", False


def ranked(s: Scope) -> Found:
    """Folds that give a place, or a value with its place."""
    x = s.pick(lambda t: t.dim() > 0 and t.numel() > 0, exact=True)
    if x is None:
        return None
    d, keep = s.dim(x), s.choice(True, False)
    text = s.choice(
        *(f"torch.argmax({x}, {d}, keepdim={keep})", f"torch.argmin({x}, {d}, keepdim={keep})", f"torch.argmax({x})"),
        *(f"torch.max({x}, {d}, keepdim={keep})[0]", f"torch.min({x}, {d}, keepdim={keep})[1]", f"torch.max({x})"),
        *(f"torch.aminmax({x}, dim={d})[0]", f"torch.sort({x}, {d}, stable=True)[1]", f"torch.cummax({x}, {d})[0]"),
    )
    return text, True


def scan(s: Scope) -> Found:
    x = s.pick(lambda t: t.dim() > 0)
    return None if x is None else (f"torch.cumsum({x}, {s.dim(x)})", s.integral(x))


def rows(s: Scope) -> Found:
    """Softmaxes and norms."""
    x = s.float(1)
    if x is None or not s.conditioned(x):
        return None
    d = s.dim(x)
    last = f"({x}.size(-1),)"
    weight = s.pick(lambda t: t.shape == s.values[x].shape[-1:] and t.dtype == s.values[x].dtype) or "None"
    text = s.choice(
        *(f"torch.softmax({x}, {d})", f"torch.log_softmax({x}, {d})", f"F.layer_norm({x}, {last}, {weight})"),
        *(f"F.rms_norm({x}, {last}, {weight})", f"F.normalize({x}, dim={d})", f"{x} - {x}.mean({d}, keepdim=True)"),
        *(f"F.glu(torch.cat([{x}, {x}], {d}), {d})", f"torch.softmax({x}, {d}, dtype=f32)", f"F.softmin({x}, {d})"),
    )
    return text, False


def batch(s: Scope) -> Found:
    x = s.float(2)
    if x is None or not s.conditioned(x):
        return None
    c = f"{x}.size(1)"
    text = s.choice(
        f"F.batch_norm({x}, None, None, training=True)",
        f"F.group_norm({x}, 1)",
        f"F.group_norm({x}, {c})",
        f"F.instance_norm({x})",
        f"F.batch_norm({x}, torch.zeros({c}, dtype={x}.dtype), torch.ones({c}, dtype={x}.dtype), training=True)",
    )
    return text, False


def moved(s: Scope) -> Found:
    """Views and copies along other strides."""
    x = s.pick(lambda t: t.dim() > 0)
    if x is None:
        return None
    rank, e = s.values[x].dim(), s.is_exact(x)
    d, order = s.dim(x), s.rng.sample(range(rank), rank)
    a, b = s.rng.randint(-3, 3), s.rng.randint(-3, 9)
    step = s.choice(1, 1, 2, 3)
    at = ", ".join(
        [":"] * (d % rank) + [f"{a if s.rng.random() < 0.5 else ''}:{b if s.rng.random() < 0.5 else ''}:{step}"]
    )
    text = s.choice(
        *(
            f"{x}.permute({order})",
            f"{x}.transpose({d}, {s.dim(x)})",
            f"{x}[{at}]",
            f"{x}[{at}]",
            f"{x}.flip({s.dims(x)})",
        ),
        *(f"{x}.roll({s.rng.randint(-3, 5)}, {d})", f"{x}.unsqueeze({d})", f"{x}.squeeze()", f"{x}.flatten()"),
        *(f"{x}.select({d}, {s.choice(0, -1)})", f"{x}.movedim({d}, {s.dim(x)})", f"{x}.contiguous()", f"{x}.clone()"),
        *(f"{x}.repeat({[s.choice(1, 2) for _ in range(rank)]})", f"{x}.expand(2, *{x}.shape)", f"{x}.reshape(-1)"),
        *(
            f"{x}.chunk(2, {d})[-1]",
            f"{x}.reshape(-1, {x}.size({d}))",
            f"{x}.narrow({d}, 0, 1)",
            f"{x}.T" if rank == 2 else f"{x}.mT",
        ),
        *(f"{x}.unfold({d}, 2, 1)", f"{x}.diagonal()", f"{x}.tril()", f"{x}.triu(1)", f"torch.diag_embed({x})"),
        *(
            f"{x}.tile(2)",
            f"{x}.repeat_interleave(2, dim={d})",
            f"torch.rot90({x})",
            f"{x}.view_as({x})",
            f"{x}.split(3, {d})[0]",
        ),
        *(f"{x}.detach()", f"{x}.swapaxes(0, -1)", f"{x}.ravel()", f"{x}.hsplit(1)[0]", f"{x}.unflatten({d}, (-1, 1))"),
    )
    return text, e


def joined(s: Scope) -> Found:
    x = s.pick(lambda t: t.dim() > 0)
    if x is None:
        return None
    d, t = s.dim(x), s.values[x]
    y = s.pick(
        lambda o: (
            o.dim() == t.dim()
            and all(k == d % t.dim() or a == b for k, (a, b) in enumerate(zip(o.shape, t.shape, strict=True)))
        )
    )
    z = s.pick(lambda o: o.shape == t.shape)
    text = s.choice(f"torch.cat([{x}, {y}], {d})", f"torch.cat([{y}, {x}, {y}], {d})", f"torch.stack([{x}, {z}], {d})")
    return text, s.is_exact(x, y or x, z or x)


def padded(s: Scope) -> Found:
    x = s.pick(lambda t: t.dim() > 0)
    if x is None:
        return None
    rank = s.values[x].dim()
    amounts = [s.rng.randint(-1, 3) for _ in range(2 * s.rng.randint(1, rank))]
    text = s.choice(
        f"F.pad({x}, {amounts})",
        f"F.pad({x}, {amounts}, value=1)",
        f"F.pad({x}, {[abs(a) for a in amounts[:2]]}, mode='{s.choice('reflect', 'replicate', 'circular')}')",
    )
    return text, s.is_exact(x)


def _place(s: Scope, x: str, d: int) -> str | None:
    """An integer tensor as places in dimension d of x, valid ones."""
    i = s.pick(lambda t: t.dtype in (torch.int64, torch.int32) and t.numel() > 0)
    return None if i is None else f"({i}.to(i64) % {x}.size({d}))"


def gathered(s: Scope) -> Found:
    x = s.pick(lambda t: t.dim() > 0 and t.numel() > 0)
    if x is None:
        return None
    d = s.dim(x)
    i = _place(s, x, d)
    if i is None:
        return None
    before = ":, " * (d % s.values[x].dim())
    text = s.choice(
        *(f"torch.gather({x}, {d}, {i})", f"{x}.index_select({d}, {i}.flatten())", f"{x}[{before}{i}]"),
        *(f"F.embedding({i}, {x})", f"{x}[{i}]", f"torch.take_along_dim({x}, {i}, {d})", f"{x}[{before}-1 - {i}]"),
        *(f"torch.take({x}, {i})", f"{x}[..., {i}]", f"{x}[{i}, {i}]", f"{x}[{i}.flatten(), ..., 0]"),
    )
    return text, s.is_exact(x)


def scattered(s: Scope) -> Found:
    x = s.pick(lambda t: t.dim() > 0 and t.numel() > 0)
    if x is None:
        return None
    d, t = s.dim(x), s.values[x]
    y = s.pick(lambda o: o.dtype == t.dtype and o.dim() == t.dim())
    i = _place(s, x, d)
    if i is None or y is None:
        return None
    whole = s.integral(x)
    n, r = f"{x}.size({d})", f"torch.arange({x}.size({d}))"
    text = s.choice(
        *(
            f"{x}.scatter_add({d}, {i}, {y})",
            f"{x}.index_add({d}, {i}.flatten(), {y})",
            f"{x}.scatter({d}, {i} * 0, 3)",
        ),
        *(f"torch.zeros_like({x}).index_put(({i},), {y}, accumulate=True)", f"{x}.index_copy({d}, {r}.flip(0), {y})"),
        *(f"{x}.index_put(({r},), {y})", f"{x}.scatter_reduce({d}, {i}, {y}, '{s.choice('amax', 'sum', 'mean')}')"),
        *(f"{x}.index_fill({d}, {i}.flatten(), 2)", f"{x}.select_scatter({y}.select({d}, 0), {d}, 0)"),
        *(f"{x}.slice_scatter({y}.narrow({d}, 0, 1), {d}, 0, 1)", f"F.one_hot({i}, {n}).to({x}.dtype)"),
    )
    if "scatter_reduce" in text and not s.steady(x, y):
        return None
    adds = any(w in text for w in ("add", "accumulate", "reduce"))
    return text, s.is_exact(x, y) and (whole or not adds)


def products(s: Scope) -> Found:
    x = s.float(1)
    if x is None:
        return None
    t = s.values[x]
    y = s.pick(lambda o: o.dtype == t.dtype and o.dim() > 0 and o.shape[-1] == t.shape[-1])
    if y is None:
        return None
    text = s.choice(
        f"{x} @ {y}.mT" if s.values[y].dim() > 1 else f"{x} @ {y}",
        f"F.linear({x}, {y})",
        f"torch.einsum('...i,...i->...', {x}, {y})",
        f"F.scaled_dot_product_attention({x}, {y}, {y})"
        if s.values[y].dim() == t.dim() > 2
        else f"torch.outer({x}.flatten()[:9], {y}.flatten()[:5])",
        f"torch.addmm({y}.mT, {y}.mT, {x})" if t.dim() == 2 else f"F.cosine_similarity({x}, {y}, -1)",
    )
    return text, False


def images(s: Scope) -> Found:
    x = s.float(3)
    if x is None or s.values[x].dim() > 4:
        return None
    n = s.values[x].dim() - 2
    w = f"torch.ones(2, {x}.size(1), {', '.join(['2'] * n)}, dtype={x}.dtype)"
    text = s.choice(
        *(
            f"F.avg_pool{n}d({x}, 2)",
            f"F.avg_pool{n}d({x}, 3, 1, 1)",
            f"F.adaptive_avg_pool{n}d({x}, 1)",
            f"F.conv{n}d({x}, {w})",
        ),
        *(f"F.interpolate({x}, scale_factor=2, mode='nearest')", f"F.adaptive_avg_pool{n}d({x}, 3)"),
        f"F.interpolate({x}, scale_factor=2, mode='{'bilinear' if n == 2 else 'linear'}')",
        *(
            (f"F.max_pool{n}d({x}, 2)", f"F.max_pool{n}d({x}, 3, 2, 1)")
            if s.steady(x)
            else (f"F.lp_pool{n}d({x}, 2, 2)",)
        ),
    )
    return text, False


def made(s: Scope) -> Found:
    """Tensors from nothing."""
    x = s.pick()
    if x is None:
        return None
    to = s.rng.choice(list(TYPES))
    text = s.choice(
        *(f"torch.full_like({x}, 3)", f"torch.ones_like({x}, dtype={to})", f"torch.zeros({x}.shape, dtype={to})"),
        *(f"{x}.new_ones({x}.shape)", f"torch.arange({x}.numel() % 40, dtype=i64)", "torch.tensor(2.5)"),
        *("torch.eye(5, dtype=f32)", "torch.arange(0, 17, 2)", "torch.linspace(0, 1, 9)", "torch.scalar_tensor(3)"),
    )
    return text, "linspace" not in text


def losses(s: Scope) -> Found:
    x = s.float(2)
    if x is None:
        return None
    i = _place(s, x, 1 if s.values[x].dim() > 1 else 0)
    if i is None or s.values[x].dim() != 2:
        return None
    target = f"{i}.flatten()[:1].expand({x}.size(0))"
    text = s.choice(
        *(f"F.cross_entropy({x}, {target})", f"F.cross_entropy({x}, {target}, label_smoothing=0.1, reduction='sum')"),
        *(
            f"F.nll_loss(torch.log_softmax({x}, 1), {target}, reduction='none')",
            f"F.cross_entropy({x}, torch.softmax({x}, 1).detach())",
        ),
        *(
            f"F.cross_entropy({x}, {target}, ignore_index=1)",
            f"F.kl_div(torch.log_softmax({x}, 1), torch.softmax({x}, 1))",
        ),
        *(
            f"F.multi_margin_loss({x}, {target})"
            if s.steady(x)
            else f"F.gaussian_nll_loss({x}, {x}.detach(), {x}.abs() + 1)",
        ),
    )
    return text, False


RULES: tuple[tuple[int, Callable[[Scope], Found]], ...] = (
    *(
        (6, smooth),
        (4, kinked),
        (2, steps),
        (2, tests),
        (2, whole),
        (2, bits),
        (6, arithmetic),
        (4, scalar),
        (3, floats2),
    ),
    *(
        (3, extremes),
        (3, compare),
        (1, logical),
        (2, divisions),
        (4, choose),
        (5, cast),
        (9, fold),
        (4, ranked),
        (1, scan),
    ),
    *(
        (6, rows),
        (2, batch),
        (14, moved),
        (4, joined),
        (3, padded),
        (4, gathered),
        (4, scattered),
        (3, products),
        (2, images),
    ),
    *((2, made), (2, losses)),
)


def changed(s: Scope, owned: Callable[[str], bool]) -> tuple[str, str, bool] | None:
    """A statement that writes to a value in place: (text, the value's name, whether it stays exact)."""
    x = s.pick(lambda t: t.dim() >= 0)
    if x is None or not owned(x):
        return None
    y = s.like(x)
    t = s.values[x]
    if y is None:
        return None
    whole = s.integral(x)
    both = s.is_exact(x, y)
    options = [
        (f"{x}.copy_({y})", both and s.values[y].is_floating_point() == t.is_floating_point()),
        (f"{x}.add_(1)", whole),
        (f"{x}.mul_(2)", s.is_exact(x)),
        (f"{x}.add_({y})", s.integral(x, y)),
        (f"{x}.zero_()", True),
        (f"{x}.fill_(2)", True),
        (f"{x}.neg_()", s.is_exact(x)),
    ]
    if t.dim() > 0 and t.numel() > 0:
        options += [
            (f"{x}[{s.choice('0', '-1', '1:', '::2', '..., :2')}] = {s.choice('0', '1', '3')}", s.is_exact(x)),
            (f"{x}[{s.choice('0', '-1', '1:', '::2', '..., :2')}].mul_(2)", s.is_exact(x)),
            (f"{x}.select(0, 0).copy_({x}.select(0, -1))", s.is_exact(x)),
            (f"{x}.transpose(0, -1).add_(1)", whole),
            (f"{x}.index_fill_(0, torch.arange(1), 1)", s.is_exact(x)),
        ]
    if t.is_floating_point():
        options += [
            (f"{x}.sigmoid_()", False),
            (f"{x}.mul_(0.5)", s.is_exact(x)),
            (f"{x}.masked_fill_({x} > 0, 0)", True),
        ]
        if not s.is_exact(x):
            options.pop()
    text, exact = s.rng.choice(options)
    return text, x, exact
