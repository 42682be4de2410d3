"""What a tool returned becomes words, and the pictures and files that they name."""

from __future__ import annotations

import pytest

from safepoint import File, Image, Text
from safepoint.tools.content import MAX_PART_BYTES, Content, content_of

PNG = Image(data=b"\x89PNG", media_type="image/png")
PDF = File(data=b"%PDF-1", media_type="application/pdf", name="bill.pdf")


@pytest.mark.parametrize(
    ("value", "text", "parts"),
    [
        (PNG, "[image 1: image/png, 4 bytes]", (PNG,)),
        (PDF, "[file 1: bill.pdf, application/pdf, 6 bytes]", (PDF,)),
        (Image(url="https://x.org/a.png"), "[image 1: image/png, https://x.org/a.png]", (Image(url="https://x.org/a.png"),)),
        (["Before.", PNG, Text("Between."), PDF], None, (PNG, PDF)),
        ((PNG, PNG), "[image 1: image/png, 4 bytes]\n[image 2: image/png, 4 bytes]", (PNG, PNG)),
        (Text("words"), "words", ()),
        (Content("made already", (PNG,)), "made already", (PNG,)),
        ("words", "words", ()),
        (["a", "b"], '["a","b"]', ()),
        ([], "[]", ()),
        (None, "done, no result", ()),
        ([Text(" ")], "(empty result)", ()),
    ],
)  # fmt: skip
def test_pictures_and_files_are_kept_beside_words_that_name_them(
    value: object, text: str | None, parts: object
) -> None:
    content = content_of(value)
    expected = "Before.\n[image 1: image/png, 4 bytes]\nBetween.\n[file 2: bill.pdf, application/pdf, 6 bytes]"
    assert (content.text, content.parts) == (text if text is not None else expected, parts)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Image(data=b""), "[image left out: data is empty]"),
        (Image(data=b"x", media_type="text/plain"), "[image left out: 'text/plain' is no picture]"),
        (File(data="words"), "[file left out: data is of type str]"),  # type: ignore[arg-type]  # as untyped tools do
        (File(data=b"x" * (MAX_PART_BYTES + 1)), "[file left out: it is larger than 20,000,000 bytes]"),
    ],
)
def test_a_part_that_no_conversation_may_hold_is_described_and_left_out(value: object, text: str) -> None:
    assert content_of([value, "and words"]) == Content(f"{text}\nand words")


def test_all_parts_of_one_result_share_the_room() -> None:
    half = Image(data=b"x" * (MAX_PART_BYTES // 2 + 1))
    content = content_of([half, half])
    assert content.parts == (half,)
    assert content.text.endswith("[image left out: it is larger than 20,000,000 bytes]")


def test_a_picture_inside_another_value_stays_data() -> None:
    assert content_of({"picture": PNG}).parts == ()
    assert content_of([["nested", PNG]]).parts == ()
