"""The tensors of an optimizer as they stand in memory, and whether they still do.

A `Row` is one parameter with its state. A `View` holds the rows of all parameters that have gradients; asked again at
the next step, it tells in one pass over flat lists whether anything but the gradients has moved: other parameters or
groups, state that was replaced (load_state_dict), memory that was swapped under a tensor. Decides nothing.
"""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch.optim import Optimizer

Number = float | int
LAYOUT, DTYPE = attrgetter("layout"), attrgetter("dtype")
C_TYPES: Mapping[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.int64: ctypes.c_int64,
    torch.int32: ctypes.c_int32,
}


class Row:
    """One parameter and its state in memory.

    `roles` are the tensors a kernel is given, by name. `hosts` are the keys of host state: single numbers on the CPU.
    """

    __slots__ = ("cells", "count", "gradient", "hosts", "parameter", "roles", "state")

    def __init__(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any] | None, roles: Sequence[str]
    ) -> None:
        self.parameter, self.state, self.gradient = parameter, state, gradient.dtype
        self.count = parameter.numel()
        own: dict[str, Any] = state or {}
        self.roles = {"parameter": parameter} | {k: own[k] for k in roles}
        self.hosts = tuple(k for k in own if k not in self.roles)
        self.cells = [cell_of(own[k]) for k in self.hosts]

    def takes(self, gradient: torch.Tensor) -> bool:
        """Whether a gradient is one that was expected here."""
        return (
            gradient.dtype is self.gradient
            and gradient.layout is torch.strided
            and type(gradient) is torch.Tensor
            and (gradient.stride() == self.parameter.stride())
        )

    def read_hosts(self) -> tuple[Number, ...]:
        """The host state: step counts and the like."""
        own: dict[str, Any] = self.state or {}
        return tuple([own[k] if cell is None else cell.value for cell, k in zip(self.cells, self.hosts, strict=True)])

    def write_hosts(self, values: Sequence[Number]) -> None:
        for cell, key, value in zip(self.cells, self.hosts, values, strict=True):
            if cell is not None:
                cell.value = value
            elif self.state is not None:
                self.state[key] = value


def cell_of(value: Any) -> Any:
    """A window on a tensor's only element; None for a Python number."""
    return C_TYPES[value.dtype].from_address(value.data_ptr()) if isinstance(value, torch.Tensor) else None


def addresses_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Where tensors begin."""
    return list(map(torch.Tensor.data_ptr, tensors))


def gradients_of(optimizer: Optimizer) -> tuple[tuple[bool, ...], list[torch.Tensor]]:
    """Which parameters have gradients, and the gradients there are."""
    found = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return tuple([g is not None for g in found]), [g for g in found if g is not None]


class View:
    """The rows of an optimizer for one pattern of gradients. `places` are the groups they are of, `kinds` anything."""

    def __init__(self, optimizer: Optimizer, rows: Sequence[Row], places: Sequence[int], kinds: Sequence[Any]) -> None:
        self.rows, self.places, self.kinds = tuple(rows), tuple(places), tuple(kinds)
        self._groups = [tuple(g["params"]) for g in optimizer.param_groups]
        self._states = tuple(optimizer.state.values())
        self._dicts = [r.state for r in rows if r.state is not None]
        self._held = [v for d in self._dicts for v in d.values()]
        tensors = [t for r in rows for t in (r.parameter, *(r.state or {}).values()) if isinstance(t, torch.Tensor)]
        self._tensors, self._addresses = tensors, addresses_of(tensors)
        self._contiguous = all(r.parameter.is_contiguous() for r in rows)
        self._dtypes = {r.gradient for r in rows}
        self.cells: list[Any] | None = [c for r in rows for c in r.cells]
        if None in self.cells:
            self.cells = None  # Python numbers are new objects at every step

    def stands(self, optimizer: Optimizer) -> bool:
        """Whether all but the gradients is as it was."""
        groups, states = optimizer.param_groups, optimizer.state
        if self.cells is None or len(groups) != len(self._groups) or len(states) != len(self._states):
            return False
        for group, known in zip(groups, self._groups, strict=True):
            if len(group["params"]) != len(known) or not all(map(is_, group["params"], known)):
                return False
        return (
            all(map(is_, states.values(), self._states))
            and sum(map(len, self._dicts)) == len(self._held)
            and all(map(is_, chain.from_iterable(map(dict.values, self._dicts)), self._held))
            and addresses_of(self._tensors) == self._addresses
        )

    def takes(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Whether the gradients of the rows are as they were expected."""
        if self._contiguous and len(self._dtypes) == 1:
            return (
                set(map(type, gradients)) <= {torch.Tensor}
                and set(map(LAYOUT, gradients)) <= {torch.strided}
                and set(map(DTYPE, gradients)) <= self._dtypes
                and all(map(torch.Tensor.is_contiguous, gradients))
            )
        return all(row.takes(g) for row, g in zip(self.rows, gradients, strict=True))
