"""A docstring, split into what the tool does and what each parameter means.

Three styles are read, told apart by their own marks and never by a setting: Google (``Args:`` and an indented list),
NumPy (``Parameters`` underlined with dashes) and Sphinx (``:param name: ...``). Everything else stays in the
description word for word, other sections too: what a tool returns or raises helps the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_GOOGLE_HEADING = re.compile(
    r"(?:Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters):\s*"
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\((?P<type>.*?)\))?\s*:(?:\s+|$)(?P<text>.*)")
_NUMPY_HEADING = re.compile(r"(?:Parameters|Other Parameters|Keyword Arguments)\s*")
_NUMPY_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_UNDERLINE = re.compile(r"\s*-{3,}\s*")
_SPHINX_PARAM = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:(?P<text>.*)"
)
_SPHINX_TYPE = re.compile(r":(?:type|kwtype)\s+\w+\s*:.*")


@dataclass(frozen=True, slots=True)
class Docstring:
    """`description` is empty if nothing but parameters was written."""

    description: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Docstring:
        """Read a docstring whose indentation is already taken away, as `inspect.getdoc` does."""
        reader = _Reader(text.splitlines())
        reader.read()
        description = re.sub(r"\n{3,}", "\n\n", "\n".join(reader.kept)).strip()
        meanings = {name: " ".join(" ".join(lines).split()) for name, lines in reader.meanings.items()}
        return cls(description, {name: meaning for name, meaning in meanings.items() if meaning})


class _Reader:
    """One pass over the lines; each line is kept or belongs to a parameter."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        self.kept: list[str] = []
        self.meanings: dict[str, list[str]] = {}

    def read(self) -> None:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if _GOOGLE_HEADING.fullmatch(line) and self._next_is_indented():
                self._at += 1
                self._read_google()
            elif _NUMPY_HEADING.fullmatch(line) and self._is_underline(self._at + 1):
                self._at += 2
                self._read_numpy()
            elif found := _SPHINX_PARAM.fullmatch(line):
                self._at += 1
                self.meanings[found["name"]] = [found["text"], *self._take_indented()]
            elif _SPHINX_TYPE.fullmatch(line):
                self._at += 1
                self._take_indented()
            else:
                self.kept.append(line)
                self._at += 1

    def _read_google(self) -> None:
        """Entries share one indentation; what is deeper continues the entry above."""
        section = self._take_indented(blank_lines=True)
        depth = min((_indent(line) for line in section if line.strip()), default=0)
        current: list[str] = []
        for line in section:
            found = _GOOGLE_ENTRY.fullmatch(line.strip()) if _indent(line) == depth else None
            if found:
                current = self.meanings.setdefault(found["name"], [])
                current.append(found["text"])
            else:
                current.append(line)
        self.kept.append("")

    def _read_numpy(self) -> None:
        """Entries stand at the margin, their meanings are indented; another underlined heading ends the section."""
        while self._at < len(self._lines) and not self._is_underline(self._at + 1):
            line = self._lines[self._at]
            found = _NUMPY_ENTRY.fullmatch(line)
            if line.strip() and not found:
                break
            self._at += 1
            if found:
                meaning = self._take_indented(blank_lines=True)
                for name in found["names"].split(","):
                    self.meanings[name.strip().lstrip("*")] = meaning
        self.kept.append("")

    def _take_indented(self, *, blank_lines: bool = False) -> list[str]:
        taken: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not (_indent(line) if line.strip() else blank_lines):
                break
            taken.append(line)
            self._at += 1
        return taken

    def _next_is_indented(self) -> bool:
        following = next((line for line in self._lines[self._at + 1 :] if line.strip()), "")
        return _indent(following) > 0

    def _is_underline(self, at: int) -> bool:
        return at < len(self._lines) and _UNDERLINE.fullmatch(self._lines[at]) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
