"""One ask of many runs: all live runs of an agent, all runs under a token, or the one that comes next."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

import pytest

from safepoint._core.asks import Ask
from safepoint._core.groups import CancelToken, Group, GroupReceipt
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.tree import Node
from safepoint.errors import AskNotTaken, NotEnded, TokenCancelled
from tests.core.grove import end, new_run, run
from tests.core.piece import settled
from tests.virtual import passes, virtual

SAFE = SafePoint.AFTER_TOOLS


def joined(group: Group, name: str = "run") -> Node:
    node = run(name)
    group.join(node)
    return node


def ask(at: SafePoint = SAFE) -> Ask:
    return Ask(at, Reason("lunch"))


# -- live runs ---------------------------------------------------------------------------------------------------------


@virtual
async def test_every_live_run_is_asked_and_has_its_receipt() -> None:
    group = Group()
    first, second, gone = (joined(group, name) for name in ("first", "second", "gone"))
    end(gone)
    receipt = group.ask(ask(), keep=True)
    assert receipt.accepted
    assert [each.node for each in receipt.receipts] == [first, second]
    first.check_safe_point("after_tools")
    end(first, second)
    assert await receipt.wait() == "stopped", "the most that came of it"
    assert [each.outcome for each in receipt.receipts] == ["stopped", "finished_first"]
    assert receipt.contributed


@virtual
async def test_a_run_that_starts_after_the_ask_is_not_asked() -> None:
    group = Group()
    first = joined(group)
    receipt = group.ask(ask(), keep=True)
    second = joined(group)
    assert second.request() is None
    assert len(receipt.receipts) == 1
    end(first, second)


@virtual
async def test_with_none_live_and_nothing_to_keep_it_finished_first_and_touches_nothing() -> None:
    group = Group()
    end(joined(group))
    receipt = group.ask(ask(), keep=False)
    assert not receipt.accepted
    assert receipt.receipts == ()
    assert await receipt.wait() == "finished_first"
    assert receipt.wait_sync() == "finished_first"
    assert not receipt.contributed
    assert not receipt.withdraw()
    later = joined(group)
    assert later.request() is None
    end(later)


# -- kept for the next run ---------------------------------------------------------------------------------------------


@virtual
async def test_a_kept_ask_is_spent_by_the_next_run_and_not_by_the_one_after() -> None:
    group = Group()
    assert not group.has_run
    receipt, twice = group.ask(ask(), keep=True), group.ask(ask(), keep=True)
    assert receipt.accepted
    assert receipt.receipts == ()
    first = joined(group)
    assert group.has_run
    assert [each.node for each in (*receipt.receipts, *twice.receipts)] == [first, first]
    assert first.check_safe_point("after_tools") is not None
    second = joined(group)
    assert second.request() is None
    end(first, second)
    assert (await receipt.wait(), await twice.wait()) == ("stopped", "stopped")


@virtual
async def test_waiting_for_an_ask_that_no_run_has_taken_raises_instead_of_hanging() -> None:
    group = Group()
    receipt = group.ask(ask(), keep=True)
    message = "no run has taken this ask yet, so waiting would never end: start the run first"
    with pytest.raises(AskNotTaken, match=message):
        receipt.wait_sync()
    with pytest.raises(AskNotTaken, match=message):
        _ = receipt.outcome
    with pytest.raises(AskNotTaken, match=message):
        await receipt.wait()


@virtual
async def test_a_kept_ask_may_be_taken_back_and_then_no_run_takes_it() -> None:
    group = Group()
    receipt, other = group.ask(ask(), keep=True), group.ask(ask(SafePoint.NOW), keep=True)
    assert receipt.withdraw()
    assert await receipt.wait() == "withdrawn"
    assert receipt.outcome == "withdrawn"
    node = joined(group)
    request = node.request()
    assert request is not None
    assert request.asks == (other.asked,)
    assert receipt.receipts == ()
    await settled()
    end(node)


@virtual
async def test_a_kept_ask_that_a_run_has_taken_is_taken_back_from_that_run() -> None:
    group = Group()
    receipt = group.ask(ask(), keep=True)
    node = joined(group)
    assert receipt.withdraw()
    assert node.request() is None
    assert await receipt.wait() == "withdrawn"
    end(node)


# -- taking back -------------------------------------------------------------------------------------------------------


@virtual
async def test_an_ask_is_taken_back_wherever_nobody_has_acted_on_it() -> None:
    group = Group()
    first, second = joined(group, "first"), joined(group, "second")
    receipt = group.ask(ask(), keep=False)
    first.check_safe_point("after_tools")
    assert not receipt.withdraw(), "it stands in one of them"
    assert (first.request() is not None, second.request()) == (True, None)
    end(first, second)
    assert [each.outcome for each in receipt.receipts] == ["stopped", "withdrawn"]
    assert receipt.outcome == "stopped"


@virtual
async def test_of_several_outcomes_the_most_that_came_of_it_is_told() -> None:
    group = Group()
    nodes = [joined(group, name) for name in ("a", "b", "c")]
    receipt = GroupReceipt(Ask(SAFE, deadline=nodes[0].clock.now() + 1))
    for node in nodes:
        receipt.ask(node)
    end(nodes[2])
    await settled()
    receipt.receipts[1].withdraw()
    await passes(1)
    await settled()
    end(nodes[0], nodes[1])
    assert [each.outcome for each in receipt.receipts] == ["escalated", "withdrawn", "finished_first"]
    assert await receipt.wait() == "escalated"


@virtual
async def test_waiting_for_a_group_may_be_limited() -> None:
    group = Group()
    node = joined(group)
    receipt = group.ask(ask(), keep=False)
    with pytest.raises(TimeoutError):
        await receipt.wait(timeout=1)
    errors: list[str] = []

    def wait() -> None:
        with pytest.raises(TimeoutError) as caught:
            receipt.wait_sync(timeout=0.001)
        errors.append(str(caught.value))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert errors == ["run has not ended within 0.001 s"]
    end(node)
    assert receipt.wait_sync() == "finished_first"


# -- crossing in two threads -------------------------------------------------------------------------------------------


@virtual
async def test_an_ask_and_a_start_that_cross_meet_exactly_once() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(100):
        group, node = Group(), new_run()
        receipts: list[GroupReceipt] = []
        together = threading.Barrier(2)

        def asks(
            group: Group = group, receipts: list[GroupReceipt] = receipts, together: threading.Barrier = together
        ) -> None:
            together.wait()
            receipts.append(group.ask(ask(SafePoint.NOW), keep=True))

        thread = threading.Thread(target=asks)
        thread.start()
        together.wait()
        group.join(node)
        thread.join()
        assert len(receipts[0].receipts) == 1
        assert len(node.log.standing().asks) == 1
        node.attach(loop, node.clock)
        assert node.pushed is Level.NOW
        end(node)


# -- tokens ------------------------------------------------------------------------------------------------------------


@virtual
async def test_a_token_asks_every_run_under_it_and_no_other() -> None:
    token = CancelToken()
    first, second, free = run("first"), run("second"), run("free")
    token.admit(first)
    token.admit(second)
    assert not token.cancel_requested
    receipt = token.cancel(SAFE, within=5, recursive=True, reason="bye")
    assert token.cancel_requested
    assert [each.node for each in receipt.receipts] == [first, second]
    assert free.request() is None
    request = second.request()
    assert request is not None
    assert (request.at, request.recursive, request.reason.text) == (SAFE, True, "bye")
    assert request.deadline == first.clock.now() + 5
    for node in (first, second):
        node.check_safe_point("after_tools")
    end(first, second, free)
    assert await receipt.wait() == "stopped"


@virtual
async def test_a_token_asks_for_no_recursion_by_itself() -> None:
    token, node = CancelToken(), run()
    token.admit(node)
    token.cancel(SAFE)
    request = node.request()
    assert request is not None
    assert not request.recursive
    end(node)


@virtual
async def test_a_token_that_was_left_cancelled_refuses_new_runs_loudly() -> None:
    token, silent = CancelToken(), CancelToken()
    token.refuse_if_cancelled()
    token.cancel(reason="closing time")
    silent.cancel()
    with pytest.raises(
        TokenCancelled, match=r"^this token is cancelled \(closing time\): make a new CancelToken for a new run$"
    ):
        token.refuse_if_cancelled()
    with pytest.raises(TokenCancelled, match=r"^this token is cancelled: make a new CancelToken for a new run$"):
        silent.refuse_if_cancelled()


@virtual
async def test_a_token_without_runs_keeps_nothing() -> None:
    token = CancelToken()
    receipt = token.cancel()
    assert not receipt.accepted
    assert await receipt.wait() == "finished_first"


@virtual
async def test_a_cancel_that_crosses_a_start_in_another_thread_is_taken_by_the_run() -> None:
    token, node = CancelToken(), run()
    token.cancel(reason="in between")
    token.admit(node)
    await settled()
    assert node.stop is not None
    assert node.stop.reason.text == "in between"
    end(node)


@virtual
async def test_a_cancel_that_crosses_a_start_has_a_receipt_for_that_run_and_only_one() -> None:
    token, node = CancelToken(), run()
    before = token.cancel(SAFE)  # the start has looked at the token already
    token.admit(node)
    assert [receipt.node for receipt in before.receipts] == [node]
    before.ask(node)  # both of the two that cross find the other
    assert len(before.receipts) == 1
    node.check_safe_point("after_tools")
    end(node)
    assert await before.wait() == "stopped"
    assert before.contributed


class TakenBack(CancelToken):
    """A token whose cancel is taken back while a run is starting under it, before or after the run is asked."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self._before = before

    def admit(self, node: Node) -> None:
        (cancel,) = self._cancels
        if self._before:
            assert cancel.withdraw()
            cancel.ask(node)
        else:
            self._cancels = Leaving(lambda: cancel.ask(node))
            cancel.refuse_by(self._cancels)
            assert cancel.withdraw()


