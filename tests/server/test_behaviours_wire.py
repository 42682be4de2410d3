"""What ADK's clients rely on besides: state, imports, going on, marks, composites, repeated keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.server_process import ServerProcess, message, parts, session_path, texts
from tests.server.test_behaviours import only_run, until_over

HANDY = {"appName": "handy"}


def handy(session: str, user: str = "ann") -> str:
    return session_path(session, user, "handy")


def state_of(server: ServerProcess, session: str, user: str = "ann") -> dict[str, Any]:  # Any: JSON
    state: dict[str, Any] = server.get(handy(session, user)).body["state"]  # Any: JSON
    return state


# -- state -------------------------------------------------------------------------------------------------------------


def test_app_values_are_shared_by_the_app_user_values_by_the_user_and_temp_values_by_nobody(
    server: ServerProcess,
) -> None:
    for session, user in (("one", "ann"), ("two", "ann"), ("three", "bob")):
        server.post(handy(session, user))
    server.run("one", "remember app:color=red", **HANDY)
    server.run("one", "remember user:lang=fr", **HANDY)
    server.run("one", "remember temp:x=1", **HANDY)
    server.run("one", "remember own=mine", **HANDY)
    assert state_of(server, "one") == {"app:color": "red", "user:lang": "fr", "own": "mine"}
    assert state_of(server, "two") == {"app:color": "red", "user:lang": "fr"}
    assert state_of(server, "three", "bob") == {"app:color": "red"}
    server.run("two", "recall user:lang", **HANDY)
    server.run("three", "recall app:color", **HANDY, userId="bob")
    assert "recall user:lang fr" in server.did()
    assert "recall app:color red" in server.did()
    listed = server.get("/apps/handy/users/ann/sessions").body
    assert [session["state"]["user:lang"] for session in listed] == ["fr", "fr"]
    assert server.get(session_path("one")).status == 404  # another app has another place


def test_a_state_delta_rides_on_the_users_event_and_a_tool_can_read_it(server: ServerProcess) -> None:
    server.post(handy("delta"))
    delta = {"a": 1, "temp:t": "seen", "user:delta": "u"}
    server.run("delta", "recall temp:t", **HANDY, stateDelta=delta)
    assert "recall temp:t seen" in server.did()
    first = server.get(handy("delta")).body["events"][0]
    assert (first["author"], first["actions"]["stateDelta"]) == ("user", {"a": 1, "user:delta": "u"})
    state = state_of(server, "delta")
    assert (state["a"], state["user:delta"], "temp:t" in state) == (1, "u", False)
    server.run("delta", "recall temp:t", **HANDY)
    assert "recall temp:t None" in server.did()


def deltas(events: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:  # Any: JSON
    """What each event says about the state, and by which of them; those that say nothing are left out."""
    told = ((event["content"]["parts"][0], event["actions"]["stateDelta"]) for event in events if "content" in event)
    return [(next(iter(part)), delta) for part, delta in told if delta]


def test_what_a_tool_does_to_the_state_is_on_the_event_of_its_result(server: ServerProcess) -> None:
    server.post(handy("changed"), {"old": "1"})
    told = server.run("changed", "remember a=1", **HANDY, stateDelta={"sent": 1}).body
    assert deltas(told) == [("functionResponse", {"a": "1"})]
    shared = server.run("changed", "remember user:delta=2", **HANDY).body
    assert deltas(shared) == [("functionResponse", {"user:delta": "2"})]
    assert deltas(server.run("changed", "remember a=1", **HANDY).body) == [], "nothing has changed"
    assert deltas(server.run("changed", "remember temp:x=1", **HANDY).body) == []
    stored = server.get(handy("changed")).body["events"]
    assert deltas(stored) == [("text", {"sent": 1}), *deltas(told), *deltas(shared)]
    with server.open_stream("GET", f"/runs/run_{told[0]['invocationId'][2:]}/events") as frames:
        assert deltas([event for _, event in frames]) == deltas(told)


def test_what_a_client_does_to_the_state_of_a_live_run_is_not_told_as_the_runs(server: ServerProcess) -> None:
    server.post(handy("both"))
    caller = server.run_in_thread("both", "pause 1; remember mine=1", **HANDY)
    server.until_did("pause remember mine=1")
    assert server.http("PATCH", handy("both"), {"stateDelta": {"theirs": 2}}).status == 200
    assert deltas(caller.answer().body) == [("functionResponse", {"mine": "1"})]
    assert state_of(server, "both") == {"mine": "1", "theirs": 2} | shared_values(server)


def shared_values(server: ServerProcess) -> dict[str, Any]:  # Any: JSON
    server.post(handy("fresh"))
    return state_of(server, "fresh")


def test_a_patch_is_stored_as_an_event_of_the_user_without_content(server: ServerProcess) -> None:
    server.create("patch")
    server.run("patch", "say before")
    server.http("PATCH", session_path("patch"), {"state_delta": {"a": 1, "gone": None, "temp:x": 1}})
    server.run("patch", "say after")
    events = server.events("patch")
    assert [event["author"] for event in events] == ["user", "worker", "user", "user", "worker"]
    patched = events[2]
    assert patched["invocationId"].startswith("p-")
    assert "content" not in patched
    assert patched["actions"]["stateDelta"] == {"a": 1, "gone": None}
    assert server.get(session_path("patch")).body["state"] == {"a": 1}
    assert len(server.prompts()[-1]) == 3, "a patch is no part of the conversation"


# -- imported conversations --------------------------------------------------------------------------------------------

CALL: dict[str, object] = {"functionCall": {"id": "c1", "name": "note", "args": {"text": "imported"}}}
RESULT: dict[str, object] = {"functionResponse": {"id": "c1", "name": "note", "response": {"result": "noted imported"}}}


def said(author: str, *given: dict[str, object], **more: object) -> dict[str, object]:
    role = "user" if author == "user" or "functionResponse" in given[0] else "model"
    return {"author": author, "content": {"role": role, "parts": list(given)}, **more}


def test_an_imported_conversation_is_shown_to_the_model_and_is_nothing_more(server: ServerProcess) -> None:
    events = [
        said("user", {"text": "hello"}),
        said("worker", CALL),
        said("worker", RESULT),
        said("worker", {"text": "ok"}),
    ]
    made = server.post("/apps/worker/users/ann/sessions", {"sessionId": "import", "events": events})
    assert made.status == 200
    assert texts(made.body["events"]) == ["hello", "ok"]
    assert all(event["customMetadata"] == {"safepointImported": True} for event in made.body["events"])
    assert server.run("import", "x", newMessage=None).status == 400, "there is nothing to go on with"
    server.run("import", "say next")
    assert [each["role"] for each in server.prompts()[-1]] == ["user", "assistant", "tool", "assistant", "user"]
    assert "note imported" not in server.did()


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([said("worker", CALL, longRunningToolIds=["c1"])], "long-running tool IDs"),
        ([said("user", {"text": "x"}, actions={"stateDelta": {"a": 1}})], "event actions"),
        ([said("worker", {"functionCall": {"id": "c", "name": "adk_request_input", "args": {}}})], "ADK protocol"),
        ([said("user", {"text": "x"}), said("worker", CALL)], "results"),
        ([said("user", {"text": "x"}), said("worker", RESULT)], "no conversation"),
        ([said("worker", {"text": "x"})], "no conversation"),
        ([{"author": "user", "content": {"role": "system", "parts": [{"text": "x"}]}}], "role"),
        ([said("user", {"text": "x"}, partial=True)], "partial"),
        ([said("user", {"txt": "x"})], "can't be read"),
    ],
)
def test_an_import_that_claims_to_be_more_is_400_and_makes_no_session(
    server: ServerProcess, events: list[object], why: str
) -> None:
    answer = server.post("/apps/worker/users/ann/sessions", {"sessionId": "forged", "events": events})
    assert (answer.status, why in answer.body["detail"]) == (400, True), answer
    assert server.get(session_path("forged")).status == 404


# -- marks, and repeated requests --------------------------------------------------------------------------------------


def test_custom_metadata_is_on_every_event_live_and_stored(server: ServerProcess) -> None:
    server.create("marks")
    tag = {"tag": "t1", "__adk_internal_x": 1, "safepointLedger": "a lie", "safepointImported": True}
    live = server.run("marks", "note marks", customMetadata=tag).body
    stored = server.events("marks")
    assert all(event["customMetadata"] == {"tag": "t1"} for event in (*live, *stored))
    assert [event["id"] for event in live] == [event["id"] for event in stored[1:]]
    assert live[-1]["usageMetadata"] == stored[-1]["usageMetadata"]


def test_a_repeated_key_gives_the_same_run_live_or_over_and_another_body_is_409(server: ServerProcess) -> None:
    server.create("key")
    more = {"idempotencyKey": "k1"}
    first, second = (server.run_in_thread("key", "note key; nap 0.5", **more) for _ in range(2))
    assert first.answer().body == second.answer().body
    assert server.run("key", "note key; nap 0.5", **more).body == first.answer().body
    assert server.run("key", "note other", **more).status == 409
    assert (server.did().count("note key"), "note other" in server.did()) == (1, False)
    server.create("key-elsewhere")
    assert server.run("key-elsewhere", "note elsewhere", **more).status == 200


# -- going on ----------------------------------------------------------------------------------------------------------


def test_an_answer_resumes_the_run_that_waits_under_its_old_invocation(server: ServerProcess) -> None:
    server.create("ask")
    events = server.run("ask", "ask name").body
    assert len({event["id"] for event in events}) == len(events), "each event once, in its last form"
    waits = next(event for event in events if event.get("longRunningToolIds"))
    answer = {"functionResponse": {"id": waits["longRunningToolIds"][0], "name": "ask", "response": {"result": "Eve"}}}
    body = message("ask", "", newMessage={"role": "user", "parts": [answer]})
    wrong = server.post("/run", {**body, "functionCallEventId": events[-1]["id"]})
    assert wrong.status == 400
    done = server.post("/run", {**body, "functionCallEventId": waits["id"]})
    assert {event["invocationId"] for event in done.body} == {waits["invocationId"]}
    assert "answer Eve" in server.did()
    states = {run["runId"]: run["state"] for run in server.get("/runs").body if run["sessionId"] == "ask"}
    assert set(states.values()) == {"ended"}
    assert server.post("/run", body).status == 400, "an answer counts once"
    assert server.did().count("answer Eve") == 1


def test_the_resume_route_answers_questions_by_their_id(server: ServerProcess) -> None:
    server.create("resume")
    events = server.run("resume", "ask color").body
    (question,) = events[-1]["customMetadata"]["safepointQuestions"]
    run_id = only_run(server, "resume")["runId"]
    assert server.post(f"/runs/{run_id}:resume").status == 400, "it waits for an answer"
    resumed = server.post(f"/runs/{run_id}:resume", {"answers": {question["id"]: "blue"}}).body
    assert until_over(server, resumed["runId"])["outcome"] == "end_turn"
    assert "answer blue" in server.did()
    assert server.post("/runs/run_nobody:resume").status == 404


def test_a_run_goes_on_only_by_the_invocation_that_was_stopped_last(server: ServerProcess) -> None:
    server.create("going")
    over = server.run("going", "say over").body[-1]["invocationId"]
    body = message("going", "", newMessage=None)
    assert server.post("/run", {**body, "invocationId": over}).status == 400
    naps = server.did().count("nap begins")
    caller = server.run_in_thread("going", "note going; nap 30")
    server.until_did("note going")
    server.until_did("nap begins", naps + 1)  # else it never ran, and would run when the run goes on
    server.cancel("going")
    stopped = caller.answer().body[-1]["invocationId"]
    assert server.post("/run", {**body, "invocationId": over}).status == 400
    told = server.post("/run", message("going", "say with these words", invocationId=stopped))
    assert texts(told.body)[-1] == "with these words "
    assert server.did().count("note going") == 1


def test_an_ask_can_be_withdrawn_until_it_is_acted_on(server: ServerProcess) -> None:
    server.post(handy("withdraw"))
    caller = server.run_in_thread("withdraw", "pause 2; note withdraw", **HANDY)
    server.until_did("pause note withdraw")
    asked = server.post(f"{handy('withdraw')}:cancel", {"at": "after_model", "waitSeconds": 0}).body["runs"][0]
    path = f"/runs/{asked['runId']}/asks/{asked['askId']}:withdraw"
    assert server.post(path).body["outcome"] == "withdrawn"
    assert "errorCode" not in caller.answer().body[-1]
    assert "note withdraw" in server.did()
    assert server.post(path).body["outcome"] in ("withdrawn", "too_late")
    assert server.post(f"/runs/{asked['runId']}/asks/ask-nobody:withdraw").status == 404


def test_a_steering_message_says_whether_it_joined(server: ServerProcess) -> None:
    server.create("steer")
    caller = server.run_in_thread("steer", "note steer; nap 2")
    server.until_did("note steer")
    run_id = only_run(server, "steer")["runId"]
    steered = {"newMessage": {"parts": [{"text": "say steered"}]}}
    assert server.post(f"/runs/{run_id}:steer", {**steered, "waitSeconds": 0}).body["outcome"] == "waiting"
    assert server.post(f"/runs/{run_id}:steer", steered).body == {"runId": run_id, "outcome": "joined"}
    assert "steered" in texts(caller.answer().body)[-1]
    late = server.post(f"/runs/{run_id}:steer", steered).body
    assert (late["outcome"], late["reason"]) == ("too_late", "the run is over")
    assert server.post(f"/runs/{run_id}:steer", {"newMessage": {"parts": []}}).status == 422


# -- composites, and what is not served --------------------------------------------------------------------------------


def streamed(server: ServerProcess, session: str, text: str, app: str) -> list[dict[str, Any]]:  # Any: JSON
    server.post(session_path(session, app=app))
    with server.stream(session, text, appName=app) as frames:
        return [event for _, event in frames]


def test_words_and_the_message_they_become_share_an_id_also_after_a_call(server: ServerProcess) -> None:
    seen = streamed(server, "shared", "say first; note shared", "worker")
    whole = [event for event in seen if "partial" not in event]
    assert [event["id"] for event in whole] == [event["id"] for event in server.events("shared")[1:]]
    said = {event["id"]: "".join(texts([event])) for event in whole}
    for piece in [event for event in seen if "partial" in event]:
        assert texts([piece])[0] in said[piece["id"]]
    assert [bool(event.get("partial")) for event in seen] == [True, False, False, True, False]


def test_a_sequence_streams_the_words_of_its_last_agent_as_its_own(server: ServerProcess) -> None:
    seen = streamed(server, "sequence", "say found; note sequence", "pipeline")
    *pieces, whole = seen
    assert {piece["id"] for piece in pieces} == {whole["id"]}
    assert "".join(texts(pieces)) == texts([whole])[0] == "second heard done "
    assert {event["author"] for event in seen} == {"pipeline"}
    assert server.get(session_path("sequence", app="pipeline")).body["events"][-1] == whole


def test_agents_that_hand_over_are_told_apart_live_and_stored(server: ServerProcess) -> None:
    seen = streamed(server, "hand", "hand over", "desk")
    stored = server.get(session_path("hand", app="desk")).body["events"]
    authors = [(event["author"], event["nodeInfo"]["path"]) for event in stored]
    assert authors == [
        ("user", "desk"),
        ("triage", "desk/triage"),
        ("triage", "desk/triage"),
        ("billing", "desk/billing"),
    ]
    pieces, whole = [event for event in seen if "partial" in event], [event for event in seen if "partial" not in event]
    assert [event["id"] for event in whole] == [event["id"] for event in stored[1:]]
    by_id = {event["id"]: event["author"] for event in stored}
    assert all(by_id[piece["id"]] == piece["author"] for piece in pieces)
    assert {piece["author"] for piece in pieces} == {"triage", "billing"}


def test_a_tool_that_says_it_handed_over_changes_no_author(server: ServerProcess) -> None:
    seen = streamed(server, "pretend", "pretend", "desk")
    stored = server.get(session_path("pretend", app="desk")).body["events"]
    assert "handed over to 'boss'" in str(stored)
    assert [event["author"] for event in stored] == ["user", "triage", "triage", "triage"]
    assert {event["author"] for event in seen} == {"triage"}


def test_branches_at_once_are_told_as_one_answer(server: ServerProcess) -> None:
    (whole,) = streamed(server, "branches", "say both", "crew")
    assert (whole["author"], texts([whole])[0].count("both")) == ("crew", 2)


def test_a_question_inside_a_composite_can_be_answered_over_the_wire(server: ServerProcess) -> None:
    (asking,) = streamed(server, "inside", "ask inside", "pipeline")
    (call,) = [part["functionCall"] for part in parts([asking])]
    assert (call["name"], asking["longRunningToolIds"]) == ("adk_request_input", [call["id"]])
    answer = {"functionResponse": {"id": call["id"], "name": call["name"], "response": {"result": "here"}}}
    body = message("inside", "", newMessage={"parts": [answer]}, appName="pipeline")
    done = server.post("/run", {**body, "functionCallEventId": asking["id"]})
    assert (done.status, "errorCode" in done.body[-1]) == (200, False)
    assert "answer here" in server.did()


def test_apps_are_described_with_all_their_agents(server: ServerProcess) -> None:
    detailed = server.get("/list-apps?detailed=true").body["apps"]
    assert {"name", "rootAgentName", "description", "language", "isComputerUse", "agents"} <= detailed[0].keys()
    info = server.get("/apps/worker/app-info").body["agents"]["worker"]
    assert info.keys() == {"name", "description", "instruction", "tools", "sub_agents"}
    declared = info["tools"][0]["functionDeclarations"][0]
    assert (declared["name"], declared["parametersJsonSchema"]["type"]) == ("nap", "object")
    desk = server.get("/apps/desk/app-info").body
    assert (desk["rootAgentName"], sorted(desk["agents"])) == ("desk", ["billing", "desk", "triage"])
    assert desk["agents"]["desk"]["sub_agents"] == ["triage", "billing"]
    assert server.get("/apps/nobody/app-info").status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/apps/worker/users/ann/sessions/s/artifacts"),
        ("GET", "/apps/worker/users/ann/sessions/s/artifacts/a/b.txt/versions/latest"),
        ("POST", "/apps/worker/users/ann/sessions/s/artifacts"),
        ("PATCH", "/apps/worker/users/ann/memory"),
        ("GET", "/dev/apps/worker/eval-sets"),
        ("POST", "/dev/apps/worker/eval-sets/x/run"),
        ("GET", "/apps/worker/eval_sets"),
        ("GET", "/debug/trace/abc"),
    ],
)
def test_what_adk_has_and_this_server_has_not_is_501_and_says_so(server: ServerProcess, method: str, path: str) -> None:
    answer = server.http(method, path, {})
    assert answer.status == 501
    assert answer.body["detail"].startswith("this server")
