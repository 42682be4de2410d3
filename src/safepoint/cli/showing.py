"""What the server answered, for a person in a terminal.

Names, texts and reasons were written by users and models, so they are made `plain` first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from safepoint.cli.plain import plain

_WIDE = 200  # columns where there is no terminal, so that ids in a pipe are whole


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(plain(cell) if cell is not None else "", overflow="fold") for cell in row))
    console.print(table)


def age(since: float | None) -> str:
    """How long ago, in the largest unit that says something."""
    if since is None:
        return ""
    seconds = max(0, int(time.time() - since))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def event_line(event: Mapping[str, Any]) -> str:  # Any: JSON
    """One whole event as a line: who, and what was said, called or returned."""
    at = time.strftime("%H:%M:%S", time.localtime(event.get("timestamp", 0)))
    content: Mapping[str, Any] = event.get("content") or {}  # Any: as above
    said = [_part(part) for part in content.get("parts", ())]
    if "errorCode" in event:
        said.append(f"[{event['errorCode']}: {event.get('errorMessage', '')}]")
    elif event.get("longRunningToolIds"):
        said.append("[waits for an answer]")
    questions: Sequence[Mapping[str, Any]] = event.get("customMetadata", {}).get("safepointQuestions", ())  # Any: JSON
    said += [f"[asks: {question.get('payload')}]" for question in questions]
    return plain(f"{at} {event.get('author', '')}: {' '.join(said)}".rstrip())


def _part(part: Mapping[str, Any]) -> str:  # Any: JSON
    if "functionCall" in part:
        call: Mapping[str, Any] = part["functionCall"]  # Any: as above
        given = ", ".join(f"{name}={value!r}" for name, value in call.get("args", {}).items())
        return f"→ {call.get('name')}({given})"
    if "functionResponse" in part:
        result: Mapping[str, Any] = part["functionResponse"]  # Any: as above
        response: Mapping[str, Any] = result.get("response") or {}  # Any: as above
        return f"← {result.get('name')}: {response.get('result', response.get('error', response))}"
    return str(part["text"]).strip() if "text" in part else f"<{', '.join(part)}>"
