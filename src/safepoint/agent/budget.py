"""How much a run may use, and what happens at the limits: the soft one asks at ANY safe point, the hard one asks NOW.

Both are ordinary asks with the source `budget`, so they behave like every other cancel. One limit is no ask: a run that
has made its last step and would need another ends by itself, with `max_steps`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import field
from msgspec.structs import force_setattr

from safepoint._core.asks import is_seconds
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._values import Value
from safepoint.agent.usage import Usage
from safepoint.history.parts import ToolCall
from safepoint.history.states import LedgerState

if TYPE_CHECKING:
    from safepoint.agent.ledger import LedgerEntry
    from safepoint.agent.run_context import RunContext


class Limit(Value, frozen=True):
    """Two limits: at `soft` the run is asked to stop at its next safe point, at `hard` at once."""

    soft: float | None = None
    hard: float | None = None

    def __post_init__(self) -> None:
        for name, mark in (("soft", self.soft), ("hard", self.hard)):
            if mark is not None and not is_seconds(mark):  # any positive, finite number
                raise ValueError(f"Limit({name}={mark!r}): write a number above 0")
        if self.soft is None and self.hard is None:
            raise ValueError("Limit() has no mark: write Limit(soft=…), Limit(hard=…) or both")
        if self.soft is not None and self.hard is not None and self.soft > self.hard:
            raise ValueError(f"Limit(soft={self.soft}, hard={self.hard}): the soft mark comes first")


class Price(Value, frozen=True):
    """The price of a model, per million tokens in and out."""

    input: float
    output: float

    def __post_init__(self) -> None:
        for name, price in (("input", self.input), ("output", self.output)):
            if price != 0 and not is_seconds(price):  # zero, or any positive, finite number
                raise ValueError(f"Price({name}={price!r}): write a number from 0 up")


class Budget(Value, frozen=True, kw_only=True):
    """The limits of one run. A plain number is a hard limit.

    `repeats`: how often the same tool call, with the same arguments, may be made. `cost` needs `prices`, by model name.
    """

    steps: float | Limit | None = None
    tokens: float | Limit | None = None
    seconds: float | Limit | None = None
    tool_calls: float | Limit | None = None
    repeats: float | Limit | None = None
    cost: float | Limit | None = None
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])

    def __post_init__(self) -> None:
        for option in self.__struct_fields__:
            if option == "prices":
                continue
            value = getattr(self, option)
            if value is not None and not isinstance(value, Limit):
                if not is_seconds(value):  # any positive, finite number
                    raise ValueError(f"Budget({option}={value!r}): write a number above 0, or Limit(soft=…, hard=…)")
                force_setattr(self, option, Limit(hard=value))
        if not isinstance(self.prices, Mapping) or not all(isinstance(each, Price) for each in self.prices.values()):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"Budget(prices={self.prices!r}): write prices={{'model name': Price(input=…, output=…)}}")
        if self.cost is not None and not self.prices:
            raise ValueError("Budget(cost=…) needs prices: write prices={'model name': Price(input=…, output=…)}")

    def check_models(self, names: Iterable[str]) -> None:
        """Refuse a model without a price: its cost cannot be counted."""
        for name in names if self.cost is not None else ():
            if name not in self.prices:
                raise ValueError(
                    f"Budget(cost=…) has no price for the model {name!r}: write prices={{{name!r}: Price(…)}}"
                )

    def limit(self, kind: str) -> Limit | None:
        found: Limit | None = getattr(self, kind)
        return found


class Meter:
    """The part of the budget that one run has used. Every method asks when a limit is reached; each limit asks once."""

    def __init__(self, record: RunContext, budget: Budget) -> None:
        self._record = record
        self._budget = budget
        self._reached: set[tuple[str, str]] = set()
        self._made: Counter[str] = Counter()
        self._cost = 0.0
        # Moved back by the time that the runs before it took, which counts as well.
        self._began = record.supervisor.clock.now()
        self._timers = self._arm()
        # How many runs that it counts are held now, and since when.
        self._suspended = 0
        self._held_since = 0.0

    def suspend(self) -> None:
        """The run is held: the time that it waits is not its own."""
        self.close()
        self._suspended += 1
        if self._suspended == 1:
            self._held_since = self._record.supervisor.clock.now()

    def go_on(self) -> None:
        self._suspended -= 1
        if self._suspended == 0 and not self._record.closed:
            self._began += self._record.supervisor.clock.now() - self._held_since
            self._timers = self._arm()

    def _arm(self) -> list[asyncio.TimerHandle]:
        clock, limit = self._record.supervisor.clock, self._budget.limit("seconds")
        marks = [mark for mark in (limit.soft, limit.hard) if mark is not None] if limit is not None else []
        return [clock.call_at(self._began + mark, partial(self._use, "seconds", mark)) for mark in marks]

    def used(self) -> dict[str, float]:
        """The amounts that a checkpoint keeps, beside steps, tokens and the ledger."""
        return {"seconds": self._record.supervisor.clock.now() - self._began, "cost": self._cost}

    def carry(self, used: Mapping[str, float], made: Iterable[LedgerEntry]) -> None:
        """Continue the counts of the stopped run. A call that is made again counts once."""
        self.close()
        self._began -= used.get("seconds", 0.0)
        self._cost += used.get("cost", 0.0)
        self._timers = self._arm()
        for entry in made:
            if entry.state is not LedgerState.NOT_STARTED:
                self._count(entry.name, entry.args)

    def _count(self, name: str, args: Mapping[str, Any]) -> tuple[int, int]:  # Any: decoded JSON
        """Count one more call; how many calls there were, and how many with these exact arguments."""
        same = f"{name} {json.dumps(dict(args), sort_keys=True, default=str)}"
        self._made["calls"] += 1
        self._made[same] += 1
        return self._made["calls"], self._made[same]

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def allows_step(self) -> bool:
        """Whether another step may begin. Beyond the hard limit the run ends by itself."""
        limit = self._budget.limit("steps")
        return limit is None or limit.hard is None or self._record.steps_done < limit.hard

    def asks_before_step(self) -> bool:
        """Ask if the soft limit is reached; True if it is."""
        limit = self._budget.limit("steps")
        if limit is None or limit.soft is None or self._record.steps_done < limit.soft:
            return False
        self._ask("steps", SafePoint.ANY, limit.soft)
        return True

    def spent(self, model: str, usage: Usage) -> None:
        """A model call has ended and used these tokens."""
        total = self._record.spent
        self._use("tokens", total.input_tokens + total.output_tokens)
        self._cost += self._price(model, usage.input_tokens, usage.output_tokens)
        self._use("cost", self._cost)

    def streaming(self, model: str, tokens: int) -> None:
        """About this many tokens of a reply have arrived."""
        total = self._record.spent
        self._use("tokens", total.input_tokens + total.output_tokens + tokens)
        self._use("cost", self._cost + self._price(model, 0, tokens))

    def _price(self, model: str, input: int, output: int) -> float:
        price = self._budget.prices.get(model)
        return 0.0 if price is None else (input * price.input + output * price.output) / 1_000_000

    def calling(self, call: ToolCall) -> None:
        """A tool call is about to start. A call beyond the hard limit never starts."""
        calls, same = self._count(call.name, call.args)
        self._use("tool_calls", calls, beyond=True)
        self._use("repeats", same, beyond=True)

    def _use(self, kind: str, used: float, *, beyond: bool = False) -> None:
        """`beyond`: the amount includes work that is about to start, and reaching the limit itself is still allowed."""
        limit = self._budget.limit(kind)
        if limit is None:
            return
        for mark, at in ((limit.hard, SafePoint.NOW), (limit.soft, SafePoint.ANY)):
            if mark is not None and (used > mark or (used == mark and not beyond)):
                self._ask(kind, at, mark)

    def _ask(self, kind: str, at: SafePoint, mark: float) -> None:
        if (kind, repr(at)) not in self._reached:
            self._reached.add((kind, repr(at)))
            why = f"the budget of {mark:g} {kind.replace('_', ' ')} is used up"
            self._record.node.cancel(at, reason=Reason(why, Source.BUDGET))
