"""Finds the roots of an unmodified program: patches what a step is made of, and undoes it all.

While entered, outermost calls of modules, loss functions, gradient clipping, optimizer steps and functions that the
script compiles itself go through a `Runner`. One section a kind of root: its stand-in and its call. Nothing is set on
a user's object. Decides nothing: `steps.py` says how a call runs.
"""

import functools
import sys
from dataclasses import replace
from types import FunctionType, TracebackType
from typing import Any
from weakref import WeakSet

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule, skip_code
from torch.nn.parameter import is_lazy
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ridgeline.capture.compiling import Compiling
from ridgeline.capture.deferred import Deferred, Joiner
from ridgeline.capture.replay import Replay
from ridgeline.capture.root import Root, current_root, user_line
from ridgeline.capture.runner import Call, Engine, Runner
from ridgeline.capture.schedule import Signature
from ridgeline.capture.steps import RootCalls, RootTime, Steps

LOSSES = tuple(
    name
    for name in dir(F)
    if name.endswith(("_loss", "cross_entropy", "kl_div", "cross_entropy_with_logits")) and not name.startswith("_")
)
# What a script may say to torch.compile that is about capture, and so still holds.
_KEPT_OPTIONS = ("fullgraph", "dynamic", "recompile_limit", "isolate_recompiles", "shapes_spec")

__all__ = ["LOSSES", "Engine", "Root", "Roots", "current_root"]


class Roots:
    """Context manager that patches the table of roots for one run of a program."""

    def __init__(self, steps: Steps, engine: Engine, replay: bool = True) -> None:
        self._compiling = Compiling(self._compile_begins, self._compile_ends)
        self._runner = Runner(steps, engine, self._compiling)
        self._replay = Replay(self._runner)
        if replay:
            self._runner.on_eager = self._replay.remember
        self._settings = torch._dynamo.config.patch(suppress_errors=True)
        self._notes: dict[str, None] = {}
        self._patches: list[tuple[Any, str, Any, Any]] = []
        self._module_call: Any = nn.Module.__call__
        self._patched_module_call: Any = None
        self._hook_step: Any = Optimizer.profile_hook_step

    def __enter__(self) -> "Roots":
        runner = self._runner
        self._settings.__enter__()
        self._compiling.__enter__()
        compiled_by_script: WeakSet[nn.Module] = WeakSet()
        losses: set[int] = set()
        joiner = Joiner(runner, losses)
        self._patched_module_call = _module_call(runner, joiner, self._module_call, compiled_by_script)
        self._patch(nn.Module, "__call__", self._patched_module_call)
        for name in LOSSES:
            self._patch(F, name, _loss(runner, joiner, getattr(F, name)))
            losses.add(id(getattr(F, name)))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            patched = _clip(runner, getattr(clip_grad, name))
            self._patch(clip_grad, name, patched)
            self._patch(nn.utils, name, patched)
        self._patch(torch.autograd, "backward", _backward(runner, torch.autograd.backward))
        self._patch(torch, "compile", _compile(runner, torch.compile, compiled_by_script, self._notes))
        self._patch_optimizers()
        runner.active = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._runner.active = False
        for owner, name, original, replacement in reversed(self._patches):
            # What the script itself has put in our place stays.
            if owner.__dict__.get(name) is replacement:
                setattr(owner, name, original)
        self._patches.clear()
        self._compiling.__exit__(kind, error, tb)
        self._settings.__exit__(kind, error, tb)

    def _patch(self, owner: Any, name: str, replacement: Any) -> None:
        self._patches.append((owner, name, owner.__dict__[name], replacement))
        setattr(owner, name, replacement)

    def _patch_optimizers(self) -> None:
        """Every optimizer class wraps its `step` once, when first made; ours goes inside, so that hooks still run."""
        self._patch(Optimizer, "profile_hook_step", staticmethod(_hooked_step(self._runner, self._hook_step)))
        made = _optimizer_made(self._optimizer_made, Optimizer._patch_step_function)
        self._patch(Optimizer, "_patch_step_function", made)
        for kind in _subclasses(Optimizer):
            step: Any = kind.__dict__.get("step")
            if getattr(step, "hooked", False):
                replacement: Any = Optimizer.profile_hook_step(step.__wrapped__)
                replacement.hooked = True
                self._patch(kind, "step", replacement)

    def _optimizer_made(self, kind: type[Optimizer], before: Any) -> None:
        """An optimizer was made. If that wrapped its class's step in ours, PyTorch's own wrapper comes back at exit."""
        self._runner.steps.optimizer_made()
        if kind.step is not before:
            plain = self._hook_step(before)
            plain.hooked = True
            self._patches.append((kind, "step", plain, kind.step))

    def _compile_begins(self) -> None:
        # Dynamo inlines a module's forward directly only while nn.Module.__call__ is PyTorch's own.
        if nn.Module.__dict__["__call__"] is self._patched_module_call:
            setattr(nn.Module, "__call__", self._module_call)  # noqa: B010

    def _compile_ends(self, seconds: float) -> None:
        if self._runner.active and nn.Module.__dict__["__call__"] is self._module_call:
            setattr(nn.Module, "__call__", self._patched_module_call)  # noqa: B010
        self._runner.steps.compiled(seconds)

    def replay(self) -> tuple[RootTime, ...]:
        """The program has ended: run its roots on copies if none of them was ever compiled."""
        if self._runner.on_eager is None:
            return ()
        times, why_not = self._replay.run()
        if why_not is not None:
            self._notes.setdefault(why_not)
        return times

    @property
    def calls(self) -> tuple[RootCalls, ...]:
        """Every root that was called, in the order of their first calls."""
        return self._runner.calls

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._notes, *self._compiling.notes)


