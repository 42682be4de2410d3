"""How a stopped run continues: what is reused, runs again, is told, asked or refused. Decided once, in pure functions.

| ledger state of an open call          | on resume                                                            |
|----------------------------------------|----------------------------------------------------------------------|
| finished, failed, finished_late        | reused                                                               |
| not_started, compensated               | runs                                                                 |
| stopped                                | continues inside: a sub-agent at its own point, a tool with its save |
| waiting                                | runs again from its first line, with the answers                     |
| cut, and pure or idempotent            | runs again                                                           |
| cut otherwise                          | `on_unknown`: tell the model, ask a person, or rerun                 |

A call that would run, but whose tool is gone or has other parameters now, gets a truthful error result instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from msgspec import field
from msgspec.structs import replace

from safepoint._core.reasons import Reason
from safepoint._values import Value
from safepoint.agent.checkpoint import Checkpoint, OpenCall, Question, new_checkpoint_id, question_inside
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import CheckpointError, HistoryError
from safepoint.history.check import check_history
from safepoint.history.closing import close_history
from safepoint.history.parts import Message, Prompt, ToolCall, user_message
from safepoint.history.states import LedgerState
from safepoint.tools.base import BaseTool
from safepoint.tools.call_state import CallState
from safepoint.tools.options import Effect

OnUnknown: TypeAlias = Literal["tell", "ask", "rerun"]
Edit: TypeAlias = Callable[[list[Message]], list[Message]]

_SETTLED = frozenset({LedgerState.FINISHED, LedgerState.FAILED, LedgerState.FINISHED_LATE})


class Resume(Value, frozen=True):
    """A checkpoint and how to continue it.

    `message` is added to the conversation before the next model call. `answers` has one answer for each question, by
    id. `edit` may rewrite the messages before the open step. `fork` allows continuing one checkpoint more than once.
    """

    checkpoint: Checkpoint
    message: Prompt | None = None
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: people's answers
    edit: Edit | None = None
    on_unknown: OnUnknown = "tell"
    fork: bool = False

    def __post_init__(self) -> None:
        given: object = self.checkpoint
        if not isinstance(given, Checkpoint):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise CheckpointError(_no_checkpoint(given))
        if given.dropped:
            raise CheckpointError("a new message came after this checkpoint, so it can't be continued any more")
        if self.on_unknown not in ("tell", "ask", "rerun"):
            raise ValueError(f"on_unknown={self.on_unknown!r}: write 'tell', 'ask' or 'rerun'")
        known = {question.id: question for question in self.checkpoint.questions}
        if strangers := sorted(set(self.answers) - set(known)):
            if strangers[0] in {question.id for question in self.checkpoint.asked}:
                raise cleared_error(f"the question {strangers[0]!r}", self.checkpoint.reason)
            raise CheckpointError(f"no question has the id {strangers[0]!r}; the questions are {sorted(known)}")
        for id, answer in self.answers.items():
            if known[id].kind != "interrupt" and not isinstance(answer, bool | str):
                raise CheckpointError(f"the answer to {id!r} is True, False or a reason, not {answer!r}")

    def check(self, name: str) -> None:
        """Refuse an agent of another name, and a question without an answer."""
        if missing := sorted({question.id for question in self.checkpoint.questions} - set(self.answers)):
            raise CheckpointError(f"the question {missing[0]!r} has no answer: write answers={{{missing[0]!r}: …}}")
        self._check_agent(name)

    def _check_agent(self, name: str) -> None:
        if self.checkpoint.agent != name:
            made_by = self.checkpoint.agent
            raise CheckpointError(
                f"the checkpoint is of the agent {made_by!r}, this one is {name!r}: resume it with {made_by!r}"
            )

    def messages(self) -> list[Message]:
        """The open view, after `edit`; its last message may have open calls."""
        messages = list(self.checkpoint.open_messages)
        if self.edit is None:
            return messages
        last = messages[-1:] if messages and messages[-1].tool_calls else []
        edited = [*self.edit(messages[: len(messages) - len(last)]), *last]
        if not edited:
            raise HistoryError("edit=… has left no message: keep at least what the user has said")
        if not last and edited[-1].tool_calls:
            raise HistoryError("edit=… may not add calls that are still to be made: give each of them its result")
        check_history(close_history(edited))
        return edited

    def answered(self) -> Checkpoint:
        """The checkpoint with the answers in it, for a run that is stopped again before it has used them."""
        if not self.answers:
            return self.checkpoint
        calls = {id: _answered(self, call) for id, call in self.checkpoint.calls.items()}
        hooks = {name: _answered(self, hook) for name, hook in self.checkpoint.hooks.items()}
        return replace(self.checkpoint, calls=calls, hooks=hooks)

    def amendment(self) -> Message | None:
        return None if self.message is None else user_message(self.message)


def _no_checkpoint(given: object) -> str:
    if given is None:
        return "there is no checkpoint: a run that ended with an answer has none; go on with history=result.messages"
    hint = "Checkpoint.from_bytes(…)" if isinstance(given, bytes) else "result.checkpoint"
    return f"{type(given).__name__} is not a checkpoint: write {hint}"


class Unanswered(Resume, frozen=True):
    """For a run that is stopped before its first step: its questions stand, and are asked when it continues later."""

    def check(self, name: str) -> None:
        self._check_agent(name)


class Restored(Value, frozen=True):
    """How one open call continues. `runs` is false if its entry is already final; `saved` is its state before.

    `before`: the call's entry in the run before.
    """

    entry: LedgerEntry
    runs: bool
    saved: OpenCall
    before: LedgerEntry
    memory: CallState = field(default_factory=CallState)
    question: Question | None = None
    child: Resume | None = None


def restore(resume: Resume, call: ToolCall, tool: BaseTool | None) -> Restored:
    """Decide how one call of the open step continues."""
    checkpoint = resume.checkpoint
    entry = next(entry for entry in checkpoint.ledger if entry.call_id == call.id)
    saved = checkpoint.calls.get(call.id, OpenCall(call.id, ""))
    if entry.state in _SETTLED:
        return Restored(entry, False, saved, entry)
    if entry.state is LedgerState.CUT and entry.effect not in (Effect.PURE, Effect.IDEMPOTENT):
        return _unknown(resume, entry, saved, tool)
    return _again(resume, entry, saved, tool)


def _unknown(resume: Resume, entry: LedgerEntry, saved: OpenCall, tool: BaseTool | None) -> Restored:
    """Decide a call whose outcome is unknown and whose repetition may do harm."""
    decided = _answered(resume, saved).decided
    if decided is True or (resume.on_unknown == "rerun" and decided is None):
        return _again(resume, entry, saved, tool)
    if isinstance(decided, str):
        answered = replace(entry, state=LedgerState.FINISHED, content=f"A person says: {decided}")
        return Restored(answered, False, saved, entry)
    if resume.on_unknown == "ask" and decided is None:
        payload = f"The call {entry.name} was cut, its outcome is unknown. Run it again?"
        question = Question(f"{entry.call_id}:unknown", entry.name, payload, "unknown")
        return Restored(entry, False, saved, entry, question=question)
    return Restored(entry, False, _answered(resume, saved), entry)


def _again(resume: Resume, entry: LedgerEntry, saved: OpenCall, tool: BaseTool | None) -> Restored:
    if tool is None:
        return _refused(entry, saved, f"This call was not run again: there is no tool named {entry.name!r} any more.")
    if saved.tool and saved.tool != tool.fingerprint:
        return _refused(
            entry, saved, f"This call was not run again: the parameters of {entry.name!r} have changed since."
        )
    fresh = LedgerEntry(entry.call_id, entry.name, entry.args, effect=tool.options.effect, remote=tool.remote)
    remembered, inside = _remembered(resume, saved), resume_inside(resume, saved)
    return Restored(fresh, True, _answered(resume, saved), entry, remembered, None, inside)


def _remembered(resume: Resume, saved: OpenCall) -> CallState:
    question = saved.question
    if question is None or question.kind == "unknown" or question.id not in resume.answers:
        return saved.memory.copy()  # a question without an answer is asked again
    answer: Any = resume.answers[question.id]  # Any: the person's answer
    return saved.memory.with_approval(answer) if question.kind == "check" else saved.memory.with_answer(answer)


def _answered(resume: Resume, saved: OpenCall) -> OpenCall:
    question, decided = saved.question, saved.decided
    if question is not None and question.id in resume.answers:
        decided = resume.answers[question.id] if question.kind == "unknown" else decided
        question = None
    inside = resume_inside(resume, saved)
    child = inside.answered() if inside is not None else None
    return replace(saved, memory=_remembered(resume, saved), question=question, child=child, decided=decided)


def remembered_by_hooks(resume: Resume) -> dict[str, OpenCall]:
    """The state of the stopped run's hooks, with the answers to their questions."""
    return {name: OpenCall(name, "", _remembered(resume, hook)) for name, hook in resume.checkpoint.hooks.items()}


