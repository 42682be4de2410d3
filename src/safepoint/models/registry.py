"""A model chosen by a string.

    openai:NAME            a provider, with its key in the environment; so are
    anthropic:NAME         gemini:NAME  vertex:NAME  bedrock:NAME  azure:NAME
    groq:NAME, ...         a provider that speaks OpenAI's chat completions: see `providers`
    ollama:NAME, ...       a server on this machine, or where its variable says: lmstudio, llamacpp, vllm
    local                  a small model on this machine, fetched once: no key, no account
    http://HOST/v1#NAME    any other server that speaks OpenAI's chat completions

A string says nothing but which model. Keys, addresses and other options are arguments of the model classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, overload

from safepoint.agent.model import Model
from safepoint.models.anthropic import AnthropicModel, BedrockModel
from safepoint.models.gemini import GeminiModel
from safepoint.models.local import LocalModel
from safepoint.models.model_choice import ModelChoice, find_model
from safepoint.models.openai import OpenAIModel
from safepoint.models.providers import COMPATIBLE
from safepoint.models.responses import OpenAIResponsesModel, is_reasoning_model
from safepoint.models.vertex import vertex_model


def _openai(model: str) -> Model:
    """Through the Responses API if it reasons: chat completions lose its reasoning between two calls."""
    return OpenAIResponsesModel(model) if is_reasoning_model(model) else OpenAIModel(model)


PROVIDERS: Final[dict[str, Callable[[str], Model]]] = {
    "openai": _openai,
    "anthropic": AnthropicModel,
    "gemini": GeminiModel,
    "vertex": vertex_model,
    "bedrock": BedrockModel,
    **{name: partial(OpenAIModel, provider=name) for name in COMPATIBLE},
}


@overload
def choose_model() -> ModelChoice: ...
@overload
def choose_model(choice: str) -> Model: ...
def choose_model(choice: str | None = None) -> Model | ModelChoice:
    """The model that the string names; `ValueError` if it names none.

    Without a string, the choice for a user who has made none, with its reason: a provider whose key is set, else an
    Ollama, LM Studio or llama.cpp server that answers on this machine, else the embedded model. That blocks for up to
    half a second, and raises `ModelNotReady` if there is no model to use.
    """
    if choice is None:
        return find_model()
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
