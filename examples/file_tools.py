"""Files below one folder, and nowhere else."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from safepoint import Agent
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import files


async def main(folder: str) -> None:
    model = ScriptedModel(
        [call("read_file", path="todo.md"), call("read_file", path="../../etc/passwd")],
        call("write_file", path="done/today.md", text="bought tea"),
        say("Done."),
    )
    result = await Agent("clerk", model=model, tools=files(folder)).run("Do what is to be done.")
    for entry in result.ledger:
        print(entry.name, entry.args["path"], "→", entry.state, entry.content or entry.error)


with TemporaryDirectory() as folder:
    Path(folder, "todo.md").write_text("buy tea")
    asyncio.run(main(folder))
