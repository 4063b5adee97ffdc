"""A mixture of experts under speculation: the answers are plain decoding's."""

from __future__ import annotations

import pytest

from engine.test_lossless import answers, prompts, sampled, whole
from engine.tiny import OracleDrafter, engine, tiny_drafter, tiny_target
from outpace import SamplingParams
from outpace.models.arch import MixtureConfig
from outpace.models.registry import LoadedTarget


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    mixture = MixtureConfig(
        num_experts=5, num_chosen=2, intermediate_size=24, normalizes=True, layers=(True, False, True)
    )
    return tiny_target(seed=70, architecture="qwen3_moe", mixture=mixture)


@pytest.mark.parametrize("k", [1, 4])
def test_speculative_equals_plain(target: LoadedTarget, k: int) -> None:
    batch = prompts(6, seed=70)
    for params in (SamplingParams(max_tokens=24), sampled(6)):
        plain = engine(target).generate(batch, params)
        for drafter in (OracleDrafter(whole(plain), accuracy=0.6), tiny_drafter(target)):
            assert answers(engine(target, drafter, k=k).generate(batch, params)) == answers(plain)
