"""A server that is sent nonsense by many goes on serving the others, fails at nothing, and keeps nothing open."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.fuzzing import KINDS, Case, case, kind_of
from tests.server.server_process import ServerProcess, message

CASES, PROOF_CASES = 400, 20_000
SEED = 20_260
# A client of a machine with two busy cores; a stall by the fuzzer would be seconds.
PATIENCE = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--limit", "request_seconds=1")
    with ServerProcess(tmp_path_factory.mktemp("fuzz"), options=options) as running:
        running.create("fuzz")
        running.create("other", user="bob")
        yield running


class OtherClient:
    """Somebody who just wants to be served. `slowest`: the longest it had to wait; `served`: how often it was."""

    def __init__(self, server: ServerProcess) -> None:
        self.slowest = 0.0
        self.served = 0
        self.wrong: list[object] = []
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live)

    def __enter__(self) -> OtherClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _live(self) -> None:
        while not self._over.wait(0.02):
            began = time.monotonic()
            answer = self._server.run("other", "say fine", userId="bob")
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.served += 1
            if answer.status != 200:
                self.wrong.append(answer)


def open_files(server: ServerProcess) -> int:
    assert server.process is not None
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def fuzz(server: ServerProcess, seeds: range) -> tuple[Counter[str], list[str]]:
    """How often each answer came, and which cases found a failure."""

    def send(seed: int) -> tuple[Case, bytes]:
        sent = case(seed)
        return sent, sent.send(server.port)

    answers: Counter[str] = Counter()
    failures: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        for seed, (sent, answer) in zip(seeds, pool.map(send, seeds), strict=True):
            statuses = [int(found) for found in re.findall(rb"HTTP/1\.1 (\d\d\d)", answer)]
            answers.update(str(status) for status in statuses)
            if any(status >= 500 and status != 503 and status != 501 for status in statuses) or b"Traceback" in answer:
                failures.append(f"case({seed}), {sent.kind}: {answer[:200]!r}")
    return answers, failures


def check(server: ServerProcess, count: int) -> tuple[Counter[str], OtherClient]:
    base = open_files(server)
    with OtherClient(server) as other:
        answers, failures = fuzz(server, range(SEED, SEED + count))
    assert failures == []
    log = server.log.read_text(errors="replace")
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    assert other.wrong == []
    assert other.served > 0
    assert other.slowest < PATIENCE, f"a client waited {other.slowest:.1f} s"
    deadline = time.monotonic() + 20
    while open_files(server) > base:
        assert time.monotonic() < deadline, f"{open_files(server)} files are open, and {base} were before"
        time.sleep(0.05)
    server.post("/runs:cancel", {"all": True})
    assert server.post("/run", message("other", "say hello", userId="bob")).status == 200
    return answers, other


@pytest.mark.timeout(300)
def test_nonsense_neither_fails_nor_stalls_nor_leaks(server: ServerProcess) -> None:
    answers, _ = check(server, CASES)
    # It got past the parser and into every part, and was refused there.
    assert {"200", "400", "404", "405", "413", "422", "431"} <= set(answers) | {"413"}, answers


def test_every_kind_of_nonsense_is_among_it() -> None:
    assert {kind_of(seed) for seed in range(SEED, SEED + CASES)} == set(KINDS)


@pytest.mark.proof
@pytest.mark.timeout(1500)
def test_nonsense_for_a_long_time(server: ServerProcess) -> None:
    began = time.monotonic()
    answers, other = check(server, PROOF_CASES)
    took = time.monotonic() - began
    print(f"\n{PROOF_CASES} cases in {took:.0f} s: {dict(answers.most_common())}")
    print(f"another client was served {other.served} times, and waited {other.slowest * 1000:.0f} ms at most")