def _invisible(replacement: Any, original: Any) -> Any:
    """Make a stand-in that Dynamo does not see: skipped as a frame, and inlined as the original."""
    functools.update_wrapper(replacement, original)
    skip_code(replacement.__code__)
    replacement._torchdynamo_inline = original
    return replacement


# Modules.


def _module_call(runner: Runner, joiner: Joiner, original: Any, compiled_by_script: WeakSet[nn.Module]) -> Any:
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if runner.inside or runner.inert:
            return original(self, *args, **kwargs)
        if isinstance(self, torch.fx.GraphModule | torch.jit.ScriptModule):
            return runner.hidden(original, self, *args, **kwargs)
        if args and isinstance(args[0], Deferred):
            again = functools.partial(type(self).__call__, self)
            return joiner.call_loss(self, again, type(self).__name__, args, kwargs)
        compiled: Any = None
        if self in compiled_by_script:
            compiled = functools.partial(original, self, *args, **kwargs)
        plain: Any = self._orig_mod if isinstance(self, OptimizedModule) else self
        call = _make_module_call(runner, plain, original, compiled, args, kwargs)
        if not runner.has_run(call.key) and any(map(is_lazy, plain.parameters())):
            return runner.run(replace(call, compiled=call.eager))  # draws its weights' first values
        return runner.run(call) if compiled else joiner.call_module(call, sys._getframe(1))

    return _invisible(__call__, original)


def _make_module_call(
    runner: Runner, module: nn.Module, original: Any, compiled: Any, args: tuple, kwargs: dict[str, Any]
) -> Call:
    training = torch.is_grad_enabled()
    key = id(module)
    root = Root(runner.name(f"{type(module).__name__}.forward", key), "module", user_line())
    # `module.compile()` leaves a compiled call on the module, which eager steps go around.
    eager: Any = original if module._compiled_call_impl is None else type(module)._call_impl
    state = ("train" if module.training else "eval") + ("" if training else ", no_grad")
    return Call(
        root,
        key,
        module,
        args,
        kwargs,
        eager=functools.partial(eager, module, *args, **kwargs),
        sign=functools.partial(_sign, root.name, (args, kwargs), state),
        waits_for_optimizer=training,
        compiled=compiled,
    )


# Loss functions, and functions that the script compiles itself.


def _loss(runner: Runner, joiner: Joiner, original: Any) -> Any:
    def run(args: tuple, kwargs: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Deferred):
            return joiner.call_loss(original, loss, original.__name__, args, kwargs)
        return runner.run(_make_function_call(runner, "loss", original, None, args, kwargs))

    def loss(*args: Any, **kwargs: Any) -> Any:
        if runner.inside or runner.inert:
            return original(*args, **kwargs)
        return run(args, kwargs)

    # TorchScript reads the original's source and looks its names up in the stand-in's globals.
    within = FunctionType(loss.__code__, original.__globals__, loss.__name__, None, loss.__closure__)
    return _invisible(within, original)


def _make_function_call(
    runner: Runner, kind: str, function: Any, compiled: Any, args: tuple, kwargs: dict[str, Any]
) -> Call:
    training = torch.is_grad_enabled()
    name = runner.name(getattr(function, "__name__", type(function).__name__), id(function))
    return Call(
        Root(name, kind, user_line()),
        id(function),
        function,
        args,
        kwargs,
        eager=functools.partial(function, *args, **kwargs),
        sign=functools.partial(_sign, name, (args, kwargs), "" if training else "no_grad"),
        waits_for_optimizer=training,
        compiled=compiled,
    )


