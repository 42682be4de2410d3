"""A client that a generator makes from `/openapi.json` works, and every answer has the type that was said."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from tests.server.guarded import Guarded
from tests.server.server_process import message, session_path

NAME = "generated_safepoint_client"


class Generated:
    """The generated package. `call("get_session", …)`: the operation of that name, as ann, unless `key` says else."""

    def __init__(self, world: Guarded) -> None:
        self._world = world
        self.models: ModuleType = importlib.import_module(f"{NAME}.models")
        self._client: ModuleType = importlib.import_module(f"{NAME}.client")

    def call(self, operation: str, *path: str, key: str = "ann", **given: Any) -> tuple[int, Any]:  # Any: generated
        """The status, and what the client makes of the answer."""
        module = importlib.import_module(f"{NAME}.api.default.{operation}")
        with self._client.AuthenticatedClient(self._world.origin, token=self._world.keys.get(key, key)) as client:
            answer = module.sync_detailed(*path, client=client, **given)
        return int(answer.status_code), answer.parsed

    def make(self, model: str, body: Mapping[str, object]) -> Any:  # Any: generated
        return getattr(self.models, model).from_dict(dict(body))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("generated"))
    with guarded.server:
        guarded.settle()
        yield guarded


@pytest.fixture(scope="module")
def generated(world: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    """Generated from what the server says, without a warning of the generator's."""
    folder: Path = tmp_path_factory.mktemp("client")
    schema = folder / "openapi.json"
    schema.write_text(json.dumps(world.ask("boss", "GET", "/openapi.json").body))
    where = ("--path", str(schema), "--output-path", str(folder / NAME), "--meta", "none", "--fail-on-warning")
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # it calls ruff
    made = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", *where], capture_output=True, text=True, env=tools
    )
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(folder))
    try:
        yield Generated(world)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


SESSION = ("worker", "ann")


def test_sessions_are_typed(generated: Generated) -> None:
    models = generated.models
    body = generated.make("NewSession", {"sessionId": "made", "state": {"a": 1}})
    status, session = generated.call("create_session", *SESSION, body=body)
    assert (status, type(session), session.id, session.state.to_dict()) == (200, models.Session, "made", {"a": 1})
    status, listed = generated.call("list_sessions", *SESSION)
    assert (status, {type(each) for each in listed}) == (200, {models.Session})
    patch = generated.make("StatePatch", {"stateDelta": {"b": 2}})
    assert generated.call("patch_session", *SESSION, "made", body=patch)[1].state.to_dict() == {"a": 1, "b": 2}
    assert generated.call("delete_session", *SESSION, "made") == (200, None)


def test_errors_are_typed(generated: Generated) -> None:
    error = generated.models.Error
    status, absent = generated.call("get_session", *SESSION, "nowhere")
    assert (status, type(absent), absent.detail) == (404, error, "Session not found")
    status, unknown = generated.call("get_session", *SESSION, "done", key="sp_wrong")
    assert (status, type(unknown), unknown.detail) == (401, error, "this key is wrong or revoked")
    again = generated.make("NewSession", {"sessionId": "done"})
    status, taken = generated.call("create_session", *SESSION, body=again)
    assert (status, type(taken), taken.detail) == (409, error, "Session already exists: done")
    status, nothing = generated.call("cancel_session", *SESSION, "done")
    assert (status, type(nothing), nothing.last_run.outcome) == (404, error, "end_turn")
    status, invalid = generated.call("cancel_many", body=generated.make("CancelMany", {"at": "nowhere"}))
    assert (status, type(invalid), invalid.detail[0].loc) == (422, generated.models.Invalid, ["body", "at"])


def test_runs_and_their_events_are_typed(generated: Generated) -> None:
    models = generated.models
    request = generated.make("RunRequest", message("done", "note typed"))
    status, events = generated.call("run", body=request)
    assert (status, {type(event) for event in events}) == (200, {models.Event})
    assert events[0].content.parts[0].function_call.name == "note"
    assert events[-1].usage_metadata.total_token_count >= 0
    stored = generated.call("get_session", *SESSION, "done")[1].events
    assert [(event.id, event.content) for event in stored[-3:]] == [(event.id, event.content) for event in events]
    status, runs = generated.call("list_runs")
    assert (status, {type(run) for run in runs}) == (200, {models.Run})
    status, run = generated.call("get_run", runs[0].run_id)
    assert (status, type(run), run.state, run.outcome) == (200, models.Run, "ended", "end_turn")
    assert type(generated.call("why", run.run_id)[1]) is models.Why


