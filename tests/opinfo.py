"""PyTorch's own operator samples (OpInfo) through the whole backend, forward and backward, against eager.

`cases(name, dtype, limit)` gives samples; `outcome(cases)` compiles the calls of several as one graph and tells what is
wrong with each, and how many operators ran by rows and how many by torch. Random numbers count: both sides start from
one seed.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from backends import LOOSE, copied, flat
from fuzz import differs, poisoned
from samples import op_database
from torch._dynamo.exc import TorchDynamoException
from torch.testing._internal import common_methods_invocations as invocations

from ridgeline.top.backend import Backend

# What eager raises for samples it does not take, or that Dynamo passes on.
ERRORS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError)
# Their outputs are whatever lay in memory.
UNSET = ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_permuted", "empty_strided")


@dataclass(frozen=True)
class Case:
    """One call of an operator."""

    name: str
    op: Any
    args: Any
    kwargs: dict[str, Any]
    finish: Any  # of its outputs, to what gradients are taken of

    def copy(self) -> tuple[Any, dict[str, Any]]:
        return _copied(self.args), _copied(self.kwargs)


@dataclass
class Outcome:
    """What came of some cases: what is wrong with each by name, and who ran their operators."""

    wrong: dict[str, str] = field(default_factory=dict)
    native: int = 0
    library: int = 0
    reasons: list[str] = field(default_factory=list)
    untraced: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        self.wrong |= other.wrong
        self.native, self.library = self.native + other.native, self.library + other.library
        self.reasons, self.untraced = self.reasons + other.reasons, self.untraced + other.untraced


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        plain = (
            value.layout is torch.strided and not value.is_conj() and not value.is_neg() and type(value) is torch.Tensor
        )
        return copied(value) if plain else value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value


@cache
def _unseeded() -> None:
    """The samples' own seeding would run inside the graph: here it is outside."""
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def names(dtype: torch.dtype) -> list[str]:
    """Operators with samples of a type that a CPU runs."""
    _unseeded()
    return sorted(
        n for n, o in op_database().items() if dtype in o.supported_dtypes("cpu") and not n.startswith("jiterator")
    )


