"""The switch from the command line: `safepoint freeze`, `safepoint freezes` and `safepoint thaw`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer

from safepoint.cli.admin import POINTS, Common, add_command, age, print_json, show_table
from safepoint.cli.options import fail
from safepoint.cli.sanitize import sanitize
from safepoint.cli.server_responses import ConcernedAnswer, FreezeAnswer, FrozenAnswer, ThawedAnswer


@dataclass(frozen=True, kw_only=True)
class FreezeOptions(Common):
    """Without --app, --user, --tool and --model everything is frozen."""

    reason: Annotated[str, typer.Option(help="Why: told wherever a run waits.")]
    app: Annotated[str | None, typer.Option(help="Only runs of this app.")] = None
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None
    model: Annotated[str | None, typer.Option(help="Only calls of this model.")] = None
    at: Annotated[list[str], typer.Option(help=f"Stop live runs there, or they wait: {POINTS}")] = field(
        default_factory=list[str]
    )
    within: Annotated[float | None, typer.Option(help="Seconds after which that stop becomes now.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Freeze nothing: list what it would concern.")] = False

    def body(self) -> dict[str, object]:
        given: dict[str, object | None] = {
            "reason": self.reason,
            "appName": self.app,
            "userId": self.user,
            "tool": self.tool,
            "model": self.model,
            "at": self.at or None,
            "withinSeconds": self.within,
            "dryRun": self.dry_run or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def freeze(options: FreezeOptions) -> None:
    """Let nothing begin: no run, no tool call, no model call, or only those that you name. `thaw` takes it back."""
    if options.within is not None and not options.at:
        fail("--within is for a stop: write --at any beside it, or leave it out")
    answer = options.client().post("freezes", body=options.body())
    found = answer.read(FrozenAnswer)
    if options.json:
        return print_json(answer.json)
    if found.frozen is not None:
        typer.echo(sanitize(f"frozen as {found.frozen.id}: {_what(found.frozen)}"))
    if not found.runs:
        typer.echo("no run is live", err=True)
        return
    columns = ("RUN", "STATE", "APP", "USER", "WOULD" if found.frozen is None else "NOW", "CUTS", "SECONDS", "TOKENS")
    show_table(columns, map(_concerned_row, found.runs))


def freezes(options: Common) -> None:
    """List what is frozen."""
    answer = options.client().get("freezes")
    found = answer.read(list[FreezeAnswer])
    if options.json:
        return print_json(answer.json)
    if not found:
        typer.echo("nothing is frozen", err=True)
        return
    rows = ((each.id, _what(each), each.reason, each.by, age(each.frozen_at)) for each in found)
    show_table(("FREEZE", "WHAT", "REASON", "BY", "AGE"), rows)


@dataclass(frozen=True, kw_only=True)
class ThawOptions(Common):
    freeze: Annotated[
        str | None, typer.Argument(metavar="FREEZE", help="Its id; `safepoint freezes` lists them. Without it: all.")
    ] = None


def thaw(options: ThawOptions) -> None:
    """Let go on what was frozen."""
    body = {} if options.freeze is None else {"id": options.freeze}
    answer = options.client().post("freezes", action="thaw", body=body)
    found = answer.read(ThawedAnswer)
    if options.json:
        return print_json(answer.json)
    for each in found.thawed:
        typer.echo(sanitize(f"thawed {each.id}: {_what(each)}"))
    if not found.thawed:
        typer.echo("nothing was frozen", err=True)


def _what(freeze: FreezeAnswer) -> str:
    named = (("app", freeze.app_name), ("user", freeze.user_id), ("tool", freeze.tool), ("model", freeze.model))
    return ", ".join(f"{name} {value}" for name, value in named if value is not None) or "everything"


def _concerned_row(run: ConcernedAnswer) -> Sequence[object]:
    seconds = "" if run.seconds is None or run.fate != "stops" else f"{run.seconds:.1f}"
    fate = run.fate or "in another process"
    return run.run_id, run.state, run.app_name, run.user_id, fate, ", ".join(run.cut), seconds, run.tokens_spent


def add_to(app: typer.Typer) -> None:
    """All commands of this module."""
    add_command(app, FreezeOptions, freeze)
    add_command(app, Common, freezes)
    add_command(app, ThawOptions, thaw)
