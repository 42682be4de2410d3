"""What Safepoint logs goes to the logger `safepoint`, and nowhere unless the program wants it."""

from __future__ import annotations

from pathlib import Path

from tests.program import run_program

SILENT = """
import asyncio
from safepoint import Agent, Hooks
from safepoint.testing import ScriptedModel, say
class Broken(Hooks):
    def before_run(self, run):
        raise OSError("a hook that fails")
asyncio.run(Agent("a", model=ScriptedModel(say("hi")), hooks=[Broken()]).run("go"))
import logging
logging.basicConfig(format="%(name)s")
asyncio.run(Agent("a", model=ScriptedModel(say("hi")), hooks=[Broken()]).run("go"))
"""


def test_the_logger_is_silent_until_a_program_sets_up_logging(tmp_path: Path) -> None:
    program = tmp_path / "silent.py"
    program.write_text(SILENT)
    assert run_program(program, tmp_path, fresh=True).split() == ["safepoint"]
