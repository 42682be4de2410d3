"""A server without keys serves its own machine and no one else; who wants more must say so before it starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send
from typer.testing import CliRunner

from safepoint import Ladder
from safepoint.cli.main import app as command_line
from safepoint.cli.serving import ladder_of, limits_of
from safepoint.server import Limits, ServerConfig, create_app
from safepoint.server.auth import AuthThrottle, check_exposed
from safepoint.server.cookies import Logins
from safepoint.server.headers import page_headers
from safepoint.server.keys import KeyFile
from safepoint.server.middleware import AuthMiddleware
from tests.server.guarded import raw, status_of
from tests.server.server_process import APPS, ServerProcess, session_path

STRANGE = {
    "another name": {"Host": "evil.com"},
    "a name that begins like loopback": {"Host": "localhost.evil.com"},
    "an address of the network": {"Host": "192.168.1.5"},
    "another page": {"Origin": "http://evil.com"},
    "no page in particular": {"Origin": "null"},
    "a page that names this machine": {"Origin": "http://localhost.evil.com"},
    "a page on another port": {"Origin": "http://127.0.0.1:1"},
    "a page of another scheme": {"Origin": "file://127.0.0.1"},
    "a proxy": {"X-Forwarded-For": "127.0.0.1"},
    "a proxy by another word": {"X-Forwarded-Host": "localhost"},
    "a proxy by the standard's word": {"Forwarded": "for=127.0.0.1"},
}


@pytest.mark.parametrize("way", STRANGE)
def test_a_server_without_keys_is_not_for_others(server: ServerProcess, way: str) -> None:
    for method, path in (("GET", "/runs"), ("POST", session_path("strange")), ("GET", "/health"), ("POST", "/login")):
        answer = server.http(method, path, headers=STRANGE[way])
        assert (answer.status, answer.body[:10]) == (403, "Forbidden:"), (method, path)
    assert server.get(session_path("strange")).status == 404
    assert server.get("/runs", {"Host": f"localhost:{server.port}"}).status == 200
    assert server.get("/runs", {"Host": "[::1]"}).status == 200
    assert server.get("/runs", {"Origin": f"http://127.0.0.1:{server.port}"}).status == 200


def test_the_words_of_a_refusal_are_those_of_adk(server: ServerProcess) -> None:
    assert server.get("/runs", {"Host": "evil.com"}).body == "Forbidden: host not allowed"
    assert server.get("/runs", {"Origin": "http://evil.com"}).body == "Forbidden: origin not allowed"


def test_a_socket_for_another_page_is_refused_in_the_handshake(server: ServerProcess) -> None:
    shake = (
        "GET /run_live?app_name=worker&user_id=ann&session_id=s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    assert status_of(raw(server.port, (shake + "Origin: http://evil.com\r\n\r\n").encode())) == 403


# -- what is refused before it starts ----------------------------------------------------------------------------------


def test_a_server_that_others_can_reach_needs_keys_or_a_word(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    for what in (None, keys):
        with pytest.raises(ValueError, match=r"safepoint keys add NAME"):
            check_exposed("--host 0.0.0.0", ServerConfig(), what, exposed=True)
        with pytest.raises(ValueError, match=r"allowed_hosts.*--insecure"):
            create_app({}, config=ServerConfig(allowed_hosts=("agents.example.com",)), keys=what)
        create_app({}, config=ServerConfig(allowed_hosts=("agents.example.com",), insecure=True), keys=what)
    keys.add("boss", admin=True)
    create_app({}, config=ServerConfig(allowed_hosts=("agents.example.com",)), keys=keys)
    with pytest.raises(ValueError, match="leave it out"):
        check_exposed("--host 0.0.0.0", ServerConfig(insecure=True), keys, exposed=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: others could reach this server"),
        (["--host", "::"], "others could reach"),
        (["--allowed-host", "agents.example.com"], "others could reach"),
        (["--limit", "bodies=1"], "the names are live_runs"),
        (["--limit", "body_bytes=many"], "'many' is no int"),
        (["--limit", "viewers=0"], "above 0"),
        (["--allow-origin", "*"], "write scheme and name"),
        (["--allow-origin", "app.example.com"], "write scheme and name"),
        (["--allow-origin", "regex:("], "allowed origin"),
        (["--allowed-host", "a b", "--insecure"], "write a name"),
    ],
)
def test_the_command_says_what_is_wrong_and_does_not_start(tmp_path: Path, options: list[str], says: str) -> None:
    found = CliRunner().invoke(
        command_line, ["serve", str(APPS), "--port", "0", "--data", str(tmp_path / "data"), *options]
    )
    assert found.exit_code == 2
    assert says in found.stderr


def test_keys_are_made_listed_and_revoked_by_command(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        found = CliRunner().invoke(command_line, ["keys", *words, "--data", str(tmp_path)])
        return found.exit_code, found.stdout, found.stderr

    code, key, told = run("add", "laptop", "--user", "ann")
    assert (code, "can't be shown again" in told) == (0, True)
    assert run("add", "ops", "--admin")[0] == 0
    assert run("add", "laptop", "--admin")[0] == 2
    assert run("revoke", "nothing")[0] == 2
    assert run("add", "both", "--user", "ann", "--admin")[0] == 2
    keys = KeyFile(tmp_path / "keys.json")
    caller = keys.find(key.strip())
    assert caller is not None
    assert caller.user == "ann"
    assert run("revoke", "laptop")[0] == 0
    assert keys.find(key.strip()) is None
    listed = run("list")[1]
    assert [line.split("\t")[0::3] for line in listed.splitlines()] == [["laptop", "revoked"], ["ops", "valid"]]
    assert key.strip() not in listed


def test_every_limit_can_be_set_by_its_name() -> None:
    assert limits_of(["viewers=7", "run_seconds=1.5"]) == Limits(viewers=7, run_seconds=1.5)
    assert ladder_of(["task=3", "cap=20"]) == Ladder(task=3, cap=20)
    assert ladder_of([]) is None
    for change in ("taks=3", "task", "task=soon"):
        with pytest.raises(ValueError, match=f"--ladder {change}: "):
            ladder_of([change])


# -- the guard by itself -----------------------------------------------------------------------------------------------


class Behind:
    """What stands behind the guard: it answers, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.seen: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope)
        if self.error is not None:
            raise self.error
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def scope_of(
    headers: Mapping[str, str],
    *,
    client: str = "127.0.0.1",
    here: str = "127.0.0.1",
    method: str = "GET",
    path: str = "/runs",
    query: str = "",
) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [
            (name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **headers}.items()
        ],
        "client": (client, 5000),
        "server": (here, 8000),
    }


