"""The methods of the protocol, on one run manager: the sessions that a client has open, and their turns."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import PurePath
from typing import Any, Final, Protocol, cast

from acp import schema
from acp.meta import AGENT_METHODS, CLIENT_METHODS, PROTOCOL_VERSION

from safepoint._core.latch import Latch
from safepoint._core.reasons import Reason, Source
from safepoint.errors import SessionNotFound, StoreError
from safepoint.protocols.acp.client_servers import ClientServer, agent_with_servers
from safepoint.protocols.acp.content import parts_of
from safepoint.protocols.acp.permissions import choice_of
from safepoint.protocols.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, Json, RequestId, RpcConnection, RpcError
from safepoint.protocols.acp.turn import (
    AcpSession,
    Place,
    Turn,
    cleared_pause,
    last_updates,
    no_session,
    questions_as_text,
)
from safepoint.protocols.acp.updates import UpdateEncoder
from safepoint.serving.ids import BadId
from safepoint.serving.principal import NotFound, Principal
from safepoint.serving.run_lookup import RunLookup, SessionView
from safepoint.serving.run_manager import RunManager
from safepoint.sessions.dispatch import IfBusy

_log = logging.getLogger("safepoint.acp")

_PAGE: Final = 100
_STOPPED = "the person stopped it"


class _InFolder(Protocol):
    """What the three requests that open a session have in common."""

    @property
    def cwd(self) -> str: ...
    @property
    def additional_directories(self) -> Sequence[str] | None: ...
    @property
    def mcp_servers(self) -> Sequence[ClientServer] | None: ...


class AcpAgent:
    """One connection. `app`: the app of the manager's catalog that the client talks to."""

    def __init__(
        self, manager: RunManager, app: str, who: Principal, rpc: RpcConnection, *, if_busy: IfBusy = "interrupt"
    ) -> None:
        self._manager = manager
        self._app = app
        self._who = who
        self._user = who.user or who.name
        self._rpc = rpc
        self._place = Place(manager, who, rpc, if_busy)
        self._sessions: dict[str, AcpSession] = {}
        # The turns whose request the client may take back.
        self._prompts: dict[RequestId, Turn] = {}
        rpc.requests = {
            AGENT_METHODS["initialize"]: (schema.InitializeRequest, self._initialize),
            AGENT_METHODS["session_new"]: (schema.NewSessionRequest, self._new),
            AGENT_METHODS["session_load"]: (schema.LoadSessionRequest, self._load),
            AGENT_METHODS["session_resume"]: (schema.ResumeSessionRequest, self._resume),
            AGENT_METHODS["session_list"]: (schema.ListSessionsRequest, self._list),
            AGENT_METHODS["session_close"]: (schema.CloseSessionRequest, self._close),
            AGENT_METHODS["session_prompt"]: (schema.PromptRequest, self._prompt),
        }
        rpc.notifications = {AGENT_METHODS["session_cancel"]: (schema.CancelNotification, self._cancel)}
        rpc.cancelled = self._take_back

    async def leave(self, reason: Reason) -> None:
        """Stop all turns and wait for their ends, which the ladder bounds. Cancellation: the asks stand."""
        turns = [turn for session in self._sessions.values() for turn in session.turns]
        for turn in turns:
            turn.stop(reason)
        for turn in turns:
            await turn.over.wait()
        for session in self._sessions.values():
            await self._forget(session)

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def _initialize(self, _: RequestId, request: schema.InitializeRequest) -> schema.InitializeResponse:
        """Answer with the one version that is spoken here, also to a client that has another."""
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=schema.Implementation(name="safepoint", title=self._app, version=metadata.version("safepoint")),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, audio=False, embedded_context=True),
                mcp_capabilities=schema.McpCapabilities(http=False, sse=False),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    async def _new(self, _: RequestId, request: schema.NewSessionRequest) -> schema.NewSessionResponse:
        """Cancellation: it is made or it is not."""
        facts = _facts(request)
        key = self._who.session(self._app, self._user, f"acp_{uuid.uuid4().hex}")
        session = AcpSession(key, facts)
        await self._bring_servers(session, request)
        await _stored(self._manager.create(key, {"acp": facts}))
        self._sessions[key.session] = session
        return schema.NewSessionResponse(session_id=key.session)

    async def _load(self, _: RequestId, request: schema.LoadSessionRequest) -> schema.LoadSessionResponse:
        """Cancellation: the session is open, and a part of it was replayed."""
        session, view = await self._open(request.session_id, request)
        encoder = UpdateEncoder(user_words=True)
        for event in view.events:
            for update in encoder.encode(event):
                await self._update(session, update)
        checkpoint = (await _stored(self._manager.view(session.key))).checkpoint
        questions = checkpoint.questions if checkpoint is not None else ()
        if not session.turns:  # a live turn asks by itself
            session.asked = [question for question in questions if choice_of(question) is None]
            session.shown = encoder
            for update in questions_as_text(session.asked):
                await self._update(session, update)
        return schema.LoadSessionResponse()

    async def _resume(self, _: RequestId, request: schema.ResumeSessionRequest) -> schema.ResumeSessionResponse:
        """As `session/load`, without what was said. Cancellation: the session is open or it is not."""
        await self._open(request.session_id, request)
        return schema.ResumeSessionResponse()

    async def _list(self, _: RequestId, request: schema.ListSessionsRequest) -> schema.ListSessionsResponse:
        """The one that was changed last comes first. Cancellation: nothing has changed."""
        prefix = self._who.prefix(self._app, self._user)
        views = await _stored(RunLookup(self._manager).sessions(self._app, self._user, prefix))
        found = [_info(view) for view in reversed(views)]
        if request.cwd is not None:
            found = [each for each in found if each.cwd == request.cwd]
        start = 0
        if request.cursor is not None:
            if not request.cursor.isdecimal() or len(request.cursor) > 9:
                raise RpcError(INVALID_PARAMS, "Invalid params: cursor: send the nextCursor of the page before")
            start = int(request.cursor)
        following = str(start + _PAGE) if start + _PAGE < len(found) else None
        return schema.ListSessionsResponse(sessions=found[start : start + _PAGE], next_cursor=following)

    async def _close(self, _: RequestId, request: schema.CloseSessionRequest) -> schema.CloseSessionResponse:
        """Its turns are stopped first. What was said stays stored. Cancellation: the session stays open."""
        session = self._session(request.session_id)
        turns = list(session.turns)
        for turn in turns:
            turn.stop(self._reason("the client closed the session"))
        for turn in turns:
            await turn.over.wait()
        if self._sessions.pop(session.id, None) is not None:
            await self._forget(session)
        return schema.CloseSessionResponse()

    async def _open(self, id: str, request: _InFolder) -> tuple[AcpSession, SessionView]:
        """A stored session, for this client. Raises `RpcError`. Cancellation: it is open or it is not."""
        facts = _facts(request)
        try:
            key = self._who.session(self._app, self._user, id)
            view = await _stored(RunLookup(self._manager).session(key))
        except (BadId, NotFound, SessionNotFound) as error:
            raise no_session(id) from error
        known = _kept(view)
        facts = {**known, **facts}
        session = self._sessions.get(id) or AcpSession(key, facts)
        if not session.turns:  # a live turn goes on with the servers that it has
            await self._bring_servers(session, request)
        if facts != known:
            await _stored(self._manager.patch(key, {"acp": facts}))
        session.facts = facts
        return self._sessions.setdefault(id, session), view

    async def _bring_servers(self, session: AcpSession, request: _InFolder) -> None:
        """In place of those that the session has. Raises `RpcError`. Cancellation: the session has none."""
        await self._forget(session)
        if not request.mcp_servers:
            return
        try:
            app = self._manager.agent(self._app)
            agent = await agent_with_servers(app, request.mcp_servers, session.servers)
        except BaseException:
            await session.servers.aclose()
            raise
        self._manager.session_agents[session.key] = agent

    async def _forget(self, session: AcpSession) -> None:
        """The servers of its client. Cancellation: put off until they are closed."""
        self._manager.session_agents.pop(session.key, None)
        await session.servers.aclose()

    def _session(self, id: str) -> AcpSession:
        """Raises `RpcError`."""
        session = self._sessions.get(id)
        if session is None:
            raise no_session(id)
        return session

    async def _update(self, session: AcpSession, update: Any) -> None:  # Any: as the schema has it
        await self._rpc.notify(
            CLIENT_METHODS["session_update"], schema.SessionNotification(session_id=session.id, update=update)
        )

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _prompt(self, id: RequestId, request: schema.PromptRequest) -> Awaitable[schema.PromptResponse]:
        """Not a coroutine: the turn is there before the next frame is read."""
        session, parts = self._session(request.session_id), parts_of(request.prompt)
        earlier = list(session.turns)
        turn = self._prompts[id] = Turn(self._place, session, parts)
        turn.over.when_set(lambda: self._prompts.pop(id) if self._prompts.get(id) is turn else None)
        if self._place.if_busy == "interrupt":
            for other in earlier:
                other.stop(Reason("a new message came", Source.USER, by=self._user))
        return turn.run()

    def _cancel(self, request: schema.CancelNotification) -> None:
        """The live turn, and those that wait; nothing for a session that is idle, or not known."""
        session = self._sessions.get(request.session_id)
        if session is None:
            return
        reason = self._reason(_STOPPED)
        for turn in list(session.turns):
            turn.stop(reason)
        if not session.turns and session.asked:
            session.asked = ()
            session.settled = Latch()
            self._rpc.spawn(self._clear(session, reason, session.settled))

    async def _clear(self, session: AcpSession, reason: Reason, settled: Latch) -> None:
        """The question that the client was told is answered by a stop. Cancellation: cleared or not."""
        key = session.key
        try:
            runs = (await self._manager.view(key)).runs
            if runs:
                await cleared_pause(self._manager, key, runs[-1].run_id, reason)
            for update in await last_updates(self._manager, key, session.shown):
                await self._update(session, update)
        except StoreError as error:  # then the next message closes the pause
            _log.error("the pause of the session %s could not be cleared: %s", key.session, error)
        finally:
            settled.set()

    def _take_back(self, id: RequestId) -> bool:
        turn = self._prompts.get(id)
        if turn is None:
            return False
        turn.stop(self._reason(_STOPPED))
        return True

    def _reason(self, text: str) -> Reason:
        return self._who.reason(text, user=self._user)


