"""Run a Python file as a user would, in a process of its own, with every warning an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.signals import default_signals

SECONDS = 50  # below the ceiling for a test, so that the report names the program


def run_program(file: Path, cwd: Path, *, seconds: float = SECONDS) -> str:
    """What the program printed. Fails unless it exits 0 in time; whatever it started goes with it."""
    with default_signals():
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(file)],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    with process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            raise AssertionError(f"{file.name} did not end within {seconds} s\n{printed}") from None
    assert process.returncode == 0, f"{file.name} ended with {process.returncode}\n{printed}"
    return printed
