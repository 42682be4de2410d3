"""Every shape, stopped in every place, at every safe point, for the composite alone and for all below it.

The table is the documentation: what is left of the two children, in the words of the ledger. `-` means that the run
finished first. In a loop `first` and `last` are its two rounds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from safepoint import Checkpoint, Notice, Outcome, Receipt, Run, RunResult, SafePoint, StopReason, check_history
from tests.compose.world import World, build
from tests.virtual import virtual

BEFORE, IN_FIRST, BETWEEN = "before the start", "in the first child", "between the children"
IN_LAST, ONE_DONE = "in the last child", "in a finished branch, the other one running"

# shape, place                        a safe point, root only    a safe point, recursive    NOW and FORCE
#                                     first     last             first     last             first        last
TABLE = """
Sequential | before the start       | finished  not_started    | stopped   not_started    | not_started  not_started
Sequential | in the first child     | finished  not_started    | stopped   not_started    | stopped      not_started
Sequential | between the children   | finished  not_started    | finished  not_started    | finished     not_started
Sequential | in the last child      | -                        | finished  stopped        | finished     stopped
Loop       | before the start       | finished  not_started    | stopped   not_started    | not_started  not_started
Loop       | in the first child     | finished  not_started    | stopped   not_started    | stopped      not_started
Loop       | between the children   | finished  not_started    | finished  not_started    | finished     not_started
Loop       | in the last child      | -                        | finished  stopped        | finished     stopped
Handoff    | before the start       | finished  not_started    | stopped   not_started    | not_started  not_started
Handoff    | in the first child     | finished  not_started    | stopped   not_started    | stopped      not_started
Handoff    | between the children   | finished  not_started    | finished  not_started    | finished     not_started
Handoff    | in the last child      | -                        | finished  stopped        | finished     stopped
Parallel   | before the start       | -                        | stopped   stopped        | not_started  not_started
Parallel   | in the first child     | -                        | stopped   stopped        | stopped      stopped
Parallel   | between the children   | -                        | finished  stopped        | finished     stopped
Parallel   | in the last child      | -                        | finished  stopped        | finished     stopped
Parallel   | in a finished branch, the other one running | -   | finished  stopped        | finished     stopped
Parallel, one at a time | before the start     | finished  not_started | stopped  not_started | not_started not_started
Parallel, one at a time | in the first child   | finished  not_started | stopped  not_started | stopped     not_started
Parallel, one at a time | between the children | finished  not_started | finished not_started | finished    not_started
Parallel, one at a time | in the last child    | -                     | finished stopped     | finished    stopped
"""

# What the tool calls of a child come to that was asked while its `look` ran, and where it stopped.
INSIDE = {
    "AFTER_TOOLS": "look finished",
    "AFTER_TOOL": "look finished",
    "AFTER_MODEL": "look finished, post not_started",
    "BEFORE_EFFECT": "look finished, post not_started",
    "named('page')": "look stopped",
    "ANY": "look stopped",
    "NOW": "look cut",
    "FORCE": "look cut",
}
SAFE = (
    SafePoint.AFTER_TOOLS,
    SafePoint.AFTER_TOOL,
    SafePoint.AFTER_MODEL,
    SafePoint.BEFORE_EFFECT,
    SafePoint.named("page"),
    SafePoint.ANY,
)
HARD = (SafePoint.NOW, SafePoint.FORCE)
WHEN = {IN_FIRST: 0.05, IN_LAST: 0.25, ONE_DONE: 0.25}


@dataclass(frozen=True)
class Case:
    shape: str
    place: str
    at: SafePoint
    recursive: bool
    expected: tuple[str, ...]

    @property
    def at_name(self) -> str:
        return repr(self.at).removeprefix("SafePoint.")

    def __str__(self) -> str:
        return f"{self.shape}, {self.place}, {self.at_name}, {'recursive' if self.recursive else 'root only'}"


def cases() -> Iterator[Case]:
    for line in TABLE.strip().splitlines():
        shape, place, root, recursive, hard = (cell.strip() for cell in line.split("|"))
        for at in SAFE:
            yield Case(shape, place, at, False, tuple(root.split()))
            yield Case(shape, place, at, True, tuple(recursive.split()))
        for at in HARD:
            yield Case(shape, place, at, False, tuple(hard.split()))
            yield Case(shape, place, at, True, tuple(hard.split()))


CASES = {str(case): case for case in cases()}


async def play(case: Case) -> tuple[RunResult[Any], Receipt]:  # Any: outputs of every type
    """Run the composite and ask it to stop in that place."""
    world, receipts = World(), list[Receipt]()
    run: Run[None, Any] = build(case.shape, world).start("go")  # Any: as above

    def ask() -> None:
        receipts.append(run.cancel(case.at, recursive=case.recursive, reason="enough"))
        world.on_first_answer = lambda: None  # a loop's first child answers twice

    if case.place == BETWEEN:
        world.on_first_answer = ask
    if case.place == BEFORE:
        ask()
    async with run:
        if case.place in WHEN:
            await asyncio.sleep(WHEN[case.place])
            ask()
    await receipts[0].wait()
    return run.result, receipts[0]


def children_of(result: RunResult[Any]) -> tuple[str, ...]:  # Any: as above
    """The two children in the ledger's words; one that was never planned was not started."""
    states = [str(entry.state) for entry in result.ledger]
    return tuple([*states, "not_started", "not_started"][:2])


