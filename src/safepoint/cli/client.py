"""A server, as operators talk to it: plain HTTP/1.1 from the standard library, one connection for each request.

Every failure becomes a `Trouble`: one line for the operator, and the exit code that says which kind it was.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError

from safepoint.cli.options import MISUSED, NOT_ALLOWED, REFUSED, UNREACHABLE

T = TypeVar("T")

_PATIENCE = 10.0  # seconds for an answer, beside what the server was asked to wait


class Trouble(Exception):
    """The server could not be asked, or said no. `code`: of the process's exit."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def checked_url(url: str) -> SplitResult:
    """Raises `Trouble` for an address that can't be called, or has a key in it."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_fine = parts.scheme in ("http", "https") and host and parts.port != 0 and parts.path.isascii()
        if is_fine and not (parts.query or parts.username):
            return parts
    except ValueError:  # a port that is no number, a host that is no name
        pass
    raise Trouble(f"{url.partition('@')[2] or url!r} is no address: write http://HOST:PORT", MISUSED)


@dataclass(frozen=True)
class Answer:
    """`json`: as it came, of any shape. `link`: the header of that name, where a list tells how it goes on."""

    json: Any  # Any: JSON
    address: str
    link: str = ""

    def read(self, shape: type[T]) -> T:
        """As one of the shapes in `answers`. Raises `Trouble` if it is something else."""
        try:
            return TypeAdapter(shape).validate_python(self.json)
        except ValidationError:
            raise not_safepoint(self.address) from None


def not_safepoint(address: str) -> Trouble:
    return Trouble(f"{address} does not answer as a Safepoint server does: is it the right address?", REFUSED)


class ServerClient:
    """Asks one server. `key` goes into the Authorization header and nowhere else."""

    def __init__(self, url: str, key: str | None = None) -> None:
        if key is not None and not (key.isascii() and key.isprintable() and key):
            raise Trouble("the key has characters that no key has: is it the right file?", MISUSED)
        self._url = checked_url(url)
        self._key = key

    def get(self, *path: str) -> Answer:
        """The answer. The parts of the path are quoted. Raises `Trouble`."""
        return self._ask("GET", _join(path), None, 0.0)

    def pages(self, *path: str, **query: str | Sequence[str] | None) -> Generator[Answer]:
        """A list, page by page, as far as the server says that there is more. Raises `Trouble`."""
        following: str | None = urlencode({name: value for name, value in query.items() if value}, doseq=True)
        while following is not None:
            answer = self._ask("GET", f"{_join(path)}?{following}", None, 0.0)
            yield answer
            following = _following(answer.link)

    def lines(self, *path: str, **query: str | None) -> list[Answer]:
        """A page of JSON lines. Raises `Trouble`."""
        asked = urlencode({name: value for name, value in query.items() if value})
        with self._request("GET", f"{_join(path)}?{asked}", None, _PATIENCE) as response:
            text = response.read()
        return [self._answer(line) for line in text.splitlines()]

    def post(self, *path: str, action: str = "", body: Mapping[str, object], wait: float = 0.0) -> Answer:
        """`action`: the word after the colon. `wait`: for how long the server may take, besides. Raises `Trouble`."""
        return self._ask("POST", _join(path) + (f":{action}" if action else ""), body, wait)

    def events(self, run: str, *, silence: float | None = None) -> Generator[Answer]:
        """What a run tells, event by event, from its beginning to its end. Raises `Trouble`.

        `silence`: after so many seconds without a word it has told what there is.
        """
        with self._request("GET", f"{_join(('runs', run))}/events", None, silence) as response:
            if response.headers.get_content_type() != "text/event-stream":
                raise not_safepoint(self._url.geturl())
            try:
                yield from map(self._answer, _frames(response))
            except TimeoutError:
                return

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None, wait: float) -> Answer:
        with self._request(method, path, body, _PATIENCE + wait) as response:
            text = response.read()
        return self._answer(text, response.getheader("Link") or "")

    def _answer(self, text: str | bytes, link: str = "") -> Answer:
        try:
            return Answer(json.loads(text), self._url.geturl(), link)
        except (ValueError, RecursionError):
            raise not_safepoint(self._url.geturl()) from None

    @contextmanager
    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None, timeout: float | None
    ) -> Generator[http.client.HTTPResponse]:
        assert self._url.hostname is not None
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = kind(self._url.hostname, self._url.port, timeout=timeout)
        try:
            sent = None if body is None else json.dumps(body).encode()
            connection.request(method, self._url.path.rstrip("/") + path, sent, headers)
            response = connection.getresponse()
            if response.status >= 300:
                raise self._refused(response)
            yield response
        except TimeoutError:
            raise Trouble(f"no answer from {self._url.geturl()}: is it overloaded?", UNREACHABLE) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Trouble(f"no server at {self._url.geturl()}: {why}", UNREACHABLE) from None
        finally:
            connection.close()

    def _refused(self, response: http.client.HTTPResponse) -> Trouble:
        text = response.read(65_536).decode("utf-8", "replace")
        try:
            detail = _words(json.loads(text)["detail"])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            is_plain = (response.getheader("Content-Type") or "").startswith("text/plain")
            detail = text if is_plain and text else response.reason
        message = f"{response.status}: {detail}"
        if response.status == 401:
            hint = "set SAFEPOINT_KEY, or name a --key-file" if self._key is None else "look at the one that you sent"
            return Trouble(f"{message}: {hint}", NOT_ALLOWED)
        return Trouble(message, NOT_ALLOWED if response.status == 403 else REFUSED)


def _join(path: tuple[str, ...]) -> str:
    return "".join(f"/{quote(part, safe='')}" for part in path)


def _following(link: str) -> str | None:
    """The query of the next page."""
    found = re.search(r'<\?([!-=?-~]*)>; rel="next"', link)
    return None if found is None else found[1]


def _words(detail: Any) -> str:  # Any: JSON
    """A sentence, also of what was wrong with which field of a request."""
    if isinstance(detail, str):
        return detail
    wrong = [(each["loc"], each["msg"].removeprefix("Value error, ")) for each in detail]
    return "; ".join(msg if msg.startswith(f"{loc[-1]}:") else f"{loc[-1]}: {msg}" for loc, msg in wrong)


def _frames(lines: Iterator[bytes]) -> Iterator[str]:
    """The data of each frame of a stream; comments and unknown fields are left out."""
    data: list[str] = []
    for raw in lines:
        name, _, value = raw.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not name and not value and data:
            yield "\n".join(data)
            data = []
