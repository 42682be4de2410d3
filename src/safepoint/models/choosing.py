"""A model chosen by a string.

    openai:NAME            a provider, with its key in the environment; so are
    anthropic:NAME         gemini:NAME  bedrock:NAME
    ollama:NAME            an Ollama server, on this machine or where OLLAMA_HOST says
    local                  a small model on this machine, fetched once: no key, no account
    http://HOST/v1#NAME    any server that speaks OpenAI's chat completions

A string says nothing but which model. Keys, addresses and other options are arguments of the model classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from safepoint.agent.model import Model


def _openai(name: str) -> Model:
    from safepoint.models.openai import OpenAIModel

    return OpenAIModel(name)


def _anthropic(name: str) -> Model:
    from safepoint.models.anthropic import AnthropicModel

    return AnthropicModel(name)


def _gemini(name: str) -> Model:
    from safepoint.models.gemini import GeminiModel

    return GeminiModel(name)


def _bedrock(name: str) -> Model:
    from safepoint.models.anthropic import BedrockModel

    return BedrockModel(name)


def _ollama(name: str) -> Model:
    from safepoint.models.openai import OpenAIModel

    return OpenAIModel(name, base_url=ollama_address(os.environ.get("OLLAMA_HOST", "")), name=f"ollama:{name}")


def ollama_address(host: str) -> str:
    """The address of Ollama's compatible interface, from the variable that Ollama itself reads."""
    host = host.strip() or "127.0.0.1:11434"
    scheme, separator, rest = host.rpartition("://")
    rest = rest.rstrip("/").replace("0.0.0.0", "127.0.0.1", 1)
    if ":" not in rest:
        rest += ":11434" if not separator else ""
    return f"{scheme or 'http'}://{rest}/v1"


PROVIDERS: Final[dict[str, Callable[[str], Model]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
    "ollama": _ollama,
}


def choose_model(choice: str) -> Model:
    """The model that the string names; `ValueError` if it names none."""
    if choice.startswith(("http://", "https://")):
        return _at_address(choice)
    provider, separator, name = choice.partition(":")
    make = PROVIDERS.get(provider)
    if make is None or not separator or not name.strip():
        known = ", ".join(f"'{each}:NAME'" for each in PROVIDERS)
        raise ValueError(f"model={choice!r} names no model: write one of {known}, or 'http://HOST/v1#NAME'")
    return make(name.strip())


def _at_address(choice: str) -> Model:
    from safepoint.models.openai import OpenAIModel

    address, _, name = choice.partition("#")
    if not name.strip():
        raise ValueError(f"model={choice!r} does not say which model: write {address + '#NAME'!r}")
    return OpenAIModel(name.strip(), base_url=address, name=choice)
