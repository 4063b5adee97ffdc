from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outpace.lab.limits.cycle import Limits, cycle_parts, limits_of
from outpace.lab.limits.parts import Least, touched
from outpace.lab.limits.rates import Rates, copy_rate, matrix_rate, seconds_of
from outpace.lab.limits.reads import target_reads
from outpace.lab.shapes.dense import SHAPES
from outpace.lab.shapes.drawn import Drawn
from outpace.lab.shapes.ranks import RANKS, packing_of
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
    assert limits().target.prefill_flops(3, behind=10) == 3 * layers + head + 36 * 4 * 32 * 4096


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


@pytest.mark.parametrize("shape", ["tiny", "tiny-fp8"])
def test_a_mixture_with_latent_attention_is_what_lies_in_memory(shape: str) -> None:
    """Every weight but routed experts and embeddings, counted in the model itself; packed as it lies."""
    make, form = RANKS[shape]
    config = make(3)
    packing = packing_of(config, form)
    drawn = Drawn.make(config, form, 1, torch.bfloat16, torch.device("meta"))
    mixture, reads = config.mixture, target_reads(config, 2, packing)
    assert mixture is not None
    wider = 2 * 2 * mixture.num_experts * config.hidden_size  # routers are float32 where there is no GPU
    assert reads.weights == drawn.other_bytes - wider
    assert reads.expert == 2 * drawn.expert_bytes
    assert reads.kv_per_token == 3 * 2 * (16 + 8)
    assert touched(mixture, 1) == pytest.approx(mixture.num_chosen)
    experts = reads.expert * touched(mixture, 6)
    least = reads.least(2, 3, 100)
    assert least.num_bytes == pytest.approx(
        reads.weights + experts + 2 * (3 * reads.embedding_row + 100 * reads.kv_per_token)
    )
    assert least.flops == 6 * (reads.flops_per_token + 100 * reads.flops_per_pair)


def test_a_rank_of_kimi_by_hand() -> None:
    """Experts of 3 * 7168 * 256 weights at 4 bits and a 16-bit scale a 32; 576 elements a token and layer cached."""
    config = RANKS["kimi-k2.5-tp8"][0](61)
    reads = target_reads(config, 2, packing_of(config, "int4"))
    assert reads.expert == 60 * 3 * 7168 * 256 * 9 // 16
    assert reads.kv_per_token == 61 * 2 * 576
    heads, hidden = 8, 7168
    attention = hidden * (1536 + 576) + 1536 * heads * 192 + 512 * heads * 256 + heads * 128 * hidden
    mixed = 384 * hidden + 3 * 256 * hidden
    norms = 61 * (2 * hidden + 1536 + 512) + hidden
    assert reads.weights == 2 * (61 * attention + 60 * mixed + 3 * 2304 * hidden + 20480 * hidden + norms)


def test_a_cycle_by_phase_and_part_by_hand() -> None:
    cycle = cycle_parts(CONFIG, WIRING, 2, num_rows=1, k=3, context=100)
    assert cycle["verify"]["fusion"].num_bytes == FUSION
    assert cycle["verify"]["head"].num_bytes == 2 * 128256 * 4096
    assert cycle["verify"]["attention"].num_bytes == 100 * KV
    assert cycle["draft"]["head"].num_bytes == 3 * 2 * 32000 * 4096
    assert cycle["draft"]["attention"].num_bytes == 3 * 100 * DRAFTER_KV
    assert cycle["accept"]["sampling"].num_bytes == 2 * 4 * 128256
    drafting = sum(part.num_bytes for name, part in cycle["draft"].items() if name != "sampling")
    assert drafting == 3 * (DRAFTER + 100 * DRAFTER_KV)
    assert cycle_parts(CONFIG, None, 2, num_rows=1, k=0, context=100).keys() == {"verify", "accept"}


def test_least_is_whichever_takes_longer() -> None:
    rates = Rates(copy_bytes_s=1e9, matrix_flops_s=1e12)
    assert Least(2e9, 1e12).seconds(rates) == 2.0 and Least(1e9, 3e12).seconds(rates) == 3.0
    assert Least(2e9, 1e12).times(3) == Least(6e9, 3e12)


def test_norms_and_biases_are_read_and_not_multiplied() -> None:
    changed = replace(CONFIG, qk_norm=True, qkv_bias=True, output_bias=True, mlp_bias=True)
    more, reads = target_reads(changed, 2), target_reads(CONFIG, 2)
    assert more.weights - reads.weights == 2 * 32 * (2 * 128 + 6144 + 4096 + 2 * 14336 + 4096)
    assert more.flops_per_token == reads.flops_per_token


def test_experts_that_tokens_touch() -> None:
    kimi = RANKS["kimi-k2.5-tp8"][0](2).mixture
    assert kimi is not None
    assert touched(kimi, 1) == pytest.approx(8)
    assert touched(kimi, 3) == pytest.approx(23.5, abs=0.05)
