"""Models behind OpenAI's chat completions: OpenAI itself, and every server that speaks the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelNotReady
from safepoint.models.extras import sdk
from safepoint.models.openai_wire import Payload, Reader, to_payload
from safepoint.models.per_loop import PerLoop
from safepoint.models.provider_errors import refusal, unreachable
from safepoint.models.thinking_back import server_of
from safepoint.models.untrusted_json import mapping, number, text
from safepoint.models.upstream import Events, Upstream
from safepoint.models.upstream import Reader as EventReader

if TYPE_CHECKING:
    from openai import AsyncOpenAI


# Who answers at an address, in the words of OpenTelemetry's conventions: what `gen_ai.provider.name` says.

OPENAI: Final = "openai"
_DOMAINS: Final = {
    "openai.com": OPENAI,
    "openai.azure.com": "azure.ai.openai",
    "deepseek.com": "deepseek",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}


def provider_at(base_url: str | None) -> str:
    """The provider's name in the conventions, or else the host's: they allow it, and nothing untrue is said."""
    if base_url is None:
        return OPENAI
    host = urlsplit(base_url).hostname or base_url
    return next((name for domain, name in _DOMAINS.items() if host == domain or host.endswith(f".{domain}")), host)


KEY = "OPENAI_API_KEY"


class OpenAIModel(Upstream):
    """A model by its name at OpenAI, or at the compatible server whose address is `base_url`.

    The key is `api_key`, or for OpenAI itself the variable `OPENAI_API_KEY`. A compatible server gets no key that was
    not handed in.
    """

    def __init__(
        self, model: str, *, api_key: str | None = None, base_url: str | None = None, name: str | None = None
    ) -> None:
        self._sdk: Any = sdk("openai", "openai")  # Any: the module, loaded by name
        self._model = model
        self._key = api_key
        self._base_url = base_url
        self._name = name or (f"{base_url}#{model}" if base_url is not None else f"openai:{model}")
        self._clients: PerLoop[AsyncOpenAI] = PerLoop(self._client, lambda client: client.close())

    @property
    def name(self) -> str:
        return self._name

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str:
        return provider_at(self._base_url)

    def _client(self) -> AsyncOpenAI:
        key = self._key or ("none" if self._base_url is not None else os.environ.get(KEY))
        if not key:
            raise ModelNotReady(f"{self.name} needs a key: type `export {KEY}=…`, or write api_key=…")
        client: AsyncOpenAI = self._sdk.AsyncOpenAI(api_key=key, base_url=self._base_url, max_retries=0)
        return client

    def payload(self, request: ModelRequest) -> Payload:
        """What is sent for this request."""
        limit = "max_tokens" if self._base_url is not None else "max_completion_tokens"
        return to_payload(self._model, request, limit=limit, server=server_of(self._base_url))

    async def _open(self, request: ModelRequest) -> tuple[Events, EventReader]:
        return await self._post("/chat/completions", self.payload(request)), Reader(server_of(self._base_url))

    async def _post(self, path: str, payload: Payload) -> Events:
        """Send it and wait for the response to begin. Cancellation: nothing stays open."""
        client = await self._clients.get()
        # Events as they came, not as the SDK's objects, which take what they get without looking at it.
        stream_type = self._sdk.AsyncStream[object]
        events: Events = await client.post(path, cast_to=object, body=payload, stream=True, stream_cls=stream_type)
        return events

    def _failure(self, error: Exception) -> Exception:
        return sdk_failure(self._sdk, self.name, error, KEY if self._base_url is None else "the model's api_key=…")

    async def aclose(self) -> None:
        """Close this loop's connections; calls that are under way fail, and the model stays usable.

        Cancellation: the closing is cut.
        """
        await self._clients.aclose()


def sdk_failure(sdk: Any, name: str, error: Exception, key: str) -> Exception:  # Any: the openai or anthropic module
    """What an error of the openai or the anthropic SDK means: both are made from one mould."""
    broken: Any = import_module("httpx2").TransportError  # a stream that breaks raises it as it came
    if isinstance(error, (sdk.APIConnectionError, broken)):
        return unreachable(name, error)
    if not isinstance(error, sdk.APIError):
        return error
    body = mapping(getattr(error, "body", None))
    told = mapping(body.get("error")) or body
    message = text(told.get("message")) or str(error)
    kind = text(told.get("code")) or text(told.get("type"))
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else number(told.get("code"))
    if status == 200:  # an error inside a stream that had begun well
        status = None
    headers: Mapping[str, str] | None = response.headers if response is not None else None
    return refusal(name, message, status=status, kind=kind, headers=headers, key=key)
