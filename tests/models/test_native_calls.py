"""Weights whose chat template knows tools: calls are the model's own, made and read by a real llama.cpp server."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from safepoint import Agent, Budget, ModelSettings, check_history, tool
from safepoint.errors import UsageError
from safepoint.history import user_message
from safepoint.models import LlamaOptions, LocalModel, ModelRequest, ToolSpec
from safepoint.models.local import shared_server
from safepoint.models.local_wire import MAX_TOKENS
from tests.models.llama_probe import Probe
from tests.models.random_weights import TOOL_TEMPLATE

WEATHER = ToolSpec(
    "weather", "Tell the weather.", {"type": "object", "properties": {"day": {"type": "boolean"}}, "required": ["day"]}
)
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {}})
REQUEST = ModelRequest((user_message("Hello!"),), None, (WEATHER, ADD))


@pytest.fixture(scope="module")
def native(caller: Path) -> Generator[LocalModel]:
    yield LocalModel(weights=caller)
    shared_server(caller).close()


def test_a_capable_model_calls_tools_that_no_word_points_to_and_calls_again_after_a_result(native: LocalModel) -> None:
    ran: list[bool] = []

    @tool(effect="pure")
    async def weather(day: bool) -> str:
        """Tell the weather."""
        ran.append(day)
        return "sunny"

    async def main() -> None:
        agent = Agent("a", model=native, tools=[weather], budget=Budget(steps=3))
        result = await agent.run("Hello!")
        check_history(result.messages)
        assert result.stop_reason == "max_steps"
        assert [message.role for message in result.messages][:5] == ["user", "assistant", "tool", "assistant", "tool"]
        assert {entry.state for entry in result.ledger} == {"finished"}

    asyncio.run(main())
    assert len(ran) >= 3


def test_a_choice_is_kept_by_the_server(native: LocalModel) -> None:
    @tool(effect="pure")
    async def weather(day: bool) -> str:
        """Tell the weather."""
        return "sunny"

    @tool(effect="pure")
    async def add() -> str:
        """Add nothing."""
        return "0"

    async def names(choice: str) -> set[str]:
        settings = ModelSettings(tool_choice=choice, max_tokens=600)
        agent = Agent("a", model=native, tools=[weather, add], settings=settings, budget=Budget(steps=1))
        async with agent.start("Hello!") as run:
            await run.wait()
        return {entry.name for entry in run.result.ledger}

    async def main() -> None:
        assert await names("add") == {"add"}
        assert await names("weather") == {"weather"}
        assert await names("required")
        assert await names("none") == set()

    asyncio.run(main())


def test_now_stops_a_call_that_is_being_written(native: LocalModel, caller: Path) -> None:
    """The schema has no end, so that the call has none either."""

    @tool(effect="pure")
    async def note(words: list[str]) -> str:
        """Note words."""
        return "noted"

    async def main() -> None:
        agent = Agent("a", model=native, tools=[note], settings=ModelSettings(extra={"ignore_eos": True}))
        server = shared_server(caller)
        probe = Probe(await native.prepare(), server.pid or 0)
        async with agent.start("Hello!") as run:
            await probe.until_busy(1)
            assert await run.cancel().wait() == "stopped"
            await probe.until_busy(0)
        assert run.result.ledger == ()
        check_history(run.result.messages)

    asyncio.run(main())


def test_limits_are_those_of_the_settings(native: LocalModel, weights: Path) -> None:
    asyncio.run(native.prepare())
    assert "max_tokens" not in native.payload(REQUEST)
    assert "temperature" not in native.payload(REQUEST)
    assert [spec["function"]["name"] for spec in native.payload(REQUEST)["tools"]] == ["weather", "add"]
    limited = ModelRequest(REQUEST.messages, settings=ModelSettings(max_tokens=7, temperature=0.5))
    assert (native.payload(limited)["max_tokens"], native.payload(limited)["temperature"]) == (7, 0.5)
    guided = LocalModel(weights=weights, tool_calls="guided")
    assert "max_tokens" not in guided.payload(REQUEST)
    assert LocalModel().payload(REQUEST)["max_tokens"] == MAX_TOKENS


def test_the_chat_template_decides_and_can_be_overruled(native: LocalModel, caller: Path, weights: Path) -> None:
    required = ModelRequest(REQUEST.messages, None, REQUEST.tools, ModelSettings(tool_choice="required"))

    def kind(model: LocalModel) -> str:
        asyncio.run(model.prepare())
        return "native" if "tools" in model.payload(required) else "guided"

    assert kind(native) == "native"
    assert kind(LocalModel(weights=weights)) == "guided"
    taught = LlamaOptions(template=TOOL_TEMPLATE)
    assert kind(LocalModel(weights=weights, options=taught)) == "native"
    assert kind(LocalModel(weights=caller, tool_calls="guided")) == "guided"
    assert kind(LocalModel(weights=weights, tool_calls="native")) == "native"
    shared_server(weights, taught).close()
    shared_server(weights).close()


def test_what_is_not_known_yet_is_not_guessed(caller: Path) -> None:
    with pytest.raises(UsageError, match=r"write `await model.prepare\(\)` first"):
        LocalModel(weights=caller).payload(REQUEST)
    with pytest.raises(ValueError, match="write 'auto', 'native' or 'guided'"):
        LocalModel(tool_calls="maybe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the point
