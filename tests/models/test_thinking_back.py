"""Thinking goes back to the server that thought it, and to no other, also when the run was stopped in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, ModelSettings, Reasoning, SafePoint, check_history, tool
from safepoint.agent.events import ReasoningStreamed, TextStreamed
from safepoint.models.openai import OpenAIModel
from safepoint.models.openai_wire import check_payload
from tests.models.openai_stream import ANSWER, CALLS
from tests.models.raw_server import RawServer, raw_server, say, stream
from tests.models.thinking_server import Reply, thinking_server, thinks_and_calls, thinks_and_says

TWO_CALLS: list[Reply] = [
    thinks_and_calls("first Rome", "c1", "Rome"),
    thinks_and_calls("", "c2", "Łódź"),
    thinks_and_says("both are sunny", "Sunny."),
]


@tool(effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"sunny in {place}"


def agent(server: RawServer, *, settings: ModelSettings | None = None) -> Agent:
    return Agent("a", model=f"{server.address}/v1#deepseek", tools=[look], retries=0, settings=settings)


def sent_back(server: RawServer) -> list[list[Any]]:  # Any: a str, or None
    """Of each request, what its assistant messages carry."""
    for request in server.requests:
        check_payload(request)
    return [
        [message.get("reasoning_content") for message in request["messages"] if message["role"] == "assistant"]
        for request in server.requests
    ]


def test_a_run_with_calls_is_carried_to_its_end_and_the_next_message_is_answered_too() -> None:
    async def main() -> None:
        async with thinking_server(*TWO_CALLS, thinks_and_says("hm", "Yes."), thinks_and_says("", "No.")) as server:
            first = await agent(server).run("How is the weather?")
            second = await agent(server).run("Really?", history=first.messages)
            third = await agent(server).run("Really?", history=second.messages)
        assert [first.text, second.text, third.text] == ["Sunny.", "Yes.", "No."]
        turn = ["firstRome", "", "botharesunny"]
        assert sent_back(server) == [[], turn[:1], turn[:2], turn, [*turn, None]]
        check_history(third.messages)

    asyncio.run(main())


@pytest.mark.parametrize(("received", "words"), [(1, "one"), (2, "onetwo"), (3, "onetwoHalf of it.")])
def test_a_run_that_was_cut_inside_its_second_reply_can_go_on(received: int, words: str) -> None:
    cut = thinks_and_says("one two", "Half of it.")
    heard: list[str] = []

    async def main() -> None:
        replies = [TWO_CALLS[0], cut, thinks_and_says("again", "Whole.")]
        async with thinking_server(*replies, silent_after=received) as server:
            async with agent(server).start("go") as run:
                async for event in run.events():
                    if isinstance(event, ReasoningStreamed | TextStreamed) and event.step == 2:
                        heard.append(event.text)
                        if "".join(heard) == words:
                            run.cancel()
            after = await agent(server).run("Go on.", history=run.result.messages)
        assert (run.result.stop_reason, after.text) == ("cancelled", "Whole.")

    asyncio.run(main())


def test_a_run_that_stopped_after_its_tools_is_resumed() -> None:
    async def main() -> None:
        async with thinking_server(*TWO_CALLS) as server:
            run = agent(server).start("go")
            run.cancel(SafePoint.AFTER_TOOLS)
            async with run:
                await run.wait()
            assert run.result.checkpoint is not None
            resumed = await agent(server).resume(run.result.checkpoint)
        assert resumed.text == "Sunny."

    asyncio.run(main())


def test_a_server_gets_back_nothing_that_another_one_thought() -> None:
    async def main() -> None:
        async with (
            thinking_server(TWO_CALLS[0], TWO_CALLS[2]) as thinker,
            raw_server(say(stream(CALLS, chunked=True)), say(stream(ANSWER, chunked=True))) as plain,
        ):
            history = (await agent(thinker).run("go")).messages
            await agent(plain).run("go on", history=history)
        assert sent_back(plain) == [[None, None], [None, None, None]]

    asyncio.run(main())


def test_a_server_that_calls_its_thinking_otherwise_gets_none_back() -> None:
    """Only `reasoning_content` is known to be wanted; some servers refuse the other name when it comes in."""
    renamed: Reply = [
        {"choices": [{"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None}]},
        *CALLS,
    ]

    async def main() -> None:
        async with raw_server(say(stream(renamed, chunked=True)), say(stream(ANSWER, chunked=True))) as server:
            result = await agent(server).run("go")
        assert "reasoning" not in str(server.requests[1]["messages"])
        thought = result.messages[1].parts[0]
        assert thought == Reasoning("hm")

    asyncio.run(main())


def test_the_seal_names_the_server_and_none_of_its_secrets() -> None:
    async def main() -> None:
        async with thinking_server(*TWO_CALLS) as server:
            address = f"http://user:secret@127.0.0.1:{server.port}/v1?key=secret"
            result = await Agent("a", model=OpenAIModel("m", base_url=address), tools=[look]).run("go")
        assert result.text == "Sunny."
        assert "secret" not in repr(result.messages)

    asyncio.run(main())
