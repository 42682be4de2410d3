"""Text of users, models and errors for a terminal: whatever could steer one is taken out of it.

Character by character, so that it holds for pieces of a stream as well: an escape sequence without its first character
is only text.
"""

from __future__ import annotations

_BLANK = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def sanitize(text: object) -> str:
    """The text without characters that do something to a terminal."""
    return str(text).translate(_BLANK)
