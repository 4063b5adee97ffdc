"""Two ends of a connection show each other that they know the ranks' key, without sending it (HMAC-SHA256).

    first  → other   nonce
    other  → first   rank, nonce, proof over both nonces and the rank
    first  → other   proof over the same, for the other direction

A stranger is heard for `SECONDS` and 68 bytes at most. What follows on the connection is not encrypted.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import time

from outpace.distributed.reading import exactly
from outpace.errors import ConfigError

KEY = "OUTPACE_RANKS_KEY"
MIN_KEY = 16
SECONDS = 5.0
_NONCE = _PROOF = 32
_RANK = 4


class Stranger(Exception):
    """The other end did not show that it knows the key."""


def ranks_key() -> bytes:
    """The key of the ranks that torchrun started, from the environment.

    Raises:
        ConfigError: there is none, or it is too short to be a secret.
    """
    key = os.environ.get(KEY, "").encode(errors="surrogateescape")
    if len(key) < MIN_KEY:
        found = f"{KEY} has {len(key)} bytes" if key else f"{KEY} is not set"
        raise ConfigError(
            f"{found}; ranks that torchrun starts show each other by it that they belong together: export the same "
            f"secret of {MIN_KEY} bytes or more on every machine, as {KEY}=$(openssl rand -hex 32)"
        )
    return key


def admit(connection: socket.socket, key: bytes, seconds: float = SECONDS) -> int:
    """The first rank's side: which rank has come.

    Raises:
        Stranger: whoever came does not know the key, or took too long.
    """
    nonce, deadline = secrets.token_bytes(_NONCE), time.monotonic() + seconds
    try:
        connection.sendall(nonce)
        said = bytes(exactly(connection, _RANK + _NONCE + _PROOF, deadline))
        rank, theirs, proof = said[:_RANK], said[_RANK : _RANK + _NONCE], said[-_PROOF:]
        if not hmac.compare_digest(proof, _proof(key, b"other", rank, nonce, theirs)):
            raise Stranger(f"its {KEY} is another")
        connection.sendall(_proof(key, b"first", rank, nonce, theirs))
    except OSError as error:
        raise Stranger(str(error)) from error
    return int.from_bytes(rank, "big")


def introduce(connection: socket.socket, rank: int, key: bytes, seconds: float = SECONDS) -> None:
    """Another rank's side.

    Raises:
        Stranger: the first rank did not take this one in, or does not know the key itself.
    """
    own, deadline = secrets.token_bytes(_NONCE), time.monotonic() + seconds
    number = rank.to_bytes(_RANK, "big")
    try:
        nonce = bytes(exactly(connection, _NONCE, deadline))
        connection.sendall(number + own + _proof(key, b"other", number, nonce, own))
        proof = bytes(exactly(connection, _PROOF, deadline))
    except OSError as error:
        raise Stranger(str(error)) from error
    if not hmac.compare_digest(proof, _proof(key, b"first", number, nonce, own)):
        raise Stranger(f"its {KEY} is another")


def _proof(key: bytes, side: bytes, rank: bytes, first: bytes, other: bytes) -> bytes:
    return hmac.digest(key, b"outpace ranks: " + side + rank + first + other, "sha256")
