"""Who comes after the end of a run hears all the words that were streamed, whole or cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from safepoint import Agent, Run
from safepoint.agent.events import Event, ModelCallEnded
from safepoint.errors import ModelUnavailable, UsageError
from safepoint.testing import ScriptedModel, fail, say, stall
from safepoint.testing.models import Act
from tests.virtual import virtual


@pytest.mark.parametrize("end", [stall(), fail(ModelUnavailable("gone"))], ids=["cut", "failed"])
def test_the_words_of_a_reply_that_is_not_whole_are_told_to_a_late_reader(end: Act) -> None:
    async def read_late() -> tuple[str, list[ModelCallEnded]]:
        async with Agent("a", model=ScriptedModel([say("Once upon a time"), end])).start("go") as run:
            async for _ in run.text():
                run.cancel()
                break
        late = "".join([piece async for piece in run.text()])
        return late, [event for event in run.kept_events() if isinstance(event, ModelCallEnded)]

    late, (ended,) = asyncio.run(read_late())
    assert late == "Once upon a time"
    assert ended.message is not None
    assert [part.incomplete for part in ended.message.parts if part.kind == "text"] == [True]
    assert not ended.complete


def test_a_reply_that_was_cut_before_its_first_word_has_no_message() -> None:
    async def run_silent() -> list[ModelCallEnded]:
        reached = asyncio.Event()
        async with Agent("a", model=ScriptedModel(stall(on_reached=reached.set))).start("go") as run:
            await reached.wait()
            run.cancel()
        return [event for event in run.kept_events() if isinstance(event, ModelCallEnded)]

    (ended,) = asyncio.run(run_silent())
    assert ended.message is None


@virtual
async def test_a_second_task_at_one_reader_is_refused_and_the_first_goes_on() -> None:
    """Otherwise one of them would wait for ever."""
    reached = asyncio.Event()
    agent = Agent("a", model=ScriptedModel([say("one"), stall(reached.set)], repeat=True))
    async with agent.start("go") as run:
        await _refuses_a_second(run.events(), run, reached)
    reached.clear()
    async with agent.stream("go") as stream:
        await _refuses_a_second(stream, stream.run, reached)


async def _refuses_a_second(reader: AsyncIterator[Event], run: Run[None, str], reached: asyncio.Event) -> None:
    async def read_all() -> list[str]:
        return [type(event).__name__ async for event in reader]

    first = asyncio.create_task(read_all())
    await reached.wait()
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match=r"call run.events\(\) once for each reader"):
        await anext(reader)
    assert not run.ended
    run.cancel()
    assert (await first)[-1] == "RunEnded"
