"""A real llama.cpp server: NOW closes the connection, and the server really stops computing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from safepoint import Agent, CancelToken, ModelSettings, Run, RunResult, check_history
from safepoint.models.llama import LlamaServer
from tests.models.llama_probe import Probe

# Told about the progress of a prompt, the server writes after every batch, and so notices that nobody reads any more.
ENDLESS = ModelSettings(extra={"ignore_eos": True, "return_progress": True})
SOON = 1_000
"""Batches that may still be computed until the server's own threads have noticed a stop; each stream has 4,000 to go.

Counted in batches and not in seconds, because a busy machine makes seconds long. Undisturbed it is one batch or none; a
busy machine lets one thread of the server compute 1,600 batches a second while the thread that has to notice waits.
"""
QUIET = 0.3
"""Seconds of looking whether it still computes."""

Test = Callable[["Server"], Coroutine[Any, Any, None]]


class Server:
    def __init__(self, address: str, probe: Probe) -> None:
        self.address = address
        self.probe = probe

    def agent(self, settings: ModelSettings = ENDLESS) -> Agent:
        return Agent("writer", model=f"{self.address}/v1#local", settings=settings)


def with_server(test: Test) -> Callable[[LlamaServer], None]:
    @wraps(test)
    def run(llama: LlamaServer) -> None:
        async def body() -> None:
            address = await llama.address()
            assert llama.pid is not None
            server = Server(address, Probe(address, llama.pid))
            await server.probe.until_busy(0)
            await test(server)

        asyncio.run(body())

    del run.__dict__["__wrapped__"]  # pytest would look for the test's own argument
    return run


async def words(run: Run[None, str], count: int) -> None:
    """Wait until so many pieces have come."""
    left = count
    async for _ in run.text():
        left -= 1
        if not left:
            return


async def many(server: Server, count: int) -> list[RunResult]:
    """Start so many runs, and stop them all once each has a slot."""
    agent, token = server.agent(), CancelToken()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent.run("go on", token=token)) for _ in range(count)]
        await server.probe.until_busy(count)
        token.cancel()
    return [task.result() for task in tasks]


@with_server
async def test_now_in_the_middle_of_a_stream_frees_the_slot_and_stops_the_computing(server: Server) -> None:
    async with server.agent().start("tell me a story") as run:
        await words(run, 5)
        assert await run.cancel().wait() == "stopped"
        asked = await server.probe.computed()
        await server.probe.until_busy(0)
        computed = await server.probe.computed()
        assert computed < asked + SOON
        assert await server.probe.cpu_seconds_in(QUIET) < QUIET / 5
        assert await server.probe.computed() == computed
    assert run.result.text
    assert run.result.usage.estimated
    check_history(run.result.messages)
    assert server.probe.connections() == 0


@with_server
async def test_left_alone_it_would_have_gone_on(server: Server) -> None:
    """What the test above measures is not zero by itself."""
    async with server.agent().start("tell me a story") as run:
        await words(run, 5)
        await server.probe.until_computed(await server.probe.computed() + SOON)
        assert await server.probe.busy() == 1
        run.cancel()


@with_server
async def test_32_of_32_streams_are_cancelled_at_once(server: Server) -> None:
    results = await many(server, 32)
    asked = await server.probe.computed()
    await server.probe.until_busy(0)
    assert await server.probe.computed() < asked + SOON
    assert {result.stop_reason for result in results} == {"cancelled"}
    for result in results:
        check_history(result.messages)
    assert server.probe.connections() == 0


@with_server
async def test_16_of_32_streams_are_cancelled_and_the_others_finish(server: Server) -> None:
    agent = server.agent(ModelSettings(max_tokens=400, extra={"ignore_eos": True}))
    endless, token = server.agent(), CancelToken()
    async with asyncio.TaskGroup() as group:
        cut = [group.create_task(endless.run("go on", token=token)) for _ in range(16)]
        await server.probe.until_busy(16)
        others = [group.create_task(agent.run("go on")) for _ in range(16)]
        await server.probe.until_busier_than(16)  # not all at once: on a busy machine the first is done before the last
        token.cancel()
    assert {task.result().stop_reason for task in cut} == {"cancelled"}
    for task in others:
        assert task.result().stop_reason == "max_tokens"
        assert task.result().usage.output_tokens == 400
        assert not task.result().usage.estimated


async def cancelled_streams_leave_no_connection_behind(server: Server, waves: int) -> None:
    for wave in range(waves):
        results = await many(server, 25)
        assert {result.stop_reason for result in results} == {"cancelled"}, f"wave {wave}"
    assert server.probe.connections() == 0
    await server.probe.until_busy(0)


@with_server
async def test_cancelled_streams_leave_no_connection_behind(server: Server) -> None:
    await cancelled_streams_leave_no_connection_behind(server, 4)


@pytest.mark.proof
@with_server
async def test_500_cancelled_streams_leave_no_connection_behind(server: Server) -> None:
    await cancelled_streams_leave_no_connection_behind(server, 20)


@with_server
async def test_now_while_the_prompt_is_read_stops_the_reading(server: Server) -> None:
    before = await server.probe.counter("prompt_tokens_total")
    async with server.agent().start("abc " * 600) as run:
        await server.probe.until_busy(1)
        assert await run.cancel().wait() == "stopped"
        await server.probe.until_busy(0)
    assert await server.probe.counter("prompt_tokens_total") - before < 3500
    assert run.result.text == ""
    assert run.result.usage.input_tokens > 0
    check_history(run.result.messages)


@with_server
async def test_the_next_message_after_a_stop_is_answered_on_the_same_agent(server: Server) -> None:
    agent = server.agent(ModelSettings(max_tokens=200, extra={"ignore_eos": True}))
    async with agent.start("tell me a story") as run:
        await words(run, 3)
        run.cancel(reason="enough")
    again = await agent.run("go on", history=run.result.messages)
    assert again.stop_reason == "max_tokens"
    assert again.usage.output_tokens == 200


@pytest.mark.parametrize("turns", [1, 2])
def test_one_agent_serves_several_loops(llama: LlamaServer, turns: int) -> None:
    address = asyncio.run(llama.address())
    agent = Agent("writer", model=f"{address}/v1#local", settings=ModelSettings(max_tokens=3))
    for _ in range(turns):
        assert agent.run_sync("hello").usage.output_tokens <= 3
