"""A run as people look at it: its agents and calls, each with its times, what it is doing and what holds a stop.

The tree is computed from the events that a run keeps anyway, when a client asks for it: a run that nobody looks at pays
nothing. Calls that wait for their turn have no event yet; they come from the preview of a stop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint.agent.events import (
    CancelRequested,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RetryScheduled,
    RunEnded,
    RungReached,
    RunStarted,
    ToolCallEnded,
    ToolCallStarted,
)
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.preview import Preview
from safepoint.serving.cancel_answers import Json, holding_json
from safepoint.serving.cancel_requests import reason_json
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.shared_state import plain
from safepoint.serving.stored_events import usage_json
from safepoint.storage.session_data import StoredRun

# Arguments are shown, not stored: what is longer is cut here.
_LONGEST = 500
_MOST_ARGUMENTS = 12


@dataclass(slots=True)
class TreeNode:
    """An agent or a call. `state`: of the ledger for a call, a stop reason for an agent; `running` until then.

    `model`: when its model calls began and ended. `rungs`: how far a stop of it has come, and when.
    """

    path: str
    name: str
    kind: str
    run_id: str = ""
    call_id: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    state: str = "running"
    effect: str = ""
    work: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    step: int = 0
    retries: int = 0
    still_running: bool = False
    error: str = ""
    model: list[list[float | None]] = field(default_factory=list[list[float | None]])
    rungs: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def to_json(self) -> Json:
        found: Json = {"path": self.path, "name": self.name, "kind": self.kind, "state": self.state}
        if self.call_id:
            found["callId"] = self.call_id
        if self.arguments:
            found["arguments"] = dict(self.arguments)
        optional = {
            "effect": self.effect,
            "work": self.work,
            "startedAt": self.started_at,
            "endedAt": self.ended_at,
            "step": self.step,
            "retries": self.retries,
            "stillRunning": self.still_running,
            "error": self.error,
        }
        found |= {name: value for name, value in optional.items() if value}
        if self.model:
            found["model"] = self.model
        if self.rungs:
            found["rungs"] = [{"rung": rung, "at": at} for rung, at in self.rungs]
        return found


class RunTree:
    """The nodes of one run by their paths, in the order in which they began, and the asks that reached them."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.nodes: dict[str, TreeNode] = {}
        self.asks: list[Json] = []
        for event in events:
            self._add(event)

    def _add(self, event: Event) -> None:
        match event:
            case RunStarted(path=path, agent=agent):
                self.nodes[path] = TreeNode(path, agent, "agent", event.run_id, started_at=event.time)
            case ToolCallStarted(path=path, call=call):
                shown = shown_arguments(call.args)
                node = TreeNode(path, call.name, "tool", event.run_id, call.id, shown, started_at=event.time)
                self.nodes[path] = node
            case ToolCallEnded(path=path, entry=entry):
                node = self.nodes.setdefault(path, TreeNode(path, entry.name, "tool", event.run_id, entry.call_id))
                _settle(node, entry, event.time)
            case CancelRequested(path=path, ask=ask):
                asked: Json = {"id": ask.id, "path": path, "at": sorted(ask.at.places), "time": event.time}
                self.asks.append(asked | {"reason": reason_json(ask.reason)})
            case _:
                reached = self.nodes.get(event.path)
                if reached is not None:
                    _advance(reached, event)

    def add_waiting(self, preview: Preview) -> None:
        """What the preview of a stop knows of live calls: their kind and effect, and those that have not begun."""
        for call in preview.calls:
            node = self.nodes.get(call.path)
            if node is None:
                node = TreeNode(call.path, call.name, "tool", "", call.call_id, state="queued")
                self.nodes[call.path] = node
            node.effect, node.work = str(call.effect), str(call.kind)


def _advance(node: TreeNode, event: Event) -> None:
    match event:
        case ModelCallStarted(step=step):
            node.step = step
            node.model.append([event.time, None])
        case ModelCallEnded() if node.model:
            node.model[-1][1] = event.time
        case RetryScheduled():
            node.retries += 1
        case RungReached(rung=rung):
            node.rungs.append((str(rung), event.time))
        case RunEnded(stop_reason=stop_reason):
            node.state, node.ended_at = stop_reason, event.time
        case _:
            pass


def _settle(node: TreeNode, entry: LedgerEntry, ended_at: float | None) -> None:
    node.state, node.effect, node.still_running = str(entry.state), str(entry.effect), entry.still_running
    node.arguments = node.arguments or shown_arguments(entry.args)
    node.error = (entry.error or "")[:_LONGEST]
    if entry.started_at is not None:
        node.started_at = node.started_at or entry.started_at
        node.ended_at = ended_at


def shown_arguments(arguments: Mapping[str, Any]) -> dict[str, str]:  # Any: decoded JSON
    """Each as text of a bounded length; of very many only the first ones."""
    shown: dict[str, str] = {}
    for name in list(arguments)[:_MOST_ARGUMENTS]:
        value = arguments[name]
        text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
        shown[name[:_LONGEST]] = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return shown


def live_tree(managed: ManagedRun, *, stacks: bool = False) -> Json:
    """Of a run that this process has, live or over. `now`: the clock of its times."""
    run = managed.run
    tree = RunTree(run.hub.kept(nested=True))
    found: Json = {"now": time.time(), "holding": []}
    if not run.ended:
        tree.add_waiting(run.preview_cancel(SafePoint.NOW))
        if run.record is not None:
            found["usage"] = usage_json(run.record.spent)
        request = run.node.request()
        found["asked"] = sorted(request.at.places) if request is not None else []
        found["holding"] = [holding_json(each) for each in run.why_not_stopped()]
        if not stacks:
            found["holding"] = [{**each, "stack": ""} for each in found["holding"]]
    else:
        found["usage"] = usage_json(run.result.usage)
        found["orphans"] = [each.path for each in run.result.orphans]
    return found | {"nodes": [node.to_json() for node in tree.nodes.values()], "asks": tree.asks}


def stored_tree(agent: str, stored: StoredRun | None, reason: Reason | None = None) -> Json:
    """Of a run that ended in another process: its own calls, as the ledger has them. Runs inside them are not kept."""
    root = TreeNode(agent, agent, "agent", state=(stored.stop_reason if stored is not None else None) or "ended")
    nodes = [root]
    for entry in stored.ledger if stored is not None else ():
        node = TreeNode(f"{agent}/{entry.name}:{entry.call_id}", entry.name, "tool", call_id=entry.call_id)
        _settle(node, entry, entry.ended_at)
        node.ended_at = entry.ended_at
        nodes.append(node)
    times = [at for node in nodes for at in (node.started_at, node.ended_at) if at is not None]
    if times:
        root.started_at, root.ended_at = min(times), max(times)
    found: Json = {"now": time.time(), "holding": [], "asks": []}
    if reason is not None:
        found["asks"] = [{"path": agent, "at": [], "time": root.ended_at, "reason": reason_json(reason)}]
    return found | {"nodes": [node.to_json() for node in nodes]}


def preview_json(preview: Preview) -> Json:
    """What a stop would do to each call. `seconds` is left out where there is no bound."""
    calls: list[Json] = []
    for call in preview.calls:
        found: Json = {"path": call.path, "name": call.name, "callId": call.call_id, "effect": str(call.effect)}
        found |= {"work": str(call.kind), "fate": str(call.fate)}
        if call.seconds is not None:
            found["seconds"] = round(call.seconds, 3)
        calls.append(found | ({"remote": True} if call.remote else {}))
    return {"calls": calls} | ({} if preview.seconds is None else {"seconds": round(preview.seconds, 3)})
