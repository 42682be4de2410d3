"""Measure every framework side by side and write the results: `python -m bench compare [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.charts import draw
from bench.compare.contestants import CONTESTANTS, ROOT, environment
from bench.compare.figures import Report
from bench.compare.markdown import put_summary, report_text, summary
from bench.compare.rounds import FULL, QUICK, TINY, Measurement, Size
from bench.compare.servers import measure_servers

SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}
NAMES = tuple(contestant.name for contestant in CONTESTANTS)
ADK = "google_adk"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and where to write it. `readme`: the file that gets the summary."""

    size: str = "full"
    names: Sequence[str] = NAMES
    results: Path = ROOT / "bench" / "results"
    readme: Path | None = None
    servers: bool = True


def measure(options: Options) -> Report:
    """The whole report, written to the folder of results."""
    report = asyncio.run(_measure(SIZES[options.size], options.names))
    report["size"] = options.size
    write(report, options)  # what was measured is kept, whatever becomes of the servers
    if options.servers and ADK in report["frameworks"]:
        _say("servers")
        report["servers"] = _measure_servers(report, rounds=5 if options.size == "full" else 1)
        write(report, options)
    return report


def write(report: Report, options: Options) -> None:
    """JSON, Markdown, charts, and the summary if there is a file for it."""
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "results.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    (options.results / "results.md").write_text(report_text(report))
    for name, chart in draw(report).items():
        (options.results / name).write_text(chart)
    if options.readme is not None:
        put_summary(options.readme, summary(report))


async def _measure(size: Size, names: Sequence[str]) -> Report:
    measurement = Measurement(size, _say)
    try:
        await measurement.invite(names, renew=size is FULL)
        await measurement.measure()
    finally:
        await measurement.close()
    return measurement.report


def _measure_servers(report: Report, *, rounds: int) -> list[dict[str, object]]:
    adk = next(contestant for contestant in CONTESTANTS if contestant.name == ADK)
    try:
        return measure_servers(environment(adk, renew=False), rounds=rounds)
    except Exception as problem:  # two servers of two projects: what goes wrong there is reported with the rest
        report["missing"].append({"framework": adk.title, "what": "server", "why": repr(problem)[-300:]})
        return []


def _say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short form: see that it works; the README stays")
    parser.add_argument("--only", default=",".join(NAMES), help="names of adapters, with commas between them")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="folder to write to")
    parser.add_argument("--again", action="store_true", help="write the results anew from results.json")
    given = parser.parse_args(arguments)
    names: list[str] = given.only.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no adapter {', '.join(unknown)}: write some of {', '.join(NAMES)}")
    whole = not given.quick and tuple(names) == NAMES
    options = Options(
        size="quick" if given.quick else "full",
        names=names,
        results=given.results,
        readme=ROOT / "README.md" if whole else None,
    )
    if given.again:
        write(json.loads((options.results / "results.json").read_text()), options)
    else:
        measure(options)
    _say((options.results / "results.md").read_text())
