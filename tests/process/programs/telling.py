"""How a program talks to its test: one word per line, perhaps with a JSON value, at once."""

from __future__ import annotations

import json
import sys
from typing import Any

from safepoint import RunResult, check_history


def tell(word: str, **values: object) -> None:
    line = f"{word} {json.dumps(values)}\n" if values else f"{word}\n"
    sys.stdout.write(line)
    sys.stdout.flush()


def tell_result(word: str, result: RunResult[Any], **more: object) -> None:  # Any: of any output
    check_history(result.messages)
    cancellation = result.cancellation
    tell(
        word,
        stop_reason=result.stop_reason,
        states=[entry.state for entry in result.ledger],
        orphans=[orphan.name for orphan in result.orphans],
        source=cancellation.reason.source if cancellation is not None else None,
        level=cancellation.level.name if cancellation is not None else None,
        text=result.text,
        **more,
    )
