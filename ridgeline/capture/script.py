"""Runs an unmodified script, or an object named `module:object`, with its roots captured.

`run` takes what `python SCRIPT ARGS...` takes and a `Session`; the script sees the same argv, `__main__`, sys.path,
working directory, streams, random numbers and exit code as without Ridgeline. Gives the frozen `Run`. Prints nothing
but what Python itself would print when a script ends badly; decides nothing about the account.
"""

import importlib.machinery
import os
import sys
import threading
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from ridgeline.base.errors import BadScript
from ridgeline.capture.breaks import Breaks
from ridgeline.capture.root import is_ours
from ridgeline.capture.roots import Roots
from ridgeline.capture.runner import Engine
from ridgeline.capture.schedule import Policy
from ridgeline.capture.steps import Run, Step, Steps
from ridgeline.capture.target import is_object, make_program

# Frames that a compiled call puts between the user's, as long as nothing else on the stack is torch's.
_COMPILER = (f"torch{os.sep}_dynamo{os.sep}", f"torch{os.sep}_functorch{os.sep}", f"torch{os.sep}_compile.py")
_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


@dataclass(frozen=True, slots=True)
class Session:
    """How a script is to be run: what compiles it, what the run is for, and after how many steps it ends."""

    engine: Engine
    policy: Policy = Policy.MEASURE
    steps: int | None = None
    pairs: int = 10  # timed steps of each mode and shape class
    seed: int = 0  # of the order in which modes alternate, and of the inputs of a module:object
    input_shapes: Sequence[str] = ()
    on_step: Callable[[Step], None] = lambda step: None  # told of every step that has ended


def run(target: str, arguments: Sequence[str], session: Session) -> Run:
    """Run `target` to its end, its crash, its last step or Ctrl-C. Raises BadScript when it cannot even start."""
    if is_object(target):
        program = make_program(target, session.input_shapes, session.steps, session.seed)
        main = ModuleType("__main__")
    else:
        main = _main_module(target)
        code = _read_code(target)
        program = _Body(code, main)
    steps = Steps(session.policy, session.seed, session.pairs, session.steps, session.on_step)
    breaks = Breaks()
    roots = Roots(steps, session.engine, replay=session.policy is not Policy.RUN)
    with _as_main(main, target, arguments):
        with breaks, roots:
            ending = _run_to_end(program)
            steps.stop()
            replayed = roots.replay() if ending.is_regular else ()
        exit_code = ending.report()
    return Run(
        target=target,
        arguments=tuple(arguments),
        exit_code=exit_code,
        interrupted=isinstance(ending.error, KeyboardInterrupt),
        steps_seen=steps.steps_seen,
        steps=steps.steps,
        roots=roots.calls,
        operators=steps.operators,
        outside=steps.outside,
        breaks=breaks.found,
        replayed=replayed,
        compilations=steps.compilations,
        compile_s=steps.compile_s,
        notes=(*roots.notes, *breaks.notes),
    )


@dataclass(frozen=True, slots=True)
class _Body:
    """The script's own code, to be run in its own `__main__`."""

    code: CodeType
    main: ModuleType

    def __call__(self) -> None:
        exec(self.code, self.main.__dict__)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the program ended: nothing, or what it raised."""

    error: BaseException | None

    @property
    def is_regular(self) -> bool:
        return self.error is None or isinstance(self.error, SystemExit)

    def report(self) -> int:
        """Print what Python would print for this ending; the exit code."""
        error = self.error
        if error is None:
            return 0
        if isinstance(error, KeyboardInterrupt):
            return _INTERRUPTED
        if isinstance(error, SystemExit):
            if error.code is None or isinstance(error.code, int):
                return error.code or 0
            print(error.code, file=sys.stderr)
            return 1
        _strip(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1


class _Catch:
    """Keeps whatever leaves the `with` block instead of passing it on."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> "_Catch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        self.error = error
        return True


def _run_to_end(program: Callable[[], None]) -> _Ending:
    before = set(threading.enumerate())
    with _Catch() as caught:
        program()
    with _Catch() as interrupted:
        for thread in set(threading.enumerate()) - before:
            if not thread.daemon:
                thread.join()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    return _Ending(caught.error or interrupted.error)


def _read_code(path: str) -> CodeType:
    try:
        source = Path(path).read_bytes()
        return compile(source, os.path.abspath(path), "exec", dont_inherit=True)
    except IsADirectoryError:
        raise BadScript(path, "it is a directory") from None
    except FileNotFoundError:
        raise BadScript(path, "there is no such file") from None
    except OSError as error:
        raise BadScript(path, str(error.strerror)) from None
    except SyntaxError as error:
        raise BadScript(path, f"{path}:{error.lineno}: {error.msg}") from None
    except (ValueError, tokenize.TokenError) as error:
        raise BadScript(path, f"it is not Python source ({error})") from None


def _main_module(path: str) -> ModuleType:
    absolute = os.path.abspath(path)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=absolute,
        __cached__=None,
        __spec__=None,
        __package__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", absolute),
        __builtins__=sys.modules["builtins"],
        __annotations__={},
    )
    return main


@contextmanager
def _as_main(main: ModuleType, target: str, arguments: Sequence[str]) -> Iterator[None]:
    """Be the program `python target arguments...` as far as `sys` can tell."""
    argv, path, before = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = [target, *arguments]
    sys.path[0:1] = ["" if is_object(target) else os.path.dirname(os.path.realpath(target))]
    sys.modules["__main__"] = main
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        sys.modules["__main__"] = before


def _strip(error: BaseException | None, seen: frozenset[int] = frozenset()) -> None:
    """Leave out of a traceback, and of those it was caused by, the frames that the script alone would not have.

    What Ridgeline itself raised keeps all its frames.
    """
    if error is None or id(error) in seen:
        return
    seen |= {id(error)}
    frames = []
    link = error.__traceback__
    while link is not None:
        frames.append(link)
        link = link.tb_next
    if frames and is_ours(frames[-1].tb_frame.f_code.co_filename):
        return
    kept: TracebackType | None = None
    for frame in reversed(frames):
        filename = frame.tb_frame.f_code.co_filename
        if not is_ours(filename) and not any(part in filename for part in _COMPILER):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = kept
    _strip(error.__cause__, seen)
    _strip(error.__context__, seen)
