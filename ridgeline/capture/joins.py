"""Finds where a module's output goes straight into a loss and nowhere else, so that both can be one graph.

Takes the user's frame at the call of the module and reads the source around it; gives the `Join` that is proven, or
None. The proof: the output is either an argument of the loss call, or a local name read by the next statement's loss
call and by nothing else in its scope; on the way it passes through views only; whatever is evaluated between the two
calls is names, constants and views of tensors. Then the module may as well run when the loss is called. Runs and
compiles nothing: `deferred.py` does.
"""

import ast
import linecache
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import loss as loss_modules

VIEWS = frozenset(("view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "contiguous", "float"))
SIZES = frozenset(("size", "dim", "shape"))
_LOOKS_AT_ALL_NAMES = frozenset(("locals", "vars", "globals", "eval", "exec", "dir"))
_PLAIN = (torch.Tensor, nn.Parameter, int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class Join:
    """A call of a module and the loss call that alone consumes its output."""

    consumer: tuple[str, ...]  # the dotted name the loss is called by
    names: frozenset[str]  # what is read between the two calls


def find_join(frame: FrameType) -> Join | None:
    """The join at the call this frame is in, if there is a proof and the names hold what they must."""
    if sys.gettrace() is not None:
        return None
    join = _prove(frame.f_code, frame.f_lasti)
    if join is None:
        return None
    values = frame.f_locals
    if not all(name in values and type(values[name]) in _PLAIN for name in join.names):
        return None
    return join


def find_consumer(join: Join, frame: FrameType) -> Any:
    """The function or module that the loss's dotted name stands for, None when that takes more than looking it up."""
    first, *rest = join.consumer
    found = frame.f_locals.get(first, frame.f_globals.get(first))
    for name in rest:
        if isinstance(found, ModuleType):
            found = getattr(found, name, None)
        elif isinstance(found, nn.Module):
            found = found._modules.get(name)
        else:
            found = getattr(found, "__dict__", {}).get(name)
    return found


def is_plain_loss(consumer: Any) -> bool:
    """Whether this is one of PyTorch's loss modules, with no hook on it."""
    known = type(consumer).__module__ == loss_modules.__name__
    return known and not (consumer._forward_hooks or consumer._forward_pre_hooks or consumer._backward_hooks)


# The proof.


@dataclass(frozen=True, slots=True)
class _Source:
    """A parsed file, with the way up from every node."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST]


@lru_cache(maxsize=64)
def _parse(filename: str) -> _Source | None:
    text = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    return _Source(tree, {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)})


@lru_cache(maxsize=4096)
def _prove(code: CodeType, instruction: int) -> Join | None:
    source = _parse(code.co_filename)
    call = None if source is None else _find_call(source.tree, list(code.co_positions())[instruction // 2])
    if source is None or call is None:
        return None
    scope = _scope(call, source)
    expected = "<module>" if isinstance(scope, ast.Module) else getattr(scope, "name", None)
    if not isinstance(scope, ast.FunctionDef | ast.Module) or expected != code.co_name:
        return None
    nodes = list(ast.walk(scope))
    if any(isinstance(node, ast.Name) and node.id in _LOOKS_AT_ALL_NAMES for node in nodes):
        return None
    # What is global may be bound anew by any function that says so.
    if any(isinstance(node, ast.Global) for node in nodes):
        return None
    output = _climb_views(call, source)
    parent = source.parents[output]
    if isinstance(parent, ast.Call) and output in parent.args[:1]:
        consumer, name = parent, None
    elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name) and len(parent.targets) == 1:
        name = parent.targets[0].id
        found = _consumer_of_name(name, parent, scope, source)
        if found is None:
            return None
        consumer = found
    else:
        return None
    return _join(consumer, name, scope, source, code)


def _find_call(tree: ast.Module, position: tuple[int | None, ...]) -> ast.Call | None:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return next((call for call in calls if position == _position(call)), None)


def _position(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _scope(node: ast.AST, source: _Source) -> ast.AST:
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    node = source.parents[node]
    while not isinstance(node, (*scopes, *comprehensions)):
        node = source.parents[node]
    return node


def _climb_views(node: ast.AST, source: _Source) -> ast.AST:
    """From a value to the outermost view of it: `model(x).view(-1, n).float()`."""
    while True:
        parent = source.parents[node]
        if not isinstance(parent, ast.Attribute) or parent.attr not in VIEWS:
            return node
        call = source.parents[parent]
        if not isinstance(call, ast.Call) or call.func is not parent:
            return node
        node = call


def _consumer_of_name(name: str, assignment: ast.Assign, scope: ast.AST, source: _Source) -> ast.Call | None:
    """The call in the next statement that takes (a view of) the name first, if nobody else reads the name."""
    statement = _next_statement(assignment, source)
    reads = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]
    reads = [node for node in reads if isinstance(node.ctx, ast.Load)]
    if statement is None:
        return None
    consumers = [found for read in reads if (found := _taker(read, source)) is not None]
    if len(consumers) != 1 or not _is_evaluated_first(consumers[0], statement, source):
        return None
    within = set(ast.walk(consumers[0]))
    return consumers[0] if all(read in within for read in reads) else None


def _next_statement(statement: ast.stmt, source: _Source) -> ast.stmt | None:
    parent = source.parents[statement]
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, [])
        if isinstance(block, list) and statement in block[:-1]:
            following: ast.stmt = block[block.index(statement) + 1]
            return following
    return None


def _taker(read: ast.Name, source: _Source) -> ast.Call | None:
    """The call whose first argument this is (a view of)."""
    value = _climb_views(read, source)
    call = source.parents[value]
    return call if isinstance(call, ast.Call) and value in call.args[:1] else None


def _is_evaluated_first(node: ast.AST, statement: ast.stmt, source: _Source) -> bool:
    """Whether a statement evaluates this node before all else, but for looking up names."""
    while (parent := source.parents[node]) is not statement:
        match parent:
            case ast.Attribute() | ast.UnaryOp():
                pass
            case ast.Call(func=func) if func is node:
                pass
            case ast.Call(func=func, args=[first, *_]) if first is node and _dotted(func) is not None:
                pass
            case ast.BinOp(left=left) if left is node or isinstance(left, ast.Constant | ast.Name):
                pass
            case _:
                return False
        node = parent
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Name)
    return isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr)


def _dotted(node: ast.AST) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else (*before, node.attr)
    return None


def _join(consumer: ast.Call, name: str | None, scope: ast.AST, source: _Source, code: CodeType) -> Join | None:
    dotted = _dotted(consumer.func)
    if dotted is None or any(keyword.arg is None for keyword in consumer.keywords):
        return None
    between = [*consumer.args[1:], *(keyword.value for keyword in consumer.keywords)]
    first = consumer.args[0]
    between += _view_arguments(first)
    names: set[str] = set()
    if not all(_is_simple(expression, names) for expression in between):
        return None
    # A cell can be bound anew by whoever else holds it.
    if {*names, name} & {*code.co_cellvars, *code.co_freevars}:
        return None
    return Join(dotted, frozenset(names - {name}))


def _view_arguments(node: ast.AST) -> list[ast.expr]:
    found: list[ast.expr] = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        found += [*node.args, *(keyword.value for keyword in node.keywords)]
        node = node.func.value
    return found


def _is_simple(node: ast.AST, names: set[str]) -> bool:
    """Whether evaluating this can neither run the user's code nor see what a module's call changes."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            names.add(name)
            return True
        case ast.UnaryOp(operand=operand):
            return _is_simple(operand, names)
        case ast.BinOp(left=left, right=right):
            return _is_simple(left, names) and _is_simple(right, names)
        case ast.Tuple(elts=elements):
            return all(_is_simple(element, names) for element in elements)
        case ast.Attribute(value=value, attr="shape"):
            return _is_simple(value, names)
        case ast.Subscript(value=ast.Attribute(attr="shape") as value, slice=ast.Constant() | ast.UnaryOp()):
            return _is_simple(value, names)
        case ast.Call(func=ast.Attribute(value=value, attr=attribute), args=args, keywords=keywords):
            parts = [value, *args, *(keyword.value for keyword in keywords)]
            return attribute in VIEWS | SIZES and all(_is_simple(part, names) for part in parts)
        case _:
            return False
