"""The parrot makes its speech word by word, and can be seen to read its notices."""

from __future__ import annotations

import asyncio

from safepoint import Agent
from safepoint.cli.echo_model import SPEECH, STOPPED_BEFORE, EchoModel


def test_it_repeats_what_it_heard_and_makes_its_speech_word_by_word() -> None:
    words = 0

    async def count() -> None:
        nonlocal words
        words += 1

    result = asyncio.run(Agent("chat", model=EchoModel(count)).run("hello"))
    assert result.text.strip() == f'You said "hello". {SPEECH}'
    assert words == len(result.text.split())


def test_it_knows_that_it_was_stopped_but_only_the_last_time() -> None:
    async def talk() -> list[str]:
        agent = Agent("chat", model=EchoModel(lambda: asyncio.sleep(0)))
        agent.cancel()  # kept for the first run
        stopped = await agent.run("one")
        second = await agent.run("two", history=stopped.messages)
        third = await agent.run("three", history=second.messages)
        return [second.text, third.text]

    second, third = asyncio.run(talk())
    assert second.startswith(f'{STOPPED_BEFORE} You said "two".')
    assert third.startswith('You said "three".')
