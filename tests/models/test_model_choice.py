"""A user who chose no model gets one that works here, and is told which and why."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from genai_prices import Usage, calc_price

from safepoint import Agent
from safepoint.models import ModelChoice, choose_model
from safepoint.models.llama import LlamaServer
from safepoint.models.model_choice import LOCAL_SERVERS, find_model, is_loopback
from safepoint.models.openai import OpenAIModel
from safepoint.models.providers import COMPATIBLE, Provider

LONG = 20.0


@contextmanager
def listing(*models: str, kind: str = "list") -> Generator[str]:
    """A server on this machine that lists these models; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/v1/models"
            body = json.dumps({"object": kind, "data": [{"id": name, "object": "model"} for name in models]}).encode()
            self.send_response(200 if known else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def at(**addresses: str) -> list[Provider]:
    """The servers of the table, in its order, at these addresses instead of their own."""
    return [
        replace(provider, base_url=addresses[provider.name], address=str)
        for provider in LOCAL_SERVERS
        if provider.name in addresses
    ]


def found(environment: dict[str, str], servers: Iterable[Provider] = ()) -> ModelChoice:
    return find_model(environment, servers=list(servers), patience=LONG)


def test_a_key_that_is_set_chooses_its_provider_and_the_reason_names_the_variable() -> None:
    assert found({"MISTRAL_API_KEY": "k"}) == ModelChoice(
        "mistral:mistral-small-latest", "mistral:mistral-small-latest", "MISTRAL_API_KEY is set"
    )
    both = found({"GROQ_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": " "})
    assert both.name == "anthropic:claude-haiku-4-5"
    assert found({"GOOGLE_API_KEY": "k"}).why == "GOOGLE_API_KEY is set"


def test_a_token_that_is_mostly_for_something_else_chooses_nothing() -> None:
    assert found({"GITHUB_TOKEN": "k", "HF_TOKEN": "k"}).model == "local"


def test_without_a_key_the_first_server_that_answers_here_is_chosen() -> None:
    with listing("text-embedding-nomic", "qwen3-4b") as studio, listing("llama") as llama:
        choice = found({}, at(llamacpp=llama, lmstudio=studio))
        assert (choice.model, choice.why) == ("lmstudio:qwen3-4b", f"LM Studio's server answers at {studio}")
        assert found({}, at(llamacpp=llama)).model == "llamacpp:llama"
        assert found({"XAI_API_KEY": "k"}, at(llamacpp=llama)).name.startswith("xai:")


def test_a_port_where_something_else_listens_is_no_server() -> None:
    with listing("a", kind="files") as other, listing("only-embeddings") as embeddings, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mute = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        servers = at(ollama=mute, lmstudio=other, llamacpp=embeddings)
        assert find_model({}, servers=servers, patience=0.3).model == "local"


def test_only_this_machine_is_asked() -> None:
    assert [is_loopback(f"http://{host}/v1") for host in ("localhost:1", "127.3.2.1", "[::1]:80")] == [True] * 3
    assert not any(is_loopback(f"http://{host}/v1") for host in ("10.0.0.1", "example.org", "localhost.example.org"))
    with listing("m") as address:
        port = address.rpartition(":")[2]
        # The system takes this for 127.0.0.1, so only the check of the address stands between them.
        (server,) = at(ollama=f"http://127.1:{port}")
        assert found({}, [server]).model == "local"


def test_the_embedded_model_comes_last_and_says_why() -> None:
    choice = found({})
    assert (choice.model, choice.name) == ("local", "local (SmolLM2-135M)")
    assert "no key of a provider is set" in choice.why


def test_a_real_llama_server_is_found_and_its_model_can_be_chosen(
    llama: LlamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{asyncio.run(llama.address())}/v1"
    choice = found({"LLAMACPP_BASE_URL": address}, [COMPATIBLE["llamacpp"]])
    assert choice.model == "llamacpp:local"
    monkeypatch.setenv("LLAMACPP_BASE_URL", address)
    result = Agent("a", model=choice.model).run_sync("hello")
    assert result.stop_reason in ("end_turn", "max_tokens")
    assert not result.usage.estimated


def test_choose_model_without_a_string_is_that_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in COMPATIBLE.values():
        monkeypatch.delenv(provider.key, raising=False)
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CEREBRAS_API_KEY", "k")
    choice = choose_model()
    assert choice.why == "CEREBRAS_API_KEY is set"
    assert isinstance(choice.model, str)
    assert isinstance(choose_model(choice.model), OpenAIModel)


UNPRICED = {"openrouter", "nvidia", "qwen", "xai"}
"""The table has no row for them, or calls them otherwise than OpenTelemetry's conventions."""


@pytest.mark.parametrize("name", [name for name, row in COMPATIBLE.items() if row.small and name not in UNPRICED])
def test_the_first_model_of_a_provider_is_one_that_a_price_table_knows(name: str) -> None:
    row = COMPATIBLE[name]
    assert calc_price(Usage(input_tokens=1000), row.small, provider_id=row.otel).total_price > 0
