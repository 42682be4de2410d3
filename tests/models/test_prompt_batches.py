"""How much of a prompt is still read after a stop: at most two batches, and batches are small."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent
from safepoint.models.llama import BATCH, LlamaOptions, LlamaServer
from safepoint.models.local import LocalModel, shared_server
from tests.models.llama_probe import Probe

PROMPT = "abc " * 600
UNDER_WAY_AND_BEGUN = 2


@asynccontextmanager
async def reading(address: str) -> AsyncGenerator[asyncio.StreamReader]:
    """A request whose answer tells of each batch."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1, "stream": True, "return_progress": True}
    data = json.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n"
    writer.write(f"{head}content-type: application/json\r\n\r\n{data}".encode())
    try:
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("options", "tokens"), [(LlamaOptions(), BATCH), (LlamaOptions(batch=32), 32)])
def test_a_prompt_is_read_in_batches_of_that_many_tokens(weights: Path, options: LlamaOptions, tokens: int) -> None:
    async def main() -> list[int]:
        read: list[int] = []
        async with reading(await server.address()) as answer:
            async for line in answer:
                if b"prompt_progress" in line:
                    read.append(json.loads(line[6:])["prompt_progress"]["processed"])
        return read

    server = LlamaServer(weights, options)
    try:
        read = asyncio.run(main())
    finally:
        server.close()
    steps = [later - earlier for earlier, later in pairwise(read)]
    assert len(steps) > 10
    assert max(steps) == tokens


def test_now_while_the_local_model_reads_a_prompt_leaves_two_batches_at_most(weights: Path) -> None:
    async def main() -> None:
        model = LocalModel(weights=weights)
        server = shared_server(weights)
        probe = Probe(await model.prepare(), server.pid or 0)
        async with Agent("a", model=model).start(PROMPT) as run:
            while not (before := await probe.computed()):
                pass  # until the first batch was read
            assert await run.cancel().wait() == "stopped"
            computed = await probe.computed()
            await probe.until_busy(0)
            assert await probe.computed() <= computed + UNDER_WAY_AND_BEGUN
            # Not a bound on the stop: only that there was something left to stop, on a machine of any load.
            assert computed < len(PROMPT) / BATCH - UNDER_WAY_AND_BEGUN, f"{before} batches at the first look"
        assert run.result.text == ""

    asyncio.run(main())
    shared_server(weights).close()


def test_a_batch_that_writers_would_fill_is_refused() -> None:
    assert LlamaOptions(slots=32).tokens_at_once == 64
    with pytest.raises(ValueError, match=r"batch=4 with slots=4: .* write batch=5 or more"):
        LlamaOptions(slots=4, batch=4)
    for option in ("slots", "context", "threads", "batch"):
        nothing: dict[str, Any] = {option: 0}  # Any: the options are of several types
        with pytest.raises(ValueError, match=f"{option}=0: write a whole number from 1 up"):
            LlamaOptions(**nothing)