class Leaving(list[GroupReceipt]):
    """Cancels of a token; something happens in the very moment in which one is taken off."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call

    def remove(self, cancel: GroupReceipt, /) -> None:
        self._call()
        super().remove(cancel)


@virtual
@pytest.mark.parametrize("before", [True, False])
async def test_a_cancel_that_is_taken_back_while_a_run_starts_does_not_stop_it(before: bool) -> None:
    token, node = TakenBack(before=before), run()
    receipt: GroupReceipt = token.cancel(SAFE)
    token.admit(node)
    assert node.check_safe_point("after_tools") is None
    assert not token.cancel_requested
    end(node)
    assert await receipt.wait() == "withdrawn"


def test_a_run_that_was_lost_with_its_loop_is_not_live_any_more() -> None:
    group, loop = Group(), asyncio.new_event_loop()

    async def begin() -> Node:
        return joined(group, "lost")

    node = loop.run_until_complete(begin())
    taken = node.cancel()
    loop.close()
    assert node.lost
    kept = group.ask(ask(), keep=True)
    assert kept.receipts == ()
    with pytest.raises(AskNotTaken):
        kept.wait_sync()
    with pytest.raises(NotEnded, match="its event loop was closed first"):
        taken.wait_sync()

    async def following() -> None:
        after = joined(group, "following")
        assert [receipt.node for receipt in kept.receipts] == [after]
        end(after)

    asyncio.run(following())


@virtual
async def test_a_token_is_freed_if_nobody_has_acted_on_its_cancel_also_if_runs_have_ended_since() -> None:
    token, ended, live = CancelToken(), run("ended"), run("live")
    for node in (ended, live):
        token.admit(node)
    receipt = token.cancel(SAFE)
    end(ended)
    assert receipt.withdraw()
    assert not token.cancel_requested
    end(live)
    assert await receipt.wait() == "withdrawn"
    assert [each.outcome for each in receipt.receipts] == ["finished_first", "withdrawn"]


@virtual
async def test_an_ask_that_came_to_nothing_cannot_be_taken_back() -> None:
    group = Group()
    node = joined(group)
    receipt = group.ask(ask(), keep=False)
    end(node)
    assert not receipt.withdraw()
    assert await receipt.wait() == "finished_first"


@virtual
async def test_an_ask_that_is_kept_while_the_last_run_tells_its_end_may_be_taken_back() -> None:
    group = Group()
    node = joined(group)
    node.seal()
    kept = group.ask(ask(), keep=True)
    assert kept.withdraw()
    following = joined(group, "following")
    assert following.request() is None
    end(node, following)


@virtual
async def test_an_ask_for_the_next_run_is_kept_while_the_last_one_is_telling_its_end() -> None:
    group = Group()
    node = joined(group)
    node.seal()
    kept = group.ask(ask(), keep=True)
    with pytest.raises(AskNotTaken):
        await kept.wait()
    following = joined(group, "following")
    assert [receipt.accepted for receipt in kept.receipts] == [False, True]
    end(node, following)


@virtual
async def test_a_deadline_is_as_far_away_on_the_clock_of_each_run_as_on_the_askers() -> None:
    token, node = CancelToken(), run()
    token.admit(node)
    await passes(1)
    receipt = await asyncio.to_thread(lambda: token.cancel(SAFE, within=5))  # by the clock of the machine
    await passes(4.9)
    assert node.stop is None
    await passes(0.2)
    assert node.stop is not None
    assert 0 <= node.clock.wall() - node.stop.request.asks[0].asked_at < 6, "a time of day of the same clock"
    end(node)
    assert await receipt.wait() == "escalated"


class Passing(deque[GroupReceipt]):
    """Kept asks; a run comes and goes in the very moment in which the first one is added."""

    def __init__(self, come_and_go: Callable[[], object]) -> None:
        super().__init__()
        self._come_and_go: Callable[[], object] | None = come_and_go

    def append(self, receipt: GroupReceipt, /) -> None:
        super().append(receipt)
        call, self._come_and_go = self._come_and_go, None
        if call is not None:
            call()


class Visited(Group):
    """A group in which a run is live for one look only: it has ended when it is asked."""

    def __init__(self, node: Node, *, takes: bool = False) -> None:
        super().__init__()
        self._kept = Passing(lambda: self.join(node) if takes else self._live.setdefault(node))

    def ask_live(self, receipt: GroupReceipt) -> bool:
        self._live.clear()
        return super().ask_live(receipt)


@virtual
async def test_an_ask_for_the_next_run_outlives_a_run_that_came_and_went_meanwhile() -> None:
    node = run("passing")
    group = Visited(node)
    kept = group.ask(ask(), keep=True)
    assert not kept.receipts
    following = joined(group, "following")
    assert [receipt.node for receipt in kept.receipts] == [following]
    end(node, following)


@virtual
async def test_an_ask_that_a_passing_run_has_taken_is_not_kept_for_another() -> None:
    node = run("passing")
    group = Visited(node, takes=True)
    kept = group.ask(ask(), keep=True)
    following = joined(group, "following")
    assert [receipt.node for receipt in kept.receipts] == [node]
    end(node, following)


@pytest.mark.parametrize("at", ["now", None])
def test_a_token_refuses_what_is_no_safe_point_and_stays_usable(at: object) -> None:
    token = CancelToken()
    with pytest.raises(ValueError, match="is not a safe point"):
        token.cancel(at)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the point
    assert not token.cancel_requested


class Joining(deque[GroupReceipt]):
    """Kept asks; a run joins the group in the very moment in which one is added, before or after."""

    def __init__(self, group: Group, node: Node, *, before: bool) -> None:
        super().__init__()
        self._group, self._node = group, node
        self._before = before

    def append(self, receipt: GroupReceipt, /) -> None:
        if self._before:
            self._group.join(self._node)
        super().append(receipt)
        if not self._before:
            self._group.join(self._node)


class Crossed(Group):
    def __init__(self, node: Node, *, before: bool) -> None:
        super().__init__()
        self._kept = Joining(self, node, before=before)


@virtual
@pytest.mark.parametrize("before", [True, False])
async def test_a_run_that_starts_while_an_ask_is_being_kept_takes_it_and_the_next_one_does_not(before: bool) -> None:
    node = run()
    group = Crossed(node, before=before)
    receipt = group.ask(ask(), keep=True)
    assert [each.node for each in receipt.receipts] == [node]
    following = joined(group, "following")
    assert following.request() is None
    end(node, following)


@virtual
async def test_a_token_whose_cancel_was_taken_back_takes_new_runs_again() -> None:
    token, first = CancelToken(), run("first")
    token.admit(first)
    one, other = token.cancel(SAFE), token.cancel(SAFE)
    assert one.withdraw()
    assert one.withdraw(), "as often as you like"
    with pytest.raises(TokenCancelled):
        token.refuse_if_cancelled()
    assert other.withdraw()
    assert not token.cancel_requested
    token.refuse_if_cancelled()
    second = run("second")
    token.admit(second)
    assert second.request() is None
    end(first, second)
    assert await one.wait() == "withdrawn"


@virtual
async def test_a_token_stays_cancelled_if_any_run_has_acted_on_it() -> None:
    token, first, second = CancelToken(), run("first"), run("second")
    token.admit(first)
    token.admit(second)
    receipt = token.cancel(SAFE)
    first.check_safe_point("after_tools")
    assert not receipt.withdraw()
    assert token.cancel_requested
    end(first, second)


@virtual
async def test_a_token_that_was_cancelled_without_any_run_can_be_freed_again() -> None:
    token = CancelToken()
    receipt = token.cancel()
    assert receipt.withdraw()
    assert await receipt.wait() == "withdrawn"
    assert not token.cancel_requested
