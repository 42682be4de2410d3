"""An agent that hands its whole message to another one, which it has as a tool."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from uuid import uuid4

from safepoint import Agent
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest
from tests.server.apps.worker.agent import Obedient, nap, note, tell


class Delegating(Obedient):
    """Hands on what the user says."""

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        last = request.messages[-1]
        if last.role == "user":
            yield CallDelta(0, f"call_{uuid4().hex[:12]}", "helper", json.dumps({"input": last.text}))
            yield Finish("tool_calls")
            return
        async for chunk in super()._chunks(request):
            yield chunk


helper = Agent("helper", model=Obedient(), tools=[nap, note, tell])
agent = Agent("boss", model=Delegating(), tools=[helper.as_tool()])
