"""The Responses API over real sockets: reasoning survives a tool call, and a background reply is cancelled for good."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from safepoint import Agent, ModelSettings, Reasoning, SafePoint, check_history, tool
from safepoint.agent.events import ReasoningStreamed, TextStreamed
from safepoint.agent.model import Finish, ModelRequest
from safepoint.errors import HistoryError, ModelError, ModelUnavailable
from safepoint.history import user_message
from safepoint.models import OpenAIModel, OpenAIResponsesModel, choose_model
from safepoint.models.responses_wire import Reader, check_payload, to_payload
from tests.models import openai_stream
from tests.models.raw_server import RawServer, Say, answer, fall_silent, raw_server, reset, say, stream
from tests.models.responses_stream import ANSWER, BEGIN, CALLS, END, call, event, numbered, state, thought, words

LONG = 20.0
TEXT = "Once upon a time in Łódź."


@tool(effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"sunny in {place}"


def whole(events: list[object]) -> Say:
    return say(stream(events, chunked=True))


def begun(events: list[object]) -> bytes:
    return stream(events, chunked=True).removesuffix(b"0\r\n\r\n")


def agent(server: RawServer, *, background: bool = False, settings: ModelSettings | None = None) -> Agent:
    model = OpenAIResponsesModel("m", base_url=f"{server.address}/v1", background=background)
    return Agent("a", model=model, tools=[look], retries=0, settings=settings)


def kinds(request: dict[str, Any]) -> list[str]:  # Any: JSON
    check_payload(request)
    return [item["type"] for item in request["input"]]


def test_encrypted_reasoning_goes_back_with_its_calls_and_nothing_is_stored() -> None:
    async def main() -> None:
        async with raw_server(whole(CALLS), whole(ANSWER)) as server, asyncio.timeout(LONG):
            result = await agent(server).run("go")
        assert (result.text, result.usage.reasoning_tokens, result.usage.cached_tokens) == (TEXT, 10, 128)
        first, second = server.requests
        assert (first["store"], first["include"]) == (False, ["reasoning.encrypted_content"])
        assert kinds(second) == [
            "message",
            "reasoning",
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
        ]
        summary = [{"type": "summary_text", "text": "Two places."}]
        assert second["input"][1] == {
            "type": "reasoning",
            "id": "rs_0",
            "summary": summary,
            "encrypted_content": "gAAAAB==",
        }
        check_history(result.messages)

    asyncio.run(main())


@pytest.mark.parametrize(("received", "kept"), [(4, False), (8, True)])
def test_reasoning_that_was_cut_half_received_is_dropped_and_whole_reasoning_is_kept(received: int, kept: bool) -> None:
    events = numbered(*BEGIN, *thought(0, "Hm. "), *words(1, "Once ", "upon"), END)

    async def main() -> None:
        async with raw_server(fall_silent(begun(events[: received + 1])), whole(ANSWER)) as server:
            async with asyncio.timeout(LONG), agent(server).start("go") as run:
                async for each in run.events():
                    if isinstance(each, TextStreamed if kept else ReasoningStreamed):
                        run.cancel()
            await server.idle.wait()
            after = await agent(server).run("go on", history=run.result.messages)
        assert after.text == TEXT
        assert ("reasoning" in kinds(server.requests[1])) is kept

    asyncio.run(main())


def test_another_server_gets_nothing_that_this_one_encrypted() -> None:
    async def main() -> None:
        async with raw_server(whole(ANSWER)) as one, raw_server(whole(ANSWER)) as other, asyncio.timeout(LONG):
            chat = raw_server(whole(openai_stream.ANSWER))
            history = (await agent(one).run("go")).messages
            assert [part.kind for part in history[1].parts] == ["reasoning", "text"]
            await agent(other).run("go on", history=history)
            await agent(one).run("go on", history=history)
            async with chat as completions:
                await Agent("a", model=f"{completions.address}/v1#m").run("go on", history=history)
        assert "reasoning" not in kinds(other.requests[0])
        assert "reasoning" in kinds(one.requests[1])
        assert "gAAAAB" not in str(completions.requests)

    asyncio.run(main())


def test_tools_of_the_provider_stand_beside_the_agents_own() -> None:
    settings = ModelSettings(extra={"tools": [{"type": "web_search"}], "reasoning": {"effort": "low"}}, max_tokens=7)

    async def main() -> None:
        search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
        events = numbered(*BEGIN, event("output_item.done", output_index=0, item=search), *words(1, "Found."), END)
        async with raw_server(whole(events)) as server, asyncio.timeout(LONG):
            assert (await agent(server, settings=settings).run("go")).text == "Found."
        (sent,) = server.requests
        assert [each["type"] for each in sent["tools"]] == ["function", "web_search"]
        assert (sent["reasoning"], sent["max_output_tokens"]) == ({"effort": "low"}, 7)

    asyncio.run(main())


def test_stop_sequences_are_refused_because_the_service_has_none() -> None:
    request = ModelRequest((user_message("go"),), settings=ModelSettings(stop=("x",)))
    with pytest.raises(ValueError, match="takes no stop sequences"):
        to_payload("m", request)


@pytest.mark.parametrize(
    ("last", "error", "told"),
    [
        (state("failed", "failed", error={"code": "server_error", "message": "oops"}), ModelUnavailable, "oops"),
        (state("failed", "failed", error={"code": "rate_limit_exceeded", "message": "slow"}), ModelUnavailable, "slow"),
        (state("failed", "failed", error={"code": "invalid_prompt", "message": "no"}), ModelError, "no"),
        ({"type": "error", "code": "server_error", "message": "broken"}, ModelUnavailable, "broken"),
        (state("cancelled", "cancelled"), ModelError, "response.cancelled"),
    ],
)
def test_an_error_inside_the_stream_keeps_the_words_before_it(
    last: dict[str, Any], error: type[ModelError], told: str
) -> None:
    async def main() -> None:
        broken = whole(numbered(*BEGIN, *words(0, "Once "), last))
        async with asyncio.timeout(LONG), raw_server(broken) as server, agent(server).start("go") as run:
            await run.wait()
        assert type(run.result.error) is error
        assert told in str(run.result.error)
        assert run.result.text == "Once "

    asyncio.run(main())


@pytest.mark.parametrize(("why", "reason"), [("max_output_tokens", "max_tokens"), ("content_filter", "refused")])
def test_an_incomplete_response_says_why(why: str, reason: str) -> None:
    reader = Reader()
    for each in (*BEGIN, *words(0, "Once "), state("incomplete", "incomplete", incomplete_details={"reason": why})):
        reader.read(each)
    assert reader.finish() == Finish(reason, response_id="resp_1", response_model="m")  # type: ignore[arg-type]  # one of the two above


def test_arguments_that_come_only_with_the_whole_item_are_heard() -> None:
    reader = Reader()
    first, *_, last = call(0, "a", '{"place": "attic"}')
    chunks = [chunk for each in (*BEGIN, first, last, END) for chunk in reader.read(each)]
    assert "".join(getattr(chunk, "arguments", "") for chunk in chunks) == '{"place": "attic"}'


def broken_rules() -> dict[str, list[dict[str, Any]]]:
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}
    made = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": "x"}
    reasoned: dict[str, Any] = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "g"}
    return {
        "never answered": [said, made],
        "no call has": [said, result],
        "must be answered first": [said, made, said, result],
        "without the item": [said, reasoned, said],
        "nothing encrypted": [said, {**reasoned, "encrypted_content": ""}, made, result],
        "is taken": [said, made, result, made, result],
        "blank": [{**said, "content": [{"type": "input_text", "text": " "}]}],
        "at least one": [],
    }


@pytest.mark.parametrize("rule", broken_rules())
def test_each_broken_rule_of_the_service_is_found(rule: str) -> None:
    with pytest.raises(HistoryError, match=rule):
        check_payload({"input": broken_rules()[rule], "store": False, "include": ["reasoning.encrypted_content"]})


# -- background --------------------------------------------------------------------------------------------------------


def test_a_stop_cancels_a_background_reply_at_the_provider(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "safepoint")

    async def main() -> None:
        cancelled = say(answer(200, {"id": "resp_1", "status": "cancelled"}))
        async with raw_server(fall_silent(begun(ANSWER[:8])), cancelled) as server, asyncio.timeout(LONG):
            async with agent(server, background=True).start("go") as run:
                async for each in run.events():
                    if isinstance(each, TextStreamed):
                        run.cancel()
            assert run.result.stop_reason == "cancelled"
            assert run.result.text == "Once upon "
        assert server.requests[0]["background"] is True
        assert server.requests[0]["store"] is True
        assert server.heads[1].startswith("POST /v1/responses/resp_1/cancel ")
        assert "answered the cancel of resp_1: cancelled" in caplog.text

    asyncio.run(main())


def test_a_provider_that_does_not_answer_the_cancel_holds_the_stop_only_for_its_bound() -> None:
    async def main() -> None:
        async with raw_server(fall_silent(begun(ANSWER[:9])), fall_silent()) as server, asyncio.timeout(LONG):
            async with agent(server, background=True).start("go") as run:
                async for each in run.events():
                    if isinstance(each, TextStreamed):
                        assert await run.cancel(SafePoint.NOW).wait() == "stopped"
            await server.idle.wait()
        assert len(server.requests) == 2

    asyncio.run(main())


def test_a_background_reply_that_has_ended_is_not_cancelled() -> None:
    async def main() -> None:
        async with raw_server(whole(ANSWER)) as server, asyncio.timeout(LONG):
            assert (await agent(server, background=True).run("go")).text == TEXT
        assert len(server.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize("how", [say, reset])
def test_a_background_stream_that_breaks_is_taken_up_where_it_broke(how: Any) -> None:  # Any: two functions
    async def main() -> None:
        acts: list[Say] = [how(begun(ANSWER[:9])), reset(begun([])), whole(ANSWER[9:])]
        async with raw_server(*acts) as server, asyncio.timeout(LONG):
            result = await agent(server, background=True).run("go")
        assert (result.text, result.stop_reason) == (TEXT, "end_turn")
        assert server.heads[1].startswith("GET /v1/responses/resp_1?stream=true&starting_after=8 ")
        assert server.heads[2].startswith("GET /v1/responses/resp_1?stream=true&starting_after=8 ")

    asyncio.run(main())


def test_a_background_stream_that_always_breaks_fails_and_is_cancelled() -> None:
    async def main() -> None:
        acts: list[Say] = [reset(begun(ANSWER[:9]))] + [reset(begun([]))] * 3
        acts.append(say(answer(200, {"status": "cancelled"})))
        async with raw_server(*acts) as server, agent(server, background=True).start("go") as run:
            await run.wait()
        assert isinstance(run.result.error, ModelUnavailable)
        assert [head.split()[0] for head in server.heads] == ["POST", "GET", "GET", "GET", "POST"]

    asyncio.run(main())


def test_reasoning_models_of_openai_are_chosen_with_the_responses_api() -> None:
    for name in ("gpt-5", "gpt-5-mini", "o3", "o4-mini", "gpt-6-luna"):
        assert isinstance(choose_model(f"openai:{name}"), OpenAIResponsesModel)
        assert choose_model(f"openai:{name}").name == f"openai:{name}"
    for name in ("gpt-4o", "gpt-4.1-mini"):
        assert type(choose_model(f"openai:{name}")) is OpenAIModel


def test_a_thought_without_a_seal_is_never_sent() -> None:
    part = Reasoning("hm", None)
    history = (user_message("go"), user_message("on"))
    message = type(history[0])("assistant", (part,))
    assert len(to_payload("m", ModelRequest((history[0], message, history[1])))["input"]) == 2
