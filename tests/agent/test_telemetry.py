"""Every run leaves its spans with OpenTelemetry: all ended, nested as the work was, and a cancel is no error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode, Tracer

from safepoint import Agent, Hooks, Ladder, Reason, Run, SafePoint, Source, tool
from safepoint.agent.events import Event, RunEnded, RunStarted, ToolCallStarted
from safepoint.agent.spans import Spans
from safepoint.agent.telemetry import follow
from safepoint.agent.usage import Usage
from safepoint.errors import ModelError, ModelUnavailable
from safepoint.history.parts import ToolCall
from safepoint.testing import ScriptedModel, call, fail, say, stall
from safepoint.testing.injector import check_cancellable
from tests.program import run_program
from tests.virtual import passes, virtual

UNSET, ERROR = StatusCode.UNSET, StatusCode.ERROR


class Traces(SpanProcessor):
    """A provider of its own, and every span that was started and ended there."""

    def __init__(self) -> None:
        self.started: list[ReadableSpan] = []
        self.ended: list[ReadableSpan] = []
        provider = TracerProvider()
        provider.add_span_processor(self)
        self.tracer: Tracer = provider.get_tracer("test")

    def on_start(self, span: ReadableSpan, parent_context: object = None) -> None:
        self.started.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def start(self, agent: Agent, prompt: str = "go") -> Run:
        """A run whose spans come here."""
        run = agent.start(prompt)
        follow(run.hub, Spans(self.tracer))
        return run

    def all_ended(self) -> None:
        assert len(self.started) == len(self.ended), [span.name for span in self.started]

    def tree(self) -> list[str]:
        """Each span by its names from the root down, in the order of their starts."""
        self.all_ended()
        return [self._path(span) for span in self.started]

    def _path(self, span: ReadableSpan) -> str:
        above = next((each for each in self.started if span.parent and each.context == span.parent), None)
        return span.name if above is None else f"{self._path(above)} > {span.name}"

    def __getitem__(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.ended if span.name == name]
        return found


@pytest.fixture(autouse=True)
def opentelemetry_has_no_complaints(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """It never raises: a context that is put back in the wrong task is only logged."""
    yield
    complaints = [record for record in caplog.get_records("call") if record.name.startswith("opentelemetry")]
    assert complaints == []


def told(span: ReadableSpan) -> Mapping[str, Any]:  # Any: attribute values of every type
    return span.attributes or {}


@tool
async def double(x: int) -> int:
    """Double a number."""
    return x * 2


@tool
async def slow() -> None:
    """Take an hour."""
    await passes(3600)


@virtual
async def test_a_finished_run_has_a_span_for_itself_each_model_call_and_each_tool_call() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel(call("double", x=2), say("4"), name="m-1"), tools=[double])
    async with traces.start(agent) as run:
        result = await run.wait()
    assert traces.tree() == [
        "invoke_agent worker",
        "invoke_agent worker > chat m-1",
        "invoke_agent worker > execute_tool double",
        "invoke_agent worker > chat m-1",
    ]
    assert {span.status.status_code for span in traces.ended} == {UNSET}
    whole = told(traces["invoke_agent worker"])
    assert (whole["gen_ai.operation.name"], whole["gen_ai.agent.name"]) == ("invoke_agent", "worker")
    assert (whole["safepoint.run.id"], whole["safepoint.stop_reason"]) == (run.id, "end_turn")
    assert whole["gen_ai.usage.output_tokens"] == result.usage.output_tokens
    made = told(traces["execute_tool double"])
    assert (made["gen_ai.tool.name"], made["gen_ai.tool.call.id"]) == ("double", result.ledger[0].call_id)
    assert made["safepoint.tool.state"] == "finished"
    assert [told(span)["gen_ai.request.model"] for span in traces.ended if span.name == "chat m-1"] == ["m-1", "m-1"]
    assert not any(name.startswith("safepoint.cancel") for span in traces.ended for name in told(span))


@virtual
async def test_the_span_that_the_caller_is_in_is_the_parent_and_stays_current() -> None:
    traces = Traces()
    with traces.tracer.start_as_current_span("request"):
        async with traces.start(Agent("greeter", model=ScriptedModel(say("hi")))) as run:
            await run.wait()
        traces.tracer.start_span("afterwards").end()
    assert traces.tree() == [
        "request",
        "request > invoke_agent greeter",
        "request > invoke_agent greeter > chat scripted",
        "request > afterwards",
    ]


@virtual
async def test_a_run_cancelled_in_its_model_call_tells_why_in_both_spans_and_has_no_error() -> None:
    traces = Traces()
    silent = asyncio.Event()
    agent = Agent("teller", model=ScriptedModel([say("Once"), stall(on_reached=silent.set)]))
    async with traces.start(agent) as run:
        await silent.wait()
        run.cancel(SafePoint.AFTER_MODEL, within=5, reason=Reason("too long", Source.POLICY, by="guard"))
    assert traces.tree() == ["invoke_agent teller", "invoke_agent teller > chat scripted"]
    for span in traces.ended:
        assert span.status.status_code is UNSET
        about = {name.removeprefix("safepoint.cancel."): value for name, value in told(span).items()}
        assert (about["reason"], about["source"], about["by"]) == ("too long", "policy", "guard")
        assert (about["level"], about["place"], about["rung"]) == ("now", "now", "cancel")
        assert (about["escalated"], about["timed_out"]) == (True, True)
        assert about["latency"] == pytest.approx(5)
    assert told(traces["invoke_agent teller"])["safepoint.stop_reason"] == "cancelled"
    assert told(traces["chat scripted"])["safepoint.usage.estimated"] is True


@virtual
async def test_a_run_cancelled_in_its_tools_tells_it_on_the_call_that_was_cut_and_not_on_its_finished_sibling() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel([call("double", x=2), call("slow")]), tools=[double, slow])
    async with traces.start(agent) as run:
        await passes(1)
        run.cancel(reason="stop")
    cut, finished, whole = (
        traces[name] for name in ("execute_tool slow", "execute_tool double", "invoke_agent worker")
    )
    assert {span.status.status_code for span in traces.ended} == {UNSET}
    assert (told(cut)["safepoint.tool.state"], told(finished)["safepoint.tool.state"]) == ("cut", "finished")
    for span in cut, whole:
        assert (told(span)["safepoint.cancel.reason"], told(span)["safepoint.cancel.rung"]) == ("stop", "cancel")
    assert "safepoint.cancel.reason" not in told(finished)


class Provided(ScriptedModel):
    model_name = "m-1"
    provider_name = "somewhere"


@virtual
async def test_a_stop_is_told_on_a_model_call_that_has_its_providers_name() -> None:
    traces = Traces()
    async with traces.start(Agent("teller", model=Provided(stall()))) as run:
        await passes(1)
        run.cancel()
    about = told(traces["chat m-1"])
    assert (about["gen_ai.provider.name"], about["safepoint.cancel.rung"]) == ("somewhere", "cancel")


@virtual
async def test_one_call_stopped_by_itself_is_told_on_its_own_span_alone() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel(call("slow"), say("then not")), tools=[slow])
    async with traces.start(agent) as run:
        await passes(1)
        (node,) = [node for node in run.tree.walk() if node.kind == "tool_call"]
        node.cancel(reason="this one")
    assert told(traces["execute_tool slow"])["safepoint.cancel.reason"] == "this one"
    assert "safepoint.cancel.reason" not in told(traces["invoke_agent worker"])
    traces.all_ended()


@virtual
async def test_a_stop_at_a_safe_point_climbs_no_rung() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel(call("double", x=2), say("unused")), tools=[double])
    run = traces.start(agent)
    run.cancel(SafePoint.AFTER_TOOLS)
    async with run:
        await run.wait()
    whole = told(traces["invoke_agent worker"])
    assert (whole["safepoint.cancel.rung"], whole["safepoint.cancel.place"]) == ("safe_point", "after_tools")
    assert whole["safepoint.cancel.level"] == "safe"
    traces.all_ended()


async def stop_for_nothing_until(let_go: asyncio.Event) -> None:
    while not let_go.is_set():
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            continue


@virtual
async def test_a_tool_that_never_stops_is_abandoned_and_its_span_ended() -> None:
    traces = Traces()
    let_go = asyncio.Event()

    @tool
    async def stubborn() -> None:
        """Stop for nothing."""
        await stop_for_nothing_until(let_go)

    agent = Agent("worker", model=ScriptedModel(call("stubborn")), tools=[stubborn], ladder=Ladder(task=0.5))
    async with traces.start(agent) as run:
        await passes(1)
        run.cancel()
    let_go.set()
    await passes(1)
    traces.all_ended()
    for name in "execute_tool stubborn", "invoke_agent worker":
        assert told(traces[name])["safepoint.cancel.rung"] == "abandon"
        assert told(traces[name])["safepoint.cancel.latency"] == pytest.approx(0.5)


@virtual
async def test_a_hook_that_never_stops_is_told_on_the_run_and_not_on_the_model_call_beside_it() -> None:
    traces = Traces()
    let_go = asyncio.Event()

    class Stubborn(Hooks):
        async def on_cancel_requested(self, run: object, ask: object) -> None:
            await stop_for_nothing_until(let_go)

    agent = Agent("worker", model=ScriptedModel(stall()), hooks=[Stubborn()])
    async with traces.start(agent) as run:
        await passes(1)
        run.cancel(SafePoint.AFTER_MODEL, within=5)
    let_go.set()
    await passes(1)
    assert told(traces["chat scripted"])["safepoint.cancel.rung"] == "cancel"
    assert told(traces["invoke_agent worker"])["safepoint.cancel.rung"] == "abandon"


@virtual
async def test_a_call_that_never_started_has_no_span() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel([call("nothing"), call("double", x="?")], say("hm")), tools=[double])
    async with traces.start(agent) as run:
        await run.wait()
    assert traces.tree() == ["invoke_agent worker", *["invoke_agent worker > chat scripted"] * 2]


@virtual
async def test_a_failed_run_has_an_error_where_it_failed_and_as_a_whole() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel(call("double", x=2), fail(ModelError("broken"))), tools=[double])
    async with traces.start(agent) as run:
        await run.wait()
    good, bad = [span for span in traces.ended if span.name == "chat scripted"]
    assert (good.status.status_code, traces["execute_tool double"].status.status_code) == (UNSET, UNSET)
    for span in bad, traces["invoke_agent worker"]:
        assert (span.status.status_code, span.status.description) == (ERROR, "broken")
        assert told(span)["error.type"] == "ModelError"
        assert [event.name for event in span.events] == ["exception"]
    assert told(traces["invoke_agent worker"])["safepoint.stop_reason"] == "error"
    traces.all_ended()


@virtual
async def test_each_try_of_a_model_call_has_a_span() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel(fail(ModelUnavailable("busy")), say("hi")))
    async with traces.start(agent) as run:
        await run.wait()
    tries = [span.status.status_code for span in traces.ended if span.name == "chat scripted"]
    assert tries == [ERROR, UNSET]
    assert traces["invoke_agent worker"].status.status_code is UNSET


@virtual
async def test_a_tool_that_fails_is_an_error_of_its_own_span_alone() -> None:
    @tool
    async def broken() -> None:
        """Fail."""
        raise ValueError("no luck")

    traces = Traces()
    agent = Agent("worker", model=ScriptedModel(call("broken"), say("sorry")), tools=[broken])
    async with traces.start(agent) as run:
        await run.wait()
    status = traces["execute_tool broken"].status
    assert (status.status_code, status.description) == (ERROR, "ValueError: no luck")
    assert traces["invoke_agent worker"].status.status_code is UNSET


@virtual
async def test_the_callers_own_cancel_ends_every_span_and_names_its_source() -> None:
    traces = Traces()
    agent = Agent("worker", model=ScriptedModel(call("slow")), tools=[slow])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3), traces.start(agent) as run:
            await run.wait()
    traces.all_ended()
    for name in "invoke_agent worker", "execute_tool slow":
        assert traces[name].status.status_code is UNSET
    assert told(traces["invoke_agent worker"])["safepoint.cancel.source"] == "caller"


def three_deep(model: ScriptedModel) -> Agent:
    inner = Agent("inner", model=model)
    middle = Agent("middle", model=ScriptedModel(call("inner", input="go"), say("b")), tools=[inner.as_tool()])
    return Agent("outer", model=ScriptedModel(call("middle", input="go"), say("c")), tools=[middle.as_tool()])


@virtual
async def test_sub_agents_nest_in_the_span_of_the_tool_that_they_are() -> None:
    traces = Traces()
    async with traces.start(three_deep(ScriptedModel(say("a")))) as run:
        await run.wait()
    outer = "invoke_agent outer"
    middle = f"{outer} > execute_tool middle > invoke_agent middle"
    inner = f"{middle} > execute_tool inner > invoke_agent inner"
    assert [path for path in traces.tree() if path.endswith("scripted")] == [
        f"{outer} > chat scripted",
        f"{middle} > chat scripted",
        f"{inner} > chat scripted",
        f"{middle} > chat scripted",
        f"{outer} > chat scripted",
    ]


@virtual
async def test_a_cancel_of_three_nested_agents_ends_every_span_and_is_told_on_each_run() -> None:
    traces = Traces()
    silent = asyncio.Event()
    async with traces.start(three_deep(ScriptedModel(stall(on_reached=silent.set)))) as run:
        await silent.wait()
        run.cancel(reason="enough")
    traces.all_ended()
    assert {span.status.status_code for span in traces.ended} == {UNSET}
    for name, source in ("outer", "user"), ("middle", "parent"), ("inner", "parent"):
        about = told(traces[f"invoke_agent {name}"])
        assert (about["safepoint.cancel.reason"], about["safepoint.cancel.source"]) == ("enough", source)


@virtual
async def test_spans_made_inside_a_tool_nest_in_its_span_also_in_a_thread() -> None:
    traces = Traces()

    @tool
    async def fetch() -> None:
        """Fetch."""
        with traces.tracer.start_as_current_span("GET"):
            await passes(1)

    @tool
    def compute() -> None:
        """Compute."""
        traces.tracer.start_span("sum").end()

    agent = Agent("worker", model=ScriptedModel([call("fetch"), call("compute")], say("done")), tools=[fetch, compute])
    async with traces.start(agent) as run:
        await run.wait()
    assert "invoke_agent worker > execute_tool fetch > GET" in traces.tree()
    assert "invoke_agent worker > execute_tool compute > sum" in traces.tree()


@virtual
async def test_a_hook_after_a_sub_agent_is_in_the_span_of_the_tool_again() -> None:
    traces = Traces()

    class Marked(Hooks):
        def after_tool(self, run: object, entry: object) -> None:
            traces.tracer.start_span("checked").end()

    sub = Agent("sub", model=ScriptedModel(say("a")))
    model = ScriptedModel(call("sub", input="go"), say("b"))
    async with traces.start(Agent("worker", model=model, tools=[sub.as_tool()], hooks=[Marked()])) as run:
        await run.wait()
    assert "invoke_agent worker > execute_tool sub > checked" in traces.tree()


@virtual
async def test_a_span_made_by_the_model_nests_in_the_span_of_its_call() -> None:
    traces = Traces()
    model = ScriptedModel([say("hi"), stall(on_reached=lambda: traces.tracer.start_span("POST").end())])
    async with traces.start(Agent("worker", model=model)) as run:
        await passes(1)
        run.cancel()
    assert traces.tree()[-1] == "invoke_agent worker > chat scripted > POST"


def test_every_span_is_ended_wherever_a_cancel_lands() -> None:
    seen: list[Traces] = []

    async def scenario() -> None:
        traces = Traces()
        seen.append(traces)
        sub = Agent("sub", model=ScriptedModel([say("one"), say("two")]))
        model = ScriptedModel([call("sub", input="go"), call("double", x=1)], say("done"))
        async with traces.start(Agent("root", model=model, tools=[sub.as_tool(), double])) as run:
            await run.wait()

    def all_ended_without_error() -> None:
        for traces in seen:
            traces.all_ended()
            assert {span.status.status_code for span in traces.ended} <= {UNSET}
        seen.clear()

    report = check_cancellable(scenario, oracles=[all_ended_without_error])
    assert report.failures == [], report
    assert report.injections > 40


def test_a_run_that_breaks_in_the_middle_leaves_no_span_open() -> None:
    traces = Traces()
    listener = Spans(traces.tracer)
    at: dict[str, Any] = {"run_id": "r", "path": "worker", "seq": 1, "time": 0.0}  # Any: fields of several types
    listener(RunStarted(**at, agent="worker"))
    listener(ToolCallStarted(**at, call=ToolCall("c", "double", {})))
    listener(RunEnded(**at, stop_reason="error", usage=Usage(), error=RuntimeError("a bug")))
    traces.all_ended()
    assert {span.status.status_code for span in traces.ended} == {ERROR}


@virtual
async def test_a_listener_that_breaks_is_logged_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise OSError("the exporter is gone")

    run = Agent("greeter", model=ScriptedModel(say("hi"))).start("go")
    run.hub.listen(broken)
    run.hub.listen(seen.append)
    with caplog.at_level(logging.ERROR, "safepoint"):
        async with run:
            result = await run.wait()
    assert (result.stop_reason, result.text) == ("end_turn", "hi")
    assert isinstance(seen[-1], RunEnded)
    assert "the exporter is gone" in caplog.text


# -- whole processes: what is imported when ----------------------------------------------------------------------------

LAZY = """
import asyncio, sys
from safepoint import Agent
from safepoint.testing import ScriptedModel, say
{before}
def loaded():
    return sys.modules.get("opentelemetry") is not None
