"""What a process that a test starts does about SIGINT and SIGTERM, wherever the tests themselves run.

`&` in a script and many CI runners start their commands with SIGINT ignored, and an ignored signal stays ignored in
every process below. A test that sends a signal, to itself or to a process it starts, therefore sets up what it means.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def default_signals() -> Generator[None]:
    """Inside the block SIGINT and SIGTERM do what they do in a foreground Python, here and in what is started here.

    A handler that this process has is no concern of the processes it starts: `exec` resets it, but not an ignored
    signal. Only the main thread may change that, so in another one the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def sigint_ignored() -> Generator[None]:
    """As for a command that is started in the background. Call it in the main thread."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
