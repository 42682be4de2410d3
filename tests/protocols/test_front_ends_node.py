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


def test_a_chat_is_answered_with_thoughts_and_words(address: str) -> None:
    seen = play("ui_page.mjs", "talk", address)
    assert [each for each in seen["first"] if not each.startswith("data")] == [
        "step-start:",
        "reasoning:done",
        "text:done",
    ]
    assert (seen["text"], seen["status"], seen["reasons"]) == ("you said hi", "ready", ["stop", "stop"])


def test_a_stopped_chat_has_every_part_closed_and_says_that_it_was_interrupted(address: str) -> None:
    seen = play("ui_page.mjs", "stop", address)
    assert seen["status"] == "cancelled"
    assert "text:done" in seen["closed"]
    assert "dynamic-tool:output-error" in seen["closed"]
    assert seen["receipt"]["reason"] == {"text": "lunch", "source": "user", "by": "user"}
    assert [entry["state"] for entry in seen["receipt"]["ledger"]] == ["cut"]
    assert seen["reasons"] == ["interrupted", "stop"]
    assert seen["text"] == "you said hi"


def test_a_chat_that_closes_its_request_stops_its_run_and_can_be_used_again(address: str) -> None:
    seen = play("ui_page.mjs", "abort", address)
    assert seen == {"aborted": True, "text": "you said hi", "status": "ready"}


def test_a_resumable_chat_comes_back_to_its_message_and_is_stopped_by_the_route(address: str) -> None:
    seen = play("ui_page.mjs", "resume", address)
    assert seen == {"same": True, "text": ["I begin and :done"], "status": "cancelled", "late": 204}


def test_an_approval_is_given_and_the_message_goes_on(address: str) -> None:
    seen = play("ui_page.mjs", "approve", address)
    assert seen["asked"][0] == "approval-requested"
    assert (seen["state"], seen["output"], seen["count"]) == ("output-available", "deleted", 2)
    assert "deleted" in seen["text"]


def test_a_run_that_fails_is_an_error_of_the_chat(address: str) -> None:
    seen = play("ui_page.mjs", "fail", address)
    assert (seen["status"], seen["error"]) == ("error", "ValueError: the model is broken")
