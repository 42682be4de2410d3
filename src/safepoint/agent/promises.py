"""What an adapter of another framework's agent can keep, and what it cannot."""

from __future__ import annotations

from typing import Literal

from safepoint._core.points import SafePoint
from safepoint._values import Value

# The places at which a run of such an agent looks for an ask, if its framework lets code run there.
PLACES = ("after_model", "after_tool", "after_tools", "before_effect")


class Promises(Value, frozen=True, kw_only=True):
    """What holds for a run of an adapted agent. An ask for anything else is refused with `UsageError`.

    `tested`: the versions of the framework that the adapter was tested with, from the first up to below the second.
    `safe_points`: the places where a request can take effect; NOW and FORCE always can, and so can points that a tool
    names.
    `steering`: whether `run.steer(…)` can add a message before the next model call. Where it can't, a message that is
    given on resume takes the place of the calls that are left: they are told as not started, and the model decides.
    `partial_text`: whether words of a cut stream are kept.
    `threads`: whether the framework's plain functions run in daemon threads, where they are told to stop and listed.
    `usage`: whose count of the tokens of a whole model call it is.
    `own_store`: what is done with the conversation that the framework keeps itself.
    `own_pauses`: whether the framework's own question to a person becomes a question of the run. Where it does not, a
    tool asks with `await tool_context().interrupt(…)`.
    """

    framework: str
    tested: tuple[str, str]
    safe_points: tuple[str, ...] = PLACES
    steering: bool = False
    partial_text: bool = True
    threads: bool = True
    usage: Literal["provider", "estimated"] = "provider"
    own_store: Literal["none", "replaced", "repaired"] = "none"
    own_pauses: bool = False

    def unkept(self, at: SafePoint) -> str | None:
        """What is promised instead, if a run can never stop at any place of this request; None if it can at each."""
        missing = [place for place in PLACES if place not in self.safe_points and at.covers(place)]
        if not missing or any(at.covers(place) for place in self.safe_points):
            return None
        names = ", ".join(f"SafePoint.{place.upper()}" for place in self.safe_points)
        return f"{self.framework} has no place for SafePoint.{missing[0].upper()}: write one of {names}, or NOW"
