"""What must be true when nothing is ready any more: everything that could go on has gone on.

A run that lives is held by something that can be named. Nothing that obeys is still there after NOW, nothing at all
after FORCE, and whoever does not obey is there no longer than its ladder allows.
"""

from __future__ import annotations

from collections.abc import Iterator

from safepoint import Outcome
from safepoint._core.work import WorkState
from tests.machines.course import Call, Course, Stage, Turn
from tests.machines.gates import FINISH_GRACE, LADDER, Gate, ToolGate
from tests.machines.reference import Push
from tests.machines.world import PATIENCE, BlockFailed, Held, World, differences


def faults_at_rest(world: World) -> Iterator[str]:
    """Everything that is wrong now that the loop has nothing to do."""
    yield from world.loop.errors
    if world.run is None:
        return
    for _, course in world.live_courses():
        yield from _held(world, course)
        yield from _prompt(world, course)
    for held in world.held:
        yield from _outcome(held)
    yield from _owner(world)
    stopped = world.party_of(world.run.node).stopped
    if world.live and stopped is not None and not world.run.why_not_stopped():
        yield "the run is stopping, and nothing is named that holds it"


def faults_of_requests(world: World) -> Iterator[str]:
    """Whether each node reads in its logs what the reference has folded."""
    for node in world.nodes():
        party = world.party_of(node)
        if not party.over:
            yield from differences(node, world.reference.request(party))


# -- who holds the run -------------------------------------------------------------------------------------------------


def _held(world: World, course: Course) -> Iterator[str]:
    label = course.party.label
    match course.runner:
        case Stage.NEW:
            if world.owner is not None:
                yield f"{label} was entered and has not begun"
        case Stage.BEFORE | Stage.AFTER:
            if course.hook is None or course.hook.left:
                yield f"{label} is {course.runner}, and no hook holds it"
        case Stage.CALLING:
            if course.gate is None or course.gate.left:
                yield f"{label} is {course.runner}, and no call is open"
        case Stage.BACK_OFF:
            if world.loop.time() >= course.back_off_until:
                yield f"{label} should have tried again"
        case Stage.TOOLS:
            yield from _held_by_tools(world, course)
        case Stage.BETWEEN | Stage.BATCH_OVER | Stage.CLOSING | Stage.OVER:
            yield f"{label} is {course.runner} at rest"


def _held_by_tools(world: World, course: Course) -> Iterator[str]:
    running = [call for call in course.calls if call.turn is Turn.STARTED]
    if not running:
        yield f"{course.party.label} has no call that runs, and goes neither on nor home"
    for call in running:
        if not (_tool_holds(call) or _child_holds(world, call)):
            yield f"the call {call.id} of {call.wanted.name} has ended and is not over"


def _tool_holds(call: Call) -> bool:
    if call.undo is not None and not call.undo.left:
        return True
    gate = call.gate
    return gate is not None and not gate.left and gate.context.work.state is not WorkState.ABANDONED


def _child_holds(world: World, call: Call) -> bool:
    return any(course.party.parent is call.party for _, course in world.live_courses())


# -- how long ----------------------------------------------------------------------------------------------------------


def _prompt(world: World, course: Course) -> Iterator[str]:
    """NOW is prompt: it waits for nobody who obeys, and for the others no longer than it must."""
    party, now = course.party, world.loop.time()
    push = world.reference.push(party)
    if not party.started:
        return
    if push is Push.FORCE:
        yield f"{party.label} is still there after FORCE"
    if push >= Push.NOW:
        since = world.pushed_at.setdefault(party, now)
        if now - since > PATIENCE:
            yield f"{party.label} has been stopping for {now - since} s"
        for gate in (course.gate, course.hook):
            if gate is not None and not gate.left and _overdue(gate, now - since):
                yield f"{gate} of {party.label} is still there after NOW"
    for call in course.calls:
        if call.turn is Turn.STARTED and call.gate is not None and call.party is not None:
            yield from _prompt_call(world, call, call.gate)


def _prompt_call(world: World, call: Call, gate: ToolGate) -> Iterator[str]:
    assert call.party is not None
    push = world.reference.push(call.party)
    if push < Push.NOW:
        return
    now = world.loop.time()
    since = world.pushed_at.setdefault(call.party, now)
    held = _child_holds(world, call) or (call.undo is not None and not call.undo.left)
    if now - since > PATIENCE or (push is Push.FORCE and not held):
        yield f"{gate} has been stopping for {now - since} s"
    if not held and _overdue(gate, now - since, finish=gate.label == "save"):
        yield f"{gate} is still there after NOW"


def _overdue(gate: Gate, seconds: float, *, finish: bool = False) -> bool:
    if isinstance(gate, ToolGate) and gate.was_shielded:
        return seconds >= LADDER.cap
    grace = FINISH_GRACE if finish else 0.0
    return seconds >= grace + (LADDER.task if gate.swallowed else 0.0)


# -- what receipts say -------------------------------------------------------------------------------------------------


def _outcome(held: Held) -> Iterator[str]:
    asked, party, receipt = held.asked, held.party, held.receipt
    settled = party.over or asked.withdrawn or not held.accepted
    if held.waiter is not None and held.waiter.done() is not settled:
        yield f"{receipt}: wait() {'returned early' if held.waiter.done() else 'did not return'}"
    if held.checked or not party.over:
        return
    held.checked = True
    expected = _expected_outcome(held)
    if receipt.outcome is not expected:
        yield f"{receipt}: the outcome is {receipt.outcome} and should be {expected}"
    stopped = party.stopped
    contributed = (
        held.accepted and not asked.withdrawn and party.cancelled and stopped is not None and stopped.contributed(asked)
    )
    if receipt.contributed is not contributed:
        yield f"{receipt}: contributed is {receipt.contributed} and should be {contributed}"


def _expected_outcome(held: Held) -> Outcome:
    party = held.party
    if held.asked.withdrawn:
        return Outcome.WITHDRAWN
    if not held.accepted or not party.cancelled or party.stopped is None:
        return Outcome.FINISHED_FIRST
    return Outcome.ESCALATED if party.stopped.timed_out else Outcome.STOPPED


# -- the caller --------------------------------------------------------------------------------------------------------


def _owner(world: World) -> Iterator[str]:
    """The caller's own exception is never swallowed, and comes only after the run has closed itself."""
    owner, run = world.owner, world.run
    if owner is None or run is None:
        return
    if not owner.done():
        if run.ended and world.block is None:
            yield "the run has ended, and its caller is still waiting"
        return
    if not run.ended:
        yield "the caller has left, and the run has not ended"
    error = None if owner.cancelled() else owner.exception()
    ends = (owner.cancelled(), isinstance(error, BlockFailed))
    if ends not in ((world.owner_cancelled, False), (False, world.block_failed)) or (error is not None and not ends[1]):
        yield f"cancelled: {world.owner_cancelled}, its block failed: {world.block_failed}, and the caller is {owner}"
