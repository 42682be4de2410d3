"""The agent of a chat that names no other: it reads files, fetches pages, calculates, and asks before it does more."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from safepoint import Agent, tool
from safepoint.agent.model import Model
from safepoint.cli.chat.approvals import Approvals
from safepoint.tools import fetch, files, shell
from safepoint.tools.base import BaseTool

NAME: Final = "assistant"
INSTRUCTIONS: Final = """\
You are a helpful assistant in a terminal. You work in the folder {folder}.
Use your tools to look before you answer, and to do what the user asks. Paths are relative to that folder.
Answer briefly, in Markdown. If a call was stopped or its outcome is unknown, say so and check before you repeat it."""
TINY: Final = "You are a helpful assistant in a terminal. Answer briefly."
_LONGEST = 10_000  # bits of a number, so that 9**9**9 is refused before it is computed

_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {  # Any: int or float
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
    ast.Pow: lambda left, right: left**right,
}
_NAMES: Final = {"pi": math.pi, "e": math.e, "tau": math.tau}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {  # Any: as above
    name: getattr(math, name)
    for name in ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "log", "log2", "log10", "exp", "floor", "ceil")
} | {"abs": abs, "round": round, "min": min, "max": max}


def calculate(expression: str) -> int | float:
    """The value of an arithmetic expression. Raises `ValueError` for anything else, and for numbers without end."""
    if len(expression) > 1_000:
        raise ValueError("the expression is too long: 1000 characters are the most")
    try:
        return _value(ast.parse(expression.replace("^", "**"), mode="eval").body)
    except (SyntaxError, RecursionError, TypeError):
        raise ValueError(f"{expression!r} is not arithmetic: write numbers, + - * / ** and parentheses") from None
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=bool()):
            raise TypeError
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _combine(op, _value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            found: int | float = _FUNCTIONS[name](*map(_value, args))
            return found
        case _:
            raise TypeError


def _combine(op: ast.operator, left: float, right: float) -> int | float:
    if isinstance(op, ast.Pow) and isinstance(left, int) and left.bit_length() * abs(right) > _LONGEST:
        raise OverflowError("the result is too long")
    value: int | float | complex = _BINARY[type(op)](left, right)
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    return value


@tool(name="calculate", effect="pure")
async def calculator(expression: str) -> str:
    """Compute arithmetic, as "(2 + 3) * 4 ** 2" or "sqrt(2) * pi"."""
    return str(calculate(expression))


def tools_for(folder: Path) -> list[BaseTool]:
    return [*files(folder), shell(cwd=folder), fetch(), calculator]


def assistant(model: Model | str, folder: Path, *, tiny: bool = False) -> Agent:
    """The assistant for a folder. A `tiny` model gets the calculator alone: it would take any other tool at random."""
    tools = [calculator] if tiny else tools_for(folder)
    instructions = TINY if tiny else INSTRUCTIONS.format(folder=folder)
    return Agent(NAME, model=model, tools=tools, instructions=instructions, hooks=[Approvals(short(folder))])


def short(folder: Path) -> str:
    """The folder as people write it, with ~ for their home."""
    try:
        return f"~/{folder.relative_to(Path.home())}".removesuffix("/.")
    except (ValueError, RuntimeError):
        return str(folder)
