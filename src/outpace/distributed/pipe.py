"""Typed messages between the first rank and another: length-prefixed msgpack over a stream socket, never pickle.

A frame is four bytes of length, most significant first, and a message. Only the types that a side names are decoded.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from outpace.distributed.reading import exactly
from outpace.errors import EngineError

MAX_FRAME = 64 << 20
"""Bytes of one message: a prompt of ten million tokens fits."""
_PREFIX = 4

Incoming = TypeVar("Incoming")


class PipeClosed(Exception):
    """The other side is gone."""


class Pipe(Generic[Incoming]):
    """One end. One thread reads; several may send.

    Args:
        connection: a connected stream socket, from here on the pipe's.
        incoming: the types of the messages that come, a union of tagged structs.
        silence: seconds without a byte from the other side, or without one taken by it, after which it counts as gone;
            None waits for ever.
    """

    def __init__(self, connection: socket.socket, incoming: Any, silence: float | None = None) -> None:
        connection.settimeout(silence)
        self._connection, self._silence = connection, silence
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Sends one message.

        Raises:
            PipeClosed: nobody is there.
            EngineError: the message is above `MAX_FRAME`.
        """
        body = self._encoder.encode(message)
        if len(body) > MAX_FRAME:
            raise EngineError(f"a message of {len(body)} bytes is too large for a rank; at most {MAX_FRAME} are sent")
        try:
            with self._sending:
                self._connection.sendall(len(body).to_bytes(_PREFIX, "big") + body)
        except TimeoutError as error:
            raise PipeClosed(f"it took no message for {self._silence:g} s") from error
        except OSError as error:
            raise PipeClosed(str(error)) from error

    def receive(self) -> Incoming:
        """The next message; waits for it.

        Raises:
            PipeClosed: the other side is gone, or sent what is no message of these types.
        """
        size = int.from_bytes(self._exactly(_PREFIX), "big")
        if size > MAX_FRAME:
            raise PipeClosed(f"a frame of {size} bytes came; at most {MAX_FRAME} are taken")
        body = self._exactly(size)
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise PipeClosed(f"a frame of {size} bytes is no message: {error}") from error

    def close(self) -> None:
        """Hangs up: a reader on either side wakes."""
        with suppress(OSError):  # the other side was first
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, size: int) -> bytearray:
        try:
            return exactly(self._connection, size)
        except TimeoutError as error:
            raise PipeClosed(f"it gave no sign of life for {self._silence:g} s") from error
        except OSError as error:
            raise PipeClosed(str(error)) from error
