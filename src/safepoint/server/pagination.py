"""Runs, newest first and a page at a time.

A page ends at a place: when its last run was accepted, and its id. The next page is what is older, so no run is shown
twice or left out, however many runs begin or are deleted meanwhile. The body is a plain list; where more follows, the
answer has a `Link` header with the query of the next page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from urllib.parse import urlencode

from fastapi import Depends, Query

from safepoint.protocols.adk.events import Json
from safepoint.serving.ids import BadId, check_id, check_ids
from safepoint.serving.run_lookup import RunQuery
from safepoint.storage.run_records import Cursor, RunState

USUAL = 100
MOST = 1000


def parse_cursor(text: str) -> Cursor:
    """Raises `BadId`."""
    at, _, run_id = text.partition(",")
    try:
        place = Cursor(float(at), run_id)
    except ValueError:
        place = Cursor(math.nan, run_id)
    if not math.isfinite(place.created_at):
        raise BadId(f"after {text[:140]!r}: write what the Link header of the page before says")
    check_id("run", run_id)
    return place


@dataclass(frozen=True)
class PageQuery(RunQuery):
    """Which runs, as a query says it: all that fit, after a place, and how many of them."""

    def page(self, found: Iterable[tuple[Cursor, Json]]) -> tuple[list[Json], str | None]:
        """The page, and the query of the next one if there is one."""
        fitting = {place: run for place, run in found if self._fits(place, run)}
        places = sorted(fitting, reverse=True)
        shown = places[: self.limit]
        runs = [{**fitting[place], "createdAt": place.created_at} for place in shown]
        return runs, self._query(shown[-1]) if len(places) > self.limit else None

    def _fits(self, place: Cursor, run: Json) -> bool:
        named = self.app in (None, run.get("appName")) and self.user in (None, run.get("userId"))
        return named and run["state"] in self.states and (self.after is None or place < self.after)

    def _query(self, last: Cursor) -> str:
        states = sorted(self.states) if set(self.states) < set(RunState) else []
        named = [(name, value) for name, value in (("app", self.app), ("user", self.user)) if value is not None]
        wanted = [*named, *(("state", str(state)) for state in states), ("limit", str(self.limit))]
        return urlencode([*wanted, ("after", f"{last.created_at!r},{last.run_id}")])


async def _wanted(
    app: str | None = None,
    user: str | None = None,
    state: Annotated[list[RunState] | None, Query(description="Of these only; repeat it.")] = None,
    after: Annotated[str | None, Query(description="As the Link header of the page before says.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = USUAL,
) -> PageQuery:
    """Raises `BadId`."""
    check_ids(app=app, user=user)
    place = None if after is None else parse_cursor(after)
    return PageQuery(app, user, frozenset(state or RunState), place, limit)


RunPage: TypeAlias = Annotated[PageQuery, Depends(_wanted)]
