"""Each framework bare and under Safepoint, side by side: the stop score, and what the adapter costs per run.

    python -m bench.compare.adapted langgraph      in the framework's environment: JSON on one line
    python -m bench.compare.adapted --all          each of them in its own; writes bench/results/adapted.md

Both sides run in one process and take turns, so a slow minute of the machine affects both.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import statistics
import subprocess
import sys
import warnings
from typing import Any

from bench.compare import score, speed
from bench.compare.contestants import CONTESTANTS, FOLDER, ROOT, variables
from bench.compare.contract import Framework

FRAMEWORKS = ("pydantic_ai", "langgraph", "openai_agents", "strands", "google_adk")
ROUNDS, SECONDS = 7, 0.4
RESULTS = ROOT / "bench" / "results" / "adapted.md"


async def compare(name: str) -> dict[str, Any]:  # Any: JSON
    """The answers and the ratios of one framework. Cancellation: ends it."""
    peers = importlib.import_module(f"bench.peers.{name}")
    bare: Framework = peers.Adapter()
    under: Framework = importlib.import_module("bench.peers.adapted").Adapter(name)
    costs = {work: await overhead(bare, under, tools) for work, tools in speed.TOOLS.items()}
    answers = {side: await judged(framework) for side, framework in (("bare", bare), ("under", under))}
    return {"overhead": costs, "answers": answers}


async def overhead(bare: Framework, under: Framework, tools: int) -> float:
    """The time of a streamed run under Safepoint, divided by that of a bare one: the median of rounds in turns."""
    sides = [speed.make(framework, tools) for framework in (bare, under)]
    ratios: list[float] = []
    for _ in range(ROUNDS):
        rates = [await speed.rate(side, "streamed", SECONDS) for side in sides]
        ratios.append(rates[0] / rates[1])
    return statistics.median(ratios)


async def judged(framework: Framework) -> dict[str, bool]:
    return {name: (await score.judge(framework, name)).yes for name in score.NAMES}


def table(found: dict[str, dict[str, Any]]) -> str:  # Any: JSON
    """The Markdown of it."""
    lines = [
        "| framework | stop score bare | under Safepoint | time of a run: plain | 1 tool | 10 tools |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, each in found.items():
        title = next(peer.title for peer in CONTESTANTS if peer.name == name)
        scores = [sum(each["answers"][side].values()) for side in ("bare", "under")]
        costs = [f"× {each['overhead'][work]:.2f}" for work in speed.TOOLS]
        lines.append(f"| {title} | {scores[0]} of {len(score.NAMES)} | {scores[1]} | {' | '.join(costs)} |")
    return "\n".join(lines) + "\n"


def compare_all() -> None:
    """Each in its environment, one after the other."""
    found: dict[str, dict[str, Any]] = {}  # Any: JSON
    for name in FRAMEWORKS:
        command = [str(FOLDER / name / "bin" / "python"), "-m", "bench.compare.adapted", name]
        done = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            continue
        found[name] = json.loads(done.stdout.splitlines()[-1])
        for question, yes in found[name]["answers"]["under"].items():
            if not yes:
                print(f"{name} under Safepoint: no to {question!r}", file=sys.stderr)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(table(found))
    print(table(found))


def main(word: str) -> None:
    if word == "--all":
        compare_all()
        return
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    answer = json.dumps(asyncio.run(compare(word)))
    print(f"\n{answer}", flush=True)
    os._exit(0)  # threads that a framework left behind must not hold the process


if __name__ == "__main__":
    main(sys.argv[1])
