"""What is left out of a plain install, told in words to type."""

from __future__ import annotations


def missing(what: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error, with the extra that `what` needs. Raises it as it is if the module is our own: no extra has that."""
    if (error.name or "").partition(".")[0] == "safepoint":
        raise error
    return ModuleNotFoundError(f"{what} needs {error.name}: install safepoint[{extra}]", name=error.name)
