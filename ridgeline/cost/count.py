"""Counts the Work of kernels, operators and library calls from their bodies - the same bodies code is made from.

A kernel reads each distinct element of each buffer once and writes each stored element once. A value is computed once
for every point of its free axes. Takes kernels and graph nodes with example numbers for size symbols; gives Work.
"""

from collections.abc import Iterable, Mapping

from ridgeline.base.records import Work
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.graph import Definition, Node, NodeKind
from ridgeline.ir.index import Axis, Index, Read, Sym, at_least, evaluate, lower, upper
from ridgeline.ir.kernel import Buffer, Kernel, Mode
from ridgeline.ir.value import Value, nodes
from ridgeline.ir.words import WORDS

Hints = Mapping[str, int]
# 32 random bits from Philox; one number a word (the four outputs of one call are counted as four).
RANDOM_WORDS = frozenset(("philox",))


def number(index: Index, hints: Hints) -> int:
    """The value of a size, with the example number of each symbol."""
    known = index.const
    if known is not None:
        return known
    return evaluate(index, {a: hints.get(a.name, a.low) for a in index.atoms if isinstance(a, Sym)})


def points(axes: Iterable[Axis], hints: Hints) -> int:
    """How many points a set of axes has."""
    out = 1
    for axis in axes:
        out *= number(axis.size, hints)
    return out


def stored_elements(buffer: Buffer, hints: Hints) -> int:
    """Distinct elements a buffer holds: an expanded dimension (stride 0) counts once."""
    out = 1
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        out *= 1 if stride.const == 0 else number(size, hints)
    return out


def touched_elements(load: Value, buffer: Buffer, hints: Hints) -> int:
    """Distinct elements one load can touch over all its axes; an upper bound where indices mix."""
    total = 1
    for index, size, stride in zip(load.attr.index, buffer.shape, buffer.strides, strict=True):
        if stride.const == 0:
            continue
        reach = min(number(size, hints), points(index.axes, hints))
        if not any(isinstance(a, Read) for a in index.atoms):
            reach = min(reach, number(upper(index), hints) - number(lower(index), hints) + 1)
        total *= max(reach, 0)
    # Dimensions that share axes cannot be varied apart: a diagonal touches n elements, not n * n.
    return min(total, points(load.axes, hints)) if at_least(buffer.numel, 0) else total


Box = tuple[tuple[int, int], ...]  # first and last position in each dimension
Touches = dict[str, dict[tuple[int, ...], tuple[int, Box]]]  # elements of each buffer and where, by shape of the access


def touches(values: Iterable[Value], buffers: Mapping[str, Buffer], hints: Hints) -> Touches:
    """What loads touch: accesses of one shape through differently named axes are the same elements."""
    found: Touches = {}
    for v in values:
        if v.op == "load":
            buffer = buffers[v.attr.buffer]
            shape = tuple(hash((_anonymous(i), s)) for i, s in zip(v.attr.index, buffer.shape, strict=True))
            known = found.setdefault(buffer.name, {})
            if shape not in known:
                known[shape] = touched_elements(v, buffer, hints), _box(v, buffer, hints)
    return found


def _box(load: Value, buffer: Buffer, hints: Hints) -> Box:
    return tuple(
        (0, number(size, hints) - 1)
        if any(isinstance(a, Read) for a in index.atoms)
        else (number(lower(index), hints), number(upper(index), hints))
        for index, size in zip(load.attr.index, buffer.shape, strict=True)
    )


def _apart(a: Box, b: Box) -> bool:
    return any(last < first or end < start for (start, last), (first, end) in zip(a, b, strict=True))


def touched_bytes(found: Touches, buffers: Mapping[str, Buffer], hints: Hints) -> dict[str, int]:
    """Bytes of each buffer that accesses touch at least: those apart from each other add up, of others the largest."""
    out: dict[str, int] = {}
    for name, accesses in found.items():
        total, boxes = 0, list[Box]()
        for count, box in sorted(accesses.values(), reverse=True):
            if all(_apart(box, other) for other in boxes):
                total, boxes = total + count, [*boxes, box]
        out[name] = min(total, stored_elements(buffers[name], hints)) * buffers[name].dtype.bytes
    return out


