"""Any Python string as PostgreSQL text, and back.

PostgreSQL text has no NUL, and UTF-8 has no lone surrogates. Both are replaced character by character by two characters
that sort where the one would have sorted, so `COLLATE "C"` orders escaped text as Python orders the original, and a
text that begins with another still does. Text without these characters, which is nearly all of it, stays as it is.

    U+0000          U+0001 U+0001            U+D7FF          U+D7FF U+0001
    U+0001          U+0001 U+0002            U+D800…U+DFFF   U+D7FF U+E000…U+E7FF
"""

from __future__ import annotations

import re
from typing import TypeVar, cast

S = TypeVar("S", bound=str | None)

_SPECIAL = re.compile("[\x00\x01\ud7ff-\udfff]")
_ESCAPED = re.compile("[\x01\ud7ff](.)", re.DOTALL)
_AHEAD = 0xE000 - 0xD800


def escape(text: S) -> S:
    return text if text is None else cast("S", _SPECIAL.sub(_escaped, text))


def unescape(text: S) -> S:
    return text if text is None else cast("S", _ESCAPED.sub(_original, text))


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character <= "\x01":
        return "\x01" + chr(ord(character) + 1)
    return "\ud7ff\x01" if character == "\ud7ff" else "\ud7ff" + chr(ord(character) + _AHEAD)


def _original(found: re.Match[str]) -> str:
    second = found[1]
    if found[0][0] == "\x01":
        return chr(ord(second) - 1)
    return "\ud7ff" if second == "\x01" else chr(ord(second) - _AHEAD)
