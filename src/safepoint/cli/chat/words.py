"""How a turn is told: one line for a call, the status line, what a stop would cut, the receipt, the tree. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from safepoint._core.ladder import Rung
from safepoint._core.reasons import Source
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.preview import Fate, Preview
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.usage import Usage
from safepoint.cli.chat.activity import Activity, Call, summary
from safepoint.cli.chat.lines import (
    ASCII,
    UNICODE,
    Line,
    Role,
    Signs,
    amber,
    bold,
    clean,
    columns,
    count,
    dim,
    ink,
    seconds,
    spread,
)
from safepoint.history.states import LedgerState
from safepoint.tools.options import Effect

NARROW: Final = 60
_NAME_COLUMNS: Final = 14
_TREE_COLUMNS: Final = 20  # of branches and a name in the tree, so that arguments stand below each other
RUNGS: Final = {
    Rung.SHIELDED: "in a part that must not be cut",
    Rung.FINISH: "finishing",
    Rung.CANCEL: "cleaning up",
    Rung.FLAG: "told, not reacting yet",
    Rung.RAISE: "interrupted by an exception",
    Rung.ASK: "its agent is stopping",
    Rung.TERM: "asked to quit",
    Rung.KILL: "killed",
    Rung.UNDO: "undoing",
    Rung.ABANDON: "did not react, let go, still running",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How lines are drawn: the width of the terminal and the signs that it can show."""

    width: int = 80
    signs: Signs = UNICODE

    @property
    def ascii(self) -> bool:
        return self.signs is ASCII

    def spinner(self, now: float) -> str:
        frames = self.signs.spinner
        return frames[int(now * 10) % len(frames)]


# -- calls -------------------------------------------------------------------------------------------------------------


def call_line(call: Call, now: float, look: Look, doing: str = "", *, names: int = _NAME_COLUMNS) -> Line:
    """Sign, name in so many columns, arguments, time. Below 60 columns the time is left out."""
    sign, role, word = _state_of(call, now, look)
    about = doing or word or summary(call.args)
    if word and not doing and call.over:
        about = f"{word}: {summary(call.args)}" if summary(call.args) else word
    left: Line = ((role, f"{sign} "), bold(call.name.ljust(names)), dim(f" {about}"))
    timed = call.running or (call.over and call.entry is not None and call.entry.started_at is not None)
    right: Line = (dim(seconds(call.seconds(now))),) if timed and look.width >= NARROW else ()
    return spread(left, right, look.width)


def _state_of(call: Call, now: float, look: Look) -> tuple[str, Role, str]:
    signs, entry = look.signs, call.entry
    match call.state:
        case LedgerState.NOT_STARTED:
            return (signs.never, Role.DIM, "not started") if call.over else (signs.queued, Role.DIM, "queued")
        case LedgerState.RUNNING:
            rung = call.rungs[-1][0] if call.rungs else None
            return look.spinner(now), Role.GREEN, RUNGS[rung] if rung is not None else ""
        case LedgerState.WAITING:
            return signs.question, Role.VIOLET, "asks you"
        case LedgerState.FAILED:
            return signs.failed, Role.RED, clean((entry.error if entry else None) or "failed")
        case LedgerState.CUT if call.in_doubt:
            still = entry is not None and entry.still_running
            return signs.doubt, Role.AMBER, "in doubt, still running" if still else "in doubt"
        case LedgerState.CUT:
            return signs.paused, Role.DIM, "cut, runs again on /resume"
        case LedgerState.STOPPED:
            return signs.paused, Role.DIM, "stopped at a safe point, can go on"
        case LedgerState.COMPENSATED:
            return signs.undone, Role.INK, "undone"
        case _:
            return signs.done, Role.GREEN, ""