def resume_inside(resume: Resume, saved: OpenCall) -> Resume | None:
    """How the run inside that call or child continues; None if it left no checkpoint."""
    if saved.child is None:
        return None
    asked = [(question_inside(saved.call_id, question).id, question.id) for question in saved.child.questions]
    answers = {id: resume.answers[shown_id] for shown_id, id in asked if shown_id in resume.answers}
    # Only the outer checkpoint is limited to one continuation; the inner one goes with it.
    return Resume(saved.child, answers=answers, on_unknown=resume.on_unknown, fork=True)


def _refused(entry: LedgerEntry, saved: OpenCall, why: str) -> Restored:
    return Restored(replace(entry, state=LedgerState.FAILED, error=why), False, saved, entry)


class Cleared(Value, frozen=True):
    """Why a pause was cleared, and the id of the checkpoint from which its run now continues."""

    reason: Reason
    successor: str = field(default_factory=new_checkpoint_id)


def cleared_error(what: str, reason: Reason | None) -> CheckpointError:
    why = f" ({reason.text})" if reason is not None and reason.text else ""
    return CheckpointError(
        f"{what} can't be answered any more, the run was cancelled while it waited{why}: leave out answers=…, "
        "and it asks again"
    )


class Continued:
    """The checkpoints that were continued in this process, by id: a second time is refused, in any thread.

    In a session the store decides, but it knows only its own runs: a checkpoint continued in one of the two ways cannot
    be continued in the other. A process may live long, so only the newest `LIMIT` of each kind are kept.
    """

    LIMIT = 100_000

    def __init__(self) -> None:
        self._claims: dict[str, object | Cleared] = {}
        self._in_stores: dict[str, None] = {}
        # Who waits for an answer, by checkpoint: a cancel may come first.
        self._watchers: dict[str, tuple[Callable[[], object], ...]] = {}

    def claim(self, resume: Resume) -> None:
        """Claim a checkpoint that is continued without a store."""
        id, mine = resume.checkpoint.id, object()
        self._refuse_cleared(resume)
        if resume.fork:
            return
        if id in self._in_stores or self._claims.setdefault(id, mine) is not mine:
            self._refuse_cleared(resume)  # a cancel in another thread may have been first
            raise _twice(resume)
        self._forget_oldest(self._claims)

    def give_back(self, resume: Resume) -> None:
        """Release a claim that was not used."""
        if not resume.fork:
            self._claims.pop(resume.checkpoint.id, None)

    def refuse(self, resume: Resume) -> None:
        """Refuse a checkpoint of a session that was continued without the store; otherwise the store decides."""
        self._refuse_cleared(resume)
        if not resume.fork and resume.checkpoint.id in self._claims:
            raise _twice(resume)

    def note(self, resume: Resume) -> None:
        """Record that a store has let it continue."""
        self._in_stores[resume.checkpoint.id] = None
        self._forget_oldest(self._in_stores)

    def clear(self, checkpoint_id: str, cleared: Cleared) -> bool:
        """Record that a cancel cleared the pause of this checkpoint; False if it was continued or cleared before."""
        if checkpoint_id in self._in_stores or self._claims.setdefault(checkpoint_id, cleared) is not cleared:
            return False
        self._forget_oldest(self._claims)
        for tell in self._watchers.get(checkpoint_id, ()):
            tell()
        return True

    def cleared(self, checkpoint_id: str) -> Cleared | None:
        """What a cancel in this process has made of that pause; None if the pause stands, or was answered."""
        found = self._claims.get(checkpoint_id)
        return found if isinstance(found, Cleared) else None

    @contextmanager
    def watched(self, checkpoint_id: str, tell: Callable[[], object]) -> Generator[None]:
        """Inside the block, call `tell` when a cancel clears that pause, in the thread of the cancel.

        Ask `cleared` inside the block: the cancel may have come before it. One thread watches a checkpoint.
        """
        self._watchers[checkpoint_id] = (*self._watchers.get(checkpoint_id, ()), tell)
        try:
            yield
        finally:
            left = tuple(each for each in self._watchers.pop(checkpoint_id, ()) if each is not tell)
            if left:
                self._watchers[checkpoint_id] = left

    def put_back(self, checkpoint_id: str) -> None:
        """Undo `clear`: the cancel was too late, another process had continued the checkpoint."""
        self._claims.pop(checkpoint_id, None)

    def is_over(self, checkpoint_id: str) -> bool:
        """Whether it was continued or cleared."""
        return checkpoint_id in self._claims or checkpoint_id in self._in_stores

    def as_it_stands(self, resume: Resume) -> Resume:
        """The current checkpoint to continue: a run cancelled while it waited asks again, and takes no answers."""
        self._refuse_cleared(resume)
        cleared = self.cleared(resume.checkpoint.id)
        if cleared is None:
            return resume
        return replace(resume, checkpoint=resume.checkpoint.cleared(cleared.reason, cleared.successor))

    def _refuse_cleared(self, resume: Resume) -> None:
        cleared = self.cleared(resume.checkpoint.id)
        if cleared is not None and resume.answers:
            raise cleared_error("its question", cleared.reason)

    def _forget_oldest(self, known: dict[str, Any]) -> None:  # Any: marks of either kind
        if len(known) > self.LIMIT:
            for id in list(known)[: self.LIMIT // 10]:
                known.pop(id, None)


def _twice(resume: Resume) -> CheckpointError:
    id = resume.checkpoint.id
    return CheckpointError(f"the checkpoint {id} was continued already: write fork=True to continue it once more")


continued = Continued()
