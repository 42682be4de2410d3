"""The second net: processes found by a mark in their environment, wherever they stand in the tree.

A child inherits its parent's environment, through forks, sessions and groups; only one that throws its environment away
loses the mark. It is used where the first net, the keeper, was killed itself; and where there is no subreaper, to name
what has got away.
"""

from __future__ import annotations

import logging
import os
import signal

MARK = "SAFEPOINT_CALL"

_log = logging.getLogger("safepoint")


def marked(mark: str) -> list[int]:
    """The ids of all processes that carry this mark and that we may look at."""
    try:
        import psutil
    except ImportError:
        _log.warning("processes that got away can't be looked for without psutil: pip install 'safepoint[process]'")
        return []
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process.pid)
        except psutil.Error:
            continue  # it has ended, or belongs to somebody else
    return found


def sweep(mark: str, *spared: int) -> int:
    """Kill all that carry the mark, until none does; how many there were. Bounded: what can't be killed stays."""
    killed: set[int] = set()
    for _ in range(10):
        found = set(marked(mark)) - {os.getpid(), *spared}
        if not found - killed:
            break
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        killed |= found
    return len(killed)
