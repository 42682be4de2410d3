"""An `async def` tool that yields only when it was named: who names it? The argument says whether logging is set up."""

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

GIVES_UP = 30.0  # far above a second, so that a busy machine is not taken for a fault
begun, logged, named = threading.Event(), threading.Event(), threading.Event()


@tool
async def never_yields() -> str:
    tell("READY")
    begun.set()
    end = time.monotonic() + GIVES_UP
    while not named.is_set() and time.monotonic() < end:
        pass
    return "late"


class Telling(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell("LOGGED", text=record.getMessage(), name=record.name)
        logged.set()


def ask(run: Run[Any, Any]) -> None:  # Any: of any agent
    begun.wait()
    run.cancel(reason="too slow")
    while not any("never_yields" in held.stack for held in run.why_not_stopped()):
        time.sleep(0.01)
    tell("WHY", names=[held.name for held in run.why_not_stopped()])
    logged.wait()
    named.set()


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
else:
    logged.set()
asyncio.run(main())
