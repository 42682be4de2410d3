"""Gemini and Claude on Vertex AI, over real sockets and with Google's own search for an account."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Generator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from safepoint import Agent, check_history, tool
from safepoint.agent.events import ReasoningStreamed, TextStreamed
from safepoint.agent.model import Model
from safepoint.errors import ModelNotReady
from safepoint.models import VertexClaudeModel, VertexModel, choose_model
from tests.models import anthropic_stream, gemini_stream
from tests.models.raw_server import RawServer, answer, fall_silent, raw_server, say, stream

LONG = 20.0
TEXT = "Once upon a time in Łódź."


@tool(effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"sunny in {place}"


@pytest.fixture(autouse=True)
def _no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "GEMINI_", "CLOUDSDK_", "ANTHROPIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


class Issuer:
    """Google's token service on this machine; each token is a new one. `waits`: it never answers."""

    def __init__(self) -> None:
        self.issued = 0
        self.waits = threading.Event()
        self.released = threading.Event()

    def serve(self) -> ThreadingHTTPServer:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                if issuer.waits.is_set():
                    issuer.released.wait()
                issuer.issued += 1
                body = json.dumps({"access_token": f"token{issuer.issued}", "expires_in": 3600}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Issuer]:
    """A service account in a file, as Google hands them out, whose tokens come from this machine."""
    issuer = Issuer()
    with issuer.serve() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        secret = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account",
            "project_id": "file-project",
            "private_key_id": "1",
            "private_key": secret.decode(),
            "client_email": "me@file-project.iam.gserviceaccount.com",
            "token_uri": f"http://127.0.0.1:{server.server_port}/token",
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        yield issuer
        issuer.released.set()
        server.shutdown()


Make = Callable[..., Model]
GEMINI = "google/models/gemini-3-pro:streamGenerateContent"
CLAUDE = "anthropic/models/claude:streamRawPredict"
KINDS: dict[str, tuple[Make, Sequence[Any], Sequence[Any], str]] = {  # Any: JSON
    "gemini": (VertexModel, gemini_stream.ANSWER, gemini_stream.CALLS, GEMINI),
    "claude": (VertexClaudeModel, anthropic_stream.ANSWER, anthropic_stream.CALLS, CLAUDE),
}
NAMES = {"gemini": "gemini-3-pro", "claude": "claude"}
EACH = pytest.mark.parametrize("kind", KINDS)


def model(kind: str, server: RawServer, **options: Any) -> Model:  # Any: options of either class
    return KINDS[kind][0](NAMES[kind], base_url=server.address + ("/v1" if kind == "claude" else ""), **options)


def whole(events: Sequence[Any]) -> bytes:
    return stream(events, chunked=True)


@EACH
def test_a_run_with_calls_uses_the_account_that_google_finds(kind: str, issuer: Issuer) -> None:
    _, words, calls, path = KINDS[kind]

    async def main() -> None:
        async with raw_server(say(whole(calls)), say(whole(words))) as server, asyncio.timeout(LONG):
            agent = Agent("a", model=model(kind, server, location="europe-west1"), tools=[look], retries=0)
            result = await agent.run("go")
        assert (result.text, result.error) == (TEXT, None)
        check_history(result.messages)
        assert f"/projects/file-project/locations/europe-west1/publishers/{path}" in server.heads[0]
        assert [head.lower().count("authorization: bearer token1") for head in server.heads] == [1, 1]
        assert issuer.issued == 1, "a token that is still valid was asked for again"

    asyncio.run(main())


@EACH
def test_a_function_is_asked_for_the_token_of_every_request(kind: str) -> None:
    _, words, calls, _ = KINDS[kind]
    tokens = iter(["first", "second"])

    async def token() -> str:
        await asyncio.sleep(0)
        return next(tokens)

    async def main() -> None:
        async with raw_server(say(whole(calls)), say(whole(words))) as server, asyncio.timeout(LONG):
            agent = Agent("a", model=model(kind, server, project="p", api_key=token), tools=[look], retries=0)
            assert (await agent.run("go")).text == TEXT
        for head, expected in zip(server.heads, ("first", "second"), strict=True):
            assert f"authorization: bearer {expected}" in head.lower()
            assert "/projects/p/locations/global/" in head

    asyncio.run(main())


@EACH
def test_a_search_for_an_account_that_hangs_holds_neither_a_stop_nor_the_loop(kind: str, issuer: Issuer) -> None:
    issuer.waits.set()

    async def main() -> None:
        async with raw_server(say(b"")) as server, asyncio.timeout(LONG):
            async with Agent("a", model=model(kind, server)).start("go") as run:
                await asyncio.sleep(0)
                assert await run.cancel().wait() == "stopped"
            assert server.heads == []

    asyncio.run(main())


@EACH
def test_now_closes_the_connection(kind: str) -> None:
    words = KINDS[kind][1]

    async def main() -> None:
        data = whole(words[: len(words) // 2]).removesuffix(b"0\r\n\r\n")
        async with raw_server(fall_silent(data)) as server, asyncio.timeout(LONG):
            async with Agent("a", model=model(kind, server, project="p", api_key="t")).start("go") as run:
                async for event in run.events():
                    if isinstance(event, TextStreamed | ReasoningStreamed):
                        run.cancel()
            await server.idle.wait()
        check_history(run.result.messages)

    asyncio.run(main())


@EACH
def test_what_is_missing_is_said_in_words_to_type(kind: str) -> None:
    async def failure(**options: Any) -> str:  # Any: as above
        async with raw_server(say(answer(401, {"error": {"code": 401, "message": "bad token"}}))) as server:
            agent = Agent("a", model=model(kind, server, **options), retries=0)
            async with agent.start("go") as run:
                await run.wait()
        assert isinstance(run.result.error, ModelNotReady), run.result.error
        return str(run.result.error)

    assert "gcloud auth application-default login" in asyncio.run(failure())
    assert "export GOOGLE_CLOUD_PROJECT=" in asyncio.run(failure(api_key="t"))
    assert "bad token" in asyncio.run(failure(api_key="t", project="p"))
    assert "returned NoneType instead of a token" in asyncio.run(failure(api_key=lambda: None, project="p"))


def test_a_string_chooses_the_class_by_the_models_name() -> None:
    assert isinstance(choose_model("vertex:gemini-3-pro"), VertexModel)
    assert isinstance(choose_model("vertex:claude-sonnet-4-5"), VertexClaudeModel)
    assert choose_model("vertex:claude-sonnet-4-5").name == "vertex:claude-sonnet-4-5"
