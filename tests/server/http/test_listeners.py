from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from outpace.errors import ConfigError
from outpace.server.http.listeners import listening


def addresses(*hosts: str) -> Any:
    """`getaddrinfo` of a name that stands for several IPv4 addresses."""

    def found(host: str, port: int, **how: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in hosts]

    return found


def test_a_port_is_held_from_the_first_moment_until_the_end() -> None:
    with listening("127.0.0.1", 0) as (first,):
        address = first.getsockname()
        with socket.create_connection(address):
            pass
        with (
            pytest.raises(ConfigError, match=rf"'127.0.0.1' port {address[1]}: another program .* --port"),
            listening(*address),
        ):
            pass
    assert first.fileno() == -1, "closed"


def test_a_name_has_one_port_at_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", addresses("127.0.0.1", "192.0.2.1", "127.0.0.2", "127.0.0.1"))
    with listening("name", 0) as sockets:
        names = [each.getsockname() for each in sockets]
    assert [host for host, _ in names] == ["127.0.0.1", "127.0.0.2"], "the other is none of this machine"
    assert len({port for _, port in names}) == 1


def test_a_name_of_which_one_address_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening("127.0.0.2", 0) as (taken,):
        monkeypatch.setattr(socket, "getaddrinfo", addresses("127.0.0.1", "127.0.0.2"))
        with pytest.raises(ConfigError, match="another program"), listening("name", taken.getsockname()[1]):
            pass


def test_a_name_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(ConfigError, match=r"cannot listen on 'a\.\.b' port 1: .*; see --host"), listening("a..b", 1):
        pass
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with (
        pytest.raises(ConfigError, match="cannot listen on 'nobody' port 1: Name or service not known; see --host"),
        listening("nobody", 1),
    ):
        pass


def test_what_is_written_to_clients_goes_at_once() -> None:
    """Each token is a small packet; asyncio asks for that only where the listening socket says that it is TCP."""

    async def delayed() -> bool:
        seen: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.set_result(not accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listening("127.0.0.1", 0) as (listener,):
            async with await asyncio.start_server(connected, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                found = await seen
                writer.close()
                await writer.wait_closed()
        return found

    assert not asyncio.run(delayed())