assert not loaded(), "import safepoint has loaded OpenTelemetry"
assert asyncio.run(Agent("a", model=ScriptedModel(say("hi"))).run("go")).text == "hi"
print(loaded())
"""


def test_opentelemetry_is_loaded_by_the_first_run_and_not_by_the_import(tmp_path: Path) -> None:
    program = tmp_path / "lazy.py"
    program.write_text(LAZY.format(before=""))
    assert run_program(program, tmp_path, fresh=True).split() == ["True"]


def test_a_run_works_where_opentelemetry_is_not_installed(tmp_path: Path) -> None:
    program = tmp_path / "without.py"
    program.write_text(LAZY.format(before="sys.modules['opentelemetry'] = None"))
    assert run_program(program, tmp_path, fresh=True).split() == ["False"]


def test_a_run_works_where_opentelemetry_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise RuntimeError('a broken installation')")
    program = tmp_path / "broken.py"
    program.write_text(LAZY.format(before=""))
    assert run_program(program, tmp_path, fresh=True).split() == ["False"]


EXPORTED = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from safepoint import Agent
from safepoint.testing import ScriptedModel, call, say
model = ScriptedModel(call("sub", input="go"), say("hi"), say("ho"), repeat=True)
sub = Agent("sub", model=ScriptedModel(say("x"), repeat=True))
agent = Agent("a", model=model, tools=[sub.as_tool()])
asyncio.run(agent.run("before there is a provider"))
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
asyncio.run(agent.run("go"))
asyncio.run(agent.run("go"))
print(*(span.name.replace(" ", ":") for span in exporter.get_finished_spans()))
"""


def test_runs_are_exported_by_the_provider_that_the_program_has_set(tmp_path: Path) -> None:
    program = tmp_path / "exported.py"
    program.write_text(EXPORTED)
    printed = run_program(program, tmp_path, fresh=True).split()
    plain = ["chat:scripted", "invoke_agent:a"]
    with_sub = ["chat:scripted", "chat:scripted", "invoke_agent:sub", "execute_tool:sub", "chat:scripted"]
    assert printed == [*plain, *with_sub, "invoke_agent:a"]
