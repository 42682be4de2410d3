from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.history.plain_text import clean, cut, has_lone_surrogate, shorten

any_text = st.text(st.characters() | st.sampled_from("\ud800\udfff\ud83d\ude00\x00 "))


@settings(deadline=None)
@given(any_text)
def test_clean_text_can_be_encoded_and_holds_no_nul(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    if not has_lone_surrogate(text) and "\x00" not in text:
        assert cleaned == text


@settings(deadline=None)
@given(any_text, st.integers(1, 200))
def test_a_cut_text_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    for result in (cut(text, limit), shorten(text, limit)):
        assert len(result) <= limit
        result.encode()


def test_a_cut_text_counts_what_is_missing() -> None:
    assert cut("x" * 100, 100) == "x" * 100
    kept, tail = cut("x" * 101, 100).split("\n")
    assert tail == f"[cut here: {101 - len(kept)} more characters were left out]"


def test_a_shortened_text_ends_in_an_ellipsis() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
