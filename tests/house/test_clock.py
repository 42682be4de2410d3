"""One decision has one time: what reads the clock twice can find itself on both sides of a deadline.

A decision is a plain `def`. It may read the clock once, itself or through the methods that it calls; the others are
given `now`. An `async def` makes a new decision after every wait, so it is not counted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tests.house.tree import Source, functions, sources

DECIDING = ("src/safepoint/_core", "src/safepoint/agent", "src/safepoint/compose")
# How the time is read: `clock.now()`, `loop.time()`, `time.monotonic()`.
READINGS = {"now", "time", "monotonic"}
# Two clocks, each read once.
TWO_CLOCKS = {"src/safepoint/_core/groups.py: GroupReceipt._for"}


def clock_complaints(source: Source) -> Iterator[str]:
    """The plain functions that read the clock more than once, through methods and functions of the same file too."""
    plain = {name: node for name, node in functions(source.parse()) if isinstance(node, ast.FunctionDef)}
    reads = dict.fromkeys(plain, 0)
    for _ in plain:  # until it has come up from the deepest call
        reads = {name: _readings(name, node, reads) for name, node in plain.items()}
    for name, count in reads.items():
        if count > 1 and f"{source.path}: {name}" not in TWO_CLOCKS:
            yield f"{source.path}: {name} reads the clock {count} times: read it once and hand `now` on"
        elif count == 1 and any(arg.arg == "now" for arg in plain[name].args.args):
            yield f"{source.path}: {name} is given `now` and reads the clock: use what it is given"


def _readings(name: str, function: ast.FunctionDef, reads: Mapping[str, int]) -> int:
    """How often the clock is read where the most is read: the two branches of an `if` do not both happen."""
    return _most(function.body, name.rpartition(".")[0], reads)


def _most(body: list[ast.stmt], owner: str, reads: Mapping[str, int]) -> int:
    if not body:
        return 0
    first, rest = body[0], body[1:]
    match first:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            here = 0
        case ast.If(test=test, body=then, orelse=otherwise):
            leaves = isinstance(then[-1], ast.Return | ast.Raise | ast.Continue)
            ways = (then if leaves else [*then, *rest], [*otherwise, *rest])
            return _in_expression(test, owner, reads) + max(_most(way, owner, reads) for way in ways)
        case ast.For() | ast.While() | ast.With() | ast.Try():
            parts = [getattr(first, field, []) for field in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(first, "handlers", [])]
            heads = [head for head in (getattr(first, "iter", None), getattr(first, "test", None)) if head is not None]
            here = sum(_most(part, owner, reads) for part in parts)
            here += sum(_in_expression(head, owner, reads) for head in heads)
        case _:
            here = _in_expression(first, owner, reads)
    return here + _most(rest, owner, reads)


def _in_expression(tree: ast.AST, owner: str, reads: Mapping[str, int]) -> int:
    match tree:
        case ast.Lambda():
            return 0  # it decides later, when it is called
        case ast.IfExp(test=test, body=one, orelse=other):
            ways = (_in_expression(one, owner, reads), _in_expression(other, owner, reads))
            return _in_expression(test, owner, reads) + max(ways)
        case ast.Call(func=ast.Attribute(attr=name), args=[]) if name in READINGS:
            here = 1
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            here = min(1, reads.get(f"{owner}.{name}", 0))
        case ast.Call(func=ast.Name(id=name)):
            here = min(1, reads.get(name, 0))
        case _:
            here = 0
    return here + sum(_in_expression(child, owner, reads) for child in ast.iter_child_nodes(tree))


def test_a_decision_reads_the_clock_once() -> None:
    assert [complaint for source in sources(*DECIDING) for complaint in clock_complaints(source)] == []


BAD = {
    "twice": "def f(clock): return clock.now() + clock.now()",
    "in two methods": """
class Node:
    def check_stop(self): return self.clock.now()
    def may_start(self):
        if self.check_stop():
            return False
        return self.clock.now() > 1
""",
    "two calls down": """
class Node:
    def evaluate(self): self._level(); self._arm()
    def _level(self): return self._now()
    def _arm(self): return self._now()
    def _now(self): return self.clock.now()
""",
    "although it is given": "def f(clock, now): return now < clock.now()",
    "in a loop and after it": "def f(loop):\n    while loop.time() < 1: pass\n    return loop.time()",
}
GOOD = {
    "once": "def f(clock): return clock.now()",
    "in either branch": "def f(clock, a):\n    if a:\n        return clock.now()\n    return clock.now() + 1",
    "in else": "def f(a):\n    if a:\n        x = clock.now()\n    else:\n        x = clock.now()\n    return x",
    "in either half": "def f(loop): return time.monotonic() if loop is None else loop.time()",
    "later": "def f(clock): return lambda: clock.now() - clock.now()",
    "between waits": "async def f(clock): return clock.now() + clock.now()",
    "given": "def f(request, now): return request.level(now) or request.expired(now)",
}


def test_a_clock_that_is_read_twice_in_one_decision_is_found() -> None:
    for name, text in BAD.items():
        assert len(list(clock_complaints(Source("a.py", text)))) == 1, name
    for name, text in GOOD.items():
        assert list(clock_complaints(Source("a.py", text))) == [], name
