"""A model chosen by a string.

    openai:NAME            a provider, with its key in the environment; so are
    anthropic:NAME         gemini:NAME  bedrock:NAME
    ollama:NAME            an Ollama server, on this machine or where OLLAMA_HOST says
    local                  a small model on this machine, fetched once: no key, no account
    http://HOST/v1#NAME    any server that speaks OpenAI's chat completions

A string says nothing but which model. Keys, addresses and other options are arguments of the model classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from safepoint.agent.model import Model
from safepoint.models.anthropic import AnthropicModel, BedrockModel
from safepoint.models.gemini import GeminiModel
from safepoint.models.local import LocalModel
from safepoint.models.ollama import OllamaModel
from safepoint.models.openai import OpenAIModel

PROVIDERS: Final[dict[str, Callable[[str], Model]]] = {
    "openai": OpenAIModel,
    "anthropic": AnthropicModel,
    "gemini": GeminiModel,
    "bedrock": BedrockModel,
    "ollama": OllamaModel,
}


def choose_model(choice: str) -> Model:
    """The model that the string names; `ValueError` if it names none."""
    if choice.startswith(("http://", "https://")):
        return _at_address(choice)
    if choice == "local":
        return LocalModel()
    provider, separator, name = choice.partition(":")
    make = PROVIDERS.get(provider)
    if make is None or not separator or not name.strip():
        known = ", ".join(f"'{each}:NAME'" for each in PROVIDERS)
        raise ValueError(f"model={choice!r} names no model: write one of {known}, 'local', or 'http://HOST/v1#NAME'")
    return make(name.strip())


def _at_address(choice: str) -> Model:
    address, _, name = choice.partition("#")
    if not name.strip():
        raise ValueError(f"model={choice!r} does not say which model: write {address + '#NAME'!r}")
    return OpenAIModel(name.strip(), base_url=address, name=choice)
