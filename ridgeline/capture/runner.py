"""Runs one root call as its step's mode says, eager or compiled, and keeps what became of every root.

Takes a `Call`: who it is and its two ways to run. Gives the call's result. A root that cannot be compiled runs eager
for good, with the reason kept; errors of the user's own pass unchanged. Patches nothing: `roots.py` does.
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import FunctionType
from typing import Any, Protocol
from weakref import ref

import torch
import torch._dynamo
from torch._dynamo.exc import TorchDynamoException
from torch.optim import Optimizer

from ridgeline.capture.compiling import Compiling, Streams
from ridgeline.capture.root import Root, enter_root, leave_root
from ridgeline.capture.schedule import Mode, Signature
from ridgeline.capture.steps import RootCalls, Steps


class Engine(Protocol):
    """What compiles: a torch.compile backend, and a one-launch update of an optimizer's parameters."""

    def backend(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph. `current_root()` says which root it belongs to."""

    def optimizer_step(self, optimizer: Optimizer) -> Callable[[], None] | None:
        """A function that updates the parameters as `optimizer.step()` would, None to leave the step to torch.

        Asked at every compiled step, so it keeps what it built; a new function means that something was compiled.
        """

    def clip(
        self, function: Callable[..., Any], gradients: Sequence[torch.Tensor], args: tuple, kwargs: dict[str, Any]
    ) -> Callable[[], Any] | None:
        """A function that clips gradients as `function(parameters, *args, **kwargs)` would; None when it has none.

        Asked at every compiled step, like `optimizer_step`.
        """


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a root."""

    root: Root
    key: int  # which object is called
    target: Any  # the module, function or optimizer
    args: tuple
    kwargs: dict[str, Any]
    eager: Callable[[], Any]
    sign: Callable[[], Signature]
    waits_for_optimizer: bool  # part of a training step, which an optimizer will close
    compiled: Callable[[], Any] | None = None  # when it is not the target (or template) through `call_compiled`
    template: Any = None  # a function of the target and the arguments that is compiled instead of the plain call
    joined: str | None = None  # the loss that runs in the same graph


class _Tally:
    """What became of one root."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.calls = 0
        self.failed: str | None = None
        self.joined: str | None = None


class Runner:
    """Everything between a stand-in that was called and the call itself. `inside` is true while a root runs."""

    def __init__(self, steps: Steps, engine: Engine, compiling: Compiling) -> None:
        self.steps = steps
        self.inside = False
        self.active = False
        self._engine = engine
        self._compiling = compiling
        self._torch_compile = torch.compile
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._mode = Mode.EAGER
        self._tallies: dict[int, _Tally] = {}
        self._names: dict[str, dict[int, str]] = {}
        self._compiled: dict[tuple[int, int], tuple[Any, Callable[..., Any]]] = {}
        self._updates: dict[int, Callable[[], None] | None] = {}
        self._clipping: Callable[[], Any] | None = None
        self.on_eager: Callable[[Call], None] | None = None  # told of eager calls until one is compiled

    @property
    def inert(self) -> bool:
        """Whether stand-ins must do nothing now: inside a root or a backward, in another thread or process, tracing."""
        return (
            self.inside
            or not self.active
            or torch._C._current_graph_task_id() != -1
            or threading.get_ident() != self._thread
            or os.getpid() != self._process
            or torch.compiler.is_compiling()
            or torch._C._get_tracing_state() is not None
        )

    @property
    def compiled_now(self) -> bool:
        """Whether the root that runs is compiled."""
        return self._mode is Mode.COMPILED

    def name(self, base: str, key: int) -> str:
        """The root's name in the account: a second object of the same name is "Sequential.forward #2"."""
        names = self._names.setdefault(base, {})
        return names.setdefault(key, base if not names else f"{base} #{len(names) + 1}")

    def mode(self, call: Call) -> Mode:
        """How a call that is next must run. Ends the program when its steps are used up."""
        tally = self._tallies.get(call.key)
        mode = self.steps.enter(call.root, call.sign)
        return Mode.EAGER if tally is not None and tally.failed is not None and mode is Mode.COMPILED else mode

    def run(self, call: Call) -> Any:
        """Run one outermost root call in the mode of its step."""
        mode = self.mode(call)
        tally = self._tallies.setdefault(call.key, _Tally(_alone(call)))
        tally.calls += 1
        tally.joined = call.joined or tally.joined
        if mode is Mode.COMPILED:
            self.on_eager = None
        elif self.on_eager is not None:
            self.on_eager(call)
        began = self.steps.begin()
        token = enter_root(call.root)
        self.inside, self._mode = True, mode
        finished = False
        try:
            result = self._run_compiled(call, tally) if mode is Mode.COMPILED else call.eager()
            finished = True
        finally:
            self.inside = False
            leave_root(token)
            if not finished:
                self.steps.disturb()
        self.steps.leave(call.root, began, call.key, call.waits_for_optimizer)
        return result

    def _run_compiled(self, call: Call, tally: _Tally) -> Any:
        if tally.failed is not None or _foreign_modes():
            return call.eager()
        try:
            return call.compiled() if call.compiled else self.call_compiled(call)
        except TorchDynamoException as error:
            tally.failed = _first_line(error)
            if self._compiling.streams is not None:
                self._compiling.streams.restore()
            return call.eager()

    def run_copy(self, call: Call) -> Any:
        """Run a call compiled that is no part of the program: on copies, after its end."""
        token = enter_root(call.root)
        self.inside, self._mode = True, Mode.COMPILED
        try:
            return self._run_compiled(call, self._tallies[call.key])
        finally:
            self.inside = False
            leave_root(token)

    def has_run(self, key: int) -> bool:
        return key in self._tallies

    def hidden(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run something that is no root, nor is anything in it."""
        self.inside = True
        try:
            return original(*args, **kwargs)
        finally:
            self.inside = False

    def outermost(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure runs inside its optimizer's step, and the roots in it are outermost all the same."""

        @functools.wraps(closure)
        def call() -> Any:
            before, self.inside = self.inside, False
            token = enter_root(None)
            try:
                return closure()
            finally:
                self.inside = before
                leave_root(token)

        return call

    # Compilation.

    def compile(self, target: Any, **options: Any) -> Any:
        """torch.compile by PyTorch itself, with our engine."""
        return self._torch_compile(target, backend=self._engine.backend, **options)

    def call_compiled(self, call: Call) -> Any:
        """Call a module or function compiled; what was compiled is kept as long as the target lives."""
        target, template = call.target, call.template or _plain_call
        key = id(target), id(template)
        kept = self._compiled.get(key)
        if kept is None or kept[0]() is not target:
            # One code object a target: Dynamo counts recompiles by code object. The target is an argument, so that
            # nothing here keeps it alive.
            code = template.__code__.replace(co_name=getattr(target, "__name__", type(target).__name__))
            compiled = self.compile(FunctionType(code, template.__globals__))
            kept = self._compiled[key] = ref(target, lambda _: self._compiled.pop(key, None)), compiled
        return kept[1](target, *call.args, **call.kwargs)

    def update(self, optimizer: Optimizer, eager: Callable[[], Any]) -> Any:
        """One optimizer step by the engine's update, by torch when the engine has none."""
        key, begin = id(optimizer), perf_counter()
        streams = None if key in self._updates else Streams()
        update = self._engine.optimizer_step(optimizer)
        if streams is not None:
            streams.restore()
        if update is not None and self._updates.get(key) is not update:
            self.steps.compiled(perf_counter() - begin)
        self._updates[key] = update
        return eager() if update is None else update()

    def clip(self, call: Call, otherwise: Callable[[], Any] | None) -> Any:
        """Gradient clipping by the engine's own passes; without them `otherwise`, or compiled like any function."""
        begin = perf_counter()
        clipping = self._engine.clip(*call.args)
        if clipping is None:
            return self.call_compiled(call) if otherwise is None else otherwise()
        if clipping is not self._clipping:
            self._clipping = clipping
            self.steps.compiled(perf_counter() - begin)
        return clipping()

    @property
    def calls(self) -> tuple[RootCalls, ...]:
        tallies = self._tallies.values()
        return tuple(RootCalls(tally.root, tally.calls, tally.failed, tally.joined) for tally in tallies)


def _alone(call: Call) -> Root:
    """The root of a call without the loss that it is joined with."""
    return replace(call.root, name=call.root.name.removesuffix(f" + {call.joined}"))


def _plain_call(target: Any, *args: Any, **kwargs: Any) -> Any:
    return target(*args, **kwargs)


def _foreign_modes() -> bool:
    """Whether something of the user's is on that must see every operator: a dispatch mode, a functorch transform, or
    hooks on saved tensors (checkpointing recomputes them, and must find the same ones)."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
