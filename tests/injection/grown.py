"""Scenarios grown from a seed: what a scenario is made of, chosen at random, and put together the same way each time.

A `Plan` says what happens: which agents there are, three levels deep at most, what each says and calls, how the run is
entered and read, who asks it to stop and when, what is done with what is left. Agents and tools are built once for a
plan; a `World` keeps what has to be new in each run of the scenario.

    python -m tests.injection.grown SEED [ID]    injects everything, or one thing, into the scenario of a seed
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias, TypeVar, cast

from safepoint import (
    Agent,
    Budget,
    CancelToken,
    Checkpoint,
    Deny,
    Hooks,
    Limit,
    Replace,
    Run,
    RunFailed,
    RunResult,
    SafePoint,
    ToolContext,
    check_history,
    tool,
)
from safepoint.agent.model import Chunk, ModelRequest
from safepoint.errors import ModelUnavailable, StoreError
from safepoint.history.parts import ToolCall
from safepoint.sessions import MemoryStore, Session
from safepoint.sessions.sealing import sealed
from safepoint.storage.reducer import apply
from safepoint.testing import (
    CALLER,
    OWN,
    Injection,
    Report,
    call,
    check_cancellable,
    clock_jump,
    disconnect,
    model_error,
    say,
    store_error,
    think,
    tool_error,
)
from safepoint.testing.models import Act
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, SlowHooks, SlowStore, StepModel

T = TypeVar("T")
AnyRun: TypeAlias = Run[Any, Any]  # Any: a run of any agent
Scenario: TypeAlias = Callable[[], Coroutine[Any, Any, None]]  # Any: what a coroutine yields

# Faults that leave a store in doubt are injected apart: after them a session need not be free, only sound.
SHARP: tuple[Injection, ...] = (
    OWN,
    CALLER,
    model_error(),
    model_error(ConnectionResetError("dropped")),
    tool_error(),
    disconnect(),
)
BLUNT: tuple[Injection, ...] = (store_error(), store_error(OSError("disk")), clock_jump(60))


# -- what agents do --------------------------------------------------------------------------------------------------


@tool(effect="pure")
async def look(x: int = 0) -> int:
    """Harmless."""
    await asyncio.sleep(A_MOMENT)
    return x


@tool
async def post(x: int = 0) -> str:
    """Has an effect, and tidies up."""
    try:
        await asyncio.sleep(A_WHILE)
    finally:
        await asyncio.sleep(A_MOMENT)
    return f"posted {x}"


@tool(effect="idempotent")
async def pages(ctx: ToolContext) -> int:
    """Has a safe point after each page."""
    for page in range(ctx.saved or 0, 2):
        await asyncio.sleep(A_MOMENT)
        await ctx.safe_point("page", save=page + 1)
    return 2


@tool
def count(x: int = 0) -> int:
    """Runs in a thread."""
    return x


@tool
async def shields(ctx: ToolContext) -> str:
    """Has a section that NOW does not cut."""
    async with ctx.shield(A_WHILE):
        await asyncio.sleep(A_MOMENT)
    await asyncio.sleep(A_MOMENT)
    return "safe"


async def _give_back(x: int) -> None:
    await asyncio.sleep(A_MOMENT)


@tool(undo=_give_back)
async def takes(x: int = 0) -> str:
    """Can be undone."""
    await asyncio.sleep(A_WHILE)
    return "taken"


@tool(on_cancel="finish", grace=LONG)
async def finishes() -> str:
    """Completes even if stopped."""
    await asyncio.sleep(A_WHILE)
    return "finished"


@tool(timeout=A_MOMENT)
async def dawdles() -> str:
    """Takes longer than it may."""
    await asyncio.sleep(A_WHILE)
    return "never"


@tool
async def breaks() -> str:
    """Fails."""
    await asyncio.sleep(A_MOMENT)
    raise ConnectionError("broken")


@tool
async def swallows() -> str:
    """Returns a value when it is cut."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(A_WHILE)
    return "all the same"


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(await ctx.interrupt("go?"))


TOOLS = {one.name: one for one in (look, post, pages, count, shields, takes, finishes, dawdles, breaks, swallows, asks)}


