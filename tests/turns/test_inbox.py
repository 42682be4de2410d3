"""The list in which everything is recorded: who is in time is decided by its order, in every interleaving."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from safepoint import SafePoint, TurnLoop
from safepoint.turns.inbox import Closing, Inbox, LateItems, Pushed
from safepoint.turns.receipts import PushReceipt
from tests.turns.parts import all_at_once, talker


def pushed(value: int) -> Pushed[int]:
    return Pushed(value, PushReceipt(None, stored=False), None)


class Interleaved(list[Any]):
    """A list that lets others act right before and right after it is copied, once: as another thread would."""

    def __init__(self, items: list[Any], before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__(items)
        self._others: tuple[Callable[[], object], Callable[[], object]] | None = (before, after)

    def copy(self) -> list[Any]:
        others, self._others = self._others, None
        if others is None:
            return super().copy()
        others[0]()
        found = super().copy()
        others[1]()
        return found

    def leave_alone(self) -> None:
        self._others = None


def closes_and_takes(inbox: Inbox[int]) -> None:
    inbox.put(Closing())
    inbox.take()


MEANWHILE: list[tuple[str, Callable[[Inbox[int]], object]]] = [
    ("nothing", lambda inbox: None),
    ("the loop looks", lambda inbox: inbox.take()),
    ("somebody stops", lambda inbox: inbox.put(Closing())),
    ("somebody stops and the loop looks", closes_and_takes),
    ("the loop ends", lambda inbox: (closes_and_takes(inbox), inbox.finish())),
    ("somebody pushes", lambda inbox: inbox.put(pushed(9))),
]
names = [name for name, _ in MEANWHILE]


@pytest.mark.parametrize("closed", ["never", "before", "after", "before, and taken"])
@pytest.mark.parametrize("after", [act for _, act in MEANWHILE], ids=names)
@pytest.mark.parametrize("before", [act for _, act in MEANWHILE], ids=names)
def test_the_pusher_and_the_loop_always_agree(
    before: Callable[[Inbox[int]], object], after: Callable[[Inbox[int]], object], closed: str
) -> None:
    inbox: Inbox[int] = Inbox()
    if closed.startswith("before"):
        inbox.put(Closing())
        if closed.endswith("taken"):
            inbox.take()
    entry = pushed(1)
    inbox.put(entry)
    if closed == "after":
        inbox.put(Closing())
    entries = inbox._entries  # pyright: ignore[reportPrivateUsage]  # the interleaving is forced here
    inbox._entries = waiting = Interleaved(entries, lambda: before(inbox), lambda: after(inbox))  # pyright: ignore[reportPrivateUsage]  # as above
    said = inbox.in_time(entry)
    waiting.leave_alone()
    inbox.take()
    assert entry.in_time is said
    assert said is not closed.startswith("before")


class LookedAt(Pushed[int]):
    """An entry that lets others act right after its verdict was read."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._verdict: bool | None = None
        self._meanwhile: Callable[[], object] | None = None
        super().__init__(1, PushReceipt(None, stored=False), None)
        self._meanwhile = meanwhile

    @property  # type: ignore[override]  # the interleaving is forced here
    def in_time(self) -> bool | None:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        verdict, meanwhile, self._meanwhile = self._verdict, self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return verdict

    @in_time.setter
    def in_time(self, verdict: bool | None) -> None:
        self._verdict = verdict


def test_a_stop_that_is_heard_while_the_pusher_looks_does_not_make_its_push_late() -> None:
    inbox: Inbox[int] = Inbox()
    entry = LookedAt(inbox.take)
    inbox.put(entry)
    inbox.put(Closing())
    assert inbox.in_time(entry)
    assert entry.in_time


def test_what_comes_after_the_end_is_not_kept() -> None:
    inbox: Inbox[int] = Inbox()
    closes_and_takes(inbox)
    inbox.finish()
    entry = pushed(1)
    inbox.put(entry)
    assert not inbox.in_time(entry)
    assert inbox.take() == []


def test_a_late_item_is_on_the_list_or_its_pusher_is_told() -> None:
    late: LateItems[int] = LateItems()
    assert late.add(pushed(1))
    late._entries.append(pushed(2))  # pyright: ignore[reportPrivateUsage]  # another thread has not looked yet
    assert late.take() == [1, 2]
    assert not late.add(pushed(3))
    assert late.take() == [1, 2]


def test_threads_that_push_while_others_stop_lose_nothing() -> None:
    async def main() -> None:
        loop: TurnLoop[int] = TurnLoop(talker(), plan=all_at_once)
        accepted: list[int] = []
        refused: list[int] = []
        seen: list[int] = []
        reader = loop.events()
        ready = threading.Barrier(5)

        def push(first: int) -> None:
            ready.wait()
            for item in range(first, 4000, 4):
                (accepted if loop.push(item).accepted else refused).append(item)
                if item == 2000:
                    loop.stop(SafePoint.ANY)

        threads = [threading.Thread(target=push, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        async with loop:
            await asyncio.to_thread(ready.wait)
            for thread in threads:
                await asyncio.to_thread(thread.join)
        exit = await loop.wait()
        async for event in reader:
            if type(event).__name__ == "TurnEnded" and getattr(event, "outcome", None) == "ended":
                seen += getattr(event, "consumed", ())
        assert sorted([*seen, *exit.interrupted, *exit.unhandled]) == sorted(accepted)
        assert sorted(loop.take_late_items()) == sorted(refused)
        assert refused

    asyncio.run(main())


def test_a_signal_handler_may_stop_a_loop_that_is_being_pushed_to() -> None:
    async def main() -> None:
        loop: TurnLoop[int] = TurnLoop(talker(), plan=all_at_once)
        before = signal.signal(signal.SIGUSR1, lambda number, frame: loop.stop(cause="a signal"))
        try:
            async with loop:
                number = 0
                while loop.push(number).accepted:
                    number += 1
                    if number == 50:
                        signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        exit = await loop.wait()
        assert (exit.cause, exit.unhandled) == ("a signal", list(range(50)))

    asyncio.run(main())
