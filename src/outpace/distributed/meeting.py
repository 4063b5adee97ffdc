"""How torchrun's ranks reach the first one: it listens, says where in torchrun's store, and lets in who knows the key.

The store is open to whoever reaches its port, so nothing in it is a secret and nothing in it is trusted.
"""

from __future__ import annotations

import logging
import socket
import time
from datetime import timedelta

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from outpace.distributed.handshake import Stranger, admit, introduce
from outpace.distributed.launcher import Launched
from outpace.distributed.rendezvous import LOOPBACK
from outpace.errors import EngineError

logger = logging.getLogger(__name__)

SECONDS_TO_COME = 600.0
_PORT = "outpace/first"
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 45_000}
"""A machine that is gone is noticed within 45 s. Systems lack some of these."""


def meet_others(store: Store, here: Launched, key: bytes, seconds: float = SECONDS_TO_COME) -> list[socket.socket]:
    """In the first rank: a connection from each of the others, in the order of their ranks.

    Raises:
        EngineError: some did not come; it names them.
    """
    found: dict[int, socket.socket] = {}
    deadline, last = time.monotonic() + seconds, "nobody else came"
    with _listen(here) as server:
        store.set(_PORT, str(server.getsockname()[1]))
        while missing := [rank for rank in range(1, here.size) if rank not in found]:
            try:
                server.settimeout(max(0.001, deadline - time.monotonic()))
                connection, address = server.accept()
            except TimeoutError as error:
                for connection in found.values():
                    connection.close()
                ranks = ", ".join(map(str, missing))
                raise EngineError(f"rank {ranks} of torchrun's did not come within {seconds:g} s; {last}") from error
            try:
                rank = admit(connection, key)
                if rank not in missing:
                    raise Stranger(f"it says that it is rank {rank}, which is not awaited")
            except Stranger as error:
                connection.close()
                last = f"refused last: {address[0]}: {error}"
                logger.warning("a connection from %s is none of torchrun's ranks: %s", address[0], error)
                continue
            found[rank] = _ready(connection)
    return [found[rank] for rank in sorted(found)]


def meet_first(store: Store, here: Launched, key: bytes, seconds: float = SECONDS_TO_COME) -> socket.socket:
    """In another rank: a connection to the first.

    Raises:
        EngineError: it was not found, or does not know the key.
    """
    who = f"rank {here.rank} of torchrun's"
    try:
        store.wait([_PORT], timedelta(seconds=seconds))
        address = (LOOPBACK if _on_one_machine(here) else here.first, int(store.get(_PORT)))
    except (DistError, ValueError) as error:
        raise EngineError(f"{who} does not know where rank 0 listens, after {seconds:g} s: {error}") from error
    where = f"rank 0 at {address[0]} port {address[1]}"
    try:
        connection = socket.create_connection(address, seconds)
    except (OSError, OverflowError) as error:
        raise EngineError(f"{who} cannot reach {where}: {error}") from error
    try:
        introduce(connection, here.rank, key, seconds)
    except Stranger as error:
        connection.close()
        raise EngineError(f"{who} and {where} do not share a key: {error}") from error
    return _ready(connection)


def _on_one_machine(here: Launched) -> bool:
    return here.local_size == here.size


def _listen(here: Launched) -> socket.socket:
    if _on_one_machine(here):
        return socket.create_server((LOOPBACK, 0), backlog=here.size)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=here.size)
    return socket.create_server(("", 0), backlog=here.size)


def _ready(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
