"""Every exception Ridgeline raises, each with one fixed message: what, where, why, what to do next.

`RidgelineError` is what the command line prints as one line; the user's own errors never become one.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or an empty string."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f" Did you mean '{close[0]}'?" if close else ""


class RidgelineError(Exception):
    """Base of all of ours. Its text is one line for the user."""


class RidgelineWarning(UserWarning):
    """What the user should know though the program goes on. Its text is one line; each is given once a process."""


class UnknownDevice(RidgelineError):
    """A device id that the catalogue does not hold."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"unknown device '{name}': no file of that name in the catalogue.{nearest(name, known)} "
            "`ridgeline hardware list` shows all."
        )


class BadDeviceFile(RidgelineError):
    """A device file that does not parse or holds a value of the wrong kind."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"device file {path} cannot be used: {why}. Mend the file or remove it.")


class NotMeasured(RidgelineError):
    """This machine was asked for by name before anybody measured it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"device '{name}' does not exist yet: run `ridgeline hardware measure` first.")


class UnknownCommand(RidgelineError):
    """A command that the dispatch table does not hold."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"unknown command '{name}'.{nearest(name, names)} Commands: {', '.join(names)}.")


class UnknownOption(RidgelineError):
    """An option of torch.compile(options=...) or of a knob that does not exist."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f"unknown option '{name}' for backend 'ridgeline'.{nearest(name, names)} Known options: {', '.join(names)}."
        )


class BadOption(RidgelineError):
    """A known option with a value it cannot take."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"option '{name}' cannot be {value!r}: it takes {expected}.")


class BadScript(RidgelineError):
    """A script that cannot be run: missing, unreadable or not Python."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"cannot run {path}: {why}.")


class BadOutput(RidgelineError):
    """An output file that cannot be written; nothing was left half-written."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"cannot write {path}: {why}. Choose another place; nothing was written.")


class CheckFailed(RidgelineError):
    """A stage broke a rule of its own form. Names the node and what stands around it."""

    def __init__(self, stage: str, node: str, why: str, around: str = "") -> None:
        super().__init__(f"{stage}: {node}: {why}" + (f"\n{around}" if around else ""))


class NoRow(RidgelineError):
    """An operator for which the table holds no row (raised in strict mode only)."""

    def __init__(self, operator: str, why: str = "no row in the table") -> None:
        super().__init__(f"{operator}: {why}. Add one row in ridgeline/ops/<family>.py, or run without strict mode.")


class DuplicateRow(RidgelineError):
    """Two rows claim the same operator."""

    def __init__(self, operator: str, first: str, second: str) -> None:
        super().__init__(f"{operator} has two rows: {first} and {second}. Remove one.")


class CannotConvert(RidgelineError):
    """An operator whose row does not cover these arguments; the engine runs it by torch and shows the reason."""


class LeftToTorch(RidgelineError):
    """An optimizer step or a clipping that torch runs itself. `lasting`: asking again changes nothing."""

    def __init__(self, why: str, lasting: bool = True) -> None:
        super().__init__(why)
        self.lasting = lasting


class BuildFailed(RidgelineError):
    """The target's compiler refused generated source, or there is no compiler."""

    def __init__(self, target: str, why: str) -> None:
        super().__init__(f"{target}: {why}")


class NoCompiler(BuildFailed):
    """The machine lacks the compiler that a target needs; without strict mode everything runs as library calls."""

    def __init__(self, target: str, tried: Iterable[str]) -> None:
        super().__init__(
            target,
            f"no compiler on PATH (tried {', '.join(tried)}): every operator runs by torch, nothing is fused. "
            "Install one, or name it with the option 'cc' or RIDGELINE_CC.",
        )


class KernelsFailed(RidgelineError):
    """Kernels that a stage refused, each with the reason; their operators are left to torch."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"kernel {name}: {why}" for name, why in reasons.items()))
        self.reasons = dict(reasons)


class BadText(RidgelineError):
    """IR text that does not read back."""

    def __init__(self, line: int, text: str, why: str) -> None:
        super().__init__(f"line {line}: {why}: {text!r}")
