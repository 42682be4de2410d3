"""The servers that are measured, each in a process of its own: `python -m bench.served PORT memory|sqlite FOLDER`.

Google's ADK is measured beside it where SAFEPOINT_BENCH_ADK names a Python that has it. Its agent is as instant.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.load import Connection, request
from bench.models import InstantModel

ADK = "SAFEPOINT_BENCH_ADK"
_PATIENCE = 60.0
_ADK_AGENT = """
from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

class Instant(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="done")]))

root_agent = Agent(name="instant", model=Instant(model="instant"))
"""
_ADK_SERVER = """
import logging, sys, uvicorn
from google.adk.cli.fast_api import get_fast_api_app
port, store, folder = sys.argv[1:]
uri = "memory://" if store == "memory" else f"sqlite:///{folder}/adk.db"
app = get_fast_api_app(agents_dir=f"{folder}/agents", session_service_uri=uri, web=False)
logging.disable(logging.WARNING)
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    name: str
    port: int
    pid: int


@contextmanager
def safepoint_server(store: str, folder: Path) -> Generator[Running]:
    with _process("Safepoint", [sys.executable, "-m", "bench.served"], store, folder) as running:
        yield running


@contextmanager
def adk_server(store: str, folder: Path) -> Generator[Running | None]:
    """None where there is no ADK to compare with."""
    python = os.environ.get(ADK)
    if python is None:
        yield None
        return
    agent = folder / "agents" / "instant" / "agent.py"
    agent.parent.mkdir(parents=True, exist_ok=True)
    agent.write_text(_ADK_AGENT)
    (agent.parent / "__init__.py").write_text("from . import agent\n")
    with _process("ADK", [python, "-c", _ADK_SERVER], store, folder) as running:
        yield running


@contextmanager
def _process(name: str, command: list[str], store: str, folder: Path) -> Generator[Running]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, str(port), store, str(folder)], stdout=log, stderr=log)
    try:
        _wait(process, port, folder / f"{name}.log")
        yield Running(name, port, process.pid)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            return asyncio.run(_look(port))
        time.sleep(0.1)
    raise RuntimeError(f"the server did not begin: {log.read_text()[-2000:]}")


async def _look(port: int) -> None:
    connection = await Connection.open(port)
    await connection.ask(request("GET", "/health"))
    connection.close()


def main(port: str, store: str, folder: str) -> None:
    """The process that is measured."""
    from safepoint import Agent, tool
    from safepoint.server import Limits, ServerConfig, create_app, serve
    from safepoint.sessions import SqliteStore

    @tool
    def block() -> None:
        """Block a thread."""
        time.sleep(1.0)

    agents = {
        "instant": Agent("instant", model=InstantModel()),
        "blocking": Agent("blocking", model=InstantModel("block"), tools=[block]),
    }
    config = ServerConfig(limits=Limits(live_runs=64))
    if store == "memory":
        app = create_app(agents, config=config)
    else:
        kept = SqliteStore(Path(folder) / "safepoint.db")
        app = create_app(agents, store=kept, config=config)
    serve(app, port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
