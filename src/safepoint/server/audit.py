"""The audit trail of a server: every request that changes something for a run is an entry, and so is its answer.

The entry of the request is written while the request is carried out, so that no stop waits for it, and before it is
answered. A store that does not take it does not stop a stop: then the log has it. Words of conversations are left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from msgspec.structs import replace

from safepoint.errors import StoreError
from safepoint.protocols.adk.events import Json
from safepoint.protocols.http import PRINCIPAL
from safepoint.serving.principal import Principal
from safepoint.serving.run_manager import RunManager
from safepoint.storage.audit import AuditEntry

_log = logging.getLogger("safepoint.server")

_PATIENCE = 1.0
_LONGEST = 4000  # characters of a request or an answer
_LOOKS = ("GET", "HEAD", "OPTIONS")
# What people say to each other is not the operators' business; that they said something is.
_WORDS = ("newMessage", "new_message", "events", "answers")
_STACKS = ("stack",)


class AuditedRoute(APIRoute):
    """A route whose requests are in the audit trail, unless they only look."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:  # Any: what a coroutine yields
        handle = super().get_route_handler()

        async def audited(request: Request) -> Response:
            """Cancellation: as of the handler; what was asked is in the trail."""
            if request.method in _LOOKS:
                return await handle(request)
            trail = _Trail(request, self.name, await request.body())
            try:
                response = await handle(request)
            except HTTPException as error:
                await trail.answer(error.status_code, {"detail": str(error.detail)})
                raise
            except Exception as error:
                await trail.answer(None, {"detail": f"{type(error).__name__}: {error}"})
                raise
            await trail.answer(response.status_code, _read(bytes(response.body)))
            return response

        return audited


class _Trail:
    """One request, and the entries about it."""

    def __init__(self, request: Request, action: str, body: bytes) -> None:
        self._manager: RunManager = request.app.state.manager
        who: Principal = request.scope[PRINCIPAL]
        origin = request.client.host if request.client is not None else ""
        sent = _read(body)
        params = cast("Mapping[str, str]", request.path_params)
        named = {name: params.get(name) for name in ("app", "user", "session")}
        self._entry = AuditEntry(
            time.time(),
            who.name,
            action,
            origin,
            params.get("run") or _text(sent, "runId"),
            named["app"] or _text(sent, "appName"),
            named["user"] or _text(sent, "userId"),
            named["session"] or _text(sent, "sessionId"),
            _without_words(sent),
        )
        self._asked = asyncio.ensure_future(self._add(self._entry))

    async def answer(self, status: int | None, answer: Json) -> None:
        """What came of it, for each run that it touched. Cancellation: written or not."""
        number = await self._asked
        runs: list[Json] = answer.get("runs") or []
        touched = [each["runId"] for each in runs if "runId" in each]
        for run_id in touched or [self._entry.run_id]:
            of_run = next((each for each in runs if each.get("runId") == run_id), answer)
            shown = {"status": status, **_without_words(of_run)}
            about = replace(self._entry, at=time.time(), action="answer", asked={}, run_id=run_id, about=number)
            await self._add(replace(about, outcome=shown))

    async def _add(self, entry: AuditEntry) -> int | None:
        """Its number; None if the store did not take it. Cancellation: written or not."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._manager.storage.audit.add(entry)
        except (StoreError, TimeoutError) as error:
            _log.error("not in the audit trail: %s by %s: %s", entry.action, entry.who, error)
            return None


def _read(body: bytes) -> Json:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("Json", found) if isinstance(found, dict) else {}


def _without_words(sent: Json) -> Json:
    kept = {name: "…" if name in _WORDS else value for name, value in sent.items() if name not in _STACKS}
    length = len(json.dumps(kept))
    return kept if length <= _LONGEST else {"tooLong": length}


def _text(sent: Json, name: str) -> str | None:
    value: object = sent.get(name)
    return value if isinstance(value, str) else None
