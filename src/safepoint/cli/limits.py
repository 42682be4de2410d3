"""`--limit NAME=VALUE`: every limit of the server by its own name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from safepoint.server.config import Limits


def limits_of(changes: Iterable[str]) -> Limits:
    """Raises ValueError with what to write instead."""
    from safepoint.server.config import Limits

    usual = Limits()
    kinds: dict[str, type[int] | type[float]] = {each.name: type(getattr(usual, each.name)) for each in fields(usual)}
    given: dict[str, float] = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in kinds:
            raise ValueError(f"--limit {change}: write NAME=VALUE; the names are {', '.join(kinds)}")
        try:
            given[name] = kinds[name](value)
        except ValueError:
            raise ValueError(f"--limit {change}: {value!r} is no {kinds[name].__name__}") from None
    return Limits(**given)  # type: ignore[arg-type]  # each is of the type of its default
