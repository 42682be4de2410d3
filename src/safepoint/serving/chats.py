"""The sessions of one user as a list to choose from: titled by their first words, with how their last run stands."""

from __future__ import annotations

from dataclasses import dataclass

from safepoint.history.parts import Prompt, Text
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import Submission
from safepoint.storage.run_records import RunRecord

MOST = 500
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Chat:
    """`title`: empty if no message of a person is known. `last`: its newest run, None before the first."""

    key: SessionKey
    title: str
    updated_at: float
    last: ManagedRun | RunRecord | None


async def list_chats(manager: RunManager, app: str, user: str, prefix: str) -> list[Chat]:
    """Newest first. The records of runs have the words, so no conversation is read. Cancellation: no change."""
    storage = manager.storage
    ids = await storage.sessions.list_ids(prefix)
    touched = await storage.runs.touched(prefix)
    records: dict[str, list[RunRecord]] = {}
    for record in await storage.runs.find(prefix=prefix, limit=MOST * 4):
        records.setdefault(record.session, []).append(record)
    live = {run.key.stored_as: run for run in manager.live() if (run.key.app, run.key.user) == (app, user)}
    lookup = RunLookup(manager)
    chats: list[Chat] = []
    for id in ids:
        key = SessionKey.parse(id)
        if key is None:
            continue
        runs = sorted(records.get(id, ()), key=lambda record: record.created_at)
        newest = live.get(id) or (lookup.as_known_here(runs[-1]) or runs[-1] if runs else None)
        at = max(touched.get(id, 0.0), newest.accepted_at if isinstance(newest, ManagedRun) else 0.0)
        titles = [title for record in runs if (title := title_of(record))]
        if not titles and isinstance(newest, ManagedRun):
            titles.append(_first_line(newest.prompt))
        chats.append(Chat(key, titles[0] if titles else "", at, newest))
    return sorted(chats, key=lambda chat: chat.updated_at, reverse=True)[:MOST]


def title_of(record: RunRecord) -> str:
    """The first words of the message that the run answers; empty if it goes on with another run."""
    return _first_line(Submission.from_json(record.request).prompt or ())


def _first_line(prompt: Prompt) -> str:
    text = prompt if isinstance(prompt, str) else next((part.text for part in prompt if isinstance(part, Text)), "")
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
