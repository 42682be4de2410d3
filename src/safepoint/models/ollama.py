"""An Ollama server, through its compatible interface.

It takes `tool_choice` and does not look at it (ollama/ollama#17921). So what can be done without its help is done here,
and what can't is refused.
"""

from __future__ import annotations

import os
from dataclasses import replace

from safepoint.agent.model import ModelRequest
from safepoint.models.openai import OpenAIModel
from safepoint.models.openai_wire import Payload


class OllamaModel(OpenAIModel):
    """A model by its name, on this machine or where `OLLAMA_HOST` says."""

    def __init__(self, model: str) -> None:
        super().__init__(model, base_url=ollama_address(os.environ.get("OLLAMA_HOST", "")), name=f"ollama:{model}")

    @property
    def provider_name(self) -> str:
        return "ollama"

    def payload(self, request: ModelRequest) -> Payload:
        settings = request.settings
        if settings.tool_choice not in (None, "auto", "none"):
            raise ValueError(
                f"tool_choice={settings.tool_choice!r}: Ollama can't be made to call a tool; "
                "write 'auto' or 'none', or leave it out"
            )
        tools = () if settings.tool_choice == "none" else request.tools
        return super().payload(replace(request, tools=tools, settings=replace(settings, tool_choice=None)))


def ollama_address(host: str) -> str:
    """The address of Ollama's compatible interface, from the variable that Ollama itself reads."""
    scheme, separator, rest = (host.strip() or "127.0.0.1:11434").rpartition("://")
    rest = rest.rstrip("/").replace("0.0.0.0", "127.0.0.1", 1)
    if ":" not in rest and not separator:
        rest += ":11434"
    return f"{scheme or 'http'}://{rest}/v1"
