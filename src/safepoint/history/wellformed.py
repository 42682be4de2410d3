"""Values that can travel: text that is valid Unicode, arguments that are JSON.

Half a surrogate pair gets into a Python `str` easily (a file name, a cut stream, a `\\ud83d` in a model's JSON), and
then every later request that carries it is refused: it has no UTF-8 form. NaN and Infinity are read by Python's own
JSON parser and by no provider's. A value that contains itself has no JSON form at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

MAX_DEPTH: Final = 64
"""How deep arguments may nest. Common JSON and protobuf parsers give up at 100, and the request around counts too."""


def is_well_formed(text: str) -> bool:
    """Whether the text has a UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def well_formed(text: str) -> str:
    """The same text with split surrogate pairs joined, and a `U+FFFD` for each half that has lost its other one."""
    if is_well_formed(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_fault(value: object) -> str | None:
    """What keeps the value from being sent as JSON; None if nothing does."""
    # Depth first, so that a value which contains itself is found by its depth before it can fill the memory.
    pending: list[tuple[object, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"it nests deeper than {MAX_DEPTH} levels, or contains itself"
        if isinstance(item, Mapping):
            for key, inner in cast("Mapping[object, object]", item).items():
                if not isinstance(key, str):
                    return f"a key is {type(key).__name__} instead of str"
                pending += [(key, depth), (inner, depth + 1)]
        elif isinstance(item, list | tuple):
            pending += [(inner, depth + 1) for inner in cast("list[object]", item)]
        elif (fault := _scalar_fault(item)) is not None:
            return fault
    return None


def _scalar_fault(item: object) -> str | None:
    match item:
        case None | bool() | int():
            return None
        case float():
            return None if math.isfinite(item) else f"it holds {item!r}, which JSON does not have"
        case str():
            return None if is_well_formed(item) else "it holds half a surrogate pair, which has no UTF-8 form"
        case _:
            return f"it holds a value of type {type(item).__name__}, which JSON does not have"
