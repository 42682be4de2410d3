"""Which runs are meant, by what they are and what they do now, here and in other processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safepoint.errors import StoreError
from safepoint.serving.cancel_answers import Json
from safepoint.serving.cancel_requests import StopRequest, request_json
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.owner_requests import OwnerSilent, Question, ask_owner, previewed
from safepoint.serving.principal import Principal
from safepoint.serving.run_manager import RunManager
from safepoint.serving.run_tree import live_tree
from safepoint.storage.run_records import RunRecord, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Every field that is given has to fit; without any, all runs are meant.

    `agent`, `tool`: an agent that takes part, a tool whose call is under way. `older_than`: seconds since the message
    was accepted. `tokens_over`: what it has used. `metadata`: values that its message came with.
    """

    app: str | None = None
    user: str | None = None
    session: str | None = None
    run: str | None = None
    state: RunState | None = None
    agent: str | None = None
    tool: str | None = None
    older_than: float | None = None
    tokens_over: int | None = None
    metadata: Mapping[str, Any] | None = None  # Any: JSON values

    @property
    def looks_inside(self) -> bool:
        """Does only the process that has a run know whether it fits?"""
        return self.agent is not None or self.tool is not None or self.tokens_over is not None

    def fits(self, found: OpenRun, now: float) -> bool:
        """By what is known of it in every process."""
        wanted = (self.app, self.user, self.session, self.run, self.state)
        key, given = found.key, found.metadata
        has = (key.app, key.user, key.session, found.run_id, found.state)
        return (
            all(want in (None, each) for want, each in zip(wanted, has, strict=True))
            and (self.older_than is None or now - found.created_at > self.older_than)
            and all(name in given and given[name] == value for name, value in (self.metadata or {}).items())
        )

    def fits_inside(self, tree: Json) -> bool:
        """By what the process that has it tells."""
        nodes: list[Json] = tree.get("nodes") or []
        usage: Json = tree.get("usage") or {}
        used = usage.get("inputTokens", 0) + usage.get("outputTokens", 0)
        agents = {node["name"] for node in nodes if node["kind"] == "agent"}
        tools = {node["name"] for node in nodes if node["kind"] == "tool" and node["state"] == "running"}
        return (
            self.agent in {None, *agents}
            and self.tool in {None, *tools}
            and (self.tokens_over is None or used > self.tokens_over)
        )


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended. `here`: if this process has it; `record`: if it is another's, or waits for a person."""

    run_id: str
    key: SessionKey
    state: RunState
    created_at: float
    metadata: Mapping[str, Any]  # Any: JSON values
    here: ManagedRun | None = None
    record: RunRecord | None = None

    @property
    def is_under_way(self) -> bool:
        return self.state is RunState.LIVE


async def open_runs(manager: RunManager, who: Principal, wanted: RunFilter) -> list[OpenRun]:
    """Those of the caller that fit. One whose process does not answer does not fit a filter that looks inside.

    Raises `StoreError`. Cancellation: nothing has changed.
    """
    found = {
        run.id: OpenRun(run.id, run.key, run.state, run.accepted_at, run.feed.turn.metadata or {}, here=run)
        for run in manager.live()
    }
    for record in await manager.storage.runs.still_open():
        key = SessionKey.parse(record.session)
        if key is not None and record.run_id not in found:
            metadata: Mapping[str, Any] = record.request.get("customMetadata") or {}  # Any: JSON values
            found[record.run_id] = OpenRun(record.run_id, key, record.state, record.created_at, metadata, record=record)
    now = time.time()
    mine = [each for each in found.values() if who.owns(each.key.user) and wanted.fits(each, now)]
    if not wanted.looks_inside:
        return mine
    fits = await asyncio.gather(*(_fits_inside(manager, each, wanted) for each in mine))
    return [each for each, fit in zip(mine, fits, strict=True) if fit]


async def _fits_inside(manager: RunManager, found: OpenRun, wanted: RunFilter) -> bool:
    """Cancellation: nothing has changed."""
    if not found.is_under_way:
        return False
    if found.here is not None:
        return wanted.fits_inside(live_tree(found.here))
    try:
        return wanted.fits_inside(dict(await ask_owner(manager, found.run_id, Question.TREE) or {}))
    except (OwnerSilent, StoreError):
        return False


async def would_stop(manager: RunManager, found: OpenRun, request: StopRequest) -> Json:
    """What such a stop would do to it. Cancellation: nothing has changed."""
    key = found.key
    shown: Json = {"runId": found.run_id, "appName": key.app, "userId": key.user, "sessionId": key.session}
    shown |= {"state": str(found.state), "createdAt": found.created_at}
    preview: Json = {"calls": [], "seconds": 0.0}
    tree: Json = {}
    if found.here is not None and found.here.run.node.started:
        preview, tree = previewed(found.here, request), live_tree(found.here)
    elif found.is_under_way:
        try:
            preview |= await ask_owner(manager, found.run_id, Question.PREVIEW, request_json(request)) or {}
            tree |= await ask_owner(manager, found.run_id, Question.TREE) or {}
        except OwnerSilent as silent:
            preview = {"calls": [], "reason": str(silent)}
    return shown | preview | ({"usage": tree["usage"]} if tree.get("usage") else {})
