"""One `tools/call`: who sent it, what it is told while its run goes on, and what its end means for the run.

The run belongs to the run manager. A handler that is cancelled stops the run NOW and waits, shielded and bounded,
until the end is recorded. So AnyIO's cancellation, which is delivered again at every await, cuts nothing of that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from mcp.server.context import ServerRequestContext

from safepoint._core.reasons import Reason, Source
from safepoint.errors import StoreError
from safepoint.protocols.mcp.requests import InFlight, Requests
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import cancel_all
from safepoint.serving.events import MessageEvent, ToolOutput
from safepoint.serving.feed import Feed, Frame
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import Principal
from safepoint.serving.remote_cancel import cancel_records
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import Submission
from safepoint.storage.run_records import RunRecord, RunState

USER = "user"  # whose sessions they are, where the key names no user
_ACCEPTING = 10.0
_RECORDING = 1.0
_MOST_TOLD = 2000


@dataclass(frozen=True, slots=True)
class Exchange:
    """`who`: the caller. `context`: of the SDK. `request`: whether and why it was cancelled."""

    manager: RunManager
    who: Principal
    context: ServerRequestContext[Requests, Any]  # Any: the HTTP request, or None
    request: InFlight

    def key(self, app: str, session: str) -> SessionKey:
        """Of a session of the caller's own. Raises `BadId`, `NotFound`."""
        return self.who.session(app, self.who.user or USER, session)

    async def submit(self, key: SessionKey, submission: Submission, *, new: bool) -> ManagedRun:
        """The run of that message; `new`: its session is made first, and is not left behind by a refusal.

        Raises what `RunManager.submit` raises. Bounded. Cancellation: of a request that is cancelled already nothing is
        begun; what was begun is accepted or refused first, so that there is a run to stop.
        """
        await checkpoint_if_cancelled()
        accepted: ManagedRun | None = None
        with anyio.move_on_after(_ACCEPTING, shield=True):
            if new:
                await self.manager.create(key, None)
            try:
                accepted = await self._accepted(key, submission)
            except Exception:
                if new:
                    await self.manager.delete(key)
                raise
        if accepted is None:
            raise StoreError(f"the storage did not answer within {_ACCEPTING:g} s")
        return accepted

    async def _accepted(self, key: SessionKey, submission: Submission) -> ManagedRun:
        """Cancellation: accepted, or not."""
        accepted = await self.manager.submit(self.who, key, submission)
        assert isinstance(accepted, ManagedRun)  # a record is found by an idempotency key only
        await accepted.admitted.wait()
        if accepted.refused is not None:
            raise accepted.refused
        return accepted

    async def follow(self, managed: ManagedRun) -> None:
        """Until the run is over, with its progress told. The SDK drops that if the client has not asked for it.

        Cancellation: the run is stopped NOW, and that is recorded, before it is raised again.
        """
        try:
            await self._tell(managed.feed)
            await managed.over.wait()
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self.stop(managed)
            raise

    async def stop(self, managed: ManagedRun) -> None:
        """Stop the run, or clear its pause. Bounded. Cancellation: the ask stands."""
        if self.context.lifespan_context.leaving:
            return
        reason = await self._reason(managed.key.user)
        ladder = self.manager.config.ladder or managed.run.agent.ladder
        request = StopRequest(wait_seconds=ladder.cap + _RECORDING)
        if managed.live:
            await cancel_all(self.manager, [managed], request, reason)
        elif managed.state is RunState.PAUSED:
            records = await self.manager.storage.runs.still_open(managed.key.stored_as)
            await cancel_records(self.manager, [each for each in records if _is(each, managed)], request, reason)

    async def _reason(self, user: str) -> Reason:
        """Cancellation: only the waiting ends."""
        if await self.request.was_cancelled():
            return Reason(self.request.reason, Source.USER, by=user)
        return Reason("its client closed the request", Source.DISCONNECT, by=user)

    async def _tell(self, feed: Feed) -> None:
        """Steps and what tools tell, as progress. Cancellation: no more is told."""
        count = 0
        with feed.view() as viewer:
            while not viewer.over:
                while (frame := viewer.take()) is not None:
                    if (text := _progress(frame)) is not None:
                        count += 1
                        await self.context.session.report_progress(count, message=text)
                if not viewer.over:
                    await viewer.wait()


def _is(record: RunRecord, managed: ManagedRun) -> bool:
    return record.run_id == managed.id


def _progress(frame: Frame) -> str | None:
    """What is told of an event: a step with the calls that it makes, or the output of a tool."""
    match frame.event:
        case ToolOutput(tool=tool, text=text):
            return f"{tool}: {text}"[:_MOST_TOLD]
        case MessageEvent(message=message, step=step, end=None) if message is not None and message.role == "assistant":
            calls = ", ".join(call.name for call in message.tool_calls)
            return f"step {step}: calls {calls}" if calls else f"step {step}"
        case _:
            return None
