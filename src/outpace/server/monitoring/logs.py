"""Structured logs: one JSON object a line on stderr, uvicorn's own messages included."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("outpace.server")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _is_news(record: logging.LogRecord) -> bool:
    """That a request was cut when the server ended is told by the request's own line, without a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def tell(event: str, facts: dict[str, Any], level: int = logging.INFO) -> None:
    """Writes one line."""
    LOGGER.log(level, "%s", event, extra={"facts": facts})


def set_up() -> None:
    """Sends the lines of this server, of uvicorn and of asyncio to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    handler.addFilter(_is_news)
    levels = {"outpace.server": logging.INFO, "uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