@pytest.mark.parametrize("name", CASES)
@virtual
async def test_outcome_ledger_history_and_receipt_are_as_the_table_says(name: str) -> None:
    case = CASES[name]
    result, receipt = await play(case)
    check_history(result.messages)
    if case.expected == ("-",):
        assert result.stop_reason is StopReason.END_TURN
        assert children_of(result) == ("finished", "finished")
        assert (receipt.outcome, receipt.contributed) == (Outcome.FINISHED_FIRST, False)
        assert result.checkpoint is None
        return
    assert result.stop_reason is StopReason.CANCELLED
    assert children_of(result) == case.expected
    assert (receipt.outcome, receipt.contributed) == (Outcome.STOPPED, True)
    assert result.cancellation is not None
    assert result.cancellation.reason.text == "enough"
    notices = [part.text for part in result.messages[-1].parts if isinstance(part, Notice)]
    assert len(notices) == 1
    assert '"enough"' in notices[0]
    assert result.messages[0].text == "go"
    stopped = [child.result for child in result.children if child.result.cancellation is not None]
    assert len(stopped) == case.expected.count("stopped")
    if stopped and case.place in WHEN:
        # Once one has stopped, the others run to their own next safe point, whichever that is.
        assert [inside(child) for child in stopped[:1]] == [INSIDE[case.at_name]]
        assert {inside(child) for child in stopped[1:]} <= {INSIDE[case.at_name], "look stopped"}
    for child in result.children:
        check_history(child.result.messages)


def inside(result: RunResult[Any]) -> str:  # Any: as above
    return ", ".join(f"{entry.name.partition('_')[0]} {entry.state}" for entry in result.ledger)


def effects_left(case: Case) -> list[str]:
    """What the runs after the stop must still do: nothing of a finished child, and no post that was done."""
    return [
        f"post {child}" for child, state in zip(("first", "last"), case.expected, strict=True) if state != "finished"
    ]


def test_each_goes_on_in_a_fresh_process_at_the_interrupted_child(tmp_path: Path) -> None:
    """All stopped cases at once: one process is told nothing but shapes and bytes."""
    stopped = {name: case for name, case in CASES.items() if case.expected != ("-",)}
    kept: dict[str, dict[str, str]] = {}
    for name, case in stopped.items():
        checkpoint = _checkpoint_of(case)
        kept[name] = {"shape": case.shape, "checkpoint": base64.b64encode(checkpoint.to_bytes()).decode()}
    source, target = tmp_path / "checkpoints.json", tmp_path / "results.json"
    source.write_text(json.dumps(kept))
    program = [sys.executable, "-m", "tests.compose.continue_all", str(source), str(target)]
    subprocess.run(program, check=True, cwd=Path(__file__).parents[2], timeout=50)
    for name, found in json.loads(target.read_text()).items():
        case = stopped[name]
        assert found["stop_reason"] == "end_turn", name
        loop = case.shape == "Loop"
        posts = [line for line in found["log"] if line.startswith("post")]
        assert sorted(posts) == sorted("post first" if loop else line for line in effects_left(case)), name
        assert found["output"] == _whole_output(case.shape), name


def _checkpoint_of(case: Case) -> Checkpoint:
    found: list[Checkpoint] = []

    @virtual
    async def main() -> None:
        result, _ = await play(case)
        assert result.checkpoint is not None
        found.append(result.checkpoint)

    main()
    return found[0]


def _whole_output(shape: str) -> object:
    if shape.startswith("Parallel"):
        return {"first": "first is done", "last": "last is done"}
    return "first is done" if shape == "Loop" else "last is done"
