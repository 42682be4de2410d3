"""A real language model with no key: SmolLM2 with 135 million parameters, computed by llama.cpp on this machine.

It is small: it can hold a conversation, and most facts that it tells are wrong. It is there so that an agent can be
tried, stopped and tested against a model that really computes. One server per process and file of weights is shared by
all models, agents and loops; it starts with the first call and ends with the process.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from safepoint.agent.model import ModelRequest
from safepoint.models.extras import check_installed
from safepoint.models.llama import LlamaOptions, LlamaServer
from safepoint.models.local_wire import Payload, Reader, to_payload
from safepoint.models.openai import OpenAIModel
from safepoint.models.upstream import Events
from safepoint.models.weights import SMOLLM2, cache_folder, fetch

SLOTS: Final = 2
"""How many answers are computed at once; more wait."""


class LocalModel(OpenAIModel):
    """The local model. `weights` is another file in llama.cpp's format (GGUF), in place of the one that is fetched."""

    def __init__(self, *, weights: str | os.PathLike[str] | None = None) -> None:
        check_installed("xllamacpp", "local")
        super().__init__("local", base_url="http://127.0.0.1/v1", name="local")
        self._weights = None if weights is None else Path(weights)

    @property
    def model_name(self) -> str:
        return (self._weights or Path(SMOLLM2.member)).stem

    @property
    def provider_name(self) -> str:
        return "llama.cpp"

    async def prepare(self) -> str:
        """Fetch the weights, once, and start the server; where it listens.

        Cancellation: a download is ended; a start goes on, for whoever wants the server next.
        """
        weights = self._weights or await fetch(SMOLLM2, cache_folder(os.environ))
        return await shared_server(weights).address()

    def payload(self, request: ModelRequest) -> Payload:
        return to_payload(request)

    async def _open(self, request: ModelRequest) -> tuple[Events, Reader]:
        payload, address = self.payload(request), await self.prepare()
        events = await self._post(f"{address}/v1/chat/completions", payload)
        return events, Reader(bound="response_format" in payload)


def shared_server(weights: Path) -> LlamaServer:
    """The server of this process for these weights."""
    threads = max(1, min(4, (os.cpu_count() or 1) // 2))
    with _deciding:
        if weights not in _servers:
            _servers[weights] = LlamaServer(weights, LlamaOptions(slots=SLOTS, threads=threads))
        return _servers[weights]


_servers: dict[Path, LlamaServer] = {}
_deciding = threading.Lock()  # held while the dict is looked at, never across a wait
