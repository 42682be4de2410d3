"""What becomes of a run whose process is gone, case by case, as `takeover.py` tells it."""

from __future__ import annotations

from typing import Any

import pytest

from safepoint._core.reasons import Reason, Source
from safepoint.agent.checkpoint import Checkpoint, OpenCall, Question
from safepoint.agent.result import StopReason
from safepoint.history.parts import Message, Text, user_message
from safepoint.server.config import OnCrash, ServerConfig
from safepoint.serving.takeover import KILLER, Move, Verdict, verdict
from safepoint.sessions import MemoryStore, Session
from safepoint.sessions.sealing import CRASH
from safepoint.sessions.store import Stored, StoredRun
from safepoint.storage.run_records import RunRecord, RunState
from tests.server.server_process import message

SHUTDOWN = Reason("the server is shutting down", Source.SHUTDOWN)
ENOUGH = Reason("enough", Source.USER, "ann")
GO_ON = ServerConfig()
STAY = ServerConfig(resume_on_start=False, on_crash=OnCrash.SEAL)
START, RESUME, PAUSE, SUSPEND = map(Verdict, (Move.START, Move.RESUME, Move.PAUSE, Move.SUSPEND))


def ended(stop_reason: StopReason, reason: Reason | None = None, run_id: str = "r", origin: str = "") -> StoredRun:
    asked = OpenCall("c", "", question=Question("c:1", "ask", "why?"))
    calls = {"c": asked} if stop_reason is StopReason.INTERRUPTED else {}
    checkpoint = Checkpoint("cp", "worker", run_id, stop_reason, (), (), calls=calls, reason=reason)
    kept = checkpoint if stop_reason in (StopReason.CANCELLED, StopReason.INTERRUPTED) else None
    return StoredRun(run_id, "worker", 0, True, str(stop_reason), kept, origin=origin or run_id)


def session(*runs: StoredRun, said: str = "earlier", at: float = 0.0) -> Session:
    messages = (user_message(said), Message("assistant", (Text("well"),)))
    return Session(MemoryStore(), "worker/ann/s", Stored(messages, {}, runs, times=(at, at)))


def record(state: RunState = RunState.LIVE, **more: Any) -> RunRecord:  # Any: fields of it, or of its request
    deaths = more.pop("deaths", 0)
    return RunRecord("r", "worker/ann/s", state, 5.0, "here|1|1", message("s", "go", **more), epoch=1, deaths=deaths)


def end(outcome: StopReason | str, reason: Reason | None = None) -> Verdict:
    return Verdict(Move.END, str(outcome), reason)


CUT, PAUSED = ended(StopReason.CANCELLED, CRASH), ended(StopReason.INTERRUPTED)
SUSPENDED = ended(StopReason.CANCELLED, SHUTDOWN)
LATER = ended(StopReason.END_TURN, run_id="later")
CONTINUED = ended(StopReason.END_TURN, run_id="other", origin="r")

CASES: dict[str, tuple[RunRecord, Session, Reason | None, ServerConfig, Verdict]] = {
    "its end was stored": (record(), session(ended(StopReason.END_TURN)), None, GO_ON, end(StopReason.END_TURN)),
    "it finished before the cancel": (
        *(record(), session(ended(StopReason.END_TURN)), ENOUGH, GO_ON),
        end(StopReason.END_TURN),
    ),
    "it failed": (record(), session(ended(StopReason.ERROR)), None, GO_ON, end(StopReason.ERROR)),
    "a crash cut it": (record(), session(CUT), None, GO_ON, RESUME),
    "a crash cut it, and such runs stay stopped": (
        *(record(), session(CUT), None, STAY),
        end(StopReason.CANCELLED, CRASH),
    ),
    "a crash cut it, and somebody wanted it stopped": (
        *(record(), session(CUT), ENOUGH, GO_ON),
        end(StopReason.CANCELLED, ENOUGH),
    ),
    "a crash cut it, and a later message came": (
        *(record(), session(CUT, LATER), None, GO_ON),
        end(StopReason.CANCELLED, CRASH),
    ),
    "it was live in two workers when they died": (record(deaths=2), session(CUT), None, GO_ON, RESUME),
    "it was live in three workers in a row when they died": (
        *(record(deaths=3), session(CUT), None, GO_ON),
        end(StopReason.ERROR, KILLER),
    ),
    "a person stopped it, and its record was late": (
        *(record(), session(ended(StopReason.CANCELLED, ENOUGH)), None, GO_ON),
        end(StopReason.CANCELLED, ENOUGH),
    ),
    "a shutdown suspended it": (record(RunState.SUSPENDED), session(SUSPENDED), None, GO_ON, RESUME),
    "a shutdown stopped it, and its record was late": (record(), session(SUSPENDED), None, GO_ON, RESUME),
    "it stays suspended": (record(), session(SUSPENDED), None, STAY, SUSPEND),
    "it was suspended as its turn began": (
        *(record(RunState.SUSPENDED), session(ended(StopReason.CANCELLED, Reason("", Source.CALLER))), None, GO_ON),
        RESUME,
    ),
    "it is suspended, and somebody wants it stopped": (
        *(record(RunState.SUSPENDED), session(SUSPENDED), ENOUGH, STAY),
        end(StopReason.CANCELLED, ENOUGH),
    ),
    "it waits for a person": (record(), session(PAUSED), None, STAY, PAUSE),
    "it waits for a person, and somebody wants it stopped": (
        *(record(RunState.PAUSED), session(PAUSED), ENOUGH, GO_ON),
        Verdict(Move.CLEAR, reason=ENOUGH),
    ),
    "it waited for a person, and a later message came": (
        *(record(), session(PAUSED, LATER), None, GO_ON),
        end(StopReason.INTERRUPTED),
    ),
    "it never began": (record(), session(LATER), None, STAY, START),
    "it waited in the queue": (record(RunState.QUEUED), session(), None, GO_ON, START),
    "it waited in the queue, and somebody wanted it stopped": (
        *(record(RunState.QUEUED), session(), ENOUGH, GO_ON),
        end(StopReason.CANCELLED, ENOUGH),
    ),
    "it was suspended in the queue": (record(RunState.SUSPENDED), session(), None, GO_ON, START),
    "it stays suspended in the queue": (record(RunState.SUSPENDED), session(), None, STAY, SUSPEND),
    "it joined another run": (
        *(record(RunState.QUEUED, ifBusy="steer"), session(LATER, said="go", at=6.0), None, GO_ON),
        end("joined"),
    ),
    "the same was said before it came": (
        *(record(RunState.QUEUED, ifBusy="steer"), session(LATER, said="go", at=4.0), None, GO_ON),
        START,
    ),
    "somebody went on with it as another run": (
        *(record(), session(CONTINUED), None, GO_ON),
        end(StopReason.CANCELLED, Reason("it was continued as another run", Source.PREEMPT)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_stored_decides(case: tuple[RunRecord, Session, Reason | None, ServerConfig, Verdict]) -> None:
    left, within, wanted, config, expected = case
    assert verdict(left, within, wanted, config) == expected


@pytest.mark.parametrize(
    ("wrong", "text"),
    [({"on_crash": "hope"}, "'resume' or 'seal'"), ({"shutdown_seconds": 0}, "seconds above 0")],
)
def test_an_option_that_means_nothing_is_refused(wrong: dict[str, Any], text: str) -> None:  # Any: as users may write
    with pytest.raises(ValueError, match=text):
        ServerConfig(**wrong)
