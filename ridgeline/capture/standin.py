"""What an optimizer's step does to one parameter, asked of its own code.

A stand-in is an optimizer of the same class with one parameter that holds no data. The class's own `step` runs on it;
every operator it would apply is written down with its numbers and nothing is computed. So learning-rate schedules,
step counts, branches (RAdam's after five steps) and hyper-parameters changed by hand are those of the optimizer's own
Python, at every step. What was written down is kept as a tree of calls: a step that goes a known way costs a look-up
for each operator, and gives its numbers.

Takes an optimizer, one of its groups and what is known of a parameter; gives an `Answer`. Touches no state of the
real optimizer. Raises LeftToTorch for a step that looks at data or shapes, or makes new state.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from ridgeline.base.errors import LeftToTorch

LENGTH = 61  # elements of the models that results are worked out on; no step may depend on it
MOST_CALLS = 2000  # in one tree: beyond this the step does something else every time
Number = float | int | bool
# What a group says of how to run and not of what to compute.
RUNNING: Mapping[str, bool] = {"foreach": False, "fused": False}
SET_ITEM = torch.Tensor.__setitem__


@dataclass(frozen=True, slots=True)
class Layout:
    """What the code of a step can see of one parameter. State comes by key, with its type.

    `full` has the parameter's shape, `cells` are single elements on an accelerator, `hosts` single elements on the CPU
    (None: a Python number). `shared` are single elements on an accelerator that belong to the group.
    """

    dtype: torch.dtype
    device: torch.device
    gradient: torch.dtype
    full: tuple[tuple[str, torch.dtype], ...] = ()
    cells: tuple[tuple[str, torch.dtype], ...] = ()
    hosts: tuple[tuple[str, torch.dtype | None], ...] = ()
    shared: tuple[tuple[str, torch.dtype], ...] = ()
    has_state: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """The name of a tensor of the stand-in. `role` says which input it is: "parameter", "gradient", a key, or ""."""

    number: int
    role: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a number stands among the arguments of a call; with a dtype, as a tensor of no dimensions."""

    dtype: torch.dtype | None = None


NUMBER = Slot()


@dataclass(eq=False, slots=True)
class Call:
    """One operator of a way through the step, and the calls that may follow it."""

    parent: "Call | None"
    function: Callable[..., Any] = len
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()
    result: Any = None
    children: dict[Any, "Call"] = field(default_factory=dict)

    @property
    def way(self) -> list["Call"]:
        """The calls from the first to this one."""
        out: list[Call] = []
        call: Call | None = self
        while call is not None and call.parent is not None:
            out.append(call)
            call = call.parent
        return out[::-1]


@dataclass(frozen=True, slots=True)
class Answer:
    """One step: the way it went, the numbers it used in order, and what it leaves in the host state and the group."""

    end: Call
    numbers: tuple[float, ...]
    hosts: tuple[Number, ...]
    group: Mapping[str, Any]


class Ghost(torch.Tensor):
    """A tensor of the stand-in. Applying an operator to it is written down by its tree."""

    tree: "Tree"
    model: torch.Tensor
    ref: Ref
    gradient: "Ghost | None"

    device = property(lambda self: self.tree.device)
    dtype = property(lambda self: self.model.dtype)
    grad = property(lambda self: self.gradient)
    is_sparse = property(lambda self: False)
    requires_grad = property(lambda self: False)
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.is_complex or func is torch.Tensor.is_complex:
            return False
        if func is torch.is_floating_point or func is torch.Tensor.is_floating_point:
            return args[0].model.is_floating_point()
        if func.__name__ in ("__get__", "__set__"):
            raise LeftToTorch(f"its step looks at .{func.__self__.__name__} of a tensor")
        tree = args[0].tree if args and type(args[0]) is Ghost else _tree_of(args, kwargs or {})
        return tree.call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise LeftToTorch(f"its step applies {func} out of sight")


def _tree_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Tree":
    return next(g for g in _ghosts((args, tuple(kwargs.values())))).tree


def _ghosts(value: Any) -> Iterator[Ghost]:
    if type(value) is Ghost:
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _ghosts(part)


