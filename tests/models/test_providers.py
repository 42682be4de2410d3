"""Anthropic, Bedrock and Gemini over real sockets, against servers that speak their wire formats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from safepoint import Agent, Run, ToolCall, check_history, tool
from safepoint.agent.events import ReasoningStreamed, TextStreamed
from safepoint.agent.model import Model, ModelRequest
from safepoint.errors import ModelError, ModelMisbehaved, ModelNotReady, ModelUnavailable
from safepoint.history import user_message
from safepoint.models.anthropic import AnthropicModel, BedrockModel
from safepoint.models.gemini import GeminiModel
from tests.models import anthropic_stream, gemini_stream
from tests.models.anthropic_stream import bedrock_stream, event
from tests.models.raw_server import RawServer, Say, answer, fall_silent, raw_server, reset, say, stream

LONG = 20.0
TEXT = "Once upon a time in Łódź."


@tool(effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"sunny in {place}"


def anthropic(server: RawServer) -> AnthropicModel:
    return AnthropicModel("claude", api_key="k", base_url=server.address)


def bedrock(server: RawServer) -> BedrockModel:
    return BedrockModel("claude", api_key="k", base_url=server.address, region="eu-north-1")


def gemini(server: RawServer) -> GeminiModel:
    return GeminiModel("gemini-3-pro", api_key="k", base_url=server.address)


Make = Callable[[RawServer], Model]
Events = Sequence[Any]  # Any: JSON


def chunked(events: Events) -> bytes:
    return stream(events, chunked=True)


PROVIDERS: dict[str, tuple[Make, Callable[[Any], bytes], Events, Events]] = {
    "anthropic": (anthropic, chunked, anthropic_stream.ANSWER, anthropic_stream.CALLS),
    "bedrock": (bedrock, bedrock_stream, anthropic_stream.ANSWER, anthropic_stream.CALLS),
    "gemini": (gemini, chunked, gemini_stream.ANSWER, gemini_stream.CALLS),
}
EACH = pytest.mark.parametrize("provider", PROVIDERS)


async def ended(make: Make, *acts: Say, retries: int = 0) -> tuple[Run[None, str], RawServer]:
    async with raw_server(*acts) as server:
        agent = Agent("a", model=make(server), tools=[look], retries=retries)
        async with asyncio.timeout(LONG), agent.start("go") as run:
            await run.wait()
    check_history(run.result.messages)
    return run, server


@EACH
def test_thoughts_and_parallel_calls_are_heard_run_and_sent_back(provider: str) -> None:
    make, encode, answer_, calls = PROVIDERS[provider]
    run, server = asyncio.run(ended(make, say(encode(calls)), say(encode(answer_))))
    assert (run.result.text, run.result.stop_reason) == (TEXT, "end_turn")
    asked = [part for message in run.result.messages for part in message.parts if isinstance(part, ToolCall)]
    assert [call.args for call in asked] == [{"place": "Łódź"}, {"place": "Rome"}]
    assert not run.result.usage.estimated
    sent = str(server.requests[1])
    for word in ("sunny in Łódź", "sunny in Rome", "AAEC" if provider == "gemini" else "EqQBCg=="):
        assert word in sent, word


def test_gemini_sends_a_signature_back_on_its_call() -> None:
    make, encode, answer_, calls = PROVIDERS["gemini"]
    _, server = asyncio.run(ended(make, say(encode(calls)), say(encode(answer_))))
    parts = server.requests[1]["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, "AAEC", None]


def test_anthropic_counts_what_came_from_its_cache() -> None:
    make, encode, answer_, _ = PROVIDERS["anthropic"]
    run, server = asyncio.run(ended(make, say(encode(answer_))))
    usage = run.result.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (95, 42, 80)
    assert server.requests[0]["tools"][-1]["cache_control"] == {"type": "ephemeral"}


@EACH
@pytest.mark.parametrize("part", ["nothing", "half"])
def test_now_closes_the_connection_wherever_the_stream_is(provider: str, part: str) -> None:
    make, encode, answer_, _ = PROVIDERS[provider]
    data = encode(answer_[: len(answer_) // 2]).removesuffix(b"0\r\n\r\n") if part == "half" else b""

    async def main() -> None:
        reached = asyncio.Event()
        async with raw_server(fall_silent(data, reached)) as server, asyncio.timeout(LONG):
            async with Agent("a", model=make(server)).start("go") as run:
                await reached.wait()
                if data:
                    async for event in run.events():
                        if isinstance(event, TextStreamed | ReasoningStreamed):
                            break
                assert await run.cancel().wait() == "stopped"
            await server.idle.wait()
        check_history(run.result.messages)

    asyncio.run(main())


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])  # in pieces whose number is told: so a break is seen
@pytest.mark.parametrize("part", ["nothing", "half"])
def test_a_stream_that_breaks_is_tried_again_as_long_as_nothing_was_said(provider: str, part: str) -> None:
    make, encode, answer_, _ = PROVIDERS[provider]
    begun = encode(answer_[: len(answer_) // 2] if part == "half" else []).removesuffix(b"0\r\n\r\n")
    run, server = asyncio.run(ended(make, reset(begun), say(encode(answer_)), retries=1))
    if part == "half":
        assert isinstance(run.result.error, ModelUnavailable)
        assert len(server.requests) == 1
    else:
        assert (run.result.text, len(server.requests)) == (TEXT, 2)


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
def test_closing_a_model_fails_the_call_under_way_and_the_next_one_is_answered(provider: str) -> None:
    make, encode, answer_, _ = PROVIDERS[provider]

    async def main() -> None:
        reached = asyncio.Event()
        begun = encode([]).removesuffix(b"0\r\n\r\n")
        async with raw_server(fall_silent(begun, reached), say(encode(answer_))) as server, asyncio.timeout(LONG):
            model = make(server)
            assert isinstance(model, AnthropicModel | GeminiModel)
            agent = Agent("a", model=model, retries=0)
            async with agent.start("go") as run:
                await reached.wait()
                await model.aclose()
            assert isinstance(run.result.error, ModelUnavailable)
            assert (await agent.run("go")).text == TEXT

    asyncio.run(main())


@EACH
def test_a_stream_that_is_left_between_two_events_is_closed_too(provider: str) -> None:
    make, encode, answer_, _ = PROVIDERS[provider]

    async def main() -> None:
        data = encode(answer_[:-1]).removesuffix(b"0\r\n\r\n")
        async with raw_server(fall_silent(data)) as server, asyncio.timeout(LONG):
            async with make(server).stream(ModelRequest((user_message("go"),))) as chunks:
                await anext(aiter(chunks))
            await server.idle.wait()

    asyncio.run(main())


def _status(provider: str, status: int, kind: str) -> bytes:
    if provider == "gemini":
        return answer(status, {"error": {"code": status, "message": "told so", "status": kind}}, retry_after_ms="1")
    body = {"type": "error", "error": {"type": kind, "message": "told so"}}
    return answer(status, body, retry_after_ms="1")


@EACH
@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (429, "rate_limit_error", ModelUnavailable),
        (500, "api_error", ModelUnavailable),
        (529, "overloaded_error", ModelUnavailable),
        (400, "invalid_request_error", ModelError),
        (401, "authentication_error", ModelNotReady),
    ],
)
def test_each_refusal_has_its_meaning(provider: str, status: int, kind: str, error: type[ModelError]) -> None:
    run, server = asyncio.run(ended(PROVIDERS[provider][0], say(_status(provider, status, kind))))
    assert type(run.result.error) is error, run.result.error
    assert "told so" in str(run.result.error)
    assert len(server.requests) == 1, "the SDK has tried again by itself"


@EACH
def test_a_busy_server_is_tried_again_and_then_answers(provider: str) -> None:
    make, encode, answer_, _ = PROVIDERS[provider]
    busy = _status(provider, 503, "overloaded_error")
    run, server = asyncio.run(ended(make, say(busy), say(encode(answer_)), retries=1))
    assert run.result.text == TEXT
    assert len(server.requests) == 2


def test_gemini_says_how_long_to_wait_among_its_details() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}]
    error = {"code": 429, "message": "told so", "status": "RESOURCE_EXHAUSTED", "details": details}
    run, _ = asyncio.run(ended(gemini, say(answer(429, {"error": error}))))
    assert isinstance(run.result.error, ModelUnavailable)
    assert run.result.error.retry_after == 7.5


def test_an_error_inside_the_stream_is_told_and_the_words_before_it_are_kept() -> None:
    overloaded = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    events = [*anthropic_stream.ANSWER[:-5], overloaded]
    run, _ = asyncio.run(ended(anthropic, say(chunked(events))))
    assert isinstance(run.result.error, ModelUnavailable)
    assert "Overloaded" in str(run.result.error)
    broken = {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}
    run, _ = asyncio.run(ended(gemini, say(chunked([*gemini_stream.ANSWER[:2], broken]))))
    assert isinstance(run.result.error, ModelUnavailable)
    assert run.result.text == "Once upon "


@EACH
@pytest.mark.parametrize("garbage", [b"SSH-2.0\r\n", stream(["{", "\x00"], chunked=False), stream([3], chunked=False)])
def test_garbage_is_an_error_of_the_model(provider: str, garbage: bytes) -> None:
    run, _ = asyncio.run(ended(PROVIDERS[provider][0], say(garbage)))
    assert isinstance(run.result.error, ModelUnavailable | ModelMisbehaved), repr(run.result.error)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("anthropic:x", "export ANTHROPIC_API_KEY="),
        ("gemini:x", "export GEMINI_API_KEY="),
        ("bedrock:x", "aws configure"),
    ],
)
def test_a_missing_key_is_said_in_words_to_type(choice: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")

    async def main() -> None:
        async with Agent("a", model=choice, retries=0).start("go") as run:
            await run.wait()
        assert isinstance(run.result.error, ModelNotReady), run.result.error
        assert told in str(run.result.error)

    asyncio.run(main())
