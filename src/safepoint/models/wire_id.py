"""Ids of tool calls as providers take them.

A conversation may have been begun by another provider, whose ids are longer or use other letters. A legal id stays as
it is; any other becomes a digest of itself. The same id always becomes the same one, in the call and in its result,
today and tomorrow: so pairs stay pairs, and a provider's prompt cache stays warm.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

LEGAL: Final = re.compile(r"[A-Za-z0-9_-]+")
_SHORT: Final = re.compile(r"[A-Za-z0-9]{9}")


def wire_id(id: str, *, longest: int) -> str:
    """The id itself if it is made of `LEGAL` characters and no longer than that, else its digest."""
    if len(id) <= longest and LEGAL.fullmatch(id):
        return id
    return f"call_{_digest(id)[:24]}"


def short_id(id: str) -> str:
    """The same for servers whose ids are nine letters or digits."""
    return id if _SHORT.fullmatch(id) else _digest(id)[:9]


def _digest(id: str) -> str:
    return hashlib.sha256(id.encode()).hexdigest()
