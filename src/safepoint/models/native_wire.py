"""Conversations with llama.cpp's own tool calls: its server knows the model's chat template. Pure: no SDK, no network.

It speaks chat completions. What differs: `tool_choice` takes no name of a tool, so that tool alone is offered and
required; thinking is set apart if it is asked for.
"""

from __future__ import annotations

from dataclasses import replace

from safepoint.agent.model import ModelRequest
from safepoint.models.openai_wire import Payload
from safepoint.models.openai_wire import to_payload as to_plain_payload

_CHOICES = (None, "auto", "none", "required")


def to_payload(model: str, request: ModelRequest, *, server: str) -> Payload:
    """The body of the request to llama.cpp's server."""
    settings = request.settings
    if settings.tool_choice not in _CHOICES:
        only = tuple(tool for tool in request.tools if tool.name == settings.tool_choice)
        request = replace(request, tools=only, settings=replace(settings, tool_choice="required"))
    payload = to_plain_payload(model, request, limit="max_tokens", server=server)
    ours: Payload = {
        # With this the server writes after each batch of the prompt, and so notices at once that nobody listens.
        "return_progress": True,
        "reasoning_format": "auto",
    }
    return ours | payload
