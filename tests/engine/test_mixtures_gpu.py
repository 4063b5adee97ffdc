"""On a GPU, mixtures of experts and latent attention: what is written is what plain decoding writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.reference import serve
from engine.test_lossless import answers, prompts, sampled, whole
from engine.test_mixture import deepseek_v3, qwen3_moe
from engine.ties import part_at_ties
from engine.tiny import VOCAB, OracleDrafter, engine
from models.checkpoints import make_checkpoint
from models.test_packed import GROUPED, SIZES
from models.test_quantised import pack_int4, quantise
from outpace import LLM, SamplingParams
from outpace.models.registry import LoadedTarget, load_target
from outpace.models.source import locate

pytestmark = pytest.mark.gpu


def oracle(target: LoadedTarget, known: list[tuple[int, ...]]) -> OracleDrafter:
    """Right in three places of four."""
    drafter = OracleDrafter(known, 0.75, hidden_size=target.config.hidden_size)
    return drafter.to(target.model.embed.weight.device)


def all_graphs(llm: LLM) -> bool:
    graphs = llm.describe()["graphs"]
    return graphs["captured"] > 0 and graphs["eager"] == graphs["prefill"]["eager"] == []


@pytest.mark.parametrize("make", [qwen3_moe, deepseek_v3])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_float32_is_equal_token_for_token(make: Callable[[], LoadedTarget], k: int) -> None:
    target, batch = make(), prompts(12, seed=70)
    on_cpu = engine(target).generate(batch, sampled(12))
    target.model.to("cuda")
    for params in (sampled(12), [SamplingParams(max_tokens=24)] * 12):
        plain = engine(target)
        expected = plain.generate(batch, params)
        if params == sampled(12):
            assert answers(expected) == answers(on_cpu)
        speculative = engine(target, oracle(target, whole(expected)), k=k)
        found = speculative.generate(batch, params)
        assert answers(found) == answers(expected)
        assert sum(sum(result.stats.accepted_at) for result in found) > 40
        assert all_graphs(plain) and all_graphs(speculative)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_packed_experts_and_latents_part_at_ties_alone(
    k: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kimi-K2's kinds of layers, in bf16 with experts in INT4."""
    make_checkpoint(tmp_path, "deepseek_v3", dtype=torch.bfloat16, vocab_size=VOCAB, **SIZES)
    quantise(tmp_path, GROUPED, lambda weight: pack_int4(weight, 32))
    source = locate(str(tmp_path))
    target = load_target(source, dtype=torch.bfloat16, device="cuda", weights="packed")
    plain = engine(target, page_size=64, num_pages=100)
    for num in (1, 5, 16):
        batch, params = prompts(num, seed=num), [SamplingParams(max_tokens=60, logprobs=20)] * num
        expected = serve(plain, batch, params)
        known = [(*prompt, *answer.token_ids) for prompt, answer in zip(batch, expected, strict=True)]
        speculative = engine(target, oracle(target, known), k=k, page_size=64, num_pages=100)
        gaps, rounding = part_at_ties(expected, serve(speculative, batch, params))
        with capsys.disabled():
            print(f"packed, {num} rows, k {k}: {len(gaps)} part, gaps {gaps[:5]}, rounding elsewhere {rounding:.4f}")
        assert all(gap <= rounding for gap in gaps)
        assert all_graphs(plain) and all_graphs(speculative)
