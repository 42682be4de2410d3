"""A critical section that NOW does not cut: bounded, and what waited for its end comes at its end."""

from __future__ import annotations

from safepoint._core.ladder import Ladder, StopPolicy
from safepoint._core.work import Abandoned, Cut, Returned
from tests.core.piece import Piece, for_ever, settled, stubborn
from tests.virtual import now, passes, virtual


@virtual
async def test_a_stop_waits_for_the_end_of_the_section() -> None:
    async def work() -> None:
        piece.work.shield(5.0)
        await passes(3)
        assert piece.work.unshield(), "a stop has been waiting"
        await for_ever()

    piece = Piece(work)
    await passes(1)
    piece.work.stop()
    assert piece.work.until == now() + 4.0
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("shielded", 1.0), ("cancel", 3.0)]


@virtual
async def test_a_section_that_lasts_too_long_is_cut() -> None:
    async def work() -> None:
        piece.work.shield(2.0)
        await for_ever()

    piece = Piece(work)
    await passes(1)
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("shielded", 1.0), ("cancel", 2.0)]


@virtual
async def test_without_a_stop_the_end_of_a_section_is_nothing_special() -> None:
    async def work() -> str:
        piece.work.shield(2.0)
        assert not piece.work.unshield()
        return "done"

    piece = Piece(work)
    assert await piece.outcome() == Returned("done")


@virtual
async def test_of_nested_sections_the_outer_one_counts() -> None:
    async def work() -> None:
        piece.work.shield(5.0)
        piece.work.shield(1.0)
        await passes(0.5)
        assert not piece.work.unshield()
        await passes(2)
        assert piece.work.unshield()
        await for_ever()

    piece = Piece(work)
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("shielded", 0.0), ("cancel", 2.5)]


@virtual
async def test_a_section_has_its_own_time_and_not_what_an_earlier_one_left() -> None:
    async def work() -> None:
        piece.work.shield(9.0)
        piece.work.unshield()
        piece.work.shield(1.0)
        await for_ever()

    piece = Piece(work)
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("shielded", 0.0), ("cancel", 1.0)]


@virtual
async def test_force_does_not_wait_for_a_section() -> None:
    async def work() -> None:
        piece.work.shield(5.0)
        await for_ever()

    piece = Piece(work)
    await settled()
    piece.work.stop()
    await passes(1)
    piece.work.stop(force=True)
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("shielded", 0.0), ("cancel", 1.0)]


@virtual
async def test_the_cap_counts_from_the_stop_also_through_a_section() -> None:
    async def work() -> None:
        piece.work.shield(3.0)
        await stubborn(30)()

    piece = Piece(work, ladder=Ladder(task=2.0, cap=4.0))
    await settled()
    piece.work.stop()
    assert isinstance(await piece.outcome(), Abandoned)
    assert piece.rungs == [("shielded", 0.0), ("cancel", 3.0), ("abandon", 4.0)]
    await passes(30)


@virtual
async def test_work_that_is_to_finish_is_not_cut_inside_a_section_when_its_grace_ends() -> None:
    async def work() -> None:
        await passes(2)
        piece.work.shield(3.0)
        await passes(2)
        piece.work.unshield()
        await for_ever()

    piece = Piece(work, stop_policy=StopPolicy(finish=True, grace=3.0))
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("finish", 0.0), ("shielded", 3.0), ("cancel", 4.0)]


@virtual
async def test_a_section_that_began_while_finishing_is_bounded_by_the_cap() -> None:
    async def work() -> None:
        await passes(2)
        piece.work.shield(4.0)
        await for_ever()

    piece = Piece(work, stop_policy=StopPolicy(finish=True, grace=3.0), ladder=Ladder(cap=4.0))
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("finish", 0.0), ("shielded", 3.0), ("cancel", 4.0)]


@virtual
async def test_when_the_longest_section_ends_the_next_longest_counts() -> None:
    async def work() -> None:
        longest = piece.work.shield(5.0)
        piece.work.shield(2.0)
        assert longest == now() + 5.0
        await passes(1)
        assert not piece.work.unshield(longest), "another section is open"
        await for_ever()

    piece = Piece(work)
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("shielded", 0.0), ("cancel", 2.0)]


@virtual
async def test_force_cuts_work_that_was_left_to_finish_also_inside_a_section() -> None:
    async def work() -> None:
        await passes(1)
        piece.work.shield(5.0)
        await for_ever()

    piece = Piece(work, stop_policy=StopPolicy(finish=True, grace=3.0))
    await settled()
    piece.work.stop()
    await passes(2)
    piece.work.stop(force=True)
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("finish", 0.0), ("cancel", 2.0)]


@virtual
async def test_a_section_that_ends_with_the_grace_is_over() -> None:
    async def work() -> None:
        await passes(1)
        piece.work.shield(2.0)
        await for_ever()

    piece = Piece(work, stop_policy=StopPolicy(finish=True, grace=3.0))
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("finish", 0.0), ("cancel", 3.0)]
