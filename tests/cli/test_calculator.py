"""The calculator computes arithmetic, and refuses everything else before it does harm."""

from __future__ import annotations

import pytest

from safepoint.cli.chat.assistant import calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("2 ^ 10", 1024),
        ("-7 // 2", -4),
        ("sqrt(16) + max(1, 2)", 6),
        ("10 % 4", 2),
    ],
)
def test_arithmetic_is_computed(expression: str, value: float) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "__import__('os')",
        "().__class__",
        "'a' * 9",
        "1 if 1 else 2",
        "True + 1",
        "1 / 0",
        "(-1) ** 0.5",
        "x",
    ],
)
def test_anything_else_is_refused_with_a_sentence(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        calculate(expression)
