"""A server with keys, people who have some, and everything about it that an intruder could change."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from safepoint.server.keys import KeyFile
from tests.server.server_process import Answer, ServerProcess, calls_and_results, message, session_path

HEARTBEATS = {"renewed"}  # what changes by itself while a run is live


@dataclass(frozen=True)
class Snapshot:
    """Everything stored, everything that tools did, and every run as an admin sees it."""

    tables: Mapping[str, list[tuple[object, ...]]]
    did: list[str]
    runs: object


class Guarded:
    """Ann has a session with a finished run, one with a live run, one that waits for an answer. Bob has one. Eve's key
    is revoked. `values`: what stands for `$DONE`, `$LIVE`, `$PAUSED` (runs) and `$CALL` in an attempt."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        kind: type[ServerProcess] = ServerProcess,
        tables: Callable[[], Mapping[str, list[tuple[object, ...]]]] | None = None,
    ) -> None:
        """`tables`: reads everything that is stored, where that is no file in the folder."""
        self._tables = tables if tables is not None else self._read_file
        self.keyfile = KeyFile(folder / "data" / "keys.json")
        self.keys = {name: self.keyfile.add(name, user=name) for name in ("ann", "bob", "eve")}
        self.keys["boss"] = self.keyfile.add("boss", admin=True)
        self.keyfile.revoke("eve")
        many = ("--limit", "wrong_keys=1000000")  # every attempt comes from one address
        self.server = kind(folder, options=(*many, *options))
        self.values: dict[str, str] = dict(self.keys)

    def settle(self) -> None:
        """Give everybody what they have."""
        for session in ("done", "live", "paused"):
            assert self.ask("ann", "POST", session_path(session)).status == 200
        assert self.ask("bob", "POST", session_path("bobs", "bob")).status == 200
        done = self.ask("ann", "POST", "/run", message("done", "note first", idempotencyKey="once"))
        assert done.status == 200, done
        paused = self.ask("ann", "POST", "/run", message("paused", "ask how many"))
        assert paused.status == 200, paused
        self.values["CALL"] = calls_and_results(paused.body)[0][0]
        body = message("live", "nap 3000", onDisconnect="detach")
        with self.server.open_stream("POST", "/run_sse", body, self.bearer("ann")):
            self.server.until_did("nap begins")
        for run in self.ask("ann", "GET", "/runs").body:
            self.values[run["sessionId"].upper()] = run["runId"]

    def bearer(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[who]}"}

    def ask(
        self, who: str | None, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """`who`: None for a request without a key. `$NAMES` in path and body are replaced."""
        if isinstance(body, bytes) or body is None:
            sent = body
        else:
            sent = Template(json.dumps(body)).safe_substitute(self.values).encode()
        given = {**(self.bearer(who) if who is not None else {}), **(headers or {})}
        given = {name: Template(value).safe_substitute(self.values) for name, value in given.items()}
        return self.server.http(method, Template(path).safe_substitute(self.values), sent, given)

    def cookie(self, who: str, origin: str | None = None) -> str:
        """Log in, as the page does; the cookie without its attributes."""
        answer = self.ask(None, "POST", "/login", {"key": self.keys[who]}, {"Origin": origin or self.origin})
        assert answer.status == 200, answer
        return answer.headers["set-cookie"].partition(";")[0]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def snapshot(self) -> Snapshot:
        runs = [server.get("/runs", self.bearer("boss")).body for server in self.server.each]
        return Snapshot(_without_audit(self._tables()), self.server.did(), runs)

    def _read_file(self) -> Mapping[str, list[tuple[object, ...]]]:
        path = self.server.folder / "data" / "safepoint.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            names = [str(row[0]) for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: _rows(db, name) for name in names}


def _without_audit(tables: Mapping[str, list[tuple[object, ...]]]) -> Mapping[str, list[tuple[object, ...]]]:
    """The audit trail tells what was refused, too, and workers tell that they live, whatever anyone attempts.

    SQLite counts the rows of the trail in a table of its own.
    """
    kept = {name: rows for name, rows in tables.items() if name not in ("audit", "workers")}
    if "sqlite_sequence" in kept:
        kept["sqlite_sequence"] = [row for row in kept["sqlite_sequence"] if row[0] != "audit"]
    return kept


def raw(port: int, data: bytes, *, timeout: float = 10.0) -> bytes:
    """Send bytes as they are; everything that comes back until the server closes, or is silent."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        try:
            connection.sendall(data)
            while piece := connection.recv(65536):
                received += piece
        except OSError:
            pass
    return received


def status_of(answer: bytes) -> int:
    """Of the first answer in those bytes; 0 if there is none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if words[0].startswith(b"HTTP/1.1") else 0


def _rows(db: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] not in HEARTBEATS]
    rows: list[tuple[Any, ...]] = db.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()  # Any: of SQLite
    return sorted(rows, key=repr)
