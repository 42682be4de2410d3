"""How the server's log lines look: words for people, or one JSON object a line for machines.

A line about a run or a request carries its facts as fields (`extra=…`), beside its words. Fields never hold a header,
a query, a body or a message of a conversation: nothing that could be a secret.
"""

from __future__ import annotations

import json
import logging
import sys
import time

# What a plain record has; the rest was given by the caller that logged it.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """`time` in UTC, `level`, `logger`, `message`, the fields, and `exception` where there was one."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """One line for each record; what came from outside can't begin a line of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # as logging calls it
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def configure_logging(lines: logging.Formatter, level: str = "INFO") -> None:
    """All log lines of the process from that level on to stderr, in that form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
