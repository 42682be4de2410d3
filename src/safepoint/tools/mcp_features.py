"""What an MCP server may ask of its client: a person's answer, a model's words, and the folders it should work in.

A feature that is not given is not offered: the server is told at the start that this client has none of it. In the new
protocol the server ends its request with the questions, and the SDK sends it again with the answers; in the old one the
server asks while it works on a call. In both, an answer is worked on in a task of its own. A stop of the call ends that
task, and the server is told that the question was cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

from safepoint._core.supervisor import Supervisor
from safepoint.history.parts import Message, Text
from safepoint.history.rendering import render_error
from safepoint.tools.mcp_content import read_block

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext, ElicitationFnT, ListRootsFnT, SamplingFnT
    from mcp_types import (
        CreateMessageRequestParams,
        CreateMessageResult,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        ListRootsResult,
    )

_INTERNAL_ERROR = -32603
_INVALID_PARAMS = -32602
_log = logging.getLogger("safepoint")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class McpQuestion:
    """What a server wants a person to answer: by a form that `schema` describes, or at a web page, `url`."""

    server: str
    text: str
    schema: Mapping[str, Any] | None = None  # Any: a JSON schema
    url: str | None = None


@dataclass(frozen=True, slots=True)
class McpSampling:
    """What a server wants a model to write. The server proposes everything here; the user's function decides."""

    server: str
    messages: tuple[Message, ...]
    max_tokens: int
    system: str | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()


Form: TypeAlias = Mapping[str, str | int | float | bool | list[str] | None]


@dataclass(frozen=True, slots=True)
class McpFeatures:
    """What a server may ask: `elicit` a person's answer, None if declined; `sample` a model's words; `roots`, folders.

    Both functions are cancelled when the call is stopped in which the server asks.
    """

    elicit: Callable[[McpQuestion], Awaitable[Form | None]] | None = None
    sample: Callable[[McpSampling], Awaitable[str]] | None = None
    roots: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        if isinstance(self.roots, str | Path):
            raise ValueError(f"roots={self.roots!r}: write a list of folders: roots=[{str(self.roots)!r}]")


class _Callbacks(TypedDict, total=False):
    elicitation_callback: ElicitationFnT
    sampling_callback: SamplingFnT
    list_roots_callback: ListRootsFnT


class Answers:
    """The answers of one client to one server, and the tasks that work on them."""

    def __init__(self, features: McpFeatures, server: str) -> None:
        self._features = features
        self._server = server
        self._roots = [Path(root).resolve() for root in features.roots]
        self._open: set[asyncio.Task[None]] = set()

    def callbacks(self) -> _Callbacks:
        """The arguments of `mcp.Client`: what is not among them is not offered to the server."""
        given = _Callbacks()
        if self._features.elicit is not None:
            given["elicitation_callback"] = self._elicit
        if self._features.sample is not None:
            given["sampling_callback"] = self._sample
        if self._features.roots:
            given["list_roots_callback"] = self._list_roots
        return given

    def take_back(self) -> None:
        """Cancel every answer that is being worked on: no call is left that it could be for."""
        for task in self._open:
            task.cancel()

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        from mcp_types import ElicitResult

        ask = self._features.elicit
        assert ask is not None  # offered only then
        schema = dict(params.requested_schema) if params.mode == "form" else None
        question = McpQuestion(self._server, params.message, schema, params.url if params.mode == "url" else None)
        try:
            form = await self._work_on(partial(ask, question), "elicitation")
        except asyncio.CancelledError:
            _stay_cancelled()
            return ElicitResult(action="cancel")
        except Exception as error:
            return self._failed("elicitation", error)
        if form is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict(form) if params.mode == "form" else None)

    async def _sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        from mcp_types import CreateMessageResult, ErrorData, TextContent

        write = self._features.sample
        assert write is not None  # offered only then
        if params.tools:
            return ErrorData(code=_INVALID_PARAMS, message="this client samples without tools: leave them out")
        try:
            words = await self._work_on(partial(write, self._sampling(params)), "sampling")
        except asyncio.CancelledError:
            _stay_cancelled()
            return ErrorData(code=_INTERNAL_ERROR, message="the sampling was cancelled")
        except Exception as error:
            return self._failed("sampling", error)
        return CreateMessageResult(role="assistant", content=TextContent(text=words), model="safepoint")

    def _sampling(self, params: CreateMessageRequestParams) -> McpSampling:
        from mcp_types import AudioContent, ImageContent, TextContent

        messages: list[Message] = []
        for message in params.messages:
            # Calls of tools and their results cannot come: this client does not offer to sample with tools.
            kinds = (TextContent, ImageContent, AudioContent)
            parts = [read_block(part) for part in message.content_as_list if isinstance(part, kinds)]
            messages.append(Message(message.role, tuple(Text(p) if isinstance(p, str) else p for p in parts)))
        return McpSampling(
            self._server,
            tuple(messages),
            params.max_tokens,
            params.system_prompt,
            params.temperature,
            tuple(params.stop_sequences or ()),
        )

    async def _list_roots(self, context: ClientRequestContext) -> ListRootsResult:
        from mcp_types import ListRootsResult, Root
        from pydantic import FileUrl

        return ListRootsResult(roots=[Root(uri=FileUrl(each.as_uri()), name=each.name) for each in self._roots])

    async def _work_on(self, answer: Callable[[], Awaitable[T]], kind: str) -> T:
        """The answer, from a task of its own. Cancellation: of that task too, and it is awaited.

        A task that is cancelled before its first step never calls `answer`: no coroutine is left that nothing awaits.
        """

        done: list[T] = []
        failed: list[Exception] = []

        async def work() -> None:
            try:
                done.append(await answer())
            except Exception as error:
                failed.append(error)

        task = Supervisor.current().spawn(work(), f"mcp {self._server} {kind}", copy_context())
        self._open.add(task)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            self._open.discard(task)
        if failed:
            raise failed[0]
        if not done:
            raise asyncio.CancelledError("the answer was taken back")
        return done[0]

    def _failed(self, kind: str, error: Exception) -> ErrorData:
        """The server learns that there is no answer, and not why: the reason is the user's own."""
        from mcp_types import ErrorData

        _log.warning("the %s for %s failed: %s", kind, self._server, render_error(error))
        return ErrorData(code=_INTERNAL_ERROR, message=f"the client could not answer the {kind}")


def _stay_cancelled() -> None:
    """Raise on if the SDK's own task is cancelled: only an answer that was taken back has a reply."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
