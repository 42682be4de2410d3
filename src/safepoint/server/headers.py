"""Headers that tell a browser to trust nothing but what this server sent. Pure."""

from __future__ import annotations

import base64
import hashlib
import re

_INLINE = re.compile(r"<(script|style)\b(?![^>]*\ssrc=)[^>]*>(.*?)</\1>", re.S | re.I)


def page_headers(page: str = "") -> dict[str, str]:
    """For an answer that a browser shows.

    Scripts, styles and connections are the server's own. Those written into `page` itself are named by their hashes,
    so that injected code does not run. It can't be framed, and nothing of it is kept.
    """
    allowed = {"script": ["'self'"], "style": ["'self'"]}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[kind.lower()].append(f"'sha256-{digest}'")
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(allowed["script"]),
        "style-src": " ".join(allowed["style"]),
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        # `no-referrer` would make browsers send `Origin: null` with a form, which is refused.
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
