"""Graph breaks and recompiles with the user's line and the reason, read from what TorchDynamo logs.

Takes the records that torch's own loggers would print and keeps them: nothing of it reaches standard error while this
is entered. Gives `Break` records, and one line for every warning or suppressed compiler error. Compiles nothing.
"""

import logging
import re
from collections import Counter
from types import TracebackType

from torch._logging import _internal as torch_logging

from ridgeline.base.records import Break
from ridgeline.capture.lines import is_user_file
from ridgeline.capture.root import current_root, is_ours

_LONGEST_REASON = 240
_ARTIFACTS = ("torch._dynamo.symbolic_convert.__graph_breaks", "torch._dynamo.guards.__recompiles")
_LOUD = ("torch", "torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx")
_PLACE = re.compile(r"in user code at (?P<file>.+?):(?P<line>\d+)$", re.MULTILINE)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_REASON = re.compile(r"Graph Break Reason: (?P<reason>.+)")
# "Encountered graph break when attempting to trace CALL: ...:", a blank line, and only then what it was.
_WRAPPED = re.compile(r"Graph Break Reason: .+:\n\n(?P<reason>.+)")
_EXPLANATION = re.compile(r"^\s*Explanation: (?P<text>.+)", re.MULTILINE)
_RECOMPILE = re.compile(r"Recompiling function (?P<name>\S+) in (?P<file>.+):(?P<line>\d+)")
_GUARD = re.compile(r"^\s*- (?:\d+/\d+(?:_\d+)?: )?(?P<reason>.+)", re.MULTILINE)


class _Collector(logging.Handler):
    """Takes the artifact records of the two loggers."""

    def __init__(self, into: "Breaks") -> None:
        super().__init__(logging.DEBUG)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        found = read_break(record.getMessage())
        if found is not None:
            self._into.add(found)


class _Silencer(logging.Filter):
    """Keeps warnings of the compiler away from standard error; other records pass."""

    def __init__(self, into: "Breaks") -> None:
        super().__init__()
        self._into = into

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx")):
            return True
        if record.levelno >= logging.WARNING:
            self._into.note(record)
        return False


class Breaks:
    """Context manager that listens to TorchDynamo's loggers and leaves them as they were."""

    def __init__(self) -> None:
        self._breaks: Counter[tuple[str, str, str | None]] = Counter()
        self._notes: dict[str, None] = {}
        self._loggers: list[tuple[logging.Logger, int, bool]] = []
        self._filtered: list[logging.Handler] = []
        self._collector = _Collector(self)
        self._silencer = _Silencer(self)
        self._recompiles_on = False

    def __enter__(self) -> "Breaks":
        for name in _ARTIFACTS:
            logger = logging.getLogger(name)
            self._loggers.append((logger, logger.level, logger.propagate))
            logger.addHandler(self._collector)
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
        self._filtered = [handler for name in _LOUD for handler in logging.getLogger(name).handlers]
        for handler in self._filtered:
            handler.addFilter(self._silencer)
        # Dynamo asks this set, not the logger's level, before it writes down why it recompiles.
        names = torch_logging.log_state.artifact_names
        self._recompiles_on = "recompiles" in names
        names.add("recompiles")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for logger, level, propagate in self._loggers:
            logger.removeHandler(self._collector)
            logger.setLevel(level)
            logger.propagate = propagate
        for handler in self._filtered:
            handler.removeFilter(self._silencer)
        if not self._recompiles_on:
            torch_logging.log_state.artifact_names.discard("recompiles")
        self._loggers, self._filtered = [], []

    def add(self, found: Break) -> None:
        self._breaks[found.kind, found.reason, found.line] += found.count

    def note(self, record: logging.LogRecord) -> None:
        message = record.getMessage().strip()
        error = record.exc_info[1] if record.exc_info else None
        first = message.splitlines()[0] if message else record.name
        if error is not None:
            first = (
                f"{first} {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}".strip()
            )
        self._notes.setdefault(first)

    @property
    def found(self) -> tuple[Break, ...]:
        """Breaks and recompiles, the most frequent first."""
        return tuple(Break(*key, count) for key, count in self._breaks.most_common())

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)


def read_break(message: str) -> Break | None:
    """The graph break or recompile that a log message tells of, None when it tells of neither."""
    recompile = _RECOMPILE.search(message)
    if recompile:
        return _read_recompile(recompile["file"], recompile["line"], message)
    reason = _WRAPPED.search(message) or _REASON.search(message)
    if reason is None and not message.startswith("Graph break:"):
        return None
    text = reason["reason"] if reason else message.splitlines()[0].removeprefix("Graph break:")
    explanation = _EXPLANATION.search(message)
    if explanation:
        text = f"{text.strip()}: {explanation['text']}"
    place = _PLACE.search(message)
    where = [(place["file"], place["line"])] if place else []
    frames = where + [(match["file"], match["line"]) for match in reversed(list(_FRAME.finditer(message)))]
    return _locate("graph break", text.strip(), [(file, line) for file, line in frames if not is_ours(file)])


def _locate(kind: str, reason: str, frames: list[tuple[str, str]]) -> Break:
    """The break at the user's innermost line; where it really is, when that is in a library, goes to the reason."""
    root = current_root()
    if len(reason) > _LONGEST_REASON:
        reason = reason[:_LONGEST_REASON] + "..."
    users = next((f"{file}:{line}" for file, line in frames if is_user_file(file)), root.line if root else None)
    place = ":".join(frames[0]) if frames else None
    if place is not None and place != users and not is_user_file(frames[0][0]):
        reason = f"{reason} (in {place.rpartition('site-packages/')[2]})"
    return Break(kind, reason, users or place)


def _read_recompile(file: str, line: str, message: str) -> Break:
    """The first guard that failed: `tensor 'x' size mismatch at index 0. expected 3, actual 4`."""
    guard = _GUARD.search(message)
    reason = guard["reason"] if guard else "a guard failed"
    # `L['self'].calls == 2   # self.calls += 1  # net.py:18 in forward (HINT: ...)`
    reason, _, comment = reason.partition("  #")
    source = comment.partition("  #")[0].strip()
    reason = f"{reason.strip()} ({source})" if source else reason.strip()
    root = current_root()
    if root is not None and is_ours(file):  # the call of a whole root, which we make ourselves
        reason = re.sub(r"\btarget\b", root.name.partition(".")[0], reason)
    return _locate("recompile", reason, [] if is_ours(file) else [(file, line)])
