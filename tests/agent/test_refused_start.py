"""A run that was refused is an error once, and not also a handle that somebody forgot."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from safepoint import Agent, CancelToken
from safepoint.errors import TokenCancelled
from safepoint.testing import ScriptedModel


def test_a_run_that_its_token_refuses_does_not_warn_of_a_forgotten_handle() -> None:
    agent = Agent("a", model=ScriptedModel())
    token = CancelToken()
    token.cancel()

    async def enter() -> None:
        async with agent.start("go", token=token):
            pass

    async def read() -> None:
        async for _ in agent.stream("go", token=token):
            pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for refused in (lambda: agent.run("go", token=token), enter, read):
            with pytest.raises(TokenCancelled):
                asyncio.run(refused())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_handle_that_was_never_entered_still_warns() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Agent("a", model=ScriptedModel()).start("go")
        gc.collect()
    assert ["was never entered" in str(warning.message) for warning in caught] == [True]
