"""The command line against a real server: what operators see, and what the run really did."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from safepoint.cli.main import app
from tests.server.server_process import PATIENCE, Later, ServerProcess, message, texts


class Operator:
    """Types commands, in this process, for a server in another one."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.env = {"SAFEPOINT_URL": f"http://127.0.0.1:{server.port}", "SAFEPOINT_KEY": ""}

    def cli(self, *words: str, **env: str) -> Result:
        return CliRunner().invoke(app, list(words), env={**self.env, **env})

    def json(self, *words: str) -> Any:  # Any: JSON
        return json.loads(self.cli(*words, "--json").stdout)

    def live_run(self, session: str) -> str:
        """The id of the run of that session, once it is live."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = [run["runId"] for run in self.json("ps") if run["sessionId"] == session and run["state"] == "live"]
            if found:
                return str(found[0])
        raise AssertionError(f"no live run of {session}")

    def napping(self, session: str) -> tuple[str, Later]:
        naps = self.server.did().count("nap begins")
        self.server.create(session)
        caller = self.server.run_in_thread(session, "nap 60")
        self.server.until_did("nap begins", naps + 1)
        return self.live_run(session), caller


@pytest.fixture(scope="module")
def operator(server: ServerProcess) -> Operator:
    return Operator(server)


def shell(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "safepoint", *words]
    given = {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=given, check=False)


def test_stop_ends_the_run_and_says_what_came_of_it(operator: Operator) -> None:
    run, caller = operator.napping("stop")
    done = operator.cli("stop", run, "--reason", "too loud")
    assert (done.exit_code, "stopped" in done.stdout) == (0, True), done.output
    last = caller.answer().body[-1]
    assert last["errorCode"] == "INVOCATION_ABORTED"
    assert "too loud" in last["errorMessage"]
    again = operator.cli("stop", run)
    assert (again.exit_code, "over already: cancelled" in again.stdout) == (0, True)


def test_a_stop_that_is_not_over_in_time_exits_with_5_and_why_names_what_holds_it(operator: Operator) -> None:
    operator.server.create("deaf")
    caller = operator.server.run_in_thread("deaf", "stubborn 3")
    operator.server.until_did("stubborn begins")
    run = operator.live_run("deaf")
    asked = operator.cli("stop", run, "--wait", "0")
    assert (asked.exit_code, "not over yet" in asked.stdout) == (5, True), asked.output
    why = operator.cli("why", run)
    assert "stubborn" in why.stdout
    caller.answer()


def test_a_safe_point_lets_the_tool_finish(operator: Operator) -> None:
    operator.server.create("later")
    caller = operator.server.run_in_thread("later", "nap 1.5")
    run = operator.live_run("later")
    naps = operator.server.did().count("nap ends")
    assert operator.cli("stop", run, "--at", "after_tools", "--within", "30").exit_code == 0
    caller.answer()
    assert operator.server.did().count("nap ends") == naps + 1


def test_a_session_and_all_runs_can_be_stopped(operator: Operator) -> None:
    _, first = operator.napping("mine")
    assert operator.cli("stop", "--session", "worker/ann/mine").exit_code == 0
    assert first.answer().body[-1]["errorCode"] == "INVOCATION_ABORTED"
    callers = [operator.napping(name)[1] for name in ("one", "two")]
    stopped = operator.cli("stop", "--all")
    assert (stopped.exit_code, stopped.stdout.count("stopped")) == (0, 2), stopped.output
    assert [caller.answer().body[-1]["errorCode"] for caller in callers] == ["INVOCATION_ABORTED"] * 2
    assert "no run is live" in operator.cli("stop", "--all").stdout


def test_what_to_stop_must_be_said_once(operator: Operator) -> None:
    for words in ((), ("run_1", "--all"), ("--session", "worker/ann")):
        refused = operator.cli("stop", *words)
        assert refused.exit_code == 2, words
        assert len(refused.stderr.splitlines()) == 1


def test_steer_joins_a_live_run_and_is_too_late_after_it(operator: Operator) -> None:
    operator.server.create("steer")
    caller = operator.server.run_in_thread("steer", "nap 1.5")
    run = operator.live_run("steer")
    assert operator.cli("steer", run, "say steered").stdout.strip() == "joined"
    assert "steered " in texts(caller.answer().body)
    late = operator.cli("steer", run, "say more")
    assert (late.exit_code, late.stdout.strip()) == (1, "too_late: the run is over")


def test_a_steer_that_nobody_has_heard_yet_is_told_as_that(operator: Operator) -> None:
    run, caller = operator.napping("deep")
    waits = operator.cli("steer", run, "say later", "--wait", "0")
    assert (waits.exit_code, waits.stdout.partition(":")[0]) == (5, "waiting")
    operator.cli("stop", run)
    caller.answer()


def test_why_tells_a_run_that_nobody_stopped_from_one_that_is_on_its_way(operator: Operator) -> None:
    run, caller = operator.napping("why")
    assert operator.cli("why", run).stdout == "no stop was asked for: the run is live\n"
    assert operator.cli("stop", run, "--at", "after_tools", "--wait", "0").exit_code == 5
    told = operator.cli("why", run).stdout
    assert told.startswith("it has not come to where it is to stop: after_tools; it waits for\nNAME")
    answer = operator.json("why", run)
    assert (answer["state"], answer["asked"]) == ("live", ["after_tools"])
    assert [each["name"] for each in answer["holding"]] == ["nap"]
    operator.cli("stop", run)
    caller.answer()
    assert operator.cli("why", run).stdout == "nothing holds it: it is ended, cancelled\n"


def test_resume_goes_on_with_a_stopped_run_and_answers_one_that_waits(operator: Operator) -> None:
    run, caller = operator.napping("again")
    operator.cli("stop", run)
    caller.answer()
    gone_on = operator.cli("resume", run)
    assert gone_on.exit_code == 0, gone_on.output
    new = gone_on.stdout.split()[-1]
    assert "done" in operator.cli("logs", new, "--follow").stdout
    assert new != run

    operator.server.create("asking")
    operator.server.run("asking", "ask this?")
    operator.server.run("asking", "say never mind")  # closes that question
    operator.server.run("asking", "ask really?")
    (waiting,) = [run["runId"] for run in operator.json("ps") if run["state"] == "paused"]
    assert "[asks: {'question': 'really?'}]" in operator.cli("logs", waiting).stdout
    silent = operator.cli("resume", waiting)
    assert (silent.exit_code, "waits for an answer: write it as TEXT" in silent.stderr) == (2, True)
    assert operator.cli("resume", waiting, "of course").exit_code == 0
    operator.server.until_did("answer of course")
    assert operator.cli("resume", "run_nobody").exit_code == 1


@pytest.mark.parametrize(("word", "allowed"), [("yes", True), ("No", False), ("not that one", False)])
def test_resume_says_yes_or_no_to_a_call_that_waits_to_be_allowed(operator: Operator, word: str, allowed: bool) -> None:
    session = f"allowing-{word.replace(' ', '-')}"
    operator.server.create(session)
    operator.server.run(session, f"sign {session}")
    waiting = operator.server.run_of(session, "paused")
    assert operator.cli("resume", waiting, word).exit_code == 0
    told = operator.cli("logs", waiting, "--follow").stdout
    assert ("denied" not in told) is allowed
    assert (f"sign {session}" in operator.server.did()) is allowed
    assert ("not that one" in told) is (word == "not that one")


def test_resume_does_not_answer_several_questions_with_one_word(operator: Operator) -> None:
    operator.server.create("both")
    operator.server.run("both", "sign one of both; sign both")
    waiting = operator.server.run_of("both", "paused")
    refused = operator.cli("resume", waiting, "yes")
    assert (refused.exit_code, "asks 2 questions: answer them on the page" in refused.stderr) == (2, True)
    assert operator.server.run_of("both", "paused") == waiting
    assert "sign both" not in operator.server.did()


def test_logs_show_what_is_there_and_follow_to_the_end(operator: Operator) -> None:
    run, caller = operator.napping("logs")
    so_far = operator.cli("logs", run)
    assert so_far.exit_code == 0
    assert "→ nap(seconds=60.0)" in so_far.stdout
    command = [sys.executable, "-m", "safepoint", "logs", run, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **operator.env}) as follower:
        assert follower.stdout is not None
        assert "nap" in follower.stdout.readline()
        operator.cli("stop", run)
        assert "INVOCATION_ABORTED" in follower.stdout.read()
    assert follower.returncode == 0
    lines = [json.loads(line) for line in operator.cli("logs", run, "--json").stdout.splitlines()]
    assert lines == caller.answer().body


def test_what_a_user_wrote_cannot_steer_the_terminal(operator: Operator) -> None:
    operator.server.create("escape")
    operator.server.run("escape", "say \x1b[2J\x1b]0\x07words")
    (run,) = [run["runId"] for run in operator.json("ps", "--all") if run["sessionId"] == "escape"]
    shown = operator.cli("logs", run).stdout
    assert "words" in shown
    assert not set(shown) & {"\x1b", "\x07"}


def test_ps_lists_open_runs_and_with_all_those_that_ended(operator: Operator) -> None:
    run, caller = operator.napping("listed")
    assert run in operator.cli("ps").stdout
    operator.cli("stop", run)
    caller.answer()
    assert run not in operator.cli("ps").stdout
    assert run in operator.cli("ps", "--all").stdout
    none = operator.cli("ps", "--all", "--app", "other")
    assert run not in none.stdout
    assert none.stderr == "no run is there\n"


def test_errors_are_one_line_and_have_codes_of_their_own(operator: Operator, tmp_path: Path) -> None:
    unknown = operator.cli("stop", "run_nobody")
    assert (unknown.exit_code, unknown.stderr) == (1, "safepoint: 404: Run not found: run_nobody\n")
    odd = operator.cli("why", "../health")
    assert (odd.exit_code, len(odd.stderr.splitlines())) == (1, 1)
    nobody = operator.cli("ps", SAFEPOINT_URL="http://127.0.0.1:1")
    assert (nobody.exit_code, len(nobody.stderr.splitlines())) == (3, 1)
    assert operator.cli("ps", "--url", "ftp://here").exit_code == 2
    nowhere = operator.cli("stop", "run_nobody", "--at", "nowhere")
    assert nowhere.stderr.startswith("safepoint: 422: at: 'nowhere' is no safe point: write one of now, force")
    early = operator.cli("stop", "run_nobody", "--within", "3")
    assert (early.exit_code, "write --at any" in early.stderr) == (2, True)
    assert operator.cli("ps", "--key-file", str(tmp_path / "none")).exit_code == 2


def test_what_the_door_says_is_shown_and_not_taken_for_a_missing_key() -> None:
    def refuse(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65_536)
            head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 27\r\n\r\n"
            client.sendall(head + b"Forbidden: host not allowed")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = Later(lambda: refuse(listener))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        refused = CliRunner().invoke(app, ["ps"], env={"SAFEPOINT_URL": url, "SAFEPOINT_KEY": ""})
        serving.answer()
    assert (refused.exit_code, refused.stderr) == (4, "safepoint: 403: Forbidden: host not allowed\n")


def test_a_key_is_sent_as_a_bearer_and_a_refusal_says_where_to_put_one(tmp_path: Path) -> None:
    heard: list[bytes] = []

    def refuse(listener: socket.socket) -> None:
        for _ in range(3):
            client, _ = listener.accept()
            with client:
                heard.append(client.recv(65_536))
                client.sendall(b'HTTP/1.1 401 Unauthorized\r\nContent-Length: 25\r\n\r\n{"detail":"who are you?"}')

    (tmp_path / "key").write_text("sp_of_a_file\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = Later(lambda: refuse(listener))
        env = {"SAFEPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        cli = CliRunner()
        without = cli.invoke(app, ["ps"], env={**env, "SAFEPOINT_KEY": ""})
        cli.invoke(app, ["ps"], env={**env, "SAFEPOINT_KEY": "sp_of_the_environment"})
        cli.invoke(app, ["ps", "--key-file", str(tmp_path / "key")], env={**env, "SAFEPOINT_KEY": "sp_other"})
        serving.answer()
    assert without.exit_code == 4
    assert "SAFEPOINT_KEY" in without.stderr
    assert b"uthorization" not in heard[0]
    assert b"Authorization: Bearer sp_of_the_environment\r\n" in heard[1]
    assert b"Authorization: Bearer sp_of_a_file\r\n" in heard[2]


def test_serve_says_in_one_line_what_is_wrong_and_exits_with_2(server: ServerProcess, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "safepoint.db").write_text("this is no database, and never was one; it is only some text in a file. " * 20)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    data = ("--data", str(tmp_path / "data"))
    for words in (
        ("--port", str(server.port), *data),
        (str(tmp_path / "nowhere"), *data),
        (str(tmp_path / "file"), *data),
        (str(tmp_path / "empty"), *data),
        ("--data", str(bad), "--port", "0"),
        ("--data", str(tmp_path / "file"), "--port", "0"),
        ("--store", "memory", *data),
        ("--model", "nobody:knows", *data),
    ):
        refused = CliRunner().invoke(app, ["serve", *words])
        assert refused.exit_code == 2, (words, refused.output)
        assert len(refused.stderr.splitlines()) == 1, refused.stderr
        assert refused.stderr.startswith("safepoint: "), refused.stderr


def test_as_a_process_it_fails_without_a_traceback(server: ServerProcess, tmp_path: Path) -> None:
    refused = shell("serve", "--port", str(server.port), "--data", str(tmp_path))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert f"port {server.port}: Address already in use" in refused.stderr


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    missing = shell("ps", PYTHONPATH=str(tmp_path))
    assert missing.returncode == 2
    assert missing.stderr == "safepoint: the command line needs typer: install safepoint[server]\n"
    server = "import sys; sys.modules['fastapi'] = None; import safepoint.server"
    missing = subprocess.run([sys.executable, "-c", server], capture_output=True, text=True)
    assert missing.stderr.endswith("ModuleNotFoundError: the server needs fastapi: install safepoint[server]\n")


def test_a_module_of_our_own_that_is_missing_is_a_bug_and_no_extra() -> None:
    starts = {"cli.admin": "safepoint.__main__ as it; it.main()", "serving.run_manager": "safepoint.server"}
    for module, start in starts.items():
        program = f"import sys; sys.modules['safepoint.{module}'] = None; import {start}"
        broken = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "Traceback" in broken.stderr
        assert "install" not in broken.stderr.splitlines()[-1]


def test_the_version_is_the_installed_one_for_the_command_line_and_for_clients(tmp_path: Path) -> None:
    installed = tmp_path / "safepoint-9.8.7.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: safepoint\nVersion: 9.8.7\n")
    shown = shell("--version", PYTHONPATH=str(tmp_path))
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "safepoint 9.8.7\n", "")
    schema = "from safepoint.server import create_app; print(create_app({}).openapi()['info']['version'])"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", schema], capture_output=True, text=True, env=env, check=True)
    assert told.stdout == "9.8.7\n"


def test_a_broken_app_is_reported_and_the_others_are_served(tmp_path: Path) -> None:
    for name, text in (
        ("good", "from safepoint.cli.demo import demo_agent\nagent = demo_agent()"),
        ("broken", "import nothing_of_that_name"),
        ("empty", ""),
    ):
        (tmp_path / "apps" / name).mkdir(parents=True)
        (tmp_path / "apps" / name / "agent.py").write_text(text)
    with ServerProcess(tmp_path, apps=tmp_path / "apps", options=("--store", "memory"), data=False) as server:
        assert server.get("/list-apps").body == ["good"]
        broken = {each["name"]: each["error"] for each in server.get("/list-apps?detailed=true").body["broken"]}
        assert "nothing_of_that_name" in broken["broken"]
        assert "root_agent" in broken["empty"]
        refused = server.post("/run", message("s", "hello", appName="broken"))
        assert refused.status == 404
        log = server.log.read_text()
        assert "serves good on http://127.0.0.1:" in log
        assert "can't be loaded: broken, empty" in log
        assert server.terminate() == 0
    assert not list(tmp_path.rglob("*.db"))
