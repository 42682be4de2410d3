"""Every provider of the table: it keeps the rules for models in its own dialect, and its refusals are understood."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from safepoint import Agent, Image, ModelSettings, Run, SafePoint, check_history, tool
from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelError, ModelNotReady, ModelUnavailable
from safepoint.history.parts import Message, Text, ToolCall, ToolResult, user_message
from safepoint.models import OpenAIModel
from safepoint.models.openai_wire import check_payload
from safepoint.models.providers import COMPATIBLE
from safepoint.testing import ModelSetup, Situation, check_model
from safepoint.tools.base import ToolSpec
from tests.models.dialects import DIALECTS
from tests.models.every_byte import Wire, cut_everywhere
from tests.models.openai_stream import DONE, completion, piece
from tests.models.raw_server import RawServer, answer, raw_server, say, stream
from tests.models.test_conformance import Provider

LONG = 20.0
TEXT = "Once upon a time in Łódź."
EACH = pytest.mark.parametrize("name", COMPATIBLE)


@tool(effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"sunny in {place}"


def model(name: str, address: str) -> OpenAIModel:
    return OpenAIModel("m", provider=name, base_url=f"{address}/v1", api_key="k")


async def ended(name: str, server: RawServer) -> Run[None, str]:
    async with Agent("a", model=model(name, server.address), retries=0).start("go") as run:
        await run.wait()
    return run


def test_every_provider_has_its_dialect() -> None:
    assert set(DIALECTS) == set(COMPATIBLE)


@EACH
def test_a_run_with_calls_comes_to_its_end(name: str) -> None:
    words, calls = DIALECTS[name]

    async def main() -> None:
        acts = [say(stream(events, chunked=True)) for events in (calls, words)]
        async with raw_server(*acts) as server, asyncio.timeout(LONG):
            agent = Agent("a", model=model(name, server.address), tools=[look], retries=0)
            result = await agent.run("go")
        assert (result.text, result.error) == (TEXT, None)
        assert [entry.args for entry in result.ledger] == [{"place": "Łódź"}, {"place": "Rome"}]
        assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.estimated) == (200, 40, False)
        assert result.usage.cached_tokens == 128
        check_history(result.messages)
        for request in server.requests:
            check_payload(request)

    asyncio.run(main())


def _wire(name: str, kind: int) -> Wire:
    def check(request: ModelRequest) -> None:
        check_payload(model(name, "http://h").payload(request))

    data = stream(DIALECTS[name][kind], chunked=True)
    text, calls = (TEXT, 0) if kind == 0 else ("Looking.", 2)
    return Wire(lambda address: model(name, address), data, text, calls, check)


@EACH
def test_a_stream_that_is_cut_anywhere_leaves_a_valid_conversation(name: str) -> None:
    for kind in (0, 1):
        whole, cut = asyncio.run(cut_everywhere(_wire(name, kind), 301))
        assert whole >= 1
        assert cut >= 2


@pytest.mark.proof
@EACH
def test_a_stream_that_is_cut_at_every_byte_leaves_a_valid_conversation(name: str) -> None:
    for kind in (0, 1):
        whole, cut = asyncio.run(cut_everywhere(_wire(name, kind), 1))
        print(f"\n{name}, {kind}: {whole + cut} places, {whole} replies whole, {cut} cut")
        assert cut >= 500


@pytest.mark.proof
@EACH
def test_a_providers_model_keeps_the_rules_for_models(name: str) -> None:
    words = DIALECTS[name][0]
    call = [piece(0, '{"place": ', id="a", name="look"), piece(0, '"attic"}'), completion({}, "tool_calls"), DONE]
    end = next(place for place, event in enumerate(words) if "finish_reason': '" in str(event))
    provider = Provider(lambda server: model(name, server.address), words, call, end)

    @asynccontextmanager
    async def make(situation: Situation) -> AsyncGenerator[ModelSetup]:
        async with raw_server(provider.act(situation)) as server:
            yield ModelSetup(provider.model(server), lambda: server.open)

    check_model(make, virtual=False)


# As the providers publish them, or as users have reported them in public.
REFUSALS: list[tuple[str, int, object, type[ModelError], str]] = [
    (
        "groq",
        429,
        {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}},
        ModelUnavailable,
        "Rate",
    ),
    ("groq", 498, {"error": {"message": "Flex tier capacity exceeded"}}, ModelError, "Flex"),
    ("mistral", 401, {"detail": "Unauthorized"}, ModelNotReady, "MISTRAL_API_KEY|api_key"),
    ("mistral", 429, {"object": "error", "message": "Requests rate limit exceeded"}, ModelUnavailable, "Requests rate"),
    ("mistral", 422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "x"]}]}, ModelError, "extra_forbidden"),
    ("deepseek", 402, {"error": {"message": "Insufficient Balance", "type": "unknown_error"}}, ModelError, "Balance"),
    ("deepseek", 503, {"error": {"message": "Service is busy"}}, ModelUnavailable, "busy"),
    ("openrouter", 402, {"error": {"code": 402, "message": "Insufficient credits"}}, ModelError, "credits"),
    ("openrouter", 502, {"error": {"code": 502, "message": "Provider returned error"}}, ModelUnavailable, "Provider"),
    ("together", 429, {"error": {"message": "rate", "type": "model_rate_limit"}}, ModelUnavailable, "rate"),
    ("fireworks", 404, {"error": {"object": "error", "message": "Model not found"}}, ModelError, "not found"),
    ("xai", 400, {"code": "invalid argument", "error": "Incorrect API key provided: k."}, ModelNotReady, "Incorrect"),
    ("cerebras", 429, {"message": "Tokens per minute limit exceeded", "code": "x"}, ModelUnavailable, "per minute"),
    ("nvidia", 404, {"status": 404, "title": "Not Found", "detail": "Function not found"}, ModelError, "not found"),
    ("huggingface", 400, {"error": "Model not supported by any provider"}, ModelError, "not supported"),
    ("github", 413, {"error": {"code": "tokens_limit_reached", "message": "Request too large"}}, ModelError, "large"),
    (
        "moonshotai",
        429,
        {"error": {"type": "exceeded_current_quota_error", "message": "suspended: check your plan"}},
        ModelError,
        "suspended",
    ),
    ("moonshotai", 429, {"error": {"type": "engine_overloaded_error", "message": "busy"}}, ModelUnavailable, "busy"),
    ("zai", 429, {"error": {"code": "1113", "message": "Insufficient balance"}}, ModelError, "balance"),
    ("zai", 429, {"error": {"code": "1302", "message": "High concurrency"}}, ModelUnavailable, "concurrency"),
    ("qwen", 400, {"error": {"code": "Arrearage", "message": "Access denied: good standing"}}, ModelError, "standing"),
    ("qwen", 401, {"error": {"code": "invalid_api_key", "message": "Incorrect API key"}}, ModelNotReady, "Incorrect"),
    ("azure", 404, {"error": {"code": "DeploymentNotFound", "message": "no deployment"}}, ModelError, "deployment"),
    ("llamacpp", 503, {"error": {"code": 503, "message": "Loading model"}}, ModelUnavailable, "Loading"),
    ("llamacpp", 400, {"error": {"code": 400, "message": "exceeds the context size"}}, ModelError, "context"),
    ("vllm", 400, {"error": {"message": "maximum context length", "code": 400}}, ModelError, "context"),
    ("vllm", 404, {"object": "error", "message": "The model `m` does not exist.", "code": 404}, ModelError, "exist"),
    ("ollama", 404, {"error": {"message": 'model "m" not found, try pulling it first'}}, ModelError, "pulling"),
    ("lmstudio", 404, {"error": "Model not loaded"}, ModelError, "not loaded"),
]


@pytest.mark.parametrize(
    ("name", "status", "body", "error", "told"), REFUSALS, ids=[f"{row[0]} {row[1]} {row[4]}" for row in REFUSALS]
)
def test_each_published_refusal_has_its_meaning(
    name: str, status: int, body: object, error: type[ModelError], told: str
) -> None:
    async def main() -> None:
        async with raw_server(say(answer(status, body))) as server, asyncio.timeout(LONG):
            run = await ended(name, server)
        assert type(run.result.error) is error, run.result.error
        assert re.search(told, str(run.result.error))
        assert len(server.requests) == 1, "the SDK has tried again by itself"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("openrouter", "error"), ("zai", "network_error"), ("deepseek", "insufficient_system_resource")],
)
def test_a_reply_that_the_server_broke_off_is_no_answer(name: str, reason: str) -> None:
    async def main() -> None:
        events = [completion({"content": "Once "}), completion({}, reason), DONE]
        async with raw_server(say(stream(events, chunked=True))) as server, asyncio.timeout(LONG):
            run = await ended(name, server)
        assert isinstance(run.result.error, ModelUnavailable)
        assert run.result.text == "Once "

    asyncio.run(main())


def test_comments_inside_a_stream_are_no_events() -> None:
    async def main() -> None:
        whole = stream(DIALECTS["openrouter"][0], chunked=False)
        data = whole.replace(b"\r\n\r\n", b"\r\n\r\n: OPENROUTER PROCESSING\n\n", 1)
        async with raw_server(say(data)) as server, asyncio.timeout(LONG):
            assert (await Agent("a", model=model("openrouter", server.address)).run("go")).text == TEXT

    asyncio.run(main())


# -- Mistral, which refuses more than the others -----------------------------------------------------------------------

_KNOWN = {"model", "messages", "stream", "tools", "tool_choice", "temperature", "max_tokens", "stop", "random_seed"}
_ID = re.compile(r"[A-Za-z0-9]{9}")


def mistral_fault(request: dict[str, Any]) -> str | None:  # Any: JSON
    """What Mistral would refuse in this request, in its own words."""
    if strangers := set(request) - _KNOWN:
        return f"extra_forbidden: {sorted(strangers)}"
    before = ""
    for message in request["messages"]:
        role = message["role"]
        if role == "user" and before == "tool":
            return "Unexpected role 'user' after role 'tool'"
        if strangers := set(message) - {"role", "content", "tool_calls", "tool_call_id", "name", "prefix"}:
            return f"extra_forbidden: {sorted(strangers)}"
        ids = [call["id"] for call in message.get("tool_calls", [])] + [message.get("tool_call_id", "a" * 9)]
        if not all(_ID.fullmatch(id) for id in ids):
            return "Tool call id has to be defined and be 9 characters of a-z, A-Z, 0-9"
        if role == "assistant" and not message.get("content") and not message.get("tool_calls"):
            return "Assistant message must have either content or tool_calls, but not none."
        before = role
    return None if before in ("user", "tool") else f"Expected last role User or Tool but got {before}"


@asynccontextmanager
async def strict_mistral(*replies: list[Any]) -> AsyncGenerator[RawServer]:  # Any: JSON
    left = list(replies)

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = mistral_fault(server.requests[-1])
        writer.write(answer(400, {"message": told}) if told else stream(left.pop(0), chunked=True))
        await writer.drain()

    async with raw_server(act) as server:
        yield server


def test_mistral_takes_a_run_that_was_stopped_after_its_tools_and_one_that_another_provider_began() -> None:
    words, calls = DIALECTS["mistral"]
    long = "call_" + "x" * 60
    foreign = [
        user_message("go"),
        Message("assistant", (ToolCall(long, "look", {"place": "Rome"}),)),
        Message("tool", (ToolResult(long, "look", "sunny", parts=(Image(url="https://example.org/a.png"),)),)),
    ]

    async def main() -> None:
        async with strict_mistral(calls, words, words) as server, asyncio.timeout(LONG):
            settings = ModelSettings(max_tokens=100)
            agent = Agent("a", model=model("mistral", server.address), tools=[look], retries=0, settings=settings)
            run = agent.start("go")
            run.cancel(SafePoint.AFTER_TOOLS)
            async with run:
                await run.wait()
            after = await agent.run("and now?", history=run.result.messages)
            assert (after.text, after.error) == (TEXT, None)
            other = await agent.run("and now?", history=[*foreign, Message("assistant", (Text("Sunny."),))])
            assert (other.text, other.error) == (TEXT, None)

    asyncio.run(main())


def test_the_strict_server_refuses_what_the_others_get() -> None:
    call = ToolCall("call_1", "look", {"place": "Rome"})
    history = (
        user_message("go"),
        Message("assistant", (call,)),
        Message("tool", (ToolResult("call_1", "look", "sunny"),)),
        user_message("and now?"),
    )
    assert mistral_fault(model("vllm", "http://h").payload(ModelRequest(history))) is not None
    assert mistral_fault(model("mistral", "http://h").payload(ModelRequest(history))) is None


# -- choices of tools --------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("choice", ["auto", "none", "required", "look"])
def test_a_choice_of_tools_is_obeyed_in_other_words_or_refused(name: str, choice: str) -> None:
    tools = tuple(ToolSpec(each, "Do it.", {"type": "object"}) for each in ("look", "other"))
    request = ModelRequest((user_message("go"),), None, tools, ModelSettings(tool_choice=choice))
    kinds = COMPATIBLE[name].quirks.tool_choices
    obeys = (choice if choice != "look" else "name") in kinds
    if not obeys and (choice == "required" or (choice == "look" and "required" not in kinds)):
        with pytest.raises(ValueError, match=f"{name}:m can't be made to call a tool"):
            model(name, "http://h").payload(request)
        return
    payload = model(name, "http://h").payload(request)
    if obeys:
        named = {"type": "function", "function": {"name": "look"}}
        assert payload["tool_choice"] == (named if choice == "look" else choice)
    elif choice == "look":
        assert [each["function"]["name"] for each in payload["tools"]] == ["look"]
        assert payload["tool_choice"] == "required"
    else:
        assert "tool_choice" not in payload
        assert ("tools" in payload) is (choice == "auto")
