"""How many tokens a text costs, without a tokeniser. For the usage of a call that was cut before it could be counted.

Each kind of character has a price, and so has the start of a word; runs of one kind get a discount. The prices are such
that the estimate stays within a factor of two of eight real tokenisers at once, for prose in some twenty languages,
code, JSON, digits, base64, emoji and whitespace (tests/history/data holds the counts). The tokenisers themselves differ
by up to a factor of four on one text, so no better promise holds for all of them. For Hindi and Thai they differ by
more than that, and so they do for a single word or emoji now and then.

The text is taken as UTF-8: the first byte of a character tells its script well enough, and the rest is dropped. What is
left has one letter per character, and counting letters and pairs of letters is what `bytes` does fastest.

A stop waits for the estimate, so it must not grow with the conversation: of a long text pieces are counted that lie all
over it, one at an odd place of each of its parts, so that nothing regular in the text can hide between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import mul
from typing import Any, Final, Protocol, assert_never

from safepoint.history.parts import File, Image, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult
from safepoint.history.prefix_cache import LONG, PrefixCache

IMAGE_TOKENS: Final = 800
"""For any picture: a 1024×1024 one costs 765 at OpenAI, about 1,400 at Anthropic and 258 to 1,032 at Gemini."""
FILE_TOKENS: Final = 2000
"""For a document that is not plain text: about a page as the providers count it. What is in it cannot be seen here."""
MESSAGE_TOKENS: Final = 4
"""What a message costs beside its words: the marks around it and its role."""
CALL_TOKENS: Final = 8
"""What a call or a result costs beside its words: the marks around it, the id."""
TOOL_TOKENS: Final = 20
"""What a tool costs beside its name, description and schema."""
TOOLS_TOKENS: Final = 60
"""What it costs once if there are tools at all: the provider tells the model how to call them."""

_CLASSES: Final = {
    "a": range(0x61, 0x7B),
    "A": range(0x41, 0x5B),
    "0": range(0x30, 0x3A),
    " ": b" ",
    "n": b"\n\r",
    "t": b"\t",
    "-": b"-=_*#~",
    "k": (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F),
    "e": range(0xC0, 0xCE),
    "g": range(0xCE, 0xD0),
    "y": range(0xD0, 0xD4),
    "h": (*range(0xD4, 0xD8), *range(0xDC, 0xE0)),
    "r": range(0xD8, 0xDC),
    "i": b"\xe0",
    "x": b"\xe1",
    "q": b"\xe2",
    "j": b"\xe3",
    "c": range(0xE4, 0xEA),
    "o": range(0xEA, 0xEE),
    "z": b"\xee\xef",
    "m": range(0xF0, 0x100),
}
"""One letter per kind of character; other ASCII is ".". Beyond ASCII, by first byte: e Latin with marks, g Greek,
y Cyrillic, h Hebrew and Armenian, r Arabic, i Indic and Thai, x Vietnamese and others, q punctuation and symbols,
j kana, c Chinese, o Korean, z full width, m emoji."""
_CONTINUATION: Final = bytes(range(0x80, 0xC0))

# Prices in hundredths of a token.
_PRICES: Final = {b"a": 13, b"A": 21, b"0": 88, b"n": 97, b"t": 60, b"k": 100, b".": 36, b"-": 36} | {
    # Base64, hex and the like: such sequences are rare in words, also in camelCase.
    b"AaA": 120,
    b"aAA": 140,
    b"A0": 80,
    b"0A": 120,
    b"0a": 30,
    b" 0": 100,  # one space belongs to the word after it, but not to a number
    b"000": -98,  # some tokenisers take digits one by one, others by threes
    b"n" * 2: -87,
    b"n" * 4: -90,
    b"n" * 8: -170,
    b"t" * 4: -170,
    b" " * 2: 35,
    b" " * 4: -25,
    b" " * 8: -40,
    b" " * 16: -80,
    b"-" * 4: -130,  # rulers
    # Beyond ASCII.
    b"e": 83,
    b"g": 60,
    b"y": 27,
    b"h": 57,
    b"r": 44,
    b"i": 60,
    b"x": 40,
    b"q": 138,
    b"q" * 4: -500,  # the lines of a table
    b"j": 68,
    b"c": 83,
    b"o": 94,
    b"z": 160,
    b"m": 200,
}
# A text is searched for those alone that can be in it: they begin with a letter of its own.
_BY_FIRST_LETTER: Final = {
    letter: {letters: price for letters, price in _PRICES.items() if letters[0] == letter} for letter in range(256)
}
_WORD_PRICE: Final = 70

_PIECES: Final = 64
_PIECE: Final = 256
_ODD: Final = 0.6180339887

_as_json: Final = json.JSONEncoder(ensure_ascii=False, default=repr).encode


def _letters(classes: Mapping[str, Iterable[int]], otherwise: str) -> bytes:
    table = bytearray(otherwise.encode() * 256)
    for letter, members in classes.items():
        for byte in members:
            table[byte] = ord(letter)
    return bytes(table)


_TABLE: Final = _letters(_CLASSES, ".")
_WORDS: Final = _letters({"x": b"aAegyhrx"}, " ")


class ToolDescription(Protocol):
    """What is told to a model about a tool."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...  # Any: a JSON schema


