from __future__ import annotations

import asyncio
import contextvars
import hashlib
import itertools
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any

import anyio
import anyio.to_thread
import pytest

from safepoint._core.clock import current_clock
from safepoint.errors import UsageError
from safepoint.testing.clock import EPOCH, START, Deadlock, Endless, OutsideWork, VirtualLoop, run_virtual
from safepoint.testing.virtual_sleep import pass_time


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def taken(what: Awaitable[object]) -> float:
    """Virtual seconds that `what` took."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await what
    return loop.time() - begun


def work_a_while() -> None:
    """Real work outside the interpreter lock, some ten milliseconds of it: the loop goes idle long before it ends."""
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 20_000)


class Worker:
    """A thread that answers when the loop has gone idle, or when the test says so. Announced to the loop."""

    def __init__(self, loop: VirtualLoop, *, answers: bool = True) -> None:
        self.answer: asyncio.Future[str] = loop.create_future()
        self.release = threading.Event()
        self.work = loop.outside("worker")
        self._loop = loop
        self._answers = answers
        self._thread = threading.Thread(target=self._body, daemon=True)
        self._thread.start()

    def _body(self) -> None:
        self.release.wait()
        if self._answers:
            self._loop.call_soon_threadsafe(self.answer.set_result, "from the thread")
        self.work.done()

    def join(self) -> None:
        self.release.set()
        self._thread.join()


def test_an_hour_of_sleep_takes_no_real_time_and_exactly_an_hour_of_virtual_time() -> None:
    begun = monotonic()
    assert run_virtual(taken(pass_time(3600))) == 3600.0
    assert monotonic() - begun < 1


def test_the_clock_is_exact_after_many_odd_steps() -> None:
    async def main() -> list[float]:
        loop = virtual_loop()
        seen: list[float] = []
        for tenth in range(1, 40):
            await anyio.sleep_until(START + tenth / 10)
            seen.append(loop.time())
        return seen

    assert run_virtual(main) == [START + tenth / 10 for tenth in range(1, 40)]


def test_a_timer_centuries_away_still_fires() -> None:
    century = 100 * 365 * 86400.0

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * century):
                await never()
        return await taken(asyncio.sleep(century))

    assert run_virtual(main) == century


def test_timers_due_together_run_in_the_order_they_were_set() -> None:
    async def main() -> list[int]:
        loop = virtual_loop()
        ran: list[int] = []
        due = loop.time() + 1
        handles = [loop.call_at(due, ran.append, n) for n in range(50)]
        for handle in handles[1::3]:
            handle.cancel()
        await pass_time(2)
        return ran

    assert run_virtual(main) == [n for n in range(50) if n % 3 != 1]


def test_the_wall_clock_starts_on_a_fixed_day_and_moves_with_the_virtual_time() -> None:
    async def main() -> tuple[float, float]:
        first = virtual_loop().wall()
        await pass_time(86400)
        return first, virtual_loop().wall()

    assert run_virtual(main) == (EPOCH, EPOCH + 86400)


def test_a_jump_makes_overdue_timers_run_in_their_own_order() -> None:
    async def main() -> list[str]:
        loop = virtual_loop()
        ran: list[str] = []
        loop.call_later(20, ran.append, "later")
        loop.call_later(10, ran.append, "sooner")
        loop.jump(30)
        assert loop.time() == START + 30
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return ran

    assert run_virtual(main) == ["sooner", "later"]


def test_a_jump_backwards_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="only moves forward"):
            virtual_loop().jump(-1)

    run_virtual(main)


def test_a_deadlock_is_reported_at_once_and_names_each_task_and_its_line() -> None:
    async def waits_for_nothing() -> None:
        await never()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_nothing(), name="left hand")

    begun = monotonic()
    with pytest.raises(Deadlock) as caught:
        run_virtual(main)
    assert monotonic() - begun < 1
    line = never.__code__.co_firstlineno + 1
    assert f"test_clock.py:{line} in never" in str(caught.value)
    assert "left hand waits at" in str(caught.value)
    assert "main" in str(caught.value)


def test_a_deadlock_leaves_tasks_cancelled_and_cleaned_up() -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            await never()
        finally:
            ended.append("main")

    with pytest.raises(Deadlock):
        run_virtual(main)
    assert ended == ["main"]


def test_a_cancelled_timer_does_not_hide_a_deadlock() -> None:
    async def main() -> None:
        virtual_loop().call_later(5, print).cancel()
        await never()

    with pytest.raises(Deadlock, match="at 0 s"):
        run_virtual(main)


def test_the_clock_stands_still_while_announced_work_is_pending() -> None:
    async def main() -> tuple[str, float]:
        loop = virtual_loop()
        worker = Worker(loop)
        loop.call_soon(worker.release.set)  # the loop is idle long before the thread answers
        async with asyncio.timeout(0.001):
            answer = await worker.answer
        worker.join()
        return answer, loop.time()

    assert run_virtual(main) == ("from the thread", START)


def test_no_deadlock_is_reported_while_announced_work_is_pending() -> None:
    async def main() -> str:
        worker = Worker(virtual_loop())
        virtual_loop().call_soon(worker.release.set)
        answer = await worker.answer
        worker.join()
        return answer

    assert run_virtual(main) == "from the thread"


def test_work_that_is_done_without_an_answer_ends_the_wait_in_a_deadlock() -> None:
    workers: list[Worker] = []

    async def main() -> None:
        workers.append(Worker(virtual_loop(), answers=False))
        virtual_loop().call_soon(workers[0].release.set)
        await workers[0].answer

    with pytest.raises(Deadlock, match="nothing can happen any more"):
        run_virtual(main)
    workers[0].join()


def test_flagged_work_counts_for_a_tenth_of_a_real_second_and_no_longer() -> None:
    async def main() -> float:
        worker = Worker(virtual_loop())
        begun = monotonic()
        worker.work.flagged()
        worker.work.flagged()
        await pass_time(5)
        waited = monotonic() - begun
        worker.join()
        return waited

    assert 0.1 <= run_virtual(main) < 0.5


def test_flagged_work_that_ends_in_time_ends_the_real_wait() -> None:
    async def main() -> float:
        worker = Worker(virtual_loop())
        worker.work.flagged()
        virtual_loop().call_soon(worker.release.set)
        assert await worker.answer == "from the thread"
        worker.join()
        return virtual_loop().time()

    assert run_virtual(main) == START


def test_a_flag_from_another_thread_wakes_a_loop_that_already_waits() -> None:
    async def main() -> float:
        loop = virtual_loop()
        worker = Worker(loop)
        idle = threading.Event()

        def flag() -> None:
            idle.wait()
            worker.work.flagged()

        flagger = threading.Thread(target=flag)
        flagger.start()
        loop.call_soon(idle.set)
        took = await taken(pass_time(7))
        worker.join()
        flagger.join()
        return took

    assert run_virtual(main) == 7


def test_done_may_be_called_twice_and_after_the_loop_was_closed() -> None:
    works: list[OutsideWork] = []

    async def main() -> float:
        loop = virtual_loop()
        works.extend([loop.outside("first"), loop.outside("second")])
        works[0].done()
        works[0].done()
        works[1].flagged()
        return await taken(pass_time(1))

    assert run_virtual(main) == 1
    for work in works:
        work.done()
        work.flagged()


def test_work_that_never_comes_ends_the_wait_after_the_patience_and_is_named() -> None:
    loop = VirtualLoop(patience=0.01)

    async def main() -> None:
        loop.outside("a thread that hangs")
        await pass_time(1)

    try:
        task = loop.create_task(main())
        with pytest.raises(Deadlock, match="a thread that hangs"):
            loop.run_until_complete(task)
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
    finally:
        loop.close()


@pytest.mark.parametrize("to_thread", [asyncio.to_thread, anyio.to_thread.run_sync], ids=["asyncio", "anyio"])
def test_the_clock_stands_still_while_a_worker_thread_runs(to_thread: Callable[..., Awaitable[str]]) -> None:
    async def main() -> tuple[str, float]:
        def job() -> str:
            work_a_while()
            return "worked"

        async with asyncio.timeout(0.001):
            answer = await to_thread(job)
        return answer, asyncio.get_running_loop().time()

    assert run_virtual(main) == ("worked", START)


def test_an_idle_worker_thread_holds_nothing() -> None:
    async def main() -> float:
        await anyio.to_thread.run_sync(lambda: None)
        await asyncio.to_thread(lambda: None)
        begun = monotonic()
        await pass_time(3600)
        return monotonic() - begun

    assert run_virtual(main) < 0.5


def test_a_child_process_is_waited_for() -> None:
    async def main() -> tuple[bytes, int]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('from the child')", stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        return await process.stdout.read(), await process.wait()

    assert run_virtual(main) == (b"from the child\n", 0)


def test_a_silent_socket_delays_a_timer_but_does_not_stop_the_clock() -> None:
    async def main() -> float:
        left, right = socket.socketpair()
        with left, right:
            reader, writer = await asyncio.open_connection(sock=left)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await reader.read(1)
            writer.close()
            await writer.wait_closed()
        return virtual_loop().time()

    assert run_virtual(main) == START + 60


def test_bytes_that_arrive_are_read_before_the_clock_moves() -> None:
    async def main() -> tuple[bytes, float]:
        left, right = socket.socketpair()

        def send() -> None:
            work_a_while()
            right.sendall(b"hello")

        peer = threading.Thread(target=send)
        with left, right:
            reader, writer = await asyncio.open_connection(sock=left)
            peer.start()
            async with asyncio.timeout(0.001):
                received = await reader.readexactly(5)
            writer.close()
            await writer.wait_closed()
            peer.join()
        return received, virtual_loop().time()

    assert run_virtual(main) == (b"hello", START)


def test_a_signal_that_has_arrived_is_handled_before_the_clock_moves() -> None:
    async def main() -> float:
        loop = virtual_loop()
        arrived = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, arrived.set)
        signal.raise_signal(signal.SIGUSR1)
        async with asyncio.timeout(0.001):
            await arrived.wait()
        return loop.time()

    assert run_virtual(main) == START


def test_a_loop_told_its_horizon_does_not_pass_it() -> None:
    async def main() -> None:
        virtual_loop().horizon = START + 10
        for _ in itertools.count():
            await pass_time(3)

    with pytest.raises(Endless, match="horizon"):
        run_virtual(main)


def test_a_loop_told_how_many_rounds_ends_a_busy_loop() -> None:
    loop = VirtualLoop(max_rounds=50)

    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    task = loop.create_task(main())
    with pytest.raises(Endless, match="50 rounds"):
        loop.run_until_complete(task)
    loop.close()
    task.cancel()


def test_run_virtual_cancels_left_over_tasks_and_closes_generators() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await never()
        finally:
            ended.append("task")

    async def ticks() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await pass_time(1)
            ended.append("generator")

    async def main() -> int:
        tasks.append(asyncio.create_task(background()))
        generators.append(ticks())
        await asyncio.sleep(0)
        return await anext(generators[0])

    tasks: list[asyncio.Task[None]] = []
    generators: list[AsyncIterator[int]] = []
    assert run_virtual(main) == 1
    assert ended == ["task", "generator"]


def test_run_virtual_leaves_no_global_state() -> None:
    outer = asyncio.new_event_loop()
    asyncio.set_event_loop(outer)
    try:
        run_virtual(pass_time(1))
        assert asyncio.get_event_loop() is outer
    finally:
        asyncio.set_event_loop(None)
        outer.close()


def test_run_virtual_keeps_the_caller_s_context_and_exception() -> None:
    setting = contextvars.ContextVar("setting", default="unset")
    setting.set("set by the caller")

    async def main() -> None:
        raise LookupError(setting.get())

    with pytest.raises(LookupError, match="set by the caller"):
        run_virtual(main)


@pytest.mark.parametrize("as_coroutine", [True, False])
def test_run_virtual_inside_a_loop_says_what_to_write(as_coroutine: bool) -> None:
    async def inner() -> None: ...

    async def main() -> None:
        with pytest.raises(UsageError, match="await"):
            run_virtual(inner() if as_coroutine else inner)

    run_virtual(main)


def test_run_virtual_refuses_what_is_not_a_coroutine() -> None:
    wrong: Any = lambda: 3  # noqa: E731 (what a typed caller could not pass)
    with pytest.raises(UsageError, match="async function"):
        run_virtual(wrong)


def test_the_watchdog_keeps_away_because_its_real_time_would_disturb_the_order() -> None:
    async def main() -> bool:
        return current_clock().is_virtual

    assert run_virtual(main)
    assert not asyncio.run(main())
