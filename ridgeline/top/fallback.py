"""The one boundary where anything that goes wrong in the engine turns into eager execution, with the reason kept.

The only broad `except` of the tree is here (a test counts it). What the user's own program raises never passes through
here: it is raised by running operators, not by compiling them.
"""

import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from ridgeline.base.errors import NoRow, RidgelineWarning

T = TypeVar("T")
LOG = logging.getLogger("ridgeline")


@cache
def warn_once(text: str) -> None:
    """A warning the first time a process has cause for it, whatever others do to the warning filters."""
    warnings.warn(text, RidgelineWarning, stacklevel=2)


def attempt(work: Callable[[], T], otherwise: Callable[[str], T], strict: bool) -> T:
    """work(), or otherwise(reason) when the engine fails. Strict mode raises instead."""
    try:
        return work()
    except NoRow:
        raise
    except Exception as error:
        if strict:
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        LOG.debug("falling back to eager", exc_info=True)
        return otherwise(reason)
