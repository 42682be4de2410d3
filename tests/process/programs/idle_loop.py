"""A run is live on a loop that nobody runs for a while, as in a program that drives its loop in pieces."""

from __future__ import annotations

import asyncio
import logging
import time

from safepoint import Agent
from safepoint.testing import ScriptedModel, stall
from tests.process.programs.telling import tell, tell_result

logging.basicConfig()
loop = asyncio.new_event_loop()
reached = asyncio.Event()
run = Agent("parent", model=ScriptedModel(stall(on_reached=reached.set))).start("go")
loop.run_until_complete(run.__aenter__())
loop.run_until_complete(reached.wait())
time.sleep(1.2)
run.cancel()
loop.run_until_complete(run.__aexit__(None, None, None))
loop.close()
tell_result("BACK", run.result)
tell("BYE")
