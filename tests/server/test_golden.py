"""What the server says on the wire, word for word: ids and times apart, as it was written down.

`.venv/bin/python -m tests.server.test_golden` writes it down anew. Look at the difference before you commit it:
somebody's client relies on each of these words.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.server.golden_scenes import SCENES, Scene
from tests.server.server_process import ServerProcess

GOLDEN = Path(__file__).parent / "golden"
IDS = re.compile(
    r"(?P<run>run_[0-9a-f]{32})|(?P<invocation>e-[0-9a-f]{32})|(?P<call>call_[0-9a-f]{12})|(?P<ask>ask-[0-9]+)"
    r"|(?P<checkpoint>checkpoint_[0-9a-f]{32})|(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
)
TIMES = {"timestamp", "lastUpdateTime", "createdAt", "endedAt", "stoppedAt", "age"}
VERSIONS = {"version", "language_version"}


class Normal:
    """Puts a name for each id, the same whenever it comes again, and for each time."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def text(self, text: str) -> str:
        return IDS.sub(self._name, text)

    def _name(self, found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        number = sum(1 for name in self._names.values() if name.startswith(f"<{kind} "))
        return self._names.setdefault(found[0], f"<{kind} {number}>")

    def value(self, value: object, name: str = "") -> object:
        if name in TIMES and isinstance(value, int | float):
            return "<time>"
        if name in VERSIONS:
            return "<version>"
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            items = cast(dict[str, Any], value)  # Any: JSON
            return {self.text(key): self.value(each, key) for key, each in items.items()}
        if isinstance(value, list | tuple):
            return [self.value(each) for each in cast(list[Any], value)]  # Any: as above
        return value


def played(server: ServerProcess, name: str) -> object:
    """The scene as it goes now. Two servers that have seen nothing else tell the same."""
    event_context = Scene(server, f"golden-{name}")
    SCENES[name](event_context)
    return json.loads(json.dumps(Normal().value(event_context.told)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("golden")) as running:
        yield running


@pytest.mark.parametrize("name", SCENES)
def test_the_wire_says_what_it_said(server: ServerProcess, name: str) -> None:
    assert played(server, name) == json.loads((GOLDEN / f"{name}.json").read_text())


def test_every_golden_file_has_its_scene() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(SCENES)


def write(names: list[str]) -> None:
    """Anew: all of them, or those that are named."""
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        for name in names or list(SCENES):
            text = json.dumps(played(server, name), indent=1, ensure_ascii=False)
            (GOLDEN / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1:])
