"""Runs one shell command as a tool, until somebody ends this program."""

from __future__ import annotations

import asyncio
import sys

from safepoint import Agent
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import shell
from tests.process.programs.telling import tell


async def main(command: str) -> None:
    agent = Agent("host", model=ScriptedModel(call("shell", command=command), say("done")), tools=[shell()])
    async with agent.start("go"):
        tell("READY")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
