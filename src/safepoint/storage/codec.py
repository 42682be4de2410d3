"""How values become the text of a row, and what reading a spoilt row may raise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from safepoint.history.encoding import decode_value, encode_values

# What reading a spoilt row may raise.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)

# `json.dumps` would make an encoder for every value. ASCII only: a lone surrogate has no form in UTF-8.
dump_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def dump_optional(value: Mapping[str, Any] | None) -> str | None:  # Any: JSON values
    return None if value is None else dump_json(dict(value))


def load_optional(text: str | None) -> dict[str, Any] | None:  # Any: JSON values
    return None if text is None else dict(json.loads(text))


def dump_state(state: Mapping[str, Any]) -> str:  # Any: values of the user's own
    return dump_json(encode_values(state))


def load_state(text: str) -> dict[str, Any]:  # Any: JSON values
    state: object = json.loads(text)
    if not isinstance(state, dict):
        raise ValueError("the state is no mapping")
    return cast("dict[str, Any]", decode_value(state))