def cases(name: str, dtype: torch.dtype, limit: int | None = None) -> Iterator[Case]:
    """Samples spread over the operator's list, with gradients where it has them."""
    _unseeded()
    info = op_database()[name]
    torch.manual_seed(0)
    grad = dtype.is_floating_point and info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = list(info.sample_inputs("cpu", dtype, requires_grad=grad))
        except ERRORS:
            return
    step = 1 if limit is None else max(1, -(-len(found) // limit))
    for sample in found[::step]:
        yield Case(name, info.op, (sample.input, *sample.args), sample.kwargs, sample.output_process_fn_grad)


@dataclass
class _Ran:
    outputs: list[torch.Tensor]
    arguments: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def _called(packs: Sequence[Any], ops: Sequence[Any]) -> list[Any]:
    return [op(*args, **kwargs) for op, (args, kwargs) in zip(ops, packs, strict=True)]


def _run(given: Sequence[Case], call: Any, packs: Sequence[Any]) -> list[_Ran]:
    """The calls and the gradients of each."""
    torch.manual_seed(0)
    made = call(packs)
    out = []
    for case, (args, kwargs), result in zip(given, packs, made, strict=True):
        tops = [o for o in flat(case.finish(result)) if o.requires_grad]
        leaves = [t for t in flat((args, kwargs)) if t.requires_grad and t.is_leaf]
        grads: list[torch.Tensor | None] = []
        if tops and leaves:
            cotangents = [_cotangent(o) for o in tops]
            grads = list(torch.autograd.grad(tops, leaves, cotangents, allow_unused=True, retain_graph=True))
        out.append(_Ran([o.detach() for o in flat(result)], [t.detach() for t in flat((args, kwargs))], grads))
    return out


def _cotangent(o: torch.Tensor) -> torch.Tensor:
    g = torch.Generator().manual_seed(o.numel())
    return (torch.randint(1, 9, o.shape, generator=g).double() / 4).to(o.dtype)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().double().requires_grad_(value.requires_grad) if value.is_floating_point() else value
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, dict):
        return {k: _wide(v) for k, v in value.items()}
    return type(value)(map(_wide, value)) if type(value) in (list, tuple) else value


def _exact(case: Case) -> _Ran | None:
    """The case in float64, None where it cannot be."""
    if any(t.dtype is torch.float64 for t in flat((case.args, case.kwargs))):
        return None
    args, kwargs = case.copy()
    try:
        pack = (_wide(args), _wide(kwargs))
        return _run([case], lambda packs: _called(packs, [case.op]), [pack])[0]
    except ERRORS:
        return None


def outcome(given: Sequence[Case]) -> Outcome:
    """Runs cases as one graph; where that fails, one by one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = [c for c in given if _eager(c) is not None]
        try:
            return _outcome(fit, fullgraph=True)
        except Exception:  # of whatever kind: then one of the cases raises it alone
            out = Outcome()
            for case in fit:
                out.add(_alone(case))
            return out


def _eager(case: Case) -> _Ran | None:
    try:
        return _run([case], lambda packs: _called(packs, [case.op]), [case.copy()])[0]
    except ERRORS:
        return None


def _alone(case: Case) -> Outcome:
    try:
        return _outcome([case], fullgraph=False)
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:200]}"
        return Outcome(untraced=[case.name]) if _torch_fails(case) else Outcome(wrong={case.name: text})


def _torch_fails(case: Case) -> bool:
    """Whether PyTorch's tracing alone cannot run it."""
    torch._dynamo.reset()
    run = torch.compile(_called, backend="aot_eager", dynamic=False)
    try:
        _run([case], lambda packs: run(packs, [case.op]), [case.copy()])
    except (*ERRORS, TorchDynamoException):
        return True
    return False


class _Poisoned(Backend):
    def compile(self, *args: Any) -> Any:
        out = super().compile(*args)
        if self.events[-1].compiled is not None:
            poisoned(self.events[-1].compiled.run._run.__globals__)
        return out


def _outcome(given: Sequence[Case], fullgraph: bool) -> Outcome:
    torch._dynamo.reset()
    backend = _Poisoned(LOOSE, LOOSE.knobs)
    run = torch.compile(_called, backend=backend, dynamic=False, fullgraph=fullgraph)
    ops = [c.op for c in given]
    got = _run(given, lambda packs: run(packs, ops), [c.copy() for c in given])
    want = _run(given, lambda packs: _called(packs, ops), [c.copy() for c in given])
    out = Outcome()
    for case, g, w in zip(given, got, want, strict=True):
        wrong = _compared(case, g, w)
        if wrong is not None:
            out.wrong[case.name] = wrong
    for event in backend.events:
        if event.compiled is None:
            out.wrong |= {c.name: f"{event.phase} fell back: {event.reason}" for c in given}
            continue
        for node in event.compiled.plan.graph.nodes:
            out.native += bool(node.definitions)
            out.library += node.kind.value == "library" and node.family not in ("size", "constant")
            out.reasons += [f"{node.operator}: {node.reason[:100]}"] if node.reason else []
    return out


def _compared(case: Case, got: _Ran, want: _Ran) -> str | None:
    exact: _Ran | None = None
    for what in ("outputs", "arguments", "gradients"):
        ours, theirs = getattr(got, what), getattr(want, what)
        if len(ours) != len(theirs):
            return f"{len(ours)} {what} instead of {len(theirs)}"
        for k, (g, w) in enumerate(zip(ours, theirs, strict=True)):
            if (g is None) != (w is None):
                return f"{what} {k} is {'missing' if g is None else 'not None'}"
            if g is None or (case.name.partition(".")[0] in UNSET and what == "outputs"):
                continue
            wrong = _unlike(g, w, None)
            if wrong is not None:
                exact = exact or _exact(case)
                true = getattr(exact, what) if exact is not None else []
                wrong = _unlike(g, w, true[k] if k < len(true) else None)
            if wrong is not None:
                return f"{what} {k}: {wrong}"
    return None


def _unlike(g: torch.Tensor, w: torch.Tensor, exact: torch.Tensor | None) -> str | None:
    if w.layout is not torch.strided:
        return _unlike(g.to_dense(), w.to_dense(), None)
    if w.is_complex():
        if g.dtype is not w.dtype:
            return f"{g.dtype} instead of {w.dtype}"
        parts = [torch.view_as_real(t.resolve_conj()) for t in (g, w)]
        return _unlike(parts[0], parts[1], None)
    return differs(g, w, exact)
