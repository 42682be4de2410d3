"""`--limit NAME=VALUE` and `--ladder NAME=SECONDS`: every limit and every rung of the server by its own name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from safepoint._core.ladder import Ladder

if TYPE_CHECKING:
    from safepoint.server.config import Limits


def limits_of(changes: Iterable[str]) -> Limits:
    """Raises ValueError with what to write instead."""
    from safepoint.server.config import Limits

    return Limits(**_read("--limit", Limits(), changes))


def ladder_of(changes: Iterable[str]) -> Ladder | None:
    """None if nothing is to be changed. Raises ValueError as above."""
    found = _read("--ladder", Ladder(), changes)
    return Ladder(**found) if found else None


def _read(option: str, usual: Limits | Ladder, changes: Iterable[str]) -> dict[str, Any]:  # Any: int or float, by name
    names = [each.name for each in fields(usual)]
    found: dict[str, Any] = {}  # Any: as above
    for change in changes:
        name, _, value = change.partition("=")
        if name not in names:
            raise ValueError(f"{option} {change}: write NAME=VALUE; the names are {', '.join(names)}")
        kind = int if isinstance(getattr(usual, name), int) else float
        try:
            found[name] = kind(value)
        except ValueError:
            raise ValueError(f"{option} {change}: {value!r} is no {kind.__name__}") from None
    return found