class Decides(Hooks):
    """Denies one call and replaces another."""

    async def before_tool(self, run: object, call: ToolCall) -> object:
        await asyncio.sleep(A_MOMENT)
        return {1: Deny("no"), 2: Replace(result="known")}.get(call.args.get("x", 0))


HOOKS: dict[str, Hooks] = {"slow": SlowHooks(), "deciding": Decides()}


class GrownModel(StepModel):
    """Replies by step; the first call of each of these steps is refused, so that it is made again after a while."""

    def __init__(self, *replies: list[Act], refuses: frozenset[int], world: World, name: str) -> None:
        super().__init__(*replies, name=name)
        self._refuses = refuses
        self._world = world

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        self.requests.clear()
        step = len([message for message in request.messages if message.role == "assistant"])
        if step in self._refuses and self._world.first_time(f"{self.name} {step}"):
            raise ModelUnavailable("busy", retry_after=A_MOMENT)
        return super().stream(request)


# -- what happens ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentPlan:
    """What an agent says and calls, step by step, and how it is made."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    """For each step the names of what it calls: tools, or agents below."""
    pieces: int
    thinks: bool
    parallel: int | None
    hooks: tuple[str, ...]
    refuses: frozenset[int]
    below: tuple[AgentPlan, ...] = ()


@dataclass(frozen=True)
class Plan:
    """One scenario."""

    seed: int
    agent: AgentPlan
    entered: str
    asked: str
    at: str
    after: float
    recursive: bool
    within: float | None
    session: bool
    budget: str
    then: str


ENTERED = ("run", "block", "events", "text", "stream", "left", "closed", "detached", "timeout")
ASKED = ("nothing", "run", "twice", "withdrawn", "token", "node", "others", "steer")
AT = ("NOW", "NOW", "AFTER_TOOLS", "AFTER_TOOL", "AFTER_MODEL", "BEFORE_EFFECT", "ANY", "page", "FORCE")
BUDGETS = ("none", "none", "none", "steps", "seconds", "calls")
THEN = ("nothing", "nothing", "nothing", "nothing", "resume", "again")


def plan(seed: int) -> Plan:
    """The same plan for the same seed, in every process.

    Long scenarios are rare: a scenario of twice as many points costs four times as much to inject into.
    """
    random = Random(seed)
    at = random.choice(AT)
    return Plan(
        seed=seed,
        agent=_agent_plan(random, "top", random.choices((0, 1, 2), (34, 5, 1))[0]),
        entered=random.choice(ENTERED),
        asked=random.choice(ASKED),
        at=at,
        after=random.choice((0.0, 0.0, A_MOMENT, 1.5 * A_MOMENT, A_WHILE)),
        recursive=random.random() < 0.4,
        within=A_WHILE if at not in ("NOW", "FORCE") and random.random() < 0.3 else None,
        session=random.random() < 0.07,
        budget=random.choice(BUDGETS),
        then=random.choice(THEN),
    )


def _agent_plan(random: Random, name: str, depth: int) -> AgentPlan:
    below = tuple(_agent_plan(random, f"{name}_{number}", depth - 1) for number in range(1 if depth else 0))
    steps: list[tuple[str, ...]] = []
    for _ in range(random.choices((0, 1, 2), (2, 10, 1))[0] if not below else 1):
        names = [*random.choices(sorted(TOOLS), k=random.choice((1, 1, 1, 2, 3) if not below else (0, 1)))]
        steps.append((*(one.name for one in below), *names))
    return AgentPlan(
        name=name,
        steps=tuple(steps),
        pieces=random.choices((1, 2, 3), (8, 1, 1))[0],
        thinks=random.random() < 0.2,
        parallel=random.choice((None, None, 1, 2)),
        hooks=random.choice(((),) * 20 + (("slow",), ("deciding",), ("slow", "deciding"))),
        refuses=frozenset(step for step in range(2) if random.random() < 0.1),
        below=below,
    )


# -- putting it together ---------------------------------------------------------------------------------------------


@dataclass
class World:
    """What is new in each run of a scenario."""

    seen: set[str] = field(default_factory=set[str])
    stores: list[MemoryStore] = field(default_factory=list[MemoryStore])

    def first_time(self, what: str) -> bool:
        before = what in self.seen
        self.seen.add(what)
        return not before

    def begin(self) -> None:
        self.seen.clear()

    def store(self) -> SlowStore:
        self.stores.append(MemoryStore())
        return SlowStore(self.stores[-1])

    def is_sound(self) -> None:
        """The oracle after a cancel: a valid conversation, no open run, and free for the next one."""
        for store in self._taken():
            stored = _at_once(store.load("s"))
            assert all(run.ended for run in stored.runs), "a run is still open in the store"
            if stored.messages:
                check_history(stored.messages)
            _at_once(store.claim("s", "somebody else"))

    def is_recoverable(self) -> None:
        """The oracle after a fault of the store: what is there can be sealed, and is valid then."""
        for store in self._taken():
            stored = _at_once(store.load("s"))
            if stored.runs and not stored.runs[-1].ended:
                stored = apply(stored, sealed(stored, stored.runs[-1]))
            if stored.messages:
                check_history(stored.messages)

    def _taken(self) -> list[MemoryStore]:
        """The stores that have a session."""
        stores, self.stores = self.stores, []
        return [store for store in stores if _at_once(store.list_ids())]


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:  # Any: what a coroutine yields
    """Nothing in memory ever waits, so no loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # what the coroutine returns
    raise AssertionError("the store has waited")


