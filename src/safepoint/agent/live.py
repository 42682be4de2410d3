"""Who watches for new runs. The testing kit does, to check every run that a scenario started."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from safepoint.agent.run import Run

    AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent

_watchers: list[list[AnyRun]] = []


def register(run: AnyRun) -> None:
    for started in _watchers:
        started.append(run)


@contextmanager
def watch_runs() -> Generator[list[AnyRun]]:
    """All runs that start inside the block, in order, in any thread."""
    started: list[AnyRun] = []
    _watchers.append(started)
    try:
        yield started
    finally:
        _watchers.remove(started)
