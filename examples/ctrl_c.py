"""Ctrl-C in run_sync stops the run, and the exception carries its result. (This program presses it itself.)"""

import asyncio
import os
import signal

from safepoint import Agent, CtrlC, check_history, tool
from safepoint.testing import ScriptedModel, call


@tool
async def wait_for_ever() -> str:
    """Press Ctrl-C, as a user would, and wait."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(3600)
    return "done"


agent = Agent("patient", model=ScriptedModel(call("wait_for_ever")), tools=[wait_for_ever])
try:
    agent.run_sync("Wait.")
except CtrlC as pressed:  # a KeyboardInterrupt; left alone, it ends the program as usual
    result = pressed.result
    print("stopped by Ctrl-C:", result.stop_reason)
    print("the call was:", result.ledger[0].state)
    check_history(result.messages)
    print("the conversation is valid,", len(result.messages), "messages")
