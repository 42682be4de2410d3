"""Whatever fits the server's own description of itself, and whatever does not, is answered and not failed at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from tests.server.guarded import Guarded
from tests.server.server_process import session_path

# The status, the media type and the shape of each answer are named in the description.
CHECKS: Any = checks  # Any: its own types are left open in part
AS_DESCRIBED = [CHECKS.status_code_conformance, CHECKS.content_type_conformance, CHECKS.response_schema_conformance]
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]
EXAMPLES, PROOF_EXAMPLES = 2, 60
OURS = {"app": "worker", "user": "ann", "session": "done"}
OURS_IN_BODIES = {"appName": "worker", "userId": "ann", "sessionId": "done"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("schema"))
    with guarded.server:
        guarded.settle()
        yield guarded


def aim(case: Case[Any], runs: list[str], *, at_what_is_there: bool) -> Case[Any]:
    """Most ids that somebody makes up are of nothing; some of them shall be of something."""
    if not at_what_is_there:
        return case
    ours: dict[str, Any] = {**OURS, "run": runs[len(str(case.body)) % len(runs)]}  # Any: as schemathesis has it
    given_path: dict[str, Any] = case.path_parameters or {}  # Any: as above
    case.path_parameters = {name: ours.get(name, value) for name, value in given_path.items()}
    if isinstance(case.body, dict):
        case.body = {name: OURS_IN_BODIES.get(name, value) for name, value in case.body.items()}
    return case


def try_all(world: Guarded, examples: int) -> Counter[int]:
    """Every operation, with what fits its description and with what does not."""
    load: Callable[..., Any] = schemathesis.openapi.from_dict  # Any: its own types are left open in part
    schema = load(world.ask("boss", "GET", "/openapi.json").body)
    runs = [world.values[name] for name in ("DONE", "PAUSED")]
    seen: Counter[int] = Counter()
    failures: list[str] = []

    def send(case: Case[Any]) -> None:
        answer = case.call(base_url=world.origin, headers=world.bearer("boss"), timeout=20)
        if case.path == "/freezes" and case.method == "POST" and answer.status_code == 200:
            world.ask("boss", "POST", "/freezes:thaw")  # or nothing of what follows would begin
        seen[answer.status_code] += 1
        if (answer.status_code >= 500 and answer.status_code not in (501, 503)) or "Traceback" in answer.text:
            failures.append(f"{answer.status_code} {answer.text[:200]}\n{case.as_curl_command()[:500]}")
        if answer.status_code >= 400 and "json" not in str(answer.headers.get("content-type")):
            failures.append(f"{answer.status_code} without JSON: {answer.text[:100]}\n{case.as_curl_command()[:500]}")
        try:
            judged: Any = case  # Any: as above
            judged.validate_response(answer, checks=AS_DESCRIBED)
        except Exception as error:
            failures.append(f"{answer.status_code} is not as described: {error}\n{case.as_curl_command()[:500]}")

    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)

            @seed(1)
            @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=SLOW)
            @given(cases, st.booleans())
            def attempt(case: Case[Any], at_what_is_there: bool) -> None:
                send(aim(case, runs, at_what_is_there=at_what_is_there))

            # There is no wrong request where there is nothing to send.
            with suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else nullcontext():
                attempt()
    assert failures == []
    log = world.server.log.read_text(errors="replace")
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
    return seen


@pytest.mark.timeout(300)  # it makes requests of every shape, which takes most of its time
def test_every_operation_answers_everything(world: Guarded) -> None:
    seen = try_all(world, EXAMPLES)
    assert {200, 400, 404, 422} <= set(seen), seen
    assert world.ask("ann", "GET", session_path("live")).status in (200, 404)


@pytest.mark.proof
@pytest.mark.timeout(1500)
def test_every_operation_answers_everything_many_times(world: Guarded) -> None:
    seen = try_all(world, PROOF_EXAMPLES)
    print(f"\n{seen.total()} requests: {dict(seen.most_common())}")
