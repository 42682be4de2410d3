"""Stop at every place, in every way, in every shape, and continue in a fresh process: nothing is lost or done twice.

The table says, for each place and each way to stop there, what the ledger knows of the worker's last calls at the stop.
What resume does follows from it: finished calls are reused, calls that never started run, `look` is pure and runs again
after a cut, `act` is not and its unknown outcome is told to the model.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent, Run, SafePoint, check_history
from safepoint.agent.checkpoint import Checkpoint
from safepoint.history.json_codec import encode_message
from safepoint.history.parts import Message
from safepoint.testing import run_virtual
from tests.resume.world import PLACES, SHAPES, World, build

KINDS = (
    "now",
    "force",
    "caller",
    "deadline",
    "any",
    "after_model",
    "after_tool",
    "after_tools",
    "before_effect",
)
_CUTS = ("now", "force", "caller", "deadline")

TABLE = """
model 1        now            between steps
model 1        force          between steps
model 1        caller         between steps
model 1        deadline       between steps
model 1        any            look 1 not_started, act 1 not_started
model 1        after_model    look 1 not_started, act 1 not_started
model 1        after_tool     look 1 finished, act 1 finished
model 1        after_tools    look 1 finished, act 1 finished
model 1        before_effect  look 1 finished, act 1 not_started
model 2        now            between steps
model 2        force          between steps
model 2        caller         between steps
model 2        deadline       between steps
model 2        any            act 2 not_started, act 3 not_started
model 2        after_model    act 2 not_started, act 3 not_started
model 2        after_tool     act 2 finished, act 3 finished
model 2        after_tools    act 2 finished, act 3 finished
model 2        before_effect  act 2 not_started, act 3 not_started
model 3        now            between steps
model 3        force          between steps
model 3        caller         between steps
model 3        deadline       between steps
model 3        any            finished first
model 3        after_model    finished first
model 3        after_tool     finished first
model 3        after_tools    finished first
model 3        before_effect  finished first
before look 1  now            look 1 cut, act 1 not_started
before look 1  force          look 1 cut, act 1 not_started
before look 1  caller         look 1 cut, act 1 finished
before look 1  deadline       look 1 cut, act 1 finished
before look 1  any            look 1 finished, act 1 finished
before look 1  after_model    act 2 not_started, act 3 not_started
before look 1  after_tool     look 1 finished, act 1 finished
before look 1  after_tools    look 1 finished, act 1 finished
before look 1  before_effect  act 2 not_started, act 3 not_started
before act 1   now            look 1 finished, act 1 cut
before act 1   force          look 1 finished, act 1 cut
before act 1   caller         look 1 finished, act 1 cut
before act 1   deadline       look 1 finished, act 1 cut
before act 1   any            look 1 finished, act 1 finished
before act 1   after_model    act 2 not_started, act 3 not_started
before act 1   after_tool     look 1 finished, act 1 finished
before act 1   after_tools    look 1 finished, act 1 finished
before act 1   before_effect  act 2 not_started, act 3 not_started
after act 1    now            look 1 finished, act 1 cut
after act 1    force          look 1 finished, act 1 cut
after act 1    caller         look 1 finished, act 1 cut
after act 1    deadline       look 1 finished, act 1 cut
after act 1    any            look 1 finished, act 1 finished
after act 1    after_model    act 2 not_started, act 3 not_started
after act 1    after_tool     look 1 finished, act 1 finished
after act 1    after_tools    look 1 finished, act 1 finished
after act 1    before_effect  act 2 not_started, act 3 not_started
before act 2   now            act 2 cut, act 3 not_started
before act 2   force          act 2 cut, act 3 not_started
before act 2   caller         act 2 cut, act 3 finished
before act 2   deadline       act 2 cut, act 3 finished
before act 2   any            act 2 finished, act 3 finished
before act 2   after_model    finished first
before act 2   after_tool     act 2 finished, act 3 finished
before act 2   after_tools    act 2 finished, act 3 finished
before act 2   before_effect  finished first
after act 3    now            act 2 finished, act 3 cut
after act 3    force          act 2 finished, act 3 cut
after act 3    caller         act 2 finished, act 3 cut
after act 3    deadline       act 2 finished, act 3 cut
after act 3    any            act 2 finished, act 3 finished
after act 3    after_model    finished first
after act 3    after_tool     act 2 finished, act 3 finished
after act 3    after_tools    act 2 finished, act 3 finished
after act 3    before_effect  finished first
"""


@dataclass(frozen=True)
class Stopped:
    """One case: what was left at the stop."""

    checkpoint: Checkpoint | None
    messages: list[Message]
    effects: list[int]
    states: str
    stop_reason: str


def ask(run: Run[Any, Any], task: asyncio.Task[None], kind: str) -> None:
    match kind:
        case "now":
            run.cancel()
        case "force":
            run.cancel(SafePoint.FORCE)
        case "caller":
            task.cancel()
        case "deadline":
            run.cancel(SafePoint.named("nowhere"), within=5, recursive=True)
        case _:
            run.cancel(getattr(SafePoint, kind.upper()), recursive=True)


def stop_at(shape: str, place: str, kind: str) -> Stopped:
    world = World(place, cuts=kind in _CUTS)

    async def owner(agent: Agent, started: list[Run[Any, Any]]) -> None:
        async with agent.start("go") as run:
            started.append(run)

    async def main() -> Stopped:
        started: list[Run[Any, Any]] = []
        task = asyncio.ensure_future(owner(build(shape, world), started))
        loop = asyncio.get_running_loop()
        # A task can be cancelled from its own loop only; every other ask may come from any thread, as it does here.
        here = kind != "caller"
        world.stop = lambda: (
            ask(started[0], task, kind) if here else loop.call_soon_threadsafe(ask, started[0], task, kind)
        )
        await asyncio.wait((task,))
        if kind == "caller" and world.reached:
            assert task.cancelled(), "the caller's own cancellation was swallowed"
        else:
            task.result()
        result = started[0].result
        check_history(result.messages)
        assert result.stop_reason == ("end_turn" if result.checkpoint is None else "cancelled")
        states = _states(result.checkpoint) if result.checkpoint is not None else "finished first"
        return Stopped(result.checkpoint, result.messages, list(world.effects), states, str(result.stop_reason))

    return run_virtual(main)


def _states(checkpoint: Checkpoint) -> str:
    """The worker's calls of its open step, wherever in the tree it is."""
    while (child := next((call.child for call in checkpoint.calls.values() if call.child), None)) is not None:
        checkpoint = child
    if checkpoint.agent != "worker":
        return "worker not started"
    entries = [entry for entry in checkpoint.ledger if entry.call_id in checkpoint.calls]
    return ", ".join(f"{entry.name} {entry.args['x']} {entry.state}" for entry in entries) or "between steps"


