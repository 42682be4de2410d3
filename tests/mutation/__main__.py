"""Break Safepoint in every small way there is, and see whether a test notices: `python -m tests.mutation [module …]`.

Prints each mutant that survives or hangs, then a table. `survivors.txt` has those that are known to survive, each with
the reason; one that is not on the list, and an entry that no survivor answers to, make the command fail. Takes an hour
on one core.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from bench.table import Table
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.trials import OPTIONS, Trials, Verdict, judge_import

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "safepoint"
LIST: Final = Path(__file__).with_name("survivors.txt")
MODULES: Final = (
    *(f"_core/{path.name}" for path in sorted((SOURCE / "_core").glob("*.py"))),
    *(f"history/{name}.py" for name in ("check", "closing", "estimate", "wellformed")),
)
SUITES: Final = {"_core": "tests/core", "history": "tests/history"}
AIM: Final = 0.9


def read_list(text: str) -> dict[str, str]:
    """The reason for each survivor, by its name. An entry is a mutant's name and then `= ` with the reason."""
    entries = [entry for entry in text.split("\n\n") if entry.strip() and not entry.startswith("#")]
    parts = [entry.strip().rpartition("\n= ") for entry in entries]
    bare = [entry for entry, (name, _, reason) in zip(entries, parts, strict=True) if not name or not reason.strip()]
    if bare:
        raise ValueError(f"write a reason, `= …`, under:\n{bare[0]}")
    return {name: reason for name, _, reason in parts}


class Report:
    """What became of each mutant."""

    def __init__(self, listed: dict[str, str]) -> None:
        self._listed = listed
        self._tried: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._hung: Counter[str] = Counter()
        self._survivors: set[str] = set()

    def tell(self, mutant: Mutant, verdict: Verdict) -> None:
        self._tried[mutant.module] += 1
        if verdict is Verdict.HUNG:
            self._hung[mutant.module] += 1
            print(f"hangs:\n{mutant.name}\n", flush=True)
        if verdict is not Verdict.SURVIVED:
            return
        self._survivors.add(mutant.name)
        if mutant.name in self._listed:
            self._known[mutant.module] += 1
        else:
            self._new[mutant.module] += 1
            print(f"{mutant.name}\n", flush=True)

    def finish(self) -> int:
        """Print the table; the exit code."""
        table, tried = (
            Table("module", "mutants", "killed", "of these hung", "listed", "not listed", "killed"),
            self._tried,
        )
        counts = (tried, self._hung, self._known, self._new)
        for module in tried:
            table.add(*_row(module, *(count[module] for count in counts)))
        table.add(*_row("all", *(count.total() for count in counts)))
        table.show()
        stale = [name for name in self._listed if name.partition(":")[0] in tried and name not in self._survivors]
        for name in stale:
            print(f"\non the list, and no survivor:\n{name}")
        too_few = self._known.total() + self._new.total() > (1 - AIM) * tried.total()
        return int(bool(stale) or self._new.total() > 0 or too_few)


def _row(name: str, tried: int, hung: int, known: int, new: int) -> tuple[str, ...]:
    killed = tried - known - new
    return name, str(tried), str(killed), str(hung), str(known), str(new), f"{killed / max(1, tried):.1%}"


def main(words: list[str]) -> int:
    modules = [module for module in MODULES if not words or Path(module).stem in words]
    if not modules:
        raise SystemExit(f"{' '.join(words)}: no such module; write names like {Path(MODULES[1]).stem}")
    report = Report(read_list(LIST.read_text()))
    every = [
        mutant for module in modules for mutant in mutants((SOURCE / module).read_text(), module, str(SOURCE / module))
    ]
    _try_imports([mutant for mutant in every if not mutant.in_body], report)
    settings.load_profile("mutation")
    trials = Trials([mutant for mutant in every if mutant.in_body], report.tell, SOURCE)
    suites = sorted({SUITES[Path(module).parent.name] for module in modules})
    if pytest.main([*OPTIONS, *suites], plugins=[trials]) != pytest.ExitCode.OK:
        return 2
    return report.finish()


def _try_imports(imports: list[Mutant], report: Report) -> None:
    tame: set[str] = set()
    for mutant in imports:
        path = SOURCE / mutant.module
        suite = SUITES[path.parent.name]
        own = [str(test) for test in (ROOT / suite).glob(f"test_{path.stem}.py")]
        suites = [own, [suite]] if own else [[suite]]
        name = f"safepoint.{mutant.module.removesuffix('.py').replace('/', '.')}"
        if mutant.module not in tame:
            unchanged = compile(path.read_text(), path, "exec")
            if judge_import(name, unchanged, suites) is not Verdict.SURVIVED:
                raise SystemExit(f"the tests of {mutant.module} fail without any mutant")
            tame.add(mutant.module)
        report.tell(mutant, judge_import(name, mutant.code, suites))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
