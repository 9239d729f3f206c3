"""The table of operators: one row an operator or overload, and how a row is applied.

A row says all that is known of one ATen operator. Kinds:

    SCALAR     a body in words, applied at each element of the broadcast shape
    FOLD       reductions
    INDEX      a map from output to input positions (views, cat, pad, pooling, ...)
    VIEW       an INDEX row that ATen does without moving a byte
    SCATTER    writes at computed positions
    COMPOSITE  an expression in other rows: softmax, norms, losses
    LIBRARY    a call to ATen with a known amount of work

Bodies take arrays, numbers, tuples and DTypes in the order of the ATen schema; keyword-only arguments by name. A
body may branch on those (they are known at conversion), never on values. What a row cannot do it refuses with
CannotConvert, and the operator is then run by torch.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from ridgeline.base.errors import CannotConvert, DuplicateRow
from ridgeline.ir.index import Axis, Index, Sym, evaluate
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, iota
from ridgeline.ops.array import Array, convert_number, pointwise, stored


class Kind(Enum):
    """What a row is."""

    SCALAR = "scalar"
    FOLD = "fold"
    INDEX = "index"
    VIEW = "view"
    SCATTER = "scatter"
    COMPOSITE = "composite"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class Scatter:
    """An array changed at computed positions: out = initial; out[index] += or = value over `axes`.

    With `add` duplicates add up; without it the caller knows that no two points share a position or that any wins.
    """

    initial: Array
    axes: tuple[Axis, ...]
    index: tuple[Index, ...]
    value: Value
    add: bool


@dataclass(frozen=True, slots=True)
class Context:
    """What a body may ask beyond its arguments.

    `out` are the outputs as PyTorch declares them, `promoted` the type PyTorch computes in, `dense` whether the first
    tensor argument is contiguous and starts at the head of its storage, `hints` an example number for a size symbol.
    """

    out: tuple[Buffer, ...]
    promoted: DType
    dense: bool = False
    hints: Mapping[str, int] = field(default_factory=dict)

    def number(self, size: Index) -> int:
        """A size as a number, by the hints where it is symbolic; refused where there is none."""
        symbols = [a for a in size.atoms if isinstance(a, Sym)]
        if any(a.name not in self.hints for a in symbols):
            raise CannotConvert(f"size {size} is known only at run time")
        return evaluate(size, {a: self.hints[a.name] for a in symbols})


Result = Array | Scatter | None


@dataclass(frozen=True, slots=True)
class Row:
    """One operator. `cast` says what array arguments of a SCALAR row become first: "out", "promoted" or "none"."""

    operators: tuple[str, ...]
    kind: Kind
    body: Callable[..., Any]
    where: str
    cast: str = "none"
    wants_context: bool = False
    random: bool = False  # a LIBRARY row that draws a number for each element of its first output

    def apply(self, context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Result, ...]:
        """The arrays of all outputs (None for one that is not made)."""
        extra = {**kwargs, "context": context} if self.wants_context else kwargs
        if self.kind is Kind.SCALAR:
            return (self._pointwise(context, args, extra),)
        out = self.body(*args, **extra)
        return out if isinstance(out, tuple) else (out,)

    def _pointwise(self, context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Array:
        target = {"out": context.out[0].dtype, "promoted": context.promoted}.get(self.cast)
        given = [_operand(a, target, self.cast == "promoted") for a in args]
        places = [k for k, a in enumerate(given) if isinstance(a, Array)]

        def at_point(*values: Value) -> Value:
            full = list(given)
            for k, v in zip(places, values, strict=True):
                full[k] = v
            out: Value = self.body(*full, **kwargs)
            return out

        return pointwise(at_point, *(given[k] for k in places))


def _operand(argument: Any, target: DType | None, exact: bool) -> Any:
    """An argument of a SCALAR row in the type the row works in; `exact`: rounded as if stored in that type."""
    if isinstance(argument, Array):
        if target is None:
            return argument
        cast = argument.cast(target)
        return cast.rounded(target) if exact and stored(argument) is not target else cast
    if isinstance(argument, Index) and target is not None:
        return iota(argument, target)
    if exact and target is not None and isinstance(argument, bool | int | float):
        return convert_number(argument, target)
    return argument


Body = TypeVar("Body", bound=Callable[..., Any])

TABLE: dict[str, Row] = {}


def _add(row: Row) -> None:
    for operator in row.operators:
        if operator in TABLE:
            raise DuplicateRow(operator, TABLE[operator].where, row.where)
        TABLE[operator] = row


def _decorator(
    kind: Kind, operators: tuple[str, ...], cast: str = "none", random: bool = False
) -> Callable[[Body], Body]:
    def register(body: Body) -> Body:
        where = f"{body.__module__}:{body.__name__}"
        wants = "context" in inspect.signature(body).parameters
        _add(Row(operators, kind, body, where, cast, wants, random))
        return body

    return register


def scalar(*operators: str, cast: str = "out") -> Callable[[Body], Body]:
    """A row whose body works on the values at one element. Names: "aten.add" (all overloads) or "aten.add.Tensor"."""
    return _decorator(Kind.SCALAR, operators, cast)


def fold_row(*operators: str) -> Callable[[Body], Body]:
    """A row whose body takes and gives arrays and folds dimensions away. The other kinds below are alike."""
    return _decorator(Kind.FOLD, operators)


def index_row(*operators: str) -> Callable[[Body], Body]:
    return _decorator(Kind.INDEX, operators)


def view_row(*operators: str) -> Callable[[Body], Body]:
    return _decorator(Kind.VIEW, operators)


def scatter_row(*operators: str) -> Callable[[Body], Body]:
    return _decorator(Kind.SCATTER, operators)


def composite(*operators: str) -> Callable[[Body], Body]:
    return _decorator(Kind.COMPOSITE, operators)


def library(*operators: str, random: bool = False) -> Callable[[Body], Body]:
    """A row run by ATen. Its body takes the same arguments and gives FLOPs by number format.

    `random`: it draws a number for each element of its first output.
    """
    return _decorator(Kind.LIBRARY, operators, random=random)


def find(operator: str) -> Row | None:
    """The row of an overload ("aten.add.Tensor"): its own, else its packet's ("aten.add"); none writes an `out`."""
    packet, _, overload = operator.rpartition(".")
    return TABLE.get(operator) or (None if overload.endswith("out") else TABLE.get(packet))
