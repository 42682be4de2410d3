"""D1–D14, each built into a real app: what the checks of `test_defects` have to find."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from safepoint import Agent, tool
from safepoint.agent.base import BaseAgent
from safepoint.agent.journal import Ended
from safepoint.protocols.adk.events import encode, event_json
from safepoint.protocols.adk.requests import RunRequest
from safepoint.server.app import create_app
from safepoint.server.config import ServerConfig
from safepoint.serving.events import MessageEvent, Turn
from safepoint.serving.feed import Feed, Frame, Viewer
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.sessions import SessionDispatcher
from safepoint.sessions.dispatch import IfBusy
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import AppendChanges, EndedRuns, FindRuns, OpenRuns, Query, Statement
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunState
from tests.server.apps.handy.agent import Handy
from tests.server.apps.worker.agent import ask, block, did, nap, note, stubborn

T = TypeVar("T")
SESSION = "/apps/{app}/users/{user}/sessions/{session}"
Build = Callable[[Path], FastAPI]


def app_with(
    *,
    storage: Storage | None = None,
    manager: type[RunManager] = RunManager,
    blocking: Any = block,  # Any: a tool
) -> FastAPI:
    """The app, with the parts that are broken."""
    agent = Agent("worker", model=Handy(), tools=[nap, note, ask, stubborn, blocking])
    agents: dict[str, BaseAgent[Any, Any]] = {"worker": agent, "handy": agent}  # Any: agents of every kind
    app = create_app(agents, storage=storage, config=ServerConfig(shutdown_seconds=0.1))
    whole: RunManager = app.state.manager
    app.state.manager = manager(whole.catalog, whole.storage, whole.config)
    return app


def first(app: FastAPI, router: APIRouter) -> FastAPI:
    """Routes that answer before those of the app; put there after the start, which would refuse them."""
    begin = app.router.lifespan_context

    @asynccontextmanager
    async def begin_and_break(started: Any) -> AsyncGenerator[Any]:  # Any: as starlette has it
        async with begin(started) as state:
            before = len(app.router.routes)
            app.include_router(router)
            added = app.router.routes[before:]
            app.router.routes[:] = [*added, *app.router.routes[:before]]
            yield state

    app.router.lifespan_context = begin_and_break
    return app


def d01(folder: Path) -> FastAPI:
    """The cancel route comes after create-with-id, which takes every id."""
    router, app = APIRouter(), app_with()

    @router.post(SESSION)
    async def create_any(app_: Request, app: str, user: str, session: str) -> dict[str, str]:
        manager: RunManager = app_.app.state.manager
        await manager.create(SessionKey(app, user, session), {})
        return {"id": session}

    return first(app, router)


def d02(folder: Path) -> FastAPI:
    """A session's id has another name than its clients read."""
    app = app_with()

    @app.middleware("http")
    async def rename(request: Request, call_next: Any) -> Response:  # Any: as starlette has it
        answer = await call_next(request)
        body = b"".join([chunk async for chunk in answer.body_iterator])
        headers = {"content-type": answer.headers.get("content-type", "")}
        return Response(body.replace(b'"id":', b'"session_id":'), answer.status_code, headers)

    return app


def d03(folder: Path) -> FastAPI:
    """Whoever waits for a cancelled run gets a 500."""
    app = app_with()

    @app.middleware("http")
    async def fail(request: Request, call_next: Any) -> Response:  # Any: as above
        answer = await call_next(request)
        body = b"".join([chunk async for chunk in answer.body_iterator])
        if request.url.path == "/run" and b"INVOCATION_ABORTED" in body:
            return Response("Internal Server Error", 500)
        return Response(body, answer.status_code, dict(answer.headers))

    return app


def d04(folder: Path) -> FastAPI:
    """The stream of a cancelled run just ends."""
    app = app_with()

    @app.middleware("http")
    async def cut(request: Request, call_next: Any) -> Response:  # Any: as above
        answer = await call_next(request)

        async def frames() -> AsyncIterator[bytes]:
            async for chunk in answer.body_iterator:
                if b"INVOCATION_ABORTED" not in chunk:
                    yield chunk

        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return StreamingResponse(frames(), answer.status_code, headers)

    return app


class Unsealed(MemoryStorage):
    """Never hears how a run ended."""

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        return await super().commit(*map(_without_ends, statements))


def _without_ends(statement: Statement[Any]) -> Statement[Any]:  # Any: of every result
    if not isinstance(statement, AppendChanges):
        return statement
    return replace(statement, changes=[each for each in statement.changes if not isinstance(each, Ended)])


def d05(folder: Path) -> FastAPI:
    """A cancelled run leaves its history as it was in that moment."""
    router, app = APIRouter(), app_with(storage=Unsealed())

    @router.get(SESSION)
    async def raw(request: Request, app: str, user: str, session: str) -> dict[str, Any]:  # Any: JSON
        manager: RunManager = request.app.state.manager
        stored = await manager.storage.sessions.load(SessionKey(app, user, session).stored_as)
        raw = Turn("raw", "raw")
        told = (MessageEvent(raw, position, 0.0, each) for position, each in enumerate(stored.messages))
        return {"events": [event_json(event) for event in told]}

    return first(app, router)


class BySessionId(RunManager):
    def live_of(self, key: SessionKey) -> list[ManagedRun]:
        return [run for run in self.live() if run.key.session == key.session]


def d06(folder: Path) -> FastAPI:
    """The key of a run is the bare id of its session."""
    return app_with(manager=BySessionId)


