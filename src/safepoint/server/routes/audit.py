"""The audit trail, as JSON lines. For the admin key."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from msgspec import to_builtins

from safepoint.protocols.http import Manager, Who
from safepoint.server.openapi import by_name

# Generators of clients know no type for JSON lines.
LINES = "text/plain"
_MOST = 1000

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get("/audit", response_class=Response, responses={200: {"content": {LINES: {"schema": {"type": "string"}}}}})
async def audit(
    manager: Manager,
    who: Who,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    run: str | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = _MOST,
) -> Response:
    """Oldest first, above the number `after`: go on with the last number until no line comes."""
    who.must_be_admin()
    entries = await manager.storage.audit.read(after=after, run=run, limit=limit)
    lines = [json.dumps({name: value for name, value in to_builtins(each).items() if value}) for each in entries]
    return Response("".join(f"{line}\n" for line in lines), media_type=LINES)
