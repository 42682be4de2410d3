"""`safepoint audit`: who asked what of which run when, from where, and what came of it, as JSON lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, cast

import typer

from safepoint.cli.admin import Common, add_command
from safepoint.cli.client import not_safepoint
from safepoint.cli.sanitize import sanitize


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Common):
    run: Annotated[str | None, typer.Option(help="Only what is about this run.")] = None
    after: Annotated[int, typer.Option(min=0, help="Only above this number.")] = 0


def audit(options: AuditOptions) -> None:
    """Print the audit trail, a JSON object in each line, oldest first."""
    client, after = options.client(), options.after
    while True:
        lines = client.lines("audit", after=str(after), run=options.run)
        for line in lines:
            typer.echo(sanitize(json.dumps(line.json)))
            entry = cast("dict[str, object]", line.json) if isinstance(line.json, dict) else {}
            number = entry.get("number")
            if not isinstance(number, int) or number <= after:
                raise not_safepoint(line.address)  # it would go on like that for ever
            after = number
        if not lines:
            return


def add_to(app: typer.Typer) -> None:
    """The command of this module."""
    add_command(app, AuditOptions, audit)
