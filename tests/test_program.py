"""A program that hangs is ended in time, with everything it started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.program import run_program
from tests.signals import sigint_ignored

HANGS = """
import subprocess, sys
print("started", flush=True)
subprocess.run([sys.executable, "-c", "import threading; threading.Event().wait()"])
"""


def test_what_a_program_prints_is_returned(tmp_path: Path) -> None:
    file = tmp_path / "polite.py"
    file.write_text("import os; print(os.getcwd())")
    assert run_program(file, tmp_path) == f"{os.path.realpath(tmp_path)}\n"


def test_a_program_that_hangs_is_ended_with_its_children_and_named(tmp_path: Path) -> None:
    file = tmp_path / "hangs.py"
    file.write_text(HANGS)
    with pytest.raises(AssertionError, match=r"hangs\.py did not end within 1 s\nstarted"):
        run_program(file, tmp_path, seconds=1)


def test_a_program_hears_ctrl_c_also_where_the_tests_ignore_it(tmp_path: Path) -> None:
    file = tmp_path / "listening.py"
    file.write_text("import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)")
    with sigint_ignored():
        assert run_program(file, tmp_path) == "True\n"
