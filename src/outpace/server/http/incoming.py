"""What comes over a connection, made into requests: each is answered in its turn, and what is no HTTP is refused in its
turn, too.

uvicorn, which this is built on, takes heads of any length; writes that a request is wrong into the answer before it;
tells only the last of several requests that its client has left; takes trailers for headers; and loses the body of a
request that offers to go on in another protocol, as Java's HTTP client does with each first one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MALFORMED = "outpace.malformed"
"""In a request's `state`: why it cannot be read. It may be found out while the body comes."""
MAX_HEAD_BYTES = 64 << 10
"""Of a request's head, of what stands between two parts of its body or of what follows the last: all that is kept until
it is whole. One reading of the socket may be more."""
MAX_PIPELINED = 16
"""Requests of one client that wait for the answer of the one before them."""


class _Malformed(Exception):
    pass


class Incoming(HttpToolsProtocol):
    """A connection of HTTP, without any regard to time."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._asked: deque[RequestResponseCycle] = deque()
        """Requests that are being answered or wait for it, in their order."""
        self._num_unused = 0
        """Bytes of which nothing has been made yet."""
        self._has_head = False
        """That of the request which is coming is whole."""
        self._is_malformed = False

    @property
    def is_answered(self) -> bool:
        """Some request of it is, or waits for that."""
        return bool(self._asked)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._asked:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_malformed:
            return
        self._unset_keepalive_if_required()
        self._num_unused += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._refuse(_why(error))
        else:
            if self._num_unused > MAX_HEAD_BYTES:
                self._refuse(f"its head, or what stands between parts of its body, is above {MAX_HEAD_BYTES} bytes")

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:  # the parser skips the body
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                data = head + data[upgrade.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        line = self.parser.get_method() + b" " + self.url + b" HTTP/" + version
        headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([line, *headers, b"", b""])

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # a trailer is none
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_unused = 0
        self._check_head()
        if self.parser.should_upgrade():
            return  # it is parsed once more
        super().on_headers_complete()
        self._asked.append(self.cycle)
        self._has_head = True

    def _check_head(self) -> None:
        if self._is_malformed:
            return
        version = self.parser.get_http_version()
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1"):
            raise _Malformed(f"its version is {version}, and this server speaks 1.1")
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            raise _Malformed(f"it has {num_hosts} Host headers, and must have one")
        if self.parser.get_method() == b"CONNECT":
            raise _Malformed("its method is CONNECT, and this server is no proxy")
        if len(self._asked) > MAX_PIPELINED:
            raise _Malformed(f"{len(self._asked)} were sent before it on this connection and are not answered yet")

    def on_body(self, body: bytes) -> None:
        self._num_unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_unused = 0
        if self._has_head:
            self._has_head = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._asked.popleft()
        super().on_response_complete()

    def _refuse(self, why: str) -> None:
        """Answers that the request which comes is wrong, when those before it are answered, and takes nothing more."""
        self._is_malformed = True
        self.flow.pause_reading()
        if not self._has_head:
            self._begin_malformed(why)
        elif self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False
            self.cycle.scope["state"][MALFORMED] = why
            self.cycle.message_event.set()

    def _begin_malformed(self, why: str) -> None:
        """A request in place of the one that is wrong, of which nothing is known: what was read of it may be wrong."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"GET / HTTP/1.0\r\n\r\n")
        self.scope["method"] = self.scope["path"] = ""
        self.scope["state"][MALFORMED] = why


def _why(error: httptools.HttpParserError) -> str:
    if isinstance(error.__context__, _Malformed):
        return str(error.__context__)
    # What a callback of uvicorn's raised is for those who know uvicorn.
    return "its target is no path" if isinstance(error, httptools.HttpParserCallbackError) else f"{error}"
