"""Servers that behave badly, over real sockets: nothing hangs, nothing is lost, and what can be tried again is."""

from __future__ import annotations

import asyncio

import pytest

from safepoint import Agent, ModelSettings, Run, SafePoint, check_history
from safepoint.agent.events import RetryScheduled
from safepoint.errors import ModelError, ModelMisbehaved, ModelNotReady, ModelUnavailable
from safepoint.models.openai import OpenAIModel
from tests.models.openai_stream import ANSWER, completion
from tests.models.raw_server import RawServer, answer, fall_silent, raw_server, reset, say, stream

WHOLE = stream(ANSWER, chunked=True)
HALF = stream(ANSWER[:3], chunked=True).removesuffix(b"0\r\n\r\n")
TEXT = "Once upon a time in Łódź."
LONG = 20.0
"""Seconds in which everything here must be over by far."""


def agent(server: RawServer, *, retries: int = 0, settings: ModelSettings | None = None) -> Agent:
    return Agent("a", model=f"{server.address}/v1#m", retries=retries, settings=settings)


async def ended(server: RawServer, *, retries: int = 0, settings: ModelSettings | None = None) -> Run[None, str]:
    async with asyncio.timeout(LONG), agent(server, retries=retries, settings=settings).start("go") as run:
        await run.wait()
    check_history(run.result.messages)
    return run


async def closed(server: RawServer) -> None:
    """Wait until the server has seen the end of every connection."""
    async with asyncio.timeout(LONG):
        await server.idle.wait()


async def _whole() -> None:
    async with raw_server(say(WHOLE)) as server:
        run = await ended(server)
    assert (run.result.text, run.result.stop_reason) == (TEXT, "end_turn")
    assert (run.result.usage.cached_tokens, run.result.usage.reasoning_tokens) == (64, 5)
    assert server.requests[0]["stream"] is True


def test_a_whole_answer_is_heard_and_counted() -> None:
    asyncio.run(_whole())


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", HALF], ids=["nothing", "half a head", "half a stream"])
def test_now_cuts_the_wait_for_a_server_that_says_nothing_more(said: bytes) -> None:
    async def main() -> None:
        reached = asyncio.Event()
        async with raw_server(fall_silent(said, reached)) as server, asyncio.timeout(LONG):
            async with agent(server).start("go") as run:
                await reached.wait()
                if said == HALF:
                    await anext(aiter(run.text()))
                asked = asyncio.get_running_loop().time()
                assert await run.cancel().wait() == "stopped"
                assert asyncio.get_running_loop().time() - asked < 1
            await closed(server)
        assert run.result.text == ("Once upon " if said == HALF else "")
        check_history(run.result.messages)

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", HALF], ids=["nothing", "half a stream"])
def test_silence_ends_when_it_was_told_to(said: bytes) -> None:
    async def main() -> None:
        settings = ModelSettings(timeout_first_token=0.2, timeout_idle=0.2)
        async with raw_server(fall_silent(said)) as server:
            run = await ended(server, settings=settings)
            await closed(server)
        assert str(run.result.error) == "the model was silent for 0.2 s"
        assert isinstance(run.result.error, ModelUnavailable)

    asyncio.run(main())


@pytest.mark.parametrize("cut", [say, reset])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_stream_that_is_closed_in_the_middle_of_a_frame_keeps_its_words(cut: object, chunked: bool) -> None:
    async def main() -> None:
        data = stream([*ANSWER[:3], '{"choices": [{"del'], chunked=chunked)[:-5]
        async with raw_server(say(data) if cut is say else reset(data)) as server:
            run = await ended(server)
        assert (run.result.text, run.result.stop_reason) == ("Once upon ", "error")
        assert isinstance(run.result.error, ModelError)

    asyncio.run(main())


