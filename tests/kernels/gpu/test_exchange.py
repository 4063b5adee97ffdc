"""The exchange over shared memory: under Triton's interpreter, in processes that map files where GPUs map peers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernel needs Triton")

from outpace.kernels.gpu.exchange import BLOCK, PROGRAMS, num_bytes
from outpace.kernels.gpu.exchange_norm import num_bytes as norm_bytes

NEAR_WRAP = 2**31 - 3
SCRIPT = """
import sys, time, random
import torch
from outpace.kernels.gpu.exchange import BLOCK, PROGRAMS, exchange
from outpace.kernels.gpu.exchange_norm import ROWS, exchange_and_norm

rank, size, *files = sys.argv[1:]
rank, size = int(rank), int(size)
maps = [torch.from_file(name, shared=True, size=%(num_bytes)d, dtype=torch.uint8) for name in files]
addresses = torch.tensor([found.data_ptr() for found in maps])
memory = dict(
    addresses=addresses,
    epochs=torch.full((PROGRAMS,), %(near_wrap)d, dtype=torch.int32),
    stop=torch.zeros(1, dtype=torch.int32),
)
pace = random.Random(rank)
for step in range(12):
    shape = [(1, 1), (1, BLOCK), (2, 700), (2, BLOCK)][step %% 4]
    joins = step %% 3 == 0
    dtype = (torch.bfloat16, torch.float32)[joins or step // 4 %% 2]  # the interpreter rounds to bf16 in its own way
    parts = [
        torch.randn((3 if joins else 1, *shape), generator=torch.Generator().manual_seed(100 * step + other))
        for other in range(size)
    ]
    time.sleep(pace.random() / 100)
    given = parts[rank] if joins else parts[rank][0].to(dtype)
    found = exchange(given, dtype, rank=rank, joins=joins, **memory)
    expected = torch.stack([(part[0] + part[1] + part[2] if joins else part[0]).to(dtype) for part in parts])
    assert torch.equal(found, expected), (step, rank)
rows = memory | {"epochs": torch.zeros(ROWS, dtype=torch.int32)}
for step in range(6):
    shape, joins = [(1, 1, 48), (1, 3, 700), (2, 1, 48)][step %% 3], step %% 2 == 0
    drawn = torch.Generator().manual_seed(step)
    x = torch.randn(shape, generator=drawn)
    weight = torch.rand(shape[-1], generator=drawn)
    parts = [torch.randn((2 if joins else 1, *shape), generator=drawn) for _ in range(size)]
    time.sleep(pace.random() / 100)
    total, out = exchange_and_norm(x, parts[rank] if joins else parts[rank][0], weight, 1e-5, rank=rank, **rows)
    summed = [part.sum(0) for part in parts]
    expected = x + (summed[0] + summed[1] + (summed[2] if size == 3 else 0.0))
    assert torch.equal(total, expected), (step, rank)
    assert torch.allclose(out, torch.nn.functional.rms_norm(expected, shape[-1:], weight, 1e-5), atol=1e-5)
print("equal")
"""


def test_every_rank_has_the_parts_of_all_in_rank_order_and_the_norm_of_their_sum(tmp_path: Path) -> None:
    """The count of calls wraps on the way: it is 32 bits wide, and a server makes 20,000 a second."""
    size = 3
    files = [str(tmp_path / f"memory{rank}") for rank in range(size)]
    for file in files:
        with Path(file).open("wb") as made:
            made.write(NEAR_WRAP.to_bytes(4, "little") * PROGRAMS * 4)
            made.truncate(num_bytes(size) + norm_bytes(size))
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT % {"num_bytes": num_bytes(size) + norm_bytes(size), "near_wrap": NEAR_WRAP})
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), str(rank), str(size), *files],
            env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    assert [rank.communicate(timeout=200)[0].strip() for rank in ranks] == ["equal"] * size


@pytest.mark.skipif(torch.cuda.is_available(), reason="one process cannot stand for two GPUs")
def test_waiting_ends_when_it_is_told_to_stop() -> None:
    from outpace.kernels.gpu.exchange import exchange

    memories = [torch.zeros(num_bytes(2), dtype=torch.uint8) for _ in range(2)]
    out = exchange(
        torch.ones(1, BLOCK),
        torch.float32,
        addresses=torch.tensor([memory.data_ptr() for memory in memories]),
        epochs=torch.zeros(PROGRAMS, dtype=torch.int32),
        stop=torch.ones(1, dtype=torch.int32),
        rank=0,
    )
    assert torch.equal(out[0], torch.ones(1, BLOCK))  # its own part is there
