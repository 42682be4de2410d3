"""Who is compared, and the environment of each: `bench/.environments/<name>`, made with uv, or with venv and pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench" / ".environments"
OURS, FLOOR = "safepoint", "bare"
_SDK = "opentelemetry-sdk"
_QUIET = {
    "AGNO_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "OTEL_TRACES_EXPORTER": "none",
}


@dataclass(frozen=True, slots=True)
class Contestant:
    """`name` is that of its adapter. One without packages runs in the environment of this program."""

    name: str
    title: str
    packages: tuple[str, ...] = ()


CONTESTANTS = (
    Contestant(OURS, "Safepoint"),
    Contestant("pydantic_ai", "Pydantic AI", ("pydantic-ai-slim", _SDK)),
    Contestant("openai_agents", "OpenAI Agents", ("openai-agents",)),
    Contestant("strands", "Strands", ("strands-agents", _SDK)),
    Contestant("google_adk", "Google ADK", ("google-adk", "sqlalchemy", "aiosqlite", _SDK)),
    Contestant("langgraph", "LangGraph", ("langgraph",)),
    Contestant("agno", "Agno", ("agno", "openinference-instrumentation-agno", _SDK)),
    Contestant(FLOOR, "bare asyncio"),
)


class NotInstalled(Exception):
    """Why a peer cannot take part."""


def environment(contestant: Contestant, *, renew: bool) -> Path:
    """The Python of its environment, with the newest versions. `renew`: look for newer ones if it is there already."""
    if not contestant.packages:
        return Path(sys.executable)
    home = FOLDER / contestant.name
    python, ready = home / "bin" / "python", home / ".ready"
    if ready.exists() and not renew:
        return python
    uv = shutil.which("uv")
    if not python.exists():
        shutil.rmtree(home, ignore_errors=True)
        _run([uv, "venv", "-q", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"], str(home))
    install = (
        [uv, "pip", "install", "-q", "--python", str(python)] if uv else [str(python), "-m", "pip", "install", "-q"]
    )
    try:
        _run([*install, "--upgrade"], *contestant.packages)
    except NotInstalled:
        if not ready.exists():  # without a registry, what was installed before is measured; the report has its version
            raise
    ready.touch()
    return python


def variables() -> dict[str, str]:
    """The environment variables of a worker: telemetry off, and compiled modules kept."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | _QUIET


def _run(command: list[str], *arguments: str) -> None:
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason was given"]
        raise NotInstalled(lines[-1][:300])