def working_lines(activity: Activity, now: float, look: Look, tail: int) -> list[Line]:
    """The calls that run or wait, each with the last lines of its output."""
    lines: list[Line] = []
    for call in activity.top:
        if call.over:
            continue
        lines.append(call_line(call, now, look, _inside(activity, call)))
        if call.running:
            output = call.output.last(tail)
            bar = dim(f"  {look.signs.bar} ")
            lines += [spread((bar, ink(text) if text is output[-1] else dim(text)), (), look.width) for text in output]
    return lines


def _inside(activity: Activity, call: Call) -> str:
    """What the agent inside a call is doing, if there is one and it is not being stopped."""
    if call.rungs:
        return ""
    below = [each for each in activity.below(call) if each.running]
    if not below:
        return ""
    last = below[-1].output.last(1)
    return f"{below[-1].name}: {last[0] if last else summary(below[-1].args)}"


def tree_lines(activity: Activity, now: float, look: Look, chosen: int) -> list[Line]:
    """All calls of the turn below their agents; `chosen` is the number of the marked one."""
    lines: list[Line] = [
        spread(
            (bold(f"  {activity.root}"), dim(f"   step {activity.steps}")),
            (dim(seconds(now - activity.began)),),
            look.width,
        )
    ]
    calls = tree_order(activity)
    for number, call in enumerate(calls):
        mark = look.signs.chosen if number == chosen else " "
        stem = _stem(calls, number, look.signs)
        inner = Look(look.width - 2 - len(stem), look.signs)
        rest = call_line(call, now, inner, names=_TREE_COLUMNS - len(stem))
        lines.append(((Role.BOLD, f"{mark} "), dim(stem), *rest))
    return lines


def _stem(calls: list[Call], number: int, signs: Signs) -> str:
    """The branches left of a call: one for each level, drawn on where a sibling follows further below."""
    depth = calls[number].depth
    parts: list[str] = []
    for level in range(depth % 2, depth + 1, 2):
        follows = next((each.depth for each in calls[number + 1 :] if each.depth <= level), -1) == level
        if level == depth:
            parts.append(signs.branch if follows else signs.last)
        else:
            parts.append((signs.bar if follows else " ").ljust(len(signs.branch)))
    return "".join(f"{part} " for part in parts)


def tree_order(activity: Activity) -> list[Call]:
    """Each call, followed by the calls of the agent inside it."""
    ordered: list[Call] = []

    def add(call: Call) -> None:
        ordered.append(call)
        for each in activity.below(call):
            if each.depth == call.depth + 2:
                add(each)

    for call in activity.top:
        add(call)
    return ordered + [call for call in activity.calls.values() if call not in ordered]


# -- while it works and while it stops ---------------------------------------------------------------------------------


def status_line(activity: Activity, now: float, look: Look, usage: Usage, hint: str) -> Line:
    """A rule with the time and the tokens in it."""
    rule = look.signs.rule
    words = f"working {seconds(now - activity.began)}"
    if tokens := tokens_of(usage, look):
        words += look.signs.between + tokens
    left: Line = (dim(f"{rule} {words} "),)
    right: Line = (dim(f" {hint} {rule}"),) if look.width >= NARROW and hint else ()
    filler = max(0, look.width - columns(left) - columns(right))
    return (*left, dim(rule * filler), *right)


def thinking_line(since: float, now: float, look: Look) -> Line:
    words = f"thinking {seconds(now - since)}"
    if now - since > 20:
        words = f"The model has not answered for {seconds(now - since)}. Ctrl-C stops it, or wait."
    return ((Role.GREEN, f"{look.spinner(now)} "), dim(words))


_FATES: Final = (
    (Fate.IN_DOUBT, "cuts {} (in doubt)"),
    (Fate.MAY_NOT_REACT, "tells {} (may not react)"),
    (Fate.RUNS_AGAIN, "cuts {}"),
    (Fate.UNDONE, "undoes {}"),
    (Fate.CONTINUES, "stops {}, which can go on later"),
    (Fate.FINISHES, "lets {} finish"),
)


