"""Fetching a page: what comes back, what is bounded, and every attempt to reach what is not public."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import cast

import httpcore2
import pytest

from safepoint import Agent, LedgerEntry
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import Fetch, fetch
from safepoint.tools.fetch_tool import look_up

PUBLIC = "93.184.216.34"
Answer = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def page(body: bytes, kind: str = "text/plain", status: str = "200 OK", **fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return page(b"", status=status, location=to)


class Web:
    """A server on loopback that plays the whole internet: names, addresses, and who was connected to."""

    def __init__(self, answers: Mapping[str, Answer], names: Mapping[str, Sequence[str]] | None = None) -> None:
        self._answers = answers
        self._names = names or {}
        self.reached: list[str] = []
        self.asked: list[str] = []
        self.looked_up: list[str] = []
        self.came = asyncio.Event()
        self.gone = asyncio.Event()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.looked_up.append(host)
        if host in self._names:
            return self._names[host]
        return [PUBLIC] if host.endswith(".test") else await look_up(host, port)

    async def connect(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        self.reached.append(f"{address}:{port}")
        network = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())
        return await network.connect_tcp("127.0.0.1", self._port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.asked.append(path)
            self.came.set()
            answer = self._answers[path]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        self.gone.set()
        writer.close()

    async def fetched(self, url: str, **options: object) -> LedgerEntry:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port: int = server.sockets[0].getsockname()[1]
        async with server:
            tool = fetch(resolve=self.resolve, connect=self.connect, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as given
            return (await agent(tool, url).run("go")).ledger[0]


def agent(tool: Fetch, url: str) -> Agent:
    return Agent("a", model=ScriptedModel(call("fetch", url=url), say("done")), tools=[tool])


def fetched(url: str, answers: Mapping[str, Answer], **options: object) -> LedgerEntry:
    async def main() -> LedgerEntry:
        return await Web(answers).fetched(url, **options)

    return asyncio.run(main())


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_a_page_comes_back_as_text_with_its_status() -> None:
    assert fetched("http://a.test/x", {"/x": page(b"hello")}).content == "HTTP 200 http://a.test/x\n\nhello"
    missing = fetched("http://a.test/x", {"/x": page(b"gone", status="404 Not Found")})
    assert missing.content == "HTTP 404 http://a.test/x\n\ngone"
    latin = fetched("http://a.test/x", {"/x": page("ü".encode("latin-1"), "text/html; charset=ISO-8859-1")})
    assert (latin.content or "").endswith("\n\nü")
    odd = fetched("http://a.test/x", {"/x": page(b"a", "text/html; charset=none-such")})
    assert (odd.content or "").endswith("\n\na")


@pytest.mark.parametrize("charset", ["idna", "punycode", "undefined", "unicode_escape", "raw-unicode-escape", "é"])
def test_a_charset_that_no_page_is_written_in_is_not_believed(charset: str) -> None:
    body = b"a-\\d" * 1000
    entry = fetched("http://a.test/x", {"/x": page(body, f"text/html; charset={charset}")})
    assert entry.content == f"HTTP 200 http://a.test/x\n\n{body.decode()}"


def test_what_is_not_text_is_described() -> None:
    entry = fetched("http://a.test/x", {"/x": page(b"123", "image/png")})
    assert entry.content == "HTTP 200 http://a.test/x\n[not text: image/png, 3 bytes]"


def test_redirects_are_followed_and_counted() -> None:
    answers = {
        "/1": redirect("/2", "301 Moved"),
        "/2": redirect("http://b.test/3", "307 Temporary"),
        "/3": page(b"here"),
    }
    assert fetched("http://a.test/1", answers).content == "HTTP 200 http://b.test/3\n\nhere"
    assert "more than 5 redirects" in (fetched("http://a.test/1", {"/1": redirect("/1")}).error or "")


def test_a_long_answer_is_cut_at_the_limit_and_one_without_an_end_too() -> None:
    entry = fetched("http://a.test/x", {"/x": page(b"0123456789")}, max_bytes=4)
    assert entry.content == "HTTP 200 http://a.test/x\n\n0123\n[cut here, after 4 bytes]"

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 10_000)
            await writer.drain()

    entry = fetched("http://a.test/x", {"/x": endless}, max_bytes=50_000)
    assert (entry.content or "").endswith("x\n[cut here, after 50000 bytes]")


def test_a_compressed_answer_that_nobody_asked_for_is_not_unpacked() -> None:
    entry = fetched("http://a.test/x", {"/x": page(b"\x1f\x8b", content_encoding="gzip")})
    assert "[the answer is compressed (gzip), although that was not asked for]" in (entry.content or "")


def test_the_connection_is_made_to_the_address_that_was_checked_and_the_name_is_looked_up_once() -> None:
    async def main() -> Web:
        web = Web({"/x": page(b"hello")})
        await web.fetched("http://a.test:8080/x")
        return web

    web = asyncio.run(main())
    assert (web.reached, web.looked_up) == ([f"{PUBLIC}:8080"], ["a.test"])


# -- stopping ----------------------------------------------------------------------------------------------------------


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other side has gone."""
    await reader.read()


