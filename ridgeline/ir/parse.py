"""Reads what ir/show.py writes: `parse(text)` gives the kernel or the program. Raises BadText with the line."""

import re
from collections.abc import Callable

from ridgeline.base.errors import BadText, RidgelineError
from ridgeline.ir.index import Axis, Index, Read, Sym, as_index
from ridgeline.ir.kernel import Buffer, Kernel, Mode, Store
from ridgeline.ir.program import (
    Accumulator,
    Begin,
    Compute,
    Finish,
    Join,
    Loop,
    Phase,
    Prefetch,
    Program,
    Put,
    Save,
    Scratch,
    Statement,
    Step,
)
from ridgeline.ir.types import DTYPES, DType
from ridgeline.ir.value import Value, cast, const, fold, iota, load, word
from ridgeline.ir.words import WORDS

TOKEN = re.compile(r"\s*(//|\+=|-?inf\b|nan\b|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|%?[A-Za-z_][\w.]*|%f?[\w.]*|\d+|.)")


class _Line:
    """The tokens of one line, taken from the left."""

    def __init__(self, text: str) -> None:
        self.tokens = TOKEN.findall(text.rstrip())
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        token = self.peek()
        if not token or (expected and token not in expected):
            raise ValueError(f"expected {' or '.join(expected) or 'more'}, found {token or 'the end'}")
        self.at += 1
        return token

    def took(self, token: str) -> bool:
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def number(self) -> int:
        return int(self.take())


