"""A fuzzer of whole programs: seeded, run by eager and by the backend, compared elementwise, shrunk where they differ.

`program(seed)` writes a function of 3 to 12 statements from the grammar of `fuzz_ops`; `check(program)` runs it with
eager, compiled, and in float64, and gives what is wrong or None. Nothing is compared by shape alone. As a script,
`python tests/fuzz.py FIRST COUNT` runs seeds in child processes, so that a crash is a finding too.
"""

import argparse
import json
import logging
import math
import random
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from fuzz_ops import FLOATS, INTS, LOW, RULES, TYPES, Scope, changed

from ridgeline.base.knobs import Knobs
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine

SIZES = (1, 2, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129)
MOST_ELEMENTS = 6000
PAD = 64  # elements of a known pattern around an input
GUARD = 77
# What eager raises for a program that makes no sense.
ERRORS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, ZeroDivisionError)


@dataclass(frozen=True)
class Input:
    """One argument: everything needed to make it again."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    content: str
    seed: int
    grad: bool = False

    def flat(self, count: int) -> torch.Tensor:
        """`count` numbers of its type and content."""
        g = torch.Generator().manual_seed(self.seed)
        if self.dtype == "b8":
            return torch.rand(count, generator=g) < 0.5
        if self.dtype in INTS:
            info = torch.iinfo(TYPES[self.dtype])
            low, high = (max(info.min, -9), 10) if self.content != "extreme" else (info.min, info.max)
            return torch.randint(low, high, (count,), generator=g, dtype=TYPES[self.dtype])
        x = torch.randn(count, generator=g, dtype=torch.float64)
        if self.content != "normal":
            x = (x * 16).round() / 8
        if self.content == "special":
            odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40, 3e38], dtype=torch.float64)
            at = torch.randint(0, 40, (count,), generator=g)
            x = torch.where(at < len(odd), odd[at.clamp(max=len(odd) - 1)], x)
        return x.to(TYPES[self.dtype])

    def make(self, exact: bool = False) -> torch.Tensor:
        """The tensor in its layout; with `exact`, floats are held in float64."""
        shape = list(self.shape)
        strides = _strides(shape, self.layout, self.seed)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
        pad = 0 if self.layout == "plain" else PAD
        flat = self.flat(extent)
        flat = torch.cat([flat.new_full((pad,), GUARD), flat, flat.new_full((pad,), GUARD)])
        if exact and flat.is_floating_point():
            flat = flat.double()
        out = torch.empty(0, dtype=flat.dtype).set_(flat.untyped_storage(), pad, shape, strides)
        return out.requires_grad_(self.grad)


def _strides(shape: Sequence[int], layout: str, seed: int) -> list[int]:
    """Strides of a layout: which dimension is innermost, and what lies between elements."""
    order = list(range(len(shape)))
    if layout in ("permuted", "stepped"):
        random.Random(seed).shuffle(order)
    if layout == "channels_last" and len(shape) >= 3:
        order = [0, *range(2, len(shape)), 1]
    strides, step = [0] * len(shape), 3 if layout == "stepped" else 1
    for d in reversed(order):
        strides[d] = step
        step *= max(shape[d], 1) + (1 if layout in ("stepped", "gaps") else 0)
    if layout == "expanded" and shape:
        strides[seed % len(shape)] = 0
    return strides


@dataclass(frozen=True)
class Line:
    """One statement: the value it makes or changes, and its text."""

    name: str
    text: str

    @property
    def makes(self) -> bool:
        return self.text.startswith(f"{self.name} = ")


@dataclass(frozen=True)
class Program:
    """A function of tensors as source, its inputs, and how it is called."""

    seed: int
    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    backward: bool = False
    dynamic: bool = False
    mode: str = "grad"  # "grad" | "no_grad" | "inference"

    def source(self) -> str:
        body = [f"    {line.text}" for line in self.lines] + [f"    return ({', '.join(self.outputs)},)"]
        return f"def f({', '.join(i.name for i in self.inputs)}):\n" + "\n".join(body) + "\n"

    def function(self, exact: bool = False) -> Callable[..., Any]:
        types = {n: torch.float64 for n in FLOATS} if exact else {}
        names: dict[str, Any] = {"torch": torch, "F": F, "math": math, **TYPES, **types}
        exec(compile(self.source(), f"<fuzz {self.seed}>", "exec"), names)
        made: Callable[..., Any] = names["f"]
        return made

    def show(self) -> str:
        how = f"backward={self.backward} dynamic={self.dynamic} mode={self.mode}"
        return "\n".join([f"# seed {self.seed} {how}", *(f"# {i}" for i in self.inputs), self.source()])


def _input(rng: random.Random, name: str, sides: Sequence[int], backward: bool) -> Input:
    rank = rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4))
    shape = tuple(rng.choice(sides) for _ in range(rank))
    while math.prod(shape) > MOST_ELEMENTS:
        shape = shape[1:]
    if rng.random() < 0.3 and len(shape) > 1:
        shape = (*shape[:-1], 1) if rng.random() < 0.5 else (1, *shape[1:])
    dtype = rng.choice(("f32",) * 6 + ("f64", "bf16", "bf16", "f16") + tuple(INTS) + ("b8",))
    layout = rng.choice(("plain",) * 4 + ("permuted", "permuted", "stepped", "gaps", "expanded", "channels_last"))
    content = rng.choice(("normal",) * 4 + ("grid", "grid", "special", "extreme"))
    if content == "special" and (dtype not in ("f32", "f64") or backward):
        content = "grid"
    grad = backward and dtype in FLOATS and rng.random() < 0.8
    return Input(name, shape, dtype, layout, content, rng.randrange(1 << 30), grad)


class _Writer:
    """Grows one program by running each statement as it is added."""

    def __init__(self, seed: int, dynamic: bool | None = None) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.backward = rng.random() < 0.45
        self.dynamic = rng.random() < 0.15 if dynamic is None else dynamic
        self.mode = "grad" if self.backward else rng.choice(("grad", "no_grad", "inference"))
        sides = [rng.choice(SIZES) for _ in range(3)] + ([0] if rng.random() < 0.05 else [])
        if self.dynamic:
            sides = [s if s > 1 else 5 for s in sides]
        self.inputs = [_input(rng, f"x{k}", sides, self.backward) for k in range(rng.randint(1, 4))]
        self.values: dict[str, torch.Tensor] = {i.name: i.make() for i in self.inputs}
        self.exact = set(self.values)
        self.lines: list[Line] = []
        self.scope = Scope(rng, self.values, self.exact, self.backward, self.dynamic)

    def grow(self, statements: int) -> None:
        weights = [w for w, _ in RULES]
        tries = 0
        while len(self.lines) < statements and tries < 40 * statements:
            tries += 1
            if self.rng.random() < 0.06:
                self.write_in_place()
                continue
            (rule,) = self.rng.choices([r for _, r in RULES], weights)
            found = rule(self.scope)
            if found is not None:
                self.add(*found)

    def evaluate(self, text: str) -> Any:
        names = {"torch": torch, "F": F, "math": math, **TYPES, **self.values}
        try:
            return eval(text, names)
        except ERRORS:
            return None

    def add(self, text: str, exact: bool) -> None:
        value = self.evaluate(text)
        if not isinstance(value, torch.Tensor) or value.dtype not in TYPES.values():
            return
        if value.numel() > MOST_ELEMENTS or value.layout is not torch.strided or _wild(value, exact):
            return
        name = f"v{len(self.lines)}"
        self.lines.append(Line(name, f"{name} = {text}"))
        self.values[name] = value
        self.scope.used |= {n for n in self.values if n != name and re.search(rf"\b{n}\b", text)}
        if exact:
            self.exact.add(name)

    def write_in_place(self) -> None:
        leaves = {i.name for i in self.inputs if i.grad or i.layout == "expanded"}
        found = changed(
            self.scope,
            lambda n: (
                n not in leaves
                and not (self.mode == "grad" and self.values[n].requires_grad and self.values[n].is_leaf)
            ),
        )
        if found is None:
            return
        text, name, exact = found
        names = {"torch": torch, **TYPES, **self.values}
        try:
            exec(text, names)
        except ERRORS:
            self.lines = []  # half done perhaps: begin again
            raise _Spoilt from None
        self.lines.append(Line(name, text))
        if not exact:
            where = self.values[name].untyped_storage().data_ptr()
            self.exact -= {n for n, v in self.values.items() if v.untyped_storage().data_ptr() == where}


class _Spoilt(Exception):
    """A statement failed after changing something."""


def _wild(value: torch.Tensor, exact: bool) -> bool:
    """Numbers so large that one rounding decides what is left of them."""
    if not value.is_floating_point() or not value.numel():
        return False
    top = value.detach().abs().nan_to_num(0, 0, 0).max().item()
    return top > (1e3 if value.dtype in LOW else 1e6) and not exact


def program(seed: int, statements: int | None = None, dynamic: bool | None = None) -> Program:
    """The program of a seed. The same seed gives the same program."""
    for again in range(100):
        writer = _Writer(seed * 100 + again, dynamic)
        try:
            writer.grow(statements or writer.rng.randint(3, 12))
        except _Spoilt:
            continue
        made = [line.name for line in writer.lines if line.makes]
        if not made:
            continue
        ends = [n for n in dict.fromkeys(made) if n not in writer.scope.used]
        outputs = set(ends[-3:]) | {writer.rng.choice([*made, *writer.values]) for _ in range(writer.rng.randint(0, 2))}
        names = sorted(outputs) + ([made[-1]] if writer.rng.random() < 0.1 else [])
        found = Program(
            seed, tuple(writer.inputs), tuple(writer.lines), tuple(names), writer.backward, writer.dynamic, writer.mode
        )
        try:
            run(found, found.function())
        except ERRORS:
            continue
        return found
    raise AssertionError(f"seed {seed} gives no program")


@dataclass
class Result:
    """All that a call leaves behind."""

    outputs: list[torch.Tensor]
    arguments: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    aliases: list[tuple[int, ...]]  # for each output, the arguments and outputs that share its memory
    damaged: list[str]  # inputs around which something was written


def run(p: Program, fn: Callable[..., Any], exact: bool = False, sizes: int = 0) -> Result:
    """Calls the function on fresh inputs, and backward with fixed cotangents."""
    inputs = [i if not sizes else _resized(i, sizes) for i in p.inputs]
    leaves = [i.make(exact) for i in inputs]
    before = [
        leaf.untyped_storage().tolist() if i.layout == "expanded" else None
        for i, leaf in zip(inputs, leaves, strict=True)
    ]
    with _mode(p.mode):
        outs = list(fn(*leaves))
    gradients: list[torch.Tensor | None] = []
    wanted = [x for x in leaves if x.requires_grad]
    tops = [o for o in outs if o.requires_grad]
    if p.backward and wanted and tops:
        total = sum(
            ((o * _cotangent(o, k)).sum().double() for k, o in enumerate(tops)), torch.zeros((), dtype=torch.float64)
        )
        gradients = list(torch.autograd.grad(total, wanted, allow_unused=True))
    everything = [*leaves, *outs]
    places = [t.untyped_storage().data_ptr() if t.numel() else -1 - k for k, t in enumerate(everything)]
    aliases = [tuple(j for j, at in enumerate(places) if at == places[len(leaves) + k]) for k in range(len(outs))]
    damaged = [i.name for i, x in zip(inputs, leaves, strict=True) if not _intact(i, x)]
    assert before is not None
    return Result([o.detach() for o in outs], [x.detach() for x in leaves], gradients, aliases, damaged)


def _resized(i: Input, step: int) -> Input:
    return replace(i, shape=tuple(n + step if n > 1 else n for n in i.shape))


def _cotangent(o: torch.Tensor, k: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(k)
    return torch.randint(-4, 5, o.shape, generator=g).to(o.dtype) / 4


def _mode(mode: str) -> Any:
    return {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]()


def _intact(i: Input, x: torch.Tensor) -> bool:
    if i.layout == "plain":
        return True
    flat = torch.empty(0, dtype=x.dtype).set_(x.detach().untyped_storage())
    return bool((flat[:PAD] == flat.new_full((), GUARD)).all() and (flat[-PAD:] == flat.new_full((), GUARD)).all())


# The comparison: facts on tolerances in docs, elementwise.

TOLERANCE = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}


def differs(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None) -> str | None:
    """What is wrong with a tensor, or None: dtype, shape, NaN and infinity in place, every element near."""
    if got.dtype is not want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if not want.is_floating_point():
        wrong = got != want
        return (
            f"{int(wrong.sum())} of {want.numel()} integers differ: {_first(got, want, wrong)}" if wrong.any() else None
        )
    rtol, atol = TOLERANCE[want.dtype]
    g, w = got.double(), want.double()
    odd = (g.isnan() != w.isnan()) | ((g.isinf() | w.isinf()) & (g != w) & ~(g.isnan() & w.isnan()))
    if exact is not None and exact.shape == w.shape:
        r = exact.double()
        odd &= ~(g.isfinite() & ((g - r).abs() <= atol + rtol * r.abs()))  # eager overflowed, we did not
        if want.dtype in LOW:
            odd &= r.abs() < torch.finfo(want.dtype).max * 0.9  # beyond, where it overflows is rounding
    if odd.any():
        return f"NaN or infinity elsewhere: {_first(got, want, odd)}"
    far = ((g - w).abs() > atol + rtol * w.abs()) & w.isfinite() & g.isfinite()
    if not far.any():
        return None
    if exact is None or exact.shape != w.shape:
        return f"{int(far.sum())} of {want.numel()} differ: {_first(got, want, far)}"
    r = exact.double()
    usable = r.isfinite() & w.isfinite() & g.isfinite()
    worst = torch.where(usable, (w - r).abs(), 0).max()
    far = usable & ((g - r).abs() > atol + rtol * r.abs() + 3 * worst)
    if far.any():
        count = f"{int(far.sum())} of {want.numel()} far from float64"
        return f"{count} (eager is off by {worst:.2g}): {_first(got, want, far)}"
    return None


def _first(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    return f"{got[at].item()!r} instead of {want[at].item()!r} at {at}"


class CheckedEngine(Engine):
    """An engine that counts kernels it could not schedule or build."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self.failures: list[str] = []

    def build(self, *args: Any) -> Any:
        try:
            return super().build(*args)
        except Exception as error:
            self.failures.append(str(error))
            raise


