"""Files below one folder: read, listed, written whole; and every way out of it that somebody may try."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from safepoint import Agent, LedgerEntry
from safepoint.errors import StopTool
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import files
from safepoint.tools.file_tools import Folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders are opened by descriptor")

SECRET = "the secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with files in it, and a secret beside it."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "root-of-another").mkdir()
    (tmp_path / "root-of-another" / "secret.txt").write_text(SECRET)
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "hello.txt").write_text("hello")
    (folder / "sub" / "deep.txt").write_text("deep")
    (folder / "inside").symlink_to("sub/deep.txt")
    (folder / "out").symlink_to(tmp_path / "secret.txt")
    (folder / "out-relative").symlink_to("../secret.txt")
    (folder / "out-folder").symlink_to(tmp_path)
    (folder / "beside").symlink_to(tmp_path / "root-of-another" / "secret.txt")
    (folder / "chain").symlink_to("out")
    (folder / "loop").symlink_to("loop")
    (folder / "proc").symlink_to("/proc/self/root")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
    (folder / "device").symlink_to("/dev/zero")
    return folder


def done(root: Path, name: str, **args: object) -> LedgerEntry:
    agent = Agent("a", model=ScriptedModel(call(name, args), say("done")), tools=files(root))
    return asyncio.run(agent.run("go")).ledger[0]


# -- what works --------------------------------------------------------------------------------------------------------


def test_a_file_is_read_also_through_a_link_that_stays_inside(root: Path) -> None:
    assert done(root, "read_file", path="hello.txt").content == "hello"
    assert done(root, "read_file", path="./sub//deep.txt").content == "deep"
    assert done(root, "read_file", path="inside").content == "deep"


def test_a_folder_is_listed(root: Path) -> None:
    assert (done(root, "list_files").content or "").split("\n")[:3] == ["beside", "chain", "device"]
    assert done(root, "list_files", path="sub").content == "deep.txt"
    (root / "empty").mkdir()
    assert done(root, "list_files", path="empty").content == "(empty folder)"


def test_a_file_is_written_whole_with_the_folders_above_it_and_keeps_its_permissions(root: Path) -> None:
    assert done(root, "write_file", path="new/folder/ü.txt", text="täxt").content == "wrote 5 bytes"
    assert (root / "new/folder/ü.txt").read_text() == "täxt"
    (root / "hello.txt").chmod(0o600)
    done(root, "write_file", path="hello.txt", text="other")
    assert ((root / "hello.txt").read_text(), (root / "hello.txt").stat().st_mode & 0o777) == ("other", 0o600)
    done(root, "write_file", path="inside", text="through the link")
    assert (root / "sub/deep.txt").read_text() == "through the link"
    assert (root / "inside").is_symlink()
    assert list(root.rglob("*.part")) == []


def test_a_long_file_is_read_in_pieces(root: Path) -> None:
    (root / "long.txt").write_text("0123456789")
    (read, _, _) = files(root, max_read=4)
    model = ScriptedModel([call("read_file", path="long.txt", offset=offset) for offset in (0, 8, 20)], say("done"))
    entries = asyncio.run(Agent("a", model=model, tools=[read]).run("go")).ledger
    assert [entry.content for entry in entries] == [
        "0123\n[4 of 10 bytes; go on with offset=4]",
        "89",
        "(empty result)",
    ]


def test_what_is_not_text_is_said_to_be_so(root: Path) -> None:
    (root / "image").write_bytes(b"\x89PNG\x00\x01")
    assert done(root, "read_file", path="image").content == "[image is not text: 6 bytes]"


# -- the ways out ------------------------------------------------------------------------------------------------------

READS = {
    "the folder above": "../secret.txt",
    "the folder above, from below": "sub/../../secret.txt",
    "up and down again": "sub/../hello.txt",
    "an absolute path": "/etc/passwd",
    "an absolute path to what is inside": "ROOT/hello.txt",
    "two slashes": "//etc/passwd",
    "a link out": "out",
    "a relative link out": "out-relative",
    "a link to a link out": "chain",
    "a folder that is a link out": "out-folder/secret.txt",
    "a folder beside it whose name begins alike": "../root-of-another/secret.txt",
    "a link to a folder beside it whose name begins alike": "beside",
    "the root of the system, by way of /proc": "proc/etc/passwd",
    "a device": "device",
    "a pipe, which would wait for ever": "pipe",
    "a socket": "socket",
    "a link to itself": "loop",
    "the folder itself": ".",
    "another folder": "sub",
    "a name with a NUL": "hello.txt\x00.png",
    "a home": "~/secret.txt",
    "an address": "file:///etc/passwd",
    "an empty name": "",
}


@pytest.mark.parametrize("name", READS)
def test_no_way_out_can_be_read(root: Path, name: str) -> None:
    entry = done(root, "read_file", path=READS[name].replace("ROOT", str(root)))
    assert entry.state == "failed", entry.content
    assert SECRET not in (entry.error or "")


WRITES = [
    "out",
    "out-relative",
    "chain",
    "../new",
    "out-folder/new",
    "/tmp/new",
    "proc/tmp/new",
    "sub",
    ".",
    "",
    "pipe",
]


@pytest.mark.parametrize("path", ["", *WRITES])
def test_nothing_outside_can_be_written(root: Path, path: str) -> None:
    before = sorted(root.parent.rglob("*"))
    entry = done(root, "write_file", path=path, text="overwritten")
    assert entry.state == "failed"
    assert (root.parent / "secret.txt").read_text() == SECRET
    assert sorted(root.parent.rglob("*")) == before


def test_nothing_outside_can_be_listed(root: Path) -> None:
    for path in ("..", "out-folder", "proc", "/", "sub/../.."):
        assert done(root, "list_files", path=path).state == "failed", path


def test_a_link_that_is_put_there_after_the_check_is_not_followed(root: Path) -> None:
    class Raced(Folder):
        """Somebody swaps a folder for a link out, between the look and the opening."""

        def _names(self, path: str) -> tuple[str, ...]:
            names = super()._names(path)
            (root / "sub").rename(root / "moved")
            (root / "sub").symlink_to(root.parent)
            return names

    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        Raced(root).read("sub/secret.txt", 0, 100)


def test_a_text_that_is_too_long_is_not_written(root: Path) -> None:
    agent = Agent(
        "a",
        model=ScriptedModel(call("write_file", path="x", text="12345"), say("done")),
        tools=files(root, max_write=4),
    )
    assert "5 bytes, and 4 is the most" in (asyncio.run(agent.run("go")).ledger[0].error or "")
    assert not (root / "x").exists()


def test_a_write_that_is_cut_has_changed_nothing(root: Path) -> None:
    def stop() -> None:
        raise StopTool

    with pytest.raises(StopTool):
        Folder(root).write("hello.txt", b"new", stop)
    assert (root / "hello.txt").read_text() == "hello"
    assert list(root.rglob("*.part")) == []


def test_whoever_reads_while_it_is_written_sees_the_old_text_or_the_new_one(root: Path) -> None:
    folder, texts = Folder(root), (b"a" * 50_000, b"b" * 70_000)
    folder.write("hello.txt", texts[0], lambda: None)
    over = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not over.is_set():
            seen.add(folder.read("hello.txt", 0, 100_000).data)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(40):
        folder.write("hello.txt", texts[number % 2], lambda: None)
    over.set()
    reader.join()
    assert seen <= set(texts)


def test_what_cannot_be_a_folder_is_refused_where_it_is_written(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files(root / "gone")
    with pytest.raises(NotADirectoryError):
        files(root / "hello.txt")
    with pytest.raises(ValueError, match="max_read=0: write a whole number of bytes"):
        files(root, max_read=0)
    assert [tool.name for tool in files(root, read_only=True, prefix="docs_")] == ["docs_read_file", "docs_list_files"]
