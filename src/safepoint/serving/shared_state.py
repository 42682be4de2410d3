"""Session state by the scope of its names, as in ADK. Plain functions only.

    app:NAME    all sessions of the app share it
    user:NAME   all sessions of the user, in that app, share it
    temp:NAME   one run has it, and nothing stores it
    NAME        the session's own

While a run goes, its session's state has a copy of what is shared; what the run changed is given back when it is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from safepoint.serving.ids import SessionKey

SHARED = ("app:", "user:")
_TEMPORARY = "temp:"


def places(key: SessionKey) -> dict[str, str]:
    """Where shared values of each kind are kept. An id has no slash, so no two places are the same."""
    return {"app:": key.app, "user:": f"{key.app}/{key.user}"}


def merge(state: dict[str, Any], delta: Mapping[str, Any]) -> None:  # Any: JSON values
    """What is null goes."""
    for name, value in delta.items():
        if value is None:
            state.pop(name, None)
        else:
            state[name] = value


def lasting(delta: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON values
    return {name: value for name, value in delta.items() if not name.startswith(_TEMPORARY)}


def session_part(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON values
    """The part that is the session's alone."""
    return {name: value for name, value in state.items() if not name.startswith((*SHARED, _TEMPORARY))}


def shared(key: SessionKey, delta: Mapping[str, Any]) -> dict[str, dict[str, Any]]:  # Any: JSON values
    """The parts that others have too, by their place."""
    found: dict[str, dict[str, Any]] = {}  # Any: JSON values
    for prefix, place in places(key).items():
        part = {name: value for name, value in delta.items() if name.startswith(prefix)}
        if part:
            found[place] = part
    return found


def bring(state: dict[str, Any], values: Mapping[str, Any]) -> None:  # Any: JSON values
    """Put the shared values of now in the place of older copies."""
    drop(state, [name for name in state if name.startswith(SHARED) and name not in values])
    state.update(deepcopy(dict(values)))  # what a run changes inside a value is a change too


def changed(before: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON values
    """What a run did to shared values."""
    return difference(before, {name: value for name, value in state.items() if name.startswith(SHARED)})


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON values
    """The delta from one to the other; None for a value that is gone."""
    gone: dict[str, Any] = dict.fromkeys(name for name in before if name not in now)  # Any: JSON values
    return {**gone, **{name: value for name, value in now.items() if before.get(name) != value}}


def drop_temporary(state: dict[str, Any]) -> None:  # Any: JSON values
    drop(state, [name for name in state if name.startswith(_TEMPORARY)])


def drop(state: dict[str, Any], names: Iterable[str]) -> None:  # Any: JSON values
    for name in names:
        state.pop(name, None)


def plain(value: object) -> Any:  # Any: JSON
    """A value of the user's own as JSON; a value that has no such form becomes its description."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=str))
    except (TypeError, ValueError):
        return str(value)
