"""`make release-check`: what would be uploaded is built, installed in clean environments, imported, served, talked to.

The wheel is also built from the sdist, and has to hold the same files. Each extra is installed alone, into an
environment with nothing else in it: a name that leans on what another extra happens to install fails here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
BETWEEN_LOOKS = 0.1

# What has to work with an extra alone; the empty one is the bare package.
WORKS = {
    "": "from safepoint import Agent, TurnLoop, Parallel; from safepoint.testing import ScriptedModel, say; "
    "assert Agent('a', model=ScriptedModel(say('hi'))).run_sync('go').text == 'hi'",
    "acp": "from safepoint.cli.main import app; from safepoint.protocols.acp.agent import AcpAgent",
    "all": "import safepoint.server, safepoint.models, safepoint.tools",
    "anthropic": "from safepoint import Agent; Agent('a', model='anthropic:m')",
    "bedrock": "from safepoint import Agent; Agent('a', model='bedrock:m')",
    "cli": "from safepoint.cli.main import app; from safepoint.cli.chat.program import ChatProgram",
    "fetch": "from safepoint.tools import fetch; fetch()",
    "gemini": "from safepoint import Agent; Agent('a', model='gemini:m')",
    "local": "from safepoint.models import LocalModel; LocalModel()",
    "mcp": "from safepoint.tools import mcp_tools",
    "openai": "from safepoint import Agent; Agent('a', model='openai:m')",
    "postgres": "import psycopg; from safepoint.storage.postgres.storage import PostgresStorage; "
    "PostgresStorage('postgresql://nobody@localhost/none')",
    "process": "from safepoint.tools import shell; shell()",
    "server": "from safepoint.server import create_app, serve",
    "telemetry": "import opentelemetry.trace, safepoint",
    "vertex": "from safepoint.models import VertexClaudeModel, VertexModel; VertexModel('m'); VertexClaudeModel('m')",
}
KEYS = {f"{name}_API_KEY": "none" for name in ("OPENAI", "ANTHROPIC", "GEMINI")}


def main() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    extras -= {"dev", "docs"}  # for those who work on Safepoint
    assert extras | {""} == set(WORKS), f"say in WORKS what works with {sorted(extras ^ set(WORKS) - {''})}"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        wheel = build(folder)
        for extra in sorted(WORKS):
            python = install(folder / f"with-{extra or 'nothing'}", wheel, extra)
            run([python, "-W", "error::DeprecationWarning:safepoint", "-c", WORKS[extra]], cwd=folder, env=KEYS)
            print(f"safepoint[{extra}]: installs and works" if extra else "safepoint: installs and works", flush=True)
            if extra == "server":
                serve(python, folder)
            if extra in ("cli", "local"):
                chat(python, folder)
    print("ready to be released")


def build(folder: Path) -> Path:
    """The wheel, built from the sdist."""
    with_uv = shutil.which("uv") is not None
    command = ["uv", "build", "--quiet"] if with_uv else [sys.executable, "-m", "build"]
    out = "--out-dir" if with_uv else "--outdir"
    run([*command, "--sdist", out, str(folder), str(ROOT)])
    [sdist] = folder.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder / "unpacked")
    [source] = (folder / "unpacked").iterdir()
    run([*command, "--wheel", out, str(folder / "from-sdist"), str(source)])
    run([*command, "--wheel", out, str(folder), str(ROOT)])
    [wheel], [again] = folder.glob("*.whl"), (folder / "from-sdist").glob("*.whl")
    assert files(wheel) == files(again), files(wheel) ^ files(again)
    inside = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/safepoint").rglob("*") if path.is_file()}
    missing = {name for name in inside if "__pycache__" not in name} - files(wheel)
    assert not missing, f"not in the wheel: {sorted(missing)}"
    return wheel


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def install(folder: Path, wheel: Path, extra: str) -> str:
    """The Python of a new environment with the wheel in it."""
    python, what = str(folder / "bin" / "python"), f"{wheel}[{extra}]" if extra else str(wheel)
    if shutil.which("uv"):
        run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)])
        run(["uv", "pip", "install", "--quiet", "--python", python, what])
    else:
        run([sys.executable, "-m", "venv", str(folder)])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what])
    return python


def serve(python: str, folder: Path) -> None:
    """A run over HTTP, and a SIGTERM that ends the server well."""
    app = folder / "apps" / "greeter"
    app.mkdir(parents=True)
    (app / "agent.py").write_text(
        "from safepoint import Agent\nfrom safepoint.testing import RuleModel, say\n"
        "root_agent = Agent('greeter', model=RuleModel({}, otherwise=say('hello')))\n"
    )
    log = folder / "server.log"
    command = [python, "-m", "safepoint", "serve", str(app.parent), "--port", "0", "--data", str(folder / "data")]
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        origin = address(server, log)
        said = {"role": "user", "parts": [{"text": "hi"}]}
        post(f"{origin}/apps/greeter/users/u/sessions/s", {})
        events = post(f"{origin}/run", {"appName": "greeter", "userId": "u", "sessionId": "s", "newMessage": said})
        assert "hello" in json.dumps(events), events
        server.terminate()
        assert server.wait(PATIENCE) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()
    print("it serves", flush=True)


def address(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            try:
                with urlopen(f"{found[0]}/health", timeout=PATIENCE):
                    return found[0]
            except URLError:
                pass
        time.sleep(BETWEEN_LOOKS)
    raise AssertionError(f"it does not serve:\n{log.read_text()}")


def post(url: str, body: object) -> object:
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def chat(python: str, folder: Path) -> None:
    command = [python, "-m", "safepoint", "chat", "script", "--data", str(folder / "chats")]
    done = subprocess.run(
        command, cwd=folder, input="hello\n", capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert "That was all." in done.stdout, done
    print("it chats", flush=True)


def run(command: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
