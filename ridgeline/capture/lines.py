"""The user's line for an FX node or a Python stack: the innermost frame outside torch and Ridgeline."""

import re
import sysconfig
from pathlib import Path

from torch.fx import Node as FxNode

LIBRARIES = tuple(
    dict.fromkeys((sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"], str(Path(__file__).parents[1])))
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def is_user_file(path: str) -> bool:
    """Whether a source file belongs to the user's program."""
    return not path.startswith(LIBRARIES) and not path.startswith("<")


def user_line(fx: FxNode) -> str | None:
    """`file:line` of the operator, from the stack Dynamo recorded; None when no frame of it is the user's."""
    stack = fx.meta.get("stack_trace") or fx.meta.get("fwd_nn_module_stack") or ""
    frames = [(m["file"], m["line"]) for m in _FRAME.finditer(str(stack))]
    mine = [f for f in frames if is_user_file(f[0])]
    return f"{mine[-1][0]}:{mine[-1][1]}" if mine else None
