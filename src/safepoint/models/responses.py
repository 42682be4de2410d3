"""Models behind OpenAI's Responses API: the way to reasoning that survives a tool call.

A foreground reply stops when its connection is closed, as everywhere. A background reply goes on without a connection,
so leaving it has to cancel it at the provider; in return, a connection that breaks can be taken up where it broke.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelUnavailable
from safepoint.models.credentials import ApiKey
from safepoint.models.openai import OpenAIModel
from safepoint.models.openai_wire import Payload
from safepoint.models.quirks import obeyed
from safepoint.models.responses_wire import Reader, to_payload
from safepoint.models.thinking_back import server_of
from safepoint.models.untrusted_json import mapping, text
from safepoint.models.upstream import Events
from safepoint.models.upstream import Reader as EventReader

REATTACHED: Final = 3
"""How often the stream of one background reply is taken up again."""
CANCELLING: Final = 1.5
"""Seconds that the provider may take to answer a cancel: less than the closing of a response may take as a whole."""
_REASONING: Final = re.compile(r"o\d|gpt-[5-9]|gpt-\d\d|codex")

_log = logging.getLogger("safepoint")


def is_reasoning_model(model: str) -> bool:
    """Whether OpenAI's model of that name reasons before it answers."""
    return _REASONING.match(model) is not None


class OpenAIResponsesModel(OpenAIModel):
    """A model by its name at OpenAI, through the Responses API; `provider` and `base_url` reach another server.

    Nothing is stored at the provider, and encrypted reasoning goes back with its calls. Tools that the provider runs
    itself go into `ModelSettings(extra={"tools": [{"type": "web_search"}]})`. With `background`, the provider stores
    the reply and goes on without a connection: a stop cancels it there.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        name: str | None = None,
        provider: str | None = None,
        background: bool = False,
    ) -> None:
        super().__init__(model, api_key=api_key, base_url=base_url, name=name, provider=provider)
        self._background = background

    def payload(self, request: ModelRequest) -> Payload:
        request = obeyed(request, self._quirks, self.name)
        return to_payload(self._model, request, server=server_of(self._base_url), background=self._background)

    async def _open(self, request: ModelRequest) -> tuple[Events, EventReader]:
        reader = Reader(server_of(self._base_url), self.name)
        events = await self._post("/responses", self.payload(request))
        return (_BackgroundReply(self, events, reader) if self._background else events), reader

    async def _reattach(self, response_id: str, sequence: int) -> Events:
        """The rest of a background reply's stream. Cancellation: nothing stays open."""
        client, headers = await self._clients.get(), await self._authorization()
        query = {"stream": "true", "starting_after": sequence}
        options: Any = {"headers": headers, "params": query}  # Any: the SDK's own
        stream_type = self._sdk.AsyncStream[object]
        path = f"/responses/{response_id}"
        events: Events = await client.get(path, cast_to=object, options=options, stream=True, stream_cls=stream_type)
        return events

    async def _cancel(self, response_id: str) -> str:
        """Cancel a background reply; its status in the provider's words. Cancellation: the answer is not waited for."""
        client, headers = await self._clients.get(), await self._authorization()
        options: Any = {"headers": headers}  # Any: the SDK's own
        answer: object = await client.post(f"/responses/{response_id}/cancel", cast_to=object, options=options)
        return text(mapping(answer).get("status")) or "unknown"


class _BackgroundReply:
    """The events of a background reply, over as many connections as it takes; closing it early cancels the reply."""

    def __init__(self, model: OpenAIResponsesModel, events: Events, reader: Reader) -> None:
        self._model = model
        self._events = events
        self._reader = reader
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[object]:
        left = REATTACHED
        while True:
            try:
                async for event in self._events:
                    yield event
                if self._reader.finish() is not None:
                    return
                problem: Exception = ModelUnavailable(f"{self._model.name} ended its stream too early")
            except Exception as error:
                problem = error
            left -= 1
            await self._take_up(problem, left)

    async def _take_up(self, problem: Exception, left: int) -> None:
        """Connect again after the last event that was read; raises the problem if that makes no sense."""
        id, sequence = self._reader.response_id, self._reader.sequence
        meant = self._model._failure(problem)  # pyright: ignore[reportPrivateUsage]  # the model's own part
        if left < 0 or id is None or sequence is None or not isinstance(meant, ModelUnavailable):
            raise problem
        await self._events.close()
        self._events = await self._model._reattach(id, sequence)  # pyright: ignore[reportPrivateUsage]  # as above

    async def close(self) -> None:
        """Close the connection. A reply that has not ended is cancelled at the provider, bounded."""
        await self._events.close()
        id = self._reader.response_id
        if self._ended or id is None or self._reader.is_over:
            return
        self._ended = True
        try:
            async with asyncio.timeout(CANCELLING):
                status = await self._model._cancel(id)  # pyright: ignore[reportPrivateUsage]  # as above
        except Exception as error:
            status = "not answered"
            _log.warning("%s did not confirm the cancel of %s: %r", self._model.name, id, error)
        _log.info("%s answered the cancel of %s: %s", self._model.name, id, status)
        _tell_span(status)


def _tell_span(status: str) -> None:
    """What the provider answered, on the span of the model call, in whose task this runs."""
    trace: Any = sys.modules.get("opentelemetry.trace")  # Any: loaded only in programs that trace
    if trace is not None:
        trace.get_current_span().set_attribute("safepoint.provider.cancel", status)