def _compile(runner: Runner, original: Any, compiled_by_script: WeakSet[nn.Module], notes: dict[str, None]) -> Any:
    """The script's own torch.compile: our engine in place of its backend, mode and options."""

    def compile(model: Any = None, **options: Any) -> Any:
        if not runner.active or torch.compiler.is_compiling():
            return original(model, **options)
        if model is None:
            return lambda model: compile(model, **options)
        if options.pop("disable", False):
            return original(model, disable=True, **options)
        if isinstance(getattr(model, "__self__", None), Optimizer) and model.__name__ == "step":
            return model  # a root by itself, which a graph with every tensor's operators would only hide
        ignored = {key: value for key, value in options.items() if key not in _KEPT_OPTIONS and value is not None}
        if ignored:
            listed = ", ".join(f"{key}={value!r}" for key, value in ignored.items())
            notes.setdefault(f"torch.compile({listed}) at {user_line()}: compiled by Ridgeline instead")
        kept = {key: value for key, value in options.items() if key in _KEPT_OPTIONS}
        compiled = runner.compile(model, **kept)
        if isinstance(model, nn.Module):
            compiled_by_script.add(compiled)
            return compiled
        return _compiled_function(runner, model, compiled)

    return functools.update_wrapper(compile, original)


def _compiled_function(runner: Runner, original: Any, compiled: Any) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        if runner.inside or runner.inert:
            return (compiled if runner.compiled_now or not runner.active else original)(*args, **kwargs)
        call = functools.partial(compiled, *args, **kwargs)
        return runner.run(_make_function_call(runner, "function", original, call, args, kwargs))

    return _invisible(function, original)


# Gradient clipping.


def _clip(runner: Runner, original: Any) -> Any:
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if runner.inside or runner.inert:
            return original(parameters, *args, **kwargs)
        return runner.run(_make_clip_call(runner, original, parameters, args, kwargs))

    return _invisible(clip, original)


def _make_clip_call(runner: Runner, original: Any, parameters: Any, args: tuple, kwargs: dict[str, Any]) -> Call:
    listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [parameter.grad for parameter in listed if parameter.grad is not None]
    root = Root(original.__name__, "clip", user_line())
    # An empty generator gets a warning from PyTorch, an empty list none.
    eager: Any = functools.partial(original, listed or (p for p in listed), *args, **kwargs)
    # With error_if_nonfinite the graph would have to look at its own values.
    looks = bool(kwargs.get("error_if_nonfinite")) or len(args) > 2
    call = Call(
        root,
        id(original),
        _clip_gradients,
        (original, gradients, args, kwargs),
        {},
        eager=eager,
        sign=functools.partial(Signature, root.name, ()),
        waits_for_optimizer=True,
        compiled=eager,
    )
    if gradients:
        call = replace(call, compiled=functools.partial(runner.clip, call, eager if looks else None))
    return call


class _WithGradient:
    """Stands for a parameter where only its gradient is looked at."""

    def __init__(self, grad: torch.Tensor) -> None:
        self.grad = grad


def _clip_gradients(original: Any, gradients: list[torch.Tensor], args: tuple, kwargs: dict[str, Any]) -> Any:
    return original([_WithGradient(gradient) for gradient in gradients], *args, **kwargs)


# Backward: no root, but its seconds belong to the step.


def _backward(runner: Runner, original: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        if runner.inside or runner.inert:
            return original(*args, **kwargs)
        began = runner.steps.begin()
        result = original(*args, **kwargs)
        runner.steps.backward_ended(Root("backward", "backward", user_line()), began)
        return result

    return _invisible(backward, original)


# Optimizers.


def _hooked_step(runner: Runner, original: Any) -> Any:
    def profile_hook_step(step: Any) -> Any:
        def rooted(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if runner.inside or runner.inert:
                return step(self, *args, **kwargs)
            return _run_optimizer(runner, step, self, args, kwargs)

        return original(_invisible(rooted, step))

    return functools.update_wrapper(profile_hook_step, original)


def _run_optimizer(runner: Runner, step: Any, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> Any:
    closure = args[0] if args else kwargs.get("closure")
    if closure is not None:
        args, kwargs = (runner.outermost(closure),), {}
    eager = functools.partial(step, optimizer, *args, **kwargs)
    # A GradScaler hands its scale to fused optimizers through this attribute.
    plain = closure is None and getattr(optimizer, "grad_scale", None) is None
    key = id(optimizer)
    root = Root(runner.name(f"{type(optimizer).__name__}.step", key), "optimizer", user_line())
    runner.steps.optimizer_made()
    result = runner.run(
        Call(
            root,
            key,
            optimizer,
            (),
            {},
            eager=eager,
            sign=functools.partial(Signature, root.name, ()),
            waits_for_optimizer=True,
            compiled=functools.partial(runner.update, optimizer, eager) if plain else eager,
        )
    )
    runner.steps.optimizer_stepped(key)
    return result


def _optimizer_made(tell: Any, original: Any) -> Any:
    def _patch_step_function(self: Optimizer) -> None:
        before = type(self).step
        original(self)
        tell(type(self), before)

    return functools.update_wrapper(_patch_step_function, original)


def _sign(name: str, inputs: Any, state: str) -> Signature:
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return Signature(name, tuple((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors), state)


def _subclasses(kind: type) -> list[type]:
    found: list[type] = []
    children: list[type] = kind.__subclasses__()
    for child in children:
        found += [child, *_subclasses(child)]
    return found
