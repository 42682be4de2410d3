"""The front ends' protocols, seen by the clients that other people wrote. `make test-protocols` installs them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from safepoint.server import create_app
from tests.protocols.editor import ROOT
from tests.protocols.editor_app import agent
from tests.server.in_process import ThreadServer

PACKAGES = ROOT / "build" / "protocols"
PATIENCE = 90.0

pytestmark = [pytest.mark.protocols, pytest.mark.timeout(120)]


@pytest.fixture
def address(tmp_path: Path) -> Generator[str]:
    """Of a server with the app that does what the first word of a message says."""
    server = ThreadServer(tmp_path, lambda _: create_app({"editor": agent}))
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.kill()


def play(page: str, *arguments: str) -> Any:  # Any: JSON
    """What the page saw."""
    assert (PACKAGES / "node_modules").is_dir(), "the JavaScript clients are not installed: run `make test-protocols`"
    done = subprocess.run(
        ["node", str(ROOT / "tests" / "protocols" / page), *arguments],
        cwd=ROOT,
        env={**os.environ, "PACKAGES": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", ["1", "0"])
def test_two_messages_are_answered_with_thoughts_and_words(version: str, address: str) -> None:
    seen = play("ag_ui_page.mjs", version, "talk", address)
    assert seen["failed"] == [None, None]
    assert {"REASONING_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "RUN_FINISHED"} <= set(seen["first"])
    assert seen["outcome"] == {"type": "success"}


@pytest.mark.parametrize("version", ["1", "0"])
def test_a_stop_is_told_in_the_clients_own_words_and_leaves_no_dangling_call(version: str, address: str) -> None:
    seen = play("ag_ui_page.mjs", version, "stop", address)
    assert seen["status"] == "cancelled"
    if version == "1":
        assert (seen["last"]["type"], seen["last"]["outcome"]) == ("RUN_FINISHED", {"type": "cancelled"})
    else:
        assert (seen["last"]["type"], seen["last"]["code"]) == ("RUN_ERROR", "abort")
    assert seen["dangling"] == 0
    assert seen["next"] == "RUN_FINISHED"


@pytest.mark.parametrize("version", ["1", "0"])
def test_after_an_abort_of_the_request_the_next_message_is_answered(version: str, address: str) -> None:
    seen = play("ag_ui_page.mjs", version, "abort", address)
    assert seen == {"types": True, "next": "RUN_FINISHED", "failed": None}


@pytest.mark.parametrize("version", ["1", "0"])
def test_an_interrupt_is_answered_by_resume(version: str, address: str) -> None:
    seen = play("ag_ui_page.mjs", version, "interrupt", address)
    assert seen == {"reason": "input_required", "failed": None, "last": "RUN_FINISHED"}
