"""A Griffe extension: the API pages show the methods that are meant for users.

Classes of Safepoint also have methods without an underscore that other modules of Safepoint call. The reference
(`docs/reference.md`) names what users call; a method or property that it does not name is left out of the API pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

REFERENCE = Path(__file__).resolve().parents[1] / "reference.md"


class PublicMembers(griffe.Extension):
    def __init__(self) -> None:
        spans = re.findall(r"`([^`]+)`", REFERENCE.read_text())
        self._named = {word for span in spans for word in re.findall(r"\w+", span)}

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:  # Any: as below
        for name, member in mod.members.items():
            if isinstance(member, griffe.Attribute) and name[:1].isupper() and not name.isupper():
                _keep(member)  # a union of types, such as Event

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:  # Any: what Griffe hands to every extension
        _keep(cls)
        is_enum = any("Enum" in str(base) for base in cls.bases)
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Attribute) and "property" not in member.labels:
                if is_enum:
                    _keep(member)  # other fields are in the signature of their class
            elif isinstance(member, griffe.Function | griffe.Attribute) and name != "__init__":
                if name.startswith("_") or name not in self._named:
                    cls.del_member(name)
                else:
                    _keep(member)


def _keep(member: griffe.Object) -> None:
    """The pages leave out what has no docstring: give it an empty one."""
    if member.docstring is None:
        member.docstring = griffe.Docstring(" ", parent=member)
