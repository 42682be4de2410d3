"""API keys: who may call, kept as hashes in one file.

A key is 256 random bits and is shown once, when it is made. The file has only its SHA-256: a slow hash would protect
words that an attacker could guess, and these are random. The file is read again whenever it changes, so a revoked key
is refused from the next request on. Once keys are needed they stay needed: a file that is gone or can't be read
refuses every request.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safepoint.errors import SafepointError
from safepoint.serving.ids import check_id
from safepoint.serving.principal import LOCAL, Principal

_log = logging.getLogger("safepoint.server")

# Easy to recognise, for people, for the guard and for those who look for leaked secrets.
SECRET = re.compile(r"sp_[A-Za-z0-9_-]{43}")
_VERSION = 1


class KeyProblem(SafepointError, ValueError):
    """A key that can't be made, found or read; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key as it is stored. `user`: whose sessions it opens; None for an admin, who may touch everybody's."""

    name: str
    digest: str
    user: str | None
    created_at: float
    revoked_at: float | None = None

    @property
    def admin(self) -> bool:
        return self.user is None

    @property
    def principal(self) -> Principal:
        return Principal(self.name, user=self.user, admin=self.admin)


class KeyFile:
    """The keys of one server. `needed`: whether there have ever been any. `version` counts the changes of the file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.needed = False
        self.version = 0
        self._keys: dict[str, Key] = {}
        self._stamp: tuple[int, int, int] | None = None

    def all(self) -> list[Key]:
        """Every key, oldest first, also the revoked. Raises `KeyProblem`."""
        return list(_read(self.path).values())

    def add(self, name: str, *, user: str | None = None, admin: bool = False) -> str:
        """The new key. Only its hash is stored, so it cannot be shown again. Raises `KeyProblem`, `BadId`."""
        if admin == (user is not None):
            raise KeyProblem("a key belongs to a user or to an admin: write --user U or --admin")
        if check_id("key", name) == LOCAL.name:
            raise KeyProblem(f"the name {name!r} means a caller without a key: choose another one")
        secret = f"sp_{secrets.token_urlsafe(32)}"
        owner = None if user is None else check_id("user", user)
        with self._changing() as keys:
            if name in keys:
                raise KeyProblem(f"there is a key {name!r} already, maybe revoked: choose another name")
            keys[name] = Key(name, digest_of(secret), owner, time.time())
        return secret

    def revoke(self, name: str) -> Key:
        """From now on it opens nothing; its name stays taken. Raises `KeyProblem`."""
        with self._changing() as keys:
            if name not in keys:
                raise KeyProblem(f"there is no key {name!r}: `safepoint keys list` shows them")
            keys[name] = replace(keys[name], revoked_at=keys[name].revoked_at or time.time())
            return keys[name]

    def find(self, secret: str) -> Principal | None:
        """Whose key that is, as the file says now."""
        self.refresh()
        return self.match(secret)

    def match(self, secret: str) -> Principal | None:
        """Whose key that is, as was last read. Every key is compared, so the time it takes tells nothing."""
        digest, found = digest_of(secret), None
        for key in self._keys.values():
            if hmac.compare_digest(key.digest, digest) and key.revoked_at is None:
                found = key.principal
        return found

    def named(self, name: str) -> Principal | None:
        """The caller with that key, as was last read, as long as it is not revoked."""
        key = self._keys.get(name)
        return None if key is None or key.revoked_at is not None else key.principal

    def refresh(self) -> None:
        """Read the file if it is another one than last time."""
        try:
            stat = self.path.stat()
            # The inode, too: a file may be replaced within one tick of the file system's clock by one of the same size.
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self.version += 1
        try:
            self._keys = _read(self.path)
        except KeyProblem as problem:
            _log.error("every request is refused until this is mended: %s", problem)
            self._keys, self.needed = {}, True
        self.needed = self.needed or bool(self._keys)

    @contextmanager
    def _changing(self) -> Generator[dict[str, Key]]:
        """One at a time; the file is replaced whole, so no reader sees half of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The lock has a file of its own: the file of keys is replaced, and a lock on the old one keeps nothing out.
        with open(self.path.with_suffix(".lock"), "w", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = _read(self.path)
            yield keys
            _write(self.path, keys.values())


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def redact(text: str) -> str:
    """The text without anything that looks like a key."""
    return SECRET.sub("sp_***", text) if "sp_" in text else text


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(path: Path, keys: Iterable[Key]) -> None:
    written = path.with_suffix(".new")
    written.unlink(missing_ok=True)
    # `x` fails where another user has put a symbolic link, instead of following it.
    with open(written, "x", encoding="utf-8", opener=_private) as file:
        json.dump({"version": _VERSION, "keys": [asdict(key) for key in keys]}, file, indent=1)
        file.flush()
        # Before the rename: a power cut then leaves the old keys or the new ones, and never an empty file.
        os.fsync(file.fileno())
    os.replace(written, path)


def _read(path: Path) -> dict[str, Key]:
    """All keys by name; none if there is no file. Raises `KeyProblem`."""
    try:
        if path.stat().st_mode & 0o022:
            raise KeyProblem(f"others may write {path}: say `chmod 600 {path}`")
        stored: Any = json.loads(path.read_text(encoding="utf-8"))  # Any: JSON
        if stored["version"] != _VERSION:
            raise KeyProblem(f"{path} is of version {stored['version']}: this Safepoint reads version {_VERSION}")
        keys = [Key(**key) for key in stored["keys"]]
        return {check_id("key", key.name): _checked(key) for key in keys}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, LookupError) as error:
        if isinstance(error, KeyProblem):
            raise
        raise KeyProblem(f"{path} can't be read as keys: {type(error).__name__}: {error}") from error


def _checked(key: Key) -> Key:
    """A key with a user of the wrong type would belong to no user, or worse, to every user."""
    if key.user is not None:
        check_id("user", key.user)
    if re.fullmatch("[0-9a-f]{64}", key.digest) is None:
        raise ValueError(f"the digest of {key.name} is no SHA-256")
    return key
