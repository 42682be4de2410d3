"""The local model: one server per process, a stop that reaches it, and calls that are always valid."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from safepoint import Agent, Message, ModelSettings, Text, ToolCall, ToolResult, check_history, tool
from safepoint.errors import ModelNotReady
from safepoint.models import CallDelta, Finish, ModelRequest, TextDelta, ToolSpec
from safepoint.models.llama import LlamaServer
from safepoint.models.local import LocalModel, shared_server
from safepoint.models.local_wire import MAX_TOKENS, Reader, offered, to_payload
from safepoint.models.weights import SMOLLM2, cache_folder, fetch
from tests.models.llama_probe import Probe
from tests.models.openai_stream import completion

ENDLESS = ModelSettings(max_tokens=3000, extra={"ignore_eos": True})
WEATHER = ToolSpec(
    "weather", "Tell the weather in a city.", {"type": "object", "properties": {"city": {"type": "string"}}}
)
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {}})
ANSWER = ToolSpec("final_answer", "Give the final answer.", {"type": "object", "properties": {}})


def asked(words: str, *tools: ToolSpec, choice: str | None = None) -> ModelRequest:
    return ModelRequest((Message("user", (Text(words),)),), None, tools, ModelSettings(tool_choice=choice))


# -- what is sent ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "choice", "names"),
    [
        ("What is the weather in Rome?", None, ["weather"]),
        ("Which city has numbers?", "auto", ["weather", "add"]),
        ("Hello!", None, []),
        ("Hello!", "required", ["weather", "add"]),
        ("Hello!", "add", ["add"]),
        ("What is the weather in Rome?", "none", []),
    ],
)
def test_a_tool_is_offered_when_it_must_be_or_the_words_point_to_it(
    words: str, choice: str | None, names: list[str]
) -> None:
    assert [spec.name for spec in offered(asked(words, WEATHER, ADD, choice=choice))] == names


def test_a_typed_answer_is_always_asked_for() -> None:
    assert [spec.name for spec in offered(asked("Hello!", WEATHER, ANSWER))] == ["final_answer"]


def test_once_there_are_results_it_answers() -> None:
    call = Message("assistant", (ToolCall("1", "weather", {"city": "Rome"}),))
    told = Message("tool", (ToolResult("1", "weather", "sunny"),))
    request = ModelRequest((*asked("weather?").messages, call, told), "Be kind.", (WEATHER,), ModelSettings())
    payload = to_payload(request)
    assert "response_format" not in payload
    assert payload["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "weather?"},
        {"role": "user", "content": "The tool weather says: sunny\nNow answer me."},
    ]


def test_a_call_is_bound_to_the_schema_of_the_tools() -> None:
    payload = to_payload(asked("weather?", WEATHER))
    (schema,) = payload["response_format"]["json_schema"]["schema"]["anyOf"]
    assert schema["properties"] == {"name": {"const": "weather"}, "arguments": WEATHER.parameters}
    assert "weather: Tell the weather in a city." in payload["messages"][0]["content"]
    assert payload["max_tokens"] == MAX_TOKENS


def test_a_bound_answer_becomes_a_call_only_when_it_is_whole() -> None:
    reader = Reader(bound=True)
    words = '{"name": "weather", "arguments": {"city": "Rome"}}'
    assert reader.read(completion({"content": words[:20]})) == []
    assert reader.read(completion({"content": words[20:]})) == []
    assert reader.read(completion({}, "stop")) == [CallDelta(0, None, "weather", '{"city": "Rome"}')]
    assert reader.finish() == Finish("end_turn", response_id="chatcmpl-1", response_model="m")
    cut = Reader(bound=True)
    assert [*cut.read(completion({"content": words[:20]})), *cut.read(completion({}, "length"))] == []


def test_a_free_answer_is_passed_on_as_it_comes() -> None:
    assert Reader(bound=False).read(completion({"content": "Hi"})) == [TextDelta("Hi")]


# -- the server --------------------------------------------------------------------------------------------------------


def test_models_of_one_process_share_one_server(weights: Path) -> None:
    assert shared_server(weights) is shared_server(weights)

    async def main() -> set[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(LocalModel(weights=weights).prepare()) for _ in range(5)]
        return {task.result() for task in tasks}

    assert asyncio.run(main()) == asyncio.run(main())
    shared_server(weights).close()


def test_now_stops_the_local_model_and_the_next_message_is_answered(weights: Path) -> None:
    async def main() -> None:
        model = LocalModel(weights=weights)
        agent = Agent("a", model=model, settings=ENDLESS)
        async with agent.start("tell me a story") as run:
            await anext(aiter(run.text()))
            assert await run.cancel(reason="enough").wait() == "stopped"
        server = shared_server(weights)
        assert server.pid is not None
        probe = Probe(await server.address(), server.pid)
        await probe.until_busy(0)
        short = Agent("a", model=model, settings=ModelSettings(max_tokens=5, extra={"ignore_eos": True}))
        again = await short.run("go on", history=run.result.messages)
        assert again.usage.output_tokens == 5
        check_history(again.messages)

    asyncio.run(main())


def test_a_call_is_valid_even_if_the_weights_are_random(weights: Path) -> None:
    ran: list[str] = []

    @tool(effect="pure")
    async def weather(day: bool) -> str:
        """Tell the weather."""
        ran.append(str(day))
        return "sunny"

    async def main() -> None:
        agent = Agent("a", model=LocalModel(weights=weights), tools=[weather], settings=ModelSettings(max_tokens=400))
        result = await agent.run("How is the weather?")
        assert result.ledger[0].state == "finished"

    asyncio.run(main())
    assert len(ran) == 1


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_server_that_was_killed_is_started_anew(weights: Path) -> None:
    async def main() -> None:
        agent = Agent("a", model=LocalModel(weights=weights), settings=ModelSettings(max_tokens=3), retries=0)
        await agent.run("hello")
        server = shared_server(weights)
        assert server.pid is not None
        kill(server.pid)
        await agent.run("hello")

    asyncio.run(main())
    shared_server(weights).close()


def test_a_file_that_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    server = LlamaServer(tmp_path / "x.gguf")
    with pytest.raises(ModelNotReady, match="did not start"):
        asyncio.run(server.address())


def test_whoever_hears_late_of_a_failed_start_does_not_end_the_server_that_was_started_since(
    weights: Path, tmp_path: Path
) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"not a model")
    server = LlamaServer(file)
    slow = asyncio.new_event_loop()
    late = slow.create_task(server.address())
    slow.call_soon(slow.stop)
    slow.run_forever()  # it waits for the first start, and is not looked at before the second one
    try:
        with pytest.raises(ModelNotReady):
            asyncio.run(server.address())
        file.write_bytes(weights.read_bytes())
        asyncio.run(server.address())
        pid = server.pid
        assert pid is not None
        with pytest.raises(ModelNotReady):
            slow.run_until_complete(late)
        assert server.pid == pid
        os.kill(pid, 0)
    finally:
        slow.close()
        server.close()


PROGRAM = """
import asyncio, os, sys
from safepoint import Agent
from safepoint.models.local import LocalModel, shared_server