ENGINE = CheckedEngine(Knobs())


def poisoned(names: dict[str, Any]) -> None:
    """Makes a compiled graph's fresh tensors and slabs hold garbage first, so that nothing unwritten looks right."""
    empty, fresh, take = names["empty_strided"], names["fresh"], names["take"]

    def dirty(tensor: torch.Tensor) -> torch.Tensor:
        flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        flat.fill_(0x01 if tensor.dtype is torch.bool else 0x9B)
        return tensor

    def dirty_slab() -> Any:
        slab = take()
        slab.block.fill_(0x9B)
        return slab

    names["empty_strided"] = lambda *a, **k: dirty(empty(*a, **k))
    names["fresh"] = lambda *a: dirty(fresh(*a))
    names["take"] = dirty_slab


class CheckedBackend(Backend):
    """A backend whose graphs begin with poisoned memory."""

    def compile(self, *args: Any) -> Any:
        out = super().compile(*args)
        event = self.events[-1]
        if event.compiled is not None:
            poisoned(event.compiled.run._run.__globals__)
        return out


@dataclass
class Verdict:
    """What came of one program."""

    wrong: str | None = None
    native: int = 0
    library: int = 0
    reasons: list[str] = field(default_factory=list)
    skipped: str | None = None  # PyTorch's own tracing is wrong about it