def preview_words(preview: Preview) -> str:
    """What that stop would do, as one sentence."""
    named = [(words, [call.name for call in preview.calls if call.fate is fate]) for fate, words in _FATES]
    words = ", ".join(words.format(_list(names)) for words, names in named if names) or "nothing is cut"
    bound = f" At most {seconds(preview.seconds)}." if preview.seconds else ""
    return f"{words[0].upper()}{words[1:]}.{bound}"


def _list(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(names))


# -- after it has ended ------------------------------------------------------------------------------------------------


def tokens_of(usage: Usage, look: Look) -> str:
    total = usage.input_tokens + usage.output_tokens
    if not total:
        return ""
    return f"{look.signs.about if usage.estimated else ''}{count(total)} tokens"


def end_lines(result: RunResult[Any], activity: Activity, took: float, look: Look) -> list[Line]:
    """What is said after a turn; nothing after a plain answer."""
    if result.stop_reason in (StopReason.END_TURN, StopReason.INTERRUPTED):
        return []
    if result.stop_reason is StopReason.CANCELLED:
        return receipt_lines(result, activity, took, look)
    words = {
        StopReason.MAX_STEPS: "Stopped at its number of steps, not finished.   /resume",
        StopReason.MAX_TOKENS: "The answer was cut off by the model's limit.   /resume",
        StopReason.REFUSED: "The model declined to answer.",
        StopReason.BUDGET: "Stopped at its limit.   /resume",
        StopReason.ERROR: f"Failed: {clean(result.error)}   /resume tries again",
    }
    role = Role.RED if result.stop_reason is StopReason.ERROR else Role.BOLD
    return [((role, f"{look.signs.stop} "), bold(words.get(result.stop_reason, str(result.stop_reason))))]


def who_stopped(result: RunResult[Any]) -> str:
    source = result.cancellation.reason.source if result.cancellation is not None else Source.USER
    return {
        Source.USER: "Stopped by you",
        Source.CALLER: "Stopped by the program",
        Source.BUDGET: "Stopped at its limit",
        Source.SHUTDOWN: "Stopped because the program was ended",
    }.get(source, "Stopped")


def receipt_lines(result: RunResult[Any], activity: Activity, took: float, look: Look) -> list[Line]:
    """One line; below it only the calls that need a look: in doubt, undone."""
    calls = list(activity.calls.values())
    forced = result.cancellation is not None and result.cancellation.level.name == "FORCE"
    counts = (
        (sum(call.state in (LedgerState.FINISHED, LedgerState.FAILED) for call in calls), "finished"),
        (sum(call.state is LedgerState.COMPENSATED for call in calls), "undone"),
        (sum(call.in_doubt for call in calls), "in doubt"),
        (sum(_can_go_on(call) for call in calls), "can go on"),
        (sum(call.state is LedgerState.NOT_STARTED for call in calls), "not started"),
    )
    facts = [f"{number} {word}" for number, word in counts if number]
    if result.text.strip():
        facts.insert(0, "text kept")
    if tokens := tokens_of(activity.usage, look):
        facts.append(tokens)
    time = seconds(took) if took >= 0.1 else f"{took * 1000:.0f} ms"
    verb = f"{who_stopped(result)} in {time}" if not forced else f"Forced after {time}"
    rest = look.signs.between.join(["", *facts])
    head: Line = ((Role.RED if forced else Role.BOLD, f"{look.signs.stop} "), bold(verb), ink(rest))
    shown = [call for call in calls if call.in_doubt or call.state is LedgerState.COMPENSATED]
    if not shown and columns(head) + 12 <= look.width:
        return [(*head, dim("   /resume"))]
    commands = dim("  /resume   /rewind   /why   or say what to do instead")
    return [head, *(_needs_a_look(call, look) for call in shown), (commands,)]


def _can_go_on(call: Call) -> bool:
    return call.state is LedgerState.STOPPED or (call.state is LedgerState.CUT and not call.in_doubt)


