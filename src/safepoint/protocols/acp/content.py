"""What a person sends with a prompt, as the parts of a message. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from acp import schema

from safepoint.history.parts import File, Image, Text, UserPart
from safepoint.protocols.acp.rpc import INVALID_PARAMS, RpcError

PromptBlock: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)


def parts_of(blocks: Iterable[PromptBlock]) -> tuple[UserPart, ...]:
    """Raises `RpcError` for a prompt without words, and for what `initialize` does not offer."""
    parts = tuple(_part(block) for block in blocks)
    parts = tuple(part for part in parts if not (isinstance(part, Text) and not part.text.strip()))
    if not parts:
        raise RpcError(INVALID_PARAMS, "Invalid params: the prompt is empty; write at least one word")
    return parts


def words_of(parts: Sequence[UserPart]) -> str:
    """The text alone: what answers a question, and what a session is called by."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _part(block: PromptBlock) -> UserPart:
    match block:
        case schema.TextContentBlock():
            return Text(block.text)
        case schema.ImageContentBlock():
            return Image(_decoded(block.data), block.mime_type)
        case schema.ResourceContentBlock():
            return Text(f"[{block.title or block.name}]({block.uri})")
        case schema.EmbeddedResourceContentBlock():
            return _embedded(block.resource)
        case schema.AudioContentBlock():
            raise RpcError(INVALID_PARAMS, "Invalid params: this agent takes no audio; send text or images")


def _embedded(resource: schema.TextResourceContents | schema.BlobResourceContents) -> UserPart:
    if isinstance(resource, schema.TextResourceContents):
        return Text(f"{resource.uri}:\n{resource.text}")
    data, media_type = _decoded(resource.blob), resource.mime_type or "application/octet-stream"
    if media_type.startswith("image/"):
        return Image(data, media_type)
    return File(data, media_type, resource.uri.rpartition("/")[2] or None)


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RpcError(INVALID_PARAMS, "Invalid params: the data of an image or a file is not base64") from error