def compiled(p: Program, backend: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(p.function(), backend=backend, fullgraph=True, dynamic=p.dynamic)
    return made


def check(p: Program) -> Verdict:
    """Runs a program every way and says what is wrong."""
    backend = CheckedBackend(ENGINE, Knobs())
    ENGINE.failures.clear()
    verdict = Verdict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fn = compiled(p, backend)
        for sizes in (0, 3) if p.dynamic else (0,):
            try:
                want = run(p, p.function(), sizes=sizes)
            except ERRORS:
                break
            verdict.wrong = verdict.wrong or _compare(p, fn, want, sizes)
    if verdict.wrong and torch_fails(p):
        return Verdict(skipped=verdict.wrong)
    for event in backend.events:
        if event.compiled is None:
            verdict.wrong = verdict.wrong or f"{event.phase} fell back: {event.reason}"
            continue
        for node in event.compiled.plan.graph.nodes:
            verdict.native += bool(node.definitions)
            verdict.library += node.kind.value == "library"
            verdict.reasons += [f"{node.operator}: {node.reason[:100]}"] if node.reason else []
    if ENGINE.failures:
        verdict.wrong = verdict.wrong or f"kernels failed: {ENGINE.failures[0][:400]}"
    return verdict


def torch_fails(p: Program) -> bool:
    """Whether the program differs from eager with nothing but PyTorch's tracing in between."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fn = compiled(p, "aot_eager")
        return any(_compare(p, fn, run(p, p.function(), sizes=n), n) for n in ((0, 3) if p.dynamic else (0,)))


def _compare(p: Program, fn: Callable[..., Any], want: Result, sizes: int) -> str | None:
    try:
        got = run(p, fn, sizes=sizes)
        again = run(p, fn, sizes=sizes)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised {type(error).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno}: {str(error)[:300]}"
    exact: Result | None
    try:
        exact = run(p, p.function(exact=True), exact=True, sizes=sizes)
    except ERRORS:
        exact = None
    groups = (("output", "outputs"), ("argument", "arguments"), ("gradient", "gradients"))
    for what, group in groups:
        ours, theirs = getattr(got, group), getattr(want, group)
        true = getattr(exact, group) if exact is not None else [None] * len(theirs)
        if len(ours) != len(theirs):
            return f"{len(ours)} {what}s instead of {len(theirs)}"
        for k, (g, w, twice) in enumerate(zip(ours, theirs, getattr(again, group), strict=True)):
            if (g is None) != (w is None):
                return f"{what} {k} is {'missing' if g is None else 'not None'}"
            if g is None:
                continue
            wrong = differs(g, w, true[k] if k < len(true) else None)
            if wrong is None and not torch.equal(g.nan_to_num(1.5), twice.nan_to_num(1.5)):
                wrong = "a second call gives other bits"
            if wrong is not None:
                return f"{what} {k}: {wrong}"
    if got.damaged:
        return f"wrote around {got.damaged}"
    if got.aliases != want.aliases:
        return f"shares memory as {got.aliases} instead of {want.aliases}"
    return None


def shrunk(p: Program, wrong: Callable[[Program], str | None]) -> Program:
    """A smaller program that is still wrong: fewer outputs, dead statements gone, values made inputs."""
    better = True
    while better:
        better = False
        for candidate in _smaller(p):
            try:
                run(candidate, candidate.function())
                bad = wrong(candidate)
            except Exception:
                continue
            if bad:
                p, better = candidate, True
                break
    return p


def _smaller(p: Program) -> list[Program]:
    out: list[Program] = []
    if len(p.outputs) > 1:
        out += [replace(p, outputs=(*p.outputs[:k], *p.outputs[k + 1 :])) for k in range(len(p.outputs))]
    out += [replace(p, lines=(*p.lines[:k], *p.lines[k + 1 :])) for k in reversed(range(len(p.lines)))]
    out += [replace(p, inputs=(*p.inputs[:k], *p.inputs[k + 1 :])) for k in range(len(p.inputs))]
    if p.backward:
        out.append(replace(p, backward=False, inputs=tuple(replace(i, grad=False) for i in p.inputs)))
    out += [
        replace(p, outputs=(line.name,), lines=p.lines[: k + 1]) for k, line in enumerate(p.lines[:-1]) if line.makes
    ]
    for k, i in enumerate(p.inputs):
        for change in ({"layout": "plain"}, {"content": "grid"}, {"grad": False}):
            if any(getattr(i, a) != v for a, v in change.items()):
                out.append(replace(p, inputs=(*p.inputs[:k], replace(i, **change), *p.inputs[k + 1 :])))  # type: ignore[arg-type]
    out += [_cut(p, k) for k, line in enumerate(p.lines) if line.makes]
    return out


def _cut(p: Program, k: int) -> Program:
    """The program with the value of one statement given as an input."""
    line = p.lines[k]
    names: dict[str, Any] = {i.name: i.make() for i in p.inputs}
    scope = {"torch": torch, "F": F, "math": math, **TYPES, **names}
    for before in p.lines[: k + 1]:
        exec(before.text, scope)
    value = scope[line.name]
    dtype = next(n for n, t in TYPES.items() if t is value.dtype)
    made = Input(line.name, tuple(value.shape), dtype, "plain", "grid", 1, p.backward and dtype in FLOATS)
    return replace(p, inputs=(*p.inputs, made), lines=(*p.lines[:k], *p.lines[k + 1 :]))


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--inside", action="store_true", help="run here instead of in child processes")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    if options.show:
        print(program(options.first).show())
    elif options.inside:
        for seed in range(options.first, options.first + options.count):
            print(json.dumps({"seed": seed, "begins": True}), flush=True)
            print(json.dumps(_one(seed, options.shrink)), flush=True)
    else:
        _supervise(options.first, options.count, options.shrink)


def _one(seed: int, shrink: bool) -> dict[str, Any]:
    p = program(seed)
    verdict = check(p)
    out = {"seed": seed, "wrong": verdict.wrong, "native": verdict.native, "library": verdict.library}
    out |= {"skipped": verdict.skipped} if verdict.skipped else {}
    out |= {"reasons": verdict.reasons} if verdict.reasons else {}
    if verdict.wrong and shrink:
        kind = verdict.wrong.split(":")[0][:14]
        p = shrunk(p, lambda q: found if (found := check(q).wrong) and found.startswith(kind[:6]) else None)
        out["program"] = p.show()
        out["shrunk"] = check(p).wrong
    return out


def _supervise(first: int, count: int, shrink: bool) -> None:
    """Runs seeds in child processes of 40, going on after one that dies."""
    seed, end = first, first + count
    while seed < end:
        command = [sys.executable, __file__, str(seed), str(min(40, end - seed)), "--inside", *(["--shrink"] * shrink)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for text in child.stdout:
            if not text.startswith("{"):
                continue
            record = json.loads(text)
            seed = record["seed"]
            if "begins" not in record:
                print(text, end="", flush=True)
                seed += 1
        if child.wait() and seed < end:
            print(json.dumps({"seed": seed, "wrong": f"the process died: {child.returncode}"}), flush=True)
            seed += 1


if __name__ == "__main__":
    main()
