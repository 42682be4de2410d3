"""Keys: shown once, kept as hashes, compared whole, and refused from the moment that they are revoked."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from safepoint.server.keys import SECRET, KeyFile, KeyProblem, redact
from safepoint.serving.ids import BadId
from safepoint.serving.principal import Principal


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "data" / "keys.json")


def test_a_key_opens_what_it_was_made_for_and_its_text_is_nowhere_in_the_file(keys: KeyFile) -> None:
    ann, boss = keys.add("ann-laptop", user="ann"), keys.add("boss", admin=True)
    assert keys.find(ann) == Principal("ann-laptop", user="ann")
    assert keys.find(boss) == Principal("boss", admin=True)
    assert ann != boss
    assert SECRET.fullmatch(ann)
    stored = keys.path.read_text()
    assert ann not in stored
    assert ann.removeprefix("sp_") not in stored


@pytest.mark.parametrize("wrong", ["", "sp_", "sp_" + "A" * 43, "Bearer", "é", "\udcff", "x" * 10_000])
def test_whatever_is_no_key_opens_nothing(keys: KeyFile, wrong: str) -> None:
    keys.add("ann", user="ann")
    assert keys.find(wrong) is None


def test_the_digest_of_a_key_is_no_key(keys: KeyFile) -> None:
    keys.add("ann", user="ann")
    assert keys.find(keys.all()[0].digest) is None


def test_the_file_is_only_for_its_owner_also_after_a_change(keys: KeyFile) -> None:
    keys.add("ann", user="ann")
    keys.revoke("ann")
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.path.parent.stat().st_mode) == 0o700


def test_a_revoked_key_is_refused_by_a_server_that_runs_already(keys: KeyFile) -> None:
    secret = keys.add("ann", user="ann")
    running = KeyFile(keys.path)
    assert running.find(secret) is not None
    assert running.named("ann") is not None
    keys.revoke("ann")
    running.refresh()
    assert running.named("ann") is None
    assert running.match(secret) is None
    assert running.find(secret) is None


def test_a_new_key_is_known_to_a_server_that_runs_already(keys: KeyFile) -> None:
    running = KeyFile(keys.path)
    running.refresh()
    assert not running.needed
    secret = keys.add("ann", user="ann")
    assert running.find(secret) is not None
    assert running.needed


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"version": 2, "keys": []}', '{"version": 1, "keys": [{}]}'])
def test_a_file_that_is_gone_or_broken_lets_nobody_in(keys: KeyFile, text: str | None) -> None:
    secret = keys.add("ann", user="ann")
    assert keys.find(secret) is not None
    if text is None:
        keys.path.unlink()
    else:
        keys.path.write_text(text)
    assert keys.find(secret) is None
    assert keys.needed


@pytest.mark.parametrize("user", ["true", "5", '"../x"', '""', '["ann"]'])
def test_a_key_of_a_user_that_can_not_be_is_a_broken_file(keys: KeyFile, user: str) -> None:
    secret = keys.add("ann", user="ann")
    keys.path.write_text(keys.path.read_text().replace('"user": "ann"', f'"user": {user}'))
    assert keys.find(secret) is None
    with pytest.raises(KeyProblem):
        keys.all()


def test_a_file_that_others_may_write_is_refused(keys: KeyFile) -> None:
    secret = keys.add("ann", user="ann")
    os.chmod(keys.path, 0o666)
    os.utime(keys.path)
    with pytest.raises(KeyProblem, match="chmod 600"):
        keys.all()
    assert KeyFile(keys.path).find(secret) is None


def test_a_key_is_of_one_user_or_an_admins(keys: KeyFile) -> None:
    with pytest.raises(KeyProblem, match="--user U or --admin"):
        keys.add("both", user="ann", admin=True)
    with pytest.raises(KeyProblem, match="--user U or --admin"):
        keys.add("neither")
    with pytest.raises(BadId):
        keys.add("a/b", user="ann")
    with pytest.raises(BadId):
        keys.add("ann", user="..")
    with pytest.raises(KeyProblem, match="without a key"):
        keys.add("local", admin=True)
    assert not keys.path.exists() or keys.all() == []


def test_a_name_is_given_once_also_after_it_was_revoked(keys: KeyFile) -> None:
    keys.add("ann", user="ann")
    keys.revoke("ann")
    with pytest.raises(KeyProblem, match="another name"):
        keys.add("ann", user="bob")
    with pytest.raises(KeyProblem, match="no key 'bob'"):
        keys.revoke("bob")


def test_a_key_is_taken_out_of_a_text(keys: KeyFile) -> None:
    secret = keys.add("ann", user="ann")
    assert redact(f"GET /x?key={secret}&a=1") == "GET /x?key=sp_***&a=1"