def whole(shape: str) -> list[Message]:
    """The conversation of a run that nobody stops."""

    async def main() -> list[Message]:
        return (await build(shape, World()).run("go")).messages

    return run_virtual(main)


def parts_of(messages: list[Any]) -> list[Any]:
    """Everything but notices, and the results of calls that were told to be cut."""
    kept: list[Any] = []
    for message in messages:
        parts = [part for part in message["parts"] if part["kind"] != "notice"]
        parts = [
            {**part, "content": "", "state": ""} if part["kind"] == "tool_result" and part["state"] == "cut" else part
            for part in parts
        ]
        if parts:
            kept.append((message["role"], parts))
    return kept


def blank(messages: list[Any], cut: set[str]) -> list[Any]:
    """The same, with the results of those calls left open."""
    return [
        (
            role,
            [
                {**part, "content": "", "state": ""}
                if part["kind"] == "tool_result" and part["call_id"] in cut
                else part
                for part in parts
            ],
        )
        for role, parts in messages
    ]


@pytest.fixture(scope="module")
def stopped() -> dict[str, Stopped]:
    return {
        f"{shape} | {place} | {kind}": stop_at(shape, place, kind)
        for shape in SHAPES
        for place in PLACES
        for kind in KINDS
        # The virtual clock stands still while a thread works, so no deadline would ever come.
        if (shape, kind) != ("thread", "deadline")
    }


@pytest.fixture(scope="module")
def continued(stopped: dict[str, Stopped], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("resume")
    cases = {
        key: {"shape": key.split(" | ")[0], "checkpoint": base64.b64encode(case.checkpoint.to_bytes()).decode()}
        for key, case in stopped.items()
        if case.checkpoint is not None
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-W", "error", "-m", "tests.resume.continue_all"]
    subprocess.run([*command, str(folder / "cases.json"), str(folder / "results.json")], check=True, timeout=120)
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


def test_the_ledger_at_each_stop_is_as_the_table_says(stopped: dict[str, Stopped]) -> None:
    rows = [f"{place:14} {kind:14} {stopped[f'async | {place} | {kind}'].states}" for place in PLACES for kind in KINDS]
    assert rows == TABLE.strip().splitlines()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_that_is_continued_ends_as_if_it_had_never_been_stopped(
    shape: str, stopped: dict[str, Stopped], continued: dict[str, Any]
) -> None:
    expected = parts_of([encode_message(message) for message in whole(shape)])
    for key, case in stopped.items():
        if not key.startswith(f"{shape} |") or case.checkpoint is None:
            continue
        result = continued[key]
        assert result["stop_reason"] == "end_turn", key
        cut = {
            part["call_id"]
            for message in result["messages"]
            for part in message["parts"]
            if part["kind"] == "tool_result" and part["state"] == "cut"
        }
        assert parts_of(result["messages"]) == blank(expected, cut), key


@pytest.mark.parametrize("shape", SHAPES)
def test_every_effect_happens_once_and_an_unknown_one_is_not_repeated(
    shape: str, stopped: dict[str, Stopped], continued: dict[str, Any]
) -> None:
    for key, case in stopped.items():
        if not key.startswith(f"{shape} |"):
            continue
        again: list[int] = continued[key]["effects"] if case.checkpoint is not None else []
        assert not set(case.effects) & set(again), f"{key}: an effect happened twice"
        unknown = {int(word.split()[1]) for word in case.states.split(", ") if word.startswith("act") and "cut" in word}
        assert set(case.effects) | set(again) | unknown == {1, 2, 3}, key