async def serve(agent: AcpAgent, rpc: RpcConnection, leaving: asyncio.Event) -> None:
    """Until the client closes its side, or `leaving` is set; then all turns are stopped NOW and recorded.

    Cancellation: likewise, but the turns are not waited for.
    """
    listening = rpc.spawn(rpc.listen())
    waiting = asyncio.ensure_future(leaving.wait())
    try:
        await asyncio.wait({listening, waiting}, return_when=asyncio.FIRST_COMPLETED)
        await agent.leave(Reason("the client went away", Source.DISCONNECT))
    finally:
        waiting.cancel()
        await rpc.close()


def _facts(request: _InFolder) -> Json:
    """What a tool finds as `ctx.session.state["acp"]`: data, and no permission. Raises `RpcError`."""
    folders = [request.cwd, *(request.additional_directories or ())]
    for folder in folders:
        if not PurePath(folder).is_absolute():
            raise RpcError(INVALID_PARAMS, f"Invalid params: {folder[:140]!r} is not an absolute path")
    found: Json = {"cwd": request.cwd}
    return found if len(folders) == 1 else {**found, "additionalDirectories": folders[1:]}


def _kept(view: SessionView) -> Json:
    kept: object = view.state.get("acp")
    return cast("Json", kept) if isinstance(kept, dict) else {}


def _info(view: SessionView) -> schema.SessionInfo:
    kept = _kept(view)
    title: object = kept.get("title")
    return schema.SessionInfo(
        session_id=view.key.session,
        cwd=str(kept.get("cwd", "/")),  # of a session that another protocol has made, which has none
        title=title if isinstance(title, str) else None,
        updated_at=datetime.fromtimestamp(view.updated_at, UTC).isoformat(),
    )


async def _stored(work: Awaitable[Any]) -> Any:  # Any: whatever is awaited
    """Raises `SessionNotFound`, and `RpcError` for a storage that fails. Cancellation: as of the work."""
    try:
        return await work
    except SessionNotFound:
        raise
    except StoreError as error:
        _log.exception("the storage failed")
        raise RpcError(INTERNAL_ERROR, f"the storage failed: {error}") from error
