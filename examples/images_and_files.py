"""A prompt of several parts: words, a picture, a document."""

import asyncio

from safepoint import Agent, File, Image, Text
from safepoint.testing import ScriptedModel, say


async def main() -> None:
    model = ScriptedModel(say("A cat, and a letter to it."))
    agent = Agent("viewer", model=model)
    prompt: list[Text | Image | File] = [
        Text("What is this?"),
        Image(data=b"\x89PNG...", media_type="image/png"),
        File(data=b"Dear cat", media_type="text/plain", name="letter.txt"),
    ]
    result = await agent.run(prompt)
    print([part.kind for part in model.requests[0].messages[0].parts])
    print(result.text)


asyncio.run(main())
