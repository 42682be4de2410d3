"""When a worker is dead: told by its process where that can be seen, and else by a counter that stands still."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest

from safepoint.storage.lease import Lease, Process, _born  # pyright: ignore[reportPrivateUsage]  # of another process

HERE = Process.current()


class Observer:
    """A worker that looks at another one, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.other = uuid.uuid4().hex
        self.lease = Lease(60.0, clock=lambda: self.now)

    def sees_dead(self, process: Process, counter: int) -> bool:
        return self.lease.is_dead(self.other, (str(process), counter))


def parent() -> Process:
    return replace(HERE, pid=os.getppid(), born=_born(os.getppid()))


def test_a_worker_does_not_take_itself_for_dead() -> None:
    lease = Lease()
    assert not lease.is_dead(lease.worker, None)


def test_in_the_same_namespace_a_process_is_dead_when_it_is_gone_and_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = replace(HERE, pid=child.pid, born=_born(child.pid))
        observer = Observer()
        assert not observer.sees_dead(process, 0)
        child.communicate(b"\n")
    assert observer.sees_dead(process, 0)
    assert observer.sees_dead(replace(parent(), born="long ago"), 0), "another process has its pid"


def test_a_process_that_can_be_seen_lives_however_long_it_is_silent() -> None:
    observer = Observer()
    for _ in range(3):
        assert not observer.sees_dead(parent(), 7)
        observer.now += 1000


@pytest.mark.parametrize("elsewhere", [{"boot": "another"}, {"namespace": "pid:[1]"}])
def test_elsewhere_a_pid_says_nothing_and_a_counter_that_stands_still_for_a_lease_does(
    elsewhere: dict[str, str],
) -> None:
    gone = replace(HERE, pid=999_999_999, born="never", **elsewhere)
    observer = Observer()
    for counter in range(5):
        assert not observer.sees_dead(gone, counter)
        observer.now += 59.9
    assert not observer.sees_dead(gone, 5)
    observer.now += 59.9
    assert not observer.sees_dead(gone, 5)
    observer.now += 0.1
    assert observer.sees_dead(gone, 5)
    assert not observer.sees_dead(gone, 6), "it renewed its lease after all"


def test_a_worker_that_closed_in_order_owns_nothing() -> None:
    assert Lease().is_dead(uuid.uuid4().hex, None)


@pytest.mark.parametrize("owner", ["rubbish", "a|b", "a|b|c|d"])
def test_an_owner_that_cannot_be_read_is_told(owner: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Lease().is_dead(owner, None)
    with pytest.raises(ValueError, match=r".+"):
        Lease().is_dead(uuid.uuid4().hex, ("rubbish", 0))


def test_an_owner_as_earlier_versions_wrote_it_is_dead_when_its_process_is_gone() -> None:
    import socket

    observer, host = Observer(), socket.gethostname()
    assert observer.lease.is_dead(f"{host}|999999999|never", None)
    assert not observer.lease.is_dead(f"{host}|{os.getppid()}|{_born(os.getppid())}", None)
    assert not observer.lease.is_dead("elsewhere|1|born", None)
    observer.now += 60
    assert observer.lease.is_dead("elsewhere|1|born", None)
