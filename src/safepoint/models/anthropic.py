"""Claude, at Anthropic or on Amazon Bedrock."""

from __future__ import annotations

import os
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any

from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelNotReady
from safepoint.models.anthropic_wire import Payload, Reader, to_payload
from safepoint.models.aws_account import AwsAccount
from safepoint.models.credentials import ApiKey, current_key
from safepoint.models.extras import sdk
from safepoint.models.openai import sdk_failure
from safepoint.models.per_loop import PerLoop
from safepoint.models.upstream import Events, Upstream

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic
    from anthropic.lib.bedrock import AsyncAnthropicBedrock

KEY = "ANTHROPIC_API_KEY"
BEARER = "AWS_BEARER_TOKEN_BEDROCK"


# The SDK writes its own `Authorization` over the header of a request; what comes after it is the HTTP client.
_bearer_token: ContextVar[str] = ContextVar("safepoint_bedrock_token")


def _bear(request: httpx2.Request) -> httpx2.Request:
    request.headers["Authorization"] = f"Bearer {_bearer_token.get()}"
    return request


class AnthropicModel(Upstream):
    """A model by its name at Anthropic.

    The key is `api_key`, a str or a function that returns the current one, or else the variable `ANTHROPIC_API_KEY`.

    `cache` marks instructions, tools and the conversation so far for the provider's prompt cache.
    """

    def __init__(
        self, model: str, *, api_key: ApiKey | None = None, base_url: str | None = None, cache: bool = True
    ) -> None:
        self._sdk: Any = sdk("anthropic", "anthropic")  # Any: the module, loaded by name
        self._model = model
        self._key = api_key
        self._base_url = base_url
        self._cache = cache
        self._clients: PerLoop[AsyncAnthropic | AsyncAnthropicBedrock]
        self._clients = PerLoop(self._client, lambda client: client.close())

    @property
    def name(self) -> str:
        return f"anthropic:{self._model}"

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str:
        return "anthropic"

    @property
    def server_url(self) -> str:
        """Where requests go, for spans."""
        return self._base_url or "https://api.anthropic.com"

    def _client(self) -> AsyncAnthropic | AsyncAnthropicBedrock:
        # The key goes with each request: it may be another one next time.
        client: AsyncAnthropic = self._sdk.AsyncAnthropic(api_key="none", base_url=self._base_url, max_retries=0)
        return client

    def payload(self, request: ModelRequest) -> Payload:
        """What is sent for this request."""
        return to_payload(self._model, request, cache=self._cache)

    async def _open(self, request: ModelRequest) -> tuple[Events, Reader]:
        payload = self.payload(request)
        options: Any = {"headers": await self._headers()}  # Any: the SDK's own
        client = await self._clients.get()
        stream_type = self._sdk.AsyncStream[object]
        events: Events = await client.post(
            "/v1/messages", cast_to=object, body=payload, options=options, stream=True, stream_cls=stream_type
        )
        return events, Reader()

    async def _headers(self) -> dict[str, str]:
        """The headers that say who asks. Raises `ModelNotReady`. Cancellation: cuts the user's function."""
        given = self._key or os.environ.get(KEY)
        if not given:
            raise ModelNotReady(f"{self.name} needs a key: type `export {KEY}=…`, or write api_key=…")
        return {"X-Api-Key": await current_key(self.name, given)}

    def _failure(self, error: Exception) -> Exception:
        return sdk_failure(self._sdk, self.name, error, KEY)

    async def aclose(self) -> None:
        """Close this loop's connections; calls that are under way fail, and the model stays usable.

        Cancellation: the closing is cut.
        """
        await self._clients.aclose()


class BedrockModel(AnthropicModel):
    """A model of Anthropic's by its name on Amazon Bedrock.

    The account is found as AWS tools find it: variables, `~/.aws`, the role of the machine; `profile` chooses one. With
    `api_key`, or the variable `AWS_BEARER_TOKEN_BEDROCK`, a Bedrock key is used instead.
    """

    def __init__(
        self,
        model: str,
        *,
        region: str | None = None,
        profile: str | None = None,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        cache: bool = True,
    ) -> None:
        super().__init__(model, api_key=api_key, base_url=base_url, cache=cache)
        self._profile = profile
        self._account = AwsAccount(self.name, region, profile)

    @property
    def name(self) -> str:
        return f"bedrock:{self._model}"

    @property
    def provider_name(self) -> str:
        return "aws.bedrock"

    @cached_property
    def _bearer(self) -> ApiKey | None:
        return self._key or os.environ.get(BEARER) or None

    @property
    def server_url(self) -> str:
        return self._base_url or f"https://bedrock-runtime.{self._account.known_region or 'unknown'}.amazonaws.com"

    async def _headers(self) -> dict[str, str]:
        """With an account that is known to be there. Cancellation: only the waiting ends."""
        await self._account.find(keys=self._bearer is None)
        if self._bearer is not None:
            _bearer_token.set(await current_key(self.name, self._bearer))
        return {}

    def _client(self) -> AsyncAnthropic | AsyncAnthropicBedrock:
        key = self._bearer
        # The SDK would look for the account itself, in a pool whose threads hold the end of the loop. With a key it
        # does not, and its client signs what it sends.
        http = self._sdk.DefaultAsyncHttpxClient(auth=self._account.sign if key is None else _bear)
        client: AsyncAnthropicBedrock = self._sdk.AsyncAnthropicBedrock(
            aws_region=self._account.region,
            aws_profile=self._profile if key is not None else None,
            api_key="none" if key is not None else "signed instead",
            base_url=self._base_url,
            http_client=http,
            max_retries=0,
        )
        return client

    def _failure(self, error: Exception) -> Exception:
        return sdk_failure(self._sdk, self.name, error, BEARER)