async def main() -> None:
    async with Agent("a", model=LocalModel(weights=sys.argv[1])).start("tell me a story") as run:
        await anext(aiter(run.text()))
        print(shared_server(LocalModel(weights=sys.argv[1])._weights).pid, flush=True)
        if sys.argv[2] == "killed":
            os.kill(os.getpid(), 9)
        run.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["normally", "killed"])
def test_the_server_ends_with_its_process_however_that_ends(weights: Path, how: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(weights), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == (0 if how == "normally" else -signal.SIGKILL), done.stderr
    file = Path(f"/proc/{int(done.stdout)}/cmdline")
    for _ in range(10_000):  # a killed process says nothing: its server hears of it a moment later
        if not file.exists() or not file.read_bytes():
            return
        os.sched_yield()
    assert not file.exists()


# -- the real weights --------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_smollm2_answers_calls_a_tool_and_stops() -> None:
    cities: list[str] = []

    @tool(effect="pure")
    async def weather(city: str) -> str:
        """Tell the weather in a city."""
        cities.append(city)
        return "sunny, 24 degrees"

    async def main() -> None:
        path = await fetch(SMOLLM2, cache_folder(os.environ))
        agent = Agent("a", model="local", tools=[weather])
        told = await agent.run("What is the weather in Rome?")
        print(f"\n{told.text!r} {json.dumps(cities)}")
        assert cities == ["Rome"]
        assert "24" in told.text
        server = shared_server(path)
        assert server.pid is not None
        probe = Probe(await server.address(), server.pid)
        async with agent.start("Write a long story about a dragon.") as run:
            await anext(aiter(run.text()))
            assert await run.cancel().wait() == "stopped"
            freed = await probe.until_busy(0)
            print(f"the slot was free after {freed * 1000:.0f} ms")
            assert await probe.cpu_seconds_in(0.5) < 0.1
        again = await agent.run("Hello!", history=run.result.messages)
        assert again.stop_reason == "end_turn"

    asyncio.run(main())
