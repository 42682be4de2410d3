"""What counts as a mutant, and that a mutant is really put in the place of the function."""

from __future__ import annotations

import gc
import signal
import threading

import pytest

from tests.mutation.__main__ import read_list
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.trials import Verdict, judge, patch


def changes(text: str) -> list[str]:
    return [mutant.change.replace("\n", " ") for mutant in mutants(text, "a.py", "a.py")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if a < b: pass", ["- if a < b + if a <= b", "- if a < b + if a >= b"]),
        ("if a is b: pass", ["- if a is b + if a is not b"]),
        ("x = a and b", ["- x = a and b + x = a or b", "- x = a and b + x = b", "- x = a and b + x = a"]),
        ("x = not a", ["- x = not a + x = a"]),
        ("if a: pass", ["- if a + if not a"]),
        ("x = a + b", ["- x = a + b + x = a - b"]),
        ("x += y", ["- x += y + x -= y", "- x += y + pass"]),
        ("def f(a=1): pass", ["- def f(a=1) + def f(a=2)"]),
        ("def f(): return a", ["- return a + return None"]),
        ("def f(): raise ValueError('no' + 1)", ["- raise ValueError('no' + 1) + pass"]),
        ("a.b = c", ["- a.b = c + pass"]),
        ("f(True)", ["- f(True) + pass", "- f(True) + f(False)"]),
        ("f('a', 'a')", ["- f('a', 'a') + pass", "- f('a', 'a') + f('a!', 'a')", "- f('a', 'a') + f('a', 'a!')"]),
        ("match a:\n    case 'x': pass", ["- case 'x' + case 'x!'"]),
    ],
)
def test_each_small_change_is_made_once_and_named_by_its_statement(text: str, expected: list[str]) -> None:
    assert changes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""Words."""',
        "x: int | str",
        "@dataclass(frozen=True)\nclass A: pass",
        "assert a < b, 'no'",
        "def f() -> Literal['a']: ...",
        "if TYPE_CHECKING:\n    x = 1",
        "x = f'{a} is wrong'",
    ],
)
def test_what_nobody_promises_is_left_alone(text: str) -> None:
    assert changes(text) == []


def test_namesakes_in_one_function_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in mutants("def f():\n    g()\n    g()\n", "a.py", "a.py")]
    assert names == ["a.py: f\n- g()\n+ pass", "a.py: f\n- g()\n+ pass\n+ (2)"]


def test_a_name_does_not_depend_on_the_line() -> None:
    one, other = ([mutant.name for mutant in mutants(text, "a.py", "a.py")] for text in ("a.b = c", "\n\n\na.b = c"))
    assert one == other


def outer(limit: int) -> list[int]:
    def within(number: int) -> bool:
        return number < limit

    return [number for number in range(5) if within(number)]


def test_a_mutant_is_put_in_the_place_of_the_function_wherever_it_is_held() -> None:
    held, file = outer, outer.__code__.co_filename
    with open(file) as source:
        found = list(mutants(source.read(), "test_mutants.py", file))
    (mutant,) = (each for each in found if each.change == "- return number < limit\n+ return number <= limit")
    assert (mutant.function, mutant.in_body) == ("outer", True)
    real = outer.__code__
    gc.freeze()  # as before the tests
    try:
        patch(mutant.code, file, "outer")
        assert held(2) == [0, 1, 2]
    finally:
        outer.__code__ = real
    assert held(2) == [0, 1]


def test_a_default_takes_effect_at_the_import_and_a_body_does_not() -> None:
    found = mutants("def f(a=1):\n    return a < 2\n", "a.py", "a.py")
    assert [mutant.in_body for mutant in found] == [False, True, True, True, True]


def test_a_survivor_without_a_reason_is_refused() -> None:
    assert read_list("# words\n\na.py: f\n- g()\n+ pass\n= it is slower\n") == {
        "a.py: f\n- g()\n+ pass": "it is slower"
    }
    with pytest.raises(ValueError, match=r"a\.py: f"):
        read_list("a.py: f\n- g()\n+ pass\n")
    assert isinstance(next(mutants("a.b = c", "a.py", "a.py")), Mutant)


def hangs() -> bool:
    return threading.Event().wait()


@pytest.mark.parametrize(
    ("first", "again", "verdict"),
    [
        (True, None, Verdict.SURVIVED),
        (False, None, Verdict.KILLED),
        (None, True, Verdict.SURVIVED),
        (None, False, Verdict.KILLED),
        (None, None, Verdict.HUNG),
    ],
)
def test_a_mutant_that_hangs_is_tried_once_more(first: bool | None, again: bool | None, verdict: Verdict) -> None:
    def trial(times: float) -> bool:
        passes = first if times == 1 else again
        return hangs() if passes is None else passes

    assert judge(trial, 60 if first is not None else 1) is verdict  # a process that hangs uses up all of it


def test_a_process_that_a_test_s_own_limit_has_ended_hangs() -> None:
    def trial(times: float) -> bool:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has its own use for it
        signal.setitimer(signal.ITIMER_REAL, times / 10)
        return hangs()

    assert judge(trial, 60) is Verdict.HUNG
