"""A loop is woken from wherever somebody asks, and only where it may be asleep."""

from __future__ import annotations

import asyncio
import selectors
import signal
from types import FrameType

from safepoint._core.wake import call_soon, in_step_of


def test_only_a_step_of_the_loops_own_task_needs_no_waking() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert in_step_of(loop)
        seen: list[bool] = []
        loop.call_soon(lambda: seen.append(in_step_of(loop)))
        await asyncio.to_thread(lambda: seen.append(in_step_of(loop)))
        assert seen == [False, False]
        other = asyncio.new_event_loop()
        assert not in_step_of(other)
        other.close()

    asyncio.run(main())


class InterruptedSleep(selectors.DefaultSelector):
    """Gets a signal each time it is about to sleep for good."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            signal.raise_signal(signal.SIGUSR1)
        return super().select(timeout)


def test_a_signal_handler_wakes_the_loop_whose_sleep_it_interrupted() -> None:
    async def main() -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def handle(_signal: int, _frame: FrameType | None) -> None:
            call_soon(loop, woken.set)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            await woken.wait()
        finally:
            signal.signal(signal.SIGUSR1, before)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(InterruptedSleep())) as runner:
        runner.run(main())


def test_a_closed_loop_says_that_it_will_never_call() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert not call_soon(loop, lambda: None)
