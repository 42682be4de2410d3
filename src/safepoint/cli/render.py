"""What the server answered, for a person in a terminal.

Names, texts and reasons were written by users and models, so they are made `plain` first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from safepoint.cli.sanitize import sanitize
from safepoint.cli.server_responses import EventTold, Part

_WIDE = 200  # columns where there is no terminal, so that ids in a pipe are whole


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(sanitize(cell) if cell is not None else "", overflow="fold") for cell in row))
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


def event_line(event: EventTold) -> str:
    """One whole event as a line: who, and what was said, called or returned."""
    at = time.strftime("%H:%M:%S", time.localtime(event.timestamp))
    said = [_part(part) for part in event.content.parts]
    if event.error_code is not None:
        said.append(f"[{event.error_code}: {event.error_message or ''}]")
    elif event.long_running_tool_ids:
        said.append("[waits for an answer]")
    said += [f"[asks: {question.payload}]" for question in event.custom_metadata.safepoint_questions]
    return sanitize(f"{at} {event.author}: {' '.join(said)}".rstrip())


def _part(part: Part) -> str:
    call, result = part.function_call, part.function_response
    if call is not None:
        given = ", ".join(f"{name}={value!r}" for name, value in call.args.items())
        return f"→ {call.name}({given})"
    if result is not None:
        response = result.response
        return f"← {result.name}: {response.get('result', response.get('error', response))}"
    return part.text.strip() if part.text is not None else f"<{', '.join(part.others)}>"
