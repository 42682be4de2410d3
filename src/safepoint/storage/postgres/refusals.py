"""What the functions of the schema refuse, as the errors that every storage raises for it.

A refusal has an SQLSTATE of the class SP and its particulars as JSON; see `refuse` in `session_functions.sql`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from safepoint.errors import CheckpointError, SessionExists, SessionNotFound, StoreError, Superseded
from safepoint.storage.lease import Lease, Process
from safepoint.storage.loop_data import in_use, superseded
from safepoint.storage.postgres.rows import read_record
from safepoint.storage.postgres.text_codec import unescape
from safepoint.storage.run_records import (
    AlreadyAccepted,
    KeyTaken,
    RecordMoved,
    must_wait,
)
from safepoint.storage.session_data import SessionOutdated, taken_by

Detail = Mapping[str, Any]  # Any: JSON values


def refusal(code: str, detail: str | None, lease: Lease) -> Exception | None:
    """The error that the refusal stands for; None if the code is not one of ours."""
    make = _REFUSALS.get(code)
    return None if make is None else make(json.loads(detail or "{}"), lease)


def holder_is_gone(code: str | None, detail: str | None, lease: Lease) -> str | None:
    """The worker in the way, if its process can be seen from here and is gone: then there is no lease to wait for.

    A pid means the same process only since the same boot and in the same pid namespace.
    """
    if code not in ("SPBSY", "SPLUP"):
        return None
    held: Detail = json.loads(detail or "{}")
    owner = unescape(held["owner"])
    return owner if is_gone(held.get("process"), lease) else None


def is_gone(process: object, lease: Lease) -> bool:
    try:
        known = Process.parse(process)
    except ValueError:
        return False
    return lease.process.can_see(known) and not known.is_alive()


def _where(held: Detail, lease: Lease) -> str:
    if unescape(held["owner"]) == lease.worker:
        return "in this process"
    try:
        return f"in process {Process.parse(held.get('process')).pid}"
    except ValueError:
        return "in another process"


def _busy(held: Detail, lease: Lease) -> Exception:
    id = unescape(held["session"])
    return taken_by(unescape(held["claimant"]), f"a run of the session {id!r} is live {_where(held, lease)}")


def _moved(detail: Detail, lease: Lease) -> Exception:
    record = read_record(detail)
    return RecordMoved(
        f"the run {record.run_id} is {record.state} and has the epoch {record.epoch}: it can't be moved so"
    )


def _taken_over(detail: Detail, lease: Lease) -> Exception:
    id = unescape(detail["run"])
    if not detail["known"]:
        return RecordMoved(f"there is no run {id}")
    return RecordMoved(f"the run {id} was taken over by another process, or has ended")


def _first(detail: Detail, lease: Lease) -> Exception:
    other = read_record(detail)
    return must_wait(other, other)


def _about(kind: Callable[[str], Exception], text: str) -> Callable[[Detail, Lease], Exception]:
    """An error whose text has the id in it, under whichever name the detail has it."""
    return lambda detail, lease: kind(text.format(*(unescape(str(value)) for value in detail.values())))


_REFUSALS: dict[str, Callable[[Detail, Lease], Exception]] = {
    "SPNOS": _about(SessionNotFound, "there is no session {!r}: create it first"),
    "SPEXI": _about(SessionExists, "the session {!r} is there already: load it"),
    "SPOLD": _about(SessionOutdated, "the session {!r} was changed since it was loaded"),
    "SPSUP": _about(Superseded, "the session {!r} was taken over by another run"),
    "SPCKP": _about(
        CheckpointError,
        "the session has moved on from the checkpoint {}: it was continued already, or a new message came after it",
    ),
    "SPNOR": _about(RecordMoved, "there is no run {}"),
    "SPBSY": _busy,
    "SPMOV": _moved,
    "SPTKN": _taken_over,
    "SPFST": _first,
    "SPKEY": lambda detail, lease: KeyTaken(
        f"the idempotency key {unescape(detail['key'])!r} belongs to another request"
    ),
    "SPACC": lambda detail, lease: AlreadyAccepted(read_record(detail)),
    "SPLUP": lambda detail, lease: in_use(unescape(detail["loop"]), _where(detail, lease)),
    "SPLSU": lambda detail, lease: superseded(unescape(detail["loop"])),
    "SPISO": lambda detail, lease: StoreError(
        "Safepoint needs the isolation level read committed: take default_transaction_isolation off the role or the "
        "database"
    ),
}
