"""The program between Safepoint and the processes of one tool call, so that no process escapes.

    host ──control──▶ keeper ──▶ leader (own session, own group) ──▶ children, grandchildren, what they detach

The keeper is the *subreaper* of the call (Linux): a process that forks twice, calls setsid or loses its parent becomes
a child of the keeper, even if it changes its environment, its session or its group. So everything that belongs to this
call is one subtree, and the call has ended exactly when the keeper has no child left.

The host sends ``T`` (ask all to end) or ``K`` (kill all); if the host dies, the control socket closes and that counts
as ``K``. The keeper sends ``S <pid of the leader>``, and at its end ``E <wait status of the leader> <how many had to be
ended after it>``. Processes that the leader leaves behind end with it: asked first, killed after `LINGER` seconds.

It is run by path, in an interpreter without site-packages: it imports nothing of Safepoint and little else, because
every call pays for its start. Where there is no subreaper it knows the children of its children, and the group.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from time import monotonic

LINGER = 0.5
BETWEEN_KILLS = 0.02
_ADOPTS = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36


class Subreaper:
    """The processes of one call. `status` is the leader's, once it has ended."""

    def __init__(self, control: int, argv: list[str]) -> None:
        os.set_inheritable(control, False)
        self._control = control
        self._wake = _wake_at_signals()
        _adopt_orphans()
        self._leader = _start(argv)
        self._told_to_end = False
        self._terminated: set[int] = set()
        self._left = 0
        self._linger: float | None = None
        self.status: int | None = None

    def run(self) -> None:
        self._tell(f"S {self._leader}")
        while self._reap():
            if self.status is not None and self._linger is None:
                self._leave()
            if self._terminated:
                self._terminate_left_behind()
            ready, _, _ = select.select([self._control, self._wake], [], [], self._patience())
            if self._wake in ready:
                os.read(self._wake, 4096)
            words = os.read(self._control, 64) if self._control in ready else b"-"
            if not words or b"K" in words or self._patience() == 0:
                self._kill()
            elif b"T" in words:
                self._told_to_end = True
                self._terminate()
        self._tell(f"E {self.status} {self._left}")

    def _leave(self) -> None:
        """The leader has ended and others have not. If it was told to end, so were they, and the host keeps time."""
        if self._told_to_end:
            return
        self._left = len(members(process_table(), os.getpid(), self._leader))
        self._linger = monotonic() + LINGER
        self._terminate()

    def _patience(self) -> float | None:
        if self._linger is not None:
            return max(0.0, self._linger - monotonic())
        return None if _ADOPTS else LINGER  # no signal reports the end of a process that was not adopted

    def _terminate(self) -> None:
        self._end(members(process_table(), os.getpid(), self._leader))

    def _terminate_left_behind(self) -> None:
        """End those who were forked while the others were told, and whose parent has ended since.

        The children of a process that still runs are left to it: it may clean up with their help.
        """
        table = list(process_table())
        self._end(left_behind(table, os.getpid(), self._leader, self._terminated))

    def _end(self, targets: list[int]) -> None:
        self._terminated.update(targets)
        _send(signal.SIGTERM, targets)
        _send(signal.SIGCONT, targets)  # a stopped process would not receive the signal

    def _kill(self) -> None:
        """Kill until none is left: processes forked during one pass are found in the next."""
        while self._reap():
            _send(signal.SIGKILL, members(process_table(), os.getpid(), self._leader))
            select.select([self._wake], [], [], BETWEEN_KILLS)

    def _reap(self) -> bool:
        """Reap ended children; True if any are alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _group_lives(self._leader)
            if pid == 0:
                return True
            if pid == self._leader:
                self.status = status

    def _tell(self, words: str) -> None:
        try:  # noqa: SIM105  # contextlib would have to be imported, and every call pays for that
            os.write(self._control, f"{words}\n".encode())
        except OSError:
            pass  # the host process is gone; there is no reader


def members(table: Iterable[tuple[int, int, int]], keeper: int, group: int) -> list[int]:
    """Everything below the keeper, and everything in that group, by pid."""
    children: dict[int, list[int]] = {}
    found: dict[int, None] = {}
    for pid, parent, its_group in table:
        children.setdefault(parent, []).append(pid)
        if its_group == group:
            found[pid] = None
    waiting = [keeper, *found]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found[pid] = None
                waiting.append(pid)
    return list(found)


def left_behind(table: Sequence[tuple[int, int, int]], keeper: int, group: int, signalled: Container[int]) -> list[int]:
    """The members that were not told to end, and that no parent is left for: the keeper or init has adopted them."""
    parents = {pid: parent for pid, parent, _ in table}
    return [pid for pid in members(table, keeper, group) if pid not in signalled and parents[pid] in (keeper, 1)]


def process_table() -> Iterator[tuple[int, int, int]]:
    """Every process of the system, as (pid, parent, process group)."""
    if sys.platform != "linux":
        with os.popen("ps -A -o pid= -o ppid= -o pgid=") as listing:
            for line in listing:
                pid, parent, group = map(int, line.split())
                yield pid, parent, group
        return
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # the name before it may contain anything
        except OSError:
            continue  # it has just ended
        yield int(name), int(fields[1]), int(fields[2])


def _adopt_orphans() -> None:
    if _ADOPTS:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wake_at_signals() -> int:
    """A descriptor that becomes readable whenever a child has ended."""
    wake, ring = os.pipe()
    os.set_blocking(ring, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ring_only)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the keeper exits only when its call has ended
    return wake


def _ring_only(_number: int, _frame: object) -> None:
    """Does nothing: without a handler, a signal would not write to the pipe."""


def _start(argv: list[str]) -> int:
    """Start the leader with our standard streams, then close them: their reader must see their end."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    return pid


def _send(number: signal.Signals, targets: list[int]) -> None:
    for target in targets:
        try:  # noqa: SIM105  # as above
            os.kill(target, number)
        except OSError:
            pass  # it has ended, or it may no longer be signalled


def _group_lives(group: int) -> bool:
    """Where orphans are not adopted, the rest of the leader's group may outlive our last child."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    Subreaper(int(sys.argv[1]), sys.argv[2:]).run()
