"""Models on Google Cloud's Vertex AI: Gemini, and Claude."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safepoint.models.anthropic import AnthropicModel
from safepoint.models.credentials import ApiKey
from safepoint.models.extras import sdk
from safepoint.models.gemini import TIMEOUT, GeminiModel, note_response
from safepoint.models.google_account import GoogleAccount
from safepoint.models.openai import sdk_failure

if TYPE_CHECKING:
    import httpx2
    from google.genai import Client

PROVIDER = "gcp.vertex_ai"
_ACCOUNT = "the account: type `gcloud auth application-default login`"


def server_at(location: str) -> str:
    return f"https://{'' if location == 'global' else f'{location}-'}aiplatform.googleapis.com"


class _OnVertex:
    """The names and the address of a model on Vertex AI, whatever company made it."""

    _model: str
    _base_url: str | None
    _account: GoogleAccount

    @property
    def name(self) -> str:
        return f"vertex:{self._model}"

    @property
    def provider_name(self) -> str:
        return PROVIDER

    @property
    def server_url(self) -> str:
        return self._base_url or server_at(self._account.location)


class VertexModel(_OnVertex, GeminiModel):
    """A Gemini model by its name on Vertex AI.

    The account is found as Google's tools find it, unless `api_key` is a token or a function that returns one. The
    project is `project`, `GOOGLE_CLOUD_PROJECT` or the account's own; the location is `location`,
    `GOOGLE_CLOUD_LOCATION` or `global`.
    """

    def __init__(
        self,
        model: str,
        *,
        project: str | None = None,
        location: str | None = None,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
    ) -> None:
        super().__init__(model, base_url=base_url)
        self._account = GoogleAccount(self.name, project, location, api_key)
        self._tokens: Any = sdk("google.oauth2.credentials", "vertex")  # Any: the module, loaded by name
        # One object for all clients; its token is put in before each request, so that the SDK never looks for one.
        self._credentials: Any = self._tokens.Credentials("none")
        self._project = ""

    async def _headers(self) -> dict[str, str]:
        login = await self._account.find()
        self._credentials.token, self._project = login.token, login.project
        return {}

    def _client(self) -> tuple[Client, httpx2.AsyncClient]:
        http: httpx2.AsyncClient = self._http.AsyncClient(event_hooks={"response": [note_response]})
        options = {"base_url": self._base_url, "httpx_async_client": http, "timeout": TIMEOUT}
        client = self._sdk.Client(
            vertexai=True,
            project=self._project,
            location=self._account.location,
            credentials=self._credentials,
            http_options=options,
        )
        return client, http


class VertexClaudeModel(_OnVertex, AnthropicModel):
    """A Claude model by its name on Vertex AI; the account is found as for `VertexModel`."""

    def __init__(
        self,
        model: str,
        *,
        project: str | None = None,
        location: str | None = None,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        cache: bool = True,
    ) -> None:
        super().__init__(model, base_url=base_url, cache=cache)
        self._account = GoogleAccount(self.name, project, location, api_key)
        self._project = ""

    async def _headers(self) -> dict[str, str]:
        login = await self._account.find()
        self._project = login.project
        return {"Authorization": f"Bearer {login.token}"}

    def _client(self) -> Any:  # Any: of a class of its own, which the SDK does not export with the others
        return self._sdk.AsyncAnthropicVertex(
            project_id=self._project,
            region=self._account.location,
            access_token="none",
            base_url=self._base_url,
            max_retries=0,
        )

    def _failure(self, error: Exception) -> Exception:
        return sdk_failure(self._sdk, self.name, error, _ACCOUNT)


def vertex_model(model: str) -> VertexModel | VertexClaudeModel:
    """The class for the model of that name: Claude speaks Anthropic's messages there too."""
    return VertexClaudeModel(model) if model.startswith("claude") else VertexModel(model)