def bytes_read(values: Iterable[Value], buffers: Mapping[str, Buffer], hints: Hints) -> dict[str, int]:
    """Bytes read of each buffer by some values together."""
    return touched_bytes(touches(values, buffers, hints), buffers, hints)


def _anonymous(index: Index) -> tuple[object, ...]:
    """An index with its axes known by size only."""
    return tuple(
        (c, tuple(("axis", a.size) if isinstance(a, Axis) else (type(a).__name__, repr(a)) for a in f))
        for c, f in index.terms
    )


def arithmetic(values: Iterable[Value], hints: Hints) -> tuple[dict[str, float], float, float]:
    """(FLOPs by format, special-function operations, random numbers) of values, each once per point of its axes."""
    flops: dict[str, float] = {}
    special = random = 0.0
    folded: set[object] = set()
    for v in values:
        if v.op == "fold":
            info = COMBINERS[v.attr.combiner]
            once = (v.attr.combiner, v.attr.axes, v.args)
            if once in folded:
                continue  # the components of one fold are computed together
            folded.add(once)
            times = points(v.args[0].axes | v.axes | frozenset(v.attr.axes), hints)
            each, unit = info.flops, info.special
        elif v.op in WORDS:
            times, each, unit = points(v.axes, hints), WORDS[v.op].flops, WORDS[v.op].special
            if v.op in RANDOM_WORDS:
                random += times
        else:
            continue
        number_format = v.args[0].dtype.format
        if each:
            flops[number_format] = flops.get(number_format, 0) + float(times * each)
        if unit and v.dtype.is_float:
            # Dividing by what stays the same is multiplying by its reciprocal, made once.
            special += unit * (points(v.args[1].axes, hints) if v.op == "div" else times)
    return flops, special, random


def kernel_work(kernel: Kernel, hints: Hints) -> Work:
    """The Work of a fused kernel."""
    buffers = {b.name: b for b in kernel.buffers}
    values = kernel.values
    read = sum(bytes_read(values, buffers, hints).values())
    written = 0
    for store in kernel.stores:
        count = min(points(store.domain, hints), stored_elements(buffers[store.buffer], hints))
        written += count * buffers[store.buffer].dtype.bytes
        if store.mode is Mode.ADD:
            read += count * buffers[store.buffer].dtype.bytes
    flops, special, random = arithmetic(values, hints)
    return Work(read, written, flops, special, random)


def definition_values(definitions: Iterable[Definition]) -> list[Value]:
    """Every value in the definitions of a node, operands first."""
    roots: list[Value] = []
    for d in definitions:
        roots += [v for i in d.index for v in i.reads]
        if d.initial is not None:
            roots.append(d.initial.value)
        roots.append(d.value)
    return nodes(roots)


def node_work(node: Node, buffers: Mapping[str, Buffer], hints: Hints) -> Work:
    """The Work of one operator as eager mode runs it: a kernel by itself."""
    if node.kind in (NodeKind.VIEW, NodeKind.INPUT):
        return Work(launches=0)
    written = sum(stored_elements(b, hints) * b.dtype.bytes for b in node.outputs)
    if node.kind is NodeKind.LIBRARY:
        read = sum(
            stored_elements(buffers[name], hints) * buffers[name].dtype.bytes for name in node.inputs if name in buffers
        )
        matmul = sum(node.flops.values()) if node.flops is not None else 0.0
        drawn = stored_elements(node.outputs[0], hints) if node.random and node.outputs else 0
        return Work(read, written, node.flops, random_numbers=float(drawn), matmul_flops=matmul)
    values = definition_values(node.definitions)
    read = sum(bytes_read(values, buffers, hints).values())
    for d in node.definitions:
        if d.mode is Mode.ADD:
            read += min(points(d.axes, hints), stored_elements(d.buffer, hints)) * d.buffer.dtype.bytes
    flops, special, random = arithmetic(values, hints)
    return Work(read, written, flops, special, random)
