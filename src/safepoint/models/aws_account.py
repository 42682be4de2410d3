"""An AWS account, found as AWS tools find it, and the signature that each request to Bedrock needs.

Looking for it reads files, and may start a program, refresh a login or ask the machine's metadata service: seconds, or
for ever. So it is looked for before each request, in a daemon thread; what boto3 has found and is still valid it knows
at once. Signing is plain: it uses what was found last.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from safepoint.errors import ModelNotReady
from safepoint.models.daemon_call import in_daemon
from safepoint.models.extras import sdk

if TYPE_CHECKING:
    import httpx2


REGION: Final = "AWS_REGION"
_SERVICE: Final = "bedrock"


@dataclass(frozen=True, slots=True)
class _Found:
    region: str
    keys: Any  # Any: botocore's frozen credentials, if they were looked for


class AwsAccount:
    """`name`: of the model, for errors. `region`, `profile`: None looks for them too."""

    def __init__(self, name: str, region: str | None, profile: str | None) -> None:
        self._boto3: Any = sdk("boto3", "bedrock")  # Any: modules, loaded by name
        self._auth: Any = sdk("botocore.auth", "bedrock")
        self._requests: Any = sdk("botocore.awsrequest", "bedrock")
        self._problems: Any = sdk("botocore.exceptions", "bedrock")
        self._name = name
        self._region = region
        self._profile = profile
        self._session: Any = None  # Any: a boto3 session, which keeps what it has found
        self._making = threading.Lock()  # held in threads that look, never on a loop
        self._found: _Found | None = None

    @property
    def region(self) -> str:
        """Known once the account was found."""
        assert self._found is not None
        return self._found.region

    @property
    def known_region(self) -> str | None:
        return self._found.region if self._found is not None else self._region or os.environ.get(REGION)

    async def find(self, *, keys: bool) -> None:
        """The region, and if they are needed the keys. Raises `ModelNotReady`. Cancellation: only the waiting ends."""
        if keys or self._found is None:
            self._found = await in_daemon(f"the AWS account of {self._name}", partial(self._look, keys=keys))

    def sign(self, request: httpx2.Request) -> httpx2.Request:
        found = self._found
        assert found is not None
        # A proxy may strip this header, and the SDK's own way to say who asks is not ours.
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("connection", "authorization")
        }
        signed = self._requests.AWSRequest(request.method, str(request.url), headers, request.content)
        self._auth.SigV4Auth(found.keys, _SERVICE, found.region).add_auth(signed)
        request.headers.update(dict(signed.headers))
        return request

    def _look(self, *, keys: bool) -> _Found:
        try:
            with self._making:
                if self._session is None:
                    region = self._region or os.environ.get(REGION)  # boto3 knows only the other variable
                    self._session = self._boto3.Session(profile_name=self._profile, region_name=region)
            region, credentials = self._session.region_name, self._session.get_credentials() if keys else None
            frozen = credentials.get_frozen_credentials() if credentials is not None else None
        except self._problems.BotoCoreError as error:
            raise self._nothing(f"account ({error})") from error
        if region is None:
            raise ModelNotReady(f"{self._name} found no AWS region: type `export {REGION}=…`, or write region=…")
        if keys and frozen is None:
            raise self._nothing("account")
        return _Found(region, frozen)

    def _nothing(self, what: str) -> ModelNotReady:
        return ModelNotReady(
            f"{self._name} found no AWS {what}: type `aws configure`, or "
            f"`export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… {REGION}=…`"
        )
