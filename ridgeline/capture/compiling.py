"""What must hold while TorchDynamo or AOTAutograd compiles: no random stream moves, nothing is printed.

Takes the places to put things back to; counts the seconds that compilation took and tells when it happened. Listens to
torch's own compile callbacks, so it covers the backward graph too, which is compiled at the first `.backward()`.
"""

import random
import sys
import warnings
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Any

import torch
import torch._dynamo.callback as dynamo_callback
from torch.utils._python_dispatch import _disable_current_modes

from ridgeline.capture.gauge import cuda_in_use


class Streams:
    """Every random stream a script may draw from: Python's, numpy's, and torch's on the CPU and each GPU in use."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        with _disable_current_modes():
            self._cpu = torch.get_rng_state()
            self._cuda = torch.cuda.get_rng_state_all() if cuda_in_use() else []

    def restore(self) -> None:
        """Put every stream back to where it was when this was made."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        with _disable_current_modes():
            torch.set_rng_state(self._cpu)
            if self._cuda:
                torch.cuda.set_rng_state_all(self._cuda)


class Compiling:
    """Context manager around a whole run; `began` and `ended` are called around every compilation."""

    def __init__(self, began: Callable[[], None], ended: Callable[[float], None]) -> None:
        self._began, self._ended = began, ended
        self._notes: dict[str, None] = {}
        self._streams: Streams | None = None
        self._show: Any = None
        self._since = 0.0
        self._depth = 0

    def __enter__(self) -> "Compiling":
        dynamo_callback.callback_handler.register_start_callback(self._start)
        dynamo_callback.callback_handler.register_end_callback(self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        handler = dynamo_callback.callback_handler
        # A script may have cleared all callbacks.
        if self._start in handler.start_callbacks:
            handler.remove_start_callback(self._start)
        if self._end in handler.end_callbacks:
            handler.remove_end_callback(self._end)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings that compilation gave; the script alone would not have seen them."""
        return tuple(self._notes)

    @property
    def streams(self) -> Streams | None:
        """The random streams as they stood when the last compilation began."""
        return self._streams

    def _start(self, _: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._streams = Streams()
        self._show = warnings.showwarning
        warnings.showwarning = self._keep  # type: ignore[assignment]
        self._since = perf_counter()
        self._began()

    def _end(self, _: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._ended(perf_counter() - self._since)
        if warnings.showwarning == self._keep:
            warnings.showwarning = self._show
        if self._streams is not None:
            self._streams.restore()

    def _keep(self, message: Any, category: type, filename: str, lineno: int, *_: Any) -> None:
        self._notes.setdefault(f"{category.__name__}: {message}")
