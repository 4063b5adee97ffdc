"""A server's port, taken before a model is loaded: what is wrong is said at once, and nobody takes it meanwhile."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from outpace.errors import ConfigError
from outpace.server.http.connections import BACKLOG

ABSENT = errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT
REMEDIES = {
    errno.EADDRINUSE: "another program listens there: choose another port with --port (0 takes a free one), or end it",
    errno.EACCES: "this user may not take it: choose a port of 1024 or more with --port",
    **dict.fromkeys(ABSENT, "this machine has no such address: see --host"),
}


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """A socket for each address of `host`, which clients can connect to from now on; closed with the block.

    Args:
        host: a name or an address. Of a name with several, such as localhost, one that this machine lacks is left out.
        port: 0 takes a free one, the same for all.

    Raises:
        ConfigError: none can be had there.
    """
    sockets: list[socket.socket] = []
    lacking: OSError | None = None
    with ExitStack() as stack:
        for family, address in _addresses(host, port):
            if port == 0 and sockets:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                sockets.append(stack.enter_context(_bound(family, address)))
            except OSError as error:
                lacking = error
                if error.errno not in ABSENT:
                    break
        if lacking is not None and (not sockets or lacking.errno not in ABSENT):
            remedy = REMEDIES.get(lacking.errno or 0, f"{lacking.strerror}; see --host and --port")
            raise ConfigError(f"cannot listen on {host!r} port {port}: {remedy}")
        yield sockets


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # a name that is unknown, or cannot be one
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot listen on {host!r} port {port}: {said}; see --host") from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(family: socket.AddressFamily, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio gives TCP_NODELAY to named TCP alone
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a server that has just ended is free
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # :: and 0.0.0.0 are addresses apart
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
