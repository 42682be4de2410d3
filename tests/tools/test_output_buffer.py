"""What a program prints is kept in bounded memory: its beginning and its end, and told as it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from safepoint.tools.shell_tool import OutputBuffer


def taken(room: int, *pieces: bytes) -> tuple[str, list[str]]:
    told: list[str] = []
    output = OutputBuffer(room, told.append)
    for piece in pieces:
        output.take(piece)
    output.finish()
    return output.text, told


def test_what_fits_is_kept_as_it_is_and_told_piece_by_piece() -> None:
    assert taken(100, b"one\n", b"", b"two\n") == ("one\ntwo\n", ["one\n", "two\n"])


def test_of_what_does_not_fit_the_beginning_and_the_end_are_kept_and_the_rest_is_counted() -> None:
    text, told = taken(10, b"0123456789", b"abcdefghij")
    assert text == "01234\n[10 characters were left out here]\nfghij"
    assert told == ["0123456789", "abcdefghij"]


def test_a_character_that_comes_in_two_pieces_is_one_character_and_half_a_one_is_marked() -> None:
    assert taken(100, "ü".encode()[:1], "ü".encode()[1:]) == ("ü", ["ü"])
    assert taken(100, b"a", "ü".encode()[:1]) == ("a\ufffd", ["a", "\ufffd"])
    assert taken(100, b"a\x00b")[0] == "a\ufffdb"


@given(st.lists(st.binary(max_size=40).map(lambda data: data.hex().encode()), max_size=30), st.integers(2, 60))
def test_however_it_comes_the_ends_are_right_and_nothing_goes_uncounted(pieces: list[bytes], room: int) -> None:
    whole = b"".join(pieces).decode()
    text, told = taken(room, *pieces)
    assert "".join(told) == whole
    if len(whole) <= room:
        assert text == whole
        return
    head, tail = room // 2, room - room // 2
    assert text == f"{whole[:head]}\n[{len(whole) - room} characters were left out here]\n{whole[-tail:]}"
