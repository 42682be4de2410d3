"""What a run leaves behind may be copied and sent to another process, and stays what it is."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from safepoint import Agent, RunFailed, SafePoint, tool
from safepoint.testing import ScriptedModel, call, fail, say
from tests.virtual import virtual


def pickled(value: Any) -> Any:  # Any: of every type
    return pickle.loads(pickle.dumps(value))


@tool
async def act() -> str:
    """Act."""
    return "acted"


@virtual
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
async def test_a_copy_of_a_result_has_the_same_answer_and_is_equal(
    copied: Callable[[Any], Any],  # Any: as above
) -> None:
    agent = Agent("a", model=ScriptedModel(call("act"), say("done")), tools=[act])
    async with agent.start("go") as run:
        pass
    assert copied(run.result).output == "done"
    assert copied(run.result) == run.result
    assert copied(run.kept_events()) == run.kept_events()
    async with Agent("a", model=ScriptedModel(call("act")), tools=[act]).start("go") as stopped:
        stopped.cancel(SafePoint.AFTER_MODEL, reason="lunch")
    assert stopped.result.stop_reason == "cancelled"
    assert copied(stopped.result) == stopped.result


@virtual
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
async def test_a_failure_comes_out_of_another_process_with_its_words_and_its_result(
    copied: Callable[[Any], Any],  # Any: as above
) -> None:
    with pytest.raises(RunFailed) as caught:
        await Agent("a", model=ScriptedModel(fail(RuntimeError("broken")))).run("go")
    again = copied(caught.value)
    assert (type(again), str(again)) == (RunFailed, str(caught.value))
    assert again.result.messages == caught.value.result.messages
