"""Whose a value is, by its name: the rules alone."""

from __future__ import annotations

from typing import Any

from safepoint.serving.ids import SessionKey
from safepoint.serving.shared_state import bring, changed, drop_temporary, lasting, session_part, shared

KEY = SessionKey("desk", "ann", "s")


def test_each_value_goes_to_its_place() -> None:
    state = {"app:a": 1, "user:b": 2, "temp:c": 3, "d": 4}
    assert shared(KEY, state) == {"desk": {"app:a": 1}, "desk/ann": {"user:b": 2}}
    assert session_part(state) == {"d": 4}
    assert lasting(state) == {"app:a": 1, "user:b": 2, "d": 4}
    drop_temporary(state)
    assert state == {"app:a": 1, "user:b": 2, "d": 4}


def test_shared_values_replace_older_copies_and_nothing_else() -> None:
    state: dict[str, Any] = {"app:old": 1, "user:kept": 1, "own": 1}  # Any: JSON values
    bring(state, {"user:kept": 2, "app:new": 3})
    assert state == {"user:kept": 2, "app:new": 3, "own": 1}


def test_what_a_run_changes_removes_or_changes_inside_a_value_is_given_back() -> None:
    before = {"app:same": 1, "app:gone": 2, "user:list": [1]}
    state: dict[str, Any] = {}  # Any: as above
    bring(state, before)
    del state["app:gone"]
    state["user:list"].append(2)
    state |= {"user:new": 5, "own": 6}
    assert changed(before, state) == {"app:gone": None, "user:list": [1, 2], "user:new": 5}
