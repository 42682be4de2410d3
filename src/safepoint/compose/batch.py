"""One agent over many inputs, as one run: one budget, one token, one checkpoint, and so many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias

from typing_extensions import Unpack  # of Python 3.11 too; pydantic brings it along

from safepoint._core.endings import Cancellation
from safepoint._values import Value
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.events import RunEnded
from safepoint.agent.options import RunOptions
from safepoint.agent.result import OutT, RunResult, StopReason
from safepoint.agent.usage import Usage
from safepoint.agent.validation import checked_count, checked_function
from safepoint.compose.parallel import Branch, Parallel
from safepoint.history.parts import Prompt
from safepoint.tools.context import DepsT

OnProgress: TypeAlias = Callable[[int, int], object]

_NAME = "batch"


class BatchResult(Value, Generic[OutT], frozen=True):
    """What came of each input, in their order: None for one that never began.

    `stop_reason`: `end_turn` if all have ended with an answer, `error` if one has failed, else why the batch stopped.
    `checkpoint` continues it: `run_many(…, checkpoint=result.checkpoint)` keeps what has finished.
    """

    results: tuple[RunResult[OutT] | None, ...]
    stop_reason: StopReason
    usage: Usage
    checkpoint: Checkpoint | None = None
    cancellation: Cancellation | None = None

    @property
    def outputs(self) -> list[OutT | None]:
        """The answers, in the order of the inputs: None where there is none."""
        return [result.output if result is not None and _has_answer(result) else None for result in self.results]

    @property
    def unfinished(self) -> list[int]:
        """The places of the inputs without an answer."""
        return [place for place, found in enumerate(self.results) if found is None or not _has_answer(found)]


async def run_many(
    agent: BaseAgent[DepsT, OutT],
    prompts: Iterable[Prompt],
    *,
    concurrency: int = 10,
    checkpoint: Checkpoint | None = None,
    on_progress: OnProgress | None = None,
    **options: Unpack[RunOptions[DepsT]],
) -> BatchResult[OutT]:
    """Run the agent over all prompts, `concurrency` at a time, as one run that can be stopped and continued.

    `options` are those of a run: `budget` and `token` are for all of them together. One failure does not stop the
    others, and nothing is raised for it: its result says so. `on_progress(done, total)` is called after each.
    `checkpoint`: of an earlier batch over the same prompts. Cancellation: the batch is stopped NOW; then the caller's
    exception is raised.
    """
    given = list(prompts)
    checked_count("concurrency", concurrency, least=1)
    checked_function("on_progress", on_progress)
    if not given:
        return BatchResult((), StopReason.END_TURN, Usage())
    branches = [_branch(agent, place, prompt) for place, prompt in enumerate(given)]
    batch = Parallel(_NAME, branches, limit=concurrency, on_failure="finish")
    prompt = None if checkpoint is not None else f"{len(given)} inputs"
    async with batch.start(prompt, checkpoint=checkpoint, **options) as run:
        done = 0
        async for event in run.events(nested=True):
            if isinstance(event, RunEnded) and event.path.count("/") == 1:
                done += 1
                if on_progress is not None:
                    on_progress(done, len(given))
    result = run.result
    found = {child.name: child.result for child in result.children}
    results = tuple(found.get(str(place)) for place in range(len(given)))
    return BatchResult(results, result.stop_reason, result.usage, result.checkpoint, result.cancellation)


def _branch(agent: BaseAgent[DepsT, OutT], place: int, prompt: Prompt) -> Branch[DepsT, OutT]:
    return Branch(agent, str(place), lambda _: prompt)


def _has_answer(result: RunResult[Any]) -> bool:  # Any: of every output type
    return result.stop_reason is StopReason.END_TURN
