"""Numbers for operators, in Prometheus' text format.

| name | kind | labels | |
|---|---|---|---|
| `safepoint_stop_seconds` | histogram | `at`: now, force, safe_point | from the first ask for a stop to its outcome |
| `safepoint_runs` | gauge | `state`: queued, live | runs of this process that are not over |
| `safepoint_runs_total` | counter | `outcome` | runs that are over, by how they ended |
| `safepoint_asks_total` | counter | `source` | asks to stop a run |
| `safepoint_tokens_after_stop_total` | counter | | output tokens, estimated, that came after an ask for now or force |
| `safepoint_orphans` | gauge | | abandoned pieces of work that still run |
| `safepoint_orphans_total` | counter | | pieces of work that were abandoned |
| `safepoint_viewers` | gauge | | clients that watch a run |
| `safepoint_tasks` | gauge | | tasks of the event loop |
| `safepoint_store_seconds` | histogram | `operation` | until PostgreSQL had answered a unit of work, or a query |
| `safepoint_superseded_total` | counter | | writes that were refused, because another worker has the run by now |
| `safepoint_runs_picked_up_total` | counter | `how`: accepted, handed_over, taken_over | free runs that it has begun |
| `safepoint_lease_left_seconds` | gauge | | until this worker counts as dead, unless it renews |
| `safepoint_waiting_runs` | gauge | `app` | free runs of the whole cluster that no worker has taken yet |
| `safepoint_waiting_seconds` | gauge | `app` | how long the oldest of them has waited |
| `safepoint_changes_pushed` | gauge | | 1 if the store tells this process what others write, 0 if it has to look |
| `safepoint_requests_total` | counter | `method`, `route`, `status` | answered requests |

A label has few values: a route is its pattern, never a path, and no id is a label.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from safepoint.errors import Superseded
from safepoint.storage.placement import Waiting
from safepoint.storage.run_records import RecordMoved

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """How many observations were at most so large."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BUCKETS) + 1)

    def observe(self, value: float) -> None:
        self.sum += value
        self._counts[bisect_left(BUCKETS, value)] += 1

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, observations up to it), as Prometheus wants them."""
        found, total = list[tuple[str, int]](), 0
        for bound, count in zip((*BUCKETS, float("inf")), self._counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), total))
        return found


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is so at this moment."""

    runs: Mapping[str, int]
    orphans: int
    viewers: int
    tasks: int
    is_pushed: bool = False
    lease_left: float | None = None
    waiting: Sequence[Waiting] = ()


@dataclass(slots=True)
class Metrics:
    """What has happened since the process began."""

    stops: dict[str, Histogram] = field(
        default_factory=lambda: {at: Histogram() for at in ("now", "force", "safe_point")}
    )
    runs: Counter[str] = field(default_factory=Counter[str])
    asks: Counter[str] = field(default_factory=Counter[str])
    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])
    store: dict[str, Histogram] = field(default_factory=dict[str, Histogram])
    picked_up: Counter[str] = field(default_factory=Counter[str])
    superseded: int = 0
    tokens_after_stop: int = 0
    orphans: int = 0

    def answered(self, operation: str, seconds: float, refusal: Exception | None) -> None:
        """By PostgreSQL."""
        self.store.setdefault(operation, Histogram()).observe(seconds)
        self.superseded += isinstance(refusal, Superseded | RecordMoved)

    def render(self, now: Gauges) -> str:
        return "\n".join([*self._lines(now), ""])

    def _lines(self, now: Gauges) -> Iterable[str]:
        yield from _head("safepoint_stop_seconds", "histogram", "From the first ask for a stop to its outcome.")
        for at, histogram in self.stops.items():
            yield from _histogram("safepoint_stop_seconds", histogram, at=at)
        yield from _head("safepoint_runs", "gauge", "Runs of this process that are not over.")
        yield from (_line("safepoint_runs", count, state=state) for state, count in now.runs.items())
        yield from _head("safepoint_runs_total", "counter", "Runs that are over, by how they ended.")
        yield from (_line("safepoint_runs_total", count, outcome=how) for how, count in sorted(self.runs.items()))
        yield from _head("safepoint_asks_total", "counter", "Asks to stop a run, by their source.")
        yield from (_line("safepoint_asks_total", count, source=who) for who, count in sorted(self.asks.items()))
        yield from _head("safepoint_requests_total", "counter", "Answered requests.")
        for (method, route, status), count in sorted(self.requests.items()):
            yield _line("safepoint_requests_total", count, method=method, route=route, status=status)
        yield from self._of_the_cluster(now)
        for name, kind, words, value in (
            ("tokens_after_stop_total", "counter", "Output tokens that came after a stop.", self.tokens_after_stop),
            ("orphans_total", "counter", "Pieces of work that were abandoned.", self.orphans),
            ("orphans", "gauge", "Abandoned pieces of work that still run.", now.orphans),
            ("viewers", "gauge", "Clients that watch a run.", now.viewers),
            ("tasks", "gauge", "Tasks of the event loop.", now.tasks),
            ("changes_pushed", "gauge", "1 if the store pushes changes, 0 if it is polled.", int(now.is_pushed)),
        ):
            yield from _head(f"safepoint_{name}", kind, words)
            yield _line(f"safepoint_{name}", value)

    def _of_the_cluster(self, now: Gauges) -> Iterable[str]:
        """Only where processes share a database."""
        if now.lease_left is None:
            return
        yield from _head("safepoint_store_seconds", "histogram", "Until the database had answered.")
        for operation, histogram in sorted(self.store.items()):
            yield from _histogram("safepoint_store_seconds", histogram, operation=operation)
        yield from _head("safepoint_superseded_total", "counter", "Writes of an owner that has been replaced.")
        yield _line("safepoint_superseded_total", self.superseded)
        yield from _head("safepoint_runs_picked_up_total", "counter", "Free runs that were begun here.")
        yield from (_line("safepoint_runs_picked_up_total", n, how=how) for how, n in sorted(self.picked_up.items()))
        yield from _head("safepoint_lease_left_seconds", "gauge", "Until this worker counts as dead.")
        yield _line("safepoint_lease_left_seconds", round(now.lease_left, 3))
        yield from _head("safepoint_waiting_runs", "gauge", "Free runs of the cluster that no worker has taken.")
        yield from (_line("safepoint_waiting_runs", each.runs, app=each.app) for each in now.waiting)
        yield from _head("safepoint_waiting_seconds", "gauge", "How long the oldest of them has waited.")
        yield from (_line("safepoint_waiting_seconds", round(each.seconds, 3), app=each.app) for each in now.waiting)


def _histogram(name: str, histogram: Histogram, **labels: object) -> Iterable[str]:
    for bound, count in histogram.cumulative():
        yield _line(f"{name}_bucket", count, **labels, le=bound)
    yield _line(f"{name}_sum", histogram.sum, **labels)
    yield _line(f"{name}_count", histogram.cumulative()[-1][1], **labels)


def _head(name: str, kind: str, words: str) -> Iterable[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, value: float, **labels: object) -> str:
    shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
