"""Keys may be functions, each provider reads its own variable, and an address may come from one too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from safepoint import Agent, tool
from safepoint.agent.model import Model
from safepoint.errors import ModelNotReady
from safepoint.models import AnthropicModel, BedrockModel, GeminiModel, OpenAIModel, OpenAIResponsesModel
from safepoint.models.credentials import ApiKey
from safepoint.models.providers import COMPATIBLE
from tests.models import anthropic_stream, gemini_stream, openai_stream, responses_stream
from tests.models.raw_server import RawServer, answer, raw_server, say, stream

LONG = 20.0


@tool(effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"sunny in {place}"


def chunked(events: Sequence[Any]) -> bytes:  # Any: JSON
    return stream(events, chunked=True)


Make = Callable[[RawServer, ApiKey], Model]
MODELS: dict[str, tuple[Make, Callable[[Any], bytes], Any, str]] = {  # Any: a module with ANSWER and CALLS
    "openai": (
        lambda server, key: OpenAIModel("m", base_url=f"{server.address}/v1", api_key=key),
        chunked,
        openai_stream,
        "authorization: bearer ",
    ),
    "responses": (
        lambda server, key: OpenAIResponsesModel("m", base_url=f"{server.address}/v1", api_key=key),
        chunked,
        responses_stream,
        "authorization: bearer ",
    ),
    "anthropic": (
        lambda server, key: AnthropicModel("m", base_url=server.address, api_key=key),
        chunked,
        anthropic_stream,
        "x-api-key: ",
    ),
    "gemini": (
        lambda server, key: GeminiModel("gemini-3", base_url=server.address, api_key=key),
        chunked,
        gemini_stream,
        "x-goog-api-key: ",
    ),
    "bedrock": (
        lambda server, key: BedrockModel("m", base_url=server.address, api_key=key, region="eu-north-1"),
        anthropic_stream.bedrock_stream,
        anthropic_stream,
        "authorization: bearer ",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_function_is_asked_for_the_key_of_every_request(name: str) -> None:
    make, encode, events, header = MODELS[name]
    keys = iter(["first", "second"])

    async def key() -> str:
        await asyncio.sleep(0)
        return next(keys)

    async def main() -> None:
        async with raw_server(say(encode(events.CALLS)), say(encode(events.ANSWER))) as server, asyncio.timeout(LONG):
            result = await Agent("a", model=make(server, key), tools=[look], retries=0).run("go")
            assert result.stop_reason == "end_turn", result.error
        for head, expected in zip(server.heads, ("first", "second"), strict=True):
            sent = [line for line in head.lower().splitlines() if line.startswith(header.split(":")[0] + ":")]
            assert sent == [f"{header}{expected}"]

    asyncio.run(main())


@pytest.mark.parametrize("name", MODELS)
def test_a_stop_cuts_the_wait_for_a_key(name: str) -> None:
    make, *_ = MODELS[name]

    async def main() -> None:
        asked, cut = asyncio.Event(), asyncio.Event()

        async def key() -> str:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                cut.set()
            return "never"

        async with raw_server(say(b"")) as server, asyncio.timeout(LONG):
            async with Agent("a", model=make(server, key)).start("go") as run:
                await asked.wait()
                assert await run.cancel().wait() == "stopped"
            assert cut.is_set()
            assert server.heads == []

    asyncio.run(main())


NAMED = {name: row for name, row in COMPATIBLE.items() if not row.key_optional}


async def refused(model: Model) -> ModelNotReady:
    async with Agent("a", model=model, retries=0).start("go") as run:
        await run.wait()
    assert isinstance(run.result.error, ModelNotReady), run.result.error
    return run.result.error


@pytest.mark.parametrize("name", NAMED)
def test_a_missing_key_is_an_error_that_names_the_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    monkeypatch.delenv(NAMED[name].key, raising=False)
    error = asyncio.run(refused(OpenAIModel("m", provider=name)))
    assert str(error).startswith(f"{name}:m needs a key: type `export {NAMED[name].key}=…`")


@pytest.mark.parametrize("name", NAMED)
def test_the_key_of_the_variable_is_sent_and_a_refused_one_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMED[name].key, "sk-variable")

    async def main() -> None:
        async with raw_server(say(answer(401, {"error": {"message": "bad key"}}))) as server, asyncio.timeout(LONG):
            error = await refused(OpenAIModel("m", provider=name, base_url=f"{server.address}/v1"))
        assert NAMED[name].key in str(error)
        assert "authorization: bearer sk-variable" in server.heads[0].lower()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("https://mine.openai.azure.com", "https://mine.openai.azure.com/openai/v1"),
        ("https://mine.openai.azure.com/openai/v1/", "https://mine.openai.azure.com/openai/v1"),
        ("https://mine.services.ai.azure.com/openai", "https://mine.services.ai.azure.com/openai/v1"),
    ],
)
def test_azure_is_reached_at_the_v1_address_of_its_endpoint(endpoint: str, address: str) -> None:
    assert COMPATIBLE["azure"].find_address({"AZURE_OPENAI_ENDPOINT": endpoint}) == address


def test_azure_without_an_endpoint_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    with pytest.raises(ModelNotReady, match="export AZURE_OPENAI_ENDPOINT="):
        Agent("a", model="azure:deployment")


def test_a_provider_that_is_not_in_the_table_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="write one of azure, groq, mistral"):
        OpenAIModel("m", provider="nobody")
