"""What a cancel has come to, as JSON: for the client that asked, and for a process that asked on a client's behalf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from safepoint._core.orphans import Orphan
from safepoint._core.receipts import Receipt
from safepoint.agent.stop_diagnostics import Holding
from safepoint.agent.usage import Usage
from safepoint.serving.stored_events import usage_json

Json: TypeAlias = dict[str, Any]  # Any: JSON values


def receipt_json(receipt: Receipt, *, is_over: bool) -> Json:
    """`is_over`: the outcome is known, and with it what was touched."""
    found: Json = {"askId": receipt.asked.id}
    if is_over and receipt.node.ending is not None:
        found["stoppedAt"] = receipt.stopped_at
        found["touched"] = [{"path": each.path, "name": each.name, "state": each.state} for each in receipt.touched]
        found["orphans"] = [orphan_json(each) for each in receipt.orphans]
        lists = {"queued": receipt.queued, "unheard": receipt.unheard}
        found |= {name: list(texts) for name, texts in lists.items() if texts}
        for name, usage in (("cutUsage", receipt.cut_usage), ("nextUsage", receipt.next_usage)):
            if isinstance(usage, Usage):
                found[name] = usage_json(usage)
        if isinstance(receipt.usage, Usage):
            found["usage"] = usage_json(receipt.usage)
    return found


def orphan_json(orphan: Orphan) -> Json:
    """A piece of work that was abandoned."""
    found: Json = {"name": orphan.name, "path": orphan.path, "rung": str(orphan.rung)}
    found |= {"age": round(orphan.age, 3), "stillRunning": orphan.still_running}
    return {**found, "stack": orphan.stack()}


def holding_json(holding: Holding) -> Json:
    """What holds a stopping run."""
    found: Json = {"name": holding.name, "path": holding.path, "seconds": holding.seconds, "stack": holding.stack}
    if holding.seconds_left is not None:
        found["secondsLeft"] = round(holding.seconds_left, 3)
    more = {"kind": holding.kind, "effect": holding.effect, "pid": holding.pid, "callId": holding.call_id}
    found.update({name: value for name, value in more.items() if value is not None})
    if holding.waits_for:
        found["waitsFor"] = list(holding.waits_for)
    return found if holding.rung is None else {**found, "rung": str(holding.rung)}


def without_stack(shown: Mapping[str, Any]) -> Json:  # Any: JSON values
    """For those who are no operators."""
    return {name: value for name, value in shown.items() if name != "stack"}