class Tree:
    """All ways seen through the step for one layout."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.root = self.cursor = Call(None)
        self.numbers: list[float] = []
        self.count = 0
        self._ghosts: dict[int, Ghost] = {}

    def ghost(self, model: torch.Tensor, role: str = "") -> Ghost:
        """The ghost whose results are worked out on `model`; one for each."""
        found = self._ghosts.get(id(model))
        if found is None:
            make: Any = torch.Tensor._make_wrapper_subclass
            made = make(Ghost, model.shape, dtype=model.dtype, device="meta")
            made.tree, made.model, made.gradient = self, model, None
            made.ref = Ref(len(self._ghosts), role)
            found = self._ghosts[id(model)] = made
        return found

    def begin(self) -> None:
        self.cursor, self.numbers = self.root, []

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operator: written down, its numbers kept apart. Gives the ghost of its result."""
        arguments = tuple(self.describe(a) for a in args)
        keywords = tuple((k, self.describe(v)) for k, v in kwargs.items())
        key = (function, arguments, keywords)
        found = self.cursor.children.get(key)
        if found is None:
            self.count += 1
            if self.count > MOST_CALLS:
                raise LeftToTorch("its step takes another way every time")
            found = Call(self.cursor, function, arguments, keywords, self.work_out(function, args, kwargs))
            self.cursor.children[key] = found
        self.cursor = found
        return found.result

    def describe(self, value: Any) -> Any:
        """An argument with ghosts by name and numbers taken out."""
        kind = type(value)
        if kind is Ghost:
            return value.ref
        if kind is float:
            self.numbers.append(value)
            return NUMBER
        if kind is tuple or kind is list:
            return (kind, *(self.describe(v) for v in value))
        if isinstance(value, torch.Tensor):
            if value.dim() or value.device.type != "cpu" or value.dtype in (torch.bool, torch.complex64):
                raise LeftToTorch("its step uses a tensor that belongs to no parameter")
            self.numbers.append(float(value))
            return Slot(value.dtype)
        return (kind, value)

    def work_out(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The ghost of a result, by running the operator on models without memory."""
        result = function(*_models(args), **{k: _models(v) for k, v in kwargs.items()})
        if isinstance(result, torch.Tensor) and result.device.type == "meta":
            return self.ghost(result)
        if result is None and function is SET_ITEM:
            return None
        raise LeftToTorch(f"its step looks at data or shapes ({getattr(function, '__name__', function)})")


def _models(value: Any) -> Any:
    if type(value) is Ghost:
        return value.model
    return type(value)(map(_models, value)) if type(value) in (list, tuple) else value


def own_step(kind: type[Optimizer]) -> Callable[..., Any]:
    """The step of an optimizer class without wrappers. Raises LeftToTorch unless it is one of torch.optim's."""
    step: Callable[..., Any] = inspect.unwrap(kind.step)
    closure = list(inspect.signature(step).parameters.values())[1:]
    if any(p.default is p.empty for p in closure):
        raise LeftToTorch("its step calls the model again")
    if not step.__module__.startswith("torch.optim."):
        raise LeftToTorch(f"{kind.__name__} has a step of its own, which may keep what we do not see")
    return step


class Standin:
    """The stand-in for parameters of one layout under one class of optimizer."""

    def __init__(self, kind: type[Optimizer], layout: Layout) -> None:
        self.step = own_step(kind)
        self.layout = layout
        self.tree = Tree(layout.device)
        self.parameter = self._ghost("parameter", layout.dtype, LENGTH)
        self.parameter.gradient = self._ghost("gradient", layout.gradient, LENGTH)
        self.tensors = {k: self._ghost(k, dtype, LENGTH) for k, dtype in layout.full}
        self.tensors |= {k: self._ghost(k, dtype) for k, dtype in layout.cells}
        self.shared = {k: self._ghost(k, dtype) for k, dtype in layout.shared}
        self.cells = {k: torch.zeros((), dtype=dtype) for k, dtype in layout.hosts if dtype is not None}

    def _ghost(self, role: str, dtype: torch.dtype, *shape: int) -> Ghost:
        return self.tree.ghost(torch.empty(shape, dtype=dtype, device="meta"), role)

    @property
    def inputs(self) -> tuple[Ghost, ...]:
        """Every tensor that the step is given."""
        assert self.parameter.gradient is not None
        return (self.parameter, self.parameter.gradient, *self.tensors.values(), *self.shared.values())

    def ask(self, optimizer: Optimizer, group: Mapping[str, Any], hosts: Sequence[Number]) -> Answer:
        """What a step would do to a parameter whose host state is `hosts`."""
        state = dict(self.tensors) | self._hosts(hosts)
        before = dict(state)
        ours = {**group, **self.shared, "params": [self.parameter]}
        ours |= {k: v for k, v in RUNNING.items() if k in ours}
        given = dict(ours)
        standin: Any = object.__new__(type(optimizer))
        standin.__dict__.update(optimizer.__dict__)
        standin.param_groups, standin.state = [ours], defaultdict(dict)
        if self.layout.has_state:
            standin.state[self.parameter] = state
        standin._accelerator_graph_capture_health_check = _nothing
        self.tree.begin()
        try:
            with torch.no_grad():
                self.step(standin)
        except LeftToTorch as left:
            if before:
                raise
            raise LeftToTorch(str(left), lasting=False) from left  # it may have been at making state
        after = standin.state.get(self.parameter, {})
        if after.keys() != before.keys() or any(after[k] is not v for k, v in before.items() if _is_tensor(v)):
            raise LeftToTorch("its step makes new state", lasting=False)
        changed = {k: v for k, v in ours.items() if k not in given or v is not given[k]}
        return Answer(self.tree.cursor, tuple(self.tree.numbers), self._read(after), changed)

    def _hosts(self, values: Sequence[Number]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for (key, _), value in zip(self.layout.hosts, values, strict=True):
            cell = self.cells.get(key)
            out[key] = value if cell is None else cell.fill_(value)
        return out

    def _read(self, state: Mapping[str, Any]) -> tuple[Number, ...]:
        found = (state[key] for key, _ in self.layout.hosts)
        return tuple(v.item() if isinstance(v, torch.Tensor) else v for v in found)

    def varying(
        self, optimizer: Optimizer, group: Mapping[str, Any], hosts: Sequence[Number], answer: Answer
    ) -> frozenset[int]:
        """Which numbers of an answer are others at another step, or with another learning rate."""
        found: set[int] = set()
        other = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
        if "lr" in other and "lr" not in self.shared:
            other["lr"] = other["lr"] * 0.75 + 0.001  # another one even where it is 0
        later = ([v + (k == place) for k, v in enumerate(hosts)] for place in range(len(hosts)))
        for g, h in ((other, hosts), *((group, h) for h in later)):
            second = self.ask(optimizer, g, h)
            if second.end is answer.end:
                pairs = zip(answer.numbers, second.numbers, strict=True)
                found |= {k for k, (a, b) in enumerate(pairs) if repr(a) != repr(b)}
        return frozenset(found)


def _nothing() -> None:
    """In place of a check that only the real optimizer's tensors can pass."""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
