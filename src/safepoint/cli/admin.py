"""What operators do to a running server: look at runs, stop them, steer them, let them go on.

Every command asks over HTTP and shows a table, or with `--json` the server's own answer. Exit codes: 0 it is done, 1
the server said no, 2 wrong use, 3 no server there, 4 not allowed, 5 asked and not done yet.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from safepoint._core.points import POINT_NAMES
from safepoint.cli.client import Answer, ServerClient, Trouble, not_safepoint
from safepoint.cli.options import NOT_YET, REFUSED, T, fail, takes
from safepoint.cli.sanitize import sanitize
from safepoint.cli.server_responses import (
    DryRunAnswer,
    EventAnswer,
    MoveAnswer,
    Part,
    ResumeAnswer,
    RunAnswer,
    SessionAnswer,
    SteerAnswer,
    StopAnswer,
    Stopped,
    WhyAnswer,
    WorkerAnswer,
    WorkersAnswer,
    WouldStop,
)

POINTS = f"{', '.join(POINT_NAMES)}, point:NAME; repeat."

# What the server answered, for a person in a terminal.
#
# Names, texts and reasons were written by users and models, so they are made `plain` first.

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


def event_line(event: EventAnswer) -> str:
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
    return part.text.strip() if part.text is not None else f"<{', '.join(part.other_fields)}>"


_SILENCE = 2.0
_OPEN = ("queued", "live", "paused", "suspended")
_MANY = "1000"


@dataclass(frozen=True, kw_only=True)
class Common:
    """Which server, and how to answer. A key is never an option: other users of the machine could read it there."""

    url: Annotated[str, typer.Option(envvar="SAFEPOINT_URL", help="Where the server is.")] = "http://127.0.0.1:8000"
    key_file: Annotated[
        Path | None, typer.Option(help="A file with the API key; without it, SAFEPOINT_KEY is looked at.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="The server's answer as JSON.")] = False

    def client(self) -> ServerClient:
        key = os.environ.get("SAFEPOINT_KEY") or None
        if self.key_file is not None:
            try:
                key = self.key_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                fail(f"can't read the key in {self.key_file}: {getattr(error, 'strerror', None) or 'it is no text'}")
        return ServerClient(self.url, key)


@dataclass(frozen=True, kw_only=True)
class OfRun(Common):
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id; `safepoint ps` lists them.")]


@dataclass(frozen=True, kw_only=True)
class Ps(Common):
    all: Annotated[bool, typer.Option("--all", "-a", help="Also runs that have ended.")] = False
    app: Annotated[str | None, typer.Option(help="Only runs of this app.")] = None
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None
    workers: Annotated[bool, typer.Option("--workers", help="The processes that work, and what waits for them.")] = (
        False
    )


def ps(options: Ps) -> None:
    """List runs: those that are queued, live, paused or suspended; or the workers."""
    if options.workers:
        return list_workers(options)
    state = None if options.all else _OPEN
    found: dict[str, tuple[RunAnswer, object]] = {}
    for answer in options.client().pages("runs", app=options.app, user=options.user, state=state, limit=_MANY):
        pairs = zip(answer.read(list[RunAnswer]), answer.json, strict=True)
        page = {run.run_id: (run, as_sent) for run, as_sent in pairs}
        if answer.link and page.keys() <= found.keys():
            raise not_safepoint(answer.address)  # it would go on like that for ever
        found |= page
    if options.json:
        return print_json([as_sent for _, as_sent in found.values()])
    runs = [run for run, _ in found.values()]
    if not runs:
        nothing = "no run is there" if options.all else "no run is under way; --all lists those that are over"
        typer.echo(nothing, err=True)
    show_table(("RUN", "STATE", "APP", "USER", "SESSION", "AGE", "OUTCOME", "REASON"), map(_run_row, runs))


def _run_row(run: RunAnswer) -> Sequence[object]:
    whose = (run.app_name, run.user_id, run.session_id)
    state = run.state if run.frozen is None else f"{run.state}, frozen"
    outcome = f"waiting for {run.waits_for}" if run.waits_for is not None else run.outcome
    return run.run_id, state, *whose, age(run.created_at), outcome, run.reason and run.reason.text


@dataclass(frozen=True, kw_only=True)
class Stop(Common):
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Its id; `safepoint ps` lists them.")] = None
    session: Annotated[str | None, typer.Option(metavar="APP/USER/SESSION", help="The runs of this session.")] = None
    all: Annotated[bool, typer.Option("--all", help="Every run that this key may stop.")] = False
    app: Annotated[str | None, typer.Option(help="The runs of this app.")] = None
    user: Annotated[str | None, typer.Option(help="The runs of this user.")] = None
    agent: Annotated[str | None, typer.Option(help="The runs in which this agent takes part.")] = None
    tool: Annotated[str | None, typer.Option(help="The runs that are calling this tool.")] = None
    state: Annotated[str | None, typer.Option(help="queued, live, paused or suspended.")] = None
    older_than: Annotated[float | None, typer.Option(help="Accepted more than so many seconds ago.")] = None
    tokens_over: Annotated[int | None, typer.Option(help="That have used more than so many tokens.")] = None
    metadata: Annotated[
        list[str], typer.Option(metavar="NAME=VALUE", help="Whose message came with it; the value as JSON or text.")
    ] = field(default_factory=list[str])
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop nothing: list what would stop and be cut.")] = False
    at: Annotated[
        list[str],
        typer.Option(help=POINTS),
    ] = field(default_factory=lambda: ["now"])
    within: Annotated[float | None, typer.Option(help="Seconds after which it becomes now.")] = None
    recursive: Annotated[bool, typer.Option("--recursive", help="A safe point of sub-agents will do too.")] = False
    reason: Annotated[str | None, typer.Option(help="Why, for the record and for the model.")] = None
    wait: Annotated[float, typer.Option(min=0, max=60, help="Seconds to wait for the end.")] = 5.0

    def body(self) -> dict[str, object]:
        body: dict[str, object] = {"at": self.at, "waitSeconds": self.wait, "recursive": self.recursive}
        if self.within is not None:
            body["withinSeconds"] = self.within
        return body if self.reason is None else {**body, "reason": self.reason}

    def filters(self) -> dict[str, object]:
        """Which of all runs are meant."""
        given: dict[str, object | None] = {
            "appName": self.app,
            "userId": self.user,
            "agent": self.agent,
            "tool": self.tool,
            "state": self.state,
            "olderThanSeconds": self.older_than,
            "tokensOver": self.tokens_over,
            "metadata": _metadata(self.metadata) or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def _metadata(given: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not name or not equals:
            fail(f"--metadata {each!r}: write NAME=VALUE")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def stop(options: Stop) -> None:
    """Stop a run, the runs of a session, those that fit, or all. Exits with 5 if one is not over when the wait ends."""
    answer = _stop(options)
    if options.dry_run:
        return _show_dry_run(options, answer)
    stopped = answer.read(StopAnswer)
    if options.json:
        print_json(answer.json)
    elif stopped.runs is None:
        typer.echo(sanitize(f"{options.run} is over already: {stopped.outcome or 'ended'}"))
    elif not stopped.runs:
        typer.echo("no run is live")
    else:
        show_table(("RUN", "OUTCOME", "DURABLE", "LEFT BEHIND"), map(_stopped_row, stopped.runs))
    if stopped.status == "cancelling":
        raise typer.Exit(NOT_YET)


def _show_dry_run(options: Stop, answer: Answer) -> None:
    found = answer.read(DryRunAnswer)
    if options.json:
        return print_json(answer.json)
    if not found.runs:
        typer.echo("no run would stop")
        return
    show_table(("RUN", "STATE", "APP", "USER", "CALLS", "SECONDS", "TOKENS"), map(_would_stop_row, found.runs))


def _would_stop_row(run: WouldStop) -> Sequence[object]:
    calls = ", ".join(f"{call.name} {call.fate}" for call in run.calls)
    seconds = "no bound" if run.seconds is None else f"{run.seconds:.1f}"
    return run.run_id, run.state, run.app_name, run.user_id, calls, seconds, run.usage and run.usage.tokens


def _stop(options: Stop) -> Answer:
    filters = options.filters()
    named = [options.run is not None, options.session is not None, options.all or bool(filters)]
    if named.count(True) != 1:
        fail("which runs? write RUN, --session APP/USER/SESSION, --all, or filters as --app, and one of them only")
    if options.dry_run and options.session is not None:
        fail("--dry-run is for RUN, --all and filters: write --app and --user in place of --session")
    if options.dry_run and options.run is not None:
        body = {**options.body(), "runId": options.run, "dryRun": True}
        return options.client().post("runs", action="cancel", body=body)
    if options.within is not None and options.at == ["now"]:
        fail("--within is for a stop at a safe point: write --at any beside it, or leave it out")
    client, body = options.client(), options.body()
    if options.run is not None:
        return client.post("runs", options.run, action="cancel", body=body, wait=options.wait)
    if options.session is None:
        return client.post(
            "runs", action="cancel", body={**body, **filters, "all": True, "dryRun": options.dry_run}, wait=options.wait
        )
    match options.session.split("/"):
        case [app, user, session] if app and user and session:
            path = ("apps", app, "users", user, "sessions", session)
            return client.post(*path, action="cancel", body=body, wait=options.wait)
        case _:
            fail(f"--session {options.session!r}: write APP/USER/SESSION")


def _stopped_row(run: Stopped) -> Sequence[object]:
    left = ", ".join(orphan.name for orphan in run.orphans)
    return run.run_id, run.outcome or "asked, not over yet", "yes" if run.durable else "no", left


@dataclass(frozen=True, kw_only=True)
class Steer(OfRun):
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the run is told before its next model call.")]
    wait: Annotated[float, typer.Option(min=0, max=60, help="Seconds to wait for that call.")] = 5.0


def steer(options: Steer) -> None:
    """Say something to a live run. Exits with 1 if it came too late, with 5 if it waits for the next model call."""
    wait = options.wait
    body = {**_message(options.text), "waitSeconds": wait}
    answer = options.client().post("runs", options.run, action="steer", body=body, wait=wait)
    steered = answer.read(SteerAnswer)
    if options.json:
        print_json(answer.json)
    else:
        typer.echo(sanitize(": ".join(filter(None, (steered.outcome, steered.reason)))))
    if steered.outcome != "joined":
        raise typer.Exit(NOT_YET if steered.outcome == "waiting" else REFUSED)


def why(options: OfRun) -> None:
    """Tell what holds a run that was asked to stop and has not."""
    answer = options.client().get("runs", options.run, "why")
    why = answer.read(WhyAnswer)
    if options.json:
        return print_json(answer.json)
    if not why.holding:
        typer.echo(sanitize(_not_held(why)))
        return
    if why.asked and not any(each.rung for each in why.holding):
        typer.echo(sanitize(f"it has not come to where it is to stop: {', '.join(why.asked)}; it waits for"))
    columns = ("NAME", "PATH", "RUNG", "SECONDS")
    show_table(columns, ([each.name, each.path, each.rung, f"{each.seconds or 0:.1f}"] for each in why.holding))
    for each in why.holding:
        if each.stack:
            typer.echo(sanitize(f"\n{each.name}:\n{each.stack}"))


def _not_held(why: WhyAnswer) -> str:
    state, asked = why.state, why.asked
    if state not in ("queued", "live"):
        return f"nothing holds it: it is {state}" + (f", {why.outcome}" if why.outcome is not None else "")
    if asked is None:
        return f"it is {state} in another process: {why.reason or 'ask that one'}"
    if not asked:
        return f"no stop was asked for: the run is {state}"
    if {"now", "force"} & set(asked):
        return "nothing holds it: it is stopping"
    return f"it has not come to where it is to stop: {', '.join(asked)}"


@dataclass(frozen=True, kw_only=True)
class Resume(OfRun):
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="A new message; or the answer, to an approval yes, no or why not."),
    ] = None


def resume(options: Resume) -> None:
    """Let a stopped or paused run go on. A run that waits for a person gets the text as the answer."""
    client = options.client()
    body = _reply(client, options.run, options.text)
    answer = client.post("runs", options.run, action="resume", body=body)
    resumed = answer.read(ResumeAnswer)
    if options.json:
        return print_json(answer.json)
    typer.echo(sanitize(f"goes on as {resumed.run_id}"))


def _reply(client: ServerClient, run: str, text: str | None) -> dict[str, object]:
    found = client.get("runs", run).read(RunAnswer)
    if found.state != "paused":
        return {} if text is None else _message(text)
    if text is None:
        fail(f"{run} waits for an answer: write it as TEXT; `safepoint logs {run}` shows what was asked")
    names = ("apps", found.app_name or "", "users", found.user_id or "", "sessions", found.session_id or "")
    metadata = (event.custom_metadata.safepoint_questions for event in client.get(*names).read(SessionAnswer).events)
    asked = [questions for questions in metadata if questions]
    open_ones = asked[-1] if asked else []
    if len(open_ones) > 1:
        fail(f"{run} asks {len(open_ones)} questions: answer them on the page, or in one POST to /runs/{run}:resume")
    return {"answers": {each.id: _answer(each.kind, text) for each in open_ones}}


def _answer(kind: str, text: str) -> str | bool:
    """The answer to an approval is yes or no; other words would be the reason of a no."""
    if kind == "interrupt":
        return text
    return {"yes": True, "y": True, "no": False, "n": False}.get(text.strip().lower(), text)


@dataclass(frozen=True, kw_only=True)
class Logs(OfRun):
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends, word by word.")] = False


def logs(options: Logs) -> None:
    """Show what a run has told so far."""
    client = options.client()
    known = client.get("runs", options.run).read(RunAnswer).events
    if known == 0 and not options.follow:
        typer.echo("it has told nothing yet", err=True)
        return
    under_way, shown = False, 0
    # Of a run that another process has, the server does not know how much it has told.
    silence = _SILENCE if known is None and not options.follow else None
    for answer in client.events(options.run, silence=silence):
        event = answer.read(EventAnswer)
        shown += not event.partial
        if options.json and (options.follow or not event.partial):
            typer.echo(json.dumps(answer.json, ensure_ascii=False))
        elif event.partial and options.follow:
            under_way = True
            typer.echo(sanitize("".join(part.words for part in event.content.parts)), nl=False)
        elif not event.partial and event.id is not None:
            typer.echo(("\n" if under_way else "") + event_line(event))
            under_way = False
        if not options.follow and known is not None and shown >= known:
            return


def _message(text: str) -> dict[str, object]:
    return {"newMessage": {"role": "user", "parts": [{"text": text}]}}


def print_json(answer: object) -> None:
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))


def list_workers(options: Common) -> None:
    """Workers, and after them the runs that wait for one."""
    answer = options.client().get("workers")
    found = answer.read(WorkersAnswer)
    if options.json:
        return print_json(answer.json)
    if not found.workers:
        typer.echo("no worker is known: processes find each other where they share a PostgreSQL", err=True)
    columns = ("WORKER", "HOST", "VERSION", "APPS", "LIVE/ROOM", "QUEUED", "LEASE LEFT", "DRAINING")
    show_table(columns, map(_worker_row, found.workers))
    for each in found.waiting:
        why = "for a free worker" if each.workers else f"for app {each.app}, which no worker has"
        typer.echo(sanitize(f"{each.runs} of {each.app} waiting {why}, {each.seconds:.0f} s"))


def _worker_row(worker: WorkerAnswer) -> Sequence[object]:
    lease = f"{worker.lease_left:.1f} s" if worker.lease_left > 0 else "dead"
    room, draining = f"{worker.live}/{worker.room}", "yes" if worker.draining else ""
    return worker.id, worker.host, worker.version, ", ".join(worker.apps), room, worker.queued, lease, draining


@dataclass(frozen=True, kw_only=True)
class Drain(Common):
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Its id; `safepoint ps --workers` lists them.")]


def drain(options: Drain) -> None:
    """Have a worker hand its runs over and take no others; its process stays until it is told to end."""
    answer = options.client().post("workers", options.worker, action="drain", body={})
    found = answer.read(WorkerAnswer)
    if options.json:
        return print_json(answer.json)
    typer.echo(sanitize(f"{found.id} drains: {found.live} live runs are handed over"))


@dataclass(frozen=True, kw_only=True)
class Move(OfRun):
    to: Annotated[str | None, typer.Option(metavar="WORKER", help="Where to; the one with most room unless named.")] = (
        None
    )
    wait: Annotated[float, typer.Option(min=0, max=60, help="Seconds to wait until it is there.")] = 5.0


def move(options: Move) -> None:
    """Let a live run go on in another worker. Exits with 5 if it is asked and not there when the wait ends."""
    body = {"waitSeconds": options.wait} | ({} if options.to is None else {"to": options.to})
    answer = options.client().post("runs", options.run, action="move", body=body, wait=options.wait)
    found = answer.read(MoveAnswer)
    if options.json:
        print_json(answer.json)
    else:
        typer.echo(sanitize(f"{found.run_id} {found.outcome} to {found.worker}"))
    if found.outcome == "moving":
        raise typer.Exit(NOT_YET)


def add_to(app: typer.Typer) -> None:
    """All commands of this module."""
    add_command(app, Ps, ps)
    add_command(app, Stop, stop)
    add_command(app, Steer, steer)
    add_command(app, OfRun, why)
    add_command(app, Resume, resume)
    add_command(app, Logs, logs)
    add_command(app, Drain, drain)
    add_command(app, Move, move)


def add_command(app: typer.Typer, kind: type[T], command: Callable[[T], None]) -> None:
    """Under the name of the function, with its docstring as help. Trouble with the server ends it in one line."""

    def run(options: T) -> None:
        try:
            command(options)
        except Trouble as trouble:
            fail(str(trouble), trouble.code)
        except BrokenPipeError:  # the reader of our output has left; Python would complain again when it flushes
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None

    app.command(command.__name__, help=command.__doc__)(takes(kind)(run))
