"""Run every benchmark: `python -m bench`.

A benchmark is a module `bench/bench_<noun>.py` with a `main()` that prints what it measured. Each runs in a process
of its own, so that none inherits the heap, the threads or the loop of another.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_benches(directory: Path) -> list[str]:
    """Run them in the order of their names; return the names of those that failed."""
    failed: list[str] = []
    names = sorted(file.stem for file in directory.glob("bench_*.py"))
    if not names:
        print(f"no benchmark yet: there is no bench_*.py in {directory.name}/")
    for name in names:
        print(f"\n== {name.removeprefix('bench_')} ==", flush=True)
        program = f"from {directory.name}.{name} import main; main()"
        if subprocess.run([sys.executable, "-c", program], cwd=directory.parent, check=False).returncode:
            failed.append(name)
    return failed


if __name__ == "__main__":
    failures = run_benches(Path(__file__).resolve().parent)
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")
