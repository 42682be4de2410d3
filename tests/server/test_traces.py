"""A request that names a trace: the run's spans belong to that trace."""

from __future__ import annotations

from pathlib import Path

from tests.program import run_program

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"

PROGRAM = """
import asyncio
import httpx2
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from safepoint import Agent
from safepoint.server import create_app
from safepoint.testing import ScriptedModel, say

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
app = create_app({{"a": Agent("a", model=ScriptedModel(say("hi"), repeat=True))}}, storage="memory:")
body = {{"appName": "a", "userId": "u", "sessionId": "s", "newMessage": {{"parts": [{{"text": "go"}}]}}}}


async def main():
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost")
    async with app.router.lifespan_context(app), client:
        (await client.post("/apps/a/users/u/sessions/s")).raise_for_status()
        for headers in ({{"traceparent": "00-{trace}-{caller}-01"}}, {{}}):
            (await client.post("/run", json=body, headers=headers)).raise_for_status()


asyncio.run(main())
for span in exporter.get_finished_spans():
    if span.name == "invoke_agent a":
        print(f"{{span.context.trace_id:032x}}", f"{{span.parent.span_id:016x}}" if span.parent else "-")
"""


def test_a_run_continues_the_trace_of_its_request_and_no_later_one(tmp_path: Path) -> None:
    program = tmp_path / "traced.py"
    program.write_text(PROGRAM.format(trace=TRACE, caller=CALLER))
    first, second = (line.split() for line in run_program(program, tmp_path, fresh=True).splitlines())
    assert first == [TRACE, CALLER]
    assert second[0] != TRACE
