"""Arguments and schemas as plain dicts and lists: ours may be any mapping, and encoders take dicts only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def plain(value: object) -> Any:  # Any: JSON
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[object]", value)]
    return value
