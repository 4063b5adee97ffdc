from __future__ import annotations

import pytest
import torch

from outpace.lab.limits import Limits, limits_of
from outpace.lab.rates import Rates, copy_rate, matrix_rate, seconds_of
from outpace.lab.shapes import SHAPES
from outpace.models.fresh import fresh_wiring

CONFIG = SHAPES["llama-8b"]()
WIRING = fresh_wiring(CONFIG, torch.arange(32000), {})

# Llama-3.1-8B in bf16, counted by hand.
LAYER = (4096 + 2 * 1024) * 4096 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
WEIGHTS = 2 * (32 * LAYER + 4096 + 128256 * 4096)
DRAFTER = 2 * ((4096 + 2 * 1024) * 8192 + 4096 * 4096 + 3 * 4096 * 14336 + 4 * 4096 + 32000 * 4096)
FUSION = 2 * 3 * 4096 * 4096
ROW, KV, DRAFTER_KV = 2 * 4096, 131_072, 4096


def limits(copy: float = 1e12, matrix: float = 1e30) -> Limits:
    """By default products take no time, so that bytes alone decide."""
    return limits_of(CONFIG, WIRING, torch.bfloat16, Rates(copy_bytes_s=copy, matrix_flops_s=matrix))


def test_limit_times_rate_is_the_bytes_counted_by_hand() -> None:
    assert limits().plain(1, 0) * 1e12 == pytest.approx(WEIGHTS + ROW)
    assert limits().plain(8, 1024) * 1e12 == pytest.approx(WEIGHTS + 8 * (ROW + 1024 * KV))
    assert limits().verify(8, 3, 1024) * 1e12 == pytest.approx(WEIGHTS + 8 * (4 * ROW + 1024 * KV))
    assert limits().draft(8, 3, 1024) * 1e12 == pytest.approx(3 * (DRAFTER + 8 * (ROW + 1024 * DRAFTER_KV)))
    assert limits().fuse(8, 3) * 1e12 == pytest.approx(FUSION)


def test_a_cycle_is_its_stages_and_with_k_0_a_plain_step() -> None:
    ours = limits(3e12, 7e14)
    assert ours.cycle(4, 5, 100) == ours.verify(4, 5, 100) + ours.draft(4, 5, 100) + ours.fuse(4, 5)
    assert ours.cycle(4, 0, 100) == ours.plain(4, 100) == ours.verify(4, 0, 100)


def test_where_products_take_longer_than_reading_they_are_the_limit() -> None:
    ours = limits(copy=1e30, matrix=1e15)
    products = 2 * (WEIGHTS // 2 - 32 * 2 * 4096 - 4096)
    pairs = 4 * 32 * 4096 * 1000
    assert ours.verify(64, 7, 1000) * 1e15 == pytest.approx(64 * 8 * (products + pairs))


def test_a_prefill_multiplies_the_head_once_and_half_of_all_pairs() -> None:
    layers, head = 2 * (WEIGHTS // 2 - 32 * 2 * 4096 - 4096 - 128256 * 4096), 2 * 128256 * 4096
    assert limits().target.prefill_flops(3) == 3 * layers + head + 6 * 4 * 32 * 4096


def test_without_a_drafter_there_is_nothing_to_draft() -> None:
    alone = limits_of(CONFIG, None, torch.bfloat16, Rates(copy_bytes_s=1e12, matrix_flops_s=1e15))
    assert alone.draft(1, 3, 10) == alone.fuse(1, 3) == 0.0


def test_rates_are_measured() -> None:
    device = torch.device("cpu")
    assert copy_rate(device, 1 << 20) > 1e7
    assert matrix_rate(device, 32) > 1e5
    calls: list[int] = []
    assert seconds_of(lambda: calls.append(1), device) > 0.0
    assert len(calls) == 12, "two to warm up, ten timed"