def estimate_tokens(text: str) -> int:
    """About how many tokens the text is. None for an empty one, else at least one."""
    return max(1, _rounded(_price_of_pieces(text))) if text else 0


def _price_of_pieces(text: str) -> int:
    """In hundredths of a token: of the whole text, or guessed from pieces if it is long."""
    if len(text) <= _PIECES * _PIECE:
        return _price(text)
    part = len(text) / _PIECES
    starts = [int(number * part + (number * _ODD) % 1 * (part - _PIECE)) for number in range(_PIECES)]
    return _price("".join([text[start : start + _PIECE] for start in starts])) * len(text) // (_PIECES * _PIECE)


def _price(text: str) -> int:
    """In hundredths of a token."""
    line = text.encode("utf-8", "surrogatepass").translate(_TABLE, _CONTINUATION)
    hundredths = _WORD_PRICE * (b" " + line.translate(_WORDS)).count(b" x")
    for letter in set(line):
        prices = _BY_FIRST_LETTER[letter]
        hundredths += sum(map(mul, map(line.count, prices), prices.values()))
    return hundredths


def _rounded(hundredths: int) -> int:
    return (hundredths + 50) // 100


def estimate_messages(
    messages: Sequence[Message], instructions: str | None = None, tools: Sequence[ToolDescription] = ()
) -> int:
    """About how many tokens a request with all this costs before the model has said a word.

    A stop waits for this, so a long conversation is read once: later estimates read what was added since.
    """
    known = _prices.longest(messages)
    start, price = (len(known.messages), known.found) if known is not None else (0, 0)
    if len(messages) >= LONG:
        price += _bill(messages[start:-1], None, ()).total(_price_of_pieces)
        start = len(messages) - 1
        _prices.keep(messages, price, instead=known)
    return _rounded(price + _bill(messages[start:], instructions, tools).total(_price_of_pieces))


# In hundredths of a token.
_prices: Final = PrefixCache[int]()


def price_messages(
    messages: Sequence[Message], instructions: str | None = None, tools: Sequence[ToolDescription] = ()
) -> int:
    """The same in hundredths of a token, and exact, so that the prices of parts add up to the price of the whole."""
    return _bill(messages, instructions, tools).total(_price)


def _bill(messages: Sequence[Message], instructions: str | None, tools: Sequence[ToolDescription]) -> _Bill:
    bill = _Bill()
    for message in messages:
        bill.tokens += MESSAGE_TOKENS
        for part in message.parts:
            bill.add(part)
    if instructions:
        bill.tokens += MESSAGE_TOKENS
        bill.texts.append(instructions)
    if tools:
        bill.tokens += TOOLS_TOKENS
    for tool in tools:
        bill.tokens += TOOL_TOKENS
        bill.texts.append(f"{tool.name} {tool.description} {_json(tool.parameters)}")
    return bill


class _Bill:
    """Tokens that are certain, and texts, which are counted together: that is faster than one by one."""

    def __init__(self) -> None:
        self.tokens = 0
        self.texts: list[str] = []

    def add(self, part: Part) -> None:
        match part:
            case Text() | Notice():
                self.texts.append(part.text)
            case ToolCall():
                self.tokens += CALL_TOKENS
                self.texts.append(f"{part.name} {_json(part.args)}")
            case ToolResult():
                self.tokens += CALL_TOKENS
                self.texts.append(part.content)
                for attached in part.parts:
                    self.add(attached)
            case Reasoning():
                if part.signature:
                    self.texts.append(part.text)
            case Image():
                self.tokens += IMAGE_TOKENS
            case File():
                self._add_file(part)
            case _:
                assert_never(part)

    def _add_file(self, part: File) -> None:
        if part.data is None or not part.media_type.startswith("text/"):
            self.tokens += FILE_TOKENS
        else:
            self.texts.append(part.data.decode("utf-8", "replace"))

    def total(self, price: Callable[[str], int]) -> int:
        # The separator costs a whole token, and next to it no text looks different from what it is alone.
        separators = max(0, len(self.texts) - 1)
        return 100 * (self.tokens - separators) + price("\0".join(self.texts))


def _json(value: Mapping[str, Any]) -> str:  # Any: decoded JSON
    return _as_json(dict(value)) if value else "{}"
