"""A program made of one object: `package.module:object` called over and over on random inputs.

Takes the target and its input shapes; gives a function that runs a training step of a module (forward, mean of the
outputs, backward) or a call of a function. Knows nothing of capture.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ridgeline.base.errors import BadScript

_SHAPE = re.compile(r"^(?P<sizes>\d+([x,]\d+)*|scalar)(:(?P<dtype>\w+))?$")
_DEFAULT_CALLS = 25
_HIGHEST_INDEX = 2  # small enough to index any table


def is_object(target: str) -> bool:
    """Whether a target is `module:object` and not a file."""
    return not os.path.exists(target) and re.fullmatch(r"[\w.]+:[\w.]+", target) is not None


def make_program(target: str, shapes: Sequence[str], calls: int | None, seed: int) -> Callable[[], None]:
    """The program that calls the object. Raises BadScript when there is no such object or shape."""
    if not shapes:
        raise BadScript(target, "a module:object needs its inputs: --input-shape 8x128 or 8x128:int64, one for each")
    generator = torch.Generator().manual_seed(seed)
    inputs = [_make_input(target, shape, generator) for shape in shapes]
    subject = _load(target)
    if isinstance(subject, type) and issubclass(subject, nn.Module):
        try:
            subject = subject()
        except TypeError as error:
            raise BadScript(target, f"its class cannot be made without arguments ({error})") from None
    if not callable(subject):
        raise BadScript(target, f"it is a {type(subject).__name__}, which cannot be called")
    # A function is no root by itself; through torch.compile it becomes one.
    call = subject if isinstance(subject, nn.Module) else None

    def program() -> None:
        step = call if call is not None else torch.compile(subject)
        for _ in range(calls or _DEFAULT_CALLS):
            _step(step, inputs)

    return program


def _step(step: Any, inputs: Sequence[torch.Tensor]) -> None:
    results = [leaf for leaf in tree_leaves(step(*inputs)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if results:
        total = torch.stack([result.float().mean() for result in results]).sum()
        torch.autograd.backward(total)
    if isinstance(step, nn.Module):
        step.zero_grad()


def _load(target: str) -> Any:
    name, _, path = target.partition(":")
    before = list(sys.path)
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(name)
        for part in path.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        raise BadScript(target, f"there is no module '{error.name}'") from None
    except AttributeError as error:
        raise BadScript(target, str(error)) from None
    finally:
        sys.path[:] = before
    return found


def _make_input(target: str, shape: str, generator: torch.Generator) -> torch.Tensor:
    match = _SHAPE.match(shape)
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise BadScript(target, f"input shape '{shape}' is not of the form 8x128 or 8x128:int64")
    sizes = [] if match["sizes"] == "scalar" else [int(size) for size in re.split("[x,]", match["sizes"])]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(sizes, generator=generator).to(dtype)
    return torch.randint(_HIGHEST_INDEX, sizes, generator=generator).to(dtype)
