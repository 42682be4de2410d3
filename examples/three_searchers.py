"""Three searchers side by side: one of them is stopped by hand, and the others go on."""

import asyncio
from collections.abc import Mapping

from safepoint import Agent, Parallel, RunResult, StopReason
from safepoint.testing import ScriptedModel, say, stall

searching = asyncio.Event()


def summary(found: Mapping[str, RunResult[str]]) -> str:
    lines = [
        f"{name}: {result.text if result.stop_reason is StopReason.END_TURN else '(stopped)'}"
        for name, result in found.items()
    ]
    return "\n".join(lines)


async def main() -> None:
    search = Parallel(
        "search",
        [
            Agent("web", model=ScriptedModel(say("three pages"))),
            Agent("papers", model=ScriptedModel(stall(on_reached=searching.set))),
            Agent("library", model=ScriptedModel(say("one book"))),
        ],
        join=summary,
    )
    async with search.start("Where does tea come from?") as run:
        await searching.wait()
        slow = next(node for node in run.tree.walk() if node.name == "papers")
        print("papers:", await slow.cancel(reason="it takes too long").wait())
    print(run.result.stop_reason, "with")
    print(run.result.output)


asyncio.run(main())
