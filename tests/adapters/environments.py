"""`make test-adapters`: the tests of the adapters with each framework's newest version, in an environment of its own.

The environments are those of the benchmarks. `python -m tests.adapters.environments langgraph strands` runs two.
"""

from __future__ import annotations

import os
import subprocess
import sys

from bench.compare.contestants import CONTESTANTS, ROOT, Contestant, environment, variables

FRAMEWORKS = ("pydantic_ai", "langgraph", "openai_agents", "strands", "google_adk")
# What the tests need beside the framework: Safepoint as it stands here, and a server's parts for its run manager.
TESTED_WITH = (
    "pytest>=9.0",
    "pytest-timeout>=2.4",
    "pytest-xdist>=3.8",
    "fastapi>=0.162",
    "uvicorn",
    "websockets",
    "-e",
    str(ROOT),
)


def main(names: list[str]) -> int:
    """Returns how many frameworks failed."""
    failed = 0
    for name in names or FRAMEWORKS:
        [peer] = [each for each in CONTESTANTS if each.name == name]
        python = environment(Contestant(name, peer.title, (*peer.packages, *TESTED_WITH)), renew=True)
        print(f"== {peer.title}", flush=True)
        command = [str(python), "-m", "pytest", "-n0", "-q", "-m", "adapters", "tests/adapters"]
        done = subprocess.run(command, cwd=ROOT, env=variables() | {"SAFEPOINT_FRAMEWORK": name}, check=False)
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
