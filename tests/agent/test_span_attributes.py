"""What spans say is what the conventions ask for: the reference is what `opentelemetry-util-genai` 1.3b0 emits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan

from safepoint import Agent, ModelSettings, SafePoint, Sequential, tool
from safepoint.agent.base import BaseAgent
from safepoint.agent.model import Chunk, Finish, ModelRequest, TextDelta
from safepoint.agent.span_content import CAPTURE, LONGEST_ATTRIBUTE, LONGEST_TEXT, messages_json
from safepoint.agent.spans import Spans
from safepoint.agent.telemetry import follow, remote_parent
from safepoint.history.parts import Image, Message, Text
from safepoint.models import OpenAIModel
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, say, stall
from tests.agent.test_telemetry import Traces, told
from tests.models.openai_stream import ANSWER, CALLS
from tests.models.raw_server import raw_server, stream
from tests.models.raw_server import say as answer_with

# Emitted by opentelemetry-util-genai 1.3b0 for one chat call and one tool call with everything set, in its order.
REFERENCE = {
    "chat": {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "server.address",
        "server.port",
        "gen_ai.request.stream",
        "gen_ai.request.temperature",
        "gen_ai.request.max_tokens",
        "gen_ai.request.stop_sequences",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.model",
        "gen_ai.response.id",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.reasoning.output_tokens",
    },
    "execute_tool": {
        "gen_ai.operation.name",
        "gen_ai.tool.name",
        "gen_ai.tool.call.id",
        "gen_ai.tool.description",
    },
}
CONTENT = {
    "chat": {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
    },
    "execute_tool": {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"},
}


@tool(effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"sunny in {place}"


class Watch:
    """Spans and metrics of the runs that it starts, in providers of their own."""

    def __init__(self, *, content: bool | None = None) -> None:
        self.traces = Traces()
        self.reader = InMemoryMetricReader()
        meter = MeterProvider([self.reader]).get_meter("test")
        self.spans = Spans(self.traces.tracer, meter, content=content)

    def run(self, agent: BaseAgent[Any, Any], **options: Any) -> Any:  # Any: options of start, and a run
        run = agent.start("go", **options)
        follow(run.hub, self.spans)
        return run

    def metrics(self) -> dict[str, list[Any]]:  # Any: data points of every kind
        data = self.reader.get_metrics_data()
        assert data is not None
        found = [
            each for resource in data.resource_metrics for scope in resource.scope_metrics for each in scope.metrics
        ]
        return {metric.name: list(metric.data.data_points) for metric in found}


async def answered(watch: Watch) -> list[ReadableSpan]:
    """One run over a real socket with two tool calls, all settings on; its spans."""
    acts = [answer_with(stream(events, chunked=True)) for events in (CALLS, ANSWER)]
    async with raw_server(*acts) as server, asyncio.timeout(20):
        model = OpenAIModel("gpt-5", base_url=f"{server.address}/v1")
        settings = ModelSettings(temperature=0.5, max_tokens=7, stop=("x",))
        agent = Agent("a", model=model, tools=[look], settings=settings, instructions="Be brief.")
        async with watch.run(agent) as run:
            await run.wait()
    return watch.traces.ended


def of(spans: list[ReadableSpan], operation: str) -> list[Mapping[str, Any]]:  # Any: attribute values
    return [told(span) for span in spans if span.name.startswith(f"{operation} ")]


def test_spans_have_every_attribute_of_the_reference_and_no_words() -> None:
    spans = asyncio.run(answered(Watch()))
    for operation, names in REFERENCE.items():
        for about in of(spans, operation):
            assert names <= set(about), names - set(about)
            assert not CONTENT[operation] & set(about)
            others = {name for name in about if not name.startswith("safepoint.")} - names
            assert others <= {"gen_ai.tool.type", "gen_ai.agent.name"}
    first, last = of(spans, "chat")
    assert (first["gen_ai.response.finish_reasons"], last["gen_ai.response.finish_reasons"]) == (
        ("tool_call",),
        ("stop",),
    )
    assert (last["gen_ai.response.id"], last["gen_ai.response.model"]) == ("chatcmpl-1", "m")
    assert (last["gen_ai.usage.cache_read.input_tokens"], last["gen_ai.usage.reasoning.output_tokens"]) == (64, 5)
    assert last["server.address"] == "127.0.0.1"


def test_words_are_captured_on_request_in_the_form_of_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPTURE, "span_only")
    spans = asyncio.run(answered(Watch()))
    first, last = of(spans, "chat")
    assert CONTENT["chat"] <= set(last)
    assert json.loads(first["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "go"}]}
    ]
    assert json.loads(last["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(last["gen_ai.tool.definitions"])[0]["name"] == "look"
    asked = json.loads(first["gen_ai.output.messages"])[0]["parts"]
    assert [part["type"] for part in asked] == ["text", "tool_call", "tool_call"]
    results = json.loads(last["gen_ai.input.messages"])[-1]
    assert results["role"] == "tool"
    assert results["parts"][0] == {"type": "tool_call_response", "id": "call_a", "response": "sunny in Łódź"}
    (one, _) = of(spans, "execute_tool")
    assert json.loads(one["gen_ai.tool.call.arguments"]) == {"place": "Łódź"}
    assert one["gen_ai.tool.call.result"] == "sunny in Łódź"


def test_long_words_are_cut_and_the_newest_messages_are_kept() -> None:
    messages = [Message("user", (Text(f"{number} " + "x" * LONGEST_TEXT * 2),)) for number in range(50)]
    written = messages_json(messages)
    assert len(written) < LONGEST_ATTRIBUTE + 1000
    kept = json.loads(written)
    assert 1 < len(kept) < 50
    assert kept[-1]["parts"][0]["content"].startswith("49 ")
    picture = Message("user", (Image(data=b"secret bytes"), Text("what is it?")))
    assert "secret" not in messages_json([picture])


def test_a_call_that_was_cut_has_no_finish_reason_and_no_error() -> None:
    async def main() -> None:
        watch = Watch()
        async with watch.run(Agent("a", model=ScriptedModel([say("one"), stall()]))) as run:
            await anext(aiter(run.text()))
            run.cancel()
        (about,) = of(watch.traces.ended, "chat")
        assert "gen_ai.response.finish_reasons" not in about
        assert "error.type" not in about
        (stops,) = watch.metrics()["safepoint.stop.duration"]
        assert stops.count == 1
        assert stops.attributes["safepoint.cancel.level"] == "now"

    asyncio.run(main())


def test_metrics_have_the_names_and_labels_of_the_conventions() -> None:
    watch = Watch()
    asyncio.run(answered(watch))
    found = watch.metrics()
    assert set(found) == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
    }
    counted = {point.attributes["gen_ai.token.type"]: point.sum for point in found["gen_ai.client.token.usage"]}
    assert counted == {"input": 200, "output": 40}
    (duration,) = found["gen_ai.client.operation.duration"]
    assert duration.count == 2
    assert dict(duration.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "127.0.0.1",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.response.model": "m",
        "server.address": "127.0.0.1",
        "server.port": duration.attributes["server.port"],
    }


class Uncounted:
    """A model that does not say how many tokens it took."""

    name = "uncounted"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async def chunks() -> AsyncGenerator[Chunk]:
            yield TextDelta("hi")
            yield Finish("end_turn")

        async with aclosing(chunks()) as reply:
            yield reply


def test_a_guess_is_no_measurement() -> None:
    async def main() -> None:
        watch = Watch()
        async with watch.run(Agent("a", model=Uncounted())) as run:
            await run.wait()
        assert run.result.usage.estimated
        assert "gen_ai.client.token.usage" not in watch.metrics()

    asyncio.run(main())


def test_a_session_is_the_conversation_of_all_its_spans() -> None:
    async def main() -> None:
        watch, session = Watch(), await Session.create(MemoryStore())
        model = ScriptedModel(call("look", place="Rome"), say("done"))
        async with watch.run(Agent("a", model=model, tools=[look]), session=session) as run:
            await run.wait()
        assert {told(span)["gen_ai.conversation.id"] for span in watch.traces.ended} == {session.id}
        assert len(watch.traces.ended) == 4

    asyncio.run(main())


def test_a_composite_is_a_workflow() -> None:
    async def main() -> None:
        watch = Watch()
        one, two = (Agent(name, model=ScriptedModel(say("hi"))) for name in ("one", "two"))
        async with watch.run(Sequential("both", one).then(two)) as run:
            await run.wait()
        (root,) = [span for span in watch.traces.ended if span.parent is None]
        assert root.name == "invoke_workflow both"
        assert told(root)["gen_ai.workflow.name"] == "both"
        assert len(of(watch.traces.ended, "invoke_agent")) == 2

    asyncio.run(main())


def test_a_resumed_run_links_to_the_span_of_the_stopped_one() -> None:
    async def main() -> None:
        watch = Watch()
        agent = Agent("a", model=ScriptedModel(call("look", place="Rome"), say("done")), tools=[look])
        run = watch.run(agent)
        run.cancel(SafePoint.AFTER_TOOLS)
        async with run:
            await run.wait()
        resumed = agent.start(checkpoint=run.result.checkpoint)
        follow(resumed.hub, watch.spans)
        async with resumed:
            await resumed.wait()
        first, second = [span for span in watch.traces.ended if span.name == "invoke_agent a"]
        assert [link.context for link in second.links] == [first.context]
        assert not first.links

    asyncio.run(main())


def test_a_run_continues_the_trace_that_a_request_names() -> None:
    async def main() -> None:
        watch = Watch()
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        with remote_parent(headers):
            run = watch.run(Agent("a", model=ScriptedModel(say("hi"))))
            async with run:
                await run.wait()
        (root,) = [span for span in watch.traces.ended if span.name == "invoke_agent a"]
        assert root.parent is not None
        assert trace.format_trace_id(root.parent.trace_id) == "a" * 32
        assert trace.format_span_id(root.parent.span_id) == "b" * 16
        assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(main())
