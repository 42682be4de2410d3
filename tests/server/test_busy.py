"""A message for a session whose run is live: what each policy does, seen in the tool log and the stored history."""

from __future__ import annotations

import pytest

from tests.server.server_process import ServerProcess, texts


def asked(server: ServerProcess, session: str) -> list[str]:
    return texts([event for event in server.events(session) if event["author"] == "user"])


def test_reject_is_the_default_and_leaves_the_older_run_alone(server: ServerProcess) -> None:
    server.create("reject")
    older = server.run_in_thread("reject", "note reject; nap 0.5")
    server.until_did("note reject")
    assert server.run("reject", "say no").status == 409
    events = older.answer().body
    assert "errorCode" not in events[-1]
    assert asked(server, "reject") == ["note reject; nap 0.5"]


def test_a_queued_message_runs_after_the_older_run(server: ServerProcess) -> None:
    server.create("queue")
    older = server.run_in_thread("queue", "note queue; nap 0.3")
    server.until_did("note queue")
    newer = server.run("queue", "say second", ifBusy="queue")
    assert texts(newer.body) == ["second "]
    assert "errorCode" not in older.answer().body[-1]
    assert asked(server, "queue") == ["note queue; nap 0.3", "say second"]


def test_a_steering_message_joins_the_older_run_and_its_caller_gets_that_runs_answer(server: ServerProcess) -> None:
    server.create("steer")
    older = server.run_in_thread("steer", "note steer; nap 0.5")
    server.until_did("note steer")
    newer = server.run("steer", "say joined", ifBusy="steer")
    assert texts(newer.body)[-1] == "joined "
    assert older.answer().body[-1] == newer.body[-1]
    runs = server.get("/runs?user=ann").body
    assert [run["outcome"] for run in runs if run["sessionId"] == "steer"] == ["joined", "end_turn"]


def test_a_steering_message_that_is_cancelled_while_it_waits_never_joins(server: ServerProcess) -> None:
    server.create("taken-back")
    older = server.run_in_thread("taken-back", "note taken-back; nap 0.8")
    server.until_did("note taken-back")
    newer = server.run_in_thread("taken-back", "note never-joins", ifBusy="steer")
    waiting = server.run_of("taken-back", "queued")
    assert server.post(f"/runs/{waiting}:cancel").body["runs"][0]["outcome"] == "stopped"
    assert newer.answer().body[-1]["errorCode"] == "INVOCATION_ABORTED"
    assert "errorCode" not in older.answer().body[-1]
    assert "note never-joins" not in server.did()
    assert asked(server, "taken-back") == ["note taken-back; nap 0.8"]


@pytest.mark.parametrize("policy", ["preempt", "interrupt", "rollback"])
def test_a_preempting_message_stops_the_older_run_and_then_runs(server: ServerProcess, policy: str) -> None:
    server.create(policy)
    older = server.run_in_thread(policy, f"note {policy}; nap 30" if policy != "preempt" else "note preempt; nap 0.3")
    server.until_did(f"note {policy}")
    newer = server.run(policy, "say new", ifBusy=policy)
    assert texts(newer.body) == ["new "]
    stopped = older.answer()
    assert (stopped.status, stopped.body[-1]["errorCode"]) == (200, "INVOCATION_ABORTED")
    first = [f"note {policy}; nap 30"] if policy == "interrupt" else []
    first = ["note preempt; nap 0.3"] if policy == "preempt" else first
    assert asked(server, policy) == [*first, "say new"]


def test_a_queued_message_can_be_cancelled_alone_and_never_runs(server: ServerProcess) -> None:
    server.create("withdraw")
    older = server.run_in_thread("withdraw", "note withdraw; nap 0.8")
    server.until_did("note withdraw")
    newer = server.run_in_thread("withdraw", "note never", ifBusy="queue")
    queued = server.run_of("withdraw", "queued")
    answer = server.post(f"/runs/{queued}:cancel", {"reason": "changed my mind"})
    assert answer.body["runs"][0]["outcome"] == "stopped"
    assert newer.answer().body[-1]["errorCode"] == "INVOCATION_ABORTED"
    assert "errorCode" not in older.answer().body[-1]
    assert "note never" not in server.did()


def test_a_patch_of_the_state_does_not_kill_the_run_and_is_kept(server: ServerProcess) -> None:
    server.create("patch")
    older = server.run_in_thread("patch", "note patch; nap 0.4")
    server.until_did("note patch")
    path = "/apps/worker/users/ann/sessions/patch"
    assert server.http("PATCH", path, {"stateDelta": {"colour": "green"}}).status == 200
    assert "errorCode" not in older.answer().body[-1]
    assert server.get(path).body["state"] == {"colour": "green"}
    assert texts(server.run("patch", "say fine").body) == ["fine "]
    assert server.get(path).body["state"] == {"colour": "green"}


def test_the_same_idempotency_key_gives_the_same_run_live_or_over(server: ServerProcess) -> None:
    server.create("twice")
    first = server.run_in_thread("twice", "note twice; nap 0.4", idempotencyKey="k")
    server.until_did("note twice")
    second = server.run("twice", "note twice; nap 0.4", idempotencyKey="k")
    third = server.run("twice", "note twice; nap 0.4", idempotencyKey="k")
    assert first.answer().body == second.body == third.body
    assert server.did().count("note twice") == 1
    assert server.run("twice", "note other", idempotencyKey="k").status == 409
    assert "note other" not in server.did()
