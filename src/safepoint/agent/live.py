"""Observers of new runs. The testing kit uses them to check every run that a scenario started."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from safepoint.agent.run import Run

    AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent

# By their ids: two lists of the same runs compare equal but are two watchers.
_watchers: dict[int, list[AnyRun]] = {}


def register(run: AnyRun) -> None:
    for started in tuple(_watchers.values()):
        started.append(run)


@contextmanager
def watch_runs() -> Generator[list[AnyRun]]:
    """Collect all runs that start inside the block, in order, in any thread."""
    started: list[AnyRun] = []
    _watchers[id(started)] = started
    try:
        yield started
    finally:
        del _watchers[id(started)]
