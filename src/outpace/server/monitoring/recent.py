"""The last requests for answers, as figures: what a person sees on the status page. Never a text of anybody's."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

MOST = 40
FIGURES = ("prompt_tokens", "completion_tokens", "first_token_s", "sent_s", "engine_s")


class Recent:
    """The figures of the last answers, the newest first."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=MOST)

    def note(self, at: float, path: str, status: int, seconds: float, facts: Mapping[str, Any]) -> None:
        """A request is over.

        Args:
            at: Unix time.
            path: its endpoint.
            status: of HTTP; 0 where the client left before there was any.
            seconds: that it took.
            facts: what its log line says; of it only figures are kept, since errors quote what was sent.
        """
        speculation = facts.get("speculation", {})
        # Not the request's id: a client may choose it, and put into it what it likes.
        self._entries.appendleft(
            {
                "time": round(at, 3),
                "path": path,
                "status": status,
                "seconds": round(seconds, 6),
                **{name: facts.get(name) for name in FIGURES},
                **{name: speculation.get(name) for name in ("accept_length", "cycles", "drafted", "accepted")},
            }
        )

    def listed(self) -> list[dict[str, Any]]:
        """All of them, for JSON."""
        return list(self._entries)