class OnlyTheLast(RunManager):
    def live_of(self, key: SessionKey) -> list[ManagedRun]:
        return super().live_of(key)[-1:]


def d07(folder: Path) -> FastAPI:
    """The second run of a session takes the entry of the first."""
    return app_with(manager=OnlyTheLast, storage=NoRecords())


class OneEntry(RunManager):
    """One entry for each session, which every run of it puts there and takes away."""

    def __init__(self, *parts: Any) -> None:  # Any: those of a host
        super().__init__(*parts)
        self._entries: dict[SessionKey, ManagedRun] = {}

    def serve(self, managed: ManagedRun, dispatcher: SessionDispatcher, if_busy: IfBusy) -> None:
        self._entries[managed.key] = managed
        super().serve(managed, dispatcher, if_busy)

    async def _lead(self, managed: ManagedRun, dispatcher: SessionDispatcher, if_busy: IfBusy) -> None:
        await super()._lead(managed, dispatcher, if_busy)
        self._entries.pop(managed.key, None)

    def live_of(self, key: SessionKey) -> list[ManagedRun]:
        return [self._entries[key]] if key in self._entries else []


def d08(folder: Path) -> FastAPI:
    """The end of one run takes another's entry away."""
    return app_with(manager=OneEntry, storage=NoRecords())


@tool(name="block")
async def block_the_loop(seconds: float) -> str:
    """Sleep, and let nobody else do anything."""
    did("block begins")
    time.sleep(seconds)  # noqa: ASYNC251  # that is the defect
    did("block ends")
    return "blocked"


def d09(folder: Path) -> FastAPI:
    """A tool that blocks holds the loop, and with it the cancel."""
    return app_with(blocking=block_the_loop)


def hasty_cancel(app: FastAPI) -> FastAPI:
    router = APIRouter()

    @router.post(SESSION + ":cancel")
    async def cancel(request: Request, app: str, user: str, session: str) -> dict[str, Any]:  # Any: JSON
        manager: RunManager = request.app.state.manager
        runs = manager.live_of(SessionKey(app, user, session))
        for managed in runs:
            managed.run.cancel()
        told: list[dict[str, Any]] = [
            {"runId": managed.id, "requested": True, "outcome": "stopped", "orphans": []} for managed in runs
        ]  # Any: JSON
        return {"status": "cancelled", "session_id": session, "runs": told}

    return first(app, router)


def d10(folder: Path) -> FastAPI:
    """A tool that swallows the cancellation is said to be cancelled while it runs on."""
    return hasty_cancel(app_with())


class Hoarding(Viewer):
    """Has a queue of its own, without a bound."""

    def __init__(self, feed: Feed, after: int) -> None:
        super().__init__(feed, after, partials=True, several=None)
        self.hoard: list[Frame] = []

    def wake(self) -> None:
        self._gather()
        super().wake()

    def take(self) -> Frame | None:
        self._gather()
        return self.hoard.pop(0) if self.hoard else None

    def _gather(self) -> None:
        while (frame := super().take()) is not None:
            self.hoard.append(frame)


def d11(folder: Path) -> FastAPI:
    """Every viewer has a queue that only ends with the memory."""
    router, app = APIRouter(), app_with()

    @router.post("/run_sse")
    async def run_sse(request: Request, body: RunRequest) -> Response:
        manager: RunManager = request.app.state.manager
        assert body.app_name is not None
        key = SessionKey(body.app_name, body.user_id, body.session_id)
        managed = await manager.submit(request.scope["safepoint.principal"], key, body.submission())
        assert isinstance(managed, ManagedRun)
        viewer = Hoarding(managed.feed, 0)
        managed.feed.enter(viewer)

        async def frames() -> AsyncIterator[str]:
            while not viewer.over or viewer.hoard:
                while (frame := viewer.take()) is not None:
                    yield f"data: {frame.encoded(encode)}\n\n"
                if not viewer.over:
                    await viewer.wait()

        return StreamingResponse(frames(), media_type="text/event-stream")

    return first(app, router)


def d12(folder: Path) -> FastAPI:
    """Cancelled means requested, and nobody learns when it came true."""
    return hasty_cancel(app_with())


def d13(folder: Path) -> FastAPI:
    """A cancel knows the runs of its own process only."""
    router, app = APIRouter(), app_with()

    @router.post(SESSION + ":cancel")
    async def cancel(request: Request, app: str, user: str, session: str) -> JSONResponse:
        manager: RunManager = request.app.state.manager
        if not manager.live_of(SessionKey(app, user, session)):
            return JSONResponse({"detail": f"No active run found for session '{session}'"}, 404)
        return JSONResponse({"status": "cancelled", "session_id": session})

    return first(app, router)


class NoRecords(MemoryStorage):
    """Finds no record that is not in memory elsewhere."""

    async def read(self, query: Query[T]) -> T:
        found = await super().read(query)
        return cast("T", []) if isinstance(query, FindRuns | EndedRuns | OpenRuns) else found


class OnlyRunning(RunManager):
    def live_of(self, key: SessionKey) -> list[ManagedRun]:
        return [run for run in super().live_of(key) if run.state is RunState.LIVE]


def d14(folder: Path) -> FastAPI:
    """What waits, for a person or for its turn, can't be cancelled."""
    return app_with(manager=OnlyRunning, storage=NoRecords())


BROKEN: dict[str, Build] = {
    build.__name__: build for build in (d01, d02, d03, d04, d05, d06, d07, d08, d09, d10, d11, d12, d13, d14)
}
