"""Looking inside: what every stage made of a graph, as text. RIDGELINE_DEBUG prints it, RIDGELINE_DUMP writes it.

    1  a line a kernel: operators, the user's line, bytes
    2  its limit and prediction on this device, and what binds
    3  the graph after each stage: as captured, as operators, as kernels, as loop programs
    4  the source that the target's compiler gets
    5  every move of the walk, with what it saved or why it was refused

A dump holds all of it, one numbered file a stage. Prints to standard error; changes nothing.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch.fx import GraphModule

from ridgeline.base.errors import BadOption, RidgelineError
from ridgeline.base.knobs import Knobs
from ridgeline.base.records import KernelAccount, MoveAccount
from ridgeline.base.units import format_bytes, format_s
from ridgeline.ir.graph import Graph
from ridgeline.ir.show import show_graph, show_kernel, show_program
from ridgeline.ir.steps import KernelStep, Steps
from ridgeline.schedule import schedule
from ridgeline.top.engine import Engine
from ridgeline.top.price import price

KERNELS, LIMITS, STAGES, SOURCE, MOVES = 1, 2, 3, 4, 5
_NUMBERS = count(1)  # of the files that this process dumps


def prepare(knobs: Knobs) -> None:
    """Makes the folder to dump to. Raises BadOption when it cannot be written."""
    if knobs.dump is None:
        return
    try:
        Path(knobs.dump).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=knobs.dump):
            pass
    except OSError as error:
        raise BadOption("dump", knobs.dump, f"a folder that can be written ({error.strerror})") from error


class Look:
    """Shows the stages of one graph, as far as the knobs ask for."""

    def __init__(self, graph: str, knobs: Knobs) -> None:
        self.graph, self.level = graph, knobs.debug
        self.folder = Path(knobs.dump) if knobs.dump else None

    @property
    def wanted(self) -> bool:
        return self.level > 0 or self.folder is not None

    def show(self, level: int, stage: str, text: Callable[[], str], ending: str = "txt") -> None:
        """Prints and writes one stage; what a stage refuses is its text, and the engine's own run meets it again."""
        if self.level < level and self.folder is None:
            return
        try:
            content = text()
        except RidgelineError as error:
            content = f"{type(error).__name__}: {error}\n"
        if self.level >= level:
            print(f"# {self.graph}: {stage}\n{content}", file=sys.stderr, flush=True)
        if self.folder is not None:
            (self.folder / f"{next(_NUMBERS):04}-{self.graph}-{stage}.{ending}").write_text(content)

    def captured(self, module: GraphModule) -> None:
        self.show(STAGES, "captured", lambda: module.print_readable(print_output=False), "py")

    def operators(self, graph: Graph) -> None:
        self.show(STAGES, "operators", lambda: show_graph(graph))

    def moves(self, moves: tuple[MoveAccount, ...]) -> None:
        self.show(MOVES, "moves", lambda: "".join(map(_move, moves)))

    def kernels(self, steps: Steps, engine: Engine, where: torch.device) -> None:
        """The kernels, before anything of them is built."""
        if not self.wanted:
            return
        device = engine.device(where)
        records = price(steps, device, "", 1.0).kernels
        self.show(KERNELS, "summary", lambda: "".join(_line(k, self.level >= LIMITS) for k in records))
        kernels = list({s.kernel.name: s.kernel for s in steps.steps if isinstance(s, KernelStep)}.values())
        self.show(STAGES, "kernels", lambda: "\n".join(map(show_kernel, kernels)))
        target, machine = engine.target(where), engine.machine(where)
        programs = partial(map, lambda k: schedule(k, machine), kernels)
        self.show(STAGES, "programs", lambda: "\n".join(map(show_program, programs())))
        self.show(SOURCE, "source", lambda: target.emit(list(programs())), target.name)


def _line(k: KernelAccount, limits: bool) -> str:
    name = f"{k.name}: " if k.kind == "kernel" else "torch: "
    work = "unknown work" if k.work is None else f"{format_bytes(k.work.bytes_read)} read"
    work += "" if k.work is None else f", {format_bytes(k.work.bytes_written)} written"
    text = f"{name}{', '.join(k.operators)} at {k.line or 'an unknown line'}; {work}"
    if limits and k.limit is not None:
        predicted = format_s(k.prediction.seconds if k.prediction else None)
        text += f"; limit {format_s(k.limit.seconds)} ({k.limit.binds}), predicted {predicted}"
    return text + (f"; {k.reason}" if k.reason else "") + "\n"


def _move(m: MoveAccount) -> str:
    sign, saved = ("+", "saved") if m.accepted else ("-", "would save")
    return f"{sign} {m.kind}: {m.what}; {saved} {format_bytes(m.saved_bytes)}, {format_s(m.saved_s)}; {m.reason}\n"