class _Reader:
    def __init__(self) -> None:
        self.symbols: dict[str, Sym] = {}
        self.axes: dict[str, Axis] = {}
        self.values: dict[str, Value] = {}
        self.buffers: list[Buffer] = []
        self.scratch: list[Scratch] = []
        self.accumulators: dict[str, Accumulator] = {}
        self.name = ""
        self.space: tuple[Axis, ...] = ()
        self.sizes: tuple[str, ...] = ()
        self.stores: list[Store] = []
        self.phases: list[Phase] = []
        self.open: list[tuple[Callable[[tuple[Statement, ...]], None], list[Statement]]] = []

    # ---- pieces

    def index(self, line: _Line) -> Index:
        out, sign = as_index(0), -1 if line.took("-") else 1
        while True:
            term = as_index(sign)
            while True:
                term = term * self.factor(line)
                if not line.took("*"):
                    break
            out = out + term
            if line.peek() not in ("+", "-"):
                return out
            sign = 1 if line.take() == "+" else -1

    def factor(self, line: _Line) -> Index:
        token = line.take()
        if token == "(":
            num = self.index(line)
            sign = line.take("//", "%")
            den = self.index(line)
            line.take(")")
            return num // den if sign == "//" else num % den
        if token == "[":
            value = self.value(line)
            line.take("<")
            size = self.index(line)
            line.take("]")
            return as_index(Read(value, size))
        if token.isdigit():
            return as_index(int(token))
        if token in self.axes:
            return as_index(self.axes[token])
        return as_index(self.symbols[token])

    def indices(self, line: _Line) -> tuple[Index, ...]:
        line.take("[")
        out: list[Index] = []
        while not line.took("]"):
            out.append(self.index(line))
            line.took(",")
        return tuple(out)

    def over(self, line: _Line) -> tuple[Axis, ...]:
        return tuple(self.axes[n] for n in self.names(line, "<", ">"))

    def names(self, line: _Line, first: str, last: str) -> list[str]:
        line.take(first)
        out: list[str] = []
        while not line.took(last):
            out.append(line.take())
            line.took(",")
        return out

    def value(self, line: _Line) -> Value:
        token = line.take()
        if token in self.values:
            return self.values[token]
        minus = token == "-"
        text = ("-" if minus else "") + (line.take() if minus else token)
        if not line.took(":"):
            raise KeyError(text)
        dtype = DTYPES[line.take()]
        number = text == "True" if text in ("True", "False") else float(text) if dtype.is_float else int(text)
        return const(number, dtype)

    def rest(self, line: _Line) -> list[Value]:
        out: list[Value] = []
        while line.peek():
            out.append(self.value(line))
        return out

    def buffer(self, line: _Line) -> Buffer:
        return Buffer(line.take(), DTYPES[line.take()], self.indices(line), self.indices(line))

    def defined(self, name: str, line: _Line) -> Value:
        """After `name`: `: f32 = load x[i, j] f32`."""
        line.take(":")
        dtype = DTYPES[line.take()]
        line.take("=")
        self.values[name] = value = self.body(line, dtype)
        return value

    def body(self, line: _Line, dtype: DType) -> Value:
        op = line.take()
        if op == "load":
            buffer, index, stored = line.take(), self.indices(line), DTYPES[line.take()]
            return load(buffer, index, stored, self.value(line) if line.took("if") else None)
        if op == "iota":
            return iota(self.index(line))
        if op == "cast":
            return cast(self.value(line), dtype)
        if op == "fold":
            combiner, part = line.take().rsplit(".", 1)
            axes = self.over(line)
            return fold(combiner, axes, *self.rest(line), part=int(part))
        if op not in WORDS:
            raise KeyError(op)
        return word(op, *self.rest(line))

    # ---- lines

    def line(self, text: str) -> None:
        line = _Line(text)
        depth = (len(text) - len(text.lstrip())) // 2
        while depth and len(self.open) > depth:
            self.close()
        word_ = line.take()
        declare = getattr(self, f"on_{word_}", None)
        if declare is not None:
            declare(line)
            return
        statement = self.statement(word_, line)
        if statement is not None and self.open:
            self.open[-1][1].append(statement)

    def close(self) -> None:
        finish, body = self.open.pop()
        finish(tuple(body))

    def on_kernel(self, line: _Line) -> None:
        self.name = line.take()

    on_program = on_kernel

    def on_size(self, line: _Line) -> None:
        name = line.take()
        line.take("from")
        self.symbols[name] = Sym(name, line.number())

    def on_axis(self, line: _Line) -> None:
        display, size = line.take(), self.index(line)
        self.axes[display] = Axis(line.take() if line.took("named") else display, size)

    def on_buffer(self, line: _Line) -> None:
        self.buffers.append(self.buffer(line))

    def on_scratch(self, line: _Line) -> None:
        self.scratch.append(Scratch(self.buffer(line), line.took("per")))

    def on_space(self, line: _Line) -> None:
        self.space = self.over(line)

    def on_sizes(self, line: _Line) -> None:
        self.sizes = tuple(self.names(line, "<", ">"))

    def on_store(self, line: _Line) -> None:
        name, index = line.take(), self.indices(line)
        mode = Mode.PLAIN if line.take("=", "+=") == "=" else Mode.ADD
        self.stores.append(Store(name, index, self.value(line), mode))

    def on_accumulator(self, line: _Line) -> None:
        display, combiner = line.take(), line.take()
        dtypes = tuple(DTYPES[n] for n in self.names(line, "(", ")"))
        line.take("state")
        states = tuple(DTYPES[n] for n in self.names(line, "(", ")"))
        line.take("over")
        axes = self.over(line)
        line.take("kept")
        kept = self.over(line)
        place = self.place(line) if line.took("in") else ((), None)
        self.accumulators[display] = Accumulator(
            display.partition(".")[0], combiner, dtypes, states, axes, kept, *place
        )

    def place(self, line: _Line) -> tuple[tuple[str, ...], Index]:
        """`a, b[offset]`."""
        names = [line.take()]
        while line.took(","):
            names.append(line.take())
        (offset,) = self.indices(line)
        return tuple(names), offset

    def on_phase(self, line: _Line) -> None:
        while self.open:
            self.close()
        line.take("grid")
        grid = self.over(line)
        line.take("work")
        work = self.index(line)
        threads = line.number() if line.took("threads") else 1
        self.open.append((lambda body: self.phases.append(Phase(grid, body, work, threads)), []))

    def on_loop(self, line: _Line) -> None:
        axis = self.axes[line.take()]
        line.take("from")
        start = self.index(line)
        line.take("for")
        extent = self.index(line)
        line.take("tile")
        tile = line.number()
        unroll = line.number() if line.took("unroll") else 1
        ahead = line.number() if line.took("ahead") else 1
        outer = self.open[-1][1]
        self.open.append((lambda body: outer.append(Loop(axis, start, extent, body, tile, unroll, ahead)), []))

    def statement(self, name: str, line: _Line) -> Statement | None:
        if line.peek() == ":":
            return Compute(self.defined(name, line))
        if name == "put":
            buffer, (offset,) = line.take(), self.indices(line)
            mode = Mode.PLAIN if line.take("=", "+=") == "=" else Mode.ADD
            return Put(buffer, offset, self.value(line), mode, line.took("atomic"), line.took("streaming"))
        if name == "prefetch":
            return Prefetch(line.take(), *self.indices(line))
        accumulator = self.accumulators[line.take()]
        if name == "begin":
            return Begin(accumulator)
        if name in ("step", "join"):
            return (Step if name == "step" else Join)(accumulator, tuple(self.rest(line)))
        if name == "save":
            line.take("in")
            return Save(accumulator, *self.place(line))
        if name != "finish":
            raise ValueError(f"no statement is called '{name}'")
        results = []
        while line.peek():
            value = self.defined(line.take(), line)
            line.take("part")
            results.append((line.number(), value))
            line.took(",")
        return Finish(accumulator, tuple(results))


def parse(text: str) -> Kernel | Program:
    """The kernel or program that a text shows. Raises BadText."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                reader.line(line)
            except (ValueError, KeyError, IndexError, RidgelineError) as error:
                why = f"nothing is called {error}" if isinstance(error, KeyError) else str(error)
                raise BadText(number, line, why) from error
    while reader.open:
        reader.close()
    if text.lstrip().startswith("kernel"):
        return Kernel(reader.name, reader.space, tuple(reader.stores), tuple(reader.buffers))
    return Program(reader.name, tuple(reader.buffers), tuple(reader.scratch), reader.sizes, tuple(reader.phases))
