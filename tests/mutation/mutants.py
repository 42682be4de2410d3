"""Small wrong versions of a module, one at a time. Tests that are worth their name notice each.

What is changed: comparisons (also at their boundary), `and` and `or` and each of their operands, `not`, conditions,
arithmetic, constants (so also default arguments), returned values, and statements that are there for their effect.
What is left alone, because nobody promises it: docstrings, annotations, decorators, assertions, the words of errors and
of the log, and parts of f-strings.

A mutant is named by its module, its function and the changed statement before and after, and not by its line: the name
stays good while the code around it moves.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from types import CodeType
from typing import Final, TypeAlias, cast

Slot: TypeAlias = tuple[ast.AST, str, int | None]
"""Where a node hangs: its parent, the field, and the index if that field is a list."""

SHOWN: Final = 110
_COMPARED: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_RECKONED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
}
_PROMISED_BY_NOBODY: Final = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global)
_FIELDS_LEFT_ALONE: Final = frozenset({"annotation", "returns", "decorator_list", "bases"})
_WORDS_FOR_PEOPLE: Final = frozenset({"_fault", "warning", "TypeVar", "cast", "getLogger", "ContextVar"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong version of a module. `code` is all of it, compiled.

    `function` is the outermost one that it is in. `in_body`: it changes what happens when that function is called, and
    nothing that happens when the module is imported.
    """

    module: str
    function: str
    change: str
    in_body: bool
    code: CodeType

    @property
    def name(self) -> str:
        return f"{self.module}: {self.function}\n{self.change}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A node that may be changed. `around` has the statement that it is in first, its parent last."""

    slot: Slot
    around: tuple[ast.AST, ...]
    function: str
    in_body: bool


def mutants(text: str, module: str, path: str) -> Iterator[Mutant]:
    """All mutants of this source, in its order."""
    tree = ast.parse(text, path)
    names: Counter[str] = Counter()
    for place in list(_places(tree, (), "", in_body=False)):
        node = _get(place.slot)
        shown = next((outer for outer in place.around if len(_line(outer)) <= SHOWN), None)
        before = _line(shown or node)
        for other in list(_variants(node, place.slot)):
            _put(place.slot, ast.copy_location(other, node))
            after = _line(shown or other)
            code = compile(ast.fix_missing_locations(tree), path, "exec")
            _put(place.slot, node)
            change = f"- {before}\n+ {after}"
            names[place.function + change] += 1
            if (number := names[place.function + change]) > 1:
                change += f"\n+ ({number})"
            yield Mutant(module, place.function or "module", change, place.in_body, code)


def _places(node: ast.AST, around: tuple[ast.AST, ...], function: str, *, in_body: bool) -> Iterator[_Place]:
    for field, value in ast.iter_fields(node):
        if field in _FIELDS_LEFT_ALONE:
            continue
        called = in_body or (field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        children = cast("list[object]", value) if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or _left_alone(child, node):
                continue
            begins = isinstance(child, ast.stmt | ast.match_case)
            outer = () if begins else (*around, node)
            yield _Place((node, field, index if isinstance(value, list) else None), outer, function, called)
            inside = function if called else _qualified(function, child)
            yield from _places(child, outer, inside, in_body=called)


def _left_alone(node: ast.AST, parent: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):
            return True  # a docstring, or an empty body
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__")]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _WORDS_FOR_PEOPLE or isinstance(parent, ast.Raise)
        case _:
            return isinstance(node, _PROMISED_BY_NOBODY)


def _qualified(function: str, node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return function
    return f"{function}.{node.name}" if function else node.name


def _variants(node: ast.AST, slot: Slot) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for place, op in enumerate(ops):
                for other in _COMPARED[type(op)]:
                    yield ast.Compare(left, [*ops[:place], other(), *ops[place + 1 :]], comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for place in range(len(values)):
                rest = [*values[:place], *values[place + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _RECKONED:
            yield ast.BinOp(left, _RECKONED[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _RECKONED:
            yield ast.AugAssign(target, _RECKONED[type(op)](), value)
            yield ast.Pass()
        case ast.Constant(value=value):
            yield from _constants(value)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Return(value=None) | ast.Expr() | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple()]):
            yield ast.Pass()
        case ast.Name() | ast.Attribute() | ast.Call() if slot[1] in ("test", "ifs", "guard"):
            yield ast.UnaryOp(ast.Not(), node)
        case _:
            pass


def _constants(value: object) -> Iterator[ast.expr]:
    match value:
        case bool():
            yield ast.Constant(not value)
        case int() | float():
            yield ast.Constant(value + 1)
        case str():
            yield ast.Constant(value + "!")
        case bytes():
            yield ast.Constant(value + b"!")
        case _:
            pass


def _get(slot: Slot) -> ast.AST:
    parent, field, index = slot
    held: ast.AST = getattr(parent, field) if index is None else getattr(parent, field)[index]
    return held


def _put(slot: Slot, node: ast.AST) -> None:
    parent, field, index = slot
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _line(node: ast.AST) -> str:
    """The source of a node on one line; of a compound statement, its head."""
    if hasattr(node, "body") and isinstance(node, ast.stmt | ast.match_case):
        node = copy(node)
        for field in ("body", "orelse", "handlers", "finalbody", "decorator_list"):
            if hasattr(node, field):
                setattr(node, field, [ast.Pass()] if field == "body" else [])
    return ast.unparse(node).removesuffix(":\n    pass").split("\n")[-1 if isinstance(node, ast.match_case) else 0]
