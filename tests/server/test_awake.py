"""The machine's cores are kept awake while requests are answered and for a while after, and only then."""

from __future__ import annotations

import asyncio
import gc
import os
import struct
from functools import partial
from pathlib import Path

import httpx2 as httpx
import pytest

from outpace import ConfigError
from outpace.cli.serve import start_of
from outpace.server import assembly
from outpace.server.awake import ASLEEP, AWAKE, DEVICE, Awake, Latency, kernel_decides
from outpace.server.engine_client.client import EngineClient
from outpace.server.looking import Looking
from outpace.server.settings import ServerConfig
from outpace.server.wire import Start

A_MOMENT = 0.05


def told(device: Path) -> list[int]:
    """What the kernel would have been told, in order: to a file, one after the other."""
    return [number for (number,) in struct.iter_unpack("i", device.read_bytes())]


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    return path


def test_cores_sleep_before_requests_and_some_time_after_them(device: Path) -> None:
    async def ask() -> None:
        awake = Awake(A_MOMENT, Latency(device))
        assert told(device) == [ASLEEP]
        with awake.answering():
            with awake.answering():
                pass
            await asyncio.sleep(2 * A_MOMENT)
            assert told(device) == [ASLEEP, AWAKE], "one is still being answered"
        assert told(device) == [ASLEEP, AWAKE]
        await asyncio.sleep(2 * A_MOMENT)
        assert told(device) == [ASLEEP, AWAKE, ASLEEP]
        with awake.answering():
            assert told(device) == [ASLEEP, AWAKE, ASLEEP, AWAKE]

    asyncio.run(ask())


def test_the_next_request_in_time_finds_them_awake(device: Path) -> None:
    async def ask() -> None:
        awake = Awake(60.0, Latency(device))
        for _ in range(3):
            with awake.answering():
                pass
            await asyncio.sleep(A_MOMENT)
        assert told(device) == [ASLEEP, AWAKE]

    asyncio.run(ask())


def test_the_end_before_does_not_send_them_to_sleep(device: Path) -> None:
    async def ask() -> None:
        awake = Awake(A_MOMENT, Latency(device))
        with awake.answering():
            pass
        with awake.answering():
            await asyncio.sleep(2 * A_MOMENT)
            assert told(device) == [ASLEEP, AWAKE]

    asyncio.run(ask())


def test_an_answer_that_fails_has_ended(device: Path) -> None:
    async def ask() -> None:
        awake = Awake(A_MOMENT, Latency(device))
        with pytest.raises(RuntimeError), awake.answering():
            raise RuntimeError
        await asyncio.sleep(2 * A_MOMENT)
        assert told(device) == [ASLEEP, AWAKE, ASLEEP]

    asyncio.run(ask())


def test_the_kernel_is_let_go_with_the_last_who_could_tell_it(device: Path) -> None:
    """An event loop may end before the timer, and its process live on."""

    async def ask() -> None:
        awake = Awake(60.0, Latency(device))
        with awake.answering():
            assert is_held(device)

    asyncio.run(ask())
    gc.collect()
    assert not is_held(device)


def is_held(device: Path) -> bool:
    """By this process. The descriptor that lists them is gone when it is looked at."""
    return any(each.exists() and each.readlink() == device for each in Path("/proc/self/fd").iterdir())


def test_what_pays_only_later_wakes_them_then(device: Path) -> None:
    """As where the first requests come while the model is loaded, and the next ones before they could have slept."""
    pays = False

    async def ask() -> None:
        nonlocal pays
        awake = Awake(60.0, Latency(device), lambda: pays)
        with awake.answering():
            pass
        with awake.answering():
            assert told(device) == [ASLEEP]
            pays = True
            with awake.answering():
                assert told(device) == [ASLEEP, AWAKE]

    asyncio.run(ask())


@pytest.mark.parametrize(("place", "why"), [("nowhere", "No such file"), ("/dev/full", "No space left")])
def test_who_may_not_keep_them_awake_is_told_so(
    tmp_path: Path, place: str, why: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "kernel_decides", lambda: True)
    monkeypatch.setattr(assembly, "Latency", partial(Latency, tmp_path / place))
    start = start_of({"model": str(model), "drafter": "none", "device": "cpu"})
    with pytest.raises(ConfigError, match=rf"awake is 5, but .*{place} cannot be written to: {why}.*leave awake out"):
        assembly.assemble(start, ServerConfig(awake=5.0))


