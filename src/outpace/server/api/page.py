"""The status page: one HTML file that asks `/v1/outpace/state` and `/metrics`, and shows them to a person.

The file is served as it lies in `status.html`. It holds no data and needs no key; what it then asks for does. Its
policy allows its own script and style by their hashes, requests to this server, and nothing else.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

from starlette.responses import HTMLResponse, Response

FILE = Path(__file__).with_name("status.html")


def status_page() -> Callable[[], Awaitable[Response]]:
    """The endpoint."""
    html = FILE.read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": policy(html),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def page() -> Response:
        return HTMLResponse(html, headers=headers)

    return page


def policy(html: str) -> str:
    """The Content-Security-Policy of a page whose scripts and styles are all inside it."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(html, 'script')}",
            f"style-src {_hashes(html, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hashes(html: str, element: str) -> str:
    contents = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" for content in contents)
