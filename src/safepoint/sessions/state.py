"""The state of a session, as values that every store can keep. Pure.

A live object has what its user did to it; the store has what was written last, perhaps by another process. Names that
begin with `temp:` are of one run and never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from safepoint.history.encoding import decode_value, encode_values

TEMPORARY = "temp:"


def plain(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: values of the user's own
    """A copy, in values that every store can keep; what has no such form becomes its description."""
    return cast("dict[str, Any]", decode_value(encode_values(state)))


def lasting(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: as above
    return plain({name: value for name, value in state.items() if not str(name).startswith(TEMPORARY)})


def rebased(
    state: Mapping[str, Any],
    before: Mapping[str, Any],
    now: Mapping[str, Any],  # Any: as above
) -> dict[str, Any]:
    """What is stored now, with what was done to the state since it was as `before`: two may change two values."""
    kept, found = lasting(state), plain(now)
    for name in before:
        if name not in kept:
            found.pop(name, None)
    mine = {name: value for name, value in state.items() if name not in before or kept.get(name) != before[name]}
    return {**found, **mine}
