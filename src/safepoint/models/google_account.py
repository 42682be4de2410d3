"""A Google Cloud account, found as Google's tools find it: the project, and a token that is still valid.

Looking for it reads files, and may ask the machine's metadata service or exchange a token: seconds, or for ever. So it
is looked for before each request, in a daemon thread; a token that is still valid is known at once.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Final

from safepoint.errors import ModelNotReady
from safepoint.models.credentials import ApiKey, current_key
from safepoint.models.daemon_call import in_daemon
from safepoint.models.extras import sdk
from safepoint.models.provider_errors import unreachable

PROJECT: Final = "GOOGLE_CLOUD_PROJECT"
LOCATION: Final = "GOOGLE_CLOUD_LOCATION"
_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)


@dataclass(frozen=True, slots=True)
class GoogleLogin:
    project: str
    token: str


class GoogleAccount:
    """`name`: of the model, for errors. `token`: a token or a function; None looks for the default credentials."""

    def __init__(self, name: str, project: str | None, location: str | None, token: ApiKey | None) -> None:
        self._auth: Any = sdk("google.auth", "vertex")  # Any: modules, loaded by name
        self._transport: Any = sdk("google.auth.transport.requests", "vertex")
        self._problems: Any = sdk("google.auth.exceptions", "vertex")
        self._name = name
        self._project = project
        self._token = token
        self.location = location or os.environ.get(LOCATION) or "global"
        self._credentials: Any = None  # Any: Google's, of many kinds
        self._found_project: str | None = None
        self._looking = threading.Lock()  # held in threads that look, never on a loop

    async def find(self) -> GoogleLogin:
        """The project and a token. Raises `ModelNotReady`. Cancellation: only the waiting ends."""
        if self._token is not None:
            token, found = await current_key(self._name, self._token), None
        else:
            token, found = await in_daemon(f"the Google account of {self._name}", self._look)
        project = self._project or os.environ.get(PROJECT) or found
        if not project:
            raise ModelNotReady(f"{self._name} needs a project: type `export {PROJECT}=…`, or write project=…")
        return GoogleLogin(project, token)

    def _look(self) -> tuple[str, str | None]:
        try:
            with self._looking:
                if self._credentials is None:
                    self._credentials, self._found_project = self._auth.default(scopes=_SCOPES)
                if not self._credentials.valid:
                    self._credentials.refresh(self._transport.Request())
                return str(self._credentials.token), self._found_project
        except self._problems.TransportError as error:
            raise unreachable(self._name, error) from error
        except self._problems.GoogleAuthError as error:
            raise ModelNotReady(
                f"{self._name} found no Google account ({error}): type `gcloud auth application-default login`, "
                "or write api_key=… with a token or a function that returns one"
            ) from error
