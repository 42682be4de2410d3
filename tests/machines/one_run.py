"""One run with plain tools, and everything that can be done to it in any order."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.machines.gates import PLAIN_TOOLS, Wanted
from tests.machines.machine import Opening, StopMachine
from tests.machines.world import Plan

WELL_WRITTEN: Final = tuple(Wanted(tool.name) for tool in PLAIN_TOOLS)
batches = st.lists(st.sampled_from(WELL_WRITTEN), min_size=1, max_size=4).map(tuple)


class OneRun(StopMachine):
    wanted = (*WELL_WRITTEN, Wanted("look", "bad"), Wanted("write", "invalid"), Wanted("nobody"))
    openings = st.one_of(st.none(), st.just(()), st.tuples(batches), st.tuples(batches))

    @initialize(
        parallel=st.sampled_from([None, 1, 2]),
        retries=st.integers(0, 2),
        fallback=st.booleans(),
        hooks=st.booleans(),
        opening=openings,
    )
    def begin_one(self, parallel: int | None, retries: int, fallback: bool, hooks: bool, opening: Opening) -> None:
        self.begin(Plan(parallel, retries, fallback, hooks), opening)
