"""Run benchmarks: all of ours with `python -m bench`, some with `python -m bench NAME …`, peers with `… compare`.

A benchmark is a module `bench/bench_<noun>.py` with a `main()` that prints what it measured. Each runs in a process
of its own, so that none inherits the heap, the threads or the loop of another. `compare` is a program of its own,
with options: `bench/README.md`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMPARE = "compare"


def find_benches(directory: Path) -> list[str]:
    """The names of the benchmarks, in order."""
    return sorted(file.stem.removeprefix("bench_") for file in directory.glob("bench_*.py"))


def run_benches(directory: Path, names: Sequence[str] | None = None) -> list[str]:
    """Run these, or all in the order of their names; return the names of those that failed."""
    failed: list[str] = []
    chosen = find_benches(directory) if names is None else names
    if not chosen:
        print(f"no benchmark yet: there is no bench_*.py in {directory.name}/")
    for name in chosen:
        print(f"\n== {name} ==", flush=True)
        program = f"from {directory.name}.bench_{name} import main; main()"
        if subprocess.run([sys.executable, "-c", program], cwd=directory.parent, check=False).returncode:
            failed.append(name)
    return failed


def main(arguments: Sequence[str]) -> None:
    if arguments and arguments[0] == COMPARE:
        from bench.compare.program import main as compare

        return compare(arguments[1:])
    here = Path(__file__).resolve().parent
    known = find_benches(here)
    if unknown := [name for name in arguments if name not in known]:
        sys.exit(f"no benchmark {', '.join(unknown)}: write {COMPARE}, or some of {', '.join(known)}")
    if failures := run_benches(here, arguments or None):
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main(sys.argv[1:])
