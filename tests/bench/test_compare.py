"""`python -m bench compare`, with Safepoint and bare asyncio only: the peers are for `make bench`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.compare.contestants import Contestant, NotInstalled
from bench.compare.contract import Note, Result, flaws
from bench.compare.figures import Report, Row
from bench.compare.markdown import put_summary, report_text, summary
from bench.compare.program import Options, measure
from bench.compare.rounds import TINY, Measurement
from bench.compare.score import NAMES
from bench.compare.speed import LENGTHS, conversation
from bench.compare.stops import PLACES
from tests.house.tree import ROOT

ASKED = Note("user", "go")
CALL = Note("assistant", calls=("a", "b"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    measure(Options(size="tiny", names=("safepoint", "bare"), results=folder, servers=False))
    return folder


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    read: Report = json.loads((results / "results.json").read_text())
    return read


@pytest.mark.timeout(240)
def test_safepoint_answers_every_question_of_the_stop_score_with_yes(report: Report) -> None:
    answers = report["frameworks"]["safepoint"]["score"]
    assert list(answers) == list(NAMES)
    assert {question: answer["why"] for question, answer in answers.items() if not answer["yes"]} == {}


@pytest.mark.timeout(240)
def test_every_stop_leaves_a_valid_history(report: Report) -> None:
    found = report["frameworks"]["safepoint"]["stop"]
    assert list(found) == list(PLACES)
    assert all(stop["valid"] and stop["ended"] for stops in found.values() for stop in stops)


@pytest.mark.timeout(240)
def test_nothing_is_left_unmeasured_or_unwritten(report: Report, results: Path) -> None:
    assert report["missing"] == []
    assert report["absent"] == {}
    written = (results / "results.md").read_text()
    assert all(question in written for question in NAMES)
    for chart in "speed.svg", "growth.svg", "stop.svg", "score.svg":
        assert chart in written
        assert ElementTree.parse(results / chart).getroot().tag.endswith("svg")


@pytest.mark.timeout(240)
def test_the_summary_goes_between_the_markers_of_the_readme(report: Report, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text()
    readme.write_text(text)
    put_summary(readme, summary(report))
    put_summary(readme, summary(report))
    changed = readme.read_text()
    assert "24 of 24" in changed
    assert changed.startswith(text.partition("<!-- bench: begin -->")[0])
    assert changed.endswith(text.partition("<!-- bench: end -->")[2])


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Nothing\n")
    with pytest.raises(ValueError, match="has no place for the summary"):
        put_summary(tmp_path / "README.md", "a table")


def test_a_peer_that_cannot_be_installed_is_reported_with_the_reason() -> None:
    def refuse(contestant: Contestant, /, *, renew: bool) -> Path:
        raise NotInstalled(f"no version of {contestant.packages[0]} for this Python")

    async def invite() -> Report:
        measurement = Measurement(TINY, lambda _: None, refuse)
        await measurement.invite(["agno"], renew=False)
        return measurement.report

    report = asyncio.run(invite())
    assert report["absent"] == {"Agno": "no version of agno for this Python"}
    assert "Agno could not be installed: no version of agno for this Python" in report_text(report)
    assert "| Agno | not installed |" in summary(report)


@pytest.mark.parametrize(
    ("notes", "found"),
    [
        pytest.param([ASKED, Note("assistant", "done")], 0, id="words"),
        pytest.param([ASKED, CALL, Note("tool", results=(Result("a", ""), Result("b", "")))], 0, id="answered"),
        pytest.param([ASKED, CALL, Note("tool", results=(Result("b", ""),)), ASKED], 1, id="one is not answered"),
        pytest.param([ASKED, CALL], 2, id="none is answered"),
        pytest.param([ASKED, Note("tool", results=(Result("a", ""),))], 1, id="an answer to nothing"),
        pytest.param(
            [ASKED, CALL, Note("tool", results=(Result("a", ""), Result("b", ""), Result("a", "")))], 1, id="two"
        ),
        pytest.param([Note("assistant", "done")], 1, id="nothing was asked"),
    ],
)
def test_the_checker_of_histories_finds_calls_and_results_that_do_not_pair_up(notes: list[Note], found: int) -> None:
    assert len(flaws(notes)) == found


@pytest.mark.parametrize("length", [*LENGTHS[:3]])
def test_a_conversation_is_as_long_as_it_says_and_valid(length: int) -> None:
    notes = conversation(length)
    assert len(notes) == length
    assert flaws(notes) == []


def test_a_peer_that_is_faster_is_named_as_the_best_and_the_floor_is_not() -> None:
    more = Row("plain", "runs/s", {"safepoint": 100.0, "agno": 200.0, "bare": 900.0}, "more", {})
    less = Row("silent stream", "ms", {"safepoint": 1.0, "agno": 4.0, "bare": 0.1}, "less", {})
    assert (more.best(), more.lead(), more.of_floor()) == ("agno", 0.5, 9.0)
    assert (less.best(), less.lead(), less.of_floor()) == ("safepoint", 4.0, 10.0)


def test_where_a_peer_wins_the_report_says_so(report: Report) -> None:
    faster = json.loads(json.dumps(report))
    peer = faster["frameworks"]["agno"] = json.loads(json.dumps(faster["frameworks"]["bare"]))
    peer["title"] = "Agno"
    told = report_text(faster).partition("## Where a peer wins")[2]
    assert ": Agno is" in told
    assert "stop, silent stream, p50: Agno is" in told
    assert "plain, called (Agno)" in summary(faster)
