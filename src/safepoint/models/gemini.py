"""Gemini, through Google's own SDK.

The SDK hides its response inside nested generators, which close it when they are collected. So the HTTP client is ours:
it notes the response of each call, and leaving the call closes it there and then.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelNotReady
from safepoint.models.credentials import ApiKey, current_key
from safepoint.models.extras import sdk
from safepoint.models.gemini_wire import Payload, Reader, to_payload
from safepoint.models.per_loop import PerLoop
from safepoint.models.provider_errors import refusal, unreachable
from safepoint.models.untrusted_json import items, mapping, text
from safepoint.models.upstream import Events, Upstream

if TYPE_CHECKING:
    import httpx2
    from google.genai import Client
    from google.genai.types import GenerateContentResponse

KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
TIMEOUT = 600_000
"""Milliseconds that the service may be silent, as with the other SDKs."""

_answered: ContextVar[list[httpx2.Response]] = ContextVar("safepoint_gemini_answered")


class GeminiModel(Upstream):
    """A model by its name at Google. The key is `api_key`, a str or a function that returns the current one.

    Without it the key is in `GEMINI_API_KEY` or `GOOGLE_API_KEY`.
    """

    def __init__(self, model: str, *, api_key: ApiKey | None = None, base_url: str | None = None) -> None:
        self._sdk: Any = sdk("google.genai", "gemini")  # Any: modules, loaded by name
        self._errors: Any = sdk("google.genai.errors", "gemini")
        self._http: Any = sdk("httpx2", "gemini")
        self._model = model
        self._key = api_key
        self._base_url = base_url
        self._clients: PerLoop[tuple[Client, httpx2.AsyncClient]] = PerLoop(self._client, _close)

    @property
    def name(self) -> str:
        return f"gemini:{self._model}"

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str:
        return "gcp.gemini"

    @property
    def server_url(self) -> str:
        """Where requests go, for spans."""
        return self._base_url or "https://generativelanguage.googleapis.com"

    def _client(self) -> tuple[Client, httpx2.AsyncClient]:
        http: httpx2.AsyncClient = self._http.AsyncClient(event_hooks={"response": [note_response]})
        options = {"base_url": self._base_url, "httpx_async_client": http, "timeout": TIMEOUT}
        return self._sdk.Client(api_key="none", vertexai=False, http_options=options), http

    async def _headers(self) -> dict[str, str]:
        """The headers that say who asks. Raises `ModelNotReady`. Cancellation: cuts the user's function."""
        given = self._key or next((os.environ[name] for name in KEYS if os.environ.get(name)), None)
        if not given:
            raise ModelNotReady(f"{self.name} needs a key: type `export {KEYS[0]}=…`, or write api_key=…")
        return {"x-goog-api-key": await current_key(self.name, given)}

    def payload(self, request: ModelRequest) -> Payload:
        """What the SDK is given for this request."""
        return to_payload(self._model, request)

    async def _open(self, request: ModelRequest) -> tuple[Events, Reader]:
        payload = self.payload(request)
        if headers := await self._headers():
            options: dict[str, Any] = dict(payload["config"].get("http_options") or {})  # Any: the SDK's own
            payload["config"]["http_options"] = {**options, "headers": {**options.get("headers", {}), **headers}}
        client, _ = await self._clients.get()
        answered: list[httpx2.Response] = []
        _answered.set(answered)
        models: Any = client.aio.models  # Any: its types name a package that need not be there
        stream: AsyncIterator[GenerateContentResponse] = await models.generate_content_stream(**payload)
        return _Responses(stream, answered), Reader([tool.name for tool in request.tools])

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, self._http.TransportError):
            return unreachable(self.name, error)
        if not isinstance(error, self._errors.APIError):
            return error
        details = mapping(getattr(error, "details", None))
        problem = mapping(details.get("error")) or details
        code: int | None = getattr(error, "code", None)
        message = text(problem.get("message")) or str(error)
        status = 401 if "API_KEY_INVALID" in str(problem) else code
        headers = {"retry-after": delay} if (delay := _retry_delay(problem)) else {}
        return refusal(
            self.name, message, status=status, kind=text(problem.get("status")), headers=headers, key=KEYS[0]
        )

    async def aclose(self) -> None:
        """Close this loop's connections; calls that are under way fail, and the model stays usable.

        Cancellation: the closing is cut.
        """
        await self._clients.aclose()


class _Responses:
    """The SDK's objects as plain JSON, and the response below them to close."""

    def __init__(self, stream: AsyncIterator[GenerateContentResponse], answered: list[httpx2.Response]) -> None:
        self._stream = stream
        self._answered = answered

    async def __aiter__(self) -> AsyncIterator[object]:
        async for response in self._stream:
            yield response.model_dump(mode="json", exclude_none=True)

    async def close(self) -> None:
        for response in self._answered:
            await response.aclose()


async def note_response(response: httpx2.Response) -> None:
    _answered.get([]).append(response)


async def _close(clients: tuple[Client, httpx2.AsyncClient]) -> None:
    client, http = clients
    client.close()
    await client.aio.aclose()
    await http.aclose()


def _retry_delay(error: object) -> str:
    """How long to wait, as Google says it: `retryDelay: "7s"` among the details."""
    delays = [text(mapping(detail).get("retryDelay")) for detail in items(mapping(error).get("details"))]
    return next((delay.removesuffix("s") for delay in delays if delay), "")