async def halfway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nhalf")
    await reader.read()


@pytest.mark.parametrize("answer", [silent, halfway])
def test_now_closes_the_connection_whatever_the_server_does(answer: Answer) -> None:
    async def main() -> None:
        web = Web({"/x": answer})
        task = asyncio.ensure_future(web.fetched("http://a.test/x"))
        await web.came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await web.gone.wait()

    asyncio.run(main())


def test_a_server_that_is_too_slow_is_cut() -> None:
    entry = fetched("http://a.test/x", {"/x": silent}, timeout=0.1)
    assert (entry.state, entry.effect) == ("cut", "pure")


# -- what may not be reached -------------------------------------------------------------------------------------------

ATTEMPTS = {
    "loopback": "http://127.0.0.1/x",
    "another loopback": "http://127.8.8.8/x",
    "loopback by name": "http://localhost/x",
    "loopback as one number": "http://2130706433/x",
    "loopback in hexadecimal": "http://0x7f000001/x",
    "loopback in octal": "http://0177.0.0.1/x",
    "loopback, short": "http://127.1/x",
    "nowhere, which is here": "http://0.0.0.0/x",
    "nowhere, short": "http://0/x",
    "IPv6 loopback": "http://[::1]/x",
    "IPv6 nowhere": "http://[::]/x",
    "loopback in IPv6": "http://[::ffff:127.0.0.1]/x",
    "loopback in IPv6, in hexadecimal": "http://[::ffff:7f00:1]/x",
    "loopback through NAT64": "http://[64:ff9b::7f00:1]/x",
    "loopback through 6to4": "http://[2002:7f00:1::]/x",
    "loopback in old IPv6": "http://[::127.0.0.1]/x",
    "a site of IPv6": "http://[fec0::1]/x",
    "a private network, 10": "http://10.0.0.1/x",
    "a private network, 172.16": "http://172.16.0.1/x",
    "a private network, 192.168": "http://192.168.1.1/x",
    "a carrier's network": "http://100.64.0.1/x",
    "a private network of IPv6": "http://[fd00::1]/x",
    "link-local": "http://169.254.1.1/x",
    "link-local of IPv6": "http://[fe80::1]/x",
    "the metadata of AWS, Google and Azure": "http://169.254.169.254/latest/meta-data/",
    "the metadata of AWS by IPv6": "http://[fd00:ec2::254]/x",
    "the metadata of Alibaba": "http://100.100.100.200/x",
    "the metadata of Oracle": "http://192.0.0.192/x",
    "the wire server of Azure": "http://168.63.129.16/x",
    "multicast": "http://224.0.0.1/x",
    "broadcast": "http://255.255.255.255/x",
    "a name that points inside": "http://inside.test/x",
    "a name that points inside and outside": "http://both.test/x",
    "a name that points to IPv6 inside": "http://inside6.test/x",
    "a file": "file:///etc/passwd",
    "another protocol": "gopher://a.test/x",
    "no protocol": "//127.0.0.1/x",
    "a password": "http://user:secret@a.test/x",
    "a host hidden behind a password": "http://a.test@127.0.0.1/x",
    "a redirect to loopback": "http://a.test/to-loopback",
    "a redirect to metadata": "http://a.test/to-metadata",
    "a redirect to a name that points inside": "http://a.test/to-inside",
    "a redirect to a file": "http://a.test/to-file",
    "a redirect without a protocol": "http://a.test/to-relative",
    "a chain of redirects that ends inside": "http://a.test/chain",
}
NAMES = {"inside.test": ["10.1.2.3"], "both.test": [PUBLIC, "10.1.2.3"], "inside6.test": ["fd12::1"]}
REDIRECTS = {
    "/to-loopback": redirect("http://127.0.0.1/x"),
    "/to-metadata": redirect("http://169.254.169.254/latest/meta-data/"),
    "/to-inside": redirect("http://inside.test/x"),
    "/to-file": redirect("file:///etc/passwd"),
    "/to-relative": redirect("//10.0.0.1/x"),
    "/chain": redirect("/to-loopback", "308 Permanent"),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_is_not_public_is_never_connected_to(name: str) -> None:
    async def main() -> tuple[LedgerEntry, Web]:
        web = Web({"/x": page(b"the secret"), **REDIRECTS}, NAMES)
        return await web.fetched(ATTEMPTS[name]), web

    entry, web = asyncio.run(main())
    assert entry.state == "failed", entry.content
    assert "PermissionError" in (entry.error or "")
    assert set(web.reached) <= {f"{PUBLIC}:80"}
    assert "/x" not in web.asked


def test_a_name_that_answers_otherwise_the_second_time_does_not_matter() -> None:
    async def main() -> tuple[LedgerEntry, Web]:
        class Rebinding(Web):
            async def resolve(self, host: str, port: int) -> Sequence[str]:
                self.looked_up.append(host)
                return [PUBLIC] if len(self.looked_up) == 1 else ["127.0.0.1"]

        web = Rebinding({"/1": redirect("/x"), "/x": page(b"the secret")})
        return await web.fetched("http://rebinding.test/1"), web

    entry, web = asyncio.run(main())
    assert (entry.state, web.reached, web.asked) == ("failed", [f"{PUBLIC}:80"], ["/1"])
    assert "rebinding.test is at 127.0.0.1, which is not a public address" in (entry.error or "")


def test_what_is_allowed_by_number_may_be_reached_and_nothing_else() -> None:
    assert "hello" in (fetched("http://127.0.0.1/x", {"/x": page(b"hello")}, allow=["127.0.0.0/8"]).content or "")
    assert fetched("http://10.0.0.1/x", {"/x": page(b"hello")}, allow=["127.0.0.0/8"]).state == "failed"


def test_a_host_without_an_address_and_a_broken_answer_are_failed_tools() -> None:
    async def nothing(host: str, port: int) -> Sequence[str]:
        return []

    entry = asyncio.run(agent(fetch(resolve=nothing), "http://a.test/").run("go")).ledger[0]
    assert (entry.state, entry.error) == ("failed", "OSError: a.test has no address")
    assert fetched("http://a.test/x", {"/x": b"nonsense\r\n\r\n"}).state == "failed"


def test_options_that_mean_nothing_are_refused() -> None:
    for options, words in (
        ({"allow": "10.0.0.0/8"}, r"write a list, as allow=\['10.0.0.0/8'\]"),
        ({"allow": ["here"]}, "write an address or a network"),
        ({"max_bytes": 0}, "write a whole number of bytes"),
        ({"timeout": 0}, "must be a finite number of seconds"),
        ({"name": "a b"}, "cannot be a tool's name"),
    ):
        with pytest.raises(ValueError, match=words):
            fetch(**options)  # pyright: ignore[reportArgumentType]  # that is the point
