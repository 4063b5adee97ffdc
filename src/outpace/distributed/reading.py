"""A number of bytes from a stream socket, all of them."""

from __future__ import annotations

import socket
import time


def exactly(connection: socket.socket, size: int, deadline: float | None = None) -> bytearray:
    """The next `size` bytes.

    Args:
        connection: the socket; without a deadline its own timeout holds.
        size: how many.
        deadline: of `time.monotonic()`, for all of them.

    Raises:
        TimeoutError: they did not come in time.
        ConnectionError: the other side hung up.
        OSError: the connection broke.
    """
    found, at = bytearray(size), 0
    view = memoryview(found)
    while at < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (count := connection.recv_into(view[at:])):
            raise ConnectionError("the other side hung up")
        at += count
    return found