def call(
    guard: AuthMiddleware,
    headers: Mapping[str, str],
    *,
    client: str = "127.0.0.1",
    here: str = "127.0.0.1",
    method: str = "GET",
) -> tuple[int, dict[str, str], bytes]:
    return answer_to(guard, scope_of(headers, client=client, here=here, method=method))


def answer_to(guard: AuthMiddleware, scope: Scope) -> tuple[int, dict[str, str], bytes]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


def test_without_keys_only_callers_from_this_machine_are_served() -> None:
    guard = AuthMiddleware(Behind())
    assert call(guard, {})[0] == 200
    assert call(guard, {}, client="::1")[0] == 200
    assert call(guard, {}, client="10.0.0.7")[0] == 403
    assert call(AuthMiddleware(Behind(), config=ServerConfig(insecure=True)), {}, client="10.0.0.7")[0] == 200


def test_a_server_on_the_network_is_called_by_any_name_unless_names_were_given(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    bearer = {"Authorization": f"Bearer {keys.add('ann', user='ann')}"}
    named = ServerConfig(allowed_hosts=("agents.example.com",))
    for config, host, here, status in (
        (ServerConfig(), "10.0.0.5:8000", "10.0.0.5", 200),
        (ServerConfig(), "agents.example.com", "10.0.0.5", 200),
        (ServerConfig(), "agents.example.com", "127.0.0.1", 403),
        (named, "agents.example.com", "10.0.0.5", 200),
        (named, "Agents.Example.com:443", "127.0.0.1", 200),
        (named, "evil.com", "10.0.0.5", 403),
        (named, "localhost", "127.0.0.1", 200),
    ):
        guard = AuthMiddleware(Behind(), config=config, keys=keys)
        assert call(guard, {**bearer, "Host": host}, client="10.0.0.7", here=here)[0] == status, (config, host, here)


def test_pages_of_other_servers_may_call_if_they_were_named(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    bearer = {"Authorization": f"Bearer {keys.add('ann', user='ann')}"}
    config = ServerConfig(allowed_origins=("https://app.example.com", r"regex:https://[a-z]+\.test"))
    guard = AuthMiddleware(Behind(), config=config, keys=keys)
    for origin, status in (
        ("https://app.example.com", 200),
        ("https://abc.test", 200),
        ("https://abc.test.evil.com", 403),
        ("http://app.example.com", 403),
        ("https://app.example.com.evil.com", 403),
    ):
        found, headers, _ = call(guard, {**bearer, "Origin": origin})
        assert found == status, origin
        assert headers.get("access-control-allow-origin") == (origin if status == 200 else None)
        assert "access-control-allow-credentials" not in headers
        assert ("Safepoint-Run" in headers.get("access-control-expose-headers", "")) == (status == 200)
    status, headers, _ = call(guard, {"Origin": "https://app.example.com"}, method="OPTIONS")
    assert status == 204
    assert "Authorization" in headers["access-control-allow-headers"]
    assert call(guard, {"Origin": "https://app.example.com"})[0] == 401
    assert call(guard, {"Origin": "https://evil.com"}, method="OPTIONS")[0] == 403


def test_a_key_in_an_address_is_taken_out_before_anybody_can_log_it(tmp_path: Path) -> None:
    key = KeyFile(tmp_path / "keys.json").add("ann", user="ann")
    for path, query in (("/runs", f"key={key}"), (f"/runs/{key}", ""), ("/run_live", f"a=1&token={key[3:]}")):
        scope = scope_of({}, path=path, query=query)
        assert answer_to(AuthMiddleware(Behind()), scope)[0] == 400
        assert key[3:] not in f"{scope['path']} {scope['raw_path']} {scope['query_string']}"


def test_many_wrong_keys_are_told_to_wait_and_a_right_one_never_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    right = keys.add("ann", user="ann")
    guard = AuthMiddleware(Behind(), config=ServerConfig(limits=Limits(wrong_keys=3)), keys=keys)
    wrong = {"Authorization": "Bearer sp_wrong"}
    assert [call(guard, wrong)[0] for _ in range(5)] == [401, 401, 401, 429, 429]
    status, headers, _ = call(guard, wrong)
    assert (status, 0 < int(headers["retry-after"]) <= 60) == (429, True)
    assert caplog.text.count("wrong keys") == 1
    assert "sp_wrong" not in caplog.text
    assert call(guard, wrong, client="127.0.0.2")[0] == 401, "another address"
    assert call(guard, {"Authorization": f"Bearer {right}"})[0] == 200
    assert call(guard, {})[0] == 401, "no key is no wrong key"


def test_a_minute_later_wrong_keys_are_counted_anew_and_the_oldest_address_makes_room() -> None:
    now = 0.0
    wrong = AuthThrottle(1, lambda: now)
    assert (wrong.count("a"), wrong.count("a")) == (0, 60)
    now = 59.5
    assert wrong.count("a") == 1
    now = 60.0
    assert (wrong.count("a"), wrong.count("a")) == (0, 60)
    for number in range(1000):
        wrong.count(str(number))
    assert wrong.count("a") == 0


def test_what_goes_wrong_inside_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    status, _, body = call(AuthMiddleware(Behind(RuntimeError("a secret of the house"))), {})
    assert (status, json.loads(body)) == (500, {"detail": "Internal error"})
    assert "a secret of the house" in caplog.text


def test_a_login_ends_by_itself_and_the_oldest_makes_room() -> None:
    now = 0.0
    logins = Logins(lambda: now)
    token = logins.open("ann")
    assert logins.key(token) == "ann"
    now = 12 * 3600
    assert logins.key(token) is None
    first = logins.open("ann")
    later = [logins.open("bob") for _ in range(1000)]
    assert logins.key(first) is None
    assert {logins.key(each) for each in later} == {"bob"}


def test_a_page_may_run_what_is_written_in_it_and_nothing_that_is_smuggled_in() -> None:
    policy = page_headers("<style>a {}</style><script>go()</script><script src=x.js></script>")[
        "Content-Security-Policy"
    ]
    assert policy.count("sha256-") == 2
    assert "'unsafe-inline'" not in policy
    assert page_headers()["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
