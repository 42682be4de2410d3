"""Pictures and files that a client sends: as bytes in base64, in a `data:` address, or by an address."""

from __future__ import annotations

import base64
import binascii

from safepoint.history.parts import File, Image, UserPart

_DATA = "data:"
_BASE64 = ";base64"


def from_base64(data: str, media_type: str, name: str | None = None) -> UserPart:
    """Raises ValueError."""
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("the data of a picture or a file is not base64") from error
    return Image(content, media_type) if media_type.startswith("image/") else File(content, media_type, name)


def from_address(url: str, media_type: str, name: str | None = None) -> UserPart:
    """The server never fetches it; a `data:` address has the bytes in it. Raises ValueError."""
    if url.startswith(_DATA):
        head, comma, data = url.removeprefix(_DATA).partition(",")
        if not comma or not head.endswith(_BASE64):
            raise ValueError("a data: address has to be base64: write data:MEDIA/TYPE;base64,…")
        return from_base64(data, head.removesuffix(_BASE64).partition(";")[0] or media_type, name)
    if not url.startswith(("https://", "http://")):
        raise ValueError("the address of a picture or a file begins with https:// or http:// or data:")
    if media_type.startswith("image/"):
        return Image(url=url, media_type=media_type)
    return File(url=url, media_type=media_type, name=name)
