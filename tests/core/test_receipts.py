"""What an ask returns: whether it was in time is known at once, what came of it when everything is recorded."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable

import pytest

from safepoint._core.asklog import ActedOn, AskLog, Entry, Withdrawn
from safepoint._core.asks import Ask
from safepoint._core.endings import Ending, Touched
from safepoint._core.points import SafePoint
from safepoint._core.receipts import Outcome, Receipt, current_node
from safepoint._core.tree import Node
from safepoint.errors import AskNotTaken, NotEnded, UsageError, WaitInsideRun
from tests.core.grove import BY_ITSELF, STOPPED, call, end, live, new_run, run
from tests.core.piece import settled
from tests.virtual import passes, rounds, virtual

SAFE = SafePoint.AFTER_TOOLS


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# -- accepted ----------------------------------------------------------------------------------------------------------


@virtual
async def test_an_ask_is_accepted_if_it_precedes_the_seal_in_the_log() -> None:
    node = new_run()
    before = node.cancel(SAFE)
    live(node)
    during = node.cancel(SAFE)
    node.answer()
    after_the_answer = node.cancel(SAFE)
    node.seal()
    sealed = node.cancel(SAFE)
    node.finish(BY_ITSELF)
    ended = node.cancel(SAFE)
    receipts = (before, during, after_the_answer, sealed, ended)
    assert [receipt.accepted for receipt in receipts] == [True, True, True, False, False]
    for receipt in receipts:
        assert await receipt.wait() == "finished_first"
        assert not receipt.contributed


@virtual
async def test_a_receipt_for_an_ask_in_the_log_can_be_made_again() -> None:
    node = run()
    first = node.cancel(SAFE)
    again = Receipt(node, first.asked)
    assert again.accepted
    end(node)
    assert again.outcome == first.outcome == "finished_first"


@virtual
async def test_an_ask_after_the_seal_needs_no_waiting_although_the_node_has_not_ended() -> None:
    node = run()
    node.seal()
    receipt = node.cancel()
    assert await receipt.wait() == "finished_first"
    assert receipt.wait_sync() == "finished_first"
    assert not receipt.contributed
    assert math.isnan(receipt.stopped_at)
    assert (receipt.touched, receipt.queued, receipt.orphans, receipt.usage) == ((), (), (), None)
    node.finish(BY_ITSELF)


def test_a_closed_loop_counts_as_final() -> None:
    nodes: list[Node] = []

    async def main() -> None:
        nodes.append(run())

    asyncio.run(main())
    receipt = nodes[0].cancel()
    assert not receipt.accepted
    assert receipt.wait_sync() == "finished_first"
    assert not receipt.withdraw()
    assert repr(receipt) == f"<Receipt {receipt.asked.id} for run, too late>"


# -- outcome and contribution ------------------------------------------------------------------------------------------


@virtual
async def test_the_outcome_is_known_only_after_the_end() -> None:
    node = run()
    receipt = node.cancel()
    await settled()
    for name in ("outcome", "contributed", "stopped_at", "touched", "queued", "orphans", "usage"):
        with pytest.raises(NotEnded, match=r"^run has not ended: write `await receipt.wait\(\)` first$"):
            getattr(receipt, name)
    node.seal()
    with pytest.raises(NotEnded):
        _ = receipt.outcome
    node.finish(STOPPED)
    assert receipt.outcome is Outcome.STOPPED


@virtual
async def test_everything_that_is_known_of_the_end_is_on_the_receipt() -> None:
    node = run()
    receipt = node.cancel(SAFE, within=4, recursive=True, reason="lunch")
    node.check_safe_point("after_tools")
    node.seal()
    ending = Ending(
        cancelled=True, stopped_at=9.5, touched=(Touched("run/a:1", "a", "cut"),), queued=("b",), usage="tokens"
    )
    node.finish(ending)
    assert await receipt.wait() == "stopped"
    assert receipt.stopped_at == 9.5
    assert receipt.touched == (Touched("run/a:1", "a", "cut"),)
    assert (receipt.queued, receipt.orphans, receipt.usage) == (("b",), (), "tokens")
    assert receipt.receipts == (receipt,)
    assert receipt.node is node
    assert (receipt.asked.at, receipt.asked.recursive, receipt.asked.reason.text) == (SAFE, True, "lunch")
    assert repr(receipt) == f"<Receipt {receipt.asked.id} for run, accepted>"


@virtual
async def test_an_ask_that_came_too_late_to_matter_says_stopped_but_did_not_contribute() -> None:
    node = run()
    first = node.cancel(SAFE)
    node.check_safe_point("after_tools")
    second = node.cancel(SAFE)
    end(node)
    assert (await first.wait(), first.contributed) == ("stopped", True)
    assert (await second.wait(), second.contributed) == ("stopped", False)


@virtual
async def test_escalated_is_said_only_if_the_deadline_did_it() -> None:
    by_deadline, by_now = run("a"), run("b")
    timed = by_deadline.cancel(SAFE, within=1)
    bystander = by_deadline.cancel(SAFE)
    safe, hard = by_now.cancel(SAFE, within=9), by_now.cancel()
    await passes(2)
    end(by_deadline, by_now)
    assert (timed.outcome, timed.contributed) == ("escalated", True)
    assert (bystander.outcome, bystander.contributed) == ("escalated", False)
    assert (safe.outcome, safe.contributed) == ("stopped", False)
    assert (hard.outcome, hard.contributed) == ("stopped", True)
    assert by_now.stop is not None
    assert by_now.stop.escalated


@virtual
async def test_a_node_that_was_stopping_but_ended_by_itself_finished_first() -> None:
    node = run()
    receipt = node.cancel()
    await settled()
    end(node, ending=BY_ITSELF)
    assert (receipt.outcome, receipt.contributed) == ("finished_first", False)


@virtual
async def test_the_effective_request_is_that_of_now_and_after_the_end_what_stopped_the_node() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    node.cancel(SafePoint.AFTER_MODEL)
    assert receipt.effective is not None
    assert receipt.effective.at == SAFE | SafePoint.AFTER_MODEL
    node.check_safe_point("after_model")
    stopped_by = receipt.effective
    node.cancel(SafePoint.BEFORE_EFFECT)
    assert receipt.effective == stopped_by
    end(node)
    assert receipt.effective == stopped_by


# -- waiting -----------------------------------------------------------------------------------------------------------


@virtual
async def test_waiting_returns_when_the_node_has_ended_and_no_earlier() -> None:
    node = run()
    receipt = node.cancel()
    waiting = asyncio.create_task(receipt.wait())
    await settled()
    node.seal()
    await settled()
    assert not waiting.done()
    node.finish(STOPPED)
    assert await waiting == "stopped"
    assert await receipt.wait() == "stopped"


@virtual
async def test_waiting_ends_when_the_ask_is_taken_back_while_the_node_lives_on() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    waiting = asyncio.create_task(receipt.wait())
    await settled()
    receipt.withdraw()
    assert await waiting == "withdrawn"
    end(node)


@virtual
async def test_waiting_may_be_limited_and_the_ask_stands() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    with pytest.raises(TimeoutError):
        await receipt.wait(timeout=3)
    assert node.request() is not None
    node.check_safe_point("after_tools")
    end(node)
    assert await receipt.wait(timeout=0) == "stopped", "what is known needs no time"


@virtual
async def test_a_waiter_that_is_cancelled_leaves_the_ask_alone() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    waiting = asyncio.create_task(receipt.wait())
    await rounds(2)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert node.request() is not None
    end(node)


@virtual
async def test_waiting_for_an_ask_of_a_run_that_has_not_started_raises_instead_of_hanging() -> None:
    node = new_run()
    receipt = node.cancel()
    with pytest.raises(AskNotTaken, match="run has not started, so waiting would never end: start the run first"):
        await receipt.wait()
    with pytest.raises(AskNotTaken):
        receipt.wait_sync()
    live(node)
    await settled()
    end(node)
    assert await receipt.wait() == "stopped"


@virtual
async def test_code_inside_a_node_cannot_wait_for_that_node_or_one_above() -> None:
    root = run("root")
    tool = call("tool", root)
    sibling = call("sibling", root)
    token = current_node.set(tool)
    for node in (root, tool):
        receipt = node.cancel(SAFE)
        message = f"^root/tool:tool waits for {node.path}, which it is part of: return, and wait from outside$"
        with pytest.raises(WaitInsideRun, match=message):
            await receipt.wait()
        with pytest.raises(WaitInsideRun):
            receipt.wait_sync()
    other = sibling.cancel(SAFE)
    end(sibling)
    assert await other.wait() == "finished_first", "a sibling may be waited for"
    current_node.reset(token)
    end(tool, root)


@virtual
async def test_what_is_known_may_be_read_inside_too() -> None:
    root = run("root")
    receipt = root.cancel(SAFE)
    assert receipt.withdraw()
    token = current_node.set(root)
    assert await receipt.wait() == "withdrawn"
    current_node.reset(token)
    end(root)


@virtual
async def test_a_thread_waits_with_wait_sync() -> None:
    node, outcomes = run(), list[Outcome]()
    receipt = node.cancel()
    thread = threading.Thread(target=lambda: outcomes.append(receipt.wait_sync()))
    thread.start()
    await settled()
    assert outcomes == []
    end(node)
    await asyncio.to_thread(thread.join)
    assert outcomes == [Outcome.STOPPED]


@virtual
async def test_a_thread_may_limit_its_waiting() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    errors: list[str] = []

    def wait() -> None:
        with pytest.raises(TimeoutError) as caught:
            receipt.wait_sync(timeout=0.001)
        errors.append(str(caught.value))

    in_thread(wait)
    assert errors == ["run has not ended within 0.001 s"]
    end(node)


@virtual
async def test_who_asks_again_and_again_whether_it_has_ended_leaves_nothing_behind() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    waiters: list[int] = []
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await receipt.wait(timeout=0.001)
        waiters.append(len(node.ended._waiters))  # pyright: ignore[reportPrivateUsage]  # a leak shows nowhere else
    assert len(set(waiters)) == 1
    end(node)
    assert await receipt.wait() == "finished_first"


@virtual
async def test_the_loop_that_does_the_stopping_is_not_blocked_by_wait_sync() -> None:
    node = run()
    receipt = node.cancel()
    with pytest.raises(UsageError, match=r"block the loop that the run needs: write `await receipt.wait\(\)`"):
        receipt.wait_sync()
    await settled()
    end(node)
    assert receipt.wait_sync() == "stopped", "what is known needs no blocking"


def test_a_waiter_on_another_loop_is_told_there() -> None:
    outcomes: list[Outcome] = []

    async def wait(receipt: Receipt) -> None:
        outcomes.append(await receipt.wait())

    async def main() -> None:
        node = run()
        receipt = node.cancel()
        thread = threading.Thread(target=lambda: asyncio.run(wait(receipt)))
        thread.start()
        await settled()
        end(node)
        await asyncio.to_thread(thread.join)

    asyncio.run(main())
    assert outcomes == [Outcome.STOPPED]


def test_the_outcomes_are_words() -> None:
    assert [outcome.value for outcome in Outcome] == ["stopped", "escalated", "finished_first", "withdrawn"]


# -- what a receipt tells ----------------------------------------------------------------------------------------------


@virtual
async def test_what_was_effective_is_what_stopped_the_node_and_not_what_came_later() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    stop = node.check_safe_point("after_tools")
    assert stop is not None
    node.cancel(SafePoint.AFTER_MODEL)
    assert receipt.effective is stop.request
    end(node)
    assert receipt.effective is stop.request


@virtual
async def test_an_ask_of_a_node_that_was_stopped_by_something_inside_it_took_no_part() -> None:
    node = run()
    receipt = node.cancel(SafePoint.AFTER_MODEL)
    end(node, ending=STOPPED)
    assert (await receipt.wait(), receipt.contributed) == ("finished_first", False)


@virtual
async def test_a_failure_to_save_is_on_the_receipt() -> None:
    node, error = run(), OSError("the disk is full")
    receipt = node.cancel()
    end(node, ending=Ending(cancelled=True, stopped_at=1.0, save_error=error))
    assert receipt.save_error is error


@virtual
async def test_one_run_may_wait_for_another() -> None:
    node, other = run(), run("other")
    receipt = node.cancel()
    token = current_node.set(other)
    waiter = asyncio.ensure_future(receipt.wait())
    current_node.reset(token)
    await settled()
    assert not waiter.done()
    end(node, other)
    assert await waiter == "stopped"


class Slipping(AskLog):
    """A log in which somebody in another thread takes an ask back at the very moment in which it is acted on."""

    def __init__(self, ask_id: str) -> None:
        super().__init__()
        self._ask_id = ask_id

    def append(self, entry: Entry) -> None:
        if isinstance(entry, ActedOn) and self._ask_id in entry.ask_ids:
            super().append(Withdrawn(self._ask_id))
        super().append(entry)


@virtual
async def test_an_ask_that_is_taken_back_in_the_moment_of_the_stop_does_not_stop_the_node() -> None:
    first, second = Ask(SafePoint.NOW), Ask(SafePoint.NOW)
    node = new_run()
    node.log = Slipping(first.id)
    live(node)
    receipt = node.take(first)
    assert node.check_stop() is None
    assert await receipt.wait() == "withdrawn"
    node.log = Slipping(first.id)
    node.take(first)
    node.take(second)
    stop = node.check_stop()
    assert stop is not None
    assert stop.request.asks == (second,), "the other ask stands"
    end(node)


# -- handed on ---------------------------------------------------------------------------------------------------------


@virtual
async def test_a_receipt_that_was_handed_on_says_what_became_of_the_ask_there() -> None:
    node, other = run(), run()
    receipt, heir = node.cancel(SAFE), other.cancel(SafePoint.NOW)
    node.hand_on(receipt.asked.id, heir)
    end(node, ending=BY_ITSELF)
    waiting = asyncio.ensure_future(receipt.wait())
    await settled()
    assert not waiting.done(), "what the ask was handed on to is not over"
    with pytest.raises(NotEnded):
        _ = receipt.outcome
    assert other.check_safe_point("now") is not None
    end(other)
    assert await waiting == receipt.outcome == receipt.wait_sync() == Outcome.STOPPED
    assert receipt.contributed


@virtual
async def test_a_thread_waits_for_what_the_ask_was_handed_on_to() -> None:
    node, other = run(), run()
    receipt = node.cancel(SAFE)
    node.hand_on(receipt.asked.id, other.cancel(SAFE))
    end(node, ending=BY_ITSELF)
    with pytest.raises(UsageError, match="would block the loop"):
        receipt.wait_sync()
    end(other)
    assert receipt.wait_sync() == Outcome.FINISHED_FIRST
