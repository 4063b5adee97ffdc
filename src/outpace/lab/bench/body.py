"""Reads what a server sends, and no more of it than fits in memory: it may be anything, and without end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

MOST_BYTES = 16 << 20
"""Of a page, or of one event of a stream: many times what any server's metrics take."""


class TooLongError(Exception):
    """It sent more."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_BYTES >> 20} MiB")


async def read_page(response: httpx2.Response) -> httpx2.Response:
    """The same response with its content, read.

    Raises:
        TooLongError: there is more of it than anybody would send.
    """
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > MOST_BYTES:
            raise TooLongError
    kind = response.headers.get("content-type", "")
    return httpx2.Response(response.status_code, headers={"content-type": kind}, content=bytes(content))


async def read_events(response: httpx2.Response) -> AsyncIterator[str]:
    """The data of each server-sent event, as it comes.

    Raises:
        TooLongError: one event does not end.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MOST_BYTES:
            raise TooLongError
        for line in lines:
            if line.startswith(b"data:"):
                yield _text(line)
    if rest.startswith(b"data:"):
        yield _text(rest)


def _text(line: bytes) -> str:
    return line[5:].decode("utf-8", "replace").strip()
