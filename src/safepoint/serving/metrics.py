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
| `safepoint_changes_pushed` | gauge | | 1 if the store tells this process what others write, 0 if it has to look |
| `safepoint_requests_total` | counter | `method`, `route`, `status` | answered requests |

A label has few values: a route is its pattern, never a path, and no id is a label.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Metrics:
    """What has happened since the process began."""

    stops: dict[str, Histogram] = field(
        default_factory=lambda: {at: Histogram() for at in ("now", "force", "safe_point")}
    )
    runs: Counter[str] = field(default_factory=Counter[str])
    asks: Counter[str] = field(default_factory=Counter[str])
    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])
    tokens_after_stop: int = 0
    orphans: int = 0

    def render(self, now: Gauges) -> str:
        return "\n".join([*self._lines(now), ""])

    def _lines(self, now: Gauges) -> Iterable[str]:
        yield from _head("safepoint_stop_seconds", "histogram", "From the first ask for a stop to its outcome.")
        for at, histogram in self.stops.items():
            for bound, count in histogram.cumulative():
                yield _line("safepoint_stop_seconds_bucket", count, at=at, le=bound)
            yield _line("safepoint_stop_seconds_sum", histogram.sum, at=at)
            yield _line("safepoint_stop_seconds_count", histogram.cumulative()[-1][1], at=at)
        yield from _head("safepoint_runs", "gauge", "Runs of this process that are not over.")
        yield from (_line("safepoint_runs", count, state=state) for state, count in now.runs.items())
        yield from _head("safepoint_runs_total", "counter", "Runs that are over, by how they ended.")
        yield from (_line("safepoint_runs_total", count, outcome=how) for how, count in sorted(self.runs.items()))
        yield from _head("safepoint_asks_total", "counter", "Asks to stop a run, by their source.")
        yield from (_line("safepoint_asks_total", count, source=who) for who, count in sorted(self.asks.items()))
        yield from _head("safepoint_requests_total", "counter", "Answered requests.")
        for (method, route, status), count in sorted(self.requests.items()):
            yield _line("safepoint_requests_total", count, method=method, route=route, status=status)
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


def _head(name: str, kind: str, words: str) -> Iterable[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, value: float, **labels: object) -> str:
    shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
