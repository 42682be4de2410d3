"""Which processes belong to a call: all below its keeper, and all in its group, wherever they stand."""

from __future__ import annotations

import os

from safepoint.tools.subreaper import left_behind, members, process_table

# (pid, parent, process group)
TABLE = [
    (1, 0, 1),
    (10, 1, 10),  # the keeper
    (11, 10, 11),  # the leader
    (12, 11, 11),
    (13, 12, 13),  # a grandchild in a group of its own
    (14, 10, 14),  # what was left by its parent, and adopted
    (15, 1, 11),  # where nobody adopts: gone to init, but in the group
    (16, 15, 16),
    (20, 1, 20),
    (21, 20, 20),
]


def test_the_members_are_all_below_the_keeper_and_all_of_the_group() -> None:
    assert sorted(members(TABLE, keeper=10, group=11)) == [11, 12, 13, 14, 15, 16]


def test_nobody_else_is_a_member() -> None:
    assert members([(1, 0, 1), (20, 1, 20)], keeper=10, group=11) == []


def test_the_table_has_this_process() -> None:
    assert (os.getpid(), os.getppid(), os.getpgrp()) in process_table()


def test_left_behind_are_those_without_a_parent_whom_the_others_signal_has_missed() -> None:
    signalled = {11, 12}
    assert left_behind(TABLE, keeper=10, group=11, signalled=signalled) == [
        15,
        14,
    ]  # 13 and 16 have a parent that still runs
    assert left_behind(TABLE, keeper=10, group=11, signalled={11, 12, 14, 15}) == []
