"""The protocol's own conformance runner against `/mcp` of a real server.

It has 30 scenarios. These fit any server; the others call tools, prompts and resources of fixed names and contents, and
none is about cancellation.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.server.server_process import ServerProcess

NODE = ROOT / "build" / "protocols" / "node_modules"
SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-error",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)

pytestmark = pytest.mark.protocols


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("served"), apps=Path(__file__).parent / "apps") as running:
        yield running


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_conformance_runner_finds_nothing_wrong(served: ServerProcess, scenario: str) -> None:
    runner = NODE / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    assert runner.exists(), "run `make test-protocols`, which installs it"
    address = f"http://127.0.0.1:{served.port}/mcp"
    done = subprocess.run(
        [NODE / ".bin" / "node", runner, "server", "--url", address, "--scenario", scenario],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    passed = re.search(r"Passed: (\d+)/(\d+), (\d+) failed", done.stdout)
    assert passed is not None, done.stdout + done.stderr
    assert int(passed[1]) == int(passed[2]) > 0, done.stdout
