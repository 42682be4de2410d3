"""A task that takes piece after piece without waiting lets the loop turn now and then."""

from __future__ import annotations

import asyncio

from safepoint._core.pace import LONGEST_AT_ONCE, MOST_AT_ONCE, UNWATCHED, Pace


def test_no_more_is_taken_without_a_pause_than_is_promised() -> None:
    assert (MOST_AT_ONCE, LONGEST_AT_ONCE) == (256, 0.010)


def test_a_task_lets_the_loop_turn_after_so_many_pieces_or_so_much_time_without_a_pause() -> None:
    async def main() -> None:
        pace, began = Pace(asyncio.get_running_loop()), 0.0
        assert [pace.is_due(began) for _ in range(MOST_AT_ONCE)] == [False] * (MOST_AT_ONCE - 1) + [True]
        await asyncio.sleep(0)
        assert not pace.is_due(began), "it begins anew when the loop has turned"
        assert not pace.is_due(began + LONGEST_AT_ONCE / 2)
        assert pace.is_due(began + LONGEST_AT_ONCE)
        await asyncio.sleep(0)
        assert not pace.is_due(began + 60), "a wait of its own is no time that it took from others"
        pace.close()
        Pace(asyncio.get_running_loop()).close()

    asyncio.run(main())


def test_a_pace_that_is_closed_leaves_nothing_on_the_loop() -> None:
    async def main() -> None:
        pace = Pace(asyncio.get_running_loop())
        for _ in range(UNWATCHED + 1):  # a shorter stream never looks whether the loop turns
            assert pace._turn is None  # pyright: ignore[reportPrivateUsage]  # as below
            pace.is_due(0.0)
        turn = pace._turn  # pyright: ignore[reportPrivateUsage]  # what it leaves shows nowhere else
        assert turn is not None
        pace.close()
        assert turn.cancelled()

    asyncio.run(main())