def _needs_a_look(call: Call, look: Look) -> Line:
    about = summary(call.args)
    if call.state is LedgerState.COMPENSATED:
        sign: tuple[Role, str] = (Role.INK, f"  {look.signs.undone} ")
        return spread((sign, bold(call.name.ljust(_NAME_COLUMNS)), ink(f" undone: {about}")), (), look.width)
    still = call.entry is not None and call.entry.still_running
    what = "in doubt, still running: it did not react" if still else f"in doubt: cut after {seconds(call.took)}"
    sign = (Role.AMBER, f"  {look.signs.doubt} ")
    return spread((sign, bold(call.name.ljust(_NAME_COLUMNS)), amber(f" {what}"), dim(f"  {about}")), (), look.width)


def why_lines(activity: Activity, took: float | None, now: float) -> list[Line]:
    """The story of the last stop, in the order in which it happened."""
    if not activity.asks:
        calls = len(activity.calls)
        return [(ink(f"Nothing was stopped. The last answer took {seconds(took or 0.0)} and {calls} calls."),)]
    lines: list[Line] = []
    for ask in activity.asks:
        if ask.path == activity.root:
            lines.append(
                (
                    ink(f"{_clock_time(ask.ask.asked_at)}  {ask.ask.reason.text or 'a stop'}: "),
                    bold(_level_words(ask.ask.at.level.name)),
                )
            )
    for call in activity.calls.values():
        climbed = " then ".join(RUNGS[rung] for rung, _ in call.rungs)
        state = _final_words(call)
        if climbed or state:
            lines.append((bold(f"{call.name}  "), ink("; ".join(filter(None, (climbed, state))))))
    return lines


def _level_words(level: str) -> str:
    return {"SAFE": "stop at the next safe point", "NOW": "stop now", "FORCE": "force"}.get(level, level)


def _final_words(call: Call) -> str:
    match call.state:
        case LedgerState.NOT_STARTED:
            return "never ran"
        case LedgerState.CUT if call.entry is not None and call.entry.still_running:
            return "it still runs; its result is used if it comes before you resume"
        case LedgerState.CUT if call.in_doubt:
            return f"was cut after {seconds(call.took)}; whether it took effect is not known"
        case LedgerState.CUT:
            return "was cut; it only reads, so it runs again on /resume"
        case LedgerState.COMPENSATED:
            return "was cut and undone"
        case LedgerState.STOPPED:
            return "stopped at a safe point and can go on"
        case LedgerState.FINISHED:
            return f"finished in {seconds(call.took)}"
        case LedgerState.FAILED:
            return "failed"
        case _:
            return ""


def _clock_time(wall: float) -> str:
    return datetime.fromtimestamp(wall).astimezone().strftime("%H:%M:%S")


def resume_words(checkpoint: Checkpoint) -> tuple[str, list[str]]:
    """What resuming would do, as a sentence; and the calls that are in doubt."""
    entries = [entry for entry in checkpoint.ledger if entry.call_id in checkpoint.calls]
    kept = [
        entry
        for entry in entries
        if entry.state in (LedgerState.FINISHED, LedgerState.FAILED, LedgerState.FINISHED_LATE)
    ]
    goes_on = [entry.name for entry in entries if entry.state is LedgerState.STOPPED]
    runs = [
        f"{entry.name}{' again' if entry.state is LedgerState.CUT else ''}"
        for entry in entries
        if entry.state in (LedgerState.NOT_STARTED, LedgerState.COMPENSATED, LedgerState.WAITING) or _is_mild_cut(entry)
    ]
    doubt = [entry.name for entry in entries if entry.state is LedgerState.CUT and not _is_mild_cut(entry)]
    parts = [f"keeps {len(kept)} result{'s' if len(kept) != 1 else ''}"] if kept else []
    parts += [f"{_list(goes_on)} goes on"] if goes_on else []
    parts += [f"runs {_list(runs)}"] if runs else []
    return ", ".join(parts) or "goes on where it stopped", doubt


def _is_mild_cut(entry: LedgerEntry) -> bool:
    return entry.state is LedgerState.CUT and entry.effect in (Effect.PURE, Effect.IDEMPOTENT)
