"""Ids of tool calls as providers take them.

A conversation may have been begun by another provider, whose ids are longer or of other letters. Whatever is legal
stays as it is; anything else becomes a digest of itself. The same id always becomes the same one, in the call and in
its result, today and tomorrow: so pairs stay pairs, and a provider's prompt cache stays warm.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

LEGAL: Final = re.compile(r"[A-Za-z0-9_-]+")


def wire_id(id: str, *, longest: int) -> str:
    """The id itself if it is made of `LEGAL` characters and no longer than that, else its digest."""
    if len(id) <= longest and LEGAL.fullmatch(id):
        return id
    return f"call_{hashlib.sha256(id.encode()).hexdigest()[:24]}"