def test_a_cancel_is_typed(generated: Generated, world: Guarded) -> None:
    models, run = generated.models, world.values["LIVE"]
    status, cancelled = generated.call("cancel_session", *SESSION, "live")
    assert (status, type(cancelled), cancelled.status) == (200, models.Cancelled, "cancelled")
    assert (cancelled.runs[0].run_id, cancelled.runs[0].touched[0].name) == (run, "nap")
    status, over = generated.call("cancel_run", run)
    assert (status, type(over), over.status, over.outcome) == (200, models.EndedRun, "ended", "cancelled")
    status, resumed = generated.call("resume", run)
    assert (status, type(resumed), resumed.continues) == (200, models.Run, run)
    status, steered = generated.call(
        "steer", run, body=generated.make("SteerRequest", {"newMessage": {"parts": [{"text": "hello"}]}})
    )
    assert (status, type(steered)) == (200, models.Steered)
    everything = generated.make("CancelMany", {"all": True})
    assert type(generated.call("cancel_many", body=everything)[1]) is models.CancelledMany
    assert type(generated.call("rewind", run)[1]) is models.Rewound


def test_a_stream_is_text_and_what_the_server_says_of_itself_is_typed(generated: Generated) -> None:
    request = generated.make("RunRequest", message("done", "say streamed", streaming=True))
    status, frames = generated.call("run_sse", body=request)
    assert (status, "data: {" in frames) == (200, True)
    assert generated.call("health")[1].details.ready is True
    assert generated.call("ready")[1].status == "ok"
    assert generated.call("app_info", "worker")[1].root_agent_name == "worker"
    assert "worker" in generated.call("list_apps")[1]
    assert {app.name for app in generated.call("list_apps", detailed=True)[1].apps} >= {"worker", "desk"}


def test_no_answer_has_a_field_that_is_not_described(generated: Generated, world: Guarded) -> None:
    """Generated classes keep what they do not know apart."""
    names = ("done", "paused", "live")
    known: list[Any] = [generated.call("get_session", *SESSION, name)[1] for name in names]  # Any: generated
    known += generated.call("list_runs")[1]
    assert [unknown for each in known for unknown in additional(each)] == []
    assert world.ask("ann", "GET", session_path("done")).status == 200


def additional(value: Any) -> Iterator[str]:  # Any: generated
    """Names that the description lacks; where it allows any, there are no classes below."""
    if isinstance(value, list):
        items = cast(list[Any], value)  # type: ignore[redundant-cast]  # pyright sees a list of the unknown
        for each in items:
            yield from additional(each)
    elif hasattr(value, "additional_properties") and len(vars_of(value)) > 1:
        yield from (f"{type(value).__name__}.{name}" for name in value.additional_properties)
        for each in vars_of(value).values():
            yield from additional(each)


def vars_of(value: Any) -> dict[str, Any]:  # Any: generated
    return {name: getattr(value, name) for name in value.__class__.__annotations__}


STRICT = [
    ({"recursive": "yes"}, "recursive"),
    ({"recursive": 1}, "recursive"),
    ({"withinSeconds": "3", "at": "any"}, "withinSeconds"),
    ({"waitSeconds": True}, "waitSeconds"),
    ({"reason": 5}, "reason"),
    ({"node": 5}, "node"),
]


@pytest.mark.parametrize(("body", "field"), STRICT)
def test_a_cancel_of_the_wrong_type_is_refused(world: Guarded, body: object, field: str) -> None:
    for path in (f"{session_path('done')}:cancel", f"/runs/{world.values['DONE']}:cancel", "/runs:cancel"):
        refused = world.ask("ann", "POST", path, body)
        assert (refused.status, refused.body["detail"][0]["loc"]) == (422, ["body", field])


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/runs:cancel", {"all": "yes"}, ["body", "all"]),
        ("/runs/$DONE:steer", {"newMessage": {"parts": [{"text": "x"}]}, "waitSeconds": "1"}, ["body", "waitSeconds"]),
        ("/run", message("done", "hi", onDisconnect={"cancelAfter": "3"}), None),
        ("/run", message("done", "hi", idempotencyKey=5), ["body", "idempotencyKey"]),
    ],
)
def test_what_is_ours_has_the_type_that_is_described(
    world: Guarded, path: str, body: object, where: list[str] | None
) -> None:
    refused = world.ask("ann", "POST", path, body)
    assert refused.status == 422, refused
    assert where in (None, refused.body["detail"][0]["loc"])


def test_the_description_names_what_every_client_needs(world: Guarded) -> None:
    api: dict[str, Any] = world.ask("boss", "GET", "/openapi.json").body  # Any: JSON
    assert {"Session", "Event", "Run", "Cancelled", "Error"} <= api["components"]["schemas"].keys()
    assert api["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert {"bearer": []} in api["security"]
    assert {} not in api["security"], "this server has keys"
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            needs_key = path not in ("/health", "/ready")
            assert {"200", "400", "403", "500"} <= answers.keys(), (method, path)
            assert ("401" in answers, operation.get("security") == []) == (needs_key, not needs_key), (method, path)
            for status, answer in answers.items():
                assert all(each.get("schema") for each in answer["content"].values()), (method, path, status)
            streams = path in ("/run_sse", "/runs/{run}/events")
            assert ("text/event-stream" in answers["200"]["content"]) == streams, (method, path)
