"""What an MCP server sends, as a tool returns it: text, images and files.

Images become `Image`, sounds and other bytes `File`. A link to a resource stays a link in the text: its content must
be requested. Data that cannot be read is replaced by a remark, because the call has run.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING

from safepoint.errors import McpFailed
from safepoint.history.parts import Attachment, File, Image
from safepoint.tools.content import named

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, TextResourceContents

_UNKNOWN = "application/octet-stream"


def read_result(result: CallToolResult) -> object:
    """The text alone, or a list of text and parts. Raises `McpFailed` if the server reports a failed call."""
    blocks = [read_block(block) for block in result.content]
    if result.is_error:
        said = "\n".join(
            block if isinstance(block, str) else named(block, place) for place, block in enumerate(blocks, 1)
        )
        raise McpFailed(said or "the server says that the call failed, and not why")
    if any(not isinstance(block, str) for block in blocks):
        return blocks
    words = "\n".join(block for block in blocks if isinstance(block, str))
    if not words and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return words


def read_block(block: ContentBlock) -> str | Attachment:
    match block.type:
        case "text":
            return block.text
        case "resource_link":
            return f"[resource {block.uri}]"
        case "image" | "audio":
            return _part(block.type, block.data, block.mime_type, None)
        case "resource":
            return read_contents(block.resource)


def read_contents(resource: TextResourceContents | BlobResourceContents) -> str | Attachment:
    if (text := getattr(resource, "text", None)) is not None:
        return str(text)
    name = resource.uri.rpartition("/")[2] or None
    return _part("resource", getattr(resource, "blob", ""), resource.mime_type or _UNKNOWN, name)


def _part(kind: str, data: str, media_type: str, name: str | None) -> str | Attachment:
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{kind}, {media_type}: its data cannot be read]"
    if media_type.lower().startswith("image/"):
        return Image(decoded, media_type)
    return File(decoded, media_type, name)
