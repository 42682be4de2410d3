"""What the database file in `data` holds: it was written by Safepoint 0.1, schema version 3, with its own classes.

The file is one input of the tests of this storage: whatever it holds has to be there after it was brought up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from safepoint.agent.journal import Called, Inside, Opened, Said
from safepoint.history.parts import Message, Text, user_message
from safepoint.sessions.store import Change, LateResult, LateSet, StateSet
from safepoint.testing.conformance import store_samples as sample

NAME = "version_3.db"
LATE = (LateResult("call_1", "look", "dust"), LateResult("child/call_2", "look", "more dust"))
_STOPPED = sample.ending(saved=sample.checkpoint())
_BASE = replace(sample.checkpoint(), pending=(), used={})
_BELOW = sample.opening("run_below", 1)

SESSIONS: Mapping[str, Sequence[Change]] = {
    "app/ann/empty": [],
    "app/ann/answered": [StateSet(sample.STATE), replace(sample.opening(), at=10.0), replace(sample.ending(), at=20.0)],
    "app/ann/said": [Said(n, message, float(n)) for n, message in enumerate(sample.EVERYTHING)],
    "app/ann/stopped": [sample.opening(), _STOPPED, StateSet({"user:x": 1, "mine": [1, {"a": None}]})],
    "app/ann/dropped": [sample.opening(), _STOPPED, sample.opening("run_2", 4), sample.ending("run_2", 4)],
    "app/ann/resumed": [
        StateSet({"x": 1}),
        sample.opening(),
        _STOPPED,
        replace(
            sample.opening("run_2", continues="checkpoint_1"), base=replace(sample.checkpoint(), pending=(), used={})
        ),
    ],
    "app/ann/open": [
        sample.opening(),
        Said(1, sample.CALLS, 3.0),
        Called(sample.RUNNING, sample.MEMORY),
        *(Inside("child", each) for each in (_BELOW, Said(2, sample.CALLS), Called(sample.RUNNING, sample.MEMORY))),
        sample.COUNTED,
    ],
    "app/bob/late": [
        Opened("run_1", "worker", 0, (user_message("hi"),)),
        replace(sample.ending(), messages=(user_message("hi"), Message("assistant", (Text("bye \x00 \ud800"),)))),
        LateSet(LATE),
    ],
}
# Held by a process that is gone, and by one of another host.
CLAIMED = {"app/ann/open": "{host}|999999999|never", "app/ann/resumed": "elsewhere|1|born"}

STATES = ("queued", "live", "paused", "suspended", "ended")
RECORDS: Sequence[Mapping[str, Any]] = [  # Any: fields of a record
    {
        "run_id": f"run_{state}",
        "session": f"app/ann/{state}",
        "state": state,
        "created_at": 100.0 + number,
        "owner": "elsewhere|1|born" if number % 2 else "{host}|999999999|never",
        "request": {"newMessage": {"parts": [{"text": f"do {state} \ud800"}]}},
        "key": f"key-{number}" if number % 2 else None,
        "digest": "d" * 64 if number % 2 else None,
        "started_at": None if state == "queued" else 101.0 + number,
        "ended_at": 150.0 if state == "ended" else None,
        "outcome": {"ended": "cancelled", "paused": "interrupted"}.get(state),
        "reason": {"text": "enough", "source": "user", "by": None} if state == "ended" else None,
        "renewed": 120.0,
        "epoch": number,
        "by": "laptop",
        "usage": {"inputTokens": 3} if state == "ended" else None,
    }
    for number, state in enumerate(STATES)
]
_WHY = {"text": "x", "source": "user"}
# By run: what somebody wants of it, and what its owner has said to that.
WANTED: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any] | None]] = [  # Any: JSON values
    ("run_live", {"id": "ask_1", "request": {"at": "now"}, "reason": {"text": "stop", "source": "user"}}, None),
    (
        "run_live",
        {"id": None, "request": {"node": "app/x"}, "reason": {"text": "x", "source": "user"}},
        {"outcome": None},
    ),
    ("run_paused", {"id": "ask_2", "request": {}, "reason": {"text": "y", "source": "policy"}}, {"outcome": "stopped"}),
]
TOUCHED = {"app/ann/empty": 170.0, "app/ann/ended": 140.0}
SHARED = {"app": {"app:greeting": "hello \ud800"}, "app/ann": {"user:x": [1, 2], "user:y": {"z": None}}}
NOTES: Mapping[str, Sequence[tuple[float, Mapping[str, Any]]]] = {  # Any: JSON values
    "app/ann/stopped": [(1.0, {"event": "e-1", "stateDelta": {"a": 1}}), (2.0, {"id": "p-1", "stateDelta": {}})]
}
LOOPS = {"loop": b"safepoint-turns 1 digest\n{}", "other": bytes(range(256))}
LOOP_CLAIMS = {"loop": "elsewhere|1|born", "other": "{host}|999999999|never"}
