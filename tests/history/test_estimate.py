"""The estimate against real tokenisers: their counts are in data/token_counts.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint.history import (
    File,
    Image,
    Message,
    Notice,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    estimate_messages,
    estimate_tokens,
)
from safepoint.history.estimate import (
    CALL_TOKENS,
    _letters,  # pyright: ignore[reportPrivateUsage]  # its tables are made at import, where no mutant is put in place
    price_messages,
)
from tests.history.conversations import PATIENT

DATA = json.loads((Path(__file__).parent / "data" / "token_counts.json").read_text())
TOKENISERS: list[str] = list(DATA["tokenisers"])


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]  # Any: a JSON schema


@pytest.mark.parametrize("tokeniser", TOKENISERS)
@pytest.mark.parametrize("kind", sorted({entry["kind"] for entry in DATA["texts"]}))
def test_a_text_is_estimated_within_twice_and_half_of_every_tokeniser(kind: str, tokeniser: str) -> None:
    for entry in DATA["texts"]:
        if entry["kind"] == kind:
            estimate, count = estimate_tokens(entry["text"]), entry["counts"][tokeniser]
            assert count / 2 <= estimate <= count * 2, entry["text"]


def test_the_fixture_covers_every_kind_of_text_that_is_promised() -> None:
    promised = {"english", "code", "json", "german", "russian", "chinese", "japanese", "arabic", "emoji", "digits"}
    promised |= {"whitespace", "short", "base64"}
    assert promised <= {entry["kind"] for entry in DATA["texts"]}
    assert len(TOKENISERS) == 8
    assert all(set(entry["counts"]) == set(TOKENISERS) for entry in DATA["texts"])


@pytest.mark.parametrize("entry", DATA["conversations"], ids=lambda entry: entry["name"])
def test_a_conversation_is_estimated_within_twice_and_half_of_every_chat_template(entry: dict[str, Any]) -> None:
    instructions = "\n".join(message["content"] for message in entry["messages"] if message["role"] == "system")
    messages = [_message(message) for message in entry["messages"] if message["role"] != "system"]
    tools = [Tool(**tool["function"]) for tool in entry["tools"]]
    estimate = estimate_messages(messages, instructions, tools)
    for tokeniser, count in entry["counts"].items():
        assert count / 2 <= estimate <= count * 2, (tokeniser, count, estimate)


def _message(message: dict[str, Any]) -> Message:  # Any: an OpenAI message
    if message["role"] == "tool":
        return Message("tool", (ToolResult(message["tool_call_id"], message["name"], message["content"]),))
    calls = [call["function"] for call in message.get("tool_calls", [])]
    parts: list[Part] = [ToolCall("id", call["name"], json.loads(call["arguments"])) for call in calls]
    return Message(message["role"], tuple(parts or [Text(message["content"])]))


def test_nothing_costs_nothing_and_something_costs_at_least_one() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens(" ") == 1
    assert estimate_messages([]) == 0


@PATIENT
@given(st.text(st.characters(codec=None, exclude_categories=[]), max_size=200))
def test_any_text_has_an_estimate_between_one_and_four_tokens_a_character(text: str) -> None:
    assert min(1, len(text)) <= estimate_tokens(text) <= 4 * len(text)


@PATIENT
@given(st.text(), st.text())
def test_two_texts_together_cost_about_what_they_cost_apart(one: str, other: str) -> None:
    apart = estimate_tokens(one) + estimate_tokens(other)
    assert abs(estimate_tokens(one + other) - apart) <= 6


@pytest.mark.parametrize("char", list("aA0 \n\t-.=я漢あ한é👍\x00"))
def test_a_longer_run_of_one_character_never_costs_less(char: str) -> None:
    costs = [estimate_tokens(char * length) for length in (1, 2, 4, 8, 16, 64, 256, 1024, 4096)]
    assert costs == sorted(costs)
    assert costs[-1] > 10


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("word " * 100, 122),
        ("Word " * 100, 130),
        ("0" * 300, 166),
        (" 0" * 100, 188),
        ("AaA" * 100, 314),
        ("aAA" * 100, 315),
        ("A0" * 100, 378),
        ("0a" * 100, 201),
        ("\n" * 800, 78),
        ("\n\n-" * 100, 143),
        ("\t" * 400, 70),
        (" " * 1600, 20),
        ("  -" * 100, 71),
        ("-" * 400, 14),
        ("(" * 400, 144),
        ("\x00" * 100, 100),
        ("é" * 100, 84),
        ("λ" * 100, 61),
        ("я" * 100, 28),
        ("ש" * 100, 58),
        ("س" * 100, 45),
        ("ก" * 100, 60),
        ("ạ" * 100, 41),
        ("’a" * 100, 221),
        ("─" * 400, 52),
        ("あ" * 100, 68),
        ("漢" * 100, 83),
        ("한" * 100, 94),
        ("\uff0c" * 100, 160),
        ("👍" * 100, 200),
        ("\ud800" * 100, 94),
    ],
)
def test_each_kind_of_character_has_its_price(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@pytest.mark.parametrize("byte", range(128))
def test_every_ascii_character_has_the_price_of_its_kind(byte: int) -> None:
    char = chr(byte)
    word, digit = 70, 88
    match char:
        case " ":
            price = 0
        case "\n" | "\r":
            price = 97
        case "\t":
            price = 60
        case _ if char.isupper():
            price = 21 + word
        case _ if char.islower():
            price = 13 + word
        case _ if char.isdigit():
            price = digit
        case _:
            price = 36 if char.isprintable() else 100
    assert estimate_tokens(f"{char}," * 100) == price + 36


@pytest.mark.parametrize(
    ("first", "last", "price"),
    [
        ("\u0080", "\u037f", 83 + 70),
        ("\u0380", "\u03ff", 60 + 70),
        ("\u0400", "\u04ff", 27 + 70),
        ("\u0500", "\u05ff", 57 + 70),
        ("\u0600", "\u06ff", 44 + 70),
        ("\u0700", "\u07ff", 57 + 70),
        ("\u0800", "\u0fff", 60),
        ("\u1000", "\u1fff", 40 + 70),
        ("\u2000", "\u2fff", 138),
        ("\u3000", "\u3fff", 68),
        ("\u4000", "\u9fff", 83),
        ("\ua000", "\udfff", 94),
        ("\ue000", "\uffff", 160),
        ("\U00010000", "\U0010ffff", 200),
    ],
)
def test_beyond_ascii_the_price_is_that_of_the_script(first: str, last: str, price: int) -> None:
    assert estimate_tokens(f"{first}," * 100) == price + 36
    assert estimate_tokens(f"{last}," * 100) == price + 36


@pytest.mark.parametrize("ruler", "-=_*#~")
def test_a_ruler_is_cheap_whatever_it_is_made_of(ruler: str) -> None:
    assert estimate_tokens(ruler * 400) == 14


@pytest.mark.parametrize("char", "!\"$%&'()+,./:;<>?@[\\]^`{|}")
def test_what_makes_no_ruler_is_never_cheap(char: str) -> None:
    assert estimate_tokens(char * 400) == 144


def test_a_table_says_for_every_byte_of_which_kind_it_is() -> None:
    table = _letters({"v": b"aeiou", "d": range(0x30, 0x3A)}, ".")
    assert b"take 9!".translate(table) == b".v.v.d."
    assert bytes(range(256)).translate(table).count(b".") == 256 - 5 - 10


def test_a_call_without_arguments_costs_what_is_written_for_it() -> None:
    def price(*parts: Part) -> int:
        return price_messages([Message("assistant", parts)])

    assert price(ToolCall("id", "look", {})) == price(Text("look {}")) + 100 * CALL_TOKENS


def test_every_part_of_a_message_is_counted() -> None:
    words = "strawberry blackberry elderberry"  # two whole tokens each: texts are counted together, and rounded once
    one = estimate_tokens(words)

    def cost(*parts: Part) -> int:
        return estimate_messages([Message("user", parts)]) - 4

    assert one == 6
    assert cost(Text(words)) == one
    assert cost(Notice(words)) == one
    assert cost(Text(words), Text(words)) == 2 * one
    assert cost(Reasoning(words, signature="seal")) == one
    assert cost(Reasoning(words)) == 0
    assert cost(Image(data=b"x")) == 800
    assert cost(File(data=words.encode(), media_type="text/plain")) == one
    assert cost(File(data=b"\xff", media_type="text/plain")) == estimate_tokens("�")
    assert cost(File(data=words.encode(), media_type="application/pdf")) == 2000
    assert cost(File(url="https://example.com/a.txt", media_type="text/plain")) == 2000
    assert cost(ToolResult("id", "tool", words)) == 8 + one
    assert cost(ToolCall("id", "tool", {"grüße": words})) == 8 + estimate_tokens(f'tool {{"grüße": "{words}"}}')


def test_messages_instructions_and_tools_add_up() -> None:
    message = Message("user", (Text("strawberry"),))
    assert estimate_messages([message]) == 6
    assert estimate_messages([message, message]) == 12
    assert estimate_messages([message], "strawberry") == 12
    assert estimate_messages([message], "") == 6
    tool = Tool("search", "find things", {"type": "object"})
    told = 'search find things {"type": "object"}'
    assert estimate_messages([message], None, [tool]) == 6 + 60 + 20 + estimate_tokens(told)
    twice = estimate_tokens(f"{told}\0{told}") - 1
    assert estimate_messages([message], None, [tool, tool]) == 6 + 60 + 20 + 20 + twice


@PATIENT
@given(st.lists(st.text(max_size=20), max_size=8), st.lists(st.text(max_size=20), max_size=8))
def test_the_prices_of_messages_add_up_exactly(some: list[str], others: list[str]) -> None:
    one, other = (Message("user", tuple(map(Text, texts))) for texts in (some, others))
    assert price_messages([one, other]) == price_messages([one]) + price_messages([other])
    assert price_messages([one]) == 400 + sum(price_messages([Message("user", (Text(text),))]) - 400 for text in some)


def test_arguments_that_are_no_plain_json_are_estimated_all_the_same() -> None:
    odd = Message("assistant", (ToolCall("id", "tool", {"odd": {1, 2, 3}}),))
    assert estimate_messages([odd]) > 4 + 8


@pytest.mark.parametrize("number", [127, 128, 129, 256, 1000, 20_000])
def test_of_a_long_conversation_pieces_tell_what_the_whole_costs(number: int) -> None:
    """Also where dear and cheap texts take turns, as often as pieces are looked at."""
    size = 1_000_000 // number
    dear, cheap = ("漢" * size), ("word " * size)[:size]
    messages = [Message("user", (Text(dear if place % 2 else cheap),)) for place in range(number)]
    exact = price_messages(messages) / 100
    assert exact / 1.25 <= estimate_messages(messages) <= exact * 1.25


@pytest.mark.parametrize("kind", sorted({entry["kind"] for entry in DATA["texts"]}))
def test_pieces_of_a_long_text_of_any_kind_tell_what_the_whole_costs(kind: str) -> None:
    text = "\n".join(entry["text"] for entry in DATA["texts"] if entry["kind"] == kind)
    text *= 1 + 100_000 // len(text)
    exact = price_messages([Message("user", (Text(text),))]) / 100
    assert exact / 1.1 <= estimate_tokens(text) <= exact * 1.1


def test_a_text_is_looked_at_whole_as_long_as_it_is_short() -> None:
    hidden = "word " * 3000 + "漢" * 100
    assert (
        estimate_messages([Message("user", (Text(hidden),))])
        == (price_messages([Message("user", (Text(hidden),))]) + 50) // 100
    )


@pytest.mark.parametrize("length", [16_384, 16_385, 20_000, 1_000_000])
def test_every_piece_of_a_long_text_is_whole_and_counts_for_as_much_of_it(length: int) -> None:
    assert estimate_tokens("漢" * length) == (83 * length + 50) // 100
