"""What a provider's error means to a run: retry, correct the configuration, or give up.

Every adapter passes its SDK's error as plain values; tables here make the decision, once. Errors that may pass by
themselves are worth a retry: no connection, too many requests, an overloaded or broken server. The run decides whether
to retry: only before the first token, and never after a cancel.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from typing import Final

from safepoint.errors import ModelError, ModelNotReady, ModelUnavailable

PASSING: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may pass by themselves."""
PASSING_KINDS: Final = frozenset(
    {
        "api_error",
        "internal",
        "internalserverexception",
        "modelstreamerrorexception",
        "modeltimeoutexception",
        "overloaded_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        "resource_exhausted",
        "server_error",
        "serviceunavailableexception",
        "throttlingexception",
        "timeout_error",
        "unavailable",
    }
)
"""How providers name the same inside a stream, where there is no status any more."""
LASTING_KINDS: Final = frozenset(
    {
        "1113",  # Z.ai: the balance is spent
        "billing_error",
        "exceeded_current_quota_error",  # Moonshot
        "insufficient_quota",
    }
)
"""What comes with a status that may pass, but does not."""
_WRONG_KEY: Final = re.compile(r"(incorrect|invalid) api key", re.IGNORECASE)
"""How a provider that answers 400 instead of 401 says it: xAI does."""


def refusal(
    model: str,
    message: str,
    *,
    status: int | None,
    kind: str = "",
    headers: Mapping[str, str] | None = None,
    key: str = "",
) -> ModelError:
    """The error for a provider's answer. `key` names the place of its key."""
    what = f"{model} answered {status}: {message}" if status else f"{model} failed: {message}"
    if kind.lower() in LASTING_KINDS:
        return ModelError(what)
    if key and (status == 401 or (status == 400 and _WRONG_KEY.search(message))):
        return ModelNotReady(f"{what}. The key was refused: put a valid one into {key}")
    passing = kind.lower() in PASSING_KINDS or (status is not None and (status in PASSING or status >= 500))
    if passing:
        return ModelUnavailable(what, retry_after=retry_after(headers or {}, time.time()))
    return ModelError(what)


def unreachable(model: str, error: BaseException) -> ModelUnavailable:
    """The error for a connection that could not be made, or broke."""
    cause = error.__cause__ or error
    why = str(cause) or type(cause).__name__
    return ModelUnavailable(f"the connection to {model} failed: {why}")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The delay that the provider asks for, in seconds, in any of three forms; None if there is no sensible one."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    retry_after = headers.get("retry-after")
    if (seconds := _number(retry_after)) is not None:
        return seconds
    try:
        date = email.utils.parsedate_to_datetime(retry_after or "")
    except ValueError:
        return None
    return max(0.0, date.timestamp() - now)


def _number(value: str | None) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None
