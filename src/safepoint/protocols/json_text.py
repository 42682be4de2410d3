"""JSON as the text of a frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# `json.dumps` makes an encoder for every call that is not in its usual form.
_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def as_text(value: Mapping[str, Any]) -> str:  # Any: JSON values
    """Compact JSON. Half a surrogate pair, which a model may well stream, is escaped: no socket could send it."""
    text = _compact(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text
