"""A server's parts behind its endpoints, without what a test does not touch."""

from __future__ import annotations

from typing import Any

from outpace.server.api.backend import Backend


def bare_backend(**parts: Any) -> Backend:
    """With these parts; nothing measures and nothing is kept unless they do."""
    others: dict[str, Any] = {
        "metrics": None,
        "recent": None,
        "name": "tiny",
        "tool_form": None,
        "request_timeout": 1.0,
        "default_max_tokens": None,
        "settings": {},
        "created": 0,
    }
    return Backend(**others | parts)
