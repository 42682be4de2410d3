"""Two agents that hand a conversation on: `hand over` goes to billing, who says `paid`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from safepoint import Agent, Handoff
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from tests.server.apps.worker.agent import Obedient


class Clerk(Obedient):
    """Hands over when told to."""

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        if request.messages[-1].text.startswith("hand over"):
            yield TextDelta("one moment ")
            yield CallDelta(0, "call_hand", "transfer_to_billing", "{}")
            yield Finish("tool_calls")
            return
        async for chunk in super()._chunks(request):
            yield chunk


class Cashier(Obedient):
    """Says that it is paid, when asked to by somebody who handed over."""

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        yield TextDelta("paid ")
        yield TextDelta("now")
        yield Finish("end_turn")


triage, billing = Agent("triage", model=Clerk()), Agent("billing", model=Cashier())
agent = Handoff("desk", triage, to={triage: [billing]})
