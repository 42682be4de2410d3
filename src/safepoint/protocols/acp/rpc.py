"""JSON-RPC 2.0 over a pair of streams, one object a line.

Frames are dispatched in the order in which they come. A handler is a plain function that returns what is to be awaited:
it registers the request before the next frame is read, so that a cancel that follows a request always finds it.
A frame that cannot be read is answered with an error, and the connection lives.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

from pydantic import BaseModel, ValidationError

from safepoint.protocols.json_limits import find_problem

_log = logging.getLogger("safepoint.acp")

LONGEST_FRAME: Final = 32 * 1024 * 1024
_DEPTH, _VALUES = 64, 200_000
_GOODBYE = 1.0

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800

CANCEL_REQUEST: Final = "$/cancel_request"

Json: TypeAlias = dict[str, Any]  # Any: JSON
RequestId: TypeAlias = int | str | None
Handler: TypeAlias = Callable[[RequestId, Any], Awaitable[BaseModel | None]]  # Any: the model that the method takes


class RpcError(Exception):
    """An error as the other side is told it, or as it told it."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    def to_json(self) -> Json:
        found: Json = {"code": self.code, "message": str(self)}
        return found if self.data is None else {**found, "data": self.data}


class RpcConnection:
    """One client. `requests`: by method, the model of its parameters and its handler; `notifications`: likewise.

    `cancelled` is called for a request that the client takes back, and says whether the handler ends it by itself; if
    not, its task is cancelled.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests: Mapping[str, tuple[type[BaseModel], Handler]] = {}
        self.notifications: Mapping[str, tuple[type[BaseModel], Callable[[Any], object]]] = {}  # Any: as in Handler
        self.cancelled: Callable[[RequestId], bool] = lambda _: False
        self._reader = reader
        self._writer = writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._pending: dict[int, asyncio.Future[Any]] = {}  # Any: JSON
        self._next_id = 0

    async def listen(self) -> None:
        """Until the client closes its side. Cancellation: no more frames are read."""
        while (line := await self._read_line()) != b"":
            if line is None:
                self._refuse(None, RpcError(INVALID_REQUEST, f"a frame has at most {LONGEST_FRAME} bytes"))
            elif line.strip():
                self._take(line)
            await self._flush()

    async def close(self) -> None:
        """Cancel what still runs, and wait for it, bounded. Cancellation: some of it may still run."""
        for future in self._pending.values():
            future.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GOODBYE)
        self._writer.close()

    def spawn(self, body: Coroutine[Any, Any, None]) -> asyncio.Task[None]:  # Any: as a coroutine has it
        """Let it run for as long as the connection does."""
        task = asyncio.create_task(body, name="safepoint: acp")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- out -----------------------------------------------------------------------------------------------------------

    async def notify(self, method: str, params: BaseModel) -> None:
        """Cancellation: it was sent."""
        self._send({"method": method, "params": _dump(params)})
        await self._flush()

    async def request(self, method: str, params: BaseModel) -> Any:  # Any: JSON
        """What the client answers. Raises `RpcError`, and `ConnectionError` once the client is gone.

        Cancellation: the request is taken back, and a late answer is dropped.
        """
        id, self._next_id = self._next_id, self._next_id + 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()  # Any: JSON
        self._pending[id] = future
        self._send({"id": id, "method": method, "params": _dump(params)})
        try:
            await self._flush()
            return await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self._send({"method": CANCEL_REQUEST, "params": {"requestId": id}})
            raise
        finally:
            self._pending.pop(id, None)

    def _send(self, frame: Json) -> None:
        if not self._writer.is_closing():
            # Half a surrogate pair, which a model may well stream, is escaped like everything beyond ASCII.
            self._writer.write(json.dumps({"jsonrpc": "2.0", **frame}, separators=(",", ":")).encode() + b"\n")

    async def _flush(self) -> None:
        with suppress(ConnectionError):  # the client has closed its side: `listen` ends by itself
            await self._writer.drain()

    def _refuse(self, id: RequestId, error: RpcError) -> None:
        self._send({"id": id, "error": error.to_json()})

    # -- in ------------------------------------------------------------------------------------------------------------

    async def _read_line(self) -> bytes | None:
        """Without its end; empty at the end of the stream, None for a frame that is too long."""
        too_long = False
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as error:
                await self._reader.readexactly(error.consumed)
                too_long = True
            except (asyncio.IncompleteReadError, ConnectionError):
                return b""  # a frame without its end was never sent whole
            else:
                return None if too_long else line

    def _take(self, line: bytes) -> None:
        problem = find_problem(line.strip(), depth=_DEPTH, values=_VALUES)
        if problem is not None:
            return self._refuse(None, RpcError(PARSE_ERROR, f"Parse error: {problem.text}"))
        try:
            frame: object = json.loads(line)
        except ValueError as error:
            return self._refuse(None, RpcError(PARSE_ERROR, f"Parse error: {error}"))
        if not isinstance(frame, dict):
            return self._refuse(None, RpcError(INVALID_REQUEST, "a frame is one JSON object; batches are not taken"))
        self._dispatch(cast("Json", frame))

    def _dispatch(self, frame: Json) -> None:
        method, id = frame.get("method"), frame.get("id")
        if isinstance(id, bool) or not isinstance(id, int | str | None):
            return self._refuse(None, RpcError(INVALID_REQUEST, "an id is a number, a string or null"))
        if method is None and ("result" in frame or "error" in frame):
            return self._settle(id, frame)
        if not isinstance(method, str):
            return self._refuse(id, RpcError(INVALID_REQUEST, "a frame has a method, or answers a request"))
        if "id" in frame:
            self._start(id, method, frame.get("params"))
        elif method == CANCEL_REQUEST:
            self._take_back(frame.get("params"))
        else:
            self._hear(method, frame.get("params"))

    def _settle(self, id: RequestId, frame: Json) -> None:
        future = self._pending.pop(id, None) if isinstance(id, int) else None
        if future is None or future.done():
            return  # the caller no longer waits for it
        error: Any = frame.get("error")  # Any: JSON
        if error is None:
            future.set_result(frame.get("result"))
        else:
            fields: Json = cast("Json", error) if isinstance(error, dict) else {}
            code = fields.get("code")
            future.set_exception(
                RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(fields.get("message", error)))
            )

    def _start(self, id: RequestId, method: str, params: object) -> None:
        found = self.requests.get(method)
        if found is None:
            return self._refuse(id, RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}"))
        model, handler = found
        try:
            body = handler(id, model.model_validate(params if params is not None else {}))
        except ValidationError as error:
            return self._refuse(id, RpcError(INVALID_PARAMS, _words(error)))
        except RpcError as error:
            return self._refuse(id, error)
        task = self._running[id] = self.spawn(self._answer(id, method, body))
        task.add_done_callback(lambda done: self._running.pop(id) if self._running.get(id) is done else None)

    async def _answer(self, id: RequestId, method: str, body: Awaitable[BaseModel | None]) -> None:
        """Cancellation: it is answered as a request that was taken back."""
        try:
            result = await body
            self._send({"id": id, "result": {} if result is None else _dump(result)})
        except RpcError as error:
            self._refuse(id, error)
        except asyncio.CancelledError:
            self._refuse(id, RpcError(REQUEST_CANCELLED, "the request was cancelled"))
            raise
        except Exception:  # what went wrong is for the log; the client is told that something did
            _log.exception("%s failed", method)
            self._refuse(id, RpcError(INTERNAL_ERROR, "Internal error: the log on stderr says more"))
        await self._flush()

    def _hear(self, method: str, params: object) -> None:
        found = self.notifications.get(method)
        if found is None:
            return  # a notification has no answer, and an unknown one is ignored
        model, handler = found
        try:
            handler(model.model_validate(params if params is not None else {}))
        except (ValidationError, RpcError) as error:
            _log.warning("the notification %s was ignored: %s", method, " ".join(str(error).split()))

    def _take_back(self, params: object) -> None:
        id: Any = cast("Json", params).get("requestId") if isinstance(params, dict) else None  # Any: JSON
        if isinstance(id, bool) or not isinstance(id, int | str) or id not in self._running:
            return
        if not self.cancelled(id):
            self._running[id].cancel()


def _dump(model: BaseModel) -> Json:
    # Not `exclude_unset`: what is left out by a default (`type`, `sessionUpdate`) is part of the frame.
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _words(error: ValidationError) -> str:
    """What is wrong, and where; without what was sent, which may be long."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"Invalid params: {where}: {first['msg']}" if where else f"Invalid params: {first['msg']}"