@pytest.mark.parametrize(
    ("method", "path", "key", "status", "wakes"),
    [
        ("POST", "/v1/chat/completions", "k", 503, True),
        ("POST", "/v1/completions", "k", 503, True),
        ("POST", "/v1/completions/", "k", 503, True),
        ("POST", "/v1/completions", "other", 401, False),
        ("GET", "/v1/completions", "k", 405, False),
        ("POST", "/tokenize", "k", 503, False),
        ("GET", "/health", "", 200, False),
        ("GET", "/nowhere", "k", 404, False),
    ],
)
def test_a_server_wakes_them_for_answers_alone(
    method: str,
    path: str,
    key: str,
    status: int,
    wakes: bool,
    model: Path,
    device: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its engine never was there: what is asked comes as far as that. Who may not ask wakes nobody."""
    monkeypatch.setattr(assembly, "kernel_decides", lambda: True)
    monkeypatch.setattr(assembly, "Latency", partial(Latency, device))
    start = start_of({"model": str(model), "drafter": "none", "device": "cpu"})
    _, app = assembly.assemble(start, ServerConfig(served_name="tiny", api_key=("k",), awake=60.0))

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            said = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
            body = {"model": "tiny"} | said
            headers = {"Authorization": f"Bearer {key}"}
            return int((await client.request(method, path, headers=headers, json=body)).status_code)

    assert asyncio.run(ask()) == status
    assert told(device) == ([ASLEEP, AWAKE] if wakes else [ASLEEP])


def test_a_server_that_was_not_told_to_leaves_them_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Awake:
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr(assembly, "Awake", refuse)
    assembly.assemble(start_of({"model": str(model), "drafter": "none", "device": "cpu"}), ServerConfig())


@pytest.mark.parametrize(("said", "decides"), [("intel_idle\n", True), ("none\n", False), ("", False), (None, False)])
def test_a_kernel_decides_if_it_has_a_driver(said: str | None, decides: bool, tmp_path: Path) -> None:
    if said is not None:
        (tmp_path / "current_driver").write_text(said)
    assert kernel_decides(tmp_path / "current_driver") == decides


@pytest.mark.parametrize(("device", "looks"), [("cuda:0", True), ("cpu", False)])
def test_where_the_host_decides_processes_look_for_a_gpus_sake(
    device: str, looks: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's process is told to, the loop is once an answer begins."""
    monkeypatch.setattr(assembly, "kernel_decides", lambda: False)
    told: list[Start] = []
    monkeypatch.setattr(assembly, "EngineClient", lambda start, **_: told.append(start) or EngineClient(start, **_))
    looking = Looking()
    start = start_of({"model": str(model), "drafter": "none", "device": "cpu"})
    client, app = assembly.assemble(start, ServerConfig(served_name="tiny", awake=60.0), looking)
    client.described = {"device": device}
    assert [each.awake for each in told] == [60.0]

    async def ask() -> bool:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as asking:
            await asking.post("/v1/completions", json={"model": "tiny"})
        return looking.looks

    assert asyncio.run(ask()) == looks


def test_a_loop_that_cannot_look_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "kernel_decides", lambda: False)
    start = start_of({"model": str(model), "drafter": "none", "device": "cpu"})
    with pytest.raises(ConfigError, match=r"awake is 60, but no driver .* leave awake out"):
        assembly.assemble(start, ServerConfig(awake=60.0))


@pytest.mark.skipif(not os.access(DEVICE, os.R_OK | os.W_OK), reason=f"{DEVICE} cannot be written")
def test_the_kernel_does_as_it_is_told() -> None:
    def allowed() -> int:
        """Microseconds that waking may take, over all who have a say."""
        with DEVICE.open("rb", buffering=0) as kernel:
            (microseconds,) = struct.unpack("i", kernel.read(4))
        return int(microseconds)

    async def ask() -> None:
        before = allowed()
        awake = Awake(A_MOMENT, Latency())
        assert allowed() == before, "nothing is asked yet"
        with awake.answering():
            assert allowed() == AWAKE
        await asyncio.sleep(2 * A_MOMENT)
        assert allowed() == before

    asyncio.run(ask())
