"""Cancel, `ifBusy`, viewers and attempts to get in, asked of two processes in turn: the answers are those of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server import test_busy, test_cancel, test_safety, test_viewers
from tests.server.guarded import Guarded
from tests.server.round_robin import ServerPair
from tests.server.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerPair(tmp_path_factory.mktemp("pair")) as running:
        yield running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with test_safety.settled(Guarded(tmp_path_factory.mktemp("guarded"), kind=ServerPair)) as guarded:
        yield guarded


# What is about one process, or about the buffers of a connection without a proxy in it.
ONE_PROCESS = {
    "test_stalled_readers_hold_next_to_nothing": "the memory of one process",
    "test_stalled_readers_do_not_slow_the_run": "the buffers of a direct connection",
    "test_a_reader_that_never_reads_is_dropped_and_its_run_stopped": "likewise: a proxy goes on reading",
    "test_many_viewers_see_the_same_and_one_more_than_may_is_refused": "the limit `viewers` is that of a process",
    "test_a_silent_stream_is_kept_alive_and_no_proxy_may_buffer_it": "it starts a server of its own kind",
}
# Where the answer is another one: a message for a session whose run another process has waits for its turn, or is
# refused, where one process would let it join that run or take its turn back.
ANOTHER_ANSWER = {
    "test_a_steering_message_joins_the_older_run_and_its_caller_gets_that_runs_answer",
    "test_a_preempting_message_stops_the_older_run_and_then_runs",
    "test_a_viewer_of_a_message_that_joined_a_run_is_a_viewer_of_that_run",
}

for module in (test_cancel, test_busy, test_viewers, test_safety):
    globals().update(
        (name, test)
        for name, test in vars(module).items()
        if name.startswith("test_") and {"server", "world"} & set(getattr(test, "__annotations__", {}))
        if name not in ONE_PROCESS and name not in ANOTHER_ANSWER
    )