GARBAGE = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no JSON": stream(["{"], chunked=False),
    "no text": stream([], chunked=False) + b"data: \xff\xfe\n\n",
    "no object": stream([7, "null", "[1, 2]"], chunked=False),
    "another format": stream([{"type": "message_start"}, {"candidates": []}], chunked=False),
    "nothing": stream([], chunked=False),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_an_error_of_the_model(kind: str) -> None:
    async def main() -> None:
        async with raw_server(say(GARBAGE[kind])) as server:
            run = await ended(server)
        expected = ModelUnavailable if kind == "no HTTP" else ModelMisbehaved
        assert isinstance(run.result.error, expected), run.result.error

    asyncio.run(main())


def test_429_is_tried_again_when_the_server_wished() -> None:
    async def main() -> None:
        busy = answer(429, {"error": {"message": "slow down", "type": "rate_limit_error"}}, retry_after_ms="30")
        async with raw_server(say(busy), say(WHOLE)) as server:
            run = await ended(server, retries=1)
        assert run.result.text == TEXT
        waits = [event for event in run.kept_events() if isinstance(event, RetryScheduled)]
        assert [event.delay for event in waits] == [0.03]
        assert len(server.requests) == 2

    asyncio.run(main())


def test_500_is_tried_again_and_then_answered() -> None:
    async def main() -> None:
        broken = answer(500, {"error": {"message": "oops"}}, retry_after_ms="1")
        async with raw_server(say(broken), say(broken), say(WHOLE)) as server:
            run = await ended(server, retries=2)
        assert run.result.text == TEXT
        assert len(server.requests) == 3

    asyncio.run(main())


def test_nothing_is_tried_again_after_a_cancel() -> None:
    async def main() -> None:
        busy = answer(429, {"error": {"message": "slow down"}}, retry_after="20")
        async with raw_server(say(busy), say(WHOLE)) as server, agent(server, retries=5).start("go") as run:
            async for event in run.events():
                if isinstance(event, RetryScheduled):
                    assert event.delay == 20
                    run.cancel()
        assert run.result.stop_reason == "cancelled"
        assert len(server.requests) == 1

    asyncio.run(main())


def test_once_a_word_has_come_nothing_is_tried_again() -> None:
    async def main() -> None:
        async with raw_server(say(HALF), say(WHOLE)) as server:
            run = await ended(server, retries=5)
        assert (run.result.text, run.result.stop_reason) == ("Once upon ", "error")
        assert len(server.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "body", "error", "told"),
    [
        (401, {"error": {"message": "Incorrect API key"}}, ModelNotReady, "The key was refused"),
        (404, {"error": {"message": "no model m"}}, ModelError, "answered 404: no model m"),
        (400, {"error": {"message": "too long"}}, ModelError, "answered 400: too long"),
        (429, {"error": {"message": "pay", "code": "insufficient_quota"}}, ModelError, "answered 429: pay"),
        (503, {"error": {"message": "overloaded"}}, ModelUnavailable, "answered 503: overloaded"),
        (418, "teapot", ModelError, "answered 418"),
    ],
)
def test_each_refusal_has_its_meaning(status: int, body: object, error: type[ModelError], told: str) -> None:
    async def main() -> None:
        async with raw_server(say(answer(status, body))) as server:
            run = await ended(server)
        assert type(run.result.error) is error
        assert told in str(run.result.error)
        assert len(server.requests) == 1, "the SDK has tried again by itself"

    asyncio.run(main())


def test_an_error_inside_the_stream_is_told_and_the_words_before_it_are_kept() -> None:
    async def main() -> None:
        broken = {"error": {"message": "The server had an error", "type": "server_error"}}
        async with raw_server(say(stream([*ANSWER[:3], broken], chunked=True))) as server:
            run = await ended(server)
        assert isinstance(run.result.error, ModelUnavailable)
        assert run.result.text == "Once upon "

    asyncio.run(main())


def test_a_server_that_is_not_there_can_be_tried_again() -> None:
    async def main() -> None:
        async with raw_server(say(b"")) as server:
            pass
        run = await ended(server)
        assert isinstance(run.result.error, ModelUnavailable)
        assert "the connection to" in str(run.result.error)

    asyncio.run(main())


def test_a_complete_reply_whose_stream_never_ends_is_complete() -> None:
    async def main() -> None:
        data = stream([completion({"content": "Yes."}), completion({}, "stop")], chunked=True)
        async with raw_server(fall_silent(data.removesuffix(b"0\r\n\r\n"))) as server:
            run = await ended(server)
        assert (run.result.text, run.result.stop_reason) == ("Yes.", "end_turn")
        assert run.result.usage.estimated

    asyncio.run(main())


def test_a_missing_key_is_said_in_words_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    async def main() -> None:
        async with Agent("a", model="openai:gpt-5").start("go") as run:
            await run.wait()
        assert isinstance(run.result.error, ModelNotReady)
        assert "export OPENAI_API_KEY=" in str(run.result.error)

    asyncio.run(main())


def test_a_key_for_openai_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    async def main() -> None:
        async with raw_server(say(WHOLE)) as server:
            await ended(server)
            assert "sk-secret" not in server.heads[0]
            own = OpenAIModel("m", base_url=f"{server.address}/v1", api_key="mine")
            await Agent("a", model=own).run("go")
            assert "Bearer mine" in server.heads[1]

    asyncio.run(main())


def test_force_leaves_no_connection_either() -> None:
    async def main() -> None:
        reached = asyncio.Event()
        async with raw_server(fall_silent(HALF, reached)) as server:
            async with agent(server).start("go") as run:
                await reached.wait()
                await anext(aiter(run.text()))
                assert await run.cancel(SafePoint.FORCE).wait() == "stopped"
            await closed(server)

    asyncio.run(main())
