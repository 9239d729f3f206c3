"""What a target is: six members, found by the name of its file in this folder.

A target spells loop programs and the words; it knows no operator, chooses no loop and keeps no cache (runtime/build.py
and runtime/cache.py do).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ridgeline.base.records import Machine
from ridgeline.ir.program import Program


class Entry(Protocol):
    """A compiled program."""

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        """Runs it once: addresses of the program's buffers in order, then its sizes. Raises MemoryError."""

    def bind(self, pointers: Sequence[int], sizes: Sequence[int]) -> Callable[[], None]:
        """The same with its arguments laid out beforehand, for calls that must cost nothing."""


class Target(Protocol):
    """One way to run loop programs."""

    @property
    def name(self) -> str:
        """The name of its file."""

    @property
    def version(self) -> str:
        """All that a compiled module depends on beside its source: compiler, flags, processor. Raises BuildFailed."""

    @property
    def words(self) -> frozenset[str]:
        """The words it spells; `emit` refuses programs with others."""

    def machine(self, workers: int, cache_bytes: tuple[int, ...]) -> Machine:
        """What loop programs may use on a device with so many workers and such caches."""

    def emit(self, programs: Sequence[Program]) -> str:
        """Source of one module that holds the programs. Raises BuildFailed for what it cannot spell."""

    def compile(self, source: str, folder: Path) -> Mapping[str, Entry]:
        """Entries by program name. Loads what an earlier compile of this source left in `folder`, else builds there.

        Raises BuildFailed.
        """
