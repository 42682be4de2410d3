"""`safepoint top`: the runs that are live, with what each does now, what it uses per minute and what holds its stop."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from safepoint.cli.admin import Common, add_command, age
from safepoint.cli.client import ServerClient, Trouble
from safepoint.cli.options import REFUSED, fail
from safepoint.cli.sanitize import sanitize
from safepoint.cli.server_responses import RunAnswer, TreeAnswer, TreePart

_COLUMNS = ("RUN", "STATE", "APP", "USER", "AGE", "DOES", "TOKENS", "TOKENS/MIN", "COST/MIN", "STOP WAITS FOR")
_WIDE = 200


@dataclass(frozen=True, kw_only=True)
class TopOptions(Common):
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 2.0
    once: Annotated[bool, typer.Option("--once", help="Look twice, show it once, and end; so it is in a pipe.")] = False
    limit: Annotated[int, typer.Option(min=1, max=200, help="So many runs at most, newest first.")] = 30
    price: Annotated[
        str | None,
        typer.Option(metavar="IN,OUT", help="What a million tokens cost, as 0.25,2: shows cost per minute."),
    ] = None

    def prices(self) -> tuple[float, float] | None:
        if self.price is None:
            return None
        try:
            first, second = (float(each) for each in self.price.split(","))
        except ValueError:
            fail(f"--price {self.price!r}: write IN,OUT, as 0.25,2")
        if not (0 <= first < float("inf") and 0 <= second < float("inf")):
            fail(f"--price {self.price!r}: a price is a number from 0 up")
        return first, second


@dataclass(frozen=True, slots=True)
class Sample:
    """A run at one moment, by this machine's clock."""

    at: float
    run: RunAnswer
    tree: TreeAnswer

    @property
    def tokens(self) -> tuple[int, int]:
        usage = self.tree.usage
        return (0, 0) if usage is None else (usage.input_tokens, usage.output_tokens)


Samples = Mapping[str, Sample]


def top(options: TopOptions) -> None:
    """Show live runs again and again: what they do, what they use per minute, what holds a stop. Ctrl-C ends it."""
    prices, client = options.prices(), options.client()
    before = look(client, options.limit, time.monotonic)
    if options.once or options.json or not sys.stdout.isatty():
        time.sleep(options.every)
        now = look(client, options.limit, time.monotonic)
        rows = [row(now[id], before.get(id), prices) for id in now]
        if options.json:
            names = [name.lower().replace("/", " per ").replace(" ", "_") for name in _COLUMNS]
            typer.echo(json.dumps([dict(zip(names, each, strict=True)) for each in rows], ensure_ascii=False))
        else:
            Console(width=None if sys.stdout.isatty() else _WIDE).print(table(rows))
        return
    try:
        with Live(table([]), screen=True, auto_refresh=False) as shown:
            while True:
                now = look(client, options.limit, time.monotonic)
                shown.update(table([row(now[id], before.get(id), prices) for id in now]), refresh=True)
                time.sleep(options.every)
                before = now
    except KeyboardInterrupt:
        return


def look(client: ServerClient, limit: int, clock: Callable[[], float]) -> Samples:
    """All runs that are live or wait for their turn, newest first. Raises `Trouble`."""
    runs = next(client.pages("runs", state=("live", "queued"), limit=str(limit))).read(list[RunAnswer])
    found: dict[str, Sample] = {}
    for run in islice(runs, limit):
        try:
            answer = client.get("runs", run.run_id, "tree")
        except Trouble as trouble:
            if trouble.code != REFUSED:
                raise
            continue  # it is over by now, or its process does not answer
        found[run.run_id] = Sample(clock(), run, answer.read(TreeAnswer))
    return found


def row(now: Sample, before: Sample | None, prices: tuple[float, float] | None) -> Sequence[str]:
    """The cells of one run. What is used per minute is known from the second look on."""
    run, used = now.run, sum(now.tokens)
    per_minute = cost = ""
    if before is not None and now.at > before.at:
        minutes = (now.at - before.at) / 60
        spent = [new - old for new, old in zip(now.tokens, before.tokens, strict=True)]
        per_minute = f"{sum(spent) / minutes:.0f}"
        if prices is not None:
            price = sum(tokens * each for tokens, each in zip(spent, prices, strict=True)) / 1_000_000
            cost = f"{price / minutes:.4f}"
    state = run.state if run.frozen is None else f"{run.state}, frozen"
    whose = (run.app_name or "", run.user_id or "")
    return run.run_id, state, *whose, age(run.created_at), does(now.tree), str(used), per_minute, cost, holds(now.tree)


def does(tree: TreeAnswer) -> str:
    """The calls that run now; else the agents that call their model."""
    calls = [node.name for node in tree.nodes if node.kind == "tool" and node.state == "running"]
    return ", ".join(calls or [f"{node.name}: model" for node in tree.nodes if _calls_model(node)])


def _calls_model(node: TreePart) -> bool:
    return node.kind == "agent" and bool(node.model) and node.model[-1][-1:] == [None]


def holds(tree: TreeAnswer) -> str:
    """Nothing if it was not asked to stop."""
    if not tree.asked:
        return ""
    held = [each.name + (f" ({each.rung})" if each.rung else "") for each in tree.holding]
    return ", ".join(held) or f"at {', '.join(tree.asked)}"


def table(rows: Sequence[Sequence[str]]) -> Table:
    made = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
    for each in rows:
        made.add_row(*(Text(sanitize(cell), overflow="fold") for cell in each))
    return made


def add_to(app: typer.Typer) -> None:
    """The command of this module."""
    add_command(app, TopOptions, top)
