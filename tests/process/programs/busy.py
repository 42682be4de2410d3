"""An `async def` tool that never yields: who names it? The argument says whether logging is set up."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import Any

from safepoint import Agent, Run, tool
from safepoint.testing import ScriptedModel, call, say
from tests.process.programs.telling import tell, tell_result

BUSY_FOR = 1.5
began = 0.0


@tool
async def never_yields() -> str:
    global began
    began = time.monotonic()
    tell("READY")
    while time.monotonic() - began < BUSY_FOR:
        pass
    return "late"


class Telling(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell("LOGGED", seconds=time.monotonic() - began, text=record.getMessage(), name=record.name)


def ask(run: Run[Any, Any]) -> None:  # Any: of any agent
    while not began:
        time.sleep(0.01)
    run.cancel(reason="too slow")
    while not any("never_yields" in held.stack for held in run.why_not_stopped()):
        time.sleep(0.01)
    tell("WHY", seconds=time.monotonic() - began, names=[held.name for held in run.why_not_stopped()])


async def main() -> None:
    agent = Agent("parent", model=ScriptedModel(call("never_yields"), say("fine")), tools=[never_yields])
    run = agent.start("go")
    asker = threading.Thread(target=ask, args=(run,))
    async with run:
        asker.start()
    asker.join()
    tell_result("BACK", run.result)


if sys.argv[1] == "logging":
    logging.getLogger("safepoint").addHandler(Telling())
asyncio.run(main())
