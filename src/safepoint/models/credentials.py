"""Keys of providers: a str, or a function that returns the current one, for tokens that expire.

A function is called before every request, in the task of the model call, so a stop cuts its wait too.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from safepoint.errors import ModelNotReady

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]


async def current_key(model: str, api_key: ApiKey) -> str:
    """The key for the next request. `model` is named in errors. Cancellation: cuts the function."""
    if isinstance(api_key, str):
        return api_key
    key: object = api_key()
    if inspect.isawaitable(key):
        key = await key
    if not isinstance(key, str) or not key.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ModelNotReady(f"{model}: the function in api_key=… returned {type(key).__name__} instead of a token")
    return key
