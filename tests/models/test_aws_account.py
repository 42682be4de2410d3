"""Where the account of Bedrock is looked for: never on the loop, and a search that hangs holds nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent
from safepoint.errors import ModelNotReady
from safepoint.models import BedrockModel
from safepoint.models.extras import sdk
from tests.models.anthropic_stream import ANSWER, bedrock_stream
from tests.models.raw_server import RawServer, raw_server, say

auth: Any = sdk("botocore.auth", "bedrock")  # Any: loaded as the model loads them
awsrequest: Any = sdk("botocore.awsrequest", "bedrock")
credentials: Any = sdk("botocore.credentials", "bedrock")

LONG = 50.0
TEXT = "Once upon a time in Łódź."


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without an account; what it returns is AWS's file of settings, to be written."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def hanging(nobody: Path, tmp_path: Path) -> Iterator[Path]:
    """An account that a program is to tell, and it never does; the file has the program's id once it runs."""
    pid, program = tmp_path / "pid", tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 600\n")
    program.chmod(0o700)
    nobody.write_text(f"[default]\nregion = eu-north-1\ncredential_process = {program}\n")
    yield pid
    os.kill(int(pid.read_text()), signal.SIGKILL)


def model(server: RawServer) -> BedrockModel:
    return BedrockModel("claude", base_url=server.address)


def is_signed(head: str, body: bytes, keys: Any, region: str) -> bool:  # Any: botocore's
    """Computed again from what has arrived."""
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    told = headers.pop("authorization")
    signed = told.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    request = awsrequest.AWSRequest(
        method, f"http://{headers['host']}{path}", {name: headers[name] for name in signed}, body
    )
    request.context["timestamp"] = headers["x-amz-date"]
    signer = auth.SigV4Auth(keys, "bedrock", region)
    right = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return told.endswith(f"Signature={right}") and {"host", "x-amz-date"} <= set(signed)


def test_each_request_is_signed_for_the_account_and_the_region_that_were_found(nobody: Path) -> None:
    nobody.write_text(
        "[default]\nregion = eu-north-1\naws_access_key_id = AK\naws_secret_access_key = SK\naws_session_token = ST\n"
    )

    async def main() -> None:
        async with raw_server(say(bedrock_stream(ANSWER))) as server:
            result = await Agent("a", model=model(server), retries=0).run("go")
            assert result.text == TEXT
        (head,), (body,) = server.heads, server.bodies
        assert "x-amz-security-token: st\r\n" in head.lower()
        assert "Bearer" not in head
        keys = credentials.Credentials("AK", "SK", "ST")
        assert is_signed(head, body, keys, "eu-north-1")
        assert not is_signed(head, body + b" ", keys, "eu-north-1")

    asyncio.run(main())


PROGRAM = """
import asyncio, os, time
from safepoint import Agent

async def main():
    async with Agent("a", model="bedrock:claude").start("go") as run:
        while not os.path.exists({pid!r}):  # on the loop, while the search hangs
            await asyncio.sleep(0.01)
        asked = time.monotonic()
        await run.cancel().wait()
        print("stopped", "at once" if time.monotonic() - asked < 1 else "late")

asyncio.run(main())
"""


def test_a_search_that_hangs_holds_neither_the_loop_nor_a_stop_nor_the_end_of_the_process(hanging: Path) -> None:
    program = [sys.executable, "-c", PROGRAM.format(pid=str(hanging))]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=LONG, check=True)
    assert (ended.stdout, ended.stderr) == ("stopped at once\n", "")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("", "found no AWS region: type `export AWS_REGION=…`, or write region=…"),
        ("[default]\nregion = eu-north-1\n", "found no AWS account: type `aws configure`"),
        ("[default]\nregion = eu-north-1\ncredential_process = false\n", "found no AWS account (Error when retrieving"),
    ],
    ids=["nothing", "a region", "a program that fails"],
)
def test_what_is_missing_is_said_in_words_to_type(nobody: Path, settings: str, told: str) -> None:
    nobody.write_text(settings)

    async def main() -> None:
        async with Agent("a", model="bedrock:claude", retries=0).start("go") as run:
            await run.wait()
        assert isinstance(run.result.error, ModelNotReady), run.result.error
        assert f"bedrock:claude {told}" in str(run.result.error)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_bedrock_key_needs_no_account_and_the_region_of_the_environment(
    name: str, nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody.write_text("[default]\nregion = us-east-1\ncredential_process = false\n")
    monkeypatch.setenv(name, "eu-north-1")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "secret")

    async def main() -> None:
        async with raw_server(say(bedrock_stream(ANSWER))) as server:
            assert (await Agent("a", model=model(server), retries=0).run("go")).text == TEXT
        assert "authorization: bearer secret\r\n" in server.heads[0].lower()

    asyncio.run(main())
