"""Mixtures of experts and latent attention under speculation: the answers are plain decoding's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.test_lossless import answers, prompts, sampled, whole
from engine.tiny import OracleDrafter, engine, tiny_drafter, tiny_target
from models.drafters import make_drafter
from outpace import SamplingParams
from outpace.engine import calibrate
from outpace.engine.memory import bytes_per_page
from outpace.errors import ConfigError
from outpace.kernels import plain_latents
from outpace.models.arch import LatentConfig, MixtureConfig
from outpace.models.drafters.checkpoint import load_drafter
from outpace.models.mixture import Mixture
from outpace.models.registry import LoadedTarget

SOME = (True, False, True)


def qwen3_moe() -> LoadedTarget:
    mixture = MixtureConfig(num_experts=5, num_chosen=2, intermediate_size=24, normalizes=True, layers=SOME)
    return tiny_target(seed=70, architecture="qwen3_moe", mixture=mixture)


def deepseek_v3() -> LoadedTarget:
    mixture = MixtureConfig(
        num_experts=8,
        num_chosen=3,
        intermediate_size=24,
        normalizes=True,
        layers=SOME,
        scoring="sigmoid",
        num_groups=4,
        num_chosen_groups=2,
        corrects=True,
        scale=2.5,
        shared_size=24,
        routes_in_float32=True,
    )
    latent = LatentConfig(kv_rank=16, q_rank=12, plain_dim=8, value_dim=10, scale=16**-0.5, interleaved=True)
    target = tiny_target(seed=71, architecture="deepseek_v3", mixture=mixture, latent=latent, num_kv_heads=4)
    for name, buffer in target.model.named_buffers():
        if "correction" in name:
            buffer.uniform_(-0.1, 0.1)
    return target


def test_a_long_prompt_is_attended_to_in_plain_form_and_answered_as_in_short_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, made = deepseek_v3(), list[int]()
    original = plain_latents.bring_up

    def counted(latents_BTE: Tensor, kv_up_NOR: Tensor) -> Tensor:
        made.append(latents_BTE.shape[1])
        return original(latents_BTE, kv_up_NOR)

    monkeypatch.setattr(plain_latents, "bring_up", counted)
    batch = [(prompt * 60)[:60] for prompt in prompts(3, seed=73)]
    params = SamplingParams(max_tokens=12)
    short = engine(target, tiny_drafter(target, num_kv_heads=2), prefill_chunk=8).generate(batch, params)
    assert not made
    long = engine(target, tiny_drafter(target, num_kv_heads=2), prefill_chunk=256).generate(batch, params)
    assert made
    assert answers(long) == answers(short)


@pytest.mark.parametrize("make", [qwen3_moe, deepseek_v3])
@pytest.mark.parametrize("k", [1, 4])
def test_speculative_equals_plain(make: object, k: int) -> None:
    target: LoadedTarget = make()  # type: ignore[operator]
    batch = prompts(4, seed=70)
    for params, options in ((SamplingParams(max_tokens=20), {"num_pages": 30}), (sampled(4), {"prefill_chunk": 5})):
        plain = engine(target).generate(batch, params)
        for drafter in (
            OracleDrafter(whole(plain), accuracy=0.6, hidden_size=target.config.hidden_size),
            tiny_drafter(target, num_kv_heads=2),
        ):
            llm = engine(target, drafter, k=k, **options)
            assert answers(llm.generate(batch, params)) == answers(plain)


@pytest.mark.parametrize("dialect", ["mla", "lightseek"])
def test_kimis_drafters_change_nothing(dialect: str, tmp_path: Path) -> None:
    """Read from a checkpoint; with prefixes that are reused, rows that are preempted and cold restarts."""
    target = deepseek_v3()
    sizes = {"num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 100}
    make_drafter(tmp_path, dialect, target.config, boundaries=(0, 1, 2), **sizes)
    drafter = load_drafter(tmp_path, target.model, dtype=torch.float32, device="cpu", aux_boundaries=(0, 1, 2))
    batch = prompts(4, seed=70)
    for params, options in ((SamplingParams(max_tokens=20), {"num_pages": 30}), (sampled(4), {"prefill_chunk": 5})):
        plain = engine(target).generate(batch, params)
        llm = engine(target, drafter, k=3, **options)
        assert answers(llm.generate(batch, params)) == answers(plain)


def test_a_drafters_latent_is_cached_once(tmp_path: Path) -> None:
    target = deepseek_v3()
    make_drafter(tmp_path, "mla", target.config, boundaries=(0, 1, 2))
    drafter = load_drafter(tmp_path, target.model, dtype=torch.float32, device="cpu", aux_boundaries=(0, 1, 2))
    llm = engine(target, drafter, k=3)
    cache = llm.engine.runner._pair.drafter_cache
    assert cache is not None
    assert cache.keys_LNHD.shape[2:] == (1, 16 + 6)
    assert cache.values_LNHD.data_ptr() == cache.keys_LNHD.data_ptr()
    page_bytes = bytes_per_page(target.model, drafter, 4, torch.float32) - bytes_per_page(
        target.model, None, 4, torch.float32
    )
    assert page_bytes * llm.config.num_pages == 4 * (cache.keys_LNHD.numel() + 32 * llm.config.num_pages)


def test_a_latent_is_cached_once() -> None:
    target = deepseek_v3()
    llm = engine(target)
    cache = llm.engine.runner._pair.cache
    assert cache.keys_LNHD.shape[2:] == (1, 16 + 8)
    assert cache.values_LNHD.data_ptr() == cache.keys_LNHD.data_ptr()
    page_bytes = bytes_per_page(target.model, None, 4, target.model.embed.weight.dtype)
    assert page_bytes * llm.config.num_pages == cache.keys_LNHD.numel() * 4


@pytest.mark.parametrize("make", [qwen3_moe, deepseek_v3])
@pytest.mark.parametrize("k", [0, 3])
def test_the_experts_that_a_cycle_touched_are_counted(make: object, k: int) -> None:
    """Against what every layer's router says of the cycle's tokens."""
    target: LoadedTarget = make()  # type: ignore[operator]
    llm = engine(target, tiny_drafter(target, num_kv_heads=2), k=3)
    mixtures = [layer.mlp for layer in target.model.layers if isinstance(layer.mlp, Mixture)]
    routed: dict[Mixture, Tensor] = {}

    def watched(mixture: Mixture) -> object:
        choose = mixture.choose

        def choosing(x_TH: Tensor, *reuse: Any) -> tuple[Tensor, Tensor]:
            routed[mixture] = choose(x_TH, *reuse)[0]
            return choose(x_TH, *reuse)

        return choosing

    for mixture in mixtures:
        mixture.choose = watched(mixture)  # type: ignore[assignment,method-assign]
    runner = llm.engine.runner
    touched: list[int] = []
    calibrate.time_cycles(runner, 3, k, 20, 2, touched=touched)
    assert all(len(experts_TC) == 3 * (k + 1) for experts_TC in routed.values())
    assert touched[-1] == sum(len(set(experts_TC.flatten().tolist())) for experts_TC in routed.values())
    assert len(touched) == 3


def test_describe_says_who_computes_the_experts() -> None:
    assert engine(qwen3_moe()).describe()["kernels"]["experts"] == "PyTorch, expert by expert: no GPU"


def test_dense_targets_touch_none() -> None:
    touched: list[int] = []
    calibrate.time_cycles(engine(tiny_target(seed=72)).engine.runner, 2, 0, 20, 2, touched=touched)
    assert touched == []
    assert calibrate.experts_of(tiny_target(seed=72).config) is None


def test_calibration_tells_what_an_expert_costs() -> None:
    target = deepseek_v3()
    llm = engine(target, tiny_drafter(target, num_kv_heads=2), k=3, control="auto", max_rows=8)
    told = llm.describe()["control"]
    assert (told["experts"]["layers"], told["experts"]["experts"], told["experts"]["a_token"]) == (2, 8, 3)
    assert told["experts"]["us_each"] >= 0.0
    measured = [entry for entry in told["costs"] if entry["source"] == "measured"]
    assert all(entry["experts"] >= 6 for entry in measured)
    alike: list[int] = []
    apart: list[int] = []
    calibrate.time_cycles(llm.engine.runner, 8, 0, 20, 2, touched=alike, alike=True)
    calibrate.time_cycles(llm.engine.runner, 8, 0, 20, 2, touched=apart)
    assert set(alike) == {6}, "as many as one token"
    assert min(apart) > 6
    llm.generate(prompts(2, seed=74), SamplingParams(max_tokens=12))
    assert llm.describe()["control"]["experts"]["touched_last"] >= 6


@pytest.mark.parametrize("make", [qwen3_moe, deepseek_v3])
def test_reused_experts_are_said_to_be_lossy(make: object) -> None:
    """Plain decoding stays exact; a drafter that is always right is no longer, since verifying computes otherwise."""
    target: LoadedTarget = make()  # type: ignore[operator]
    batch, params = prompts(4, seed=70), SamplingParams(max_tokens=20)
    plain = engine(target).generate(batch, params)
    assert not any(result.stats.lossy for result in plain)
    assert answers(engine(target, expert_reuse=1).generate(batch, params)) == answers(plain)
    llm = engine(
        target, OracleDrafter(whole(plain), accuracy=1.0, hidden_size=target.config.hidden_size), k=4, expert_reuse=1
    )
    found = llm.generate(batch, params)
    assert all(result.stats.lossy and result.stats.as_dict()["lossy"] for result in found)
    assert answers(found) != answers(plain)
    assert llm.describe()["lossless"] is False and engine(target).describe()["lossless"] is True


def test_expert_reuse_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(ConfigError, match="expert_reuse is 1, but the model is no mixture"):
        engine(tiny_target(seed=3), expert_reuse=1)
    with pytest.raises(ConfigError, match=r"expert_reuse is 2; of the 2 experts .* 0 … 1"):
        engine(qwen3_moe(), expert_reuse=2)
