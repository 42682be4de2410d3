"""Conversations with llama.cpp's own tool calls: its server knows the model's chat template. Pure, without network."""

from __future__ import annotations

from safepoint.agent.model import ModelRequest
from safepoint.models.openai_wire import Payload
from safepoint.models.openai_wire import to_payload as to_plain_payload
from safepoint.models.providers import LLAMACPP


def to_payload(model: str, request: ModelRequest, *, server: str) -> Payload:
    """The body of the request to llama.cpp's server."""
    payload = to_plain_payload(model, request, quirks=LLAMACPP, server=server, name="llama.cpp's server")
    ours: Payload = {
        # With this the server writes after each batch of the prompt, and so notices a closed connection at once.
        "return_progress": True,
        "reasoning_format": "auto",
    }
    return ours | payload
