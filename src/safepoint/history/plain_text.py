"""Text that any provider and any store will take: it encodes to UTF-8, holds no NUL, and is bounded."""

from __future__ import annotations

REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates and NUL by U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def cut(text: str, limit: int) -> str:
    """At most `limit` characters; what was left out is counted in the text's own tail."""
    if len(text) <= limit:
        return clean(text)
    room = max(0, limit - len(_tail(len(text))))
    return clean(text[:room]) + _tail(len(text) - room)[: limit - room]


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, for a quotation inside a line: the end becomes an ellipsis."""
    return clean(text) if len(text) <= limit else clean(text[: limit - 1]) + "…"


def _tail(left_out: int) -> str:
    return f"\n[cut here: {left_out} more characters were left out]"
