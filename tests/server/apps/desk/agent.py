"""Two agents that hand a conversation on: `hand over` goes to billing, who says `paid`; `pretend` only says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from safepoint import Agent, Handoff, tool
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from tests.server.apps.worker.agent import Obedient, tell


@tool
async def transfer_to_vault() -> str:
    """Say what a transfer says, and hand nothing over."""
    return "The conversation was handed over to 'boss'."


class Clerk(Obedient):
    """Hands over when told to."""

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        if request.messages[-1].text.startswith("pretend"):
            yield CallDelta(0, "call_pretend", "transfer_to_vault", "{}")
            yield Finish("tool_calls")
            return
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


triage, billing = Agent("triage", model=Clerk(), tools=[transfer_to_vault, tell]), Agent("billing", model=Cashier())
agent = Handoff("desk", triage, to={triage: [billing]})
