"""Claude, at Anthropic or on Amazon Bedrock."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelNotReady
from safepoint.models.anthropic_wire import Payload, Reader, to_payload
from safepoint.models.aws_account import AwsAccount
from safepoint.models.extras import sdk
from safepoint.models.openai import sdk_failure
from safepoint.models.per_loop import PerLoop
from safepoint.models.upstream import Events, Upstream

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.lib.bedrock import AsyncAnthropicBedrock

KEY = "ANTHROPIC_API_KEY"
BEARER = "AWS_BEARER_TOKEN_BEDROCK"


class AnthropicModel(Upstream):
    """A model by its name at Anthropic. The key is `api_key`, or the variable `ANTHROPIC_API_KEY`.

    `cache` marks instructions, tools and the conversation so far for the provider's prompt cache.
    """

    def __init__(
        self, model: str, *, api_key: str | None = None, base_url: str | None = None, cache: bool = True
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

    def _client(self) -> AsyncAnthropic | AsyncAnthropicBedrock:
        key = self._key or os.environ.get(KEY)
        if not key:
            raise ModelNotReady(f"{self.name} needs a key: type `export {KEY}=…`, or write api_key=…")
        client: AsyncAnthropic = self._sdk.AsyncAnthropic(api_key=key, base_url=self._base_url, max_retries=0)
        return client

    def payload(self, request: ModelRequest) -> Payload:
        """What is sent for this request."""
        return to_payload(self._model, request, cache=self._cache)

    async def _open(self, request: ModelRequest) -> tuple[Events, Reader]:
        payload = self.payload(request)
        client = await self._connected()
        stream_type = self._sdk.AsyncStream[object]
        events: Events = await client.post(
            "/v1/messages", cast_to=object, body=payload, stream=True, stream_cls=stream_type
        )
        return events, Reader()

    async def _connected(self) -> AsyncAnthropic | AsyncAnthropicBedrock:
        """Cancellation: there is nothing to wait for."""
        return await self._clients.get()

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
        api_key: str | None = None,
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
    def _bearer(self) -> str | None:
        return self._key or os.environ.get(BEARER) or None

    async def _connected(self) -> AsyncAnthropic | AsyncAnthropicBedrock:
        """With an account that is known to be there. Cancellation: only the waiting ends."""
        await self._account.find(keys=self._bearer is None)
        return await self._clients.get()

    def _client(self) -> AsyncAnthropic | AsyncAnthropicBedrock:
        key = self._bearer
        # The SDK would look for the account itself, in a pool whose threads hold the end of the loop. With a key it
        # does not, and its client signs what it sends.
        http = None if key is not None else self._sdk.DefaultAsyncHttpxClient(auth=self._account.sign)
        client: AsyncAnthropicBedrock = self._sdk.AsyncAnthropicBedrock(
            aws_region=self._account.region,
            aws_profile=self._profile if key is not None else None,
            api_key=key or "signed instead",
            base_url=self._base_url,
            http_client=http,
            max_retries=0,
        )
        return client

    def _failure(self, error: Exception) -> Exception:
        return sdk_failure(self._sdk, self.name, error, BEARER)
