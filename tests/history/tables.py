"""Conversations that no provider would take, each with what `check_history` says about it; and some that all take."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from safepoint.history import File, Image, LedgerState, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult

Wrong = Any  # Any: wrong on purpose


def user(*parts: Part) -> Message:
    return Message("user", parts or (Text("hi"),))


def assistant(*parts: Part) -> Message:
    return Message("assistant", parts or (Text("hello"),))


def tool(*parts: Part) -> Message:
    return Message("tool", parts)


def call(id: str = "1", name: str = "search", **args: object) -> ToolCall:
    return ToolCall(id, name, args)


def result(id: str = "1", name: str = "search", content: str = "found", state: str = "finished") -> ToolResult:
    return ToolResult(id, name, content, state)


def as_is(value: Wrong) -> Wrong:
    return value


ENDLESS: dict[str, Any] = {}  # Any: contains itself
ENDLESS["again"] = [ENDLESS]


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


def with_args(args: Wrong) -> list[Message]:
    return [user(), assistant(ToolCall("1", "search", args)), tool(result())]


MAP_PARTS = "write a tuple: (Text('…'),)"
SEEN = "write something that can be seen, or leave the part out"
FILL = "give it at least one, or leave the message out"
BETWEEN = "put the missing message in between"
PAIR = "give each call exactly one result with its id and name, in call order"
NAME = "use 1 to 64 of the characters A-Z a-z 0-9 _ -"
JSON = "use only what JSON has, with str keys"
ARGS = "messages[1] (assistant), part 0: args cannot be sent as JSON:"
MEND = 'write text.encode("utf-8", "replace").decode()'
USER_PARTS = "this role's parts are Text, Image, File"
ASSISTANT_PARTS = "this role's parts are Text, Reasoning, ToolCall, Notice"
ORDER = "its parts are out of order; write Reasoning, then Text and ToolCall, then Notice"
STATES = "the states are compensated, cut, failed, finished, finished_late, not_started, stopped, waiting"

BROKEN: dict[str, tuple[Wrong, str]] = {
    # the list and its messages
    "a history is no string": (
        "hi",
        "messages: a history is a list of Message, not of type str; write [Message(…), …]",
    ),
    "a history is no bytes": (
        b"hi",
        "messages: a history is a list of Message, not of type bytes; write [Message(…), …]",
    ),
    "a history is not None": (None, "messages: a history is a list of Message, not None; write [Message(…), …]"),
    "a history is no generator": (
        (message for message in [user()]),
        "messages: a history is a list of Message, not of type generator; write [Message(…), …]",
    ),
    "a message is no dict": (
        [{"role": "user", "content": "hi"}],
        'messages[0]: it is of type dict; write Message("user", (Text("…"),))',
    ),
    "there is no system role in a history": (
        [as_is(Message)("system", (Text("be good"),))],
        "messages[0]: 'system' is no role; the roles are 'user', 'assistant' and 'tool'",
    ),
    "a role is a word": (
        [as_is(Message)(["user"], (Text("hi"),))],
        "messages[0]: of type list is no role; the roles are 'user', 'assistant' and 'tool'",
    ),
    "parts are a tuple": (
        [as_is(Message)("user", [Text("hi")])],
        f"messages[0] (user): its parts are of type list; {MAP_PARTS}",
    ),
    "parts are no bare string": (
        [as_is(Message)("user", "hi")],
        f"messages[0] (user): its parts are of type str; {MAP_PARTS}",
    ),
    "a message has parts": ([Message("user", ())], f"messages[0] (user): it has no parts; {FILL}"),
    "a part is one of ours": (
        [user(), assistant(), as_is(user)(Text("see"), "hi")],
        f"messages[2] (user), part 1: it is of type str; {USER_PARTS}",
    ),
    # who may say what
    "a user does not call tools": ([user(call())], f"messages[0] (user), part 0: it is of type ToolCall; {USER_PARTS}"),
    "a user does not give notices": (
        [user(Notice("n"))],
        f"messages[0] (user), part 0: it is of type Notice; {USER_PARTS}",
    ),
    "a user does not think aloud": (
        [user(Reasoning("r"))],
        f"messages[0] (user), part 0: it is of type Reasoning; {USER_PARTS}",
    ),
    "a user does not answer calls": (
        [user(result())],
        f"messages[0] (user), part 0: it is of type ToolResult; {USER_PARTS}",
    ),
    "an assistant sends no pictures": (
        [user(), assistant(Image(data=b"x"))],
        f"messages[1] (assistant), part 0: it is of type Image; {ASSISTANT_PARTS}",
    ),
    "an assistant sends no files": (
        [user(), assistant(Text("see"), File(data=b"x"))],
        f"messages[1] (assistant), part 1: it is of type File; {ASSISTANT_PARTS}",
    ),
    "an assistant does not answer its own calls": (
        [user(), assistant(call(), result())],
        f"messages[1] (assistant), part 1: it is of type ToolResult; {ASSISTANT_PARTS}",
    ),
    "a tool message has nothing but results": (
        [user(), assistant(call()), tool(result(), Text("by the way"))],
        "messages[2] (tool), part 1: it is of type Text; this role's parts are ToolResult",
    ),
    # words
    "a text is not empty": ([user(Text(""))], f"messages[0] (user), part 0: text is empty or blank; {SEEN}"),
    "a text is not blank": ([user(Text(" \n\t\u3000"))], f"messages[0] (user), part 0: text is empty or blank; {SEEN}"),
    "a notice is not blank": (
        [user(), assistant(Text("a"), Notice(" "))],
        f"messages[1] (assistant), part 1: text is empty or blank; {SEEN}",
    ),
    "a result is not blank": (
        [user(), assistant(call()), tool(result(content="\n"))],
        f"messages[2] (tool), part 0: content is empty or blank; {SEEN}",
    ),
    "a text is a str": ([user(as_is(Text)(7))], "messages[0] (user), part 0: text is of type int; write a str"),
    "a text is not None": ([user(as_is(Text)(None))], "messages[0] (user), part 0: text is None; write a str"),
    "a result's content is a str": (
        [user(), assistant(call()), tool(as_is(result)(content={"a": 1}))],
        "messages[2] (tool), part 0: content is of type dict; write a str",
    ),
    "half a surrogate pair cannot be sent": (
        [user(Text("cut \ud83d"))],
        f"messages[0] (user), part 0: text holds half a surrogate pair; {MEND}",
    ),
    "nor can it in a result": (
        [user(), assistant(call()), tool(result(content="\udc00"))],
        f"messages[2] (tool), part 0: content holds half a surrogate pair; {MEND}",
    ),
    "a user's text is never incomplete": (
        [user(Text("hi"), Text("I wan", incomplete=True))],
        "messages[0] (user), part 1: a user's text is marked incomplete; write incomplete=False",
    ),
    "incomplete is yes or no": (
        [user(), assistant(as_is(Text)("a", incomplete="yes"))],
        "messages[1] (assistant), part 0: incomplete is of type str; write True or False",
    ),
    # thinking
    "thinking is a str": (
        [user(), assistant(as_is(Reasoning)(1), Text("a"))],
        "messages[1] (assistant), part 0: text is of type int; write a str",
    ),
    "thinking can be sent": (
        [user(), assistant(Reasoning("\ud83d"), Text("a"))],
        f"messages[1] (assistant), part 0: text holds half a surrogate pair; {MEND}",
    ),
    "a seal is not blank": (
        [user(), assistant(Reasoning("hm", signature=""), Text("a"))],
        f"messages[1] (assistant), part 0: signature is empty or blank; {SEEN}",
    ),
    "a seal is a str": (
        [user(), assistant(as_is(Reasoning)("hm", b"seal"), Text("a"))],
        "messages[1] (assistant), part 0: signature is of type bytes; write a str",
    ),
    "thinking alone is no answer": (
        [user(), assistant(Reasoning("hm", "seal"), Reasoning("so", "seal"))],
        "messages[1] (assistant): it has nothing but Reasoning; add a Text or a Notice, or leave the message out",
    ),
    "thinking comes before words": (
        [user(), assistant(Text("a"), Reasoning("hm", "seal"))],
        f"messages[1] (assistant): {ORDER}",
    ),
    "thinking comes before calls": (
        [user(), assistant(call(), Reasoning("hm", "seal")), tool(result())],
        f"messages[1] (assistant): {ORDER}",
    ),
    "a notice comes after words": ([user(), assistant(Notice("n"), Text("a"))], f"messages[1] (assistant): {ORDER}"),
    "a notice comes after calls": (
        [user(), assistant(Notice("n"), call()), tool(result())],
        f"messages[1] (assistant): {ORDER}",
    ),
    "a notice comes after thinking": (
        [user(), assistant(Notice("n"), Reasoning("hm", "seal"))],
        f"messages[1] (assistant): {ORDER}",
    ),
    # whose turn it is
    "the assistant does not speak first": (
        [assistant()],
        f"messages[0] (assistant): the first message must be user; {BETWEEN}",
    ),
    "a tool does not speak first": ([tool(result())], f"messages[0] (tool): the first message must be user; {BETWEEN}"),
    "a user does not speak twice": (
        [user(), user()],
        f"messages[1] (user): what follows a user message must be assistant; {BETWEEN}",
    ),
    "nobody answers calls that nobody made": (
        [user(), tool(result())],
        f"messages[1] (tool): what follows a user message must be assistant; {BETWEEN}",
    ),
    "an assistant does not speak twice": (
        [user(), assistant(), assistant()],
        f"messages[2] (assistant): what follows an answer must be user; {BETWEEN}",
    ),
    "an answer without calls has no results": (
        [user(), assistant(), tool(result())],
        f"messages[2] (tool): what follows an answer must be user; {BETWEEN}",
    ),
    "results come before the user goes on": (
        [user(), assistant(call("1"), call("2")), user(), tool(result("1"), result("2"))],
        f"messages[2] (user): what follows an assistant message with calls '1', '2' must be tool; {BETWEEN}",
    ),
    "results come before the assistant goes on": (
        [user(), assistant(call()), assistant()],
        f"messages[2] (assistant): what follows an assistant message with calls '1' must be tool; {BETWEEN}",
    ),
    "results come in one message": (
        [user(), assistant(call("1"), call("2")), tool(result("1")), tool(result("2"))],
        "messages[2] (tool): its results are for '1' (search), but the calls before it are "
        f"'1' (search), '2' (search); {PAIR}",
    ),
    "results come once": (
        [user(), assistant(call()), tool(result()), tool(result())],
        f"messages[3] (tool): what follows a tool message must be assistant or user; {BETWEEN}",
    ),
    "the last calls have results": (
        [user(), assistant(call("1"), call("2"))],
        "messages[1] (assistant): the history ends before the calls '1', '2' have results; "
        "end it with a tool message that has one ToolResult per call, in call order",
    ),
    # calls and results
    "a call has one result": (
        [user(), assistant(call()), tool(result(), result())],
        "messages[2] (tool): its results are for '1' (search), '1' (search), but the calls before it are "
        f"'1' (search); {PAIR}",
    ),
    "results come in call order": (
        [user(), assistant(call("1"), call("2")), tool(result("2"), result("1"))],
        "messages[2] (tool): its results are for '2' (search), '1' (search), but the calls before it are "
        f"'1' (search), '2' (search); {PAIR}",
    ),
    "a result has its call's id": (
        [user(), assistant(call("1")), tool(result("2"))],
        f"messages[2] (tool): its results are for '2' (search), but the calls before it are '1' (search); {PAIR}",
    ),
    "a result has its call's name": (
        [user(), assistant(call()), tool(result(name="find"))],
        f"messages[2] (tool): its results are for '1' (find), but the calls before it are '1' (search); {PAIR}",
    ),
    "a call has an id": (
        [user(), assistant(call("")), tool(result(""))],
        f"messages[1] (assistant), part 0: id is empty or blank; {SEEN}",
    ),
    "an id is a str": (
        [user(), assistant(as_is(call)(1)), tool(as_is(result)(1))],
        "messages[1] (assistant), part 0: id is of type int; write a str",
    ),
    "a result has a call's id": (
        [user(), assistant(call()), tool(result(""))],
        f"messages[2] (tool), part 0: call_id is empty or blank; {SEEN}",
    ),
    "two calls of a message have two ids": (
        [user(), assistant(call("1"), call("1")), tool(result("1"), result("1"))],
        "messages[1] (assistant): the call id '1' is taken by messages[1] (assistant); give each its own",
    ),
    "an id is used once in a history": (
        [user(), assistant(call()), tool(result()), assistant(call()), tool(result())],
        "messages[3] (assistant): the call id '1' is taken by messages[1] (assistant); give each its own",
    ),
    "a long id is shown in part": (
        [user(), assistant(call("x" * 65)), tool(result("y"))],
        "messages[2] (tool): its results are for 'y' (search), but the calls before it are "
        f"'{'x' * 64}' (search); {PAIR}",
    ),
    "a tool has a name": (
        [user(), assistant(call(name="")), tool(result(name=""))],
        f"messages[1] (assistant), part 0: '' is no tool name; {NAME}",
    ),
    "a tool's name is short": (
        [user(), assistant(call(name="n" * 65)), tool(result(name="n" * 65))],
        f"messages[1] (assistant), part 0: '{'n' * 64}' is no tool name; {NAME}",
    ),
    "a tool's name has no dots": (
        [user(), assistant(call(name="functions.search")), tool(result(name="functions.search"))],
        f"messages[1] (assistant), part 0: 'functions.search' is no tool name; {NAME}",
    ),
    "a tool's name ends before the line does": (
        [user(), assistant(call(name="search\n")), tool(result(name="search\n"))],
        f"messages[1] (assistant), part 0: 'search\\n' is no tool name; {NAME}",
    ),
    "a tool's name is a str": (
        [user(), assistant(as_is(call)("1", None)), tool(result())],
        f"messages[1] (assistant), part 0: None is no tool name; {NAME}",
    ),
    "a result's name is a tool's": (
        [user(), assistant(call()), tool(result(name="a b"))],
        f"messages[2] (tool), part 0: 'a b' is no tool name; {NAME}",
    ),
    "a result's parts are a tuple": (
        [user(), assistant(call()), tool(as_is(ToolResult)("1", "search", "found", "finished", [Image(data=b"x")]))],
        "messages[2] (tool), part 0, its parts: its parts are of type list; write a tuple: (Text('…'),)",
    ),
    "a result's parts are pictures and files": (
        [user(), assistant(call()), tool(as_is(ToolResult)("1", "search", "found", "finished", (Text("x"),)))],
        "messages[2] (tool), part 0, its parts, part 0: it is of type Text; this role's parts are Image, File",
    ),
    "a result's picture has bytes": (
        [user(), assistant(call()), tool(ToolResult("1", "search", "found", parts=(Image(data=b""),)))],
        "messages[2] (tool), part 0, its part 0: data is empty; send at least one byte, or leave the part out",
    ),
    "a result has a state of the ledger": (
        [user(), assistant(call()), tool(result(state="aborted"))],
        f"messages[2] (tool), part 0: 'aborted' is no state of an ended call; {STATES}",
    ),
    "nothing runs in a closed history": (
        [user(), assistant(call()), tool(result(state=LedgerState.RUNNING))],
        f"messages[2] (tool), part 0: 'running' is no state of an ended call; {STATES}",
    ),
    "a state is a word": (
        [user(), assistant(call()), tool(as_is(result)(state=["cut"]))],
        f"messages[2] (tool), part 0: of type list is no state of an ended call; {STATES}",
    ),
    # arguments
    "arguments are a mapping": (
        with_args([1]),
        "messages[1] (assistant), part 0: args is of type list; write a dict with str keys",
    ),
    "arguments are decoded": (
        with_args('{"a": 1}'),
        "messages[1] (assistant), part 0: args is of type str; write a dict with str keys",
    ),
    "arguments have str keys": (
        with_args({1: "a"}),
        f"{ARGS} a key is int instead of str; {JSON}",
    ),
    "so have arguments inside arguments": (
        with_args({"a": [{"b": {None: 1}}]}),
        f"{ARGS} a key is NoneType instead of str; {JSON}",
    ),
    "an argument is no object": (
        with_args({"a": {1, 2}}),
        f"{ARGS} it holds a value of type set, which JSON does not have; {JSON}",
    ),
    "an argument is no bytes": (
        with_args({"a": [b"x"]}),
        f"{ARGS} it holds a value of type bytes, which JSON does not have; {JSON}",
    ),
    "an argument is a number": (
        with_args({"a": float("nan")}),
        f"{ARGS} it holds nan, which JSON does not have; {JSON}",
    ),
    "an argument is finite": (
        with_args({"a": [float("-inf")]}),
        f"{ARGS} it holds -inf, which JSON does not have; {JSON}",
    ),
    "an argument can be sent": (
        with_args({"a": "\ud83d"}),
        f"{ARGS} it holds half a surrogate pair, which has no UTF-8 form; {JSON}",
    ),
    "an argument's name can be sent": (
        with_args({"\ud83d": 1}),
        f"{ARGS} it holds half a surrogate pair, which has no UTF-8 form; {JSON}",
    ),
    "arguments end somewhere": (
        with_args(ENDLESS),
        f"{ARGS} it nests deeper than 64 levels, or contains itself; {JSON}",
    ),
    "arguments end soon": (
        with_args(nested(65)),
        f"{ARGS} it nests deeper than 64 levels, or contains itself; {JSON}",
    ),
    "invalid arguments are left out": (
        [user(), assistant(ToolCall("1", "search", {"a": 1}, invalid="no JSON")), tool(result())],
        "messages[1] (assistant), part 0: it has args although they are marked invalid; write args={}",
    ),
    "what was invalid is a str": (
        [user(), assistant(as_is(ToolCall)("1", "search", {}, invalid=True)), tool(result())],
        "messages[1] (assistant), part 0: invalid is of type bool; write a str",
    ),
    # pictures and files
    "a picture is not empty": (
        [user(Image(data=b""))],
        "messages[0] (user), part 0: data is empty; send at least one byte, or leave the part out",
    ),
    "a picture is bytes": (
        [user(as_is(Image)(data="iVBORw0KGgo="))],
        "messages[0] (user), part 0: data is of type str; write bytes",
    ),
    "a picture has a picture's type": (
        [user(Image(data=b"x", media_type="application/pdf"))],
        "messages[0] (user), part 0: 'application/pdf' is no picture; write image/png, or send it as a File",
    ),
    "a media type has two halves": (
        [user(Image(data=b"x", media_type="png"))],
        "messages[0] (user), part 0: 'png' is no media type; write one like image/png",
    ),
    "a media type has no options": (
        [user(File(data=b"x", media_type="text/plain; charset=utf-8"))],
        "messages[0] (user), part 0: 'text/plain; charset=utf-8' is no media type; write one like image/png",
    ),
    "a media type is a str": (
        [user(as_is(File)(data=b"x", media_type=None))],
        "messages[0] (user), part 0: None is no media type; write one like image/png",
    ),
    "an address is not blank": (
        [user(Image(url=" "))],
        f"messages[0] (user), part 0: url is empty or blank; {SEEN}",
    ),
    "an address is a str": (
        [user(as_is(File)(url=7))],
        "messages[0] (user), part 0: url is of type int; write a str",
    ),
    "a file is not empty": (
        [user(File(data=b""))],
        "messages[0] (user), part 0: data is empty; send at least one byte, or leave the part out",
    ),
    "a file's name is not blank": (
        [user(File(data=b"x", name=""))],
        f"messages[0] (user), part 0: name is empty or blank; {SEEN}",
    ),
}

VALID: dict[str, list[Message] | tuple[Message, ...]] = {
    "nothing was said yet": [],
    "a question without an answer": [user()],
    "a tuple of messages": (user(), assistant()),
    "questions and answers": [user(), assistant(), user(), assistant()],
    "a picture and a file": [
        user(
            Text("see"), Image(data=b"x"), Image(url="https://example.com/a", media_type="IMAGE/Jpeg"), File(data=b"x")
        ),
        assistant(),
        user(File(url="https://example.com/a", name="a.pdf", media_type="application/vnd.api+json")),
    ],
    "calls and results in one order": [
        user(),
        assistant(call("1"), call("2", "find")),
        tool(result("1"), result("2", "find")),
    ],
    "step after step": [
        user(),
        assistant(call("1")),
        tool(result("1")),
        assistant(call("2")),
        tool(result("2")),
        assistant(),
    ],
    "a message that joined while tools ran": [user(), assistant(call()), tool(result()), user(), assistant()],
    "words and calls in any order": [
        user(),
        assistant(call("1"), Text("and"), call("2")),
        tool(result("1"), result("2")),
    ],
    "everything an assistant may say": [
        user(),
        assistant(
            Reasoning("hm", "seal"),
            Reasoning("", "seal"),
            Reasoning("aside"),
            Text("a"),
            Text("b", incomplete=True),
            Notice("n"),
            Notice("m"),
        ),
    ],
    "a notice alone": [user(), assistant(Notice("stopped"))],
    "thinking and a notice": [user(), assistant(Reasoning("hm"), Notice("stopped"))],
    "a notice beside calls": [user(), assistant(call(), Notice("n")), tool(result())],
    "the longest name": [user(), assistant(call(name="Az09_-" + "n" * 58)), tool(result(name="Az09_-" + "n" * 58))],
    "an id of any length and letters": [
        user(),
        assistant(call("functions.a:0" * 20)),
        tool(result("functions.a:0" * 20)),
    ],
    "everything JSON has": with_args(
        {"a": [None, True, 1, -1.5, "x", {"b": (1, 2)}, [], {}], "": MappingProxyType({"c": 1})}
    ),
    "the deepest arguments": with_args(nested(64)),
    "arguments that were no JSON": [user(), assistant(ToolCall("1", "search", {}, invalid="")), tool(result())],
    "control characters in text": [user(Text("\x00\x1b[0m")), assistant()],
    "emoji in text": [user(Text("\U0001f600"))],
}
