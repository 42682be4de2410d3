"""SDKs are extras: each is loaded when a model that needs it is made, and an error says what to install."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from safepoint.errors import ModelNotReady


def sdk(module: str, extra: str) -> ModuleType:
    """The module, or an error that says which extra has it."""
    try:
        with warnings.catch_warnings():
            # Compiling an SDK may emit a SyntaxWarning; in a program where warnings are errors, the import would fail.
            warnings.simplefilter("ignore")
            return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the SDK is installed, but a dependency of it is missing
        raise _missing(module, extra) from error


def check_installed(module: str, extra: str) -> None:
    """The same for a package that another process loads: it is found, not imported."""
    if find_spec(module) is None:
        raise _missing(module, extra)


def _missing(module: str, extra: str) -> ModelNotReady:
    return ModelNotReady(f"the package {module!r} is missing: type `pip install 'safepoint[{extra}]'`")