def build(plan: AgentPlan, world: World) -> Agent:
    """The agent and all those below it."""
    below = [build(one, world) for one in plan.below]
    called = sorted({name for calls in plan.steps for name in calls})
    replies: list[list[Act]] = []
    for calls in plan.steps:
        words: list[Act] = [think("Hm.", signature="s")] if plan.thinks else []
        words.append(say("one two three", pieces=plan.pieces))
        for x, name in enumerate(calls):
            takes_x = name in ("look", "post", "count", "takes")
            args: dict[str, object] = {"input": "sub"} if name not in TOOLS else {"x": x} if takes_x else {}
            words.append(call(name, args))
        replies.append(words)
    replies.append([say("done", pieces=plan.pieces)])
    model = GrownModel(*replies, refuses=plan.refuses, world=world, name=plan.name)
    return Agent(
        plan.name,
        model=model,
        tools=[*(TOOLS[name] for name in called if name in TOOLS), *(one.as_tool() for one in below)],
        max_parallel_tools=plan.parallel,
        hooks=[HOOKS[name] for name in plan.hooks],
    )


class Grown:
    """A plan, put together: `scenario` is what is run again and again."""

    def __init__(self, seed: int) -> None:
        self.plan = plan(seed)
        self.world = World()
        self._agent = build(self.plan.agent, self.world)
        self._session: Session | None = None

        async def scenario() -> None:
            await self._play()

        scenario.__name__ = scenario.__qualname__ = f"grown_{seed}"
        self.scenario: Scenario = scenario

    async def _play(self) -> None:
        self.world.begin()
        self._session = await Session.create(self.world.store(), "s") if self.plan.session else None
        result: RunResult[Any] | None = None  # Any: of any output type
        try:
            with suppress(TimeoutError):
                result = await self._enter()
        except RunFailed as failed:
            result = _expected(failed)
        if self.plan.then == "resume":
            await self._resume(result)
        elif self.plan.then == "again":
            try:
                await self._agent.run("again", session=self._session)
            except RunFailed as failed:
                _expected(failed)

    async def _resume(self, result: RunResult[Any] | None) -> None:  # Any: as above
        checkpoint = result.checkpoint if result is not None else None
        for _ in range(4):
            if self._session is not None:
                checkpoint = self._session.checkpoint
            if checkpoint is None:
                return
            checkpoint = Checkpoint.from_bytes(checkpoint.to_bytes())
            answers = {question.id: True for question in checkpoint.questions}
            try:
                result = await self._agent.resume(checkpoint, answers=answers, session=self._session)
            except RunFailed as failed:
                _expected(failed)
                return
            checkpoint = result.checkpoint

    async def _enter(self) -> RunResult[Any] | None:  # Any: as above
        token = CancelToken() if self.plan.asked == "token" else None
        options: dict[str, Any] = {
            "token": token,
            "session": self._session,
            "budget": self._budget(),
        }  # Any: as for start
        if self.plan.entered in ("run", "timeout") and self.plan.asked == "nothing":
            async with asyncio.timeout(A_WHILE if self.plan.entered == "timeout" else None):
                return await self._agent.run("go", **options)
        if self.plan.entered in ("stream", "left", "closed", "detached"):
            return await self._stream(token, options)
        async with asyncio.timeout(A_WHILE if self.plan.entered == "timeout" else None):
            async with self._agent.start("go", **options) as run, asyncio.TaskGroup() as group:
                group.create_task(self._ask(run, token))
                if self.plan.entered == "events":
                    async for _ in run.events():
                        await asyncio.sleep(0)
                elif self.plan.entered == "text":
                    async for _ in run.text():
                        pass
        return run.result

    async def _stream(
        self, token: CancelToken | None, options: dict[str, Any]
    ) -> RunResult[Any] | None:  # Any: as above
        on_close: Literal["cancel", "detach"] = "detach" if self.plan.entered == "detached" else "cancel"
        events = self._agent.stream("go", on_close=on_close, **options)
        asked = False
        try:
            async with events:
                async for event in events:
                    if not asked:
                        asked = True
                        await self._ask(events.run, token)
                    if self.plan.entered != "stream" and type(event).__name__ == "ModelCallEnded":
                        break
            if on_close == "detach":
                await events.run.wait()
        finally:
            if events.run.node.started and on_close == "detach":
                events.run.cancel()
                await events.run.join()
        return events.run.result if events.run.ended else None

    async def _ask(self, run: AnyRun, token: CancelToken | None) -> None:
        """Whatever the plan says about asking; nobody waits for what may never come."""
        plan, at = self.plan, self._at()
        await asyncio.sleep(plan.after)
        if plan.asked == "run":
            await run.cancel(at, within=plan.within, recursive=plan.recursive).wait()
        elif plan.asked == "twice":
            first = run.cancel(at, within=plan.within, recursive=plan.recursive)
            await asyncio.sleep(A_MOMENT)
            await run.cancel().wait()
            await first.wait()
        elif plan.asked == "withdrawn":
            receipt = run.cancel(at if at not in (SafePoint.NOW, SafePoint.FORCE) else SafePoint.ANY)
            await asyncio.sleep(0)
            receipt.withdraw()
        elif plan.asked == "token" and token is not None:
            await token.cancel(at, within=plan.within, recursive=plan.recursive).wait()
        elif plan.asked in ("node", "others"):
            await self._ask_a_part(run, at)
        elif plan.asked == "steer":
            await run.steer("faster").wait()

    async def _ask_a_part(self, run: AnyRun, at: SafePoint) -> None:
        nodes = [node for node in run.tree.walk() if node is not run.node]
        if not nodes:
            return
        if self.plan.asked == "others":
            for receipt in run.tree.cancel_all_but(nodes[0]):
                await receipt.wait()
        else:
            await nodes[-1].cancel(at).wait()

    def _at(self) -> SafePoint:
        at = self.plan.at
        return SafePoint.named("page") if at == "page" else getattr(SafePoint, at)

    def _budget(self) -> Budget | None:
        match self.plan.budget:
            case "steps":
                return Budget(steps=1)
            case "seconds":
                return Budget(seconds=Limit(soft=A_MOMENT, hard=A_WHILE))
            case "calls":
                return Budget(tool_calls=Limit(soft=1, hard=2))
            case _:
                return None


def _expected(failed: RunFailed) -> RunResult[Any]:  # Any: of any output type
    """What is left of a run that an injected fault has ended. Anything else that ends one is ours."""
    if not isinstance(failed.__cause__, ModelUnavailable | StoreError | OSError):
        raise AssertionError(f"the run failed by itself: {failed.__cause__!r}") from failed
    return cast("RunResult[Any]", failed.result)  # Any: as above


def inject(seed: int, only: str | None = None) -> list[Report]:
    """Inject everything into the scenario of this seed, or one thing."""
    grown = Grown(seed)
    reports: list[Report] = []
    for kinds, oracle in ((SHARP, grown.world.is_sound), (BLUNT, grown.world.is_recoverable)):
        chosen = [kind for kind in kinds if only is None or only.startswith(f"{kind.name}:")]
        if chosen:
            reports.append(check_cancellable(grown.scenario, oracles=[oracle], kinds=chosen, only=only))
            grown.world.stores.clear()
    return reports


if __name__ == "__main__":
    print(plan(int(sys.argv[1])))
    for report in inject(int(sys.argv[1]), *sys.argv[2:3]):
        print(report)
