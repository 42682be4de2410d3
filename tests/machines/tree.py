"""Three levels of agents, and agents inside tools that were written by hand, stopped at any node in any order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.machines.gates import Wanted
from tests.machines.machine import Opening, StopMachine, pick, then
from tests.machines.world import Plan


def _batches(*names: str) -> st.SearchStrategy[tuple[Wanted, ...]]:
    return st.lists(st.sampled_from([Wanted(name) for name in names]), min_size=1, max_size=3).map(tuple)


top = _batches("middle", "middle", "delegate", "kick_off", "look", "write")
below = _batches("leaf", "leaf", "look", "write", "pay")


class Tree(StopMachine):
    wanted = tuple(
        Wanted(name) for name in ("middle", "leaf", "look", "write", "pay", "save", "sign", "delegate", "kick_off")
    )
    openings = st.one_of(
        st.none(), st.tuples(top), st.tuples(top, below), st.tuples(top, below, below), st.tuples(top, below, below)
    )

    @initialize(parallel=st.sampled_from([None, None, 2]), hooks=st.booleans(), opening=openings)
    def begin_tree(self, parallel: int | None, hooks: bool, opening: Opening) -> None:
        self.begin(Plan(parallel, hooks=hooks, tree=True), opening)

    @precondition(lambda self: self.world.live and len(self.world.nodes()) > 2)
    @rule(which=pick, how_far=then)
    def cancel_all_but(self, which: int, how_far: int) -> None:
        self.world.cancel_all_but(self.choose(self.world.nodes(), which))
        self.go(how_far)
