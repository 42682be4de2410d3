"""What operators measure: numbers after something really happened."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from safepoint.cli.keys import KEY_FILE
from safepoint.server.keys import KeyFile
from safepoint.serving.metrics import BUCKETS, Gauges, Histogram, Metrics
from tests.server.server_process import PATIENCE, ServerProcess, session_path

LINE = re.compile(r'[a-z_]+(\{([a-z]+="(\\.|[^"\\])*",?)+\})? [0-9.e+-]+')


def numbers(server: ServerProcess) -> dict[str, float]:
    answer = server.get("/metrics")
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.body.splitlines() if not line.startswith("#")]
    assert [line for line in lines if LINE.fullmatch(line) is None] == []
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def until(server: ServerProcess, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    deadline = time.monotonic() + PATIENCE
    while not holds(now := numbers(server)):
        assert time.monotonic() < deadline, now
        time.sleep(0.02)
    return now


def test_a_stop_is_measured_from_the_ask_to_the_outcome(server: ServerProcess) -> None:
    before = numbers(server)
    server.create("measured")
    caller = server.run_in_thread("measured", "nap 60")
    server.until_did("nap begins")
    live = numbers(server)
    assert live['safepoint_runs{state="live"}'] == 1
    assert live["safepoint_viewers"] == 1
    server.cancel("measured")
    caller.answer()
    after = until(server, lambda now: now['safepoint_runs{state="live"}'] == 0)
    count = 'safepoint_stop_seconds_count{at="now"}'
    assert after[count] == before[count] + 1
    assert after['safepoint_stop_seconds_bucket{at="now",le="+Inf"}'] == after[count]
    assert 0 < after['safepoint_stop_seconds_sum{at="now"}'] - before['safepoint_stop_seconds_sum{at="now"}'] < 5
    assert after['safepoint_runs_total{outcome="cancelled"}'] == 1
    assert after['safepoint_asks_total{source="user"}'] == 1
    assert after["safepoint_viewers"] == 0


def test_work_that_was_left_behind_is_counted_while_it_runs(server: ServerProcess) -> None:
    server.create("left")
    caller = server.run_in_thread("left", "block 4")
    server.until_did("block begins")
    server.cancel("left", at="force")
    caller.answer()
    now = until(server, lambda now: now['safepoint_stop_seconds_count{at="force"}'] == 1)
    assert (now["safepoint_orphans"], now["safepoint_orphans_total"]) == (1, 1)
    server.until_did("block ends")
    assert until(server, lambda now: now["safepoint_orphans"] == 0)["safepoint_orphans_total"] == 1


def test_a_stopped_stream_costs_no_more_tokens(server: ServerProcess) -> None:
    server.create("quiet")
    with server.stream("quiet", "say some words; stall") as frames:
        next(iter(frames))
        server.cancel("quiet")
    assert numbers(server)["safepoint_tokens_after_stop_total"] == 0


def test_requests_are_counted_by_route_and_never_by_path(server: ServerProcess) -> None:
    for name in ("a", "b"):
        server.get(session_path(f"nobody-{name}"))
    now = numbers(server)
    route = "/apps/{app}/users/{user}/sessions/{session}"
    assert now[f'safepoint_requests_total{{method="GET",route="{route}",status="404"}}'] == 2
    server.get("/no/such/path/1")
    server.get("/no/such/path/2")
    assert not any("path" in name for name in numbers(server))


def test_tasks_come_back_to_where_they_were(server: ServerProcess) -> None:
    server.create("tasks")
    before = numbers(server)["safepoint_tasks"]
    for _ in range(5):
        server.run("tasks", "note a")
    assert until(server, lambda now: now["safepoint_tasks"] <= before)


def test_a_histogram_counts_each_observation_in_every_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for value in (0.005, 0.3, 99.0):
        histogram.observe(value)
    found = dict(histogram.cumulative())
    assert [found[repr(bound)] for bound in BUCKETS] == [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert (found["+Inf"], histogram.sum) == (3, 99.305)


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    metrics = Metrics()
    metrics.runs['a"} 1\nb\\'] += 1
    shown = metrics.render(Gauges({}, 0, 0, 0))
    assert r'safepoint_runs_total{outcome="a\"} 1\nb\\"} 1' in shown.splitlines()


def test_numbers_are_for_the_admin_key(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        keys = KeyFile(tmp_path / "data" / KEY_FILE)
        ann, admin = keys.add("ann", user="ann"), keys.add("ops", admin=True)
        statuses = [server.get("/metrics", {"Authorization": f"Bearer {key}"}).status for key in (ann, admin)]
        assert [server.get("/metrics").status, *statuses] == [401, 403, 200]
