"""What a root is, which one is running now, and where in the user's code we stand.

A root is a call that is captured as a whole: a module, a loss function, an optimizer step, a function the script
compiles itself. A backend asks `current_root()` while it compiles, to label the graphs it is given. Finds no roots and
patches nothing: `roots.py` does.
"""

import sys
from contextvars import ContextVar, Token
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ridgeline.capture.lines import is_user_file

_HERE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Root:
    """One captured call: its name in the user's words, its kind, and the user's "file:line" that calls it."""

    name: str  # "GPT.forward", "cross_entropy", "AdamW.step", ...
    kind: str  # "module" | "loss" | "clip" | "optimizer" | "function"
    line: str | None


_CURRENT: ContextVar[Root | None] = ContextVar("ridgeline_root", default=None)


def current_root() -> Root | None:
    """The root that runs in this context, None outside of all roots."""
    return _CURRENT.get()


def enter_root(root: Root | None) -> Token:
    return _CURRENT.set(root)


def leave_root(token: Token) -> None:
    _CURRENT.reset(token)


def is_ours(filename: str) -> bool:
    """Whether a frame of this file is Ridgeline's own."""
    return filename.startswith(_HERE)


def user_frame() -> FrameType | None:
    """The innermost frame of the user's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line() -> str | None:
    """ "file:line" of the user's innermost frame, None when there is none."""
    frame = user_frame()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
