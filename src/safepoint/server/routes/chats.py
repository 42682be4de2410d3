"""The list of chats that the page shows."""

from __future__ import annotations

from fastapi import APIRouter

from safepoint.protocols.adk.events import Json
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.openapi import answers, by_name
from safepoint.server.routes.sessions import BASE
from safepoint.server.serializers import record_json, run_json, without_nulls
from safepoint.serving.chats import Chat, list_chats
from safepoint.serving.managed_run import ManagedRun

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get(BASE.removesuffix("/sessions") + "/chats", response_model=None, responses=answers(list[described.Chat]))
async def chats(manager: Manager, who: Who, app: str, user: str) -> list[Json]:
    """The sessions of a user by their first words, newest first, each with its newest run."""
    return [_chat_json(chat) for chat in await list_chats(manager, app, user, who.prefix(app, user))]


def _chat_json(chat: Chat) -> Json:
    found: Json = {"sessionId": chat.key.session, "title": chat.title, "updatedAt": chat.updated_at}
    last = chat.last
    if last is not None:
        found["lastRun"] = without_nulls(run_json(last) if isinstance(last, ManagedRun) else record_json(last))
    return found
