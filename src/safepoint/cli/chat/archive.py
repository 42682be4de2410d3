"""Where chats are kept: one SQLite file, with a title and a time for each."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safepoint.errors import SessionNotFound
from safepoint.sessions import Session, SqliteStorage

_PREFIX = "chat_"


@dataclass(frozen=True, slots=True)
class ArchivedChat:
    """A chat in the list. `at`: when it began, in seconds since 1970."""

    id: str
    title: str
    at: float


def data_folder(environment: Mapping[str, str]) -> Path:
    """Below `XDG_DATA_HOME`, or `~/.local/share`."""
    base = environment.get("XDG_DATA_HOME") or str(Path("~").expanduser() / ".local" / "share")
    return Path(base) / "safepoint"


class Archive:
    """All chats of one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.history = folder / "history"
        self.history.touch(mode=0o600)  # commands and messages are private
        self._storage = SqliteStorage(folder / "chats.db")
        os.chmod(folder, 0o700)

    async def new(self, agent: str) -> Session:
        """Cancellation: the chat may be there, empty."""
        id = f"{_PREFIX}{time.time():017.6f}_{uuid.uuid4().hex[:6]}"
        return await Session.create(self._storage, id, state={"agent": agent})

    async def open(self, id: str) -> Session:
        """Raises `SessionNotFound`. Cancellation: the chat is as it was."""
        return await Session.load(self._storage, id)

    async def chats(self) -> list[ArchivedChat]:
        """Those in which something was said, newest first. Cancellation: nothing has changed."""
        states = await self._storage.sessions.states(_PREFIX)
        found = [
            ArchivedChat(id, str(state["title"]), float(id.split("_")[1]))
            for id, state in states.items()
            if "title" in state
        ]
        return sorted(found, key=lambda chat: chat.at, reverse=True)

    async def latest(self) -> Session:
        """Raises `SessionNotFound` if there is none. Cancellation: as for `open`."""
        chats = await self.chats()
        if not chats:
            raise SessionNotFound("there is no earlier chat: leave out --continue")
        return await self.open(chats[0].id)

    async def aclose(self) -> None:
        """Cancellation: it is closed all the same."""
        await self._storage.aclose()
