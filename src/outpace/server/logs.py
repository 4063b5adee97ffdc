"""Structured logs: one JSON object a line on stderr, uvicorn's own messages included."""

from __future__ import annotations

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


def tell(event: str, facts: dict[str, Any], level: int = logging.INFO) -> None:
    """Writes one line."""
    LOGGER.log(level, "%s", event, extra={"facts": facts})


def set_up() -> None:
    """Sends the lines of this server, of uvicorn and of asyncio to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    levels = {"outpace.server": logging.INFO, "uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
