"""The machine's cores are kept awake while requests are answered and for a while after, and only then."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

import pytest

from outpace import ConfigError
from outpace.server.awake import ASLEEP, AWAKE, DEVICE, Awake

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
        awake = Awake(A_MOMENT, device)
        assert told(device) == [ASLEEP]
        awake.begin()
        awake.begin()
        awake.end()
        await asyncio.sleep(2 * A_MOMENT)
        assert told(device) == [ASLEEP, AWAKE], "one is still being answered"
        awake.end()
        assert told(device) == [ASLEEP, AWAKE]
        await asyncio.sleep(2 * A_MOMENT)
        assert told(device) == [ASLEEP, AWAKE, ASLEEP]
        awake.begin()
        assert told(device) == [ASLEEP, AWAKE, ASLEEP, AWAKE]

    asyncio.run(ask())


def test_the_next_request_in_time_finds_them_awake(device: Path) -> None:
    async def ask() -> None:
        awake = Awake(60.0, device)
        for _ in range(3):
            awake.begin()
            awake.end()
            await asyncio.sleep(A_MOMENT)
        assert told(device) == [ASLEEP, AWAKE]

    asyncio.run(ask())


def test_who_may_not_keep_them_awake_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"awake is 5, but .*nowhere cannot be opened: No such file.*leave awake out"):
        Awake(5.0, tmp_path / "nowhere")


@pytest.mark.skipif(not os.access(DEVICE, os.R_OK | os.W_OK), reason=f"{DEVICE} cannot be written")
def test_the_kernel_does_as_it_is_told() -> None:
    def allowed() -> int:
        """Microseconds that waking may take, over all who have a say."""
        with DEVICE.open("rb", buffering=0) as kernel:
            (microseconds,) = struct.unpack("i", kernel.read(4))
        return int(microseconds)

    async def ask() -> None:
        before = allowed()
        awake = Awake(A_MOMENT)
        assert allowed() == before, "nothing is asked yet"
        awake.begin()
        assert allowed() == AWAKE
        awake.end()
        await asyncio.sleep(2 * A_MOMENT)
        assert allowed() == before

    asyncio.run(ask())
