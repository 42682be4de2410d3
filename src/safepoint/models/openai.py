"""Models behind OpenAI's chat completions: OpenAI itself, and every server that speaks the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelNotReady
from safepoint.models.credentials import ApiKey, current_key
from safepoint.models.extras import sdk
from safepoint.models.openai_wire import Payload, Reader, to_payload
from safepoint.models.per_loop import PerLoop
from safepoint.models.provider_errors import refusal, unreachable
from safepoint.models.providers import COMPATIBLE, PLAIN, Provider, provider_at
from safepoint.models.quirks import OPENAI_QUIRKS
from safepoint.models.thinking_back import server_of
from safepoint.models.untrusted_json import mapping, number, text
from safepoint.models.upstream import Events, Upstream
from safepoint.models.upstream import Reader as EventReader

if TYPE_CHECKING:
    from openai import AsyncOpenAI


KEY: Final = "OPENAI_API_KEY"
HANDED_IN: Final = "the model's api_key=…"


class OpenAIModel(Upstream):
    """A model by its name at OpenAI, at another `provider` of the table, or at the compatible server at `base_url`.

    The key is `api_key`, a str or a function that returns the current one, or else the provider's variable. A server at
    an address gets no key that was not handed in.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        name: str | None = None,
        provider: str | None = None,
    ) -> None:
        self._sdk: Any = sdk("openai", "openai")  # Any: the module, loaded by name
        self._model = model
        self._key = api_key
        self._row = _known(provider) if provider is not None else None
        self._base_url = base_url or (self._row.find_address() if self._row is not None else None)
        prefix = f"{provider or 'openai'}:" if self._row is not None or base_url is None else f"{base_url}#"
        self._name = name or f"{prefix}{model}"
        self._quirks = self._row.quirks if self._row is not None else OPENAI_QUIRKS if base_url is None else PLAIN
        self._clients: PerLoop[AsyncOpenAI] = PerLoop(self._client, lambda client: client.close())

    @property
    def name(self) -> str:
        return self._name

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str:
        return self._row.otel if self._row is not None else provider_at(self._base_url)

    @property
    def server_url(self) -> str:
        """Where requests go, for spans."""
        return self._base_url or "https://api.openai.com/v1"

    def _client(self) -> AsyncOpenAI:
        # The key goes with each request: it may be another one next time.
        client: AsyncOpenAI = self._sdk.AsyncOpenAI(api_key="none", base_url=self._base_url, max_retries=0)
        return client

    async def _authorization(self) -> dict[str, str]:
        """The header that says who asks. Raises `ModelNotReady`. Cancellation: cuts the user's function."""
        if self._key is not None:
            key = await current_key(self.name, self._key)
        elif self._row is not None:
            key = self._row.find_key(self.name)
        elif self._base_url is not None:
            key = "none"
        elif not (key := os.environ.get(KEY, "")):
            raise ModelNotReady(f"{self.name} needs a key: type `export {KEY}=…`, or write api_key=…")
        return {"Authorization": f"Bearer {key}"}

    def payload(self, request: ModelRequest) -> Payload:
        """What is sent for this request."""
        return to_payload(self._model, request, quirks=self._quirks, server=server_of(self._base_url), name=self.name)

    async def _open(self, request: ModelRequest) -> tuple[Events, EventReader]:
        return await self._post("/chat/completions", self.payload(request)), Reader(server_of(self._base_url))

    async def _post(self, path: str, payload: Payload) -> Events:
        """Send it and wait for the response to begin. Cancellation: nothing stays open."""
        headers = await self._authorization()
        client = await self._clients.get()
        # Events as they came, not as the SDK's objects, which take what they get without looking at it.
        stream_type = self._sdk.AsyncStream[object]
        options: Any = {"headers": headers}  # Any: the SDK's own
        events: Events = await client.post(
            path, cast_to=object, body=payload, options=options, stream=True, stream_cls=stream_type
        )
        return events

    def _failure(self, error: Exception) -> Exception:
        variable = self._row.key if self._row is not None else KEY if self._base_url is None else ""
        return sdk_failure(self._sdk, self.name, error, variable if self._key is None and variable else HANDED_IN)

    async def aclose(self) -> None:
        """Close this loop's connections; calls that are under way fail, and the model stays usable.

        Cancellation: the closing is cut.
        """
        await self._clients.aclose()


def _known(provider: str) -> Provider:
    row = COMPATIBLE.get(provider)
    if row is None:
        raise ValueError(f"provider={provider!r}: write one of {', '.join(COMPATIBLE)}")
    return row


def sdk_failure(sdk: Any, name: str, error: Exception, key: str) -> Exception:  # Any: the openai or anthropic module
    """What an error of the openai or the anthropic SDK means: both are made from one mould."""
    broken: Any = import_module("httpx2").TransportError  # a stream that breaks raises it as it came
    if isinstance(error, (sdk.APIConnectionError, broken)):
        return unreachable(name, error)
    if not isinstance(error, sdk.APIError):
        return error
    answered: object = getattr(error, "body", None)  # some providers answer with a bare sentence
    body = mapping(answered)
    problem = mapping(body.get("error")) or body
    said = text(problem.get("message")) or text(answered) or text(body.get("detail"))
    message = said or (f"{dict(body)!r:.500}" if body else str(error))
    kind = text(problem.get("code")) or text(problem.get("type"))
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else number(problem.get("code"))
    if status == 200:  # an error inside a stream that had begun well
        status = None
    headers: Mapping[str, str] | None = response.headers if response is not None else None
    return refusal(name, message, status=status, kind=kind, headers=headers, key=key)
