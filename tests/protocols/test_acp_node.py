"""The same promises, seen by the client of the protocol's JavaScript package. `make test-protocols` installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.editor import APP, ROOT

PACKAGES = ROOT / "build" / "protocols"
PATIENCE = 90.0

pytestmark = [pytest.mark.protocols, pytest.mark.timeout(120)]


def play(scene: str, folder: Path) -> dict[str, Any]:  # Any: JSON
    """What the editor saw."""
    assert (PACKAGES / "node_modules").is_dir(), "the JavaScript clients are not installed: run `make test-protocols`"
    store = f"sqlite:{folder / 'editor.db'}"
    command = [sys.executable, "-m", "safepoint", "acp", APP, "--store", store]
    done = subprocess.run(
        ["node", str(ROOT / "tests" / "protocols" / "acp_editor.mjs"), scene, *command],
        cwd=ROOT,
        env={**os.environ, "ACP_PACKAGES": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)  # Any: JSON
    assert found.pop("code") == 0
    return found


def test_a_cancel_in_a_stream_a_task_and_a_thread_is_answered_cancelled_and_the_next_prompt_runs(
    tmp_path: Path,
) -> None:
    seen = play("cancel", tmp_path)
    assert seen["answers"] == ["cancelled", "cancelled", "cancelled", "end_turn"]
    assert seen["text"] == "I begin and As you wish. As you wish. you said hi"
    assert [each for each in seen["statuses"] if each in ("completed", "failed")] == ["failed", "failed"]


def test_an_aborted_request_stops_the_turn_and_the_next_prompt_runs(tmp_path: Path) -> None:
    assert play("takeBack", tmp_path) == {"first": "cancelled", "then": "end_turn"}


def test_a_permission_is_given_refused_and_cancelled(tmp_path: Path) -> None:
    seen = play("permission", tmp_path)
    assert seen["answers"] == ["end_turn", "end_turn", "cancelled"]
    assert seen["statuses"] == ["completed", "failed", "failed"]
    assert "As you wish. deleted" in seen["text"]


def test_a_session_is_replayed_listed_and_closed(tmp_path: Path) -> None:
    seen = play("replay", tmp_path)
    assert seen == {"first": "end_turn", "same": True, "titles": ["say hi"], "closed": -32602}
