"""`python -m bench` runs every benchmark in a process of its own and does not hide one that failed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bench.__main__ import find_benches, main, run_benches
from tests.house.tree import ROOT


def test_every_bench_runs_under_its_own_heading(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("b", "a"):
        (tmp_path / f"bench_{name}.py").write_text(f"import os\ndef main(): print('{name} ran in', os.getpid())")
    assert run_benches(tmp_path) == []
    printed = capfd.readouterr().out.split()
    assert [word for word in printed if word in ("a", "b")] == ["a", "a", "b", "b"]
    assert len({word for word in printed if word.isdigit()}) == 2


def test_a_bench_that_fails_is_named_and_the_others_still_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench_a.py").write_text("def main(): 1 / 0")
    (tmp_path / "bench_b.py").write_text("def main(): print('b ran')")
    assert run_benches(tmp_path) == ["a"]
    assert "b ran" in capfd.readouterr().out


def test_a_bench_is_run_by_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"bench_{name}.py").write_text(f"def main(): print('{name} ran')")
    assert run_benches(tmp_path, ["b"]) == []
    printed = capfd.readouterr().out
    assert "b ran" in printed
    assert "a ran" not in printed


@pytest.mark.parametrize("name", ["run", "cancel", "memory", "import", "compose", "server"])
def test_the_benches_of_ours_keep_their_names(name: str) -> None:
    assert name in find_benches(ROOT / "bench")


@pytest.mark.parametrize("name", find_benches(ROOT / "bench"))
def test_the_main_of_a_bench_is_a_plain_function(name: str) -> None:
    """What an async one returns is never awaited: the bench would measure nothing, and succeed."""
    tree = ast.parse((ROOT / "bench" / f"bench_{name}.py").read_text())
    assert [type(part) for part in tree.body if getattr(part, "name", "") == "main"] == [ast.FunctionDef]


def test_an_unknown_bench_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match=r"no benchmark nonsense: write compare, or some of asks, cancel, cluster,"):
        main(["nonsense"])


def test_no_bench_at_all_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benches(tmp_path) == []
    assert "no benchmark yet" in capsys.readouterr().out
